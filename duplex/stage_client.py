"""The gateway's two links to one stage worker.

Theory of operation
    Orders go out on the control link, feeds on the media link. The client reconnects for ever: a worker that died comes
    back with a higher incarnation, and all that was open at the old one is then gone for certain.

Rules
* `duplex.replica_port` says when the worker is there.
* What is sent while the links are down is void with what it was about: `down` has been told.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from duplex.replica_port import Greeting, ReplicaPort
from stages.link import Link, LinkError, connect
from stages.messages import (
    LINK_VERSION,
    EventPage,
    Feed,
    Frame,
    Hello,
    InwardChanged,
    LinkRole,
    OnwardChanged,
    ReadEvents,
    Welcome,
)

_log = structlog.get_logger("duplex.stage")


@dataclass(frozen=True, slots=True)
class ClientCallbacks:
    """Called on the loop, each with the replica's name. `up`: it has introduced itself, as `incarnation`."""

    frame: Callable[[str, Frame], None]
    up: Callable[[str, int], None]
    down: Callable[[str, int], None]


class StageClient:
    """`replica` listens at `address`; `gateway` is our name."""

    def __init__(self, replica: str, address: str, gateway: str, callbacks: ClientCallbacks) -> None:
        self.replica = replica
        self._address = address
        self._gateway = gateway
        self._callbacks = callbacks
        self._control: Link | None = None
        self._media: Link | None = None
        self._port = ReplicaPort()
        self._lost = asyncio.Event()
        self._retry_ms = 0
        self._revision = ""
        self._questions = itertools.count(1)
        self._answers: dict[int, asyncio.Future[EventPage]] = {}

    @property
    def is_up(self) -> bool:
        return self._port.is_up

    @property
    def incarnation(self) -> int:
        """Of the worker that was there last."""
        return self._port.incarnation

    @property
    def revision(self) -> str:
        """Of its model."""
        return self._revision

    @property
    def onward(self) -> frozenset[str]:
        """The replicas of the next stage that streams can be opened for."""
        return self._port.onward

    @property
    def inward(self) -> frozenset[str]:
        """The replicas of the stages before it whose links it has."""
        return self._port.inward

    async def run(self) -> None:
        """Stay connected until cancelled."""
        try:
            while True:
                await self._connect()
                await self._lost.wait()
                self._drop_links()
                # For a moment, the socket of a dying worker still takes links.
                await asyncio.sleep(self._retry_ms / 1000)
        finally:
            self._drop_links()

    async def _connect(self) -> None:
        self._lost.clear()
        self._retry_ms = 0
        self._media = await self._link("media")
        self._control = await self._link("control")
        if not (self._media.is_up and self._control.is_up):
            self._lost.set()  # either may have been lost before it was ours

    async def _link(self, role: LinkRole) -> Link:
        link = await connect(self._address, lambda: Link(self._frame, self._link_lost))
        link.send(Hello(LINK_VERSION, role, self._gateway))
        return link

    def _link_lost(self, link: Link) -> None:
        # The loss of a link that was dropped by us is told late, when the next ones may be up already.
        if link in (self._control, self._media):
            self._lose()

    def _lose(self) -> None:
        self._drop_links()
        self._lost.set()
        if self._port.lost():
            _log.warning("stage_down", stage=self.replica)
            self._callbacks.down(self.replica, self._port.incarnation)

    def _drop_links(self) -> None:
        for link in (self._control, self._media):
            if link is not None:
                self._retry_ms = max(self._retry_ms, link.retry_ms)
                link.abort()
        self._control = self._media = None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(LinkError(f"{self.replica} was lost before it had answered"))

    # ---- frames ----------------------------------------------------------------------------------

    def _frame(self, link: Link, frame: Frame) -> None:
        if isinstance(frame, Welcome):
            self._welcome(link, frame)
            return
        if isinstance(frame, EventPage):
            self._answered(frame)
            return
        if isinstance(frame, OnwardChanged | InwardChanged):
            self._port.changed(frame)
        self._callbacks.frame(self.replica, frame)

    def _answered(self, page: EventPage) -> None:
        answer = self._answers.get(page.number)
        if answer is not None and not answer.done():
            answer.set_result(page)

    def _welcome(self, link: Link, welcome: Welcome) -> None:
        greeting = self._port.welcomed(welcome, on_control=link is self._control)
        if greeting is Greeting.PAST:
            _log.warning("stage_of_the_past", stage=self.replica, incarnation=welcome.incarnation)
            self._lose()
        elif greeting is Greeting.UP:
            self._revision = welcome.revision
            _log.info("stage_up", stage=self.replica, incarnation=welcome.incarnation, revision=welcome.revision)
            self._callbacks.up(self.replica, welcome.incarnation)

    def order(self, frame: Frame) -> None:
        """Send on the control link."""
        if self._control is not None:
            self._control.send(frame)

    async def read_events(self, before: int | None, session: str, response: str, events_max: int) -> EventPage:
        """A page of the worker's log, see `ReadEvents`. Raises `LinkError` where the worker is away, or lost before it
        has answered; whoever asks bounds the wait."""
        if self._control is None or not self.is_up:
            raise LinkError(f"{self.replica} is not connected")
        number = next(self._questions)
        answer: asyncio.Future[EventPage] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._control.send(ReadEvents(number, before, session, response, events_max))
            return await answer
        finally:
            del self._answers[number]

    def feed(self, feed: Feed) -> None:
        """Send on the media link."""
        if self._media is not None:
            self._media.send(feed)
