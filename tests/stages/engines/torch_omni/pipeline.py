"""The graph of the torch engine's four stages."""

from __future__ import annotations

from typing import Any

from stages.edges import GATEWAY
from stages.graph import Edge, Graph, StageKind, StageNode

HEARD = Edge(source="hear", target="think", payload="embeddings", window=96)
MIND = Edge(source="think", target="speak", payload="embeddings", window=96)
CODES = Edge(source="speak", target="sound", payload="codec", window=64)
SOUND = Edge(source="sound", target=GATEWAY, payload="audio", window=12_000)  # half a second at most goes unheard
LINE = (HEARD, MIND, CODES, SOUND)


def omni_graph(*edges: Edge, **talker: Any) -> Graph:
    """Encoder → Thinker → Talker → vocoder → gateway; `talker`: its options."""

    def node(name: str, kind: StageKind, **settings: Any) -> StageNode:
        return StageNode(name=name, kind=kind, engine="torch", **settings)

    return Graph(
        stages=(
            node("hear", "encoder"),
            node("think", "thinker"),
            node("speak", "talker", options=talker),
            node("sound", "vocoder", chunk_ms_max=160),
        ),
        edges=edges or LINE,
    )
