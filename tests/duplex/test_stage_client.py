"""The gateway's two links to a worker: what waits, what is sent where, and what becomes of it when the worker goes.

The worker is played frame by frame over real sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from duplex import stage_client
from duplex.stage_client import StageCallbacks, StageClient
from duplex.stage_port import HELD_OPENS_MAX, UNOPENED_FEEDS_MAX, StageUnresponsiveError
from duplex.vad_service import stop_task
from stages import link
from stages.contracts import Clause, Pause, Tag, TalkerOptions
from stages.link import Link, LinkFactory, connect
from stages.messages import (
    LINK_VERSION,
    Cancel,
    Closed,
    EndEpoch,
    Feed,
    Frame,
    Hello,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Refused,
    Welcome,
)
from tests.stages.link_bench import WAIT_S_MAX, End, Listener, play

TAG = Tag("sess_1", 1 << 20, 1, "resp_1")
OPEN = Open(TAG, TalkerOptions(), ("vocoder",))


def tag(number: int) -> Tag:
    return Tag("sess_1", 1 << 20, 1, f"resp_{number}")


def feed(number: int) -> Feed:
    return Feed(TAG, Clause(number, "word"), 4)


@dataclass(slots=True)
class Told:
    """What the client has told its gateway, in order; `waits` is set at each."""

    log: list[tuple[str, object]] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, what: str, about: object) -> None:
        self.log.append((what, about))
        self.told.set()

    async def until(self, what: str, about: object) -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            while (what, about) not in self.log:
                self.told.clear()
                await self.told.wait()


@dataclass(slots=True)
class Worker:
    """Both ends of one connection, at the worker."""

    media: End
    control: End

    def welcome(self, incarnation: int = 1, *, onward_up: bool = True) -> None:
        for end in (self.media, self.control):
            end.link.send(Welcome(LINK_VERSION, "talker", incarnation, "rev", onward_up))

    async def orders(self, count: int) -> list[Frame]:
        return [await self.control.frame() for _ in range(count)]

    async def nothing_more(self, client: StageClient) -> None:
        """What was sent before `mark` has come, and nothing else."""
        mark = EndEpoch("mark", 1)
        client.order(mark)
        assert await self.control.frame() == mark


class Bench:
    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.told = Told()
        self.on_up: Callable[[], None] = lambda: None
        callbacks = StageCallbacks(
            self.told.tell,
            self._up,
            lambda stage: self.told.tell(f"{stage} down", None),
        )
        self.client = StageClient("talker", listener.address, "gw_1", callbacks)

    def _up(self, stage: str, reborn: bool) -> None:
        self.told.tell(f"{stage} up", reborn)
        self.on_up()

    async def worker(self) -> Worker:
        """The next connection of the client."""
        media = await self.listener.accepted()
        assert await media.frame() == Hello(LINK_VERSION, "media", "gw_1")
        control = await self.listener.accepted()
        assert await control.frame() == Hello(LINK_VERSION, "control", "gw_1")
        return Worker(media, control)

    async def ready_worker(self, incarnation: int = 1) -> Worker:
        worker = await self.worker()
        worker.welcome(incarnation)
        async with asyncio.timeout(WAIT_S_MAX):
            await self.client.until_ready()
        return worker


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    async with Listener(f"unix:{folder}/s") as listener:
        one = Bench(listener)
        running = asyncio.create_task(one.client.run())
        try:
            yield one
        finally:
            await stop_task(running)


def test_it_is_ready_once_it_was_welcomed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            ready = [one.client.ready]
            worker.welcome()
            await one.client.until_ready()
            assert [*ready, one.client.ready] == [False, True]
            assert one.told.log == [("talker up", False)]

    play(scenario())


def test_it_is_ready_while_the_stage_behind_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            worker.welcome(onward_up=False)
            await one.told.until("talker up", False)
            assert not one.client.ready
            worker.control.link.send(OnwardChanged(up=True))
            await one.client.until_ready()
            worker.control.link.send(OnwardChanged(up=False))
            worker.control.link.send(Opened(TAG))
            await one.told.until("talker", Opened(TAG))
            assert not one.client.ready

    play(scenario())


def test_orders_go_on_the_control_link_and_feeds_on_the_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.ready_worker()
            one.client.order(OpenSession("sess_1", 1))
            one.client.order(OPEN)
            assert await worker.orders(2) == [OpenSession("sess_1", 1), OPEN]
            worker.control.link.send(Opened(TAG))
            await one.told.until("talker", Opened(TAG))
            one.client.feed(TAG, Clause(0, "word"), 4)
            assert await worker.media.frame() == feed(0)

    play(scenario())


def test_feeds_wait_until_the_stream_is_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.ready_worker()
            one.client.order(OPEN)
            for number in range(3):
                one.client.feed(TAG, Clause(number, "word"), 4)
            assert await worker.orders(1) == [OPEN]
            assert worker.media.frames.empty()
            worker.control.link.send(Opened(TAG))
            await one.told.until("talker", Opened(TAG))
            one.client.feed(TAG, Clause(3, "word"), 4)
            assert [await worker.media.frame() for _ in range(4)] == [feed(number) for number in range(4)]

    play(scenario())


def test_feeds_of_a_refused_or_cancelled_stream_are_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.ready_worker()
            for number in (1, 2):
                one.client.order(Open(tag(number), TalkerOptions()))
                one.client.feed(tag(number), Pause(number))
            one.client.order(Cancel(tag(2)))
            await worker.orders(3)
            worker.control.link.send(Refused(tag(1), "busy", "still leaving"))
            await one.told.until("talker", Refused(tag(1), "busy", "still leaving"))
            for number in (1, 2):
                worker.control.link.send(Opened(tag(number)))
            await one.told.until("talker", Opened(tag(2)))
            one.client.feed(tag(1), Pause(9))
            assert await worker.media.frame() == Feed(tag(1), Pause(9))

    play(scenario())


def test_too_many_feeds_mean_a_worker_that_does_not_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.client.order(OPEN)
            for number in range(UNOPENED_FEEDS_MAX):
                one.client.feed(TAG, Pause(number))
            with pytest.raises(StageUnresponsiveError, match="talker"):
                one.client.feed(TAG, Pause(0))

    play(scenario())


def test_a_stream_asked_for_while_the_worker_is_away_waits_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.client.order(OPEN)
            one.client.feed(TAG, Clause(0, "word"), 4)
            one.client.order(EndEpoch("sess_1", 2))  # void with what it was about
            worker = await one.worker()
            worker.welcome()
            assert await worker.orders(1) == [OPEN]
            worker.control.link.send(Opened(TAG))
            assert await worker.media.frame() == feed(0)
            await worker.nothing_more(one.client)

    play(scenario())


def test_what_is_ordered_on_its_return_goes_before_what_waited(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.client.order(OPEN)
            one.on_up = lambda: one.client.order(OpenSession("sess_1", 1))
            worker = await one.worker()
            worker.welcome()
            assert await worker.orders(2) == [OpenSession("sess_1", 1), OPEN]

    play(scenario())


def test_a_stream_opened_anew_on_its_return_is_opened_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.client.order(OPEN)
            one.client.feed(TAG, Clause(0, "old"), 4)

            def again() -> None:
                one.client.order(OPEN)
                one.client.feed(TAG, Clause(0, "word"), 4)

            one.on_up = again
            worker = await one.worker()
            worker.welcome()
            assert await worker.orders(1) == [OPEN]
            await worker.nothing_more(one.client)
            worker.control.link.send(Opened(TAG))
            assert await worker.media.frame() == feed(0)

    play(scenario())


def test_a_waiting_stream_that_is_cancelled_is_closed_by_us(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.client.order(OPEN)
            one.client.order(Cancel(TAG))
            assert one.told.log == [], "the order has returned before its answer comes"
            await one.told.until("talker", Closed(TAG, "cancelled", {}))
            worker = await one.ready_worker()
            await worker.nothing_more(one.client)

    play(scenario())


def test_waiting_streams_are_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            for number in range(HELD_OPENS_MAX):
                one.client.order(Open(tag(number), TalkerOptions()))
            with pytest.raises(StageUnresponsiveError, match="away"):
                one.client.order(Open(tag(HELD_OPENS_MAX), TalkerOptions()))
            one.client.order(Cancel(tag(0)))
            one.client.order(Open(tag(HELD_OPENS_MAX), TalkerOptions()))

    play(scenario())


@pytest.mark.parametrize(("incarnation", "reborn"), [(1, False), (2, True), (7, True)])
def test_a_higher_incarnation_is_a_new_process(tmp_path: Path, incarnation: int, reborn: bool) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.ready_worker(1)
            await worker.control.abort()
            await one.told.until("talker down", None)
            assert not one.client.ready
            await worker.media.end()
            again = await one.worker()
            again.welcome(incarnation)
            await one.client.until_ready()
            assert one.told.log == [("talker up", False), ("talker down", None), ("talker up", reborn)]

    play(scenario())


@pytest.mark.parametrize("broken", ["media", "control"])
def test_the_loss_of_one_link_is_the_loss_of_both_and_told_once(tmp_path: Path, broken: str) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.ready_worker()
            await (worker.media if broken == "media" else worker.control).abort()
            for end in (worker.media, worker.control):
                await end.end()
            again = await one.ready_worker()
            one.client.order(OPEN)
            assert await again.orders(1) == [OPEN]
            assert [what for what, _ in one.told.log] == ["talker up", "talker down", "talker up"]

    play(scenario())


def test_a_link_that_was_never_welcomed_is_no_loss(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.client.order(OPEN)
            for _ in range(3):  # the socket of a dying worker
                worker = await one.worker()
                await worker.control.abort()
                await worker.media.end()
            worker = await one.ready_worker(2)
            assert await worker.orders(1) == [OPEN]
            assert one.told.log == [("talker up", False)]

    play(scenario())


def test_a_worker_of_an_earlier_incarnation_is_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.ready_worker(2)
            await worker.control.abort()
            await worker.media.end()
            past = await one.worker()
            past.welcome(1)
            await past.control.end()
            await one.ready_worker(2)
            assert one.told.log == [("talker up", False), ("talker down", None), ("talker up", False)]

    play(scenario())


def test_feeds_of_a_stream_that_was_open_are_lost_with_the_worker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.ready_worker()
            one.client.order(OPEN)
            one.client.feed(TAG, Clause(0, "word"), 4)
            await worker.orders(1)
            await worker.control.abort()
            await one.told.until("talker down", None)
            one.client.feed(TAG, Clause(1, "word"), 4)
            again = await one.ready_worker(2)
            await again.nothing_more(one.client)
            assert again.media.frames.empty()

    play(scenario())


def test_a_refusal_for_want_of_the_stage_behind_waits_for_that(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.ready_worker()
            one.client.order(OPEN)
            one.client.feed(TAG, Clause(0, "word"), 4)
            assert await worker.orders(1) == [OPEN]
            for frame in (OnwardChanged(up=False), Refused(TAG, "downstream_lost", "gone"), OnwardChanged(up=True)):
                worker.control.link.send(frame)
            assert await worker.orders(1) == [OPEN]
            worker.control.link.send(Opened(TAG))
            assert await worker.media.frame() == feed(0)
            assert one.told.log == [("talker up", False), ("talker", Opened(TAG))]

    play(scenario())


def test_a_refusal_of_what_was_cancelled_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.ready_worker()
            one.client.order(OPEN)
            one.client.order(Cancel(TAG))
            await worker.orders(2)
            refused = Refused(TAG, "downstream_lost", "gone")
            worker.control.link.send(refused)
            await one.told.until("talker", refused)
            await worker.nothing_more(one.client)

    play(scenario())


def test_it_lets_go_when_it_is_stopped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.ready_worker()
        for end in (worker.media, worker.control):
            await end.end()
        one.client.order(OPEN)
        assert ("talker down", None) not in one.told.log

    play(scenario())


def test_it_is_ready_once_both_links_were_welcomed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            welcome = Welcome(LINK_VERSION, "talker", 1, "rev", onward_up=True)
            worker.control.link.send(welcome)
            worker.control.link.send(Opened(TAG))
            await one.told.until("talker", Opened(TAG))
            assert not one.client.ready
            worker.media.link.send(welcome)
            await one.client.until_ready()

    play(scenario())


def test_a_link_that_is_lost_before_it_is_ours_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The media link is lost while whoever asked for it has yet to be told that it is there."""
    made: list[Link] = []

    async def connect_late(address: str, factory: LinkFactory) -> Link:
        link = await connect(address, factory)
        made.append(link)
        if len(made) == 1:
            async with asyncio.timeout(WAIT_S_MAX):
                while not link._lost:  # noqa: ASYNC110 - nobody else has been told of this link
                    await asyncio.sleep(0)
        return link

    monkeypatch.setattr(stage_client, "connect", connect_late)

    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await (await one.listener.accepted()).abort()
            assert isinstance(await (await one.listener.accepted()).frame(), Hello)
            await one.ready_worker()
            assert one.told.log == [("talker up", False)]

    play(scenario())


def test_a_worker_of_another_version_is_not_called_in_a_tight_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "REFUSED_RETRY_MS", 50)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay_s: float) -> None:
        pauses.append(delay_s)
        await sleep(0)

    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            monkeypatch.setattr(asyncio, "sleep", noted)
            worker.control.link.send(Welcome(1, "talker", 1, "rev", onward_up=True))
            for end in (worker.media, worker.control):
                await end.end()
            await one.ready_worker()
        assert pauses == [0.05]

    play(scenario())
