"""The graph that a configuration asks for, and the way of a response through a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from duplex.config import Config, ConfigError
from duplex.places import SPARE_PLACES
from duplex.tenant_directory import read_tenants
from duplex.tenants import TenantsError
from media.chunk import ms_to_samples
from sessions.route import Leg, Route
from sessions.settings import OUTPUT_RATE
from stages.edges import GATEWAY
from stages.engines.local.loaded_voices import voice_name
from stages.engines.local.options import SLOTS_MAX
from stages.engines.synthetic.profile import Profile, ProfileError, load_profile
from stages.graph import Edge, Graph, GraphError, StageNode, graph_from

# Two clauses of the longest kind, and three latent items: one being used, one in flight, one being made.
CLAUSE_WINDOW_CHARACTERS = 320
LATENT_WINDOW_FRAMES = 48
# 16 frames of 256 samples at 22.05 kHz, rounded up.
VOCODER_CHUNK_MS = 190
SHIPPED_VOICE = "en_US-joe-medium"
# A Thinker's step may be a whole answer, of another server too; a response is given up after five minutes.
THINKER_STEP_S_MAX = 360


def graph_of(config: Config, tenant_weights: Mapping[str, int] | None = None) -> Graph:
    """A line encoder | Thinker → Talker → vocoder → gateway, of the engines that `config` names. `tenant_weights` None:
    those of the file that it names.

    Raises `ConfigError` for a profile or tenants that cannot be used, and `GraphError` for what cannot run.
    """
    options = _synthetic_options(config) if config.engine == "synthetic" else _options(config)
    return graph_from(
        stages=(
            StageNode(
                name="encoder",
                kind="encoder",
                engine=config.engine,
                options=options["encoder"],
                replicas=config.replicas_encoder,
            ),
            _thinker(config, options["thinker"]),
            StageNode(
                name="talker",
                kind="talker",
                engine=config.engine,
                options=options["talker"],
                replicas=config.replicas_talker,
            ),
            StageNode(
                name="vocoder",
                kind="vocoder",
                engine=config.engine,
                options=options["vocoder"],
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
        events_max=config.events_max,
        arena_blocks=config.arena_blocks,
        session_blocks_max=config.session_blocks_max,
        tenant_weights=dict(_weights_of(config) if tenant_weights is None else tenant_weights),
    )


def _weights_of(config: Config) -> Mapping[str, int]:
    try:
        return read_tenants(config.tenants_file).weights if config.tenants_file else {}
    except TenantsError as error:
        raise ConfigError(f"tenants_file (DUPLEX_TENANTS_FILE): {error}") from error


def _options(config: Config) -> dict[str, dict[str, Any]]:
    """Options of each kind of stage, for an engine that hears and says real words."""
    encoder: dict[str, Any] = {"heard": list(config.scripted_heard)} if config.engine == "scripted" else {}
    return {
        "encoder": encoder,
        "thinker": _thinker_options(config),
        "talker": voice_options(config),
        "vocoder": voice_options(config),
    }


def _synthetic_options(config: Config) -> dict[str, dict[str, Any]]:
    try:
        profile = load_profile(config.synthetic_profile) if config.synthetic_profile else Profile()
    except ProfileError as error:
        raise ConfigError(f"synthetic_profile (DUPLEX_SYNTHETIC_PROFILE): {error}") from error
    options: dict[str, dict[str, Any]] = msgspec.to_builtins(profile)
    options["thinker"] |= {"sessions_max": config.calls_max + SPARE_PLACES, "kv_idle_s": config.kv_idle_s}
    if config.kv_slots:
        options["thinker"]["kv_places"] = config.kv_slots
    return options


def voice_options(config: Config) -> dict[str, Any]:
    """Options of the Talker and of the vocoder that speak real words: each voice is split in two."""
    if config.engine != "local":
        return {}
    return {"cache_dir": str(config.data_dir / "cache"), "voices": [str(path) for path in config.voice]}


def voices_of(config: Config) -> tuple[str, ...]:
    """The voices that a session can ask for, the usual one first. None where the engine has no choice."""
    if config.engine != "local":
        return ()
    return tuple(map(voice_name, config.voice)) or (SHIPPED_VOICE,)


def _thinker(config: Config, options: dict[str, Any]) -> StageNode:
    # Each replica has room for every call, also for one that is there twice while its caller comes back: when the
    # others are gone, it can serve them all.
    if config.thinker == "openai":
        asked: dict[str, Any] = {
            "base_url": config.openai_base_url,
            "model": config.openai_model,
            "sessions_max": config.calls_max + SPARE_PLACES,
        }
        secrets = {"api_key": "DUPLEX_OPENAI_API_KEY"}
        return StageNode(
            name="thinker",
            kind="thinker",
            engine="openai",
            options=asked,
            secrets=secrets,
            replicas=config.replicas_thinker,
            step_s_max=THINKER_STEP_S_MAX,
        )
    is_scripted = config.thinker == "scripted"
    return StageNode(
        name="thinker",
        kind="thinker",
        engine="scripted" if is_scripted else config.engine,
        options=_script(config) if is_scripted else options,
        replicas=config.replicas_thinker,
        step_s_max=THINKER_STEP_S_MAX,
    )


def _thinker_options(config: Config) -> dict[str, Any]:
    if config.engine == "scripted":
        return _script(config)
    slots = config.kv_slots or min(config.calls_max, SLOTS_MAX)
    options: dict[str, Any] = {"slots": slots, "idle_s": config.kv_idle_s}
    if config.thinker_gguf:
        options["gguf"] = str(config.thinker_gguf)
    return options


def _script(config: Config) -> dict[str, Any]:
    return {"replies": list(config.scripted_replies), "sessions_max": config.calls_max + SPARE_PLACES}


def route_of(graph: Graph) -> Route:
    """How a response goes through `graph`, from its first Thinker on.

    Raises `GraphError` where nobody hears, or nobody answers.
    """
    encoder = next((stage.name for stage in graph.stages if stage.kind == "encoder"), None)
    head = next((stage.name for stage in graph.stages if stage.kind == "thinker"), None)
    if encoder is None or head is None:
        raise GraphError("the conversation needs a stage that hears and one that answers: add an encoder and a thinker")
    legs: dict[str, Leg] = {}
    for name in graph.downstream(head):
        stage = graph.stage(name)
        kind = stage.kind
        assert kind != "encoder", "no edge leads to an encoder"
        fed_by = [legs[edge.source] for edge in graph.edges_to(name) if edge.source in legs]
        spoken = kind in ("talker", "vocoder") or any(leg.spoken for leg in fed_by)
        onward = tuple(edge.target for edge in graph.edges_from(name) if edge.target != GATEWAY)
        legs[name] = Leg(name, kind, onward, graph.finals_of(stage), spoken)
    return Route(encoder, tuple(legs.values()))
