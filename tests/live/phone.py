"""A telephone on an emulated carrier's line, in real time: says what it is told, keeps what its ear has had.

Rules
* The carrier's core (`loadtest.carriers`) plays: what has left its queue was heard, and nothing else.
* A frame is due every 20 ms on an absolute clock; nothing waits for anything but the socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from loadtest.carriers.asterisk_channel import AsteriskChannel
from loadtest.carriers.effects import Cleared, Complaint, Effect, HungUp, Send
from loadtest.carriers.media_stream import MediaStream
from loadtest.coded_ear import WordHeard, words_heard
from loadtest.playout_model import Heard
from sessions.records import ItemRecord
from tests.live.coded_caller import read_items
from tests.live.service import EVENT_S_MAX, Service

FRAME_NS = 20_000_000
LOUD = 0.3

Core = MediaStream | AsteriskChannel
Connection = ClientConnection | ServerConnection
Say = Callable[[int, int, int], bytes]


@dataclass
class Phone:
    """`say(at, samples, rate)` gives PCM16 of what the caller says at that sample. `keys`: pressed at these ms."""

    core: Core
    say: Say
    keys: Sequence[tuple[int, str]] = ()
    heard: list[bytes] = field(default_factory=list)
    cleared: list[tuple[int, Cleared]] = field(default_factory=list)  # and how much had been heard by then
    complaints: list[Complaint] = field(default_factory=list)
    closed: tuple[int | None, str | None] = (None, None)
    said_ms: int = 0
    sounding: asyncio.Event = field(default_factory=asyncio.Event)  # something was heard

    @property
    def loud_ms(self) -> int:
        """How much of what was heard is no silence."""
        return 20 * sum(any(pcm) for pcm in self.heard)

    @property
    def pcm(self) -> bytes:
        return b"".join(self.heard)

    @property
    def words(self) -> list[WordHeard]:
        return words_heard(self.pcm, self.core.sound.sample_rate)

    async def talk(self, socket: Connection, until: Callable[[], bool], *, s_max: float = EVENT_S_MAX) -> None:
        """Until that is so, or the service has closed; then hang up."""
        await self._do(socket, self.core.begin())
        listening = asyncio.create_task(self._listen(socket))
        began_ns, frames, keys = time.monotonic_ns(), 0, list(self.keys)
        try:
            while not until() and not listening.done():
                now_ns = time.monotonic_ns()
                assert now_ns - began_ns < s_max * 1e9, "what was waited for has not come"
                size, rate = self.core.frame_samples, self.core.sound.sample_rate
                pcm = self.say(frames * size, size, rate)
                while keys and keys[0][0] * 1_000_000 <= now_ns - began_ns:
                    await self._do(socket, self.core.press(keys.pop(0)[1]))
                await self._do(socket, self.core.frame(self.core.sound.encode(pcm), now_ns))
                frames += 1
                self.said_ms += 20
                await asyncio.sleep(max(0, began_ns + frames * FRAME_NS - time.monotonic_ns()) / 1e9)
            await self._do(socket, self.core.hang_up(time.monotonic_ns()))
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, socket: Connection) -> None:
        with suppress(ConnectionClosed):
            while True:
                message = await socket.recv()
                await self._do(socket, self.core.receive(message, time.monotonic_ns()))
        self.closed = socket.close_code, socket.close_reason

    async def _do(self, socket: Connection, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(message):
                    with suppress(ConnectionClosed):
                        await socket.send(message)
                case Heard(pcm=pcm):
                    self.heard.append(pcm)
                    if any(pcm):
                        self.sounding.set()
                case Cleared():
                    self.cleared.append((len(self.pcm) // 2, effect))
                case Complaint():
                    self.complaints.append(effect)
                case HungUp():
                    await socket.close()
                case _:
                    pass


def call(
    url: str,
    phone: Phone,
    until: Callable[[], bool],
    *,
    headers: Mapping[str, str] | None = None,
    s_max: float = EVENT_S_MAX,
) -> Phone:
    """The carrier connects to the service."""
    offered = [Subprotocol("media")] if isinstance(phone.core, AsteriskChannel) else None

    async def run() -> None:
        async with connect(
            url, subprotocols=offered, additional_headers=headers, compression=None, proxy=None
        ) as socket:
            assert socket.subprotocol == ("media" if offered else None)
            await phone.talk(socket, until, s_max=s_max)

    asyncio.run(run())
    return phone


def speaking(*spans_ms: tuple[int, int]) -> Say:
    """A voice in these stretches, and silence between them."""

    def say(at: int, samples: int, rate: int) -> bytes:
        clock = (np.arange(samples) + at) / rate
        is_loud = np.zeros(samples, dtype=bool)
        for begin_ms, end_ms in spans_ms:
            is_loud |= (clock >= begin_ms / 1_000) & (clock < end_ms / 1_000)
        pcm: bytes = (np.sin(2 * np.pi * 300 * clock) * LOUD * 32_767 * is_loud).astype("<i2").tobytes()
        return pcm

    return say


def telling(pcm: bytes, *, at_ms: int) -> Say:
    """PCM16, at the rate of the line, from there on."""

    def say(at: int, samples: int, rate: int) -> bytes:
        begin = 2 * (at - at_ms * rate // 1_000)
        return pcm[max(0, begin) : max(0, begin + 2 * samples)].ljust(2 * samples, b"\0")

    return say


def items_of(service: Service, session: str) -> list[ItemRecord]:
    """What the store has of a session that is over."""
    service.wait_for_calls(0)
    return list(asyncio.run(read_items(service, session)).values())
