"""The replicas of one stage, and which of them serves which session.

Theory of operation
    A session has one *home*: the replica that keeps its state (KV). It gets the one with the fewest sessions that has
    room, and sticks to it while that is up. What a session wants done there is a *work*, a stream; a replica runs
    at most `works_max` of them. A work that finds its home full waits, for at most about as long as the session's state
    would take to be made anew elsewhere, `recompute_ns`; then the session moves to a replica with room. Where nothing
    is up, or nothing has room, a work waits until `wait_ns_max` and is refused, never begun.

    A replica that goes down takes the state of its sessions with it: each gets another home when it next wants work. A
    replica that retires keeps what runs, gets nothing new, and loses each session at its next pause.

Rules
* A session has at most one home, and that is up. A session whose works run does not move.
* What becomes free goes to the tenant with the least dominant share (`stages.dominant_shares`); the works of a tenant
  are begun in the order in which they were asked for, as far as their homes allow.
* Where no more may wait, the newest work of the tenant of which most wait, by its weight, is refused.
* Each work that waits has exactly one `Wait` outstanding, at whose time `tick` is to be called.
* What is told of an older incarnation than the newest is void.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from stages.dominant_shares import DominantShares

WAITING_MAX = 256  # works: more than a response, a turn and a prefill of as many calls as one gateway serves


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """`works_max`: streams at once on one replica. `wait_ns_max`: how long a work may wait to be begun.

    `recompute_ns`: about what it costs to make a session's state anew at another replica.
    """

    works_max: int
    wait_ns_max: int
    recompute_ns: int = 0


@dataclass(frozen=True, slots=True)
class Assign:
    """Open `session` at `replica`, its home from now on."""

    session: str
    replica: str


@dataclass(frozen=True, slots=True)
class Move:
    """`session` leaves its home `source`, which is told to close it; its state is made anew at `target`."""

    session: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Release:
    """`session` has left `replica`, which is told to close it."""

    session: str
    replica: str


@dataclass(frozen=True, slots=True)
class Begin:
    """Open `work` at `replica`."""

    work: str
    replica: str


@dataclass(frozen=True, slots=True)
class Wait:
    """`work` waits. Call `tick` at `until_ns`."""

    work: str
    until_ns: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """`work` is dropped, and nothing of it was begun. `reason`: capacity or stage_away."""

    work: str
    reason: str
    retry_after_ns: int


@dataclass(frozen=True, slots=True)
class Retired:
    """Nothing of this pool is left at `replica`."""

    replica: str


Effect = Assign | Move | Release | Begin | Wait | Refuse | Retired


@dataclass(slots=True)
class _Replica:
    name: str
    incarnation: int = 0
    is_up: bool = False
    is_retiring: bool = False
    sessions: set[str] = field(default_factory=set)
    works: int = 0

    @property
    def takes_sessions(self) -> bool:
        return self.is_up and not self.is_retiring


@dataclass(slots=True)
class _Session:
    home: _Replica | None = None
    works: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Waiting:
    session: str
    tenant: str
    since_ns: int
    until_ns: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    is_up: bool
    is_retiring: bool
    incarnation: int
    sessions: int
    works: int


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    replicas: dict[str, ReplicaLoad]
    sessions: int
    waiting: int
    moved: int
    refused: int


class Pool:
    """`replicas` are named once and for all; each is down until it is said to be up. `shares`: those of the tenants in
    this pool, which is known there as `stage`, and in others."""

    def __init__(
        self, replicas: Iterable[str], limits: PoolLimits, shares: DominantShares | None = None, stage: str = ""
    ) -> None:
        self._limits = limits
        self._replicas = {name: _Replica(name) for name in replicas}
        self._shares = shares or DominantShares()
        self._stage = stage
        self._shares.offer(stage, limits.works_max * len(self._replicas))
        self._sessions: dict[str, _Session] = {}
        self._working: dict[str, str] = {}
        self._tenants: dict[str, str] = {}  # of the works that run
        self._waiting: dict[str, _Waiting] = {}
        self._moved = 0
        self._refused = 0

    def home(self, session: str) -> str | None:
        """The replica that serves `session` now."""
        known = self._sessions.get(session)
        return known.home.name if known and known.home else None

    # ---- replicas ----------------------------------------------------------------------------------

    def up(self, replica: str, incarnation: int, now_ns: int) -> list[Effect]:
        """`replica` takes work, as the process `incarnation`."""
        known = self._replicas[replica]
        if incarnation < known.incarnation or (known.is_up and incarnation == known.incarnation):
            return []
        self._lose(known)
        known.incarnation, known.is_up = incarnation, True
        return self._serve(now_ns)

    def down(self, replica: str, incarnation: int, now_ns: int) -> list[Effect]:
        """`replica` is gone or out of reach, and what it was doing with it."""
        known = self._replicas[replica]
        if incarnation < known.incarnation:
            return []
        self._lose(known)
        return self._serve(now_ns)

    def _lose(self, replica: _Replica) -> None:
        for name in replica.sessions:
            session = self._sessions[name]
            session.home = None
            for work in session.works:
                self._over(work)
            session.works.clear()
        replica.sessions.clear()
        replica.works = 0
        replica.is_up = replica.is_retiring = False

    def retire(self, replica: str, now_ns: int) -> list[Effect]:
        """`replica` is to be given up: it finishes what runs, and gets nothing new."""
        known = self._replicas[replica]
        if not known.takes_sessions:
            return []
        known.is_retiring = True
        effects: list[Effect] = []
        for name in sorted(known.sessions):
            effects += self._leave_if_idle(name)
        return [*effects, *self._told_retired(known), *self._serve(now_ns)]

    def _leave_if_idle(self, name: str) -> list[Effect]:
        session = self._sessions[name]
        home = session.home
        if home is None or not home.is_retiring or session.works:
            return []
        self._give_up_home(name, session)
        return [Release(name, home.name)]

    @staticmethod
    def _told_retired(replica: _Replica | None) -> list[Effect]:
        return [Retired(replica.name)] if replica and replica.is_retiring and not replica.sessions else []

    # ---- sessions ----------------------------------------------------------------------------------

    def enter(self, session: str) -> list[Effect]:
        """A session begins. It has a home at once where one is up."""
        assert session not in self._sessions, f"{session} enters once"
        known = self._sessions[session] = _Session()
        home = self._least_loaded()
        return self._settle(session, known, home) if home else []

    def leave(self, session: str, now_ns: int) -> list[Effect]:
        """A session ends, with all that it wanted."""
        known = self._sessions.pop(session)
        for work in [name for name, waiting in self._waiting.items() if waiting.session == session]:
            del self._waiting[work]
        for work in known.works:
            self._over(work)
        home = known.home
        if home is None:
            return []
        home.works -= len(known.works)
        self._give_up_home(session, known)
        return [Release(session, home.name), *self._told_retired(home), *self._serve(now_ns)]

    def _settle(self, name: str, session: _Session, home: _Replica) -> list[Effect]:
        """Give `session` the home `home`."""
        old = session.home
        if old is not None:
            self._give_up_home(name, session)
            self._moved += 1
        session.home = home
        home.sessions.add(name)
        if old is None:
            return [Assign(name, home.name)]
        return [Move(name, old.name, home.name)]

    @staticmethod
    def _give_up_home(name: str, session: _Session) -> None:
        assert session.home is not None, "only who has a home can give it up"
        session.home.sessions.remove(name)
        session.home = None

    def _least_loaded(self) -> _Replica | None:
        """Of the replicas with room, the one with the fewest sessions, then works, then as they were named."""
        roomy = [one for one in self._replicas.values() if one.takes_sessions and self._has_room(one)]
        return min(roomy, key=lambda one: (len(one.sessions), one.works), default=None)

    def _has_room(self, replica: _Replica) -> bool:
        return replica.works < self._limits.works_max

    # ---- works -------------------------------------------------------------------------------------

    def begin(self, session: str, work: str, now_ns: int, tenant: str = "") -> list[Effect]:
        """`session`, of `tenant`, wants `work` done."""
        assert session in self._sessions, f"{session} has not entered"
        assert work not in self._working, f"{work} is begun once"
        assert work not in self._waiting, f"{work} is asked for once"
        refused: list[Effect] = []
        if len(self._waiting) >= WAITING_MAX:
            crowded = self._most_waiting(tenant)
            if crowded == tenant:
                return [self._refuse(work)]
            newest = next(name for name, one in reversed(self._waiting.items()) if one.tenant == crowded)
            del self._waiting[newest]
            refused = [self._refuse(newest)]
        self._waiting[work] = _Waiting(session, tenant, now_ns)
        effects = self._try(work, now_ns)
        return refused + effects + self._wait(work, now_ns)

    def _most_waiting(self, newcomer: str) -> str:
        """The tenant of which most wait, by its weight, once one more of `newcomer` does; of equals, the newcomer."""
        waiting = Counter([newcomer, *(one.tenant for one in self._waiting.values())])
        return max(waiting, key=lambda tenant: Fraction(waiting[tenant], self._shares.weight_of(tenant)))

    def end(self, work: str, now_ns: int) -> list[Effect]:
        """`work` is over, or nobody wants it any more; one that has gone with its replica is ignored."""
        self._waiting.pop(work, None)
        name = self._working.get(work)
        if name is None:
            return []
        self._over(work)
        session = self._sessions[name]
        session.works.remove(work)
        home = session.home
        assert home is not None, "a work runs at the home of its session"
        home.works -= 1
        left = self._leave_if_idle(name)
        return [*left, *(self._told_retired(home) if left else []), *self._serve(now_ns)]

    def tick(self, now_ns: int) -> list[Effect]:
        """Act on waits whose time has come."""
        effects: list[Effect] = []
        for work, waiting in list(self._waiting.items()):
            if now_ns >= waiting.until_ns:
                effects += [*self._try(work, now_ns), *self._wait(work, now_ns)]
        return effects

    def _serve(self, now_ns: int) -> list[Effect]:
        """Begin what can be begun of what waits."""
        effects: list[Effect] = []
        lanes: dict[str, deque[str]] = {}
        for work, waiting in self._waiting.items():
            lanes.setdefault(waiting.tenant, deque()).append(work)
        while lanes:
            tenant = min(lanes, key=self._shares.of) if len(lanes) > 1 else next(iter(lanes))
            effects += self._try(lanes[tenant].popleft(), now_ns)
            if not lanes[tenant]:
                del lanes[tenant]
        return effects

    def _over(self, work: str) -> None:
        """`work` runs no more."""
        del self._working[work]
        self._shares.give_back(self._tenants.pop(work), self._stage)

    def _try(self, work: str, now_ns: int) -> list[Effect]:
        """Begin `work` if there is a place for it; it may have to move to it."""
        waiting = self._waiting[work]
        session = self._sessions[waiting.session]
        effects = self._find_home(waiting, session, now_ns)
        home = session.home
        if home is None or not self._has_room(home):
            return effects
        del self._waiting[work]
        self._working[work] = waiting.session
        self._tenants[work] = waiting.tenant
        self._shares.take(waiting.tenant, self._stage)
        session.works.add(work)
        home.works += 1
        return [*effects, Begin(work, home.name)]

    def _find_home(self, waiting: _Waiting, session: _Session, now_ns: int) -> list[Effect]:
        if session.home is not None:
            has_waited = now_ns >= waiting.since_ns + self._limits.recompute_ns
            if session.works or self._has_room(session.home) or not has_waited:
                return []
        target = self._least_loaded()
        return self._settle(waiting.session, session, target) if target else []

    def _wait(self, work: str, now_ns: int) -> list[Effect]:
        """`work` waits on, if it still does; or has waited long enough."""
        waiting = self._waiting.get(work)
        if waiting is None:
            return []
        give_up_ns = waiting.since_ns + self._limits.wait_ns_max
        if now_ns >= give_up_ns:
            del self._waiting[work]
            return [self._refuse(work)]
        move_ns = waiting.since_ns + self._limits.recompute_ns
        waiting.until_ns = move_ns if now_ns < move_ns < give_up_ns else give_up_ns
        return [Wait(work, waiting.until_ns)]

    def _refuse(self, work: str) -> Refuse:
        self._refused += 1
        reason = "capacity" if any(one.is_up for one in self._replicas.values()) else "stage_away"
        return Refuse(work, reason, self._limits.wait_ns_max)

    def holds(self, work: str) -> bool:
        """`work` has a place, or waits for one."""
        return work in self._working or work in self._waiting

    def statistics(self) -> PoolStatistics:
        loads = {
            one.name: ReplicaLoad(one.is_up, one.is_retiring, one.incarnation, len(one.sessions), one.works)
            for one in self._replicas.values()
        }
        return PoolStatistics(loads, len(self._sessions), len(self._waiting), self._moved, self._refused)
