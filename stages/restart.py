"""When a process that died is started again.

Rules
* The first death after a long life is mended at once; each further one in a row waits twice as long.
* A life of `STEADY_NS` clears the account.
"""

from __future__ import annotations

STEADY_NS = 60_000_000_000
PAUSE_NS_MIN = 250_000_000
PAUSE_NS_MAX = 15_000_000_000


class RestartPolicy:
    """Back-off of one process. Times are monotonic ns."""

    def __init__(self) -> None:
        self._deaths = 0
        self._started_ns = 0

    @property
    def deaths_in_a_row(self) -> int:
        return self._deaths

    def started(self, now_ns: int) -> None:
        self._started_ns = now_ns

    def died(self, now_ns: int) -> int:
        """How long to wait before the next start, in ns."""
        if now_ns - self._started_ns >= STEADY_NS:
            self._deaths = 0
        self._deaths += 1
        if self._deaths == 1:
            return 0
        return min(PAUSE_NS_MIN << (self._deaths - 2), PAUSE_NS_MAX)
