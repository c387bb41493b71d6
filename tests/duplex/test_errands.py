"""What gateways ask of each other: done by the one that can, and never waited for without end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from structlog.testing import capture_logs

from duplex import errands
from duplex.errands import Errands, Outcome, What
from duplex.tasks import stop_task
from sessions.memory_store import Fault, MemorySessionStore

S_MAX = 10
WHOSE = "sess_1"


class House:
    """Two gateways on one store; `faults` are those of its operations."""

    def __init__(self) -> None:
        self.faults: dict[str, Fault] = {}
        self.store = MemorySessionStore(lambda: 0, faults=self.faults.get)
        self.one, self.other = Errands(self.store, "gw_1"), Errands(self.store, "gw_2")
        self.asked: list[tuple[str, bytes]] = []

    def offer(self, *, is_done: bool) -> None:
        async def deed(of: str, proof: bytes) -> bool:
            self.asked.append((of, proof))
            return is_done

        self.other.offer(What.MAKE_WAY, deed)

    async def ask(self, *, s_max: float = S_MAX, gateway: str = "gw_2") -> Outcome:
        return await self.one.ask(gateway, What.MAKE_WAY, WHOSE, s_max=s_max, proof=b"proof")


def play(scenario: Callable[[House], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        house = House()
        reading = [asyncio.create_task(one.run()) for one in (house.one, house.other)]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(S_MAX):
                await scenario(house)
        finally:
            for task in reading:
                await stop_task(task)
        assert house.one._asked == {}
        await asyncio.gather(*house.other._under_way, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


@pytest.mark.parametrize(("is_done", "outcome"), [(True, Outcome.DONE), (False, Outcome.NOT_DONE)])
def test_whoever_can_does_it_and_says_so(*, is_done: bool, outcome: Outcome) -> None:
    async def scenario(house: House) -> None:
        house.offer(is_done=is_done)
        assert await house.ask() is outcome
        assert house.asked == [(WHOSE, b"proof")]

    play(scenario)


@pytest.mark.parametrize("gateway", ["gw_gone", "", "gw 1", "*"])
def test_of_a_gateway_that_is_no_more_nothing_is_awaited(gateway: str) -> None:
    async def scenario(house: House) -> None:
        assert await house.ask(gateway=gateway) is Outcome.NOBODY

    play(scenario)


@pytest.mark.parametrize("gateway", ["", "gw 1", "*", "x" * 300])
def test_of_what_names_no_gateway_the_store_is_not_asked(gateway: str) -> None:
    async def scenario(house: House) -> None:
        house.faults["send"] = Fault.UNAVAILABLE
        assert await house.ask(gateway="gw_2") is Outcome.NO_ANSWER
        assert await house.ask(gateway=gateway) is Outcome.NOBODY

    play(scenario)


def test_one_that_stands_still_is_waited_for_so_long() -> None:
    async def scenario(house: House) -> None:
        may_go_on = asyncio.Event()

        async def deed(_of: str, _proof: bytes) -> bool:
            await may_go_on.wait()
            return True

        house.other.offer(What.MAKE_WAY, deed)
        with capture_logs() as logs:
            assert await house.ask(s_max=0.001) is Outcome.NO_ANSWER
        assert [(log["event"], log["what"]) for log in logs] == [("errand_not_answered", What.MAKE_WAY)]
        may_go_on.set()
        house.offer(is_done=False)
        assert await house.ask() is Outcome.NOT_DONE, "the late answer was to another question"

    play(scenario)


def test_a_store_that_is_away_is_no_answer() -> None:
    async def scenario(house: House) -> None:
        house.faults["send"] = Fault.UNAVAILABLE
        assert await house.ask() is Outcome.NO_ANSWER

    play(scenario)


def test_an_answer_that_cannot_be_sent_is_none() -> None:
    async def scenario(house: House) -> None:
        async def deed(_of: str, _proof: bytes) -> bool:
            house.faults["send"] = Fault.UNAVAILABLE
            return True

        house.other.offer(What.MAKE_WAY, deed)
        assert await house.ask(s_max=0.001) is Outcome.NO_ANSWER

    play(scenario)


def test_a_deed_that_fails_is_a_fault_of_ours_and_of_that_errand_alone() -> None:
    async def scenario(house: House) -> None:
        async def deed(_of: str, _proof: bytes) -> bool:
            raise ValueError

        house.other.offer(What.MAKE_WAY, deed)
        with capture_logs() as logs:
            assert await house.ask(s_max=0.01) is Outcome.NO_ANSWER
        assert ("errand_failed", "error") in {(log["event"], log["log_level"]) for log in logs}
        house.offer(is_done=True)
        assert await house.ask() is Outcome.DONE

    play(scenario)


@pytest.mark.parametrize("letter", [b"", b"\xff", b"\x81\xa4type\xa5Other"])
def test_a_letter_of_another_release_is_dropped(letter: bytes) -> None:
    async def scenario(house: House) -> None:
        house.offer(is_done=True)
        with capture_logs() as logs:
            assert await house.store.send("gw_2", letter)
            assert await house.ask() is Outcome.DONE
        assert [log["event"] for log in logs] == ["letter_unreadable"]

    play(scenario)


def test_only_so_many_are_done_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "UNDER_WAY_MAX", 0)

    async def scenario(house: House) -> None:
        house.offer(is_done=True)
        with capture_logs() as logs:
            assert await house.ask(s_max=0.001) is Outcome.NO_ANSWER
        assert house.asked == []
        assert logs[0]["event"] == "errand_dropped"

    play(scenario)


def test_after_an_outage_letters_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "AWAY_S", 0)

    async def scenario() -> None:
        house = House()
        house.offer(is_done=True)
        house.faults["letters"] = Fault.UNAVAILABLE
        reading = [asyncio.create_task(one.run()) for one in (house.one, house.other)]
        await asyncio.sleep(0)
        assert await house.ask() is Outcome.NOBODY
        del house.faults["letters"]
        while await house.ask() is Outcome.NOBODY:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)
        assert house.asked
        for task in reading:
            await stop_task(task)

    asyncio.run(scenario())
