"""The gateway's two links to one stage worker.

Theory of operation
    Orders go out on the control link, feeds on the media link. The client reconnects for ever: a worker that died comes
    back with a higher incarnation, and all that was open at the old one is then gone for certain.

Rules
* The worker is there once it has welcomed both links: what a stream publishes needs the media link.
* What is sent while the links are down is void with what it was about: `down` has been told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from stages.link import Link, connect
from stages.messages import LINK_VERSION, Feed, Frame, Hello, LinkRole, OnwardChanged, Welcome

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
        self._lost = asyncio.Event()
        self._welcomed = asyncio.Event()
        self._incarnation = 0
        self._onward: set[str] = set()
        self._welcomes = 0

    @property
    def is_up(self) -> bool:
        return self._welcomed.is_set() and not self._lost.is_set()

    @property
    def onward(self) -> frozenset[str]:
        """The replicas of the next stage that streams can be opened for."""
        return frozenset(self._onward)

    async def run(self) -> None:
        """Stay connected until cancelled."""
        try:
            while True:
                await self._connect()
                await self._lost.wait()
                was_up = self._welcomed.is_set()
                retry_ms = max(link.retry_ms for link in (self._control, self._media) if link is not None)
                self._drop_links()
                if was_up:
                    _log.warning("stage_down", stage=self.replica)
                    self._callbacks.down(self.replica, self._incarnation)
                # For a moment, the socket of a dying worker still takes links.
                await asyncio.sleep(retry_ms / 1000)
        finally:
            self._drop_links()

    async def _connect(self) -> None:
        self._lost.clear()
        self._welcomed.clear()
        self._welcomes = 0
        self._media = await self._link("media")
        self._control = await self._link("control")
        if not (self._media.is_up and self._control.is_up):
            self._lost.set()  # either may have been lost before it was ours
        waits = [asyncio.ensure_future(event.wait()) for event in (self._welcomed, self._lost)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _link(self, role: LinkRole) -> Link:
        link = await connect(self._address, lambda: Link(self._frame, self._link_lost))
        link.send(Hello(LINK_VERSION, role, self._gateway))
        return link

    def _link_lost(self, link: Link) -> None:
        # The loss of a link that was dropped by us is told late, when the next ones may be up already.
        if link in (self._control, self._media):
            self._lost.set()

    def _drop_links(self) -> None:
        for link in (self._control, self._media):
            if link is not None:
                link.abort()
        self._control = self._media = None
        self._onward.clear()

    # ---- frames ----------------------------------------------------------------------------------

    def _frame(self, link: Link, frame: Frame) -> None:
        match frame:
            case Welcome():
                self._welcome(link, frame)
                return
            case OnwardChanged(target, True):
                self._onward.add(target)
            case OnwardChanged(target, False):
                self._onward.discard(target)
        self._callbacks.frame(self.replica, frame)

    def _welcome(self, link: Link, welcome: Welcome) -> None:
        if link is self._control:
            self._onward = set(welcome.onward)  # its changes follow on the same link
        self._welcomes += 1
        if self._welcomes < 2:
            return
        self._incarnation = welcome.incarnation
        self._welcomed.set()
        _log.info("stage_up", stage=self.replica, incarnation=welcome.incarnation, revision=welcome.revision)
        self._callbacks.up(self.replica, welcome.incarnation)

    def order(self, frame: Frame) -> None:
        """Send on the control link."""
        if self._control is not None:
            self._control.send(frame)

    def feed(self, feed: Feed) -> None:
        """Send on the media link."""
        if self._media is not None:
            self._media.send(feed)
