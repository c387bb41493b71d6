"""The stage scheduler by itself: what a decision costs, and how long first chunks wait beside steady work.

Theory of operation
    The first part is timed on this machine. The second runs in virtual time, so its figures are the same everywhere:
    a vocoder of one thread, whose batch of n chunks takes `BATCH_NS + n * CHUNK_NS`, serves responses that play as
    they are made. The floor is a queue in order of arrival that fills its batches by the same rule.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Protocol

from benchmarks.figures import percentile
from stages.scheduler import FIRST, STEADY, Batch, Ready, StageScheduler

Say = Callable[[str], None]

# How many steps wait, and of how many tenants: of few, and of as many as have accounts of their own.
CROWDS = ((10, 4), (100, 4), (1_000, 4), (100, 64), (1_000, 64))
DECISIONS = 4_000
WHOLE_NS = 300_000_000_000  # so long a response may last
BATCH_MAX = 8

RESPONSES = 50
RUN_NS = 120_000_000_000
# Sound in a chunk (16 frames of 256 samples at 22.05 kHz), and how much may be made ahead of playout.
SOUND_NS = 185_800_000
LEAD_NS = 400_000_000
CHUNKS_MIN, CHUNKS_MAX = 10, 60
PAUSE_NS_MAX = 200_000_000
CHUNK_NS = 1_500_000
# With the last but one, batches are nearly full; with the last, full ones are no longer enough.
BATCH_NS = (8_000_000, 12_000_000, 14_000_000, 16_000_000)


class Scheduling(Protocol):
    """What both do."""

    def offer(self, ready: Ready) -> None: ...
    def expire(self, now_ns: int) -> list[str]: ...
    def start(self, now_ns: int) -> Batch | None: ...
    def done(self, number: int, now_ns: int) -> Batch: ...


class Fifo:
    """The floor: in order of arrival, one batch at a time."""

    def __init__(self, batch_max: int) -> None:
        self._batch_max = batch_max
        self._waiting: dict[str, Ready] = {}
        self._running: Batch | None = None

    def offer(self, ready: Ready) -> None:
        self._waiting[ready.key] = ready

    def expire(self, now_ns: int) -> list[str]:  # noqa: ARG002 - it knows no deadlines
        return []

    def start(self, now_ns: int) -> Batch | None:
        if self._running is not None or not self._waiting:
            return None
        steps: list[Ready] = []
        for step in self._waiting.values():
            if not steps or step.batch_key == steps[0].batch_key:
                steps.append(step)
                if len(steps) == self._batch_max:
                    break
        for step in steps:
            del self._waiting[step.key]
        keys, queued_ns = tuple(one.key for one in steps), tuple(now_ns - one.ready_ns for one in steps)
        self._running = Batch(0, steps[0].kind, keys, queued_ns, now_ns)
        return self._running

    def done(self, number: int, now_ns: int) -> Batch:  # noqa: ARG002 - there is one
        batch, self._running = self._running, None
        assert batch is not None, "only a running batch comes back"
        return batch


async def scheduler(say: Say) -> bool:
    """Print the cost of decisions, then the waits of first chunks."""
    for waiting, tenants in CROWDS:
        for batch_max in (1, BATCH_MAX):
            own_us = decision_us(StageScheduler(1, batch_max), waiting, tenants)
            floor_us = decision_us(Fifo(batch_max), waiting, tenants)
            say(
                f"{waiting:>5} steps of {tenants:>2} tenants wait, batches of {batch_max}: {own_us:6.1f} µs of CPU for "
                f"each batch; in order of arrival {floor_us:5.1f} µs; ratio {own_us / floor_us:.1f}"
            )
    for batch_ns in BATCH_NS:
        say(f"{RESPONSES} responses play; a batch of n chunks takes {batch_ns / 1e6:.0f} ms + n · {CHUNK_NS / 1e6} ms")
        say(Playing(Fifo(BATCH_MAX), batch_ns).run().line("in order of arrival"))
        say(Playing(StageScheduler(1, BATCH_MAX), batch_ns).run().line("this scheduler"))
    return True


def decision_us(scheduling: Scheduling, waiting: int, tenants: int) -> float:
    """µs of CPU for a batch that starts and ends, and whose streams offer their next steps, beside `waiting` others of
    `tenants`."""

    def ready(key: str, now_ns: int) -> Ready:
        number = int(key)
        lead_ns, deadline_ns = number % 7 * 50_000_000, now_ns + WHOLE_NS
        return Ready(key, "chunk", STEADY, now_ns, lead_ns, f"t{number % tenants}", "steady", deadline_ns)

    for number in range(waiting):
        scheduling.offer(ready(str(number), 0))
    now_ns = 0
    began_ns = time.thread_time_ns()
    for _ in range(DECISIONS):
        now_ns += 20_000_000
        scheduling.expire(now_ns)
        batch = scheduling.start(now_ns)
        assert batch is not None, "there is always work"
        scheduling.done(batch.number, now_ns + 20_000_000)
        for key in batch.keys:
            scheduling.offer(ready(key, now_ns))
    return (time.thread_time_ns() - began_ns) / DECISIONS / 1_000


@dataclass(slots=True)
class Response:
    """What plays until `plays_until_ns`; `chunks_left` are to be made."""

    chunks_left: int
    plays_until_ns: int = 0
    began: bool = False


@dataclass(slots=True)
class Outcome:
    """Waits in ms; `underruns` of `chunks` steady chunks came after the sound before them had ended."""

    first_ms: list[float]
    underruns: int = 0
    chunks: int = 0
    batches: int = 0

    def line(self, name: str) -> str:
        median, p95 = percentile(self.first_ms, 0.5), percentile(self.first_ms, 0.95)
        steps = len(self.first_ms) + self.chunks
        return (
            f"    {name:<20} first chunk waits: n={len(self.first_ms)} median {median:5.1f}  p95 {p95:5.1f}  max "
            f"{max(self.first_ms):5.1f} ms; {steps / self.batches:.1f} chunks a batch; "
            f"underruns {self.underruns} of {self.chunks}"
        )


class Playing:
    """Responses that follow each other in `RESPONSES` calls, in virtual time."""

    def __init__(self, scheduling: Scheduling, batch_ns: int) -> None:
        self._scheduling = scheduling
        self._batch_ns = batch_ns
        self._random = Random(7)
        self._responses = {str(call): self._response() for call in range(RESPONSES)}
        self._events: list[tuple[int, int, str, int]] = []
        self._order = count()
        self._outcome = Outcome([])

    def run(self) -> Outcome:
        now_ns = 0
        for key in self._responses:
            self._at(self._random.randint(0, 2_000_000_000), key)
        while now_ns < RUN_NS:
            now_ns, _, key, number = heappop(self._events)
            if key:
                self._offer(key, now_ns)
            else:
                for done in self._scheduling.done(number, now_ns).keys:
                    self._made(done, now_ns)
            batch = self._scheduling.start(now_ns)
            if batch is not None:
                self._count(batch)
                self._at(now_ns + self._batch_ns + len(batch.keys) * CHUNK_NS, "", batch.number)
        return self._outcome

    def _at(self, at_ns: int, key: str, number: int = 0) -> None:
        heappush(self._events, (at_ns, next(self._order), key, number))

    def _response(self) -> Response:
        return Response(self._random.randint(CHUNKS_MIN, CHUNKS_MAX))

    def _offer(self, key: str, now_ns: int) -> None:
        response = self._responses[key]
        urgency, group = (STEADY, "steady") if response.began else (FIRST, "first")
        lead_ns = max(0, response.plays_until_ns - now_ns)
        self._scheduling.offer(Ready(key, "chunk", urgency, now_ns, lead_ns, "", group))

    def _count(self, batch: Batch) -> None:
        self._outcome.batches += 1
        for key, queued_ns in zip(batch.keys, batch.queued_ns, strict=True):
            if not self._responses[key].began:
                self._outcome.first_ms.append(queued_ns / 1e6)

    def _made(self, key: str, now_ns: int) -> None:
        response = self._responses[key]
        if response.began:
            self._outcome.chunks += 1
            self._outcome.underruns += response.plays_until_ns < now_ns
        response.began = True
        response.plays_until_ns = max(response.plays_until_ns, now_ns) + SOUND_NS
        response.chunks_left -= 1
        if response.chunks_left:
            self._at(max(now_ns, response.plays_until_ns + SOUND_NS - LEAD_NS), key)
        else:
            self._responses[key] = self._response()
            self._at(response.plays_until_ns + self._random.randint(0, PAUSE_NS_MAX), key)
