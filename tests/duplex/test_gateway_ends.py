"""Calls that end: what is remembered of them until everything has been given back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from duplex.stage_pool import StagePool
from sessions.settings import ResponseSpec, SessionSettings
from stages.contracts import Tag
from stages.messages import (
    Closed,
    CloseSession,
    Frame,
    Opened,
)
from tests.duplex.test_gateway import Bench, play, say, texts

FOLLOWERS = ("talker", "vocoder")


class Silent:
    """Stages that take every order and never say a word by themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.orders: list[tuple[str, Frame]] = []
        monkeypatch.setattr(StagePool, "order", lambda pool, frame: self.orders.append((pool.stage, frame)))

    def closed(self, session: str) -> list[str]:
        return [stage for stage, frame in self.orders if frame == CloseSession(session)]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Silent:
    return Silent(monkeypatch)


class Visit:
    """A call in a task of its own, with a response under way at all stages."""

    def __init__(self, one: Bench) -> None:
        self.one = one
        self._begun, self._leave = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.one.gateway.new_call(SessionSettings()) as self.admitted:
            self._begun.set()
            await self._leave.wait()

    async def begin(self) -> Tag:
        await self._begun.wait()
        call = self.admitted.call
        call.carry_out(call.conversation.create_response(ResponseSpec(), time.monotonic_ns()))
        view = call.conversation.speaking.active
        assert view is not None
        self.tag = Tag(call.session, view.epoch, view.turn, view.id)
        for stage in FOLLOWERS:
            self.one.gateway._frame(stage, Opened(self.tag))
        return self.tag

    def leave(self) -> None:
        self._leave.set()

    async def settle(self) -> None:
        """Until everything has happened that can happen now."""
        for _ in range(50):
            await asyncio.sleep(0)

    def let_go(self, *stages: str) -> None:
        for stage in stages:
            self.one.gateway._frame(stage, Closed(self.tag, "cancelled", {}))


def test_a_call_is_remembered_until_its_responses_have_drained(tmp_path: Path, silent: Silent) -> None:
    async def scenario(one: Bench) -> None:
        visit = Visit(one)
        tag = await visit.begin()
        visit.leave()
        await visit.settle()
        visit.let_go("thinker")  # the first stage, which owes no sound
        await visit.settle()
        assert not visit.task.done()
        assert "duplex_undrained_responses 1.0" in one.metrics()
        assert silent.closed(tag.session) == []
        visit.let_go(*FOLLOWERS)
        await visit.task
        assert sorted(silent.closed(tag.session)) == ["encoder", "talker", "thinker", "vocoder"]
        assert "duplex_undrained_responses 0.0" in one.metrics()
        visit.let_go("thinker")
        assert 'duplex_stale_dropped_total{where="gateway"} 1.0' in one.metrics(), "its record is gone"

    play(tmp_path, scenario)


def test_an_engine_that_stays_silent_holds_a_call_no_longer_than_its_deadlines(tmp_path: Path, silent: Silent) -> None:
    async def scenario(one: Bench) -> None:
        visit = Visit(one)
        tag = await visit.begin()
        visit.leave()
        await visit.settle()
        call = visit.admitted.call
        while (due_ns := call.conversation.next_deadline_ns()) is not None:
            assert not visit.task.done()
            call.pace(due_ns)
        await visit.task
        assert len(silent.closed(tag.session)) == 4
        assert 'duplex_drain_lag_seconds_count{status="orphaned"} 1.0' in one.metrics()

    play(tmp_path, scenario)


def test_a_visit_that_is_cancelled_again_and_again_cleans_up_first(tmp_path: Path, silent: Silent) -> None:
    async def scenario(one: Bench) -> None:
        visit = Visit(one)
        tag = await visit.begin()
        for _ in range(3):
            visit.task.cancel()
            await visit.settle()
            assert not visit.task.done()
        say(visit.admitted, "The last words.")
        visit.let_go("thinker", *FOLLOWERS)
        with pytest.raises(asyncio.CancelledError):
            await visit.task
        assert len(silent.closed(tag.session)) == 4
        async with one.gateway.resumed_call(visit.admitted.resume_token) as again:
            assert texts(again) == ["The last words."]

    play(tmp_path, scenario)


def test_what_a_replaced_call_holds_is_still_given_back_to_it(tmp_path: Path, silent: Silent) -> None:
    async def scenario(one: Bench) -> None:
        visit = Visit(one)
        tag = await visit.begin()
        visit.leave()
        async with one.gateway.resumed_call(visit.admitted.resume_token) as again:
            assert len(silent.closed(tag.session)) == 4, "the stages hear of the new owner after that"
            await visit.settle()
            assert not visit.task.done()
            visit.let_go("thinker", *FOLLOWERS)
            await visit.task
            assert again.call.end_reason is None
            assert 'duplex_drain_lag_seconds_count{status="complete"} 1.0' in one.metrics()
            visit.let_go("thinker")
            assert 'duplex_stale_dropped_total{where="speaking"} 1.0' in one.metrics()
        assert len(silent.closed(tag.session)) == 8

    play(tmp_path, scenario)


@pytest.mark.parametrize("broken", ["append", "renew"])
def test_a_fault_of_ours_in_writing_ends_the_call_and_leaves_nothing(
    tmp_path: Path, silent: Silent, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    async def fault(*_: object) -> None:
        raise RuntimeError("a bug")

    async def scenario(one: Bench) -> None:
        visit = Visit(one)
        tag = await visit.begin()
        with monkeypatch.context() as patched:
            patched.setattr(type(one.gateway.store), broken, fault)
            say(visit.admitted, "The last words.")
            visit.admitted.call.look_after_session()
            await visit.admitted.call.ended.wait()
        assert visit.admitted.call.end_reason == "internal_error"
        visit.leave()
        await visit.task
        assert one.gateway.sessions == ()
        assert len(silent.closed(tag.session)) == 4
        async with one.gateway.resumed_call(visit.admitted.resume_token) as again:
            assert again.call.end_reason is None

    play(tmp_path, scenario)


def test_a_call_that_is_over_gives_its_session_back_to_whoever_comes(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        async with one.gateway.new_call(SessionSettings()) as admitted:
            session = admitted.call.session
            (held,) = await one.store.describe([session])
            assert held.lease_ms > 0
        (held,) = await one.store.describe([session])
        assert held.lease_ms == 0

    play(tmp_path, scenario)
