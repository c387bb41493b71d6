"""What the torch engine's stages can be told. Nothing of torch is imported here, so that a graph can be checked."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stages import kv_cache

SEED_MAX = (1 << 63) - 1
SESSIONS_MAX = 256  # each keeps the KV of a whole context; as many as a stage has streams
IDLE_S_MAX = 86_400  # a day: longer than any call lasts
CONTEXT_TOKENS_MAX = 1 << 18  # eight times what the published model was trained for
FRAMES_MAX = 3_750  # five minutes of speech: a response is given up then
TEMPERATURE_MAX = 2.0
CODEC_CHUNK_FRAMES = 25  # unless the edge has a schedule of its own

_Tokens = Annotated[int, msgspec.Meta(ge=1, le=CONTEXT_TOKENS_MAX)]
_Frames = Annotated[int, msgspec.Meta(ge=1, le=FRAMES_MAX)]


class ModelOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`seed`: of the tiny model's weights. `checkpoint`: a folder with a model in its stead. `device`: as torch
    names it."""

    seed: Annotated[int, msgspec.Meta(ge=0, le=SEED_MAX)] = 0
    checkpoint: str = ""
    device: Annotated[str, msgspec.Meta(pattern=r"^(cpu|(cuda|mps|xpu)(:[0-9]{1,3})?)$")] = "cpu"


class ThinkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contexts of `context_tokens`, of which `output_tokens_max` are for a reply: for so many `sessions` at once, each
    until it was not used for `idle_s`; and a spare one.

    `piece_tokens_max`: of the prompt, in one step. A cancel waits for one.
    """

    sessions: Annotated[int, msgspec.Meta(ge=1, le=SESSIONS_MAX)] = 4
    idle_s: Annotated[int, msgspec.Meta(ge=1, le=IDLE_S_MAX)] = kv_cache.IDLE_S_MAX
    context_tokens: _Tokens = 4_096
    output_tokens_max: _Tokens = 512
    piece_tokens_max: _Tokens = 32

    def __post_init__(self) -> None:
        if self.output_tokens_max > self.context_tokens // 2:
            raise ValueError("output_tokens_max must be 1 to half of context_tokens")

    @property
    def prompt_tokens_max(self) -> int:
        return self.context_tokens - self.output_tokens_max


class TalkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Frames of the first chunk and of all others, the most frames of a response (at 12.5 a second, two minutes), and
    the temperature (0: the likeliest code; the published default is 0.9)."""

    chunk_first: _Frames = 4
    chunk_then: _Frames = CODEC_CHUNK_FRAMES
    frames_max: _Frames = 1_500
    temperature: Annotated[float, msgspec.Meta(ge=0, le=TEMPERATURE_MAX)] = 0.0


class Code2WavSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`decode_frames_max`: frames in one step, and so in one chunk of sound. Two are 160 ms."""

    decode_frames_max: _Frames = 2
