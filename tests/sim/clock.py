"""Virtual time, and links on it: everything that happens in a simulated world happens by this queue.

Rules
* What is due at the same moment happens in the order in which it was asked for: a seed replays exactly.
* A wire keeps the order of what is sent on it, delays each frame by chance, and loses what is under way when it is cut.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

from stages.messages import Frame

MS = 1_000_000
EVENTS_MAX = 400_000  # a minute of a busy call takes a tenth of that; more means that something goes in circles


class LivelockError(AssertionError):
    """The world never comes to rest."""


class Clock:
    """`random` is the world's only source of chance."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ns = 1_000 * MS
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._asked = 0

    def after(self, delay_ms: float, call: Callable[[], None]) -> None:
        self.at(self.now_ns + int(delay_ms * MS), call)

    def at(self, due_ns: int, call: Callable[[], None]) -> None:
        self._asked += 1
        if self._asked > EVENTS_MAX:
            raise LivelockError(f"{EVENTS_MAX} events")
        heapq.heappush(self._queue, (max(due_ns, self.now_ns), self._asked, call))

    def run_until(self, end_ns: int, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let things happen until `end_ns`, or until `is_over`."""
        while self._queue and self._queue[0][0] <= end_ns and not is_over():
            self.now_ns, _, call = heapq.heappop(self._queue)
            call()
        if not is_over():
            self.now_ns = max(self.now_ns, end_ns)


class Wire:
    """One direction of a link."""

    def __init__(self, clock: Clock, deliver: Callable[[Frame], None], delay_ms_max: float = 2.0) -> None:
        self._clock = clock
        self._deliver = deliver
        self._delay_ms_max = delay_ms_max
        self._last_ns = 0
        self._is_cut = False

    def send(self, frame: Frame) -> None:
        delay_ns = int(self._clock.random.random() * self._delay_ms_max * MS)
        self._last_ns = max(self._last_ns, self._clock.now_ns + delay_ns)
        self._clock.at(self._last_ns, lambda: self._arrive(frame))

    def cut(self) -> None:
        self._is_cut = True

    def _arrive(self, frame: Frame) -> None:
        if not self._is_cut:
            self._deliver(frame)
