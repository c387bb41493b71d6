"""Notices and leases: a call ends when its session is gone, and nobody's lease runs out while they are silent."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine

import pytest
from structlog.testing import capture_logs

from duplex import session_watch
from duplex.session_watch import SessionWatch
from duplex.tasks import stop_task
from sessions.memory_store import Fault, MemorySessionStore
from sessions.store import Notice, NoticeKind

S_MAX = 10


class FakeCall:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.ended = asyncio.Event()
        self.looked_after = 0
        self.looked_after_now = asyncio.Event()

    def end(self, reason: str) -> None:
        self.reasons.append(reason)
        self.ended.set()

    def look_after_session(self) -> None:
        self.looked_after += 1
        self.looked_after_now.set()


class Bench:
    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.store = MemorySessionStore(lambda: 0, faults=lambda _operation: self.fault)
        self.calls = {"sess_1": [FakeCall(), FakeCall()], "sess_2": [FakeCall()]}
        self.deleted: list[str] = []
        self.watch = SessionWatch(
            self.store,
            lambda session: self.calls.get(session, []),
            lambda: tuple(self.calls),
            [self.deleted.append],
        )


def play(scenario: Callable[[Bench], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(S_MAX):
            await scenario(Bench())

    asyncio.run(run())


def test_a_notice_ends_all_calls_of_its_session_and_no_other() -> None:
    async def scenario(one: Bench) -> None:
        listening = asyncio.create_task(one.watch.listen())
        former, present = one.calls["sess_1"]
        await present.looked_after_now.wait()
        await one.store.notify(Notice(NoticeKind.END, "sess_absent"))
        await one.store.notify(Notice(NoticeKind.END, "sess_1"))
        await one.store.delete("sess_2")
        await one.calls["sess_2"][0].ended.wait()
        assert (former.reasons, present.reasons) == (["ended_by_operator"], ["ended_by_operator"])
        assert one.calls["sess_2"][0].reasons == ["session_deleted"]
        assert one.deleted == ["sess_2"]
        await stop_task(listening)

    play(scenario)


def test_who_hears_of_a_takeover_asks_whether_the_session_is_still_its_own() -> None:
    async def scenario(one: Bench) -> None:
        listening = asyncio.create_task(one.watch.listen())
        former, present = one.calls["sess_1"]
        await present.looked_after_now.wait()
        present.looked_after_now.clear()
        await one.store.notify(Notice(NoticeKind.TAKEN, "sess_absent"))
        await one.store.notify(Notice(NoticeKind.TAKEN, "sess_1"))
        await present.looked_after_now.wait()
        assert (former.looked_after, present.looked_after) == (0, 2)
        assert one.calls["sess_2"][0].looked_after == 1, "as it was when the watch began to listen"
        assert present.reasons == []
        await stop_task(listening)

    play(scenario)


def test_whoever_could_not_listen_asks_for_all_and_complains_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_watch, "AWAY_S", 0)

    async def scenario(one: Bench) -> None:
        one.fault = Fault.UNAVAILABLE
        with capture_logs() as logs:
            listening = asyncio.create_task(one.watch.listen())
            for _ in range(20):
                await asyncio.sleep(0)
            assert one.calls["sess_1"][1].looked_after == 0
            one.fault = None
            await one.calls["sess_2"][0].looked_after_now.wait()
        assert [log["event"] for log in logs] == ["notices_lost"]
        assert [call.looked_after for call in one.calls["sess_1"]] == [0, 1], "a former call owns nothing"
        await stop_task(listening)

    play(scenario)


def test_every_lease_is_renewed_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_watch, "RENEWAL_S", 0)

    async def scenario(one: Bench) -> None:
        renewing = asyncio.create_task(one.watch.renew())
        for _ in range(3):
            for session in ("sess_1", "sess_2"):
                call = one.calls[session][-1]
                await call.looked_after_now.wait()
                call.looked_after_now.clear()
        calls = one.calls
        one.calls = {}
        for _ in range(10):
            await asyncio.sleep(0)
        one.calls = calls
        calls["sess_1"][-1].looked_after_now.clear()
        await calls["sess_1"][-1].looked_after_now.wait()
        await stop_task(renewing)

    play(scenario)


def test_a_call_that_has_ended_is_held_by_nobody_while_others_are_looked_after() -> None:
    async def scenario(one: Bench) -> None:
        renewing = asyncio.create_task(one.watch.renew())
        await one.calls["sess_1"][-1].looked_after_now.wait()
        gone = [weakref.ref(call) for calls in one.calls.values() for call in calls]
        one.calls.clear()
        assert [ref() for ref in gone] == [None] * 3
        await stop_task(renewing)

    play(scenario)
