"""Builds the local engine's stages from their options; see `stages.engines.registry`.

Where an option names no file, the weights of the shipped manifest are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from stages import weights
from stages.engines.local.encoder import EncoderModel
from stages.engines.local.kv_slot import ThinkerSettings
from stages.engines.local.talker import TalkerModel
from stages.engines.local.thinker import ThinkerModel, load_thinker
from stages.engines.local.vocoder import VocoderModel


class _NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _ThinkerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`slots`: calls at once. `gguf`: another model's file."""

    slots: int
    gguf: str = ""


class VoiceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`voices`: other Piper voices' `.onnx` files, the usual one first. `cache_dir`: where their halves are kept."""

    cache_dir: str
    voices: tuple[str, ...] = ()

    @property
    def paths(self) -> list[Path]:
        return [Path(voice) for voice in self.voices] or [weights.locate("piper-en-us-joe")]


def encoder(options: Mapping[str, object]) -> EncoderModel:
    msgspec.convert(options, _NoOptions)
    return EncoderModel(weights.locate("whisper-tiny.en"))


def thinker(options: Mapping[str, object]) -> ThinkerModel:
    chosen = msgspec.convert(options, _ThinkerOptions)
    path = Path(chosen.gguf) if chosen.gguf else weights.locate("smollm2-135m-instruct")
    return load_thinker(path, ThinkerSettings(sessions=chosen.slots))


def talker(options: Mapping[str, object]) -> TalkerModel:
    chosen = msgspec.convert(options, VoiceOptions)
    return TalkerModel(chosen.paths, Path(chosen.cache_dir))


def vocoder(options: Mapping[str, object]) -> VocoderModel:
    chosen = msgspec.convert(options, VoiceOptions)
    return VocoderModel(chosen.paths, Path(chosen.cache_dir))
