"""The gateway's end of its two links to one stage worker.

Theory of operation
    Orders go out on the control link, feeds on the media link. As two sockets keep no common order, feeds for a
    stream wait here until the worker has said `Opened`. The client reconnects for ever: a worker that died comes back
    with a higher incarnation, and all that was open at the old one is then gone for certain. A stream that is asked
    for while the worker, or the one behind it, is away is opened when that is back; whoever asked has a deadline.

Rules
* What waits for `Opened` is bounded by `UNOPENED_FEEDS_MAX` per stream; it stands there for about a millisecond,
  or for as long as a worker takes to be restarted.
* The worker is there once it has welcomed both links: what a stream publishes needs the media link.
* A held stream that is cancelled is answered with `Closed`, as the worker would have done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from stages.contracts import Item, Tag
from stages.link import Link, connect
from stages.messages import (
    LINK_VERSION,
    Cancel,
    Closed,
    Feed,
    Frame,
    Hello,
    LinkRole,
    OnwardChanged,
    Open,
    Opened,
    Refused,
    Welcome,
)

UNOPENED_FEEDS_MAX = 256  # the encoder's credit of 2 s in 20 ms pieces, twice over
HELD_OPENS_MAX = 256  # more than one response and one turn of every call
DOWNSTREAM_LOST = "downstream_lost"

_log = structlog.get_logger("duplex.stage")


class StageUnresponsiveError(RuntimeError):
    """A worker did not answer `Open` while far more than a moment's input came in for it."""


@dataclass(frozen=True, slots=True)
class StageCallbacks:
    """Called on the loop. `up(stage, reborn)`: usable again, `reborn` as a new process; `down`: not usable."""

    frame: Callable[[str, Frame], None]
    up: Callable[[str, bool], None]
    down: Callable[[str], None]


class StageClient:
    def __init__(self, stage: str, address: str, gateway: str, callbacks: StageCallbacks) -> None:
        self.stage = stage
        self._address = address
        self._gateway = gateway
        self._callbacks = callbacks
        self._control: Link | None = None
        self._media: Link | None = None
        self._lost = asyncio.Event()
        self._welcomed = asyncio.Event()
        self._incarnation = -1
        self._onward_up = False
        self._usable = asyncio.Event()
        self._welcomes = 0
        self._unopened: dict[str, list[Feed]] = {}
        self._held: dict[str, Open] = {}
        self._asked: dict[str, Open] = {}

    @property
    def ready(self) -> bool:
        """Streams can be opened, through to the last stage behind this one."""
        return self._welcomed.is_set() and not self._lost.is_set() and self._onward_up

    async def until_ready(self) -> None:
        """Return once streams can be opened."""
        await self._usable.wait()

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
                    _log.warning("stage_down", stage=self.stage)
                    self._callbacks.down(self.stage)
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
        self._usable.clear()
        self._asked.clear()
        self._unopened = {key: feeds for key, feeds in self._unopened.items() if key in self._held}

    # ---- frames ----------------------------------------------------------------------------------

    def _frame(self, _: Link, frame: Frame) -> None:
        match frame:
            case Welcome():
                self._welcomes += 1
                if self._welcomes == 2:
                    self._welcome(frame)
                return
            case OnwardChanged(up):
                self._onward_up = up
                self._check_usable()
                return
            case Opened(tag):
                self._asked.pop(tag.key, None)
                for feed in self._unopened.pop(tag.key, []):
                    self._send_media(feed)
            case Refused(tag, code):
                asked = self._asked.pop(tag.key, None)
                if code == DOWNSTREAM_LOST and asked is not None and len(self._held) < HELD_OPENS_MAX:
                    # It was asked for before we had heard of the loss.
                    self._held[tag.key] = asked
                    self._check_usable()
                    return
                self._unopened.pop(tag.key, None)
        self._callbacks.frame(self.stage, frame)

    def _welcome(self, welcome: Welcome) -> None:
        reborn = 0 <= self._incarnation < welcome.incarnation
        self._incarnation = welcome.incarnation
        self._onward_up = welcome.onward_up
        self._welcomed.set()
        _log.info("stage_up", stage=self.stage, incarnation=welcome.incarnation, revision=welcome.revision)
        self._callbacks.up(self.stage, reborn)
        self._check_usable()

    def _check_usable(self) -> None:
        if not self.ready or self._control is None:
            self._usable.clear()
            return
        for key, held in self._held.items():
            self._asked[key] = held
            self._control.send(held)
        self._held.clear()
        self._usable.set()

    def order(self, frame: Frame) -> None:
        """Send on the control link. While that is down, `Open` waits and all else is void with what it was about."""
        match frame:
            case Open(tag):
                self._unopened[tag.key] = []
                if not self.ready:
                    self._hold(frame)
                    return
                self._held.pop(tag.key, None)
                self._asked[tag.key] = frame
            case Cancel(tag):
                self._unopened.pop(tag.key, None)
                self._asked.pop(tag.key, None)
                if self._held.pop(tag.key, None) is not None:
                    closed = Closed(tag, "cancelled", {})
                    asyncio.get_running_loop().call_soon(self._callbacks.frame, self.stage, closed)
                    return
        if self._control is not None:
            self._control.send(frame)

    def _hold(self, frame: Open) -> None:
        if len(self._held) >= HELD_OPENS_MAX:
            raise StageUnresponsiveError(f"the {self.stage} is away, and {HELD_OPENS_MAX} streams wait for it")
        self._held[frame.tag.key] = frame

    def feed(self, tag: Tag, item: Item, units: int = 0) -> None:
        """Send on the media link, after the stream was opened."""
        waiting = self._unopened.get(tag.key)
        feed = Feed(tag, item, units)
        if waiting is None:
            self._send_media(feed)
        elif len(waiting) < UNOPENED_FEEDS_MAX:
            waiting.append(feed)
        else:
            raise StageUnresponsiveError(f"the {self.stage} does not answer")

    def _send_media(self, feed: Feed) -> None:
        if self._media is not None:
            self._media.send(feed)
