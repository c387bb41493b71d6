"""Gateways beside each other: a session that goes over, an operator at the wrong one, one that leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from duplex import claims, operations, waiting_room
from duplex.admission import RefusedError
from duplex.config import Config
from duplex.errands import What
from duplex.gateway import Gateway
from duplex.operations import Operations
from duplex.pipeline import graph_of
from duplex.places import SharedPlaces
from duplex.stage_pool import StagePool
from duplex.tasks import stop_task
from sessions.memory_store import Fault, MemorySessionStore
from sessions.planner import ReplyDefaults
from sessions.settings import SessionSettings
from stages.messages import SessionRefused
from tests.duplex.test_gateway import Deaf, say, texts
from tests.duplex.test_operations import WORDS, Visit

S_MAX = 10


class House:
    """Two gateways on one store that read their letters and its notices. They share `places`."""

    def __init__(self, folder: Path, places: int) -> None:
        self.faults: dict[str, Fault] = {}
        self.store = MemorySessionStore(lambda: 0, faults=self.faults.get)
        self._folder, self._places = folder, places
        self.here, self.there = self._gateway(), self._gateway()
        self.operations, self.operations_there = Operations(self.here), Operations(self.there)

    def _gateway(self) -> Gateway:
        config = Config(engine="scripted", data_dir=self._folder)
        places = SharedPlaces(self._folder, self._places)
        return Gateway(config, graph_of(config), self.store, Deaf(), ReplyDefaults("Hi.", 10), places=places)

    async def run(self, scenario: Callable[[House], Coroutine[None, None, None]]) -> None:
        both = self.here, self.there
        reading = [asyncio.create_task(one.errands.run()) for one in both]
        reading += [asyncio.create_task(one._session_watch.listen()) for one in both]
        await asyncio.sleep(0)
        try:
            await scenario(self)
        finally:
            for task in reading:
                await stop_task(task)


Play = Callable[[Callable[[House], Coroutine[None, None, None]]], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    monkeypatch.setattr(StagePool, "ready", property(lambda _pool: True))

    def run(scenario: Callable[[House], Coroutine[None, None, None]]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(S_MAX):
                await House(tmp_path, 2).run(scenario)

        asyncio.run(limited())

    return run


def test_what_was_said_last_at_another_gateway_is_there_after_a_takeover(play: Play) -> None:
    async def scenario(house: House) -> None:
        visit = Visit(house.there)
        before = await visit.begin()
        for number in range(20):
            say(before, f"Word {number}.")
        async with house.here.resumed_call(before.resume_token) as after:
            assert before.call.end_reason == "session_replaced"
            assert texts(after) == [WORDS, *(f"Word {number}." for number in range(20))]
            assert await visit.task == "session_replaced"
            assert after.call.end_reason is None

    play(scenario)


def test_who_has_no_token_ends_nobodys_call(play: Play) -> None:
    async def scenario(house: House) -> None:
        visit = Visit(house.there)
        owner = await visit.begin()
        with pytest.raises(RefusedError, match="token"):
            async with house.here.resumed_call(f"{owner.call.session}.guess"):
                pass
        assert owner.call.end_reason is None
        owner.call.end("client_closed")
        await visit.task

    play(scenario)


def test_a_takeover_that_nobody_was_asked_about_is_told(play: Play) -> None:
    """As where two take the session over in the same moment: the first of them had not got it when the second asked."""

    async def scenario(house: House) -> None:
        visit = Visit(house.there)
        before = await visit.begin()
        house.faults["describe"] = Fault.UNAVAILABLE
        async with house.here.resumed_call(before.resume_token) as after:
            assert await visit.task == "session_replaced", "though nobody speaks there"
            assert after.call.end_reason is None

    play(scenario)


@pytest.mark.parametrize("fault", [None, Fault.UNAVAILABLE])
def test_a_gateway_that_does_not_answer_is_waited_for_only_so_long(
    play: Play, monkeypatch: pytest.MonkeyPatch, fault: Fault | None
) -> None:
    monkeypatch.setattr(claims, "WAY_S_MAX", 0.001)

    async def scenario(house: House) -> None:
        async def never(_session: str, _digest: bytes) -> bool:
            await asyncio.Event().wait()
            return True

        visit = Visit(house.there)
        before = await visit.begin()
        await before.call.flush()
        house.there.errands.offer(What.MAKE_WAY, never)
        if fault is not None:
            house.faults["describe"] = fault
        async with house.here.resumed_call(before.resume_token) as after:
            assert texts(after) == [WORDS]
            say(before, "Too late.")
            assert await visit.task == "session_replaced"
        house.faults.clear()
        async with house.here.resumed_call(before.resume_token) as again:
            assert texts(again) == [WORDS]

    play(scenario)


def test_an_operator_is_answered_by_the_gateway_that_has_the_call(play: Play) -> None:
    async def scenario(house: House) -> None:
        visit = Visit(house.there)
        session = (await visit.begin()).call.session
        view = await house.operations.end(session)
        assert (view.state, view.owner) == ("stored", None)
        assert visit.task.done() or await visit.task == "ended_by_operator"

    play(scenario)


@pytest.mark.parametrize("drained", [True, False])
def test_what_another_gateway_still_holds_of_a_deleted_session_is_told(
    play: Play, monkeypatch: pytest.MonkeyPatch, *, drained: bool
) -> None:
    if not drained:
        monkeypatch.setattr(operations, "END_S_MAX", 0)

    async def scenario(house: House) -> None:
        visit = Visit(house.there)
        session = (await visit.begin()).call.session
        assert await house.operations.delete(session) is drained
        assert await visit.task == "session_deleted"

    play(scenario)


def test_a_place_that_another_gateway_gives_back_is_taken(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "ROOM_S_MAX", S_MAX)
    monkeypatch.setattr(waiting_room, "LEFT_ELSEWHERE_S", 0.001)

    async def scenario(house: House) -> None:
        house.there.admit()
        house.there.admit()
        with pytest.raises(RefusedError, match="lines are in use"):
            house.here.admit()
        waiting = asyncio.create_task(house.here.until_room())
        await asyncio.sleep(0)
        assert not waiting.done()
        house.there.leave()
        await waiting
        house.here.admit()
        assert (house.here.calls, house.there.calls) == (1, 1)

    play(scenario)


def test_a_spare_place_is_changed_for_one_that_another_gateway_gives_back(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_room, "LEFT_ELSEWHERE_S", 0.001)

    async def scenario(house: House) -> None:
        places, is_changed = house.here._room._places, asyncio.Event()
        change = places.change

        def change_and_tell() -> None:
            change()
            if not places.spare:
                is_changed.set()

        monkeypatch.setattr(places, "change", change_and_tell)
        changing = asyncio.create_task(house.here._room.run())
        house.there.admit()
        house.there.admit()
        for _ in range(2):  # it waits for the next one, too
            house.here.admit(returning=True)
            assert (house.here.calls, places.spare) == (1, 1)
            house.there.leave()
            await is_changed.wait()
            is_changed.clear()
            for gateway in (house.here, house.there):
                with pytest.raises(RefusedError, match="lines are in use"):
                    gateway.admit()
            house.here.leave()
            house.there.admit()
        await stop_task(changing)

    play(scenario)


# ---- one that leaves ----------------------------------------------------------------------------------------


def test_a_gateway_that_leaves_ends_its_calls_and_takes_no_other(play: Play) -> None:
    async def scenario(house: House) -> None:
        numbers: list[int] = []
        house.here.on_calls = lambda: numbers.append(house.here.calls)
        house.here.admit()
        visit = Visit(house.here)
        admitted = await visit.begin()
        leaving = asyncio.create_task(house.here.retire())
        await asyncio.sleep(0)
        with pytest.raises(RefusedError) as refused:
            house.here.admit()
        assert refused.value.code == "service_not_ready"
        house.here._pacer.add(admitted.call)
        pacing = asyncio.create_task(house.here._pacer.run())
        assert await visit.task == "service_shutdown"
        assert not leaving.done(), "its place is still taken"
        house.here.leave()
        await leaving
        await stop_task(pacing)
        assert numbers == [1, 0]
        async with house.there.resumed_call(admitted.resume_token) as after:
            assert texts(after) == [WORDS]

    play(scenario)


# ---- one that stood still -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("befell", "reason"), [("nothing", None), ("taken", "session_replaced"), ("deleted", "session_deleted")]
)
def test_a_call_in_doubt_learns_whose_its_session_is(play: Play, befell: str, reason: str | None) -> None:
    async def scenario(house: House) -> None:
        async with house.here.new_call(SessionSettings()) as admitted:
            call = admitted.call
            if befell == "taken":
                digest = house.here._claims._claims[call.session].token_digest
                await house.store.acquire(call.session, "gw_other", digest, 10_000)
            if befell == "deleted":
                house.here._session_watch._calls_of = lambda _session: ()
                await house.store.delete(call.session)
            call._is_in_doubt = True
            house.here._doubts.ask(call)
            await asyncio.gather(*house.here._doubts.asking)
            assert call.end_reason == reason
            assert call._is_in_doubt is (reason is not None)

    play(scenario)


@pytest.mark.parametrize(
    ("befell", "reason"),
    [
        ("nothing", "encoder_stale_epoch"),
        ("store away", "encoder_stale_epoch"),
        ("taken", "session_replaced"),
        ("taken here", "session_replaced"),
        ("deleted", "session_deleted"),
    ],
)
def test_a_call_that_a_stage_refuses_is_told_whether_its_session_has_gone(
    play: Play,
    befell: str,
    reason: str,
) -> None:
    async def scenario(house: House) -> None:
        async with house.here.new_call(SessionSettings()) as admitted:
            call = admitted.call
            house.here._session_watch._calls_of = lambda _session: ()
            if befell.startswith("taken"):
                digest = house.here._claims._claims[call.session].token_digest
                owner = house.here.name if befell == "taken here" else "gw_other"
                await house.store.acquire(call.session, owner, digest, 10_000)
            if befell == "deleted":
                await house.store.delete(call.session)
            if befell == "store away":
                house.faults["describe"] = Fault.UNAVAILABLE
            with capture_logs() as logs:
                house.here._frame("encoder", SessionRefused(call.session, "stale_epoch", "the session is at 9"))
                assert not call._may_speak(1)
                await asyncio.gather(*house.here._doubts.asking)
            assert call.end_reason == reason
            errors = [log["refusal"] for log in logs if log["log_level"] == "error"]
            assert errors == ([reason] if reason == "encoder_stale_epoch" else [])

    play(scenario)


def test_while_the_store_is_away_a_call_that_stood_still_goes_on(play: Play) -> None:
    async def scenario(house: House) -> None:
        async with house.here.new_call(SessionSettings()) as admitted:
            house.faults["describe"] = Fault.UNAVAILABLE
            admitted.call._is_in_doubt = True
            house.here._doubts.ask(admitted.call)
            await asyncio.gather(*house.here._doubts.asking)
            assert not admitted.call._is_in_doubt
            assert admitted.call.end_reason is None

    play(scenario)
