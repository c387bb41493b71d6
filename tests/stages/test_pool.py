"""Which replica serves which session: affinity, waiting, moving, losing, retiring; and what holds in any order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stages.pool import (
    WAITING_MAX,
    Assign,
    Begin,
    Effect,
    Move,
    Pool,
    PoolLimits,
    Refuse,
    Release,
    ReplicaLoad,
    Retired,
    Wait,
)

A, B = "a", "b"
LIMITS = PoolLimits(works_max=2, wait_ns_max=1_000, recompute_ns=300)


def pool(*replicas: str, limits: PoolLimits = LIMITS) -> Pool:
    """All of `replicas` are up."""
    one = Pool(replicas, limits)
    for name in replicas:
        assert one.up(name, 1, 0) == []
    return one


def full_home(limits: PoolLimits = LIMITS) -> Pool:
    """Two replicas, `a` full with the works of s1; s3, at home there too, has none. s2 lives at b."""
    one = pool(A, B, limits=limits)
    for session in ("s1", "s2", "s3"):
        one.enter(session)
    assert [one.home(session) for session in ("s1", "s2", "s3")] == [A, B, A]
    for work in ("w1", "w2"):
        assert one.begin("s1", work, 0) == [Begin(work, A)]
    return one


# ---- homes -------------------------------------------------------------------------------------------------


def test_sessions_spread_over_the_replicas_and_stay() -> None:
    one = pool(A, B)
    homes = [one.enter(f"s{number}") for number in range(4)]
    assert homes == [[Assign("s0", A)], [Assign("s1", B)], [Assign("s2", A)], [Assign("s3", B)]]
    for number in range(3):
        assert one.begin("s3", f"w{number}", 0)[0] == (Begin(f"w{number}", B) if number < 2 else Wait("w2", 300))
    assert one.home("nobody") is None


def test_of_two_with_as_many_sessions_the_one_with_less_to_do_is_chosen() -> None:
    one = pool(A, B)
    one.enter("s1")
    one.enter("s2")
    one.begin("s1", "w", 0)
    assert one.enter("s3") == [Assign("s3", B)]


def test_a_session_without_a_replica_gets_a_home_with_its_first_work() -> None:
    one = Pool([A], LIMITS)
    assert one.enter("s") == []
    assert one.begin("s", "w", 0) == [Wait("w", 300)]
    assert one.up(A, 1, 100) == [Assign("s", A), Begin("w", A)]


def test_who_leaves_is_released_and_makes_room() -> None:
    one = pool(A)
    for session in ("s1", "s2"):
        one.enter(session)
    for work, session in (("w1", "s1"), ("w2", "s1"), ("w3", "s2")):
        one.begin(session, work, 0)
    assert one.leave("s1", 10) == [Release("s1", A), Begin("w3", A)]
    assert one.end("w1", 20) == [], "it has gone with its session"
    assert one.statistics().replicas[A] == ReplicaLoad(True, False, 1, 1, 1)


def test_who_comes_while_all_are_full_gets_a_home_with_its_first_work() -> None:
    one = full_home(PoolLimits(works_max=2, wait_ns_max=1_000))
    for work in ("w3", "w4"):
        one.begin("s2", work, 0)
    assert one.enter("s4") == []
    one.end("w3", 10)
    assert one.begin("s4", "w5", 20) == [Assign("s4", B), Begin("w5", B)]


def test_who_leaves_before_it_had_a_home_takes_what_waits_along() -> None:
    one = Pool([A], LIMITS)
    one.enter("s")
    one.begin("s", "w", 0)
    assert one.leave("s", 10) == []
    assert one.up(A, 1, 20) == []
    assert one.statistics().waiting == 0


# ---- a full replica ----------------------------------------------------------------------------------------


def test_a_work_waits_for_a_full_home_and_gets_the_first_place() -> None:
    one = full_home()
    assert one.begin("s3", "w3", 100) == [Wait("w3", 400)]
    assert one.end("w1", 399) == [Begin("w3", A)]
    assert one.tick(400) == []


def test_it_moves_once_it_has_waited_as_long_as_making_its_state_anew_takes() -> None:
    one = full_home()
    one.begin("s3", "w3", 100)
    assert one.tick(399) == []
    assert one.tick(400) == [Move("s3", A, B), Begin("w3", B)]
    assert one.home("s3") == B
    assert one.statistics().moved == 1


def test_where_there_is_no_state_to_lose_it_moves_at_once() -> None:
    one = full_home(PoolLimits(works_max=2, wait_ns_max=1_000))
    assert one.begin("s3", "w3", 100) == [Move("s3", A, B), Begin("w3", B)]


def test_a_session_whose_works_run_waits_for_its_home() -> None:
    one = full_home()
    one.begin("s1", "w3", 100)
    assert one.tick(400) == [Wait("w3", 1_100)]
    assert one.end("w1", 500) == [Begin("w3", A)]


def test_where_all_are_full_it_waits_for_the_first_place_anywhere() -> None:
    one = full_home()
    for work in ("w3", "w4"):
        one.begin("s2", work, 0)
    one.begin("s3", "w5", 100)
    assert one.tick(400) == [Wait("w5", 1_100)]
    assert one.end("w3", 500) == [Move("s3", A, B), Begin("w5", B)]


def test_what_has_waited_too_long_is_refused_and_never_begun() -> None:
    one = full_home()
    for work in ("w3", "w4"):
        one.begin("s2", work, 0)
    one.begin("s3", "w5", 100)
    one.tick(400)
    assert one.tick(1_099) == []
    assert one.tick(1_100) == [Refuse("w5", "capacity", LIMITS.wait_ns_max)]
    assert one.end("w1", 1_200) == []
    assert one.statistics().refused == 1


def test_what_nobody_wants_any_more_gives_up_its_place_in_the_queue() -> None:
    one = full_home()
    one.begin("s1", "w3", 0)
    assert one.end("w3", 10) == []
    assert one.end("w1", 20) == []


def test_a_long_wait_for_ones_state_is_no_longer_than_any_wait() -> None:
    one = full_home(PoolLimits(works_max=2, wait_ns_max=1_000, recompute_ns=5_000))
    assert one.begin("s3", "w3", 0) == [Wait("w3", 1_000)]
    assert one.tick(1_000) == [Refuse("w3", "capacity", 1_000)]


def test_what_waits_is_bounded() -> None:
    one = Pool([A], LIMITS)
    one.enter("s")
    for number in range(WAITING_MAX):
        assert one.begin("s", f"w{number}", 0) == [Wait(f"w{number}", 300)]
    assert one.begin("s", "one too many", 0) == [Refuse("one too many", "stage_away", LIMITS.wait_ns_max)]


def test_a_tenant_of_which_most_wait_makes_room_for_another() -> None:
    one = Pool([A], LIMITS)
    one.enter("s")
    one.enter("mine")
    for number in range(WAITING_MAX):
        one.begin("s", f"w{number}", 0, "noisy")
    newest = f"w{WAITING_MAX - 1}"
    refused = Refuse(newest, "stage_away", LIMITS.wait_ns_max)
    assert one.begin("mine", "first", 0, "quiet") == [refused, Wait("first", 300)]
    assert not one.holds(newest)
    served = [effect.work for effect in one.up(A, 1, 1) if isinstance(effect, Begin)]
    assert served == ["w0", "first"], "each is given a place before anybody is given two"


def test_each_wait_is_acted_on_at_its_own_time() -> None:
    one = Pool([A], LIMITS)
    one.enter("s")
    one.begin("s", "w1", 0)
    one.begin("s", "w2", 200)
    assert one.tick(300) == [Wait("w1", 1_000)]
    assert one.tick(500) == [Wait("w2", 1_200)]
    assert one.tick(1_000) == [Refuse("w1", "stage_away", LIMITS.wait_ns_max)]


# ---- replicas that go --------------------------------------------------------------------------------------


def test_a_replica_that_goes_down_takes_its_works_along_and_its_sessions_go_on_elsewhere() -> None:
    one = full_home()
    assert one.down(A, 1, 100) == []
    assert [one.home(session) for session in ("s1", "s2", "s3")] == [None, B, None]
    assert one.end("w1", 110) == [], "it went with its replica"
    assert one.begin("s1", "w3", 120) == [Assign("s1", B), Begin("w3", B)]


def test_what_waited_for_a_replica_that_goes_down_begins_elsewhere() -> None:
    one = full_home()
    one.begin("s3", "w3", 50)
    assert one.down(A, 1, 100) == [Assign("s3", B), Begin("w3", B)]


def test_what_is_told_of_an_older_incarnation_is_void() -> None:
    one = pool(A)
    one.enter("s")
    one.begin("s", "w", 0)
    assert one.up(A, 0, 10) == one.up(A, 1, 10) == one.down(A, 0, 10) == []
    assert one.home("s") == A
    one.up(A, 3, 20)  # the loss of the one before was never told
    assert one.home("s") is None
    assert one.down(A, 2, 30) == []
    assert one.statistics().replicas[A] == ReplicaLoad(True, False, 3, 0, 0)


def test_a_lost_link_and_no_death_is_a_way_back_too() -> None:
    one = pool(A)
    one.enter("s")
    one.down(A, 1, 10)
    assert one.begin("s", "w", 20) == [Wait("w", 320)]
    assert one.up(A, 1, 30) == [Assign("s", A), Begin("w", A)]


# ---- replicas that retire ----------------------------------------------------------------------------------


def test_a_replica_that_retires_keeps_what_runs_and_loses_the_rest() -> None:
    one = full_home()
    assert one.retire(A, 10) == [Release("s3", A)]
    assert one.retire(A, 11) == []
    assert one.home("s3") is None
    assert one.begin("s3", "w3", 20) == [Assign("s3", B), Begin("w3", B)]
    assert one.enter("s4") == [Assign("s4", B)]
    assert one.end("w1", 30) == []
    assert one.begin("s1", "w4", 40) == [Begin("w4", A)], "what runs may need more beside it"
    assert one.end("w2", 50) == []
    assert one.end("w4", 60) == [Release("s1", A), Retired(A)]


def test_where_it_was_the_only_one_its_sessions_wait_for_the_next() -> None:
    one = pool(A)
    one.enter("s")
    assert one.retire(A, 10) == [Release("s", A), Retired(A)]
    assert one.begin("s", "w", 20) == [Wait("w", 320)]
    assert one.down(A, 1, 30) == []
    assert one.up(A, 2, 40) == [Assign("s", A), Begin("w", A)]


def test_who_leaves_last_empties_it() -> None:
    one = pool(A)
    one.enter("s")
    one.begin("s", "w", 0)
    assert one.retire(A, 10) == []
    assert one.leave("s", 20) == [Release("s", A), Retired(A)]


def test_one_that_is_down_does_not_retire() -> None:
    assert Pool([A], LIMITS).retire(A, 0) == []


@pytest.mark.parametrize("wrong", ["enter", "begin", "again", "stranger"])
def test_a_caller_that_has_lost_count_is_told(wrong: str) -> None:
    one = pool(A)
    one.enter("s")
    one.begin("s", "w", 0)
    for work in ("x", "y"):
        one.begin("s", work, 0)
    with pytest.raises(AssertionError):
        {
            "enter": lambda: one.enter("s"),
            "begin": lambda: one.begin("s", "w", 0),
            "again": lambda: one.begin("s", "y", 0),
            "stranger": lambda: one.begin("stranger", "z", 0),
        }[wrong]()


# ---- any order ---------------------------------------------------------------------------------------------

REPLICAS = ("a", "b", "c")
SESSIONS = tuple(f"s{number}" for number in range(5))
STEPS_NS = (1, 100, 300, 700, 1_000)


class Pooling(RuleBasedStateMachine):
    """What a driver of the pool believes from its effects alone must agree, and nothing may be left waiting."""

    @initialize(recompute_ns=st.sampled_from((0, 300, 5_000)))
    def start(self, recompute_ns: int) -> None:
        self.limits = PoolLimits(2, 1_000, recompute_ns)
        self.pool = Pool(REPLICAS, self.limits)
        self.now_ns = 0
        self.incarnations = dict.fromkeys(REPLICAS, 0)
        self.up: set[str] = set()
        self.retiring: set[str] = set()
        self.homes: dict[str, str | None] = {}
        self.working: dict[str, tuple[str, str]] = {}
        self.waiting: dict[str, tuple[str, int, int]] = {}
        self.works = 0

    def take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Assign(session, replica):
                    assert self.homes[session] is None
                    self._settle(session, replica)
                case Move(session, source, target):
                    assert self.homes[session] == source != target
                    assert all(owner != session for owner, _ in self.working.values()), "who works does not move"
                    self._settle(session, target)
                case Release(session, replica):
                    assert self.homes.get(session, replica) == replica
                    if session in self.homes:
                        self.homes[session] = None
                case Begin(work, replica):
                    session, _, _ = self.waiting.pop(work)
                    assert self.homes[session] == replica in self.up
                    self.working[work] = (session, replica)
                case Wait(work, until_ns):
                    session, since_ns, _ = self.waiting[work]
                    assert self.now_ns < until_ns <= since_ns + self.limits.wait_ns_max
                    self.waiting[work] = (session, since_ns, until_ns)
                case Refuse(work):
                    del self.waiting[work]
                case Retired(replica):
                    assert replica in self.retiring
                    assert replica not in self.homes.values()

    def _settle(self, session: str, replica: str) -> None:
        assert replica in self.up - self.retiring
        self.homes[session] = replica

    @rule(session=st.sampled_from(SESSIONS))
    def come_or_go(self, session: str) -> None:
        if session not in self.homes:
            self.homes[session] = None
            self.take(self.pool.enter(session))
            return
        self.working = {work: at for work, at in self.working.items() if at[0] != session}
        self.waiting = {work: at for work, at in self.waiting.items() if at[0] != session}
        del self.homes[session]
        self.take(self.pool.leave(session, self.now_ns))

    @precondition(lambda self: self.homes)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.homes)))
        self.works += 1
        work = f"w{self.works}"
        self.waiting[work] = (session, self.now_ns, 0)
        self.take(self.pool.begin(session, work, self.now_ns))

    @precondition(lambda self: self.working or self.waiting)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        work = data.draw(st.sampled_from(sorted([*self.working, *self.waiting])))
        self.working.pop(work, None)
        self.waiting.pop(work, None)
        self.take(self.pool.end(work, self.now_ns))

    @rule(replica=st.sampled_from(REPLICAS))
    def rise(self, replica: str) -> None:
        self.incarnations[replica] += 1
        self._lose(replica)
        self.up.add(replica)
        self.take(self.pool.up(replica, self.incarnations[replica], self.now_ns))

    @rule(replica=st.sampled_from(REPLICAS), back=st.integers(0, 1))
    def fall(self, replica: str, back: int) -> None:
        if not back:
            self._lose(replica)
        self.take(self.pool.down(replica, self.incarnations[replica] - back, self.now_ns))

    def _lose(self, replica: str) -> None:
        self.up.discard(replica)
        self.retiring.discard(replica)
        self.working = {work: at for work, at in self.working.items() if at[1] != replica}
        self.homes = {session: None if home == replica else home for session, home in self.homes.items()}

    @rule(replica=st.sampled_from(REPLICAS))
    def retire(self, replica: str) -> None:
        if replica in self.up:
            self.retiring.add(replica)
        self.take(self.pool.retire(replica, self.now_ns))

    @rule(ns=st.sampled_from(STEPS_NS))
    def wait(self, ns: int) -> None:
        self.now_ns += ns
        self.take(self.pool.tick(self.now_ns))

    @invariant()
    def loads_are_conserved(self) -> None:
        statistics = self.pool.statistics()
        for name in REPLICAS:
            works = sum(at == name for _, at in self.working.values())
            sessions = sum(home == name for home in self.homes.values())
            incarnation = statistics.replicas[name].incarnation
            load = ReplicaLoad(name in self.up, name in self.retiring, incarnation, sessions, works)
            assert statistics.replicas[name] == load
            assert works <= self.limits.works_max
            assert incarnation == self.incarnations[name] if name in self.up else True
        assert {session: self.pool.home(session) for session in self.homes} == self.homes
        assert all(self.pool.holds(work) for work in (*self.working, *self.waiting))
        assert (statistics.sessions, statistics.waiting) == (len(self.homes), len(self.waiting))

    @invariant()
    def nothing_waits_for_ever(self) -> None:
        for _, since_ns, until_ns in self.waiting.values():
            assert self.now_ns < until_ns <= since_ns + self.limits.wait_ns_max

    @invariant()
    def nothing_waits_where_its_home_has_room(self) -> None:
        loads = self.pool.statistics().replicas
        for session, _, _ in self.waiting.values():
            home = self.homes[session]
            assert home is None or loads[home].works == self.limits.works_max


Pooling.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestPooling = pytest.mark.slow(Pooling.TestCase)
