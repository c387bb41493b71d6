"""The supervisor's probe link to one process: pings go out, and a process that hangs is found.

Theory of operation
    `stages.liveness` decides; this carries its pings and the answers. The link is made again whenever it breaks. A
    process that is stopped or deadlocked still takes links, since its kernel does so for it, and answers none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from duplex.tasks import stop_task
from stages.link import Link, connect
from stages.liveness import Hung, Liveness
from stages.messages import LINK_VERSION, Frame, Hello, Ping, Pong

NAME = "supervisor"


class Watchdog:
    """Watches one process, from when it is ready to its end. `on_linked` is called when the link is made."""

    def __init__(self, address: str, liveness: Liveness, on_linked: Callable[[], None]) -> None:
        self._address = address
        self._liveness = liveness
        self._on_linked = on_linked
        self._link: Link | None = None
        self._lost = asyncio.Event()
        self._hung: Hung | None = None

    def send(self, frame: Frame) -> None:
        """Send `frame` on the probe link; nothing where that is down."""
        if self._link is not None:
            self._link.send(frame)

    async def until_hung(self) -> Hung:
        """Come back when the process hangs. Raises `LinkError` where no link to it can ever be made."""
        linking = asyncio.create_task(self._keep_linked())
        try:
            while self._hung is None:
                match self._liveness.tick():
                    case Ping() as ping:
                        self.send(ping)
                    case Hung() as hung:
                        return hung
                await asyncio.wait([linking], timeout=self._liveness.interval_ns / 1e9)
                if linking.done():
                    linking.result()
            return self._hung
        finally:
            await stop_task(linking)
            if self._link is not None:
                self._link.abort()

    async def _keep_linked(self) -> None:
        while True:
            self._lost.clear()
            self._link = link = await connect(self._address, lambda: Link(self._frame, self._link_lost))
            link.send(Hello(LINK_VERSION, "probe", NAME))
            self._on_linked()
            await self._lost.wait()
            await asyncio.sleep(link.retry_ms / 1000)

    def _frame(self, _link: Link, frame: Frame) -> None:
        if isinstance(frame, Pong):
            self._hung = self._liveness.pong(frame) or self._hung

    def _link_lost(self, link: Link) -> None:
        if link is self._link:
            self._lost.set()
