"""The life of one replica's process: started, up, hung, dead, started again, given up for a while.

Theory of operation
    Whoever keeps the process tells what it sees of it; each call answers what to do. A process that dies is started
    again, with growing pauses (`stages.restart`). One that keeps dying is quarantined: starting it costs the others
    their processor, and mends nothing. After a while one start is tried, a probe; it clears the account if the process
    lives, and leads back into quarantine if it does not.

Rules
* Every move stands in `_TRANSITIONS`; one that is not there raises `ReplicaError` and changes nothing.
* `incarnation` rises with each start and never falls: what an older one has sent or holds is void.
* A process that hangs is killed, never asked; it counts as dead once it has ended, and not before.
* A process that was retired has done nothing wrong: it is followed at once, and its end counts for nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from stages.restart import STEADY_NS, RestartPolicy

# Restarts pause 0, ¼, ½, 1, 2 s: the sixth death within a minute says that a further try will not help.
DEATHS_MAX = 6
DEATHS_WINDOW_NS = 60_000_000_000
# Long enough for the machine to recover from what may be the cause (memory, a file that is being replaced).
QUARANTINE_NS = 60_000_000_000


class ReplicaState(Enum):
    DOWN = "down"
    STARTING = "starting"
    UP = "up"
    RETIRING = "retiring"
    HUNG = "hung"
    QUARANTINED = "quarantined"


class ReplicaStep(Enum):
    START = "start"
    READY = "ready"
    RETIRE = "retire"
    HANG = "hang"
    DIE = "die"
    GIVE_UP = "give up"


_TRANSITIONS: dict[tuple[ReplicaState, ReplicaStep], ReplicaState] = {
    (ReplicaState.DOWN, ReplicaStep.START): ReplicaState.STARTING,
    (ReplicaState.DOWN, ReplicaStep.GIVE_UP): ReplicaState.QUARANTINED,
    (ReplicaState.QUARANTINED, ReplicaStep.START): ReplicaState.STARTING,
    (ReplicaState.STARTING, ReplicaStep.READY): ReplicaState.UP,
    (ReplicaState.STARTING, ReplicaStep.HANG): ReplicaState.HUNG,
    (ReplicaState.STARTING, ReplicaStep.DIE): ReplicaState.DOWN,
    (ReplicaState.UP, ReplicaStep.RETIRE): ReplicaState.RETIRING,
    (ReplicaState.UP, ReplicaStep.HANG): ReplicaState.HUNG,
    (ReplicaState.UP, ReplicaStep.DIE): ReplicaState.DOWN,
    (ReplicaState.RETIRING, ReplicaStep.HANG): ReplicaState.HUNG,
    (ReplicaState.RETIRING, ReplicaStep.DIE): ReplicaState.DOWN,
    (ReplicaState.HUNG, ReplicaStep.DIE): ReplicaState.DOWN,
}


class ReplicaError(RuntimeError):
    """A replica was told something that cannot happen to it now: a bug in whoever keeps it."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the process again after `after_ns`."""

    after_ns: int


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Leave it alone for `probe_after_ns`, then try one start."""

    probe_after_ns: int


@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    """`deaths` and `hangs` since the beginning; a hang is one of the deaths too."""

    state: ReplicaState
    incarnation: int
    deaths: int
    hangs: int


class Replica:
    """One replica. Times are monotonic ns."""

    def __init__(self) -> None:
        self._state = ReplicaState.DOWN
        self._incarnation = 0
        self._policy = RestartPolicy()
        self._started_ns = 0
        self._is_probe = False
        self._recent_ns: deque[int] = deque(maxlen=DEATHS_MAX)
        self._deaths = 0
        self._hangs = 0

    @property
    def state(self) -> ReplicaState:
        return self._state

    @property
    def incarnation(self) -> int:
        """Of the newest start; 0 before the first."""
        return self._incarnation

    def start(self, now_ns: int) -> int:
        """It is being started; gives its incarnation."""
        is_probe = self._state is ReplicaState.QUARANTINED
        self._move(ReplicaStep.START)
        self._is_probe = is_probe
        self._incarnation += 1
        self._started_ns = now_ns
        self._policy.started(now_ns)
        return self._incarnation

    def ready(self) -> None:
        """It can take work."""
        self._move(ReplicaStep.READY)

    def retire(self) -> None:
        """It was asked to finish what it has, and to end."""
        self._move(ReplicaStep.RETIRE)

    def hang(self) -> None:
        """It says nothing, or gets nowhere: whoever keeps it kills it."""
        self._move(ReplicaStep.HANG)
        self._hangs += 1

    def died(self, now_ns: int) -> Restart | Quarantine:
        """Its process has ended; what is to be done about that."""
        was_retiring = self._state is ReplicaState.RETIRING
        self._move(ReplicaStep.DIE)
        if was_retiring:
            return Restart(0)
        self._deaths += 1
        self._recent_ns.append(now_ns)
        pause_ns = self._policy.died(now_ns)
        if not self._keeps_dying(now_ns):
            return Restart(pause_ns)
        self._move(ReplicaStep.GIVE_UP)
        return Quarantine(QUARANTINE_NS)

    def _keeps_dying(self, now_ns: int) -> bool:
        if self._is_probe and now_ns - self._started_ns < STEADY_NS:
            return True
        return len(self._recent_ns) == DEATHS_MAX and now_ns - self._recent_ns[0] <= DEATHS_WINDOW_NS

    def statistics(self) -> ReplicaStatistics:
        return ReplicaStatistics(self._state, self._incarnation, self._deaths, self._hangs)

    def _move(self, step: ReplicaStep) -> None:
        target = _TRANSITIONS.get((self._state, step))
        if target is None:
            raise ReplicaError(f"{step.value} while {self._state.value}")
        self._state = target
