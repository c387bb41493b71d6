"""A proxy between a store's client and a real server, which answers, loses or delays on purpose.

Theory of operation
    Each connection of the client gets one of its own to the server. Requests are read whole, in the server's protocol
    (RESP2 and RESP3), and passed on one at a time with their replies. `befall` arms a fault for the writes that come:
    scripts and SET. Everything else, such as a connection's greeting, passes.

Rules
* What is armed stays so until `heal`, or until it has befallen `times` writes. `struck` counts.
* It cannot represent: packets that arrive in part, pipelined requests that fail one by one, pushed messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

WRITES = frozenset({b"EVALSHA", b"EVAL", b"SET"})
_SIZED = frozenset(b"$=!")
_LISTS = {ord("*"): 1, ord("~"): 1, ord(">"): 1, ord("%"): 2}


@dataclass(frozen=True, slots=True)
class Says:
    """The server answers with this error, and does nothing."""

    error: str


@dataclass(frozen=True, slots=True)
class BreaksBefore:
    """The connection is gone before the request was read."""


@dataclass(frozen=True, slots=True)
class BreaksAfter:
    """It is done, and the connection is gone before the reply."""


@dataclass(frozen=True, slots=True)
class Silence:
    """The request is lost, and the connection stands."""


@dataclass(frozen=True, slots=True)
class Late:
    """It is done, and the reply comes once `FaultProxy.heal` is called."""


Fault = Says | BreaksBefore | BreaksAfter | Silence | Late


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close it, and come back when that is done."""
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def read_value(reader: asyncio.StreamReader) -> bytes:
    """One value of RESP, as it came. Raises IncompleteReadError where the peer ends."""
    line = await reader.readuntil(b"\r\n")
    if line[0] in _SIZED and (size := int(line[1:])) >= 0:
        return line + await reader.readexactly(size + 2)
    count = max(0, int(line[1:])) * _LISTS[line[0]] if line[0] in _LISTS else 0
    return line + b"".join([await read_value(reader) for _ in range(count)])


def command_of(request: bytes) -> bytes:
    """The name of a request's command, in capitals."""
    return request.split(b"\r\n", 3)[2].upper()


class FaultProxy:
    """Listens at `path` for clients of the server whose socket is `server`."""

    def __init__(self, server: Path, path: Path) -> None:
        self.struck = 0
        self._server = server
        self._path = path
        self._fault: Fault | None = None
        self._times: int | None = None
        self._healed = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    def befall(self, fault: Fault, times: int | None = None) -> None:
        """From now on `fault` befalls each write; `times`: so many of them."""
        self._fault, self._times = fault, times
        self._healed.clear()

    def heal(self) -> None:
        self._fault = self._times = None
        self._healed.set()

    def lead_to(self, server: Path) -> None:
        """New connections go to another server, as they do after a fail-over."""
        self._server = server

    async def come(self) -> None:
        """Accept connections."""
        self._listener = await asyncio.start_unix_server(self._serve, self._path)

    async def go_away(self) -> None:
        """Refuse connections, and break those that stand."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.close()
        self._path.unlink()
        for client in self._clients.values():
            client.transport.abort()
        self._healed.set()
        await asyncio.gather(*self._clients)
        await listener.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = writer
        behind, onward = await asyncio.open_unix_connection(self._server)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._pass_on(reader, writer, behind, onward)
        del self._clients[task]
        await closed(onward)
        await closed(writer)

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        behind: asyncio.StreamReader,
        onward: asyncio.StreamWriter,
    ) -> None:
        while True:
            request = await read_value(reader)
            fault = self._next_fault(command_of(request))
            if isinstance(fault, BreaksBefore):
                return
            if isinstance(fault, Silence):
                continue
            if isinstance(fault, Says):
                reply = f"-{fault.error}\r\n".encode()
            else:
                onward.write(request)
                reply = await read_value(behind)
            if isinstance(fault, BreaksAfter):
                return
            if isinstance(fault, Late):
                await self._healed.wait()
            writer.write(reply)

    def _next_fault(self, command: bytes) -> Fault | None:
        if self._fault is None or command not in WRITES:
            return None
        fault = self._fault
        self.struck += 1
        if self._times is not None:
            self._times -= 1
            if not self._times:
                self._fault = None
        return fault


@asynccontextmanager
async def fault_proxy(server: Path, path: Path) -> AsyncIterator[FaultProxy]:
    """One that listens meanwhile."""
    proxy = FaultProxy(server, path)
    await proxy.come()
    try:
        yield proxy
    finally:
        await proxy.go_away()
