"""The pipeline as data: stages, edges, and what makes a graph that can run.

Rules
* Everything is validated when the graph is built; an error names the stage and how to mend it.
* A window is in the edge's unit: samples (sound), frames (latents) or characters (clauses). The largest single
  hand-over of a producer must fit half of it, so that one can be made while another is in flight.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stages.engines import registry
from stages.worker import WorkerSpec

StageKind = Literal["encoder", "thinker", "talker", "vocoder"]
Payload = Literal["clauses", "latents", "audio"]

GATEWAY = "gateway"
REPLICAS_MAX = 16  # of one stage on one host; each loads its model anew

# What each kind of stage hands over, and to what.
_PAYLOADS: dict[tuple[str, str], Payload] = {
    ("thinker", "talker"): "clauses",
    ("talker", "vocoder"): "latents",
    ("vocoder", GATEWAY): "audio",
}
# The largest single hand-over of each payload: a clause (characters), one latent item (frames).
HAND_OVER_MAX = {"clauses": 160, "latents": 16}


class GraphError(ValueError):
    """The graph cannot run; the text names the stage and the mend."""


class StageNode(BaseModel):
    """One stage. `chunk_ms_max`: the longest piece of sound a vocoder makes at once; `secrets` as in `WorkerSpec`.

    `replicas`: processes that serve it side by side. `step_s_max`: a step that takes longer will never end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")
    kind: StageKind
    engine: str
    options: dict[str, Any] = {}
    secrets: dict[str, str] = {}
    chunk_ms_max: int = Field(default=0, ge=0)
    replicas: int = Field(default=1, ge=1, le=REPLICAS_MAX)
    step_s_max: int = Field(default=60, ge=1)

    @property
    def replica_names(self) -> tuple[str, ...]:
        """A lone replica has the stage's own name."""
        if self.replicas == 1:
            return (self.name,)
        return tuple(f"{self.name}-{number}" for number in range(1, self.replicas + 1))


class Edge(BaseModel):
    """A hand-over. `window`: units in flight at most."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    target: str
    payload: Payload
    window: int = Field(gt=0)


class Graph(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    stages: tuple[StageNode, ...]
    edges: tuple[Edge, ...]
    output_rate: int = 24_000

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [stage.name for stage in self.stages]
        for name in names:
            if names.count(name) > 1:
                raise GraphError(f"stage {name!r} is named twice: give each stage a name of its own")
            if name == GATEWAY:
                raise GraphError(f"stage {name!r}: edges end at the gateway by that name: give the stage another one")
        replicas = [name for stage in self.stages for name in stage.replica_names]
        for name in replicas:
            if replicas.count(name) > 1:
                raise GraphError(f"a stage and a replica of another are both named {name!r}: rename the stage")
        for stage in self.stages:
            self._check_engine(stage)
        for edge in self.edges:
            self._check_edge(edge)
        return self

    @staticmethod
    def _check_engine(stage: StageNode) -> None:
        offered = registry.engines_for(stage.kind)
        if stage.engine not in offered:
            raise GraphError(
                f"stage {stage.name!r}: engine {stage.engine!r} is no {stage.kind}; use one of {', '.join(offered)}"
            )

    def _check_edge(self, edge: Edge) -> None:
        source = self.stage(edge.source)
        target_kind = GATEWAY if edge.target == GATEWAY else self.stage(edge.target).kind
        wanted = _PAYLOADS.get((source.kind, target_kind))
        if wanted != edge.payload:
            raise GraphError(
                f"edge {edge.source} → {edge.target}: from {source.kind} to {target_kind} "
                f"go {wanted or 'no hand-overs'}, not {edge.payload}: "
                f"{f'name {wanted}' if wanted else 'remove the edge, or join other stages'}"
            )
        if sum(other.source == edge.source for other in self.edges) > 1:
            raise GraphError(f"stage {edge.source!r} has two edges, and one reader of what it makes: remove one")
        self._check_window(source, edge)

    def _check_window(self, source: StageNode, edge: Edge) -> None:
        chunk = source.chunk_ms_max * self.output_rate // 1000
        largest = chunk if edge.payload == "audio" else HAND_OVER_MAX[edge.payload]
        if not largest:
            raise GraphError(f"stage {source.name!r} does not say how long its chunks are: set chunk_ms_max")
        if 2 * largest > edge.window:
            raise GraphError(
                f"edge {edge.source} → {edge.target}: one hand-over of {source.name!r} is up to {largest} units, "
                f"more than half of the window of {edge.window}: enlarge the window or make smaller pieces"
            )

    def stage(self, name: str) -> StageNode:
        """Raises `GraphError` where there is no such stage."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        known = ", ".join(stage.name for stage in self.stages)
        raise GraphError(f"there is no stage {name!r}: use one of {known}")

    def edge_from(self, name: str) -> Edge | None:
        return next((edge for edge in self.edges if edge.source == name), None)


def address_of(run_dir: Path, name: str) -> str:
    """Where the process of that name listens: a replica of a stage, or the gateway."""
    return f"unix:{run_dir / name}.sock"


def worker_spec(graph: Graph, stage: StageNode, replica: str, run_dir: Path, incarnation: int) -> WorkerSpec:
    """What the worker process `replica` of `stage` is told."""
    edge = graph.edge_from(stage.name)
    onward = edge is not None and edge.target != GATEWAY
    targets = graph.stage(edge.target).replica_names if edge and onward else ()
    return WorkerSpec(
        replica,
        stage.kind,
        stage.engine,
        address_of(run_dir, replica),
        incarnation,
        stage.options,
        stage.secrets,
        onward={target: address_of(run_dir, target) for target in targets},
        onward_window=edge.window if edge and onward else 0,
        publish_window=edge.window if edge and not onward else 0,
    )
