"""What the local engine's stages can be told. Nothing of a model is imported here, so that a graph can be checked."""

from __future__ import annotations

from typing import Annotated

import msgspec

SLOTS_MAX = 1_000  # as many calls as a service takes


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The encoder has none."""


class SlotOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the Thinker. `slots`: calls at once. `gguf`: another model's file."""

    slots: Annotated[int, msgspec.Meta(ge=1, le=SLOTS_MAX)]
    gguf: str = ""


class VoiceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of Talker and vocoder. `voices`: other Piper voices' `.onnx` files, the usual one first. `cache_dir`: where their
    halves are kept."""

    cache_dir: str
    voices: tuple[str, ...] = ()
