"""One pacer for all calls of the process: a wheel of phases, no timer or task per call.

Theory of operation
    A revolution takes one 20 ms frame and has `PHASES` slots; each call sits in the emptiest one. At each slot the
    pacer lets its calls send what is due; empty slots are passed over. Deadlines are absolute: a late slot is caught up
    with, never skipped, and what is due is decided by the calls' own sample clocks.

Rules
* Each slot lets the loop run, however late it is: a wheel that only catches up would starve the sockets it feeds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

FRAME_NS = 20_000_000
PHASES = 4
SLOT_NS = FRAME_NS // PHASES
CATCH_UP_NS_MAX = 10 * FRAME_NS  # after a longer stall (a suspended machine) the wheel starts afresh


class Paced(Protocol):
    def pace(self, now_ns: int) -> None:
        """Send what is due, and act on deadlines that have passed."""
        ...


class Pacer:
    """`now_ns` is the clock that calls are paced by; `sleep` waits for seconds of it."""

    def __init__(
        self,
        now_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._now_ns = now_ns
        self._sleep = sleep
        self._phases: list[set[Paced]] = [set() for _ in range(PHASES)]
        self._occupied = asyncio.Event()
        self._lateness_ns_max = 0

    def add(self, call: Paced) -> None:
        min(self._phases, key=len).add(call)
        self._occupied.set()

    def remove(self, call: Paced) -> None:
        for phase in self._phases:
            phase.discard(call)

    def take_lateness_ns_max(self) -> int:
        """The worst lateness of a slot since the last call."""
        worst, self._lateness_ns_max = self._lateness_ns_max, 0
        return worst

    async def run(self) -> None:
        """Turn until cancelled; stand still while there are no calls."""
        next_ns, slot = self._now_ns(), 0
        while True:
            if not any(self._phases):
                self._occupied.clear()
                await self._occupied.wait()
                next_ns, slot = self._now_ns(), 0
            while not self._phases[slot]:
                next_ns, slot = next_ns + SLOT_NS, (slot + 1) % PHASES
            await self._sleep(max(0, next_ns - self._now_ns()) / 1e9)
            now_ns = self._now_ns()
            self._lateness_ns_max = max(self._lateness_ns_max, now_ns - next_ns)
            if now_ns - next_ns > CATCH_UP_NS_MAX:
                next_ns = now_ns
            self._pace(slot, now_ns)
            next_ns, slot = next_ns + SLOT_NS, (slot + 1) % PHASES

    def _pace(self, slot: int, now_ns: int) -> None:
        """By itself, so that nothing here holds a call until the next slot."""
        for call in tuple(self._phases[slot]):
            call.pace(now_ns)
