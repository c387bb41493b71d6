"""The gateway's two links to a worker: how they are made, what goes on which, and that they are made again.

The worker is played frame by frame over real sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from duplex import stage_client
from duplex.stage_client import ClientCallbacks, StageClient
from duplex.tasks import stop_task
from stages import link
from stages.contracts import Clause, Tag, TalkerOptions
from stages.event_log import EventLogStatistics, Excerpt
from stages.link import Link, LinkError, LinkFactory, connect
from stages.messages import (
    LINK_VERSION,
    EndEpoch,
    EventPage,
    Feed,
    Frame,
    Hello,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    ReadEvents,
    Welcome,
)
from tests.stages.link_bench import WAIT_S_MAX, End, Listener, play

TAG = Tag("sess_1", 1 << 20, 1, "resp_1")
OPEN = Open(TAG, TalkerOptions(), ("vocoder",))
FEED = Feed(TAG, Clause(0, "word"), 4)


@dataclass(slots=True)
class Told:
    """What the client has told its pool, in order."""

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

    def welcome(self, incarnation: int = 1, *, onward: tuple[str, ...] = ("vocoder",)) -> None:
        for end in (self.media, self.control):
            end.link.send(Welcome(LINK_VERSION, "talker", incarnation, "rev", onward))

    async def orders(self, count: int) -> list[Frame]:
        return [await self.control.frame() for _ in range(count)]


class Bench:
    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.told = Told()
        callbacks = ClientCallbacks(
            self.told.tell,
            lambda replica, incarnation: self.told.tell(f"{replica} up", incarnation),
            lambda replica, incarnation: self.told.tell(f"{replica} down", incarnation),
        )
        self.client = StageClient("talker", listener.address, "gw_1", callbacks)

    async def worker(self) -> Worker:
        """The next connection of the client."""
        media = await self.listener.accepted()
        assert await media.frame() == Hello(LINK_VERSION, "media", "gw_1")
        control = await self.listener.accepted()
        assert await control.frame() == Hello(LINK_VERSION, "control", "gw_1")
        return Worker(media, control)

    async def welcomed(self, incarnation: int = 1) -> Worker:
        worker = await self.worker()
        worker.welcome(incarnation)
        await self.told.until("talker up", incarnation)
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


def test_it_is_up_once_it_was_welcomed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            before = one.client.is_up
            worker.welcome(7)
            await one.told.until("talker up", 7)
            assert [before, one.client.is_up] == [False, True]
            assert one.told.log == [("talker up", 7)]

    play(scenario())


def test_it_knows_which_replicas_of_the_next_stage_its_worker_reaches(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            worker.welcome(onward=("vocoder-1",))
            await one.told.until("talker up", 1)
            seen = [one.client.onward]
            for change in (OnwardChanged("vocoder-2", True), OnwardChanged("vocoder-1", False)):
                worker.control.link.send(change)
                await one.told.until("talker", change)
                seen.append(one.client.onward)
            assert [sorted(names) for names in seen] == [["vocoder-1"], ["vocoder-1", "vocoder-2"], ["vocoder-2"]]
            await worker.control.abort()
            await one.told.until("talker down", 1)
            assert one.client.onward == frozenset()

    play(scenario())


def test_orders_go_on_the_control_link_and_feeds_on_the_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.welcomed()
            one.client.order(OpenSession("sess_1", 1))
            one.client.order(OPEN)
            one.client.feed(FEED)
            assert await worker.orders(2) == [OpenSession("sess_1", 1), OPEN]
            assert await worker.media.frame() == FEED
            worker.control.link.send(Opened(TAG))
            await one.told.until("talker", Opened(TAG))

    play(scenario())


@pytest.mark.parametrize("broken", ["media", "control"])
def test_the_loss_of_one_link_is_the_loss_of_both_and_told_once(tmp_path: Path, broken: str) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.welcomed()
            await (worker.media if broken == "media" else worker.control).abort()
            for end in (worker.media, worker.control):
                await end.end()
            again = await one.worker()
            one.client.order(EndEpoch("sess_1", 2))
            again.welcome(2)
            await one.told.until("talker up", 2)
            assert one.told.log == [("talker up", 1), ("talker down", 1), ("talker up", 2)]

    play(scenario())


def test_a_link_that_was_never_welcomed_is_no_loss(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            for _ in range(3):  # the socket of a dying worker
                worker = await one.worker()
                await worker.control.abort()
                await worker.media.end()
            await one.welcomed(2)
            assert one.told.log == [("talker up", 2)]

    play(scenario())


def test_what_is_sent_while_it_is_down_is_void(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.client.order(OPEN)
            one.client.feed(FEED)
            worker = await one.welcomed()
            one.client.order(EndEpoch("mark", 1))
            assert await worker.orders(1) == [EndEpoch("mark", 1)]
            assert worker.media.frames.empty()

    play(scenario())


# ---- the worker's log ---------------------------------------------------------------------------------------

NOTHING = Excerpt((), 0, more=False)


def page(number: int, recorded: int = 0) -> EventPage:
    return EventPage(number, NOTHING, EventLogStatistics(recorded, 0))


def test_a_question_gets_its_own_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.welcomed(7)
            asking = [
                asyncio.create_task(one.client.read_events(before, "sess_1", "resp_1", 9)) for before in (None, 5)
            ]
            assert await worker.orders(2) == [
                ReadEvents(1, None, "sess_1", "resp_1", 9),
                ReadEvents(2, 5, "sess_1", "resp_1", 9),
            ]
            for number, recorded in ((2, 20), (2, 21), (3, 30), (1, 10)):  # one twice, one that nobody asked for
                worker.control.link.send(page(number, recorded))
            assert await asyncio.gather(*asking) == [page(1, 10), page(2, 20)]
            assert (one.client.incarnation, one.client.revision) == (7, "rev")
            assert one.told.log == [("talker up", 7)], "answers are for who asked"
            assert one.client._answers == {}, "who was answered waits no more"

    play(scenario())


def test_who_no_longer_waits_for_an_answer_is_given_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.welcomed()
            asking = asyncio.create_task(one.client.read_events(None, "", "", 9))
            await worker.orders(1)
            worker.control.link.send(page(1))
            asking.cancel()
            await asyncio.wait([asking])
            worker.control.link.send(Opened(TAG))
            await one.told.until("talker", Opened(TAG))
            assert asking.cancelled()
            assert one.client._answers == {}

    play(scenario())


def test_a_question_to_who_is_lost_or_away_fails(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            with pytest.raises(LinkError, match="not connected"):
                await one.client.read_events(None, "", "", 9)
            worker = await one.welcomed()
            asking = [asyncio.create_task(one.client.read_events(None, "", "", 9)) for _ in range(2)]
            await worker.orders(2)
            worker.control.link.send(page(1))
            await worker.control.abort()
            assert await asking[0] == page(1)
            with pytest.raises(LinkError, match="talker was lost"):
                await asking[1]
            assert one.client._answers == {}

    play(scenario())


def test_it_lets_go_when_it_is_stopped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.welcomed()
        for end in (worker.media, worker.control):
            await end.end()
        one.client.order(OPEN)
        assert ("talker down", 1) not in one.told.log

    play(scenario())


def test_it_is_ready_once_both_links_were_welcomed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            worker = await one.worker()
            worker.control.link.send(Welcome(LINK_VERSION, "talker", 1, "rev", ("vocoder-1",)))
            change = OnwardChanged("vocoder-2", up=True)
            worker.control.link.send(change)
            await one.told.until("talker", change)
            before = one.client.is_up
            # The media link was greeted first, before the worker reached anybody; its welcome is read last.
            worker.media.link.send(Welcome(LINK_VERSION, "talker", 1, "rev", ()))
            await one.told.until("talker up", 1)
            assert [before, one.client.is_up] == [False, True]
            assert one.client.onward == {"vocoder-1", "vocoder-2"}

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
            await one.welcomed()
            assert one.told.log == [("talker up", 1)]

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
            worker.control.link.send(Welcome(1, "talker", 1, "rev", ()))
            for end in (worker.media, worker.control):
                await end.end()
            await one.welcomed()
        assert pauses == [0.05]

    play(scenario())
