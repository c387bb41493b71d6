"""A microphone clock for calls over a real loopback socket: virtual time that waits for the exchange to settle."""

from __future__ import annotations

import asyncio
from typing import Protocol

# Rounds of the event loop in which one frame and its answers cross the loopback; far more than were ever needed.
ROUNDS_MAX = 2_000


class Counted(Protocol):
    """A server that counts what it has sent, and the frames of the microphone that it has handled."""

    @property
    def events_sent(self) -> int: ...

    @property
    def frames_handled(self) -> int: ...


class LockstepClock:
    """Jumps to each deadline once the server has handled all frames and the caller has taken all events.

    The caller reads the clock once at the start, once per frame and once per event; that is how this clock knows.
    `stop_after_frames` cancels the sleeping task, as Ctrl-C does.
    """

    def __init__(self, server: Counted, stop_after_frames: int | None = None, rounds_max: int = ROUNDS_MAX) -> None:
        self._server = server
        self._events_before = server.events_sent
        self._frames_before = server.frames_handled
        self._rounds_max = rounds_max
        self._stop_after_frames = stop_after_frames
        self._now_ns = 1_000_000_000
        self._reads = 0
        self._frames = 0

    def now_ns(self) -> int:
        self._reads += 1
        return self._now_ns

    async def sleep_until(self, deadline_ns: int) -> None:
        for _ in range(self._rounds_max):
            if self._settled():
                break
            await asyncio.sleep(0)
        if self._frames == self._stop_after_frames:
            raise asyncio.CancelledError
        self._frames += 1
        self._now_ns = max(self._now_ns, deadline_ns)

    def _settled(self) -> bool:
        expected_reads = 1 + self._frames + self._server.events_sent - self._events_before
        handled = self._server.frames_handled - self._frames_before
        return handled == self._frames and self._reads == expected_reads
