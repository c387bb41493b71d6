"""The graph that a configuration asks for."""

from __future__ import annotations

from typing import Any

from duplex.config import Config
from media.chunk import ms_to_samples
from sessions.settings import OUTPUT_RATE
from stages.graph import GATEWAY, Edge, Graph, StageNode

# Two clauses of the longest kind, and three latent items: one being used, one in flight, one being made.
CLAUSE_WINDOW_CHARACTERS = 320
LATENT_WINDOW_FRAMES = 48
# 16 frames of 256 samples at 22.05 kHz, rounded up.
VOCODER_CHUNK_MS = 190
# A Thinker's step may be a whole answer, of another server too; a response is given up after five minutes.
THINKER_STEP_S_MAX = 360


def graph_of(config: Config) -> Graph:
    """A line encoder | Thinker → Talker → vocoder → gateway, of the engines that `config` names."""
    return Graph(
        stages=(
            StageNode(
                name="encoder",
                kind="encoder",
                engine=config.engine,
                options=_encoder_options(config),
                replicas=config.replicas_encoder,
            ),
            _thinker(config),
            StageNode(
                name="talker",
                kind="talker",
                engine=config.engine,
                options=voice_options(config),
                replicas=config.replicas_talker,
            ),
            StageNode(
                name="vocoder",
                kind="vocoder",
                engine=config.engine,
                options=voice_options(config),
                replicas=config.replicas_vocoder,
                chunk_ms_max=VOCODER_CHUNK_MS,
            ),
        ),
        edges=(
            Edge(source="thinker", target="talker", payload="clauses", window=CLAUSE_WINDOW_CHARACTERS),
            Edge(source="talker", target="vocoder", payload="latents", window=LATENT_WINDOW_FRAMES),
            Edge(
                source="vocoder",
                target=GATEWAY,
                payload="audio",
                window=ms_to_samples(config.generation_lead_ms, OUTPUT_RATE),
            ),
        ),
        output_rate=OUTPUT_RATE,
    )


def _encoder_options(config: Config) -> dict[str, Any]:
    return {"heard": list(config.scripted_heard)} if config.engine == "scripted" else {}


def voice_options(config: Config) -> dict[str, Any]:
    """Options of the Talker and of the vocoder: one voice, split in two."""
    if config.engine == "scripted":
        return {}
    options: dict[str, Any] = {"cache_dir": str(config.data_dir / "cache")}
    return options | ({"voice": str(config.voice)} if config.voice else {})


def _thinker(config: Config) -> StageNode:
    # Each replica has room for every call: when the others are gone, it can serve them all.
    if config.thinker == "openai":
        options: dict[str, Any] = {
            "base_url": config.openai_base_url,
            "model": config.openai_model,
            "sessions_max": config.calls_max,
        }
        secrets = {"api_key": "DUPLEX_OPENAI_API_KEY"}
        return StageNode(
            name="thinker",
            kind="thinker",
            engine="openai",
            options=options,
            secrets=secrets,
            replicas=config.replicas_thinker,
            step_s_max=THINKER_STEP_S_MAX,
        )
    if config.engine == "scripted":
        options = {"replies": list(config.scripted_replies), "sessions_max": config.calls_max}
    else:
        options = {"slots": config.calls_max}
        if config.thinker_gguf:
            options["gguf"] = str(config.thinker_gguf)
    return StageNode(
        name="thinker",
        kind="thinker",
        engine=config.engine,
        options=options,
        replicas=config.replicas_thinker,
        step_s_max=THINKER_STEP_S_MAX,
    )
