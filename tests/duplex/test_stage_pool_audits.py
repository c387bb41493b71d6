"""What a pool asks once something was given back, and after a link was lost; and what it finds in its own books."""

from __future__ import annotations

from pathlib import Path

import pytest

from duplex.stage_pool import StagePool
from stages.edges import GATEWAY
from stages.messages import Audit, Audited, Cancel, Closed, CloseSession, Opened, OpenSession
from stages.pool import Pool
from tests.duplex.pool_bench import S1, TAG, Bench, asked, bench, tag
from tests.stages.link_bench import play

KEY = TAG.key
CLEAN_HERE = Audited(GATEWAY, S1, KEY, {}, {})


def answer(held: dict[str, int], replica: str = "a", stream: str = KEY) -> Audited:
    return Audited(replica, S1, stream, held, {})


async def lost_with_its_links(one: Bench) -> None:
    """`TAG` had begun at a worker that lives on, and is connected again."""
    worker = await one.begun()
    await one.dies(worker)
    assert one.lost == [TAG]


def test_every_replica_is_asked_and_the_pool_answers_for_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path, "a", "b") as one:
            workers = [await one.worker(name) for name in ("a", "b")]
            one.pool.audit(S1, KEY)
            for name, worker in zip("ab", workers, strict=True):
                assert await worker.orders() == [Audit(S1, KEY)]
                worker.says(answer({"blocks": 2}, name))
                await one.told.until("talker", answer({"blocks": 2}, name))
            assert one.heard[0] == CLEAN_HERE

    play(scenario())


def test_a_replica_that_is_away_is_not_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.pool.audit(S1)
            await one.told.until("talker", answer({}, GATEWAY, ""))

    play(scenario())


def test_a_stream_and_a_place_that_are_still_in_the_books_are_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await one.begun()
            for stream in (KEY, ""):
                one.pool.audit(S1, stream)
                await one.told.until("talker", answer({"streams": 1, "places": 1}, GATEWAY, stream))
            one.pool.audit(S1, "resp_9")
            await one.told.until("talker", answer({}, GATEWAY, "resp_9"))

    play(scenario())


def test_a_place_that_was_not_given_back_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.begun()
            monkeypatch.setattr(Pool, "end", lambda pool, work, now_ns: [])
            worker.says(Closed(TAG, "finished", {}))
            await one.told.until("talker", Closed(TAG, "finished", {}))
            one.pool.audit(S1, KEY)
            await one.told.until("talker", answer({"places": 1}, GATEWAY))

    play(scenario())


def test_what_was_lost_is_found_of_a_stream_and_accounted_for_of_a_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await lost_with_its_links(one)
            one.pool.order(CloseSession(S1))
            one.pool.audit(S1, KEY)
            await one.told.until("talker", answer({"lost": 1}, GATEWAY))
            one.pool.audit(S1)
            await one.told.until("talker", answer({}, GATEWAY, ""))

    play(scenario())


# ---- after a link was lost --------------------------------------------------------------------------------------


def test_what_a_worker_has_let_go_of_since_its_links_were_lost_is_given_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await lost_with_its_links(one)
            worker = await one.worker(incarnation=1)
            assert await worker.orders() == [Audit(S1, KEY)]
            assert one.pool.streams == 1, "it may still be held"
            worker.says(answer({}))
            await one.told.until("talker", Closed(TAG, "cancelled", {"link_lost": 1}))
            assert one.pool.streams == 0
            assert not [frame for frame in one.heard if isinstance(frame, Audited)]

    play(scenario())


def test_a_worker_that_still_holds_it_is_asked_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await lost_with_its_links(one)
            worker = await one.worker(incarnation=1)
            for _ in range(2):
                assert await worker.orders() == [Audit(S1, KEY)]
                worker.says(answer({"streams": 1}))
            assert await worker.orders() == [Audit(S1, KEY)]
            assert one.pool.streams == 1
            worker.says(answer({}))
            await one.told.until("talker", Closed(TAG, "cancelled", {"link_lost": 1}))

    play(scenario())


def test_a_process_that_dies_while_it_is_asked_gives_it_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await lost_with_its_links(one)
            worker = await one.worker(incarnation=1)
            assert await worker.orders() == [Audit(S1, KEY)]
            await one.dies(worker)
            worker = await one.worker(incarnation=2)
            await one.told.until("talker", Closed(TAG, "cancelled", {"process_exit": 1}))
            one.pool.order(asked(tag(2)))
            assert await worker.orders(2) == [OpenSession(S1, 5), asked(tag(2))], "there is nothing to ask about"

    play(scenario())


def test_an_answer_about_what_was_not_lost_goes_to_who_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.begun()
            other = tag(2)
            one.pool.order(asked(other))
            one.pool.order(Cancel(other))
            worker.says(Opened(other), Closed(other, "cancelled", {}), answer({}, stream=other.key))
            await one.told.until("talker", answer({}, stream=other.key))

    play(scenario())


def test_of_a_session_that_was_closed_a_worker_may_hold_something_until_it_has_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.begun()
            pool: StagePool = one.pool
            assert not pool.is_leaving(S1)
            pool.order(CloseSession(S1))
            assert pool.is_leaving(S1)
            worker.says(Closed(TAG, "cancelled", {}))
            await one.told.until("talker", Closed(TAG, "cancelled", {}))
            assert not pool.is_leaving(S1)

    play(scenario())
