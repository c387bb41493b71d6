"""How long a chunk takes from one stage's process to the next, beside the least that it could take.

Theory of operation
    This process is the producer; it starts a second one, the consumer, in this file too. A chunk is sent through a data
    link as a worker sends it: credit taken before, given back by the consumer. In turn with each goes the same payload
    over its floor, between the same two event loops: for what fits a frame, a bare asyncio Unix socket that carries as
    many bytes as the frame; for 1 MiB, memory that is shared and used again, with an eventfd to wake the reader. Each
    chunk carries the moment at which its sending began (monotonic, one clock for both processes), and the consumer
    takes the difference once it holds the payload as bytes. One response sends a chunk each 187.5 ms, as the vocoder
    does; fifty send as many as they make together.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import percentile
from stages.arena import Arena
from stages.block_table import BlockTable
from stages.contracts import Latents, Tag
from stages.credit import Credit
from stages.exchange import Exchange
from stages.link import Link, connect, listen
from stages.messages import LINK_VERSION, CloseSession, Feed, Frame, Grant, Hello, Welcome, encode

CHUNKS = 300
CHUNKS_SHARE = {1: 0.2, 50: 1.0}  # of these, by how many responses send: one takes its time
WARM_UP = 20
CHUNK_MS, PACE_SPREAD = 187.5, 0.2
WINDOW = 4  # chunks in flight at most
BUSY_MS, BUSY_EVERY_MS = 8, 20
LARGE_BYTES = 1 << 20
SLOTS = 4
SLOT_BYTES = 4096 + LARGE_BYTES

PAYLOADS = (
    ("4 x 16 int64", 4 * 16 * 8),
    ("25 x 16 int64", 25 * 16 * 8),
    ("2,048 float32", 2_048 * 4),
    ("80 ms at 24 kHz, float32", 80 * 24 * 4),
    ("1 MiB", LARGE_BYTES),
)
# What others take, p50, by the floor of the same run: measured on a machine like this one in another run, payload by
# payload, with their wheels unchanged (two processes, 300 items 5 ms apart).
OTHERS = {
    "vLLM-Omni 0.30.0, its connector and receiving loop": (4.4, 4.6, 5.6, 4.2, 7.1),
    "SGLang-Omni 0.1.9, its relay over shared memory": (3.5, 3.9, 4.3, 2.9, 5.5),
}
_STAMP = struct.Struct(">IBQ")  # length of what follows, which payload, sent at
_SLOT_STAMP = struct.Struct("<Q")


def _tag(number: int) -> Tag:
    return Tag("hop", 1, 1, str(number))


# ---- the consumer -------------------------------------------------------------------------------


class _Consumer:
    """Notes, for each payload, the latencies (ns) over our link and over its floor."""

    def __init__(self, memory_fd: int, event_fd: int) -> None:
        self.ours: list[list[int]] = [[] for _ in PAYLOADS]
        self.floor: list[list[int]] = [[] for _ in PAYLOADS]
        self.ended = asyncio.Event()
        self._memory = memoryview(mmap.mmap(memory_fd, SLOTS * SLOT_BYTES, prot=mmap.PROT_READ))
        self._event_fd = event_fd
        self._slot = 0

    def take(self, link: Link, frame: Frame) -> None:
        match frame:
            case Hello():
                link.send(Welcome(LINK_VERSION, "consumer", 1, "", ()))
            case Feed(tag, Latents(start_frame=sent_ns), units):
                self.ours[int(tag.response)].append(time.monotonic_ns() - sent_ns)
                link.send(Grant(tag, units))
            case CloseSession():
                self.ended.set()

    def take_from_memory(self) -> None:
        for _ in range(os.eventfd_read(self._event_fd)):
            start = self._slot * SLOT_BYTES
            (sent_ns,) = _SLOT_STAMP.unpack_from(self._memory, start)
            bytes(self._memory[start + 4096 : start + SLOT_BYTES])
            self.floor[-1].append(time.monotonic_ns() - sent_ns)
            self._slot = (self._slot + 1) % SLOTS


class _BareConsumer(asyncio.Protocol):
    def __init__(self, consumer: _Consumer) -> None:
        self._floor = consumer.floor
        self._buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4 and len(self._buffer) >= 4 + int.from_bytes(self._buffer[:4], "big"):
            size, number, sent_ns = _STAMP.unpack_from(self._buffer)
            bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            self._floor[number].append(time.monotonic_ns() - sent_ns)


async def _be_busy() -> None:
    """Hold up the loop, as a worker's other streams do."""
    while True:
        until_ns = time.monotonic_ns() + BUSY_MS * 1_000_000
        while time.monotonic_ns() < until_ns:
            pass
        await asyncio.sleep((BUSY_EVERY_MS - BUSY_MS) / 1000)


async def _consume(folder: str, memory_fd: int, event_fd: int, *, busy: bool) -> None:
    consumer = _Consumer(memory_fd, event_fd)
    loop = asyncio.get_running_loop()
    loop.add_reader(event_fd, consumer.take_from_memory)
    servers = (
        await loop.create_unix_server(lambda: _BareConsumer(consumer), f"{folder}/bare"),
        await listen(f"unix:{folder}/ours", lambda: Link(consumer.take, lambda _: consumer.ended.set())),
    )
    work = asyncio.create_task(_be_busy()) if busy else None
    await consumer.ended.wait()
    if work is not None:
        work.cancel()
    for server in servers:
        server.close()
    sys.stdout.write(json.dumps([consumer.ours, consumer.floor]))


# ---- the producer -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Producer:
    """`bare` and `link` lead to the consumer; `memory` and `event_fd` are shared with it."""

    link: Link
    bare: asyncio.Transport
    memory: memoryview
    event_fd: int
    credit: Credit = field(default_factory=lambda: Credit(WINDOW))
    room: asyncio.Event = field(default_factory=asyncio.Event)
    slot: int = 0

    async def send(self, number: int, payload: bytes) -> None:
        while not self.credit.take(1):
            self.room.clear()
            await self.room.wait()
        sent_ns = time.monotonic_ns()
        self.link.send(Feed(_tag(number), Latents(sent_ns, 1, payload), 1))

    def send_bare(self, number: int, rest: bytes) -> None:
        self.bare.write(_STAMP.pack(len(rest) + _STAMP.size - 4, number, time.monotonic_ns()) + rest)

    def place(self, payload: bytes) -> None:
        start = self.slot * SLOT_BYTES
        _SLOT_STAMP.pack_into(self.memory, start, time.monotonic_ns())
        self.memory[start + 4096 : start + SLOT_BYTES] = payload
        self.slot = (self.slot + 1) % SLOTS
        os.eventfd_write(self.event_fd, 1)


async def _produce(producer: _Producer, chunks: int, responses: int) -> None:
    pauses = _pauses_s(responses)
    for number, (_, size) in enumerate(PAYLOADS):
        payload = os.urandom(size)
        frame_bytes = len(encode(Feed(_tag(number), Latents(time.monotonic_ns(), 1, payload), 1)))
        rest = bytes(frame_bytes - (_STAMP.size - 4))
        for _ in range(WARM_UP + chunks):
            await producer.send(number, payload)
            await asyncio.sleep(next(pauses))
            if size == LARGE_BYTES:
                producer.place(payload)
            else:
                producer.send_bare(number, rest)
            await asyncio.sleep(next(pauses))
    producer.link.send(CloseSession("hop"))


def _pauses_s(responses: int) -> Iterator[float]:
    """Between a chunk and the one over its floor, and between that and the next."""
    pace = random.Random(1)
    while True:
        yield CHUNK_MS / 2_000 / responses * pace.uniform(1 - PACE_SPREAD, 1 + PACE_SPREAD)


async def hop(say: Callable[[str], None], chunks: int = CHUNKS, *, busy: bool = False) -> bool:
    """Measure `chunks` of each payload; `busy`: the consumer's loop is busy `BUSY_MS` of every `BUSY_EVERY_MS`."""
    while_busy = f", the reader busy {BUSY_MS} of {BUSY_EVERY_MS} ms" if busy else ""
    good = True
    for responses, share in CHUNKS_SHARE.items():
        count = max(1, round(chunks * share))
        say(f"one way, us, {count} chunks each, at the pace of {responses}{while_busy}")
        ours, floor = await _measured(count, responses, busy=busy)
        good &= _report(say, ours, floor, count)
    for name, ratios in OTHERS.items():
        say(f"{name}, ratio p50 of each payload elsewhere: {', '.join(map(str, ratios))}")
    return good


async def _measured(chunks: int, responses: int, *, busy: bool) -> tuple[list[list[int]], list[list[int]]]:
    """Latencies of each payload, ns: over our link, and over its floor."""
    memory_fd, event_fd = os.memfd_create("floor"), os.eventfd(0, os.EFD_NONBLOCK)
    os.ftruncate(memory_fd, SLOTS * SLOT_BYTES)
    with tempfile.TemporaryDirectory(prefix="duplex-") as folder:
        consumer = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.hop", folder, str(memory_fd), str(event_fd), str(int(busy))),
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(memory_fd, event_fd),
            cwd=Path(__file__).parents[1],
        )
        arena = Arena(BlockTable("producer", 1))
        exchange = Exchange(arena)
        with mmap.mmap(memory_fd, 0) as shared, memoryview(shared) as memory:
            await _produce(await _connected(folder, exchange, memory, event_fd), chunks, responses)
            said, _ = await consumer.communicate()
        exchange.close()
    os.close(memory_fd)
    os.close(event_fd)
    ours, floor = json.loads(said)
    return ours, floor


async def _connected(folder: str, exchange: Exchange, memory: memoryview, event_fd: int) -> _Producer:
    welcomed = asyncio.Event()

    def take(_: Link, frame: Frame) -> None:
        match frame:
            case Grant(_, units):
                producer.credit.give_back(units)
                producer.room.set()
            case Welcome():
                welcomed.set()

    link = await connect(f"unix:{folder}/ours", lambda: Link(take, lambda _: None, exchange))
    bare, _ = await asyncio.get_running_loop().create_unix_connection(asyncio.Protocol, f"{folder}/bare")
    producer = _Producer(link, bare, memory, event_fd)
    link.send(Hello(LINK_VERSION, "data", "producer/1"))
    await welcomed.wait()
    return producer


def _report(say: Callable[[str], None], ours: list[list[int]], floor: list[list[int]], chunks: int) -> bool:
    """A line for each payload. False where a chunk was lost."""
    say(f"{'payload':<28}{'p50':>8}{'p95':>8}   {'floor p50':>10}{'p95':>8}   {'ratio p50':>10}{'p95':>6}")
    for (name, _), mine, least in zip(PAYLOADS, ours, floor, strict=True):
        figures = [percentile(one[WARM_UP:], share) / 1000 for one in (mine, least) for share in (0.5, 0.95)]
        ratios = [figures[0] / figures[2], figures[1] / figures[3]]
        p50, p95, floor_p50, floor_p95 = (f"{figure:.0f}" for figure in figures)
        say(f"{name:<28}{p50:>8}{p95:>8}   {floor_p50:>10}{floor_p95:>8}   {ratios[0]:>10.2f}{ratios[1]:>6.2f}")
    return all(len(one) == WARM_UP + chunks for one in (*ours, *floor))


if __name__ == "__main__":
    asyncio.run(_consume(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), busy=sys.argv[4] == "1"))
