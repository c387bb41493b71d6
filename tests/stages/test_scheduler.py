"""Which step runs next, and why none waits for ever.

The bound: a step of class `u` that became ready at `t` has the virtual deadline `d = t + URGENCY_SLACK_NS[u]`. What
becomes ready after `d` has a later one, so it never goes first. What was ready by `d` is at most one step of each other
stream, and a stream that has run is ready anew only later. So after `d` at most one step of each other stream starts
before it.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stages.scheduler import URGENCY_SLACK_NS, SchedulerStatistics, StageScheduler

MS = 1_000_000
STREAMS = tuple("abcdef")
CONCURRENCY = 2


@pytest.mark.parametrize("urgency", [0, 1])
def test_the_more_urgent_class_goes_first(urgency: int) -> None:
    scheduler = StageScheduler(1)
    scheduler.offer("late", urgency + 1, 0)
    scheduler.offer("first", urgency, 10 * MS)
    assert scheduler.start(15 * MS) == ("first", 5 * MS)
    assert scheduler.start(15 * MS) is None
    scheduler.done("first")
    assert scheduler.start(20 * MS) == ("late", 20 * MS)


def test_what_has_waited_its_slack_goes_before_a_newer_first_chunk() -> None:
    scheduler = StageScheduler(1)
    scheduler.offer("speculation", 2, 0)
    scheduler.offer("first chunk", 0, URGENCY_SLACK_NS[2] + 1)
    assert scheduler.start(URGENCY_SLACK_NS[2] + 1) == ("speculation", URGENCY_SLACK_NS[2] + 1)


def test_equals_keep_their_order() -> None:
    scheduler = StageScheduler(3)
    for key in ("b", "a", "c"):
        scheduler.offer(key, 1, 0)
    assert [scheduler.start(0) for _ in range(3)] == [("b", 0), ("a", 0), ("c", 0)]


def test_a_stream_has_one_step_at_a_time() -> None:
    scheduler = StageScheduler(1)
    scheduler.offer("a", 0, 0)
    with pytest.raises(AssertionError, match="offered twice"):
        scheduler.offer("a", 0, 0)
    scheduler.start(0)
    with pytest.raises(AssertionError, match="while it runs"):
        scheduler.offer("a", 0, 0)
    assert scheduler.runs("a")
    assert not scheduler.waits("a")


def test_a_withdrawn_step_is_forgotten_and_says_since_when_it_was_ready() -> None:
    scheduler = StageScheduler(1)
    scheduler.offer("a", 0, 5)
    assert scheduler.waits("a")
    assert scheduler.withdraw("a") == 5
    assert scheduler.withdraw("a") is None
    assert scheduler.start(9) is None
    assert scheduler.statistics() == SchedulerStatistics(waiting=0, waiting_peak=1, running=0, started=0, withdrawn=1)


class Machine(RuleBasedStateMachine):
    """Any order of calls, against a list that is searched from end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = StageScheduler(CONCURRENCY)
        self.now_ns = 0
        self.waiting: list[tuple[int, str, int]] = []
        self.running: list[str] = []
        self.peak = self.started = self.withdrawn = 0

    def _offerable(self) -> list[str]:
        busy = {key for _, key, _ in self.waiting} | set(self.running)
        return [key for key in STREAMS if key not in busy]

    @precondition(lambda self: self._offerable())
    @rule(data=st.data(), urgency=st.sampled_from((0, 1, 2)))
    def offer(self, data: st.DataObject, urgency: int) -> None:
        key = data.draw(st.sampled_from(self._offerable()))
        self.scheduler.offer(key, urgency, self.now_ns)
        self.waiting.append((self.now_ns + URGENCY_SLACK_NS[urgency], key, self.now_ns))
        self.peak = max(self.peak, len(self.waiting))

    @rule()
    def start(self) -> None:
        started = self.scheduler.start(self.now_ns)
        if not self.waiting or len(self.running) == CONCURRENCY:
            assert started is None
            return
        first = min(self.waiting, key=lambda waiting: waiting[0])
        self.waiting.remove(first)
        self.running.append(first[1])
        self.started += 1
        assert started == (first[1], self.now_ns - first[2])

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.running))
        self.running.remove(key)
        self.scheduler.done(key)

    @rule(key=st.sampled_from(STREAMS))
    def withdraw(self, key: str) -> None:
        found = next((one for one in self.waiting if one[1] == key), None)
        assert self.scheduler.withdraw(key) == (found and found[2])
        if found:
            self.waiting.remove(found)
            self.withdrawn += 1

    @rule(pause_ns=st.integers(0, URGENCY_SLACK_NS[2]))
    def time_passes(self, pause_ns: int) -> None:
        self.now_ns += pause_ns

    @invariant()
    def is_accounted_for(self) -> None:
        for key in STREAMS:
            assert self.scheduler.waits(key) == any(key == one[1] for one in self.waiting)
            assert self.scheduler.runs(key) == (key in self.running)
        assert self.scheduler.statistics() == SchedulerStatistics(
            len(self.waiting), self.peak, len(self.running), self.started, self.withdrawn
        )


Machine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestAnyOrder = Machine.TestCase


@given(st.sampled_from((0, 1, 2)), st.integers(0, 2**32))
def test_after_its_slack_a_step_waits_for_one_step_of_each_other_stream_at_most(urgency: int, seed: int) -> None:
    """Rivals are hardly ever idle, and come back with steps of any class."""
    random, scheduler, now_ns = Random(seed), StageScheduler(1), 0
    scheduler.offer("victim", urgency, 0)
    rivals = STREAMS[: random.randint(1, len(STREAMS))]
    for key in rivals:
        scheduler.offer(key, random.randrange(3), 0)
    overtaken = 0
    while (started := scheduler.start(now_ns)) is not None and started[0] != "victim":
        overtaken += now_ns > URGENCY_SLACK_NS[urgency]
        assert overtaken <= len(rivals)
        now_ns += random.randint(1, 80 * MS)
        scheduler.done(started[0])
        now_ns += random.randint(0, 4 * MS)
        scheduler.offer(started[0], random.choice((0, 0, 1, 2)), now_ns)


def test_a_busy_worker_gets_round_to_speculation() -> None:
    """The worst case of the bound: three streams that always have a first chunk of 150 ms ready."""
    scheduler, now_ns = StageScheduler(1), 0
    scheduler.offer("partial", 2, 0)
    for key in "abc":
        scheduler.offer(key, 0, 0)
    waits = 0
    while (started := scheduler.start(now_ns)) is not None and started[0] != "partial":
        now_ns += 150 * MS
        waits += 1
        scheduler.done(started[0])
        scheduler.offer(started[0], 0, now_ns)
    assert started is not None
    assert waits <= URGENCY_SLACK_NS[2] // (150 * MS) + 1 + len("abc")
