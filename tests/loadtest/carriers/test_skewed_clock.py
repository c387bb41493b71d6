"""A carrier's clock."""

from __future__ import annotations

import asyncio

import pytest

from loadtest.carriers.skewed_clock import SkewedClock

S = 1_000_000_000


class Machine:
    """A clock that is set, and remembers until when somebody slept."""

    def __init__(self) -> None:
        self.time_ns = 5 * S
        self.slept_until_ns = 0

    def now_ns(self) -> int:
        return self.time_ns

    async def sleep_until(self, deadline_ns: int) -> None:
        self.slept_until_ns = deadline_ns


@pytest.mark.parametrize(("skew_ppm", "gained_ns"), [(200, 20_000_000), (-200, -20_000_000), (0, 0)])
def test_a_clock_gains_or_loses_from_its_first_reading_on(skew_ppm: int, gained_ns: int) -> None:
    machine = Machine()
    clock = SkewedClock(machine, skew_ppm)
    assert clock.now_ns() == 5 * S
    machine.time_ns += 100 * S
    assert clock.now_ns() == 105 * S + gained_ns
    asyncio.run(clock.sleep_until(105 * S + gained_ns))
    assert 0 <= machine.slept_until_ns - 105 * S <= 1


def test_who_sleeps_until_a_time_of_this_clock_does_not_wake_before_it() -> None:
    machine = Machine()
    clock = SkewedClock(machine, 137)
    clock.now_ns()
    for deadline_ns in range(6 * S, 6 * S + 1000, 7):
        asyncio.run(clock.sleep_until(deadline_ns))
        machine.time_ns = machine.slept_until_ns
        assert clock.now_ns() >= deadline_ns
