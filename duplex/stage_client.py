"""The gateway's end of its two links to one stage worker.

Rules
* All decisions are in `duplex.stage_port`; this file carries its frames, and reconnects for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from duplex.stage_port import Down, DropLinks, Effect, SendControl, SendMedia, StagePort, Tell, TellLater, Up
from stages.contracts import Item, Tag
from stages.link import Link, connect
from stages.messages import LINK_VERSION, Frame, Hello, LinkRole, Welcome

_log = structlog.get_logger("duplex.stage")


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
        self._port = StagePort(stage)
        self._control: Link | None = None
        self._media: Link | None = None
        self._retry_ms = 0
        self._lost = asyncio.Event()
        self._usable = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Streams can be opened, through to the last stage behind this one."""
        return self._port.ready

    async def until_ready(self) -> None:
        """Return once streams can be opened."""
        await self._usable.wait()

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
            self._drop_links()
            self._lost.set()
            self._carry_out(self._port.lost())

    def _drop_links(self) -> None:
        for link in (self._control, self._media):
            if link is not None:
                self._retry_ms = max(self._retry_ms, link.retry_ms)
                link.abort()
        self._control = self._media = None

    # ---- frames ----------------------------------------------------------------------------------

    def _frame(self, _: Link, frame: Frame) -> None:
        if isinstance(frame, Welcome):
            _log.info("stage_welcomes", stage=self.stage, incarnation=frame.incarnation, revision=frame.revision)
            self._carry_out(self._port.welcomed(frame))
        else:
            self._carry_out(self._port.frame(frame))

    def order(self, frame: Frame) -> None:
        """Send on the control link. Raises `StageUnresponsiveError` where too many streams wait for the worker."""
        self._carry_out(self._port.order(frame))

    def feed(self, tag: Tag, item: Item, units: int = 0) -> None:
        """Send on the media link, after the stream was opened. Raises `StageUnresponsiveError`."""
        self._carry_out(self._port.feed(tag, item, units))

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendControl(frame):
                    self._send(self._control, frame)
                case SendMedia(frame):
                    self._send(self._media, frame)
                case Tell(frame):
                    self._callbacks.frame(self.stage, frame)
                case TellLater(frame):
                    asyncio.get_running_loop().call_soon(self._callbacks.frame, self.stage, frame)
                case Up(reborn):
                    self._callbacks.up(self.stage, reborn)
                    self._carry_out(self._port.released())
                case Down():
                    _log.warning("stage_down", stage=self.stage)
                    self._callbacks.down(self.stage)
                case DropLinks():
                    self._drop_links()
                    self._lost.set()
        if self.ready:
            self._usable.set()
        else:
            self._usable.clear()

    @staticmethod
    def _send(link: Link | None, frame: Frame) -> None:
        if link is not None:
            link.send(frame)
