"""Who comes back while the call that they come back to is still there: which place they get, and which session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from duplex import waiting_room
from duplex.admission import RefusedError
from duplex.gateway import Admitted
from duplex.places import SPARE_PLACES
from duplex.tenants import DEFAULT_TENANT, Permission
from sessions.settings import SessionSettings
from sessions.store import StoredSession, StoreUnavailable
from tests.duplex.gated_gateway import Gate, GatedGateway
from tests.duplex.test_operations import Visit

S_MAX = 10
ANYBODY, ANOTHER = Permission(DEFAULT_TENANT), Permission("another")


Play = Callable[[Callable[[GatedGateway], Coroutine[None, None, None]]], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """On a gateway with one place, where nobody waits for it."""
    monkeypatch.setattr(waiting_room, "ROOM_S_MAX", 0.001)

    def run(scenario: Callable[[GatedGateway], Coroutine[None, None, None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(S_MAX):
                one = GatedGateway(tmp_path, monkeypatch, calls_max=1)
                await scenario(one)
                one.assert_nothing_is_left()

        asyncio.run(bounded())

    return run


async def assert_full(
    one: GatedGateway, *, returning: str | None = None, permission: Permission = ANYBODY, retry_s: int = 15
) -> None:
    with pytest.raises(RefusedError) as refused:
        async with one.gateway.place(permission, returning):
            pass
    assert (refused.value.code, refused.value.retry_after_s) == ("capacity_exceeded", retry_s)


def test_who_comes_back_goes_on_though_all_places_are_taken(play: Play) -> None:
    begun: asyncio.Queue[Admitted] = asyncio.Queue(1)

    async def call_on(one: GatedGateway) -> None:
        async with (
            one.gateway.place(ANYBODY) as mine,
            one.gateway.new_call(SessionSettings(), tenancy=mine) as admitted,
        ):
            begun.put_nowait(admitted)
            await admitted.call.ended.wait()

    async def scenario(one: GatedGateway) -> None:
        calling = asyncio.create_task(call_on(one))
        former = await begun.get()
        session = former.call.session
        async with one.gateway.place(ANYBODY, session) as again:
            await assert_full(one)
            assert former.call.end_reason is None, "it is ended by its token alone"
            async with one.gateway.resumed_call(former.resume_token, tenancy=again) as resumed:
                await calling
                assert (str(former.call.end_reason), resumed.call.session) == ("session_replaced", session)
                assert one.gateway.calls == 1
                await assert_full(one)

    play(scenario)


def test_few_come_back_at_a_time(play: Play) -> None:
    async def scenario(one: GatedGateway) -> None:
        async with (
            one.gateway.place(ANYBODY) as mine,
            one.gateway.new_call(SessionSettings(), tenancy=mine) as admitted,
        ):
            session = admitted.call.session
            places = [one.gateway.place(ANYBODY, session) for _ in range(SPARE_PLACES)]
            for place in places:
                await place.__aenter__()
            await assert_full(one, returning=session, retry_s=1)
            for place in places:
                await place.__aexit__(None, None, None)

    play(scenario)


def test_only_who_comes_back_to_a_call_of_their_tenant_takes_a_spare_place(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(one: GatedGateway) -> None:
        async with one.gateway.new_call(SessionSettings()) as admitted:
            session = admitted.call.session
            one.gateway.admit()
            await assert_full(one, returning="sess_of_nobody")
            await assert_full(one, returning=session, permission=ANOTHER)
            describe = one.store.describe

            async def away(_sessions: object) -> tuple[StoredSession, ...]:
                raise StoreUnavailable("by the test")

            monkeypatch.setattr(one.store, "describe", away)
            await assert_full(one, returning=session)
            monkeypatch.setattr(one.store, "describe", describe)
        await assert_full(one, returning=session)
        one.gateway.leave()
        async with one.gateway.place(ANYBODY, session):
            assert one.gateway.calls == 1, "where there is a place, they need no other"

    play(scenario)


def test_who_comes_back_adds_nothing_to_what_is_behind(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one: GatedGateway) -> None:
        async with one.gateway.new_call(SessionSettings()) as admitted:
            monkeypatch.setattr(one.gateway._inspection, "stage_behind", lambda _ns: "the thinker is behind")
            with pytest.raises(RefusedError, match="behind"):
                async with one.gateway.place(ANYBODY):
                    pass
            async with one.gateway.place(ANYBODY, admitted.call.session):
                assert one.gateway.calls == 1

    play(scenario)


@pytest.mark.parametrize("name", ["", "sess:1", "s" * 129])
def test_what_names_no_session_is_refused(play: Play, name: str) -> None:
    async def scenario(one: GatedGateway) -> None:
        with pytest.raises(RefusedError) as refused:
            async with one.gateway.place(ANYBODY, name):
                pass
        assert (refused.value.code, refused.value.status) == ("session_not_resumable", 400)

    play(scenario)


def test_who_is_refused_leaves_no_session(play: Play) -> None:
    async def scenario(one: GatedGateway) -> None:
        with pytest.raises(RefusedError, match="at once"):
            async with one.gateway.new_call(SessionSettings()) as admitted:
                raise RefusedError("refused", "at once")
        assert await one.store.describe([admitted.call.session]) == ()

    play(scenario)


# ---- two at once --------------------------------------------------------------------------------------------


async def resume_with_swapped_answers(one: GatedGateway, token: str) -> tuple[Visit, Visit]:
    """Two resume; who has the session last hears of it before the other one does."""
    earlier_gate = one.store.gates["acquired"] = Gate()
    earlier_gate.shut()
    earlier = Visit(one.gateway, token, says="")
    await earlier_gate.reached.wait()
    one.store.gates["acquired"] = Gate()
    later = Visit(one.gateway, token, says="")
    await later.begin()
    earlier_gate.open.set()
    return earlier, later


@pytest.mark.parametrize("is_there", [True, False], ids=["a call is there", "nobody has it"])
def test_of_two_that_come_back_at_once_the_last_owner_stays(play: Play, *, is_there: bool) -> None:
    async def scenario(one: GatedGateway) -> None:
        first = Visit(one.gateway)
        admitted = await first.begin()
        if not is_there:
            admitted.call.end("client_closed")
            await first.task
        earlier, later = await resume_with_swapped_answers(one, admitted.resume_token)
        call = (await later.begin()).call
        with pytest.raises(RefusedError) as refused:
            await earlier.task
        assert (refused.value.code, refused.value.retry_after_s) == ("session_replaced", None)
        assert await first.task == ("session_replaced" if is_there else "client_closed")
        await call.flush()
        call.look_after_session()
        await one.store.describe([call.session])
        assert (call.end_reason, one.gateway.call_of(call.session), call.fence) == (None, call, 3)
        call.end("client_closed")
        assert await later.task == "client_closed"

    play(scenario)
