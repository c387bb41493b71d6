"""What the synthetic engine takes for which step, and how it talks: one frozen object, checked when it is read.

A profile is a TOML file with a section for each stage. `examples/synthetic.toml` lists every option with its default.
The defaults resemble the local engine on one core (docs/figures.md): median times, and how they scatter beside others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from media.coded_tones import SYMBOL_RATE, WORD_MS
from media.word_code import WORDS
from stages.engines.synthetic.distributions import Distribution, Lognormal, Uniform
from stages.kv_cache import IDLE_S_MAX

# A clause of 20 words is at most 140 characters, which fit one hand-over (160).
WORDS_PER_CLAUSE_MAX = 20
# 187.5 ms: as much as the graph allows for a chunk.
ITEM_FRAMES_MAX = 15
CONCURRENCY_MAX = 1_024
COUNT_MAX = 60_000  # a minute, of what is counted in milliseconds; far more sessions than any worker serves
SEED_MAX = (1 << 63) - 1
# The hidden states of large Talkers have about as many; 15 frames are 240 KiB then.
CHANNELS_MAX = 4_096

_Count = Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
_Seed = Annotated[int, msgspec.Meta(ge=0, le=SEED_MAX)]
_Concurrency = Annotated[int, msgspec.Meta(ge=1, le=CONCURRENCY_MAX)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Frames = Annotated[int, msgspec.Meta(ge=1, le=ITEM_FRAMES_MAX)]


class ProfileError(ValueError):
    """The profile cannot be used; the text names the option."""


class StageProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every stage has. `concurrency`: steps at once; `cpu_share`: of its service time, what a step computes;
    `interruptible`: a cancel ends a step at once, else it runs to its end."""

    seed: _Seed = 1
    concurrency: _Concurrency = 1
    cpu_share: _Share = 0.0
    interruptible: bool = True


class EncoderProfile(StageProfile, frozen=True, kw_only=True):
    """A word is heard for each `heard_word_ms` of sound; a guess is made no sooner than `partial_interval_ms` of sound
    after the one before."""

    partial_ms: Distribution = Lognormal(median=140, sigma=0.15)
    settle_ms: Distribution = Lognormal(median=120, sigma=0.15)
    final_ms: Distribution = Lognormal(median=120, sigma=0.15)
    partial_interval_ms: _Count = 320
    heard_word_ms: _Count = 400


class ThinkerProfile(StageProfile, frozen=True, kw_only=True):
    """Steps of all streams run side by side, as in a batch. Of `sessions_max` sessions, `kv_places` have their KV here,
    each until it was not used for `kv_idle_s`."""

    concurrency: _Concurrency = 64
    prefill_ms_per_token: Distribution = Lognormal(median=5.5, sigma=0.1)
    word_ms: Distribution = Lognormal(median=16, sigma=0.25)
    reply_words: Distribution = Uniform(low=8, high=24)
    words_per_clause: Annotated[int, msgspec.Meta(ge=1, le=WORDS_PER_CLAUSE_MAX)] = 6
    sessions_max: _Count = 64
    kv_places: _Count = 64
    kv_idle_s: _Count = IDLE_S_MAX


class TalkerProfile(StageProfile, frozen=True, kw_only=True):
    """`spoken_word_ms`: from a word's beginning to the next; beyond the 200 ms of its tones it is silent.

    `chunk_first`, `chunk_then`: frames of 12.5 ms in the response's first hand-over, and in all others. `channels`:
    values of a frame, so that hand-overs weigh what a model's would; the first tells the symbol.
    """

    clause_ms: Distribution = Lognormal(median=5, sigma=0.2)
    word_ms: Distribution = Lognormal(median=6, sigma=0.15)
    spoken_word_ms: Annotated[int, msgspec.Meta(ge=WORD_MS, le=5_000, multiple_of=25)] = WORD_MS
    chunk_first: _Frames = 12
    chunk_then: _Frames = ITEM_FRAMES_MAX
    channels: Annotated[int, msgspec.Meta(ge=1, le=CHANNELS_MAX)] = 1

    @property
    def frames_per_word(self) -> int:
        return self.spoken_word_ms * SYMBOL_RATE // 1000


class VocoderProfile(StageProfile, frozen=True, kw_only=True):
    """A chunk is made of each item of the Talker."""

    first_chunk_ms: Distribution = Lognormal(median=20, sigma=0.15)
    chunk_ms: Distribution = Lognormal(median=30, sigma=0.15)


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All stages."""

    encoder: EncoderProfile = EncoderProfile()
    thinker: ThinkerProfile = ThinkerProfile()
    talker: TalkerProfile = TalkerProfile()
    vocoder: VocoderProfile = VocoderProfile()


def load_profile(path: Path) -> Profile:
    """The profile in a TOML file. Raises `ProfileError`."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Profile)
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ProfileError(f"{path}: {error}") from error


def words_within(words: float) -> int:
    """A drawn length of a reply as a number of words that can be coded."""
    return min(max(1, round(words)), WORDS)
