"""Steps that take a time: where it is spent, how it ends, and when a stream is given another one."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from stages.contracts import Clause, Item
from stages.engines.synthetic.distributions import VALUE_MAX, Exponential
from stages.engines.synthetic.profile import StageProfile
from stages.engines.synthetic.work import Cost, TimedStep, TimedStream, Want, Work
from stages.stream import Output
from tests.stages.engines.synthetic.bench import Watch, step_of

HOUR_NS = 3_600_000_000_000


def work(**costs: Cost) -> Work:
    return Work("stage", StageProfile(), costs)


def test_a_step_costs_a_fixed_time_and_one_for_each_unit() -> None:
    step = work(read=Cost(5.0, 0.5)).step(Want("read", 8))
    assert step.service_ns == 9_000_000
    assert (step.kind, step.urgency, step.units) == ("read", 1, 0)


def test_no_step_takes_longer_than_the_limit() -> None:
    assert work(read=Cost(each_ms=100.0)).step(Want("read", 10_000)).service_ns == VALUE_MAX * 1_000_000


def test_kinds_draw_apart_and_stages_too() -> None:
    costs = {"one": Cost(Exponential(5)), "other": Cost(Exponential(5))}
    first, second = (Work(stage, StageProfile(), costs) for stage in ("talker", "vocoder"))
    drawn = {makes.step(Want(kind)).service_ns for makes in (first, second) for kind in costs}
    assert len(drawn) == 4
    again = Work("talker", StageProfile(), costs)
    assert again.step(Want("one")).service_ns in drawn
    assert Work("talker", StageProfile(seed=2), costs).step(Want("one")).service_ns not in drawn


def test_the_time_is_slept() -> None:
    watch, before_ns = Watch(), time.thread_time_ns()
    step = TimedStep(Want("word"), HOUR_NS, 0.0)
    assert step.run(watch) is step
    (waited_ns,) = watch.waited_ns
    assert HOUR_NS - 60_000_000_000 < waited_ns <= HOUR_NS
    assert time.thread_time_ns() - before_ns < 1_000_000_000


def test_a_step_that_cannot_be_interrupted_runs_to_its_end() -> None:
    watch = Watch(is_cancelled=True)
    before_ns, began_ns = time.thread_time_ns(), time.monotonic_ns()
    TimedStep(Want("word"), 4_000_000, 0.25, interruptible=False).run(watch)
    assert time.thread_time_ns() - before_ns >= 1_000_000
    assert time.monotonic_ns() - began_ns >= 4_000_000
    assert watch.waited_ns == []


def test_the_profile_says_whether_steps_can_be_interrupted() -> None:
    makes = [Work("stage", StageProfile(interruptible=can), {"read": Cost()}) for can in (True, False)]
    assert [one.step(Want("read")).interruptible for one in makes] == [True, False]


def test_a_share_of_it_is_computed() -> None:
    watch, before_ns = Watch(), time.thread_time_ns()
    TimedStep(Want("word"), 10_000_000, 0.5).run(watch)
    assert time.thread_time_ns() - before_ns >= 5_000_000
    (waited_ns,) = watch.waited_ns
    assert waited_ns <= 5_000_000


def test_a_cancel_ends_what_is_computed() -> None:
    before_ns = time.thread_time_ns()
    TimedStep(Want("word"), HOUR_NS, 1.0).run(Watch(is_cancelled=True))
    assert time.thread_time_ns() - before_ns < 1_000_000_000


class Wanting(TimedStream):
    """Wants what the test says."""

    wanted: Want | None = None

    def feed(self, item: Item) -> Sequence[Output]:
        return ()

    def want(self) -> Want | None:
        return self.wanted

    def came(self, want: Want) -> Sequence[Output]:
        self.finished = True
        return ()

    def held(self) -> dict[str, int]:
        return {}


def test_the_same_want_is_the_same_step() -> None:
    stream = Wanting(work(one=Cost(Exponential(5)), other=Cost(Exponential(5))))
    assert stream.next_step() is None
    stream.wanted = Want("one", about=1)
    first = step_of(stream)
    stream.wanted = Want("one", about=1)
    assert step_of(stream) is first
    stream.wanted = Want("one", about=2)
    second = step_of(stream)
    assert (second.want.about, second.service_ns != first.service_ns) == (2, True)
    stream.wanted = None
    assert stream.next_step() is None


def test_a_finished_or_closed_stream_has_no_step() -> None:
    stream = Wanting(work(one=Cost(1.0)))
    stream.wanted = Want("one")
    step = step_of(stream)
    stream.close()
    assert step_of(stream) is not step
    stream.finish_step(step)
    assert stream.finished
    assert stream.next_step() is None


def test_only_its_own_steps_come_back() -> None:
    with pytest.raises(AssertionError):
        Wanting(work()).finish_step(Clause(0, ""))
