"""What a `TurnDetector` is told of our speech and the caller's sound, and what it says of turns.

Positions are samples at 16 kHz.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from media.echo import UNLIKE, Likeness

YieldWhy = Literal["words", "late_words", "duration"]
ResumeWhy = Literal[
    "backchannel",
    "echo",
    "far",
    "noise",
    "short",
    "undecided",
    "unconfirmed",
    "guarded",
    "floor_free",
    "not_interruptible",
    "committed",
    "reset",
]


@dataclass(frozen=True, slots=True)
class HeardWindow:
    """`WINDOW_SAMPLES` of the caller's sound before sample `end`: how probably they are speech, how loud, and whether
    they are our own echo."""

    probability: float
    end: int
    level_db: float
    echo: Likeness = UNLIKE


@dataclass(frozen=True, slots=True)
class Saying:
    """What we are saying. `is_audible`: a reply is under way that the caller hears, or would hear if it were not held;
    one that has not begun to sound yet may count too, and one counts until its last sample has reached the ear.

    `words`: the words of the last seconds, up to those that are being said now; an echo of them is known by them.
    """

    is_audible: bool = False
    is_interruptible: bool = True
    words: str = ""

    @property
    def may_be_held(self) -> bool:
        return self.is_audible and self.is_interruptible


SILENT = Saying()


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A turn that cuts nothing, of speech since `onset_sample`; certain since `confirmed_at`."""

    onset_sample: int
    confirmed_at: int


@dataclass(frozen=True, slots=True)
class TurnPaused:
    """Silence since `sample`."""

    sample: int


@dataclass(frozen=True, slots=True)
class TurnResumed:
    """The caller speaks on at `sample`."""

    sample: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn ended at `sample`; known at `at`."""

    sample: int
    at: int


@dataclass(frozen=True, slots=True)
class Held:
    """Confident speech over our own since `onset_sample`, or the client says so: stop playing, lose nothing. Opens a
    provisional turn, unless one is open already."""

    onset_sample: int


@dataclass(frozen=True, slots=True)
class Yielded:
    """The provisional turn is real and interrupts us. `onset_sample` is where it began, as in its first `Held`."""

    onset_sample: int
    why: YieldWhy


@dataclass(frozen=True, slots=True)
class Resumed:
    """Our reply goes on where it was held."""

    why: ResumeWhy


@dataclass(frozen=True, slots=True)
class TurnDropped:
    """The provisional turn that began at `onset_sample` never was."""

    onset_sample: int


@dataclass(frozen=True, slots=True)
class SoundWanted:
    """The pause since `sample` lasts up to `at`: how finished does the turn sound that began at `onset_sample`?"""

    onset_sample: int
    sample: int
    at: int


TurnEvent = TurnStarted | TurnPaused | TurnResumed | TurnEnded | Held | Yielded | Resumed | TurnDropped | SoundWanted
