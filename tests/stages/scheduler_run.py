"""A scheduler under streams that come back with one step after the other, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from stages.scheduler import STEADY, URGENCY_SLACK_NS, Batch, Ready, StageScheduler


@dataclass(slots=True)
class Stream:
    """One whose steps follow each other; `next_step` lays out the next."""

    key: str
    tenant: str = ""
    waits_since: Ready | None = None


@dataclass(slots=True)
class Run:
    """Streams that come back with another step after a pause, batches that take their time."""

    scheduler: StageScheduler
    streams: dict[str, Stream]
    next_step: Callable[[Stream, int], Ready]
    service_ns: Callable[[Batch], int]
    pause_ns: Callable[[], int]
    now_ns: int = 0
    events: list[tuple[int, int, str, int]] = field(default_factory=list)
    order: int = 0

    def batches(self, count: int) -> Iterator[Batch]:
        """Each batch as it starts; the steps in it are still told by their streams."""
        for key in self.streams:
            self._at(self.now_ns, key)
        while count > 0:
            self.now_ns, _, key, number = heappop(self.events)
            self._happen(key, number)
            if self.events and self.events[0][0] == self.now_ns:
                continue
            while batch := self.scheduler.start(self.now_ns):
                yield batch
                for one in batch.keys:
                    self.streams[one].waits_since = None
                self._at(self.now_ns + self.service_ns(batch), "", batch.number)
                count -= 1

    def _happen(self, key: str, number: int) -> None:
        if key:
            step = self.next_step(self.streams[key], self.now_ns)
            self.streams[key].waits_since = step
            self.scheduler.offer(step)
        else:
            for one in self.scheduler.done(number, self.now_ns).keys:
                self._at(self.now_ns + self.pause_ns(), one)

    def _at(self, at_ns: int, key: str, number: int = 0) -> None:
        self.order += 1
        heappush(self.events, (at_ns, self.order, key, number))


def overdue_ns(step: Ready) -> int:
    """From here on the bound holds: no earlier than when the step was to be started."""
    known = step.urgency == STEADY and step.lead_ns is not None
    return step.ready_ns + (step.lead_ns or 0 if known else URGENCY_SLACK_NS[step.urgency])


def crowd(sizes: Sequence[int]) -> dict[str, Stream]:
    """Streams of tenants A, B, …; `sizes` of each."""
    names = [f"{chr(65 + tenant)}{number}" for tenant, size in enumerate(sizes) for number in range(size)]
    return {name: Stream(name, name[0]) for name in names}
