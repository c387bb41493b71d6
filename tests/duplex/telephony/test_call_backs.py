"""Who calls again, and what is kept of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from duplex.telephony.call_backs import CallBacks
from sessions.memory_store import Fault, MemorySessionStore

CALLER, TOKEN = "+15550100", "sess_1.secret"


class Bench:
    def __init__(self, seconds: int = 60) -> None:
        self.now_ms = 0
        self.faults: dict[str, Fault] = {}
        self.store = MemorySessionStore(lambda: self.now_ms, faults=self.faults.get)
        self.call_backs = CallBacks(self.store, seconds)


def play(scenario: Callable[[Bench], Coroutine[None, None, None]], seconds: int = 60) -> None:
    asyncio.run(scenario(Bench(seconds)))


def test_who_calls_again_soon_enough_finds_the_session_once() -> None:
    async def scenario(one: Bench) -> None:
        await one.call_backs.expect("acme", CALLER, TOKEN)
        assert await one.call_backs.take("other", CALLER) is None
        assert await one.call_backs.take("acme", "+15550101") is None
        assert await one.call_backs.take("acme", CALLER) == TOKEN
        assert await one.call_backs.take("acme", CALLER) is None

    play(scenario)


def test_who_calls_too_late_does_not() -> None:
    async def scenario(one: Bench) -> None:
        await one.call_backs.expect("acme", CALLER, TOKEN)
        one.now_ms = 60_000
        assert await one.call_backs.take("acme", CALLER) is None

    play(scenario)


@pytest.mark.parametrize("caller", ["", "anonymous", "+266696687", "+7378742833", "1", "+1555010012345678"])
def test_who_withholds_a_number_has_none(caller: str) -> None:
    async def scenario(one: Bench) -> None:
        await one.call_backs.expect("acme", caller, TOKEN)
        assert await one.call_backs.take("acme", caller) is None

    play(scenario)


def test_without_a_time_nothing_is_kept() -> None:
    async def scenario(one: Bench) -> None:
        await one.call_backs.expect("acme", CALLER, TOKEN)
        assert await one.call_backs.take("acme", CALLER) is None

    play(scenario, seconds=0)


def test_a_store_that_is_away_costs_no_call() -> None:
    async def scenario(one: Bench) -> None:
        await one.call_backs.expect("acme", CALLER, TOKEN)
        one.faults["secret"] = Fault.UNAVAILABLE
        await one.call_backs.expect("acme", "+15550101", TOKEN)
        assert await one.call_backs.take("acme", CALLER) is None
        one.faults.clear()
        assert await one.call_backs.take("acme", "+15550101") is None
        assert await one.call_backs.take("acme", CALLER) == TOKEN

    play(scenario)
