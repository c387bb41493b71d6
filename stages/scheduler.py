"""Which stream's step runs next on a worker's engine threads.

Theory of operation
    A step that becomes ready gets a virtual deadline: the moment it became ready, plus a slack that grows with its
    urgency class. The earliest virtual deadline runs first. First chunks thus overtake steady work, steady work
    overtakes speculation, and none starves: whatever has waited longer than the slack of its class precedes
    everything that becomes ready from now on.

Rules
* A stream has at most one step offered or running. At most `concurrency` steps run at once.
"""

from __future__ import annotations

from dataclasses import dataclass

# Slack per urgency class. Steady chunks carry about 190 ms of sound, so one may wait that long; speculation
# (partials, prefill) is worth less than either but must move within a caller's sentence.
URGENCY_SLACK_NS = (0, 150_000_000, 600_000_000)


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    waiting: int
    waiting_peak: int
    running: int
    started: int
    withdrawn: int


class StageScheduler:
    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._waiting: dict[str, tuple[int, int, int]] = {}
        self._running: set[str] = set()
        self._order = 0
        self._peak = 0
        self._withdrawn = 0

    def offer(self, key: str, urgency: int, now_ns: int) -> None:
        """A step of stream `key` is ready to run since `now_ns`."""
        assert key not in self._waiting, f"stream {key} offered twice"
        assert key not in self._running, f"stream {key} offered while it runs"
        self._order += 1
        self._waiting[key] = (now_ns + URGENCY_SLACK_NS[urgency], self._order, now_ns)
        self._peak = max(self._peak, len(self._waiting))

    def start(self, now_ns: int) -> tuple[str, int] | None:
        """The stream to run now and how long its step has queued (ns), or None."""
        if not self._waiting or len(self._running) >= self._concurrency:
            return None
        key = min(self._waiting, key=self._waiting.__getitem__)
        ready_ns = self._waiting.pop(key)[2]
        self._running.add(key)
        return key, now_ns - ready_ns

    def done(self, key: str) -> None:
        self._running.remove(key)

    def withdraw(self, key: str) -> int | None:
        """Forget the waiting step of `key`, uncomputed. Gives since when it was ready, or None where none waits."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return None
        self._withdrawn += 1
        return waiting[2]

    def waits(self, key: str) -> bool:
        return key in self._waiting

    def runs(self, key: str) -> bool:
        return key in self._running

    def statistics(self) -> SchedulerStatistics:
        started = self._order - self._withdrawn - len(self._waiting)
        return SchedulerStatistics(len(self._waiting), self._peak, len(self._running), started, self._withdrawn)
