"""What was heard around one event: plain facts, of which the score is made.

Rules
* All times are integer nanoseconds of the caller's clock. A sample of the caller has the time at which a microphone
  would have taken it; a sample of the service has the time at which the playout model played it.
* `sounds` are stretches of samples of one response without a break, silent samples included: a speaker's own pauses are
  no stops. They are in order of time and do not overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.turn_taking.labels import Kind, Span


class Mark(StrEnum):
    """What the service, or the caller's loudspeaker, said of a moment.

    `YIELDED`: the response was given up for the caller (`response.done` for `turn_detected`, or its sound flushed on
    `speech_started` after it had been made). `MADE`: the response ended in any other way. `HELD` and `RESUMED` come
    from services that have these events.
    """

    COMMITTED = "committed"
    HELD = "held"
    RESUMED = "resumed"
    YIELDED = "yielded"
    MADE = "made"


@dataclass(frozen=True, slots=True)
class Sound:
    """Samples of `response` were played from `start_ns` up to `end_ns`."""

    response: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Note:
    """`response` is empty where the mark is of none."""

    mark: Mark
    at_ns: int
    response: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """One event. `over`: the response that was being heard when it began. `voiced`: the labelled spans of the caller's
    sound. `words`: how many each response said. `closed_ns`: nothing after that was looked at. `spoilt`: why it says
    nothing of the service (empty: it does). `heard_as`: what the service told that it understood.
    """

    number: int
    kind: Kind
    label: str
    wants_answer: bool
    over: str | None
    voiced: tuple[Span, ...]
    sounds: tuple[Sound, ...]
    notes: tuple[Note, ...]
    words: Mapping[str, int]
    closed_ns: int
    spoilt: str = ""
    heard_as: str = ""

    @property
    def start_ns(self) -> int:
        """The first voiced sample."""
        return self.voiced[0][0]

    @property
    def end_ns(self) -> int:
        """The end of the last voiced sample."""
        return self.voiced[-1][1]
