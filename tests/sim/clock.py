"""Virtual time: everything that happens in a simulated world happens by this queue.

Rules
* What is due at the same moment happens in the order in which it was asked for: a seed replays exactly.
* The wall clock goes along, but for the steps that somebody makes it do; only leases and retention look at it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

MS = 1_000_000
EVENTS_MAX = 600_000  # minutes of the busiest world take a tenth of that; more means that something goes in circles
WALL_START_MS = 1_700_000_000_000


class LivelockError(AssertionError):
    """The world never comes to rest."""


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1_000 * MS
        self.wall_step_ms = 0
        self._wall_step_ms_max = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._asked = 0

    @property
    def wall_ms(self) -> int:
        """Unix time in ms, as the store sees it."""
        return WALL_START_MS + self.now_ns // MS + self.wall_step_ms

    def step_wall(self, by_ms: int) -> None:
        """The wall clock jumps by `by_ms`."""
        self.wall_step_ms += by_ms
        self._wall_step_ms_max = max(self._wall_step_ms_max, self.wall_step_ms)

    def put_wall_right(self) -> None:
        """As far on as it ever was: whatever was to end by it ends."""
        self.wall_step_ms = self._wall_step_ms_max

    def after(self, delay_ms: float, call: Callable[..., None], *args: object) -> None:
        self.at(self.now_ns + int(delay_ms * MS), call, *args)

    def at(self, due_ns: int, call: Callable[..., None], *args: object) -> None:
        """Let `call(*args)` happen at `due_ns`, or now where that has passed."""
        self._asked += 1
        if self._asked > EVENTS_MAX:
            raise LivelockError(f"{EVENTS_MAX} events")
        heapq.heappush(self._queue, (max(due_ns, self.now_ns), self._asked, call, args))

    def run_until(self, end_ns: int) -> None:
        """Let everything happen that is due by `end_ns`."""
        queue = self._queue
        while queue and queue[0][0] <= end_ns:
            self.now_ns, _, call, args = heapq.heappop(queue)
            call(*args)
        self.now_ns = end_ns
