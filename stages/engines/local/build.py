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
from stages.engines.local.options import NoOptions, SlotOptions, VoiceOptions
from stages.engines.local.talker import TalkerModel
from stages.engines.local.thinker import ThinkerModel, load_thinker
from stages.engines.local.vocoder import VocoderModel


def encoder(options: Mapping[str, object]) -> EncoderModel:
    msgspec.convert(options, NoOptions)
    return EncoderModel(weights.locate("whisper-tiny.en"))


def thinker(options: Mapping[str, object]) -> ThinkerModel:
    chosen = msgspec.convert(options, SlotOptions)
    path = Path(chosen.gguf) if chosen.gguf else weights.locate("smollm2-135m-instruct")
    return load_thinker(path, ThinkerSettings(slots=chosen.slots, idle_s_max=chosen.idle_s))


def talker(options: Mapping[str, object]) -> TalkerModel:
    chosen = msgspec.convert(options, VoiceOptions)
    return TalkerModel(_voices(chosen), Path(chosen.cache_dir))


def vocoder(options: Mapping[str, object]) -> VocoderModel:
    chosen = msgspec.convert(options, VoiceOptions)
    return VocoderModel(_voices(chosen), Path(chosen.cache_dir))


def _voices(chosen: VoiceOptions) -> list[Path]:
    return [Path(voice) for voice in chosen.voices] or [weights.locate("piper-en-us-joe")]
