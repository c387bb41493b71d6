"""A stage of several replicas, and of one that hands over to several: who serves whom, and who takes over."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from stages.contracts import Clause, PrefillOptions, Tag
from stages.messages import (
    Cancel,
    Closed,
    CloseSession,
    EndEpoch,
    InwardChanged,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Refused,
    Retiring,
)
from stages.pool import PoolLimits
from tests.duplex.pool_bench import S1, S2, TAG, Behind, asked, bench, feed, tag
from tests.stages.link_bench import play

# ---- several replicas --------------------------------------------------------------------------------------


def test_sessions_spread_and_stay_with_their_replica(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path, "a", "b") as one:
            workers = [await one.worker(name) for name in ("a", "b")]
            for session in (S1, S2):
                one.pool.order(OpenSession(session, 5))
            assert [one.pool.replica_of(session) for session in (S1, S2)] == ["a", "b"]
            for number, session in ((1, S2), (2, S1), (3, S2)):
                one.pool.order(asked(tag(number, session)))
            assert await workers[0].orders(2) == [OpenSession(S1, 5), asked(tag(2, S1))]
            assert await workers[1].orders(3) == [OpenSession(S2, 5), asked(tag(1, S2)), asked(tag(3, S2))]

    play(scenario())


def test_the_death_of_one_is_nothing_to_the_calls_of_the_other_and_its_own_go_on_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path, "a", "b") as one:
            a, b = [await one.worker(name) for name in ("a", "b")]
            for of, worker in ((tag(1), a), (tag(9, S2), b)):
                one.pool.order(OpenSession(of.session, 5))
                one.pool.order(asked(of))
                worker.says(Opened(of))
                await one.told.until("talker", Opened(of))
                await worker.orders(2)
            one.pool.order(asked(tag(2)))
            await a.orders()
            await one.dies(a)
            assert one.lost == [tag(1)]
            assert one.pool.ready
            assert one.pool.replica_of(S1) == "b"
            assert await b.orders(2) == [OpenSession(S1, 5), asked(tag(2))], "what had not begun goes on there"
            await one.worker("a", incarnation=2)
            assert one.heard[-1] == Closed(tag(1), "cancelled", {"process_exit": 1})

    play(scenario())


def test_a_session_whose_replica_is_full_moves_to_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path, "a", "b", limits=PoolLimits(1, 60_000_000_000)) as one:
            a, b = [await one.worker(name) for name in ("a", "b")]
            for session in (S1, S2, "sess_3"):
                one.pool.order(OpenSession(session, 5))
            one.pool.order(asked(tag(1)))
            other = tag(2, "sess_3")
            one.pool.order(asked(other))
            assert (await a.orders(4))[-1] == CloseSession("sess_3")
            assert await b.orders(3) == [OpenSession(S2, 5), OpenSession("sess_3", 5), asked(other)]

    play(scenario())


def test_a_replica_that_retires_loses_its_sessions_when_they_pause(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path, "a", "b") as one:
            a = await one.worker("a")
            reads_ahead = Tag(S2, 5, 1)
            for session in (S1, S2, "idle"):
                one.pool.order(OpenSession(session, 5))
            one.pool.order(asked(tag(1)))
            one.pool.order(Open(reads_ahead, PrefillOptions()))
            await a.orders(5)
            a.says(Opened(tag(1)), Opened(reads_ahead))
            await one.told.until("talker", Opened(reads_ahead))
            b = await one.worker("b")
            a.says(Retiring())
            assert await a.orders(2) == [CloseSession("idle"), Cancel(reads_ahead)]
            assert one.lost == [reads_ahead], "nobody feeds it any more"
            a.says(Closed(reads_ahead, "cancelled", {}))
            assert await a.orders() == [CloseSession(S2)]
            a.says(Closed(tag(1), "finished", {}))
            assert await a.orders() == [CloseSession(S1)]
            one.pool.order(asked(tag(2)))
            assert await b.orders(2) == [OpenSession(S1, 5), asked(tag(2))]

    play(scenario())


# ---- the stage behind --------------------------------------------------------------------------------------


def test_a_stream_hands_over_to_the_replica_where_its_session_lives(tmp_path: Path) -> None:
    async def scenario() -> None:
        behind = Behind()
        behind.up = frozenset({"v1", "v2"})
        async with bench(tmp_path, behind={"vocoder": behind}) as one:
            worker = await one.worker(onward=("v1", "v2"))
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked(TAG, "vocoder"))
            assert (await worker.orders(2))[1] == asked(TAG, "v1")
            behind.home = "v2"
            one.pool.order(asked(tag(2), "vocoder"))
            one.pool.order(asked(tag(3)))
            assert await worker.orders(2) == [asked(tag(2), "v2"), asked(tag(3))]

    play(scenario())


def test_it_waits_until_there_is_one_and_its_worker_reaches_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        behind = Behind()
        behind.home = None
        async with bench(tmp_path, behind={"vocoder": behind}) as one:
            worker = await one.worker()
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked(TAG, "vocoder"))
            behind.home = "v1"
            one.pool.open_waiting()
            one.pool.order(EndEpoch(S1, 6))
            assert await worker.orders(2) == [OpenSession(S1, 5), EndEpoch(S1, 6)]
            worker.says(OnwardChanged("v1", up=True))
            assert await worker.orders() == [asked(TAG, "v1")]
            ready = [one.pool.ready]
            behind.up = frozenset()
            assert [*ready, one.pool.ready] == [True, False]

    play(scenario())


def test_it_waits_as_long_as_the_one_behind_has_lost_the_link(tmp_path: Path) -> None:
    """Which our replica may not have noticed yet: what it sent would be read by nobody."""

    async def scenario() -> None:
        behind = Behind()
        behind.heard = False
        async with bench(tmp_path, behind={"vocoder": behind}) as one:
            worker = await one.worker(onward=("v1",))
            assert not one.pool.ready
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked(TAG, "vocoder"))
            one.pool.order(EndEpoch(S1, 6))
            assert await worker.orders(2) == [OpenSession(S1, 5), EndEpoch(S1, 6)]
            behind.heard = True
            one.pool.open_waiting()
            assert await worker.orders() == [asked(TAG, "v1")]
            assert one.pool.ready

    play(scenario())


def test_a_replica_says_whose_links_it_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker(inward=("t1",))
            heard = [one.pool.hears("a", "t1"), one.pool.hears("a", "t2")]
            worker.says(InwardChanged("t1", up=False), InwardChanged("t2", up=True), Opened(TAG))
            await one.told.until("talker", Opened(TAG))
            assert heard == [True, False]
            assert [one.pool.hears("a", "t1"), one.pool.hears("a", "t2")] == [False, True]

    play(scenario())


def test_a_refusal_for_want_of_the_stage_behind_waits_for_that(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path, behind={"vocoder": Behind()}) as one:
            worker = await one.worker(onward=("v1",))
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked(TAG, "vocoder"))
            one.pool.feed(TAG, Clause(0, "word"), 4)
            await worker.orders(2)
            refused = Refused(TAG, "downstream_lost", "gone")
            worker.says(OnwardChanged("v1", up=False), refused, OnwardChanged("v1", up=True))
            assert await worker.orders() == [asked(TAG, "v1")]
            worker.says(Opened(TAG))
            assert await worker.media.frame() == feed(0)
            assert one.heard == [Opened(TAG)]

    play(scenario())


def test_a_refusal_of_what_was_cancelled_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path, behind={"vocoder": Behind()}) as one:
            worker = await one.worker(onward=("v1",))
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked(TAG, "vocoder"))
            one.pool.order(Cancel(TAG))
            await worker.orders(3)
            refused = Refused(TAG, "downstream_lost", "gone")
            worker.says(refused)
            await one.told.until("talker", refused)

    play(scenario())


def test_another_attempt_is_another_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            again = structs.replace(TAG, attempt=1)
            one.pool.order(OpenSession(S1, 5))
            for of in (TAG, again):
                one.pool.order(asked(of))
            worker.says(Opened(TAG), Closed(TAG, "failed", {}, "stage_lost", ""), Opened(again))
            await one.told.until("talker", Opened(again))
            one.pool.feed(again, Clause(0, "word"), 4)
            assert await worker.media.frame() == feed(0, again)

    play(scenario())
