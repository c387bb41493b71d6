"""What happened to every response, stream, step, chunk and block: a bounded record in memory, cheap enough to be always
on.

Theory of operation
    Each process keeps one log, a ring of its newest events. Whose work it was has a `Trail` there, by which the cores
    write as they decide: so the log says what was decided, and not what was attempted. An event is a moment, a kind,
    whose work it was, one number and up to three names (the other end of the link, the state that it is about, the
    cause); `EventKind` says what each kind fills in. Who reads takes pages, the newest first.

Rules
* A core that is given `now_ns` tells it to `at` before it writes; for one that is not, its shell does. Moments never go
  back within a log; those of one host's processes are of one clock.
* No text, sound or token of anybody goes in: an event has ids, numbers and names. A name is a short label in lower
  case, and a log knows at most `LABELS_MAX` of them; whatever else is given as one is entered as `other`.
* Writing never fails and never waits. What is older than the ring holds is gone, and counted.
* A reading looks at `SCANNED_MAX` events at most: it happens on the loop that serves the links.
"""

from __future__ import annotations

import re
from collections import deque
from enum import StrEnum, auto
from itertools import islice

import msgspec

EVENTS_MAX = 8_192  # about 1.5 MiB; half a minute of four calls that all speak
EVENTS_KEPT_MAX = 1 << 18  # about 50 MiB
SCANNED_MAX = 8_192  # about a millisecond
# As long as they can be, so many events still fit one frame of a link.
PAGE_EVENTS_MAX = 400
NAME_CHARACTERS_MAX = 64  # an id of ours has about 30; a turn's stream is named after three of them
LABELS_MAX = 512  # stages, replicas, payloads, kinds of steps, blocks, codes: about 150
OTHER = "other"

_ID = re.compile(rf"[A-Za-z0-9_.:/#-]{{0,{NAME_CHARACTERS_MAX}}}", re.ASCII)
_LABEL = re.compile(rf"[a-z0-9_.#-]{{0,{NAME_CHARACTERS_MAX}}}", re.ASCII)


class EventKind(StrEnum):
    """What happened; behind it: what `value` counts, then what `link`, `state` and `cause` name."""

    # Of a response, at its gateway; `link` is the stage.
    ACCEPTED = auto()  # responses of the call that have not drained; state: prepared, or nothing
    ADMITTED = auto()  # stages that it goes through
    ASKED = auto()  # the attempt; link. The stage is to open it
    LOST = auto()  # the attempt; link. No word reaches the stage any more
    RETRIED = auto()  # the attempt that begins
    RECEIVED = auto()  # samples, of sound; state: what was published
    SENT = auto()  # samples handed to the client, of which the credit goes back
    TERMINAL = auto()  # samples sent by then; state: how it ended, cause: the code, or else the reason
    DRAINED = auto()  # ns since its terminal; state: complete or orphaned
    AUDITED = auto()  # how much is still there, which must be 0; link, state: of what kind, cause: the replica
    # Of a stream; at its gateway, `link` is the stage and `value` the attempt.
    OPENED = auto()  # streams open at the stage
    REFUSED = auto()  # streams open at the stage; cause: the code
    CANCELLED = auto()  # outputs thrown away; cause: why. At its gateway: told to stop, or to cut
    CLOSED = auto()  # streams open at the stage after it; cause: the outcome, or the code of its failure
    STALE = auto()  # 1; state: what came too late
    # Of a step; `state` is its kind.
    QUEUED = auto()  # streams open at the stage
    UNQUEUED = auto()  # 1; it left the queue without having been run. cause: why
    STARTED = auto()  # ns that it has waited
    COMPUTED = auto()  # ns that its batch took
    # Of a chunk; `state` is the payload or the event, `link` the stage that it goes to, or comes from.
    PRODUCED = auto()  # units
    CREDIT_TAKEN = auto()  # units; link. With it, the chunk is handed over
    CREDIT_RETURNED = auto()  # units; link, cause: granted, or closed or lost with the edge
    PUBLISHED = auto()  # units; to the gateway
    CONSUMED = auto()  # units of input that were used up: their credit goes back to the producer
    # Of a session's KV; `cause` says why.
    KV_TAKEN = auto()  # tokens that are there for a stream; cause: kept, or new or evicted where none are
    KV_EVICTED = auto()  # tokens that are lost; cause: pressure, idle, mismatch or closed
    # Of a block of the arena; `state` is the block.
    ACQUIRED = auto()  # bytes that are to lie there
    LEASED = auto()  # bytes
    LEASE_EXPIRED = auto()  # bytes; the reader still has it
    FREED = auto()  # bytes; cause: acknowledged, link_lost or withdrawn


class LoggedEvent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`stream` is the stream's key at a stage, or the id of the response; empty for what is about the session."""

    at_ns: int
    kind: str
    session: str
    stream: str
    tenant: str
    value: int
    link: str
    state: str
    cause: str


class EventLogStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events since the process began, and how many of them are gone. `since_ns`: all that happened from then on is
    there; 0 where nothing ever did."""

    recorded: int
    overwritten: int
    since_ns: int = 0


class Excerpt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events, oldest first, numbered in the order in which they were written. `before`: where the next older excerpt
    ends. `more`: there may be older ones."""

    events: tuple[LoggedEvent, ...]
    before: int
    more: bool


class Trail:
    """One stream or response, as its events name it: the way to write them."""

    __slots__ = ("_log", "session", "stream", "tenant")

    def __init__(self, log: EventLog, session: str, stream: str, tenant: str) -> None:
        self._log = log
        self.session = session
        self.stream = stream
        self.tenant = tenant

    def add(self, kind: EventKind, value: int = 1, link: str = "", state: str = "", cause: str = "") -> None:
        """Note that something happened, now."""
        log = self._log
        labels = log._labels
        if link not in labels or state not in labels or cause not in labels:
            link, state, cause = log._label(link), log._label(state), log._label(cause)
        log._recorded += 1
        log._ring.append((log._now_ns, kind, self, value, link, state, cause))


class _NoTrail(Trail):
    """Of a log that keeps nothing."""

    __slots__ = ()

    def add(self, kind: EventKind, value: int = 1, link: str = "", state: str = "", cause: str = "") -> None:
        pass


_Entry = tuple[int, EventKind, Trail, int, str, str, str]


class EventLog:
    """A ring of `size` events; with 0, nothing is recorded at all."""

    def __init__(self, size: int = EVENTS_MAX) -> None:
        self._ring: deque[_Entry] = deque(maxlen=size)
        self._trail_of = Trail if size else _NoTrail
        self._labels = {"", OTHER}
        self._recorded = 0
        self._now_ns = 0
        self._began_ns: int | None = None

    # ---- writing ---------------------------------------------------------------------------------

    def at(self, now_ns: int) -> None:
        """What is written from now on happens at `now_ns` (monotonic); one before the latest is taken as that."""
        self._now_ns = max(self._now_ns, now_ns)
        if self._began_ns is None:
            self._began_ns = now_ns

    def of(self, session: str, stream: str = "", tenant: str = "") -> Trail:
        """Whose events are written. What is no id is entered as `other`."""
        session, stream, tenant = (name if _ID.fullmatch(name) else OTHER for name in (session, stream, tenant))
        return self._trail_of(self, session, stream, tenant)

    def _label(self, name: str) -> str:
        if name in self._labels:
            return name
        if len(self._labels) >= LABELS_MAX or not _LABEL.fullmatch(name):
            return OTHER
        self._labels.add(name)
        return name

    # ---- reading ---------------------------------------------------------------------------------

    def statistics(self) -> EventLogStatistics:
        overwritten = self._recorded - len(self._ring)
        since_ns = self._ring[0][0] if overwritten and self._ring else self._began_ns or 0
        if not self._ring.maxlen:
            since_ns = self._now_ns + 1
        return EventLogStatistics(self._recorded, overwritten, since_ns)

    def read(
        self,
        before: int | None = None,
        *,
        session: str = "",
        response: str = "",
        events_max: int = PAGE_EVENTS_MAX,
    ) -> Excerpt:
        """The newest events with numbers below `before`, in any of its attempts of `response`, and of `session`; empty
        means any."""
        oldest = self._recorded - len(self._ring)
        end = self._recorded if before is None else max(oldest, min(before, self._recorded))
        newer = self._recorded - end
        scanned = islice(reversed(self._ring), newer, newer + (SCANNED_MAX if events_max else 0))
        found: list[LoggedEvent] = []
        position = end
        for at_ns, kind, whose, value, link, state, cause in scanned:
            position -= 1
            if _is_wanted(whose, session, response):
                names = (whose.session, whose.stream, whose.tenant)
                found.append(LoggedEvent(at_ns, kind.value, *names, value, link, state, cause))
                if len(found) >= events_max:
                    break
        return Excerpt(tuple(reversed(found)), position, position > oldest)


def _is_wanted(whose: Trail, session: str, response: str) -> bool:
    if session and whose.session != session:
        return False
    return not response or whose.stream == response or whose.stream.startswith(f"{response}#")


NO_TRAIL = EventLog(0).of("")
