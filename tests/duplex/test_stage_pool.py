"""A stage of several workers as one: what waits, what goes where, and what becomes of it when a worker goes.

The workers are played frame by frame over real sockets.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from duplex.asked_streams import UNOPENED_FEEDS_MAX
from duplex.stage_pool import StageUnresponsiveError
from stages.contracts import Clause, Pause, Tag, TextDelta
from stages.messages import (
    Cancel,
    Closed,
    CloseSession,
    EndEpoch,
    Feed,
    Grant,
    Opened,
    OpenSession,
    Published,
    Refused,
    SessionOpened,
    StepDone,
)
from stages.pool import PoolLimits
from tests.duplex.pool_bench import S1, S2, TAG, Behind, asked, bench, feed, tag
from tests.stages.link_bench import play

# ---- one replica -------------------------------------------------------------------------------------------


def test_a_session_and_its_streams_are_opened_where_there_is_a_worker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            before = one.pool.ready
            worker = await one.worker()
            await one.pool.until_ready()
            assert [before, one.pool.ready] == [False, True]
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked())
            assert await worker.orders(2) == [OpenSession(S1, 5), asked()]
            worker.says(SessionOpened(S1), Opened(TAG), StepDone(TAG, "clause", 1, 2))
            await one.told.until("talker", StepDone(TAG, "clause", 1, 2))
            assert one.heard == [SessionOpened(S1), Opened(TAG), StepDone(TAG, "clause", 1, 2)]
            one.pool.feed(TAG, Clause(0, "word"), 4)
            assert await worker.media.frame() == feed(0)
            for order in (Grant(TAG, 3), EndEpoch(S1, 6), Cancel(TAG), CloseSession(S1)):
                one.pool.order(order)
                assert await worker.orders() == [order]

    play(scenario())


def test_feeds_wait_until_the_stream_is_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked())
            for number in range(3):
                one.pool.feed(TAG, Clause(number, "word"), 4)
            await worker.orders(2)
            assert worker.media.frames.empty()
            worker.says(Opened(TAG))
            await one.told.until("talker", Opened(TAG))
            one.pool.feed(TAG, Clause(3, "word"), 4)
            assert [await worker.media.frame() for _ in range(4)] == [feed(number) for number in range(4)]

    play(scenario())


def test_output_that_overtakes_the_news_that_its_stream_is_open_is_that_news(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked())
            one.pool.feed(TAG, Clause(0, "word"), 4)
            worker.media.link.send(Published(TAG, TextDelta("hi")))
            assert await worker.media.frame() == feed(0)
            worker.says(Opened(TAG))
            await one.told.until("talker", Opened(TAG))
            assert worker.media.frames.empty()

    play(scenario())


def test_feeds_of_a_refused_or_cancelled_stream_are_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            one.pool.order(OpenSession(S1, 5))
            for number in (1, 2):
                one.pool.order(asked(tag(number)))
                one.pool.feed(tag(number), Pause(number))
            one.pool.order(Cancel(tag(2)))
            await worker.orders(4)
            worker.says(Refused(tag(1), "busy", "still leaving"), Opened(tag(2)))
            await one.told.until("talker", Opened(tag(2)))
            one.pool.feed(tag(1), Pause(9))
            one.pool.order(asked(tag(3)))
            one.pool.feed(tag(3), Pause(3))
            worker.says(Opened(tag(3)))
            assert await worker.media.frame() == Feed(tag(3), Pause(3))

    play(scenario())


def test_too_many_feeds_mean_a_worker_that_does_not_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked())
            for number in range(UNOPENED_FEEDS_MAX):
                one.pool.feed(TAG, Pause(number))
            with pytest.raises(StageUnresponsiveError, match="talker"):
                one.pool.feed(TAG, Pause(0))

    play(scenario())


def test_orders_about_what_is_not_there_are_void(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(EndEpoch(S1, 6))
            one.pool.order(asked())
            one.pool.order(Grant(TAG, 1))
            worker = await one.worker()
            assert await worker.orders(2) == [OpenSession(S1, 6), asked()]
            for order in (Cancel(tag(9)), Grant(tag(9), 1)):
                one.pool.order(order)
            one.pool.feed(tag(9), Pause(0))
            one.pool.order(EndEpoch(S1, 7))
            assert await worker.orders() == [EndEpoch(S1, 7)]
            assert worker.media.frames.empty()

    play(scenario())


def test_a_stream_of_an_earlier_owner_of_the_session_is_another_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            old, new = Tag(S1, 1 << 20, 1), Tag(S1, 2 << 20, 1)
            one.pool.order(OpenSession(S1, 1 << 20))
            one.pool.order(asked(old))
            one.pool.order(CloseSession(S1))
            one.pool.order(OpenSession(S1, 2 << 20))
            one.pool.order(asked(new))
            one.pool.feed(new, Clause(0, "word"), 4)
            worker.says(Opened(old), Closed(old, "cancelled", {}), Opened(new))
            assert await worker.media.frame() == feed(0, new)

    play(scenario())


# ---- a worker that is away ---------------------------------------------------------------------------------


def test_a_stream_asked_for_while_no_worker_is_there_waits_with_its_feeds(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked())
            one.pool.feed(TAG, Clause(0, "word"), 4)
            worker = await one.worker()
            assert await worker.orders(2) == [OpenSession(S1, 5), asked()]
            worker.says(Opened(TAG))
            assert await worker.media.frame() == feed(0)

    play(scenario())


def test_a_waiting_stream_that_is_cancelled_is_closed_by_us(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked())
            one.pool.order(Cancel(TAG))
            assert one.heard == [], "the order has returned before its answer comes"
            await one.told.until("talker", Closed(TAG, "cancelled", {}))
            worker = await one.worker()
            one.pool.order(asked(tag(2)))
            assert await worker.orders(2) == [OpenSession(S1, 5), asked(tag(2))]

    play(scenario())


def test_what_waits_too_long_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path, limits=PoolLimits(16, wait_ns_max=10_000_000)) as one:
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked())
            await one.told.until("talker", Refused(TAG, "stage_away", "no talker has room; try again in 1 s"))
            worker = await one.worker()
            one.pool.order(OpenSession(S2, 7))
            assert await worker.orders() == [OpenSession(S2, 7)], "it is forgotten"

    play(scenario())


def test_a_stream_that_had_begun_is_lost_and_given_back_when_its_process_is_dead_for_certain(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.begun()
            await one.dies(worker)
            assert one.lost == [TAG]
            assert one.pool.streams == 1
            assert not one.pool.ready
            one.pool.feed(TAG, Pause(0))
            worker = await one.worker(incarnation=1)  # its link was down, and no more
            assert one.heard == [Opened(TAG)]
            await one.dies(worker)
            worker = await one.worker(incarnation=2)
            assert one.heard == [Opened(TAG), Closed(TAG, "cancelled", {"process_exit": 1})]
            assert one.pool.streams == 0
            one.pool.order(asked(tag(2)))
            assert one.pool.streams == 1
            assert await worker.orders(2) == [OpenSession(S1, 5), asked(tag(2))]

    play(scenario())


def test_a_stream_that_had_not_begun_is_asked_of_the_successor(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked())
            one.pool.feed(TAG, Clause(0, "word"), 4)
            await worker.orders(2)
            await one.dies(worker)
            assert one.lost == []
            worker = await one.worker(incarnation=2)
            assert await worker.orders(2) == [OpenSession(S1, 5), asked()]
            worker.says(Opened(TAG))
            assert await worker.media.frame() == feed(0)

    play(scenario())


def test_a_stream_that_had_not_answered_though_stages_behind_it_had_is_lost_with_its_worker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked())
            one.pool.order(asked(tag(2)))
            await worker.orders(3)
            one.touched.add(TAG)
            await one.dies(worker)
            assert one.lost == [TAG]
            worker = await one.worker(incarnation=2)
            assert await worker.orders(2) == [OpenSession(S1, 5), asked(tag(2))]
            assert one.heard == [Closed(TAG, "cancelled", {"process_exit": 1})]

    play(scenario())


def test_a_stream_that_waits_is_none_of_the_worker_that_is_lost_before_it_was_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path, behind={"vocoder": Behind()}) as one:
            worker = await one.worker()
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked(TAG, "vocoder"))
            await worker.orders()
            one.touched.add(TAG)
            await one.dies(worker)
            assert one.lost == []
            worker = await one.worker(incarnation=2, onward=("v1",))
            assert await worker.orders(2) == [OpenSession(S1, 5), asked(TAG, "v1")]
            assert one.heard == []

    play(scenario())


def test_what_was_cancelled_and_not_answered_is_lost_with_its_worker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked())
            one.pool.order(Cancel(TAG))
            await worker.orders(3)
            await one.dies(worker)
            assert one.lost == [TAG]
            await one.worker(incarnation=2)
            assert one.heard == [Closed(TAG, "cancelled", {"process_exit": 1})]

    play(scenario())


def test_what_dies_with_its_worker_is_struck_though_its_call_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.begun()
            await one.dies(worker)
            one.pool.order(CloseSession(S1))
            await one.worker(incarnation=2)
            await one.told.until("talker", Closed(TAG, "cancelled", {"process_exit": 1}))
            assert one.heard == [Opened(TAG), Closed(TAG, "cancelled", {"process_exit": 1})]

    play(scenario())


def test_what_no_worker_was_asked_for_is_closed_with_its_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked())
            one.pool.order(CloseSession(S1))
            await one.told.until("talker", Closed(TAG, "cancelled", {}))
            worker = await one.worker()
            assert worker.control.frames.empty(), "nor is any asked later"

    play(scenario())
