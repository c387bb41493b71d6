"""Ends of links that keep what came, and a transport without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from stages.exchange import Exchange
from stages.link import Link, connect, listen
from stages.messages import LINK_VERSION, Frame, Hello, LinkRole, Welcome

WAIT_S_MAX = 10  # only a failing test waits so long
FRAMES_MAX = 1_000


class MadeLink(Link):
    """Tells when it is made, which for an accepted one is later than its making here."""

    on_made: Callable[[], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.on_made()


class End:
    """One end of a link. Nothing comes after the loss, which comes once."""

    def __init__(self, on_made: Callable[[End], None] = lambda _: None, exchange: Exchange | None = None) -> None:
        self.frames: asyncio.Queue[Frame] = asyncio.Queue(maxsize=FRAMES_MAX)
        self.lost = asyncio.Event()
        self.link = MadeLink(self._on_frame, self._on_lost, exchange)
        self.link.on_made = lambda: on_made(self)

    def _on_frame(self, link: Link, frame: Frame) -> None:
        assert link is self.link
        assert not self.lost.is_set(), "no frame comes after the loss"
        self.frames.put_nowait(frame)

    def _on_lost(self, link: Link) -> None:
        assert link is self.link
        assert not self.lost.is_set(), "a link is lost once"
        self.lost.set()

    async def frame(self) -> Frame:
        """The next frame; raises `TimeoutError` where none comes."""
        async with asyncio.timeout(WAIT_S_MAX):
            return await self.frames.get()

    async def end(self) -> None:
        """Wait for the loss."""
        async with asyncio.timeout(WAIT_S_MAX):
            await self.lost.wait()

    async def connect(self, address: str) -> None:
        """Become the connecting end of a link to `address`."""
        async with asyncio.timeout(WAIT_S_MAX):
            await connect(address, lambda: self.link)

    async def abort(self) -> None:
        """Give up a link that was made, and wait for the loss."""
        self.link.abort()
        await self.end()


class Listener:
    """Accepts links at `address`, in order, until the block ends; then both ends of all are given up.

    `here` and `there`: what the two sides share their arenas by, if they have any.
    """

    def __init__(self, address: str, *, here: Exchange | None = None, there: Exchange | None = None) -> None:
        self.address = address
        self._here, self._there = here, there
        self._waiting: asyncio.Queue[End] = asyncio.Queue(maxsize=FRAMES_MAX)
        self._ends: list[End] = []

    async def __aenter__(self) -> Listener:
        self._server = await listen(self.address, self._accept)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for end in self._ends:
            await end.abort()

    def _accept(self) -> Link:
        end = End(self._waiting.put_nowait, self._there)
        self._ends.append(end)
        return end.link

    async def accepted(self) -> End:
        """The next link that somebody has made."""
        async with asyncio.timeout(WAIT_S_MAX):
            return await self._waiting.get()

    async def pair(self) -> tuple[End, End]:
        """A new link: the connecting end, and the one that was accepted."""
        here = End(exchange=self._here)
        self._ends.append(here)
        await here.connect(self.address)
        return here, await self.accepted()

    async def greeted_pair(self, role: LinkRole = "data") -> tuple[End, End]:
        """A new link whose two ends have greeted each other."""
        here, there = await self.pair()
        here.link.send(Hello(LINK_VERSION, role, "here"))
        assert isinstance(await there.frame(), Hello)
        there.link.send(Welcome(LINK_VERSION, "there", 1, "rev", ()))
        assert isinstance(await here.frame(), Welcome)
        return here, there


class FakeTransport(asyncio.Transport):
    """Keeps what is written. A closed one reports the loss when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.writes = 0
        self.backlog_bytes = 0
        self.closed_by = ""

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not self.closed_by, "nothing is written to a closed link"
        self.written += data
        self.writes += 1

    def get_write_buffer_size(self) -> int:
        return self.backlog_bytes

    def is_closing(self) -> bool:
        return bool(self.closed_by)

    def close(self) -> None:
        self.closed_by = self.closed_by or "close"

    def abort(self) -> None:
        self.closed_by = "abort"


def play(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a test that needs a loop."""
    asyncio.run(scenario)
