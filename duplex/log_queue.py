"""What waits to be written of one session's log: in which order, how often, and until when.

Theory of operation
    `write` takes entries; `next_write` says what the store is to be asked now, one write at a time, and says the same
    until the store's answer has been told by `written` or `failed`. A write that failed for a reason that may pass is
    repeated as it was, since the store knows a repeated one. Any other failure, and more waiting entries than are
    allowed, ends the log: a conversation that cannot be kept is not continued as if it were.

Rules
* Entries are numbered 1, 2, 3… under this ownership.
* `end_reason` is set at most once; then nothing waits any more, and nothing more is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from sessions.records import Compacted, TurnRecord, encode_entry
from sessions.store import LogLimits, SessionUnknown, StaleOwner, StoreError, StoreTrouble

WAITING_MAX = 512  # minutes of lively talk; the store has long been away by then
RETRY_MS_MIN = 50
RETRY_MS_MAX = 2_000

_END_REASONS: dict[type[StoreError], str] = {StaleOwner: "session_replaced", SessionUnknown: "session_deleted"}


@dataclass(frozen=True, slots=True)
class Write:
    """Append `entry` as number `seq`; `compacts`: it stands for all that came before."""

    seq: int
    entry: bytes
    compacts: bool


class LogQueue:
    """The log of one session, under one ownership. `earlier`: the entries of owners before."""

    def __init__(self, limits: LogLimits, earlier: Sequence[bytes] = ()) -> None:
        self._limits = limits
        self._waiting: deque[TurnRecord] = deque()
        self._seq = 0
        self._pause_ms = RETRY_MS_MIN
        self._stored_entries = len(earlier)
        self._stored_bytes = sum(len(entry) for entry in earlier)
        self._current: Write | None = None
        self._end_reason: str | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def seq(self) -> int:
        """How many entries were written under this ownership."""
        return self._seq

    @property
    def end_reason(self) -> str | None:
        """Why nothing more is written, or None where all is well."""
        return self._end_reason

    def compaction_due(self) -> bool:
        """Whether a `Compacted` of the whole conversation should be written now."""
        compacting = any(isinstance(entry, Compacted) for entry in self._waiting)
        return not compacting and self._limits.compaction_due(self._stored_entries, self._stored_bytes)

    def write(self, entry: TurnRecord) -> None:
        """Take `entry`, to be written behind what waits already."""
        if self._end_reason is not None:
            return
        if len(self._waiting) >= WAITING_MAX:
            self._end("store_unavailable")
            return
        self._waiting.append(entry)

    def next_write(self) -> Write | None:
        """What to ask the store now, or None where nothing waits."""
        if self._current is None and self._waiting:
            entry = self._waiting[0]
            self._current = Write(self._seq + 1, encode_entry(entry), isinstance(entry, Compacted))
        return self._current

    def written(self) -> None:
        """The store has taken the present write."""
        write = self._current
        if write is None:
            return  # the log has ended meanwhile
        self._current = None
        self._waiting.popleft()
        self._seq = write.seq
        self._pause_ms = RETRY_MS_MIN
        earlier = (0, 0) if write.compacts else (self._stored_entries, self._stored_bytes)
        self._stored_entries, self._stored_bytes = earlier[0] + 1, earlier[1] + len(write.entry)

    def failed(self, error: StoreError) -> int:
        """The store has not taken the present write, or says of the session that it is not ours any more. How long to
        wait before the write is repeated, in ms.

        Ends the log where `error` cannot pass.
        """
        if not isinstance(error, StoreTrouble):
            self._end(_END_REASONS.get(type(error), "store_refused"))
        pause_ms = self._pause_ms
        self._pause_ms = min(2 * pause_ms, RETRY_MS_MAX)
        return pause_ms

    def _end(self, reason: str) -> None:
        self._end_reason = self._end_reason or reason
        self._waiting.clear()
        self._current = None
