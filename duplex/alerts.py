"""Which readings are too high for too long: alerts that are raised once, and cleared once.

Theory of operation
    A reading is the value of one cause at one place, against its limit. It is *over* above the limit, *under* at or
    below `CLEAR_SHARE` of it, and *between* otherwise. Two looks in a row must agree before anything is said, so that a
    moment's peak raises nothing and a moment's calm clears nothing:

    | state   | over   | between | under  |
    |---------|--------|---------|--------|
    | CLEAR   | RISING | CLEAR   | CLEAR  |
    | RISING  | RAISED | CLEAR   | CLEAR  |
    | RAISED  | RAISED | RAISED  | EASING |
    | EASING  | RAISED | RAISED  | CLEAR  |

Rules
* `_TRANSITIONS` is the whole machine. Whoever enters RAISED from RISING is told of, and who enters CLEAR from EASING.
* Places are replicas and their edges, as the graph has them: no caller makes one. A replica that is gone takes its
  alerts with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from stages.link_window import LINK_WINDOW_BYTES
from stages.messages import EdgeSnapshot, WorkerSnapshot

CLEAR_SHARE = 0.5


class Cause(Enum):
    """What can be too much. Credit and queues are measured in ns of waiting, so is the age of a lease."""

    EDGE_WAIT = "edge_wait"
    ROOM_WAIT = "room_wait"
    SCHEDULER_WAIT = "scheduler_wait"
    LINK_BYTES = "link_bytes"
    ARENA_BLOCKS = "arena_blocks"
    LEASE_AGE = "lease_age"

    @property
    def unit(self) -> str:
        return {Cause.LINK_BYTES: "bytes", Cause.ARENA_BLOCKS: "blocks"}.get(self, "ns")


@dataclass(frozen=True, slots=True)
class AlertLimits:
    """`wait_ns_max`: for credit, for room on a link or in the arena, and for an engine thread. `fill_percent_max`: of a
    link's window, and of the arena's blocks."""

    wait_ns_max: int
    lease_ns_max: int
    fill_percent_max: int


@dataclass(frozen=True, slots=True)
class Place:
    """`edge`: the target of one of the replica's edges; empty for what is the replica's own."""

    stage: str
    replica: str
    edge: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """`value` and `limit` in the unit of `cause`."""

    cause: Cause
    place: Place
    value: int
    limit: int


@dataclass(frozen=True, slots=True)
class Raised:
    reading: Reading


@dataclass(frozen=True, slots=True)
class Cleared:
    """`reading`: the one that cleared it, or the last one of a replica that is gone."""

    reading: Reading


class _Level(Enum):
    OVER = auto()
    BETWEEN = auto()
    UNDER = auto()


class _State(Enum):
    CLEAR = auto()
    RISING = auto()
    RAISED = auto()
    EASING = auto()


_TRANSITIONS = {
    (_State.CLEAR, _Level.OVER): _State.RISING,
    (_State.CLEAR, _Level.BETWEEN): _State.CLEAR,
    (_State.CLEAR, _Level.UNDER): _State.CLEAR,
    (_State.RISING, _Level.OVER): _State.RAISED,
    (_State.RISING, _Level.BETWEEN): _State.CLEAR,
    (_State.RISING, _Level.UNDER): _State.CLEAR,
    (_State.RAISED, _Level.OVER): _State.RAISED,
    (_State.RAISED, _Level.BETWEEN): _State.RAISED,
    (_State.RAISED, _Level.UNDER): _State.EASING,
    (_State.EASING, _Level.OVER): _State.RAISED,
    (_State.EASING, _Level.BETWEEN): _State.RAISED,
    (_State.EASING, _Level.UNDER): _State.CLEAR,
}
_STANDING = (_State.RAISED, _State.EASING)


@dataclass(slots=True)
class _Watched:
    state: _State
    reading: Reading


class Alerts:
    """What is raised now; of what is clear nothing is kept."""

    def __init__(self) -> None:
        self._watched: dict[tuple[Cause, Place], _Watched] = {}

    def observe(self, reading: Reading) -> Raised | Cleared | None:
        """Take a reading; gives what is to be said of it."""
        name = reading.cause, reading.place
        known = self._watched.get(name)
        before = known.state if known else _State.CLEAR
        after = _TRANSITIONS[before, _level(reading)]
        if after is _State.CLEAR:
            self._watched.pop(name, None)
        else:
            self._watched[name] = _Watched(after, reading)
        if (before, after) == (_State.RISING, _State.RAISED):
            return Raised(reading)
        return Cleared(reading) if before is _State.EASING and after is _State.CLEAR else None

    def forget(self, stage: str, replica: str) -> list[Cleared]:
        """The replica is gone; gives the alerts that went with it."""
        gone = [name for name in self._watched if (name[1].stage, name[1].replica) == (stage, replica)]
        watched = [self._watched.pop(name) for name in gone]
        return [Cleared(one.reading) for one in watched if one.state in _STANDING]

    def raised(self, cause: Cause) -> int:
        """At how many places `cause` is raised."""
        return sum(name[0] is cause and one.state in _STANDING for name, one in self._watched.items())


def _level(reading: Reading) -> _Level:
    if reading.value > reading.limit:
        return _Level.OVER
    return _Level.UNDER if reading.value <= reading.limit * CLEAR_SHARE else _Level.BETWEEN


def readings_of(stage: str, snapshot: WorkerSnapshot, limits: AlertLimits) -> Iterator[Reading]:
    """All that is watched of one replica of `stage`."""
    here, wait_ns = Place(stage, snapshot.replica), limits.wait_ns_max
    arena = snapshot.arena
    yield Reading(Cause.ROOM_WAIT, here, snapshot.room_wait_ns_max, wait_ns)
    yield Reading(Cause.SCHEDULER_WAIT, here, snapshot.scheduler.wait_ns_max, wait_ns)
    yield Reading(Cause.ARENA_BLOCKS, here, arena.used, arena.blocks * limits.fill_percent_max // 100)
    yield Reading(Cause.LEASE_AGE, here, arena.lease_ns_max, limits.lease_ns_max)
    for edge in snapshot.edges:
        yield from _readings_of_edge(Place(stage, snapshot.replica, edge.target), edge, limits)


def _readings_of_edge(place: Place, edge: EdgeSnapshot, limits: AlertLimits) -> Iterator[Reading]:
    bytes_max = LINK_WINDOW_BYTES * limits.fill_percent_max // 100
    yield Reading(Cause.EDGE_WAIT, place, edge.wait_ns_max, limits.wait_ns_max)
    yield Reading(Cause.LINK_BYTES, place, edge.link_bytes, bytes_max)
