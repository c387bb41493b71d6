"""A gateway whose store fails as a call ends, or has forgotten what it had."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from duplex import gateway, log_queue
from duplex.gateway import Admitted
from sessions.events import DurabilitySuspended, Event
from sessions.memory_store import Fault
from sessions.settings import SessionSettings
from tests.duplex.test_call import Client
from tests.duplex.test_gateway import EPOCHS, Bench, play, say, texts


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_queue, "RETRY_MS_MIN", 0)
    monkeypatch.setattr(log_queue, "RETRY_MS_MAX", 0)
    monkeypatch.setattr("duplex.call.CLOSE_FLUSH_NS_MAX", 1)


class Listener(Client):
    """Waits for what the call tells."""

    def __init__(self) -> None:
        super().__init__([])
        self._told = asyncio.Event()

    def tell(self, event: Event) -> None:
        super().tell(event)
        self._told.set()

    async def until_told(self, kind: type[Event]) -> None:
        while not self.times_told(kind):
            self._told.clear()
            await self._told.wait()

    def times_told(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for _, event in self.log)


class Visit:
    """A call that says something while the store is away, and hangs up."""

    def __init__(self, one: Bench) -> None:
        self.one = one
        self.said = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.one.gateway.new_call(SessionSettings()) as self.admitted:
            listener = Listener()
            self.admitted.call.attach(listener)
            self.one.faults.now["append"] = Fault.UNAVAILABLE
            say(self.admitted, "Goodbye.")
            await listener.until_told(DurabilitySuspended)
            self.said.set()


async def resumed_texts(one: Bench, admitted: Admitted) -> list[str]:
    async with one.gateway.resumed_call(admitted.resume_token) as again:
        return texts(again)


def test_the_last_words_of_a_call_wait_for_the_store(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        visit = Visit(one)
        await visit.said.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert not visit.task.done()
        one.faults.now.clear()
        await visit.task
        assert await resumed_texts(one, visit.admitted) == ["Goodbye."]

    play(tmp_path, scenario)


def test_a_shutdown_waits_for_the_store_no_longer_than_for_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "DRAIN_S_MAX", 0)

    async def scenario(one: Bench) -> None:
        one.gateway._room._empty.clear()
        visit = Visit(one)
        await visit.said.wait()
        with capture_logs() as logs:
            await one.gateway.drain()
            await visit.task
        assert [(log["log_level"], log["waiting"]) for log in logs if log["event"] == "checkpoints_lost"] == [
            ("error", 1)
        ]

    play(tmp_path, scenario)


def test_a_client_brings_the_epoch_that_the_store_has_forgotten(tmp_path: Path) -> None:
    async def scenario(one: Bench) -> None:
        async with one.gateway.new_call(SessionSettings()) as first:
            say(first, "One.")
        replica = one.store.moment()
        async with one.gateway.resumed_call(first.resume_token) as second:
            say(second, "Two.")
            epoch = second.call.conversation.epoch + 3
        one.store.go_back(replica)
        async with one.gateway.resumed_call(first.resume_token, epoch=epoch) as third:
            assert (texts(third), third.history_lost) == (["One."], True)
            assert third.call.conversation.epoch == 3 * EPOCHS
        assert 'duplex_store_errors_total{kind="StoreWentBack"} 1.0' in one.metrics()
        async with one.gateway.resumed_call(first.resume_token, epoch=3 * EPOCHS) as fourth:
            assert (fourth.history_lost, fourth.call.conversation.epoch) == (False, 4 * EPOCHS)

    play(tmp_path, scenario)
