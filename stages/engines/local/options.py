"""What the local engine's stages can be told. Nothing of a model is imported here, so that a graph can be checked."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stages import kv_cache

SLOTS_MAX = 15  # and the spare: a batch of llama.cpp, of 16 tokens, must hold one of every slot
IDLE_S_MAX = 86_400  # a day: longer than any call lasts


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The encoder has none."""


class SlotOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the Thinker. `slots`: sessions whose KV is kept at once, each until it was not used for `idle_s`. `gguf`:
    another model's file."""

    slots: Annotated[int, msgspec.Meta(ge=1, le=SLOTS_MAX)]
    idle_s: Annotated[int, msgspec.Meta(ge=1, le=IDLE_S_MAX)] = kv_cache.IDLE_S_MAX
    gguf: str = ""


class VoiceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of Talker and vocoder. `voices`: other Piper voices' `.onnx` files, the usual one first. `cache_dir`: where their
    halves are kept."""

    cache_dir: str
    voices: tuple[str, ...] = ()
