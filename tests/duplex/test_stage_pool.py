"""A stage of several workers as one: what waits, what goes where, and what becomes of it when a worker goes.

The workers are played frame by frame over real sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from duplex.stage_pool import (
    UNOPENED_FEEDS_MAX,
    PoolCallbacks,
    StagePool,
    StageUnresponsiveError,
)
from duplex.vad_service import stop_task
from stages.contracts import Clause, Pause, PrefillOptions, Tag, TalkerOptions, TextDelta
from stages.messages import (
    LINK_VERSION,
    Cancel,
    Closed,
    CloseSession,
    EndEpoch,
    Feed,
    Frame,
    Grant,
    Hello,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Published,
    Refused,
    Retiring,
    SessionOpened,
    StepDone,
    Welcome,
)
from stages.pool import PoolLimits
from tests.duplex.test_stage_client import Told
from tests.stages.link_bench import WAIT_S_MAX, End, Listener, play

S1, S2 = "sess_1", "sess_2"
TAG = Tag(S1, 1 << 20, 1, "resp_1")
ROOMY = PoolLimits(works_max=16, wait_ns_max=60_000_000_000)


def tag(number: int, session: str = S1) -> Tag:
    return Tag(session, 1 << 20, 1, f"resp_{number}")


def asked(of: Tag = TAG, *edges: str) -> Open:
    return Open(of, TalkerOptions(), edges)


def feed(number: int, of: Tag = TAG) -> Feed:
    return Feed(of, Clause(number, "word"), 4)


class Worker:
    """Both ends of one connection, at the worker."""

    def __init__(self, media: End, control: End) -> None:
        self.media = media
        self.control = control

    def welcome(self, name: str, incarnation: int, onward: tuple[str, ...]) -> None:
        for end in (self.media, self.control):
            end.link.send(Welcome(LINK_VERSION, name, incarnation, "rev", onward))

    async def orders(self, count: int = 1) -> list[Frame]:
        return [await self.control.frame() for _ in range(count)]

    def says(self, *frames: Frame) -> None:
        for frame in frames:
            self.control.link.send(frame)

    async def die(self) -> None:
        for end in (self.control, self.media):
            if not end.lost.is_set():
                await end.abort()


class Bench:
    """The pool of a stage, `talker`, whose streams may hand over to the stage `behind`; nobody plays that one."""

    def __init__(
        self, listeners: dict[str, Listener], limits: PoolLimits, behind: dict[str, StagePool] | None = None
    ) -> None:
        self.listeners = listeners
        self.told = Told()
        callbacks = PoolCallbacks(
            self.told.tell,
            lambda stage, of: self.told.tell(f"{stage} lost", of),
            self._changed,
            lambda stage, replica, up: self.told.tell(f"{stage} {replica}", up),
        )
        addresses = {name: listener.address for name, listener in listeners.items()}
        self.pool = StagePool("talker", addresses, "gw_1", callbacks, limits=limits, onward=behind)

    def _changed(self) -> None:
        self.pool.open_waiting()

    async def worker(self, name: str = "a", incarnation: int = 1, onward: tuple[str, ...] = ()) -> Worker:
        """The next connection to the replica `name`, which introduces itself."""
        media = await self.listeners[name].accepted()
        assert await media.frame() == Hello(LINK_VERSION, "media", "gw_1")
        control = await self.listeners[name].accepted()
        assert await control.frame() == Hello(LINK_VERSION, "control", "gw_1")
        worker = Worker(media, control)
        self.told.log = [one for one in self.told.log if one != (f"talker {name}", True)]
        worker.welcome(name, incarnation, onward)
        await self.told.until(f"talker {name}", True)
        return worker

    async def dies(self, worker: Worker, name: str = "a") -> None:
        await worker.die()
        await self.told.until(f"talker {name}", False)

    @property
    def heard(self) -> list[Frame]:
        """The frames that went on to the calls."""
        return [frame for what, frame in self.told.log if what == "talker" and isinstance(frame, Frame)]

    @property
    def lost(self) -> list[object]:
        return [of for what, of in self.told.log if what == "talker lost"]


@asynccontextmanager
async def bench(
    folder: Path, *names: str, limits: PoolLimits = ROOMY, behind: dict[str, StagePool] | None = None
) -> AsyncIterator[Bench]:
    names = names or ("a",)
    listeners = {name: Listener(f"unix:{folder}/{name}") for name in names}
    async with asyncio.timeout(WAIT_S_MAX):
        for listener in listeners.values():
            await listener.__aenter__()
        one = Bench(listeners, limits, behind)
        running = [asyncio.create_task(client.run()) for client in one.pool.clients]
        try:
            yield one
        finally:
            for task in running:
                await stop_task(task)
            for listener in listeners.values():
                await listener.__aexit__()


class Behind(StagePool):
    """The next stage, of whose replicas those in `up` are there; sessions live at `home`."""

    def __init__(self) -> None:
        nobody = PoolCallbacks(lambda _s, _f: None, lambda _s, _t: None, lambda: None, lambda _s, _r, _u: None)
        super().__init__("vocoder", {}, "gw_1", nobody, limits=ROOMY)
        self.home: str | None = "v1"
        self.up = frozenset({"v1"})

    def replica_of(self, session: str) -> str | None:
        return self.home

    @property
    def replicas_up(self) -> frozenset[str]:
        return self.up


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
            worker = await one.worker()
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked())
            worker.says(Opened(TAG))
            await one.told.until("talker", Opened(TAG))
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


def test_of_a_call_that_is_over_nothing_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            one.pool.order(OpenSession(S1, 5))
            one.pool.order(asked())
            worker.says(Opened(TAG))
            await one.told.until("talker", Opened(TAG))
            await one.dies(worker)
            one.pool.order(CloseSession(S1))
            await one.worker(incarnation=2)
            assert one.heard == [Opened(TAG)]

    play(scenario())


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
