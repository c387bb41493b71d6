"""What each engine makes, takes and can be told, so that a graph that cannot run is refused before anything starts.

Rules
* No model library is imported: of an engine, a gateway that checks its graph reads nothing but what it can be told.
* An engine that is not in `PROFILES` is like others of its kind, and checks its options itself when its worker starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from stages.contracts import Payload
from stages.edges import Need
from stages.engines.local.options import NoOptions, SlotOptions, VoiceOptions
from stages.engines.openai_options import OpenAIOptions
from stages.engines.scripted import ScriptedOptions
from stages.engines.synthetic import profile as synthetic
from stages.engines.torch_omni.options import (
    CODEC_CHUNK_FRAMES,
    Code2WavSettings,
    ModelOptions,
    TalkerSettings,
    ThinkerSettings,
)


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
    """`takes` is all that a stage of this engine is fed by other stages, and it needs all of it. `settings`: what its
    options are read as, each name by one of them; None: it says so itself. `unused`: names that mean nothing here."""

    makes: tuple[Makes, ...] = ()
    takes: tuple[Takes, ...] = ()
    settings: tuple[type[msgspec.Struct], ...] | None = None
    unused: frozenset[str] = frozenset()

    @property
    def options(self) -> frozenset[str] | None:
        """The names of the options that it knows."""
        if self.settings is None:
            return None
        return frozenset(name for one in self.settings for name in one.__struct_fields__) - self.unused

    def check(self, options: Mapping[str, object]) -> None:
        """Raises `msgspec.ValidationError`, which names the option, for a value that the engine does not take."""
        for one in self.settings or ():
            msgspec.convert({name: options[name] for name in one.__struct_fields__ if name in options}, one)

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

_SETTINGS: dict[tuple[str, str], type[msgspec.Struct]] = {
    ("local", "encoder"): NoOptions,
    ("local", "thinker"): SlotOptions,
    ("local", "talker"): VoiceOptions,
    ("local", "vocoder"): VoiceOptions,
    ("openai", "thinker"): OpenAIOptions,
    ("synthetic", "encoder"): synthetic.EncoderProfile,
    ("synthetic", "thinker"): synthetic.ThinkerProfile,
    ("synthetic", "talker"): synthetic.TalkerProfile,
    ("synthetic", "vocoder"): synthetic.VocoderProfile,
}

_CHUNKS = frozenset({"chunk_first", "chunk_then"})

_SCRIPTED = {
    kind: replace(usual, settings=(ScriptedOptions,), unused=frozenset() if kind == "talker" else _CHUNKS)
    for kind, usual in _BY_KIND.items()
}

_TORCH = {
    "encoder": EngineProfile(
        makes=(Makes("embeddings", HEARD_AXES, EMBEDDINGS_ITEM_MAX),),
        settings=(ModelOptions,),
    ),
    "thinker": EngineProfile(
        makes=(Makes("embeddings", MIND_AXES, EMBEDDINGS_ITEM_MAX),),
        takes=(Takes("embeddings", HEARD_AXES),),
        settings=(ModelOptions, ThinkerSettings),
    ),
    "talker": EngineProfile(
        makes=(Makes("codec", CODEC_AXES, CODEC_CHUNK_FRAMES),),
        takes=(Takes("embeddings", MIND_AXES),),
        settings=(ModelOptions, TalkerSettings),
    ),
    "vocoder": EngineProfile(
        makes=(Makes("audio", SOUND_AXES, 0, sample_rate=24_000),),
        takes=(Takes("codec", CODEC_AXES),),
        settings=(ModelOptions, Code2WavSettings),
    ),
}

PROFILES = (
    {(engine, kind): replace(_BY_KIND[kind], settings=(of_kind,)) for (engine, kind), of_kind in _SETTINGS.items()}
    | {("scripted", kind): profile for kind, profile in _SCRIPTED.items()}
    | {("torch", kind): profile for kind, profile in _TORCH.items()}
)


def profile_of(engine: str, kind: str) -> EngineProfile:
    """What `engine` declares as a stage of `kind`, which must be one that there is."""
    return PROFILES.get((engine, kind), _BY_KIND[kind])
