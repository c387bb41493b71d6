"""When the place of a call is free, and how long anybody waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from duplex import gateway, waiting_room
from duplex.admission import RefusedError
from duplex.stage_pool import StagePool
from sessions.settings import SessionSettings
from tests.duplex.gated_gateway import GatedGateway

S_MAX = 10


def play(
    folder: Path, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[GatedGateway], Coroutine[None, None, None]]
) -> None:
    async def run() -> None:
        async with asyncio.timeout(S_MAX):
            await scenario(GatedGateway(folder, monkeypatch))

    asyncio.run(run())


def test_pipecat_3566_a_drain_waits_for_a_call_that_never_leaves_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "DRAIN_S_MAX", 0.001)

    async def scenario(one: GatedGateway) -> None:
        one.gateway.admit()
        async with one.gateway.new_call(SessionSettings()) as admitted:
            await one.gateway.drain()
            assert admitted.call.end_reason == "service_shutdown"
            assert one.gateway.calls == 1

    play(tmp_path, monkeypatch, scenario)


def test_fastrtc_53_a_place_is_given_on_when_the_stages_have_theirs_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(one: GatedGateway) -> None:
        free, asked = asyncio.Event(), asyncio.Event()

        async def until_left(_pool: StagePool, _session: str) -> None:
            asked.set()
            await free.wait()

        async def call() -> None:
            async with one.gateway.new_call(SessionSettings()):
                pass

        monkeypatch.setattr(StagePool, "until_left", until_left)
        calling = asyncio.create_task(call())
        await asked.wait()
        assert not calling.done()
        free.set()
        await calling
        free.clear()
        monkeypatch.setattr(gateway, "LET_GO_S_MAX", 0.001)
        await call()  # a stage that hangs keeps nobody

    play(tmp_path, monkeypatch, scenario)


def test_who_comes_as_somebody_leaves_waits_for_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one: GatedGateway) -> None:
        await one.gateway.until_room()
        for _ in range(one.gateway.config.calls_max):
            one.gateway.admit()
        waiting = [asyncio.create_task(one.gateway.until_room()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        one.gateway.leave()
        await asyncio.gather(*waiting)
        one.gateway.admit()

    play(tmp_path, monkeypatch, scenario)


def test_nobody_waits_at_the_door_for_long_nor_do_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "ROOM_S_MAX", 0.001)

    async def scenario(one: GatedGateway) -> None:
        for _ in range(one.gateway.config.calls_max):
            one.gateway.admit()
        await one.gateway.until_room()
        with pytest.raises(RefusedError, match="lines are in use"):
            one.gateway.admit()
        monkeypatch.setattr(waiting_room, "ROOM_S_MAX", S_MAX)
        waiting = [asyncio.create_task(one.gateway.until_room()) for _ in range(waiting_room.AT_THE_DOOR_MAX)]
        await asyncio.sleep(0)
        await one.gateway.until_room()
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert one.gateway._room._at_the_door == 0

    play(tmp_path, monkeypatch, scenario)
