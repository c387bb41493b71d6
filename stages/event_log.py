"""What happened to every response, stage, edge and chunk: a bounded record in memory, cheap enough to be always on.

Theory of operation
    Each process keeps one log, a ring of its newest events. An event is a moment, a kind, whose work it was and one
    number, whose meaning and unit the kind tells. Cores write into it as they decide, so it says what was decided and
    not what was attempted. Metrics count what it counts; the simulator checks its promises on it; a fault takes the
    part that concerns it along.

Rules
* Moments never go back within one log: they are those that the core was told.
* No text, no sound, no token of a caller goes in: sessions are named by their id, which is random.
* Writing never fails and never waits; what is older than the ring holds is gone, and counted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum, auto

import msgspec

EVENTS_MAX = 8_192  # about 1 MiB; half a minute of four calls that all speak


class EventKind(StrEnum):
    """What happened, and what `value` counts then."""

    OPENED = auto()  # streams open at the stage
    REFUSED = auto()  # streams open at the stage
    QUEUED = auto()  # steps that wait
    STARTED = auto()  # ns that the step has waited
    COMPUTED = auto()  # ns that the step took
    PRODUCED = auto()  # units of the outgoing edge
    CREDIT_TAKEN = auto()  # units in flight after it
    CREDIT_RETURNED = auto()  # units in flight after it
    PUBLISHED = auto()  # units handed to the gateway
    CANCELLED = auto()  # outputs that were thrown away
    STALE = auto()  # 1
    CLOSED = auto()  # streams still open at the stage
    ADMITTED = auto()  # stages asked
    TERMINAL = auto()  # ns since the response was accepted
    DRAINED = auto()  # ns since its terminal
    ORPHANED = auto()  # ns since its terminal


class LoggedEvent(msgspec.Struct, frozen=True, array_like=True):
    """`key` names the stream or response; `cause` is an outcome, a code or a step's kind: one of a closed set."""

    at_ns: int
    kind: str
    key: str
    value: int
    cause: str


@dataclass(frozen=True, slots=True)
class EventLogStatistics:
    """`counts`: by kind, since the process began."""

    held: int
    lost: int
    counts: dict[str, int]


class EventLog:
    """A ring of `size` events."""

    def __init__(self, size: int = EVENTS_MAX) -> None:
        self._ring: deque[tuple[int, EventKind, str, int, str]] = deque(maxlen=size)
        self._counts: Counter[EventKind] = Counter()
        self._latest_ns = 0

    def add(self, at_ns: int, kind: EventKind, key: str, value: int, cause: str = "") -> None:
        """Note that something happened. An `at_ns` before the latest is taken as that."""
        self._latest_ns = max(self._latest_ns, at_ns)
        self._counts[kind] += 1
        self._ring.append((self._latest_ns, kind, key, value, cause))

    def events(self, wanted: Callable[[str], bool] = lambda _key: True) -> Iterator[LoggedEvent]:
        """What is held about streams and responses whose key is `wanted`, oldest first."""
        for event in tuple(self._ring):
            if wanted(event[2]):
                yield LoggedEvent(*event)

    def statistics(self) -> EventLogStatistics:
        held = len(self._ring)
        return EventLogStatistics(held, self._counts.total() - held, {str(kind): n for kind, n in self._counts.items()})
