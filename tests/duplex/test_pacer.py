"""The wheel that paces all calls, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

import pytest

from duplex.pacer import CATCH_UP_NS_MAX, FRAME_NS, PHASES, SLOT_NS, Pacer

START_NS = 1_000_000_000


class Clock:
    """Time passes only in `sleep`, and where a test says that something took long."""

    def __init__(self, end_ns: int) -> None:
        self.now_ns = START_NS
        self.end_ns = START_NS + end_ns
        self.sleeps = 0

    def now(self) -> int:
        return self.now_ns

    async def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.sleeps += 1
        self.now_ns += round(seconds * 1e9)
        if self.now_ns >= self.end_ns:
            raise asyncio.CancelledError
        await asyncio.sleep(0)


class Call:
    def __init__(self, then: Callable[[int], None] = lambda _now_ns: None) -> None:
        self.paced_ns: list[int] = []
        self._then = then

    def pace(self, now_ns: int) -> None:
        self.paced_ns.append(now_ns)
        self._then(now_ns)


def run(pacer: Pacer) -> None:
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(pacer.run())


def paced(clock: Clock) -> Pacer:
    return Pacer(clock.now, clock.sleep)


def test_a_call_is_paced_once_a_frame() -> None:
    clock = Clock(10 * FRAME_NS)
    pacer, call = paced(clock), Call()
    pacer.add(call)
    run(pacer)
    assert call.paced_ns == [START_NS + turn * FRAME_NS for turn in range(10)]
    assert pacer.take_lateness_ns_max() == 0


def test_calls_are_spread_over_the_wheel() -> None:
    clock = Clock(FRAME_NS)
    pacer, calls = paced(clock), [Call() for _ in range(2 * PHASES)]
    for call in calls:
        pacer.add(call)
    run(pacer)
    assert sorted(call.paced_ns[0] - START_NS for call in calls) == sorted(2 * [k * SLOT_NS for k in range(PHASES)])


def test_a_call_that_left_is_paced_no_more() -> None:
    clock = Clock(3 * FRAME_NS)
    pacer = paced(clock)
    leaving = Call(lambda _now_ns: pacer.remove(leaving))
    staying = Call()
    pacer.add(leaving)
    pacer.add(staying)
    run(pacer)
    assert len(leaving.paced_ns) == 1
    assert len(staying.paced_ns) == 3
    pacer.remove(leaving)  # once more harms nobody


def test_a_call_that_left_is_held_by_nobody_while_the_wheel_stands_still() -> None:
    async def scenario() -> None:
        pacer, paced_once = paced(Clock(3 * FRAME_NS)), asyncio.Event()
        call = Call(lambda _now_ns: paced_once.set())
        pacer.add(call)
        turning = asyncio.create_task(pacer.run())
        await paced_once.wait()
        pacer.remove(call)
        gone = weakref.ref(call)
        del call
        await asyncio.sleep(0)
        assert gone() is None
        turning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turning

    asyncio.run(scenario())


def test_a_call_may_come_while_the_wheel_turns() -> None:
    clock = Clock(3 * FRAME_NS)
    pacer, late = paced(clock), Call()
    first = Call(lambda _now_ns: pacer.add(late) if len(first.paced_ns) == 1 else None)
    pacer.add(first)
    run(pacer)
    assert len(late.paced_ns) >= 2


def test_late_slots_are_caught_up_with() -> None:
    clock = Clock(10 * FRAME_NS)
    pacer = paced(clock)

    def stall(_now_ns: int) -> None:
        if len(call.paced_ns) == 2:
            clock.now_ns += 3 * FRAME_NS

    call = Call(stall)
    pacer.add(call)
    run(pacer)
    assert len(call.paced_ns) == 10
    assert pacer.take_lateness_ns_max() == 2 * FRAME_NS
    assert pacer.take_lateness_ns_max() == 0, "the worst since the last asking"


def test_after_a_long_stall_the_wheel_starts_afresh() -> None:
    clock = Clock(50 * FRAME_NS)
    pacer = paced(clock)

    def suspend(_now_ns: int) -> None:
        if len(call.paced_ns) == 2:
            clock.now_ns += CATCH_UP_NS_MAX + 30 * FRAME_NS

    call = Call(suspend)
    pacer.add(call)
    run(pacer)
    assert len(call.paced_ns) < 15
    gaps = {after - before for before, after in zip(call.paced_ns[3:], call.paced_ns[4:], strict=False)}
    assert gaps == {FRAME_NS}


def test_a_wheel_that_is_always_late_lets_others_run() -> None:
    clock = Clock(20 * FRAME_NS)
    pacer = paced(clock)

    def slow(_now_ns: int) -> None:
        clock.now_ns += 2 * SLOT_NS

    for _ in range(PHASES):
        pacer.add(Call(slow))
    run(pacer)
    assert clock.sleeps >= 40, "one for each slot"


def twice_paced(pacer: Pacer, over: asyncio.Event) -> Call:
    def leave(_now_ns: int) -> None:
        if len(call.paced_ns) == 2:
            pacer.remove(call)
            over.set()

    call = Call(leave)
    return call


def test_without_calls_it_stands_still_and_a_call_that_comes_is_paced_at_once() -> None:
    async def play() -> None:
        clock = Clock(10 * FRAME_NS)
        pacer = paced(clock)
        turning = asyncio.create_task(pacer.run())
        for begin_ns in (START_NS, START_NS + 5 * FRAME_NS + 1):
            for _ in range(20):
                await asyncio.sleep(0)
            assert clock.sleeps == 2 * (begin_ns > START_NS)
            clock.now_ns = begin_ns
            over = asyncio.Event()
            call = twice_paced(pacer, over)
            pacer.add(call)
            await over.wait()
            assert call.paced_ns == [begin_ns, begin_ns + FRAME_NS]
        turning.cancel()
        await asyncio.wait([turning])

    asyncio.run(play())
