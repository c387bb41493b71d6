"""What each engine makes, takes and can be told, so that a graph that cannot run is refused before anything starts.

Rules
* Nothing of an engine is imported: a gateway that checks its graph loads no model library.
* An engine that is not in `PROFILES` is like others of its kind, and checks its options itself when its worker starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stages.contracts import Payload
from stages.edges import Need


@dataclass(frozen=True, slots=True)
class Makes:
    """`axes`: the order of the payload's axes, the slowest first. `units_max`: of one hand-over, 0 where the stage says
    so by its `chunk_ms_max`. `sample_rate`: of audio, 0 where it is made at any."""

    payload: Payload
    axes: tuple[str, ...]
    units_max: int
    sample_rate: int = 0


@dataclass(frozen=True, slots=True)
class Takes:
    """`need`: how the engine wants it. `sample_rate`: of audio, 0 where it takes any."""

    payload: Payload
    axes: tuple[str, ...]
    need: Need = "chunks"
    sample_rate: int = 0


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """`takes` is all that a stage of this engine is fed by other stages, and it needs all of it. `options`: the names
    that it knows; None: it says so itself."""

    makes: tuple[Makes, ...] = ()
    takes: tuple[Takes, ...] = ()
    options: frozenset[str] | None = None

    def made(self, payload: Payload) -> Makes | None:
        return next((made for made in self.makes if made.payload == payload), None)

    def taken(self, payload: Payload) -> Takes | None:
        return next((taken for taken in self.takes if taken.payload == payload), None)


TEXT_AXES = ("character",)
LATENT_AXES = ("frame", "channel")
SOUND_AXES = ("sample",)

# What an encoder hears and what a Thinker has in mind are both vectors, but an edge of one is none of the other.
HEARD_AXES = ("heard position", "channel")
MIND_AXES = ("position", "channel")
CODEC_AXES = ("codebook", "frame")

CLAUSE_CHARACTERS_MAX = 160
LATENT_ITEM_FRAMES_MAX = 16
EMBEDDINGS_ITEM_MAX = 24
CODEC_CHUNK_FRAMES = 25  # unless the edge has a schedule of its own

_CLAUSES = Makes("clauses", TEXT_AXES, CLAUSE_CHARACTERS_MAX)
_LATENTS = Makes("latents", LATENT_AXES, LATENT_ITEM_FRAMES_MAX)
_AUDIO = Makes("audio", SOUND_AXES, 0)

_BY_KIND = {
    "encoder": EngineProfile(),
    "thinker": EngineProfile(makes=(_CLAUSES,)),
    "talker": EngineProfile(makes=(_LATENTS,), takes=(Takes("clauses", TEXT_AXES),)),
    "vocoder": EngineProfile(makes=(_AUDIO,), takes=(Takes("latents", LATENT_AXES),)),
    "observer": EngineProfile(
        takes=(Takes("clauses", TEXT_AXES, "complete"), Takes("audio", SOUND_AXES, "complete")),
    ),
}

_SCRIPTED = ("heard", "replies", "frames_per_word", "sessions_max")

_OPTIONS: dict[tuple[str, str], tuple[str, ...]] = {
    ("local", "encoder"): (),
    ("local", "thinker"): ("slots", "gguf"),
    ("local", "talker"): ("cache_dir", "voices"),
    ("local", "vocoder"): ("cache_dir", "voices"),
    ("openai", "thinker"): ("base_url", "model", "api_key", "sessions_max", "context_tokens", "sentences_max"),
    ("scripted", "encoder"): _SCRIPTED,
    ("scripted", "thinker"): _SCRIPTED,
    ("scripted", "talker"): (*_SCRIPTED, "chunk_first", "chunk_then"),
    ("scripted", "vocoder"): _SCRIPTED,
    ("scripted", "observer"): _SCRIPTED,
}

_OMNI = ("seed", "checkpoint", "device")

_TORCH = {
    "encoder": EngineProfile(makes=(Makes("embeddings", HEARD_AXES, EMBEDDINGS_ITEM_MAX),), options=frozenset(_OMNI)),
    "thinker": EngineProfile(
        makes=(Makes("embeddings", MIND_AXES, EMBEDDINGS_ITEM_MAX),),
        takes=(Takes("embeddings", HEARD_AXES),),
        options=frozenset((*_OMNI, "sessions", "context_tokens", "output_tokens_max", "piece_tokens_max")),
    ),
    "talker": EngineProfile(
        makes=(Makes("codec", CODEC_AXES, CODEC_CHUNK_FRAMES),),
        takes=(Takes("embeddings", MIND_AXES),),
        options=frozenset((*_OMNI, "chunk_first", "chunk_then", "frames_max", "temperature")),
    ),
    "vocoder": EngineProfile(
        makes=(Makes("audio", SOUND_AXES, 0, sample_rate=24_000),),
        takes=(Takes("codec", CODEC_AXES),),
        options=frozenset((*_OMNI, "decode_frames_max")),
    ),
}

PROFILES = {
    (engine, kind): replace(_BY_KIND[kind], options=frozenset(options)) for (engine, kind), options in _OPTIONS.items()
} | {("torch", kind): profile for kind, profile in _TORCH.items()}


def profile_of(engine: str, kind: str) -> EngineProfile:
    """What `engine` declares as a stage of `kind`, which must be one that there is."""
    return PROFILES.get((engine, kind), _BY_KIND[kind])
