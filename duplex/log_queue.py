"""What waits to be written of one session's log: in which order, how often, and until when.

Theory of operation
    `write` takes entries; `next_write` says what the store is to be asked now, one write at a time, and says the same
    until the store's answer has been told by `written` or `failed`. A write that failed for a reason that may pass is
    repeated as it was, since the store knows a repeated one; from then until it is written, that the conversation
    outlives this process is `suspended`. Any other failure, and a store that has been failing for longer than
    `outage_ns_max`, end the log: a conversation that cannot be kept is not continued as if it were.

    Whoever brings entries waits while the log is `crowded`. Where more wait all the same than may, the call has to end;
    what was taken is still written, and so is what its end has to say.

    A store may have gone back, after a fail-over to a replica that lagged. Then the session is to be acquired anew
    (`must_reclaim`), above the fence that is known here, and all of it is written as one entry.

Rules
* Entries are numbered 1, 2, 3… under each ownership.
* `end_reason`, why the call has to end, is set at most once. Once the log `is_over`, nothing waits any more, and
  nothing more is taken.
* Nothing is taken behind an entry that was not: what is stored is a beginning of what was given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from sessions.records import Compacted, TurnRecord, encode_entry
from sessions.store import (
    LeaseHeld,
    LogLimits,
    SequenceGap,
    SessionUnknown,
    StaleOwner,
    StoreError,
    StoreFull,
    StoreTrouble,
    StoreWentBack,
)

WAITING_MAX = 512  # minutes of lively talk; the store has long been away by then
CROWDED_MIN = WAITING_MAX // 2  # what is read of a client at once writes some ten at most
CLOSING_MAX = 64  # the end of a call cuts what is said, and writes some ten
RETRY_MS_MIN = 50
RETRY_MS_MAX = 2_000
# A store that hangs is killed after five seconds and back after one more; a fail-over takes ten to twenty.
OUTAGE_NS_MAX = 30_000_000_000

# What may pass: trouble, a store that is full until its operator makes room, a lease that runs out. Anything else is
# said again however often one asks.
_PASSING = (StoreTrouble, StoreFull, LeaseHeld)

_UNAVAILABLE = "store_unavailable"
_END_REASONS: dict[type[StoreError], str] = {StaleOwner: "session_replaced", SessionUnknown: "session_deleted"}


@dataclass(frozen=True, slots=True)
class Write:
    """Append `entry` as number `seq`; `compacts`: it stands for all that came before."""

    seq: int
    entry: bytes
    compacts: bool


class LogQueue:
    """The log of one session, under one ownership. `earlier`: the entries of owners before."""

    def __init__(self, limits: LogLimits, earlier: Sequence[bytes] = (), *, outage_ns_max: int = OUTAGE_NS_MAX) -> None:
        self._limits = limits
        self._outage_ns_max = outage_ns_max
        self._failing_since_ns: int | None = None
        self._suspended = False
        self._must_reclaim = False
        self._lost = 0
        self._waiting: deque[TurnRecord] = deque()
        self._seq = 0
        self._pause_ms = RETRY_MS_MIN
        self._stored_entries = len(earlier)
        self._stored_bytes = sum(len(entry) for entry in earlier)
        self._current: Write | None = None
        self._end_reason: str | None = None
        self._is_over = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def seq(self) -> int:
        """How many entries were written under this ownership."""
        return self._seq

    @property
    def end_reason(self) -> str | None:
        """Why the call has to end, or None where all is well."""
        return self._end_reason

    @property
    def is_over(self) -> bool:
        """Nothing more is written."""
        return self._is_over

    @property
    def is_crowded(self) -> bool:
        """So much waits that whoever brings more has to wait for the store, which is not known to fail."""
        return self._failing_since_ns is None and len(self._waiting) > CROWDED_MIN

    @property
    def suspended(self) -> bool:
        """Whether the store has failed to take something, or not in time, and has not had all since."""
        return self._suspended

    @property
    def lost(self) -> int:
        """How many entries still waited when the log ended, or were too many."""
        return self._lost

    @property
    def must_reclaim(self) -> bool:
        """Whether the session is to be acquired again before the next write."""
        return self._must_reclaim

    def compaction_due(self) -> bool:
        """Whether a `Compacted` of the whole conversation should be written now."""
        compacting = any(isinstance(entry, Compacted) for entry in self._waiting)
        return not compacting and self._limits.compaction_due(self._stored_entries, self._stored_bytes)

    def write(self, entry: TurnRecord) -> None:
        """Take `entry`, to be written behind what waits already."""
        if self._is_over:
            return
        if len(self._waiting) >= WAITING_MAX:
            self._end_reason = self._end_reason or _UNAVAILABLE
        if self._lost or len(self._waiting) >= WAITING_MAX + CLOSING_MAX:
            self._lost += 1
            return
        self._waiting.append(entry)

    def next_write(self) -> Write | None:
        """What to ask the store now, or None where nothing waits."""
        if self._current is None and self._waiting:
            entry = self._waiting[0]
            self._current = Write(self._seq + 1, encode_entry(entry), isinstance(entry, Compacted))
        return self._current

    def written(self) -> TurnRecord | None:
        """The store has taken the present write; gives what that was of. None where the log has ended meanwhile."""
        write = self._current
        if write is None:
            return None
        self._current = None
        entry = self._waiting.popleft()
        self._seq = write.seq
        self._pause_ms = RETRY_MS_MIN
        self._failing_since_ns = None
        self._suspended = self._suspended and bool(self._waiting)
        earlier = (0, 0) if write.compacts else (self._stored_entries, self._stored_bytes)
        self._stored_entries, self._stored_bytes = earlier[0] + 1, earlier[1] + len(write.entry)
        return entry

    def late(self) -> None:
        """What waits has been waited for as long as sound may: it is not stored until it is."""
        self._suspended = bool(self._waiting)

    def reclaimed(self, whole: Compacted) -> None:
        """The session was acquired again; `whole` is all that was taken so far."""
        if self._is_over:
            return
        self._must_reclaim, self._current = False, None
        self._seq = self._stored_entries = self._stored_bytes = 0
        self._waiting = deque([whole])

    def give_up(self) -> None:
        """There is no more time to write what waits."""
        if self._waiting or self._must_reclaim:
            self._end(_UNAVAILABLE)

    def failed(self, error: StoreError, now_ns: int) -> int:
        """The store has not taken the present write, has not given the session back, or says that it is not ours any
        more. How long to wait before it is asked again, in ms.

        Ends the log where `error` cannot pass, or has not for too long.
        """
        self._suspended = not self._is_over
        if self._went_back(error):
            self._must_reclaim = True
        elif not isinstance(error, _PASSING):
            self._end(_END_REASONS.get(type(error), "store_refused"))
        if self._failing_since_ns is None:
            self._failing_since_ns = now_ns
        if now_ns - self._failing_since_ns >= self._outage_ns_max:
            self._end("store_full" if isinstance(error, StoreFull) else _UNAVAILABLE)
        pause_ms = self._pause_ms
        self._pause_ms = min(2 * pause_ms, RETRY_MS_MAX)
        return pause_ms

    def _went_back(self, error: StoreError) -> bool:
        """Whether the store has forgotten what it had acknowledged: a later fence, or an entry that was written."""
        return isinstance(error, StoreWentBack) or (isinstance(error, SequenceGap) and error.expected <= self._seq)

    def _end(self, reason: str) -> None:
        self._end_reason, self._is_over = self._end_reason or reason, True
        self._lost += len(self._waiting)
        self._waiting.clear()
        self._current = None
        self._suspended = self._must_reclaim = False
