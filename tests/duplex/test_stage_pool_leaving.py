"""When a closed session has left its workers, so that its places there are free."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stages.contracts import Tag
from stages.messages import Closed, CloseSession, Frame, Opened, OpenSession, Refused
from tests.duplex.pool_bench import S1, S2, TAG, Bench, Worker, asked, bench, tag
from tests.stages.link_bench import play

OTHER = tag(2)


async def closed_with(one: Bench, *tags: Tag) -> Worker:
    """A worker, at which the session is closed while it has these streams."""
    worker = await one.worker()
    one.pool.order(OpenSession(S1, 5))
    for of in tags:
        one.pool.order(asked(of))
    await worker.orders(1 + len(tags))
    one.pool.order(CloseSession(S1))
    assert await worker.orders() == [CloseSession(S1)]
    return worker


def waiting(one: Bench) -> asyncio.Task[None]:
    return asyncio.create_task(one.pool.until_left(S1))


@pytest.mark.parametrize("answer", [Closed(TAG, "cancelled", {}), Refused(TAG, "busy", "still leaving")], ids=repr)
def test_a_session_has_left_when_all_its_streams_were_answered_for(tmp_path: Path, answer: Frame) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await closed_with(one, TAG, OTHER)
            left = waiting(one)
            worker.says(Opened(TAG), answer)
            await one.told.until("talker", answer)
            assert not left.done()
            worker.says(Closed(OTHER, "cancelled", {}))
            await left

    play(scenario())


def test_who_has_no_stream_has_left_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await closed_with(one)
            await one.pool.until_left(S1)
            await one.pool.until_left(S2)

    play(scenario())


def test_who_was_asked_of_no_worker_holds_no_place(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked())
            one.pool.order(CloseSession(S1))
            await one.pool.until_left(S1)

    play(scenario())


def test_a_worker_that_is_lost_holds_no_place(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await closed_with(one, TAG)
            left = waiting(one)
            await one.dies(worker)
            await left

    play(scenario())


def test_streams_of_who_comes_back_meanwhile_are_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await closed_with(one, TAG)
            one.pool.order(OpenSession(S1, 1 << 21))
            one.pool.order(asked(OTHER))
            await worker.orders(2)
            left = waiting(one)
            worker.says(Closed(OTHER, "finished", {}))
            await one.told.until("talker", Closed(OTHER, "finished", {}))
            assert not left.done()
            one.pool.order(CloseSession(S1))
            worker.says(Closed(TAG, "cancelled", {}))
            await left

    play(scenario())
