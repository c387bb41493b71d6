"""Writes a call's checkpoints to the store, in order, behind the conversation's back.

Theory of operation
    The conversation goes on while its entries are written. A write that failed for a reason that may pass is repeated
    as it was (the store knows a repeated one); meanwhile entries wait here. When they would be too many, or the store
    says that the session is somebody else's, the journal ends and the call with it: a conversation that cannot be kept
    is not continued as if it were.

Rules
* Entries are numbered 1, 2, 3… under this ownership, and written one at a time.
* `failed` is set at most once, with the reason that ends the call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import structlog

from sessions.records import Compacted, TurnRecord, encode_entry
from sessions.store import OwnerError, Ownership, SessionStore, StoreError, StoreTrouble

WAITING_MAX = 512  # minutes of lively talk; the store has long been away by then
RETRY_MS_MIN = 50
RETRY_MS_MAX = 2_000

_log = structlog.get_logger("duplex.journal")


class Journal:
    """The log of one session, under one ownership. `earlier`: the entries of owners before."""

    def __init__(self, store: SessionStore, ownership: Ownership, earlier: Sequence[bytes] = ()) -> None:
        self._store = store
        self._ownership = ownership
        self._waiting: deque[TurnRecord] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._seq = 0
        self._written_entries = len(earlier)
        self._written_bytes = sum(len(entry) for entry in earlier)
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.errors = 0

    @property
    def session(self) -> str:
        return self._ownership.session

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def compaction_due(self) -> bool:
        """Whether a `Compacted` of the whole conversation should be written now."""
        compacting = any(isinstance(entry, Compacted) for entry in self._waiting)
        return not compacting and self._store.limits.compaction_due(self._written_entries, self._written_bytes)

    def write(self, entry: TurnRecord) -> None:
        """Take `entry`; it is written as soon as the store allows."""
        if self.failed.done():
            return
        if len(self._waiting) >= WAITING_MAX:
            self._fail("store_unavailable")
            return
        self._waiting.append(entry)
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled or failed."""
        while not self.failed.done():
            await self._wake.wait()
            while self._waiting and not self.failed.done():
                await self._write_first()
            self._wake.clear()
            self._idle.set()

    async def _write_first(self) -> None:
        entry = self._waiting[0]
        encoded = encode_entry(entry)
        pause_ms = RETRY_MS_MIN
        while True:
            try:
                await self._append(entry, encoded)
            except StoreTrouble as error:
                self.errors += 1
                _log.warning("store_write_repeated", session=self.session, error=type(error).__name__)
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, RETRY_MS_MAX)
            except StoreError as error:
                self.errors += 1
                _log.error("store_write_failed", session=self.session, error=type(error).__name__)
                self._fail("session_replaced" if isinstance(error, OwnerError) else "store_refused")
                return
            else:
                self._waiting.popleft()
                return

    async def _append(self, entry: TurnRecord, encoded: bytes) -> None:
        if isinstance(entry, Compacted):
            await self._store.compact(self._ownership, self._seq + 1, encoded)
            self._written_entries, self._written_bytes = 1, len(encoded)
        else:
            await self._store.append(self._ownership, self._seq + 1, encoded)
            self._written_entries, self._written_bytes = self._written_entries + 1, self._written_bytes + len(encoded)
        self._seq += 1

    def _fail(self, reason: str) -> None:
        if not self.failed.done():
            self.failed.set_result(reason)
        self._waiting.clear()
        self._idle.set()

    async def flush(self, ns_max: int) -> bool:
        """Wait until everything was written, at most `ns_max`; False where it was not."""
        try:
            async with asyncio.timeout(ns_max / 1e9):
                await self._idle.wait()
        except TimeoutError:
            return False
        return not self.failed.done()
