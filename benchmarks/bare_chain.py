"""The least that a chunk can cost on its way: the same bytes through as many processes, over bare Unix sockets.

Theory of operation
    Thinker, talker, vocoder and gateway are each a process with an asyncio loop and nothing else. The first sends a
    message for each chunk of each stream when its time has come; the next ones send one of their own size onward for
    each that comes; the last sends as many as a chunk has frames, one every 20 ms, on a socket of each caller.

    A message is its length (four bytes), the number of its stream (two bytes) and padding.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROLES = ("gateway", "vocoder", "talker", "thinker")  # in the order in which they are started
FRAME_S = 0.02
BACKLOG = 128
_HEAD = struct.Struct(">IH")


@dataclass(frozen=True, slots=True)
class Chain:
    """`sizes`: bytes of the message that each role sends. `frames`: how many of them the gateway sends for a chunk."""

    folder: str
    streams: int
    chunk_s: float
    frames: int
    sizes: dict[str, int]


def message(size: int, stream: int) -> bytes:
    """A message of `size` bytes in all."""
    return _HEAD.pack(size - 4, stream) + bytes(size - _HEAD.size)


class Taking(asyncio.Protocol):
    """Calls `on_message` with the stream of each message that has come whole."""

    def __init__(self, on_message: Callable[[int], None]) -> None:
        self._on_message = on_message
        self._buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            size, stream = _HEAD.unpack_from(self._buffer)
            if len(self._buffer) < 4 + size:
                return
            del self._buffer[: 4 + size]
            self._on_message(stream)


class _Callers:
    """The gateway's: frames of a chunk go to the caller of its stream, one after the other."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._loop = asyncio.get_running_loop()
        self._transports: list[asyncio.Transport] = []
        self._frame = message(chain.sizes["gateway"], 0)

    def protocol(self) -> asyncio.Protocol:
        callers = self

        class Caller(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport), "a caller's socket is a stream"
                callers._transports.append(transport)

        return Caller()

    def take(self, stream: int, left: int | None = None) -> None:
        left = self._chain.frames if left is None else left
        self._transports[stream].write(self._frame)
        if left > 1:
            self._loop.call_later(FRAME_S, self.take, stream, left - 1)


async def _be(role: str, chain: Chain) -> None:
    loop = asyncio.get_running_loop()
    send = await (_sending_frames(chain) if role == "gateway" else _sending_onward(role, chain))
    await loop.create_unix_server(lambda: Taking(send), f"{chain.folder}/{role}")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if role == "thinker":
        await asyncio.gather(*(_beat(chain, stream, send) for stream in range(chain.streams)))
    await asyncio.Event().wait()


async def _sending_frames(chain: Chain) -> Callable[[int], None]:
    callers = _Callers(chain)
    loop = asyncio.get_running_loop()
    await loop.create_unix_server(callers.protocol, f"{chain.folder}/callers", backlog=BACKLOG)
    return callers.take


async def _sending_onward(role: str, chain: Chain) -> Callable[[int], None]:
    onward = ROLES[ROLES.index(role) - 1]
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_unix_connection(asyncio.Protocol, f"{chain.folder}/{onward}")
    messages = [message(chain.sizes[role], stream) for stream in range(chain.streams)]
    return lambda stream: transport.write(messages[stream])


async def _beat(chain: Chain, stream: int, send: Callable[[int], None]) -> None:
    """Send in time; the streams are out of step."""
    loop = asyncio.get_running_loop()
    at_s = loop.time() + chain.chunk_s * (1 + stream / chain.streams)
    while True:
        await asyncio.sleep(at_s - loop.time())
        send(stream)
        at_s += chain.chunk_s


async def _called(chain: Chain, on_frame: Callable[[int], None]) -> asyncio.BaseTransport:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_unix_connection(lambda: Taking(on_frame), f"{chain.folder}/callers")
    return transport


@asynccontextmanager
async def running_chain(chain: Chain, on_frame: Callable[[int], None]) -> AsyncIterator[dict[str, int]]:
    """The process ids by role, while this process plays the callers."""
    processes: dict[str, asyncio.subprocess.Process] = {}
    callers: list[asyncio.BaseTransport] = []
    try:
        for role in ROLES:
            processes[role] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.bare_chain", role, json.dumps(asdict(chain))),
                stdout=asyncio.subprocess.PIPE,
                cwd=Path(__file__).parents[1],
            )
            output = processes[role].stdout
            assert output is not None, "standard output is a pipe"
            await output.readline()
            if role == "gateway":
                callers += [await _called(chain, on_frame) for _ in range(chain.streams)]
        yield {role: process.pid for role, process in processes.items()}
    finally:
        for caller in callers:
            caller.close()
        for process in processes.values():
            process.kill()
            await process.wait()


if __name__ == "__main__":
    asyncio.run(_be(sys.argv[1], Chain(**json.loads(sys.argv[2]))))
