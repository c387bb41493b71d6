"""What callers do, with exact labels.

Rules
* Sound is PCM16 mono at 24 kHz; labels are in its samples. Spans hold their start and not their end.
* A clip begins with its first voiced sample and ends with its last. Between two of its `voiced` spans lies a pause that
  belongs to the turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

Span = tuple[int, int]


class Kind(StrEnum):
    """What an event is to the one who makes it. Over a reply: all but the last three."""

    INTERRUPTION = "interruption"
    BACKCHANNEL = "backchannel"
    TIC = "vocal tic"
    SIDE_TALK = "side talk"
    BURST = "noise burst"
    NOISE = "steady noise"
    SILENCE = "silence"
    QUESTION = "question"
    PAUSED = "turn with pauses"
    DIGITS = "dictated digits"


TURNS = frozenset({Kind.QUESTION, Kind.PAUSED, Kind.DIGITS})
# What the service should talk through, and leave unanswered.
NOT_FOR_IT = frozenset({Kind.BACKCHANNEL, Kind.TIC, Kind.SIDE_TALK, Kind.BURST, Kind.NOISE, Kind.SILENCE})


@dataclass(frozen=True, slots=True)
class Clip:
    """A piece of sound. `voiced`: where something is said or heard in it, at least one span."""

    label: str
    pcm: bytes = field(repr=False)
    voiced: tuple[Span, ...]

    @property
    def pauses(self) -> tuple[Span, ...]:
        """Between the voiced spans."""
        return tuple((before[1], after[0]) for before, after in pairwise(self.voiced))


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that a caller does. `moment_ms`: so long after a reply was first heard; None: while nobody speaks.

    `wants_answer`: the one who says it expects the service to say something.
    """

    number: int
    kind: Kind
    clip: Clip
    moment_ms: int | None
    wants_answer: bool
