"""A replica's process from start to start: every move of the table, pauses, quarantine and probe."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stages.replica import (
    DEATHS_MAX,
    DEATHS_WINDOW_NS,
    QUARANTINE_NS,
    Quarantine,
    Replica,
    ReplicaError,
    ReplicaState,
    Restart,
)
from stages.restart import PAUSE_NS_MAX, PAUSE_NS_MIN, STEADY_NS

DOWN, STARTING, UP = ReplicaState.DOWN, ReplicaState.STARTING, ReplicaState.UP
RETIRING, HUNG, QUARANTINED = ReplicaState.RETIRING, ReplicaState.HUNG, ReplicaState.QUARANTINED


def lives(replica: Replica, *lives_ns: int, now_ns: int = 0) -> list[Restart | Quarantine]:
    """What is to be done after each of these lives, one following the other without a pause."""
    answers = []
    for life_ns in lives_ns:
        replica.start(now_ns)
        replica.ready()
        now_ns += life_ns
        answers.append(replica.died(now_ns))
    return answers


def brought_to(state: ReplicaState) -> Replica:
    replica = Replica()
    if state is QUARANTINED:
        lives(replica, *[1] * DEATHS_MAX)
    elif state is not DOWN:
        replica.start(0)
        if state in (UP, RETIRING):
            replica.ready()
        if state is RETIRING:
            replica.retire()
        if state is HUNG:
            replica.hang()
    assert replica.state is state
    return replica


STEPS: dict[str, Callable[[Replica], object]] = {
    "start": lambda replica: replica.start(0),
    "ready": Replica.ready,
    "retire": Replica.retire,
    "hang": Replica.hang,
    "die": lambda replica: replica.died(0),
}
MOVES = {
    (DOWN, "start"): STARTING,
    (QUARANTINED, "start"): STARTING,
    (STARTING, "ready"): UP,
    (STARTING, "hang"): HUNG,
    (STARTING, "die"): DOWN,
    (UP, "retire"): RETIRING,
    (UP, "hang"): HUNG,
    (UP, "die"): DOWN,
    (RETIRING, "hang"): HUNG,
    (RETIRING, "die"): DOWN,
    (HUNG, "die"): DOWN,
}


@pytest.mark.parametrize("state", ReplicaState)
@pytest.mark.parametrize("step", STEPS)
def test_each_step_leads_where_the_table_says_or_is_an_error(state: ReplicaState, step: str) -> None:
    replica = brought_to(state)
    target = MOVES.get((state, step))
    if target is None:
        before = replica.statistics()
        with pytest.raises(ReplicaError, match=f"{step} while {state.value}"):
            STEPS[step](replica)
        assert replica.statistics() == before
    else:
        STEPS[step](replica)
        assert replica.state is target


def test_each_start_has_a_higher_incarnation() -> None:
    replica = Replica()
    assert replica.incarnation == 0
    for incarnation in (1, 2, 3):
        assert replica.start(0) == incarnation == replica.incarnation
        replica.died(1)


def test_a_death_is_mended_at_once_and_further_ones_after_growing_pauses() -> None:
    pauses = lives(Replica(), 1, 1, 1)
    assert pauses == [Restart(0), Restart(PAUSE_NS_MIN), Restart(2 * PAUSE_NS_MIN)]


def test_a_hang_is_a_death_too_and_is_counted() -> None:
    replica = brought_to(HUNG)
    assert replica.died(1) == Restart(0)
    statistics = replica.statistics()
    assert (statistics.state, statistics.deaths, statistics.hangs) == (DOWN, 1, 1)


def test_one_that_keeps_dying_is_quarantined_until_a_probe() -> None:
    replica = Replica()
    assert lives(replica, *[1] * DEATHS_MAX)[-2:] == [Restart(PAUSE_NS_MIN << 3), Quarantine(QUARANTINE_NS)]
    assert replica.start(DEATHS_MAX + QUARANTINE_NS) == DEATHS_MAX + 1


def test_a_probe_that_dies_young_leads_back_into_quarantine() -> None:
    replica = brought_to(QUARANTINED)
    now_ns = 10 * DEATHS_WINDOW_NS
    assert lives(replica, STEADY_NS - 1, now_ns=now_ns) == [Quarantine(QUARANTINE_NS)]


def test_a_probe_that_never_gets_ready_does_so_too() -> None:
    replica = brought_to(QUARANTINED)
    replica.start(10 * DEATHS_WINDOW_NS)
    assert replica.died(10 * DEATHS_WINDOW_NS + 1) == Quarantine(QUARANTINE_NS)


def test_a_probe_that_lives_clears_the_account() -> None:
    replica = brought_to(QUARANTINED)
    now_ns = 10 * DEATHS_WINDOW_NS
    assert lives(replica, STEADY_NS, 1, now_ns=now_ns) == [Restart(0), Restart(PAUSE_NS_MIN)]


@pytest.mark.parametrize(("span_ns", "quarantined"), [(DEATHS_WINDOW_NS, True), (DEATHS_WINDOW_NS + 1, False)])
def test_only_deaths_within_the_window_count(span_ns: int, quarantined: bool) -> None:
    others = [0] * (DEATHS_MAX - 2)
    answers = lives(Replica(), 5, *others, span_ns)
    assert isinstance(answers[-1], Quarantine) == quarantined


def test_who_was_retired_has_not_failed() -> None:
    replica = Replica()
    for _ in range(2 * DEATHS_MAX):
        replica.start(0)
        replica.ready()
        replica.retire()
        assert replica.died(1) == Restart(0)
    assert replica.statistics().deaths == 0


def test_one_that_hangs_while_it_retires_has() -> None:
    replica = brought_to(RETIRING)
    replica.hang()
    replica.died(1)
    assert replica.statistics().deaths == 1


class Keeping(RuleBasedStateMachine):
    """Everything that can happen to a process, in any order, with any pauses."""

    @initialize()
    def begin(self) -> None:
        self.replica = Replica()
        self.now_ns = 0
        self.incarnations = [0]

    @precondition(lambda self: self.replica.state in (DOWN, QUARANTINED))
    @rule()
    def start(self) -> None:
        self.incarnations.append(self.replica.start(self.now_ns))

    @precondition(lambda self: self.replica.state is STARTING)
    @rule()
    def ready(self) -> None:
        self.replica.ready()

    @precondition(lambda self: self.replica.state is UP)
    @rule()
    def retire(self) -> None:
        self.replica.retire()

    @precondition(lambda self: self.replica.state in (STARTING, UP, RETIRING))
    @rule()
    def hang(self) -> None:
        self.replica.hang()

    @precondition(lambda self: self.replica.state not in (DOWN, QUARANTINED))
    @rule()
    def die(self) -> None:
        match self.replica.died(self.now_ns):
            case Restart(after_ns):
                assert 0 <= after_ns <= PAUSE_NS_MAX
                assert self.replica.state is DOWN
            case Quarantine(after_ns):
                assert after_ns > 0
                assert self.replica.state is QUARANTINED

    @rule(ns=st.sampled_from((1, PAUSE_NS_MIN, DEATHS_WINDOW_NS // 2, STEADY_NS)))
    def wait(self, ns: int) -> None:
        self.now_ns += ns

    @invariant()
    def incarnations_rise(self) -> None:
        assert self.incarnations == list(range(len(self.incarnations)))
        assert self.replica.incarnation == self.incarnations[-1]


Keeping.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestKeeping = pytest.mark.slow(Keeping.TestCase)
