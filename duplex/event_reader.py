"""Reads the event logs of this process and of all workers, and joins them in the order of time.

Theory of operation
    Each log is read page by page, the newest first, until there are as many events as are wanted of all logs together;
    of these the newest stay. Processes of one host share the monotonic clock, so their events can be put in order.
    Those of a worker on another host keep their order among themselves alone.

Rules
* A worker that is away, or has not answered all within `ANSWER_MS_MAX`, is named with its fault; what it said by then
  counts. So an answer may be partial, and then says so.
* One reading at a time, of at most `EVENTS_READ_MAX` events; at most `READERS_MAX` are under way or wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec

from stages.edges import GATEWAY
from stages.event_log import PAGE_EVENTS_MAX, EventLog, EventLogStatistics, Excerpt, LoggedEvent
from stages.link import LinkError
from stages.messages import EventPage

EVENTS_READ_MAX = 2_000  # about 300 KB as JSON, put together in 5 ms
READERS_MAX = 4
# A page takes a worker about a millisecond; one that is this slow has other troubles.
ANSWER_MS_MAX = 500

AWAY, NO_ANSWER = "away", "no_answer"


class ReaderBusyError(RuntimeError):
    """So many readings are under way that no other is begun: ask again later."""


class Worker(Protocol):
    """The way to a worker; `StageClient` but in tests."""

    @property
    def replica(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def revision(self) -> str: ...
    async def read_events(self, before: int | None, session: str, response: str, events_max: int, /) -> EventPage: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """The newest `events_max` events; of one session, of one response, or of all where these are empty."""

    session: str = ""
    response: str = ""
    events_max: int = EVENTS_READ_MAX


class ProcessLog(msgspec.Struct, frozen=True):
    """One process that was asked. `fault`: why not all of it was read; then its counts may be those of no log.
    `since_ns`: its log holds all that it has done from then on; what a process before it did went with that."""

    process: str
    incarnation: int
    revision: str
    recorded: int
    overwritten: int
    fault: str = ""
    since_ns: int = 0


class ReadEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """`at_ns` by the monotonic clock of the host of `process`; the rest as in `stages.event_log`."""

    at_ns: int
    process: str
    kind: str
    session: str
    stream: str = ""
    tenant: str = ""
    value: int = 0
    link: str = ""
    state: str = ""
    cause: str = ""


class Reading(msgspec.Struct, frozen=True):
    """Events, oldest first. `partial`: some process has a fault. `truncated`: there are, or were, older ones than these
    or others between them."""

    partial: bool
    truncated: bool
    processes: tuple[ProcessLog, ...]
    events: tuple[ReadEvent, ...]
    object: str = "events"


_Page = tuple[Excerpt, EventLogStatistics]
_Ask = Callable[[int | None, int], Awaitable[_Page]]  # before, events_max


@dataclass(slots=True)
class _Part:
    """What one process has said so far; `pages` the newest first."""

    pages: list[tuple[LoggedEvent, ...]] = field(default_factory=list)
    statistics: EventLogStatistics = field(default_factory=lambda: EventLogStatistics(0, 0))
    more: bool = True
    fault: str = ""

    async def read(self, ask: _Ask, events_max: int) -> None:
        before = None
        missing = events_max
        while self.more:
            excerpt, self.statistics = await ask(before, min(missing, PAGE_EVENTS_MAX))
            self.pages.append(excerpt.events)
            before, self.more = excerpt.before, excerpt.more
            missing -= len(excerpt.events)
            if missing <= 0:
                break

    def events(self, process: str) -> list[tuple[str, LoggedEvent]]:
        return [(process, event) for page in reversed(self.pages) for event in page]


class EventReader:
    """`own`: the log of this process, whose name is `process`."""

    def __init__(self, own: EventLog, workers: Sequence[Worker], process: str = GATEWAY) -> None:
        self._own = own
        self._process = process
        self._workers = tuple(workers)
        self._turn = asyncio.Lock()
        self._readers = 0

    async def read(self, wanted: Wanted, *, own_only: bool = False) -> Reading:
        """`own_only`: of this process, and of no worker. Raises `ReaderBusyError`."""
        if self._readers >= READERS_MAX:
            raise ReaderBusyError(f"{READERS_MAX} readings are under way")
        self._readers += 1
        try:
            async with self._turn:
                return await self._read(wanted, () if own_only else self._workers)
        finally:
            self._readers -= 1

    async def counts(self) -> tuple[ProcessLog, ...]:
        """How many events each process that answers has recorded."""
        reading = await self._read(Wanted(events_max=0), self._workers)
        return tuple(log for log in reading.processes if not log.fault)

    async def _read(self, wanted: Wanted, workers: Sequence[Worker]) -> Reading:
        own, *parts = await asyncio.gather(
            self._part(partial(self._ask_own, wanted), wanted),
            *(self._part(partial(self._ask, worker, wanted), wanted) for worker in workers),
        )
        logs = [_process_log(own, self._process)]
        events = own.events(self._process)
        for worker, part in zip(workers, parts, strict=True):
            logs.append(_process_log(part, worker.replica, worker.incarnation, worker.revision))
            events += part.events(worker.replica)
        events.sort(key=lambda one: one[1].at_ns)  # stable: each process's own order stays
        newest = tuple(_read_event(*one) for one in events[max(0, len(events) - wanted.events_max) :])
        truncated = len(newest) < len(events) or any(part.more for part in (own, *parts))
        return _reading(wanted, truncated, tuple(logs), newest)

    @staticmethod
    async def _part(ask: _Ask, wanted: Wanted) -> _Part:
        part = _Part()
        try:
            async with asyncio.timeout(ANSWER_MS_MAX / 1000):
                await part.read(ask, wanted.events_max)
        except LinkError:
            part.fault = AWAY
        except TimeoutError:
            part.fault = NO_ANSWER
        return part

    async def _ask_own(self, wanted: Wanted, before: int | None, events_max: int) -> _Page:
        await asyncio.sleep(0)  # the calls come between two pages
        excerpt = self._own.read(before, session=wanted.session, response=wanted.response, events_max=events_max)
        return excerpt, self._own.statistics()

    @staticmethod
    async def _ask(worker: Worker, wanted: Wanted, before: int | None, events_max: int) -> _Page:
        page = await worker.read_events(before, wanted.session, wanted.response, events_max)
        return page.excerpt, page.statistics


def joined(readings: Sequence[Reading], wanted: Wanted) -> Reading:
    """What was read in several places of one host, none of it twice, as one."""
    events = sorted((event for reading in readings for event in reading.events), key=lambda event: event.at_ns)
    newest = tuple(events[max(0, len(events) - wanted.events_max) :])
    truncated = len(newest) < len(events) or any(reading.truncated for reading in readings)
    return _reading(wanted, truncated, tuple(log for reading in readings for log in reading.processes), newest)


def _reading(wanted: Wanted, truncated: bool, logs: tuple[ProcessLog, ...], newest: tuple[ReadEvent, ...]) -> Reading:
    if (wanted.session or wanted.response) and newest:
        # A process that began later, or whose log begins later, may have done something before.
        truncated = truncated or any(log.since_ns > newest[0].at_ns for log in logs if not log.fault)
    return Reading(any(log.fault for log in logs), truncated, logs, newest)


def _read_event(process: str, event: LoggedEvent) -> ReadEvent:
    whose = (event.session, event.stream, event.tenant)
    return ReadEvent(event.at_ns, process, event.kind, *whose, event.value, event.link, event.state, event.cause)


def _process_log(part: _Part, process: str, incarnation: int = 0, revision: str = "") -> ProcessLog:
    counts = part.statistics
    return ProcessLog(process, incarnation, revision, counts.recorded, counts.overwritten, part.fault, counts.since_ns)
