"""Who calls again, and what is kept of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from duplex.telephony import call_backs
from duplex.telephony.call_backs import RENEW_S, CallBack, CallBacks
from sessions.memory_store import Fault, MemorySessionStore

CALLER, TOKEN, OTHERS = "+15550100", "sess_1.secret", "sess_2.secret"
SECONDS = 60


class Bench:
    def __init__(self, seconds: int) -> None:
        self.now_ms = 0
        self.asked = 0
        self._asked_again = asyncio.Event()
        self.faults: dict[str, Fault] = {}
        self.store = MemorySessionStore(lambda: self.now_ms, faults=self._fault)
        self.call_backs = CallBacks(self.store, seconds)

    def _fault(self, operation: str) -> Fault | None:
        self.asked += 1
        self._asked_again.set()
        return self.faults.get(operation)

    def of(self, token: str = TOKEN, caller: str = CALLER) -> CallBack:
        return self.call_backs.of("acme", caller, token)

    async def take(self, caller: str = CALLER) -> str | None:
        return await self.call_backs.take("acme", caller)

    async def settle(self) -> None:
        """Whoever keeps something has seen how it stands now."""
        until = self.asked + 4  # a renewal asks twice, and one may be under way
        while self.asked < until:
            self._asked_again.clear()
            await self._asked_again.wait()


def play(scenario: Callable[[Bench], Coroutine[None, None, None]], seconds: int = SECONDS) -> None:
    async def run() -> None:
        async with asyncio.timeout(10):
            await scenario(Bench(seconds))

    asyncio.run(run())


@pytest.fixture
def always_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_backs, "RENEW_S", 0)


def test_who_calls_again_soon_enough_finds_the_session_once() -> None:
    async def scenario(one: Bench) -> None:
        await one.of().cut_off()
        assert await one.call_backs.take("other", CALLER) is None
        assert await one.take("+15550101") is None
        assert await one.take() == TOKEN
        assert await one.take() is None

    play(scenario)


def test_who_calls_too_late_does_not() -> None:
    async def scenario(one: Bench) -> None:
        await one.of().cut_off()
        one.now_ms = SECONDS * 1_000
        assert await one.take() is None

    play(scenario)


@pytest.mark.parametrize("caller", ["", "anonymous", "+266696687", "+7378742833", "1", "+1555010012345678"])
def test_who_withholds_a_number_has_none(caller: str) -> None:
    async def scenario(one: Bench) -> None:
        call_back = one.of(caller=caller)
        async with call_back.living():
            await asyncio.sleep(0)
        await call_back.cut_off()
        await call_back.over()
        assert await one.take(caller) is None
        assert one.asked == 0

    play(scenario)


def test_without_a_time_nothing_is_kept() -> None:
    async def scenario(one: Bench) -> None:
        await one.of().cut_off()
        assert await one.take() is None

    play(scenario, seconds=0)


def test_a_call_whose_gateway_is_killed_is_found_for_as_long() -> None:
    async def scenario(one: Bench) -> None:
        async with one.of().living():
            await asyncio.sleep(0)
        # Nothing more is heard of it.
        one.now_ms = (SECONDS + RENEW_S) * 1_000 - 1
        assert await one.take() == TOKEN

    play(scenario)


def test_and_no_longer() -> None:
    async def scenario(one: Bench) -> None:
        async with one.of().living():
            await asyncio.sleep(0)
        one.now_ms = (SECONDS + RENEW_S) * 1_000
        assert await one.take() is None

    play(scenario)


@pytest.mark.usefixtures("always_renewed")
def test_a_call_is_found_for_as_long_as_it_lives() -> None:
    async def scenario(one: Bench) -> None:
        async with one.of().living():
            for _ in range(3):
                await one.settle()
                one.now_ms += SECONDS * 1_000 - 1
            assert await one.take() == TOKEN
            await one.settle()
            assert await one.take() is None, "it is whose it was given to"

    play(scenario)


@pytest.mark.usefixtures("always_renewed")
def test_a_store_that_is_away_for_a_moment_loses_nobody() -> None:
    async def scenario(one: Bench) -> None:
        async with one.of().living():
            await one.settle()
            one.faults["secret"] = Fault.UNAVAILABLE
            await one.settle()
            one.faults.clear()
            one.now_ms += SECONDS * 1_000 - 1
            await one.settle()
            one.now_ms += SECONDS * 1_000 - 1
            assert await one.take() == TOKEN

    play(scenario)


def test_nobody_goes_on_with_a_call_that_has_ended_as_it_should() -> None:
    async def scenario(one: Bench) -> None:
        async with one.of().living():
            await asyncio.sleep(0)
        await one.of().over()
        assert await one.take() is None

    play(scenario)


@pytest.mark.usefixtures("always_renewed")
def test_of_two_calls_of_a_number_the_later_is_kept_until_one_is_cut_off() -> None:
    async def scenario(one: Bench) -> None:
        async with one.of().living():
            await one.settle()
            async with one.of(OTHERS).living():
                await one.settle()
                assert await one.store.find_secret(*_kept(one)) == OTHERS.encode()
            await one.of().over()
            assert await one.store.find_secret(*_kept(one)) == OTHERS.encode(), "another call's is left alone"
        await one.of().cut_off()
        assert await one.take() == TOKEN

    play(scenario)


def _kept(one: Bench) -> tuple[str, bytes]:
    call_back = one.of()
    return call_back._holder, call_back._digest


def test_a_store_that_is_away_costs_no_call() -> None:
    async def scenario(one: Bench) -> None:
        await one.of().cut_off()
        one.faults["secret"] = Fault.UNAVAILABLE
        await one.of(caller="+15550101").cut_off()
        await one.of().over()
        assert await one.take() is None
        one.faults.clear()
        assert await one.take("+15550101") is None
        assert await one.take() == TOKEN

    play(scenario)
