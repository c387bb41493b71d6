"""Time and links of a simulated world."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from stages.messages import CloseSession, Frame
from tests.sim import clock
from tests.sim.clock import MS, Clock, LivelockError
from tests.sim.network import NOTICE_MS_MAX, Route, Wire


class Listener:
    """An end that keeps what comes."""

    def __init__(self) -> None:
        self.came: list[Frame] = []
        self.losses = 0
        self.wire: Wire | None = None

    def deliver(self, frame: Frame) -> None:
        assert not self.losses, "nothing comes after the loss"
        self.came.append(frame)

    def lost(self) -> None:
        self.losses += 1


class Bench:
    def __init__(self) -> None:
        self.clock = Clock()
        self.counts: Counter[str] = Counter()
        self.route = Route(("here", "there"), self.clock, Random(3), self.counts)
        self.near, self.far = Listener(), Listener()
        self.wire = self.route.connect(self.near, self._accept)

    def _accept(self, wire: Wire) -> Listener:
        self.far.wire = wire
        return self.far

    def wait(self, ms: float) -> None:
        self.clock.run_until(self.clock.now_ns + int(ms * MS))


def frames(first: int, last: int) -> list[Frame]:
    return [CloseSession(str(number)) for number in range(first, last)]


def send(wire: Wire | None, *what: Frame) -> None:
    assert wire is not None
    for frame in what:
        wire.send(frame)


def test_what_is_due_together_happens_in_the_order_of_asking() -> None:
    time, seen = Clock(), list[int]()
    for number in range(5):
        time.after(1, seen.append, number)
    time.at(0, seen.append, -1)
    time.run_until(time.now_ns + MS)
    assert seen == [-1, 0, 1, 2, 3, 4]


def test_the_wall_clock_steps_and_time_does_not() -> None:
    time = Clock()
    before = time.now_ns, time.wall_ms
    time.wall_step_ms -= 5_000
    assert (time.now_ns, time.wall_ms) == (before[0], before[1] - 5_000)


def test_a_world_that_goes_in_circles_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "EVENTS_MAX", 100)
    time = Clock()

    def again() -> None:
        time.after(0, again)

    again()
    with pytest.raises(LivelockError):
        time.run_until(time.now_ns + 1)


def test_a_wire_keeps_order_both_ways() -> None:
    bench = Bench()
    for frame in frames(0, 40):
        bench.wire.send(frame)
        send(bench.far.wire, frame)
        bench.wait(0.3)
    bench.wait(10)
    assert bench.near.came == bench.far.came == frames(0, 40)


def test_two_links_have_no_common_order() -> None:
    bench = Bench()
    other = bench.route.connect(Listener(), lambda wire: bench.far)
    for one, two in zip(frames(0, 20), frames(20, 40), strict=True):
        bench.wire.send(one)
        other.send(two)
    bench.wait(10)
    assert bench.counts["frames overtaken on another link"] > 0
    assert bench.far.came != sorted(bench.far.came, key=repr)


def test_of_several_links_one_may_break_alone() -> None:
    bench, other = Bench(), Listener()
    there = Listener()
    wire = bench.route.connect(other, lambda back: there)
    bench.route.break_one()
    bench.wire.send(CloseSession("1"))
    wire.send(CloseSession("1"))
    bench.wait(max(NOTICE_MS_MAX) + 1)
    seen = [(len(far.came), far.losses, near.losses) for far, near in ((bench.far, bench.near), (there, other))]
    assert sorted(seen) == [(0, 1, 1), (1, 0, 0)]


def test_a_link_that_is_closed_brings_what_was_sent_before() -> None:
    bench = Bench()
    send(bench.wire, *frames(0, 5))
    send(bench.far.wire, *frames(5, 9))
    bench.wire.hang_up()
    bench.wire.send(CloseSession("late"))
    bench.wait(10)
    assert (bench.far.came, bench.far.losses) == (frames(0, 5), 1)
    assert (bench.near.came, bench.near.losses) == ([], 0)


def test_a_link_that_breaks_is_noticed_once_at_each_end() -> None:
    bench = Bench()
    bench.route.break_links()
    send(bench.wire, *frames(0, 5))
    bench.route.break_links()
    bench.wait(max(NOTICE_MS_MAX))
    assert (bench.far.came, bench.far.losses, bench.near.losses) == ([], 1, 1)


def test_what_is_sent_over_a_held_route_comes_when_the_hold_ends() -> None:
    bench = Bench()
    send(bench.wire, *frames(0, 5))
    bench.route.hold()
    bench.wait(100)
    assert bench.far.came == []
    bench.route.release()
    send(bench.wire, *frames(5, 9))
    bench.wait(0)
    assert bench.far.came == frames(0, 5)
    bench.wait(10)
    assert bench.far.came == frames(0, 9)


def test_a_hold_that_follows_at_once_goes_on_holding() -> None:
    bench = Bench()
    bench.route.hold()
    send(bench.wire, *frames(0, 5))
    bench.wait(10)
    bench.route.release()
    bench.route.hold()
    bench.wait(10)
    assert bench.far.came == []


def test_a_link_that_breaks_while_it_is_held_loses_what_waits() -> None:
    bench = Bench()
    bench.route.hold()
    send(bench.wire, *frames(0, 5))
    bench.wait(10)
    bench.route.break_links()
    bench.wait(max(NOTICE_MS_MAX))
    bench.route.release()
    bench.wait(10)
    assert (bench.far.came, bench.far.losses) == ([], 1)


def test_a_log_is_given_what_arrives() -> None:
    bench = Bench()
    lines: list[str] = []
    bench.route.log = lines.append
    send(bench.wire, CloseSession("sess_1"))
    bench.wait(10)
    assert lines == ["here > there: CloseSession sess_1"]
