"""Writes a call's checkpoints to the store, in order, behind the conversation's back.

Rules
* All decisions are in `duplex.log_queue`; this file carries its writes to the store, one at a time.
* `failed` is set at most once, with the reason that ends the call.
* The lease is renewed between two writes: no renewal of ours comes to the store behind `release`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import structlog

from duplex.log_queue import LogQueue, Write
from sessions.records import TurnRecord
from sessions.store import Ownership, SessionStore, SessionUnknown, StaleOwner, StoreError, StoreTrouble

_log = structlog.get_logger("duplex.journal")


class Journal:
    """The log of one session, under one ownership. `earlier`: the entries of owners before."""

    def __init__(self, store: SessionStore, ownership: Ownership, earlier: Sequence[bytes] = ()) -> None:
        self._store = store
        self._ownership = ownership
        self._queue = LogQueue(store.limits, earlier)
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._renewal_due = False
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.errors = 0

    @property
    def session(self) -> str:
        return self._ownership.session

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    def compaction_due(self) -> bool:
        """Whether a `Compacted` of the whole conversation should be written now."""
        return self._queue.compaction_due()

    def write(self, entry: TurnRecord) -> None:
        """Take `entry`; it is written as soon as the store allows."""
        self._queue.write(entry)
        self._told()

    def _told(self) -> None:
        """The queue has changed: let those go on who wait for it."""
        if self._queue.end_reason is not None and not self.failed.done():
            self.failed.set_result(self._queue.end_reason)
        if self._queue.waiting:
            self._idle.clear()
        else:
            self._idle.set()
        self._wake.set()

    def renew(self) -> None:
        """Have the lease renewed, which also tells whether the session is still there, and ours."""
        self._renewal_due = True
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled or failed."""
        while not self.failed.done():
            self._wake.clear()
            while (write := self._queue.next_write()) is not None:
                await self._write(write)
                self._told()
            if self._renewal_due:
                await self._renew()
            await self._wake.wait()

    async def _write(self, write: Write) -> None:
        put = self._store.compact if write.compacts else self._store.append
        try:
            await put(self._ownership, write.seq, write.entry)
        except StoreError as error:
            self.errors += 1
            pause_ms = self._queue.failed(error)
            is_usual = isinstance(
                error, StoreTrouble | StaleOwner | SessionUnknown
            )  # a takeover or a deletion is no fault
            report = _log.warning if is_usual else _log.error
            report("store_write_failed", session=self.session, error=type(error).__name__)
            if self._queue.end_reason is None:
                await asyncio.sleep(pause_ms / 1000)
        else:
            self._queue.written()

    async def _renew(self) -> None:
        self._renewal_due = False
        try:
            await self._store.renew(self._ownership)
        except (SessionUnknown, StaleOwner) as error:
            _log.warning("session_lost", session=self.session, error=type(error).__name__)
            self._queue.failed(error)
            self._told()
        except StoreError as error:
            # Nothing is lost by that: it is asked again, and a write would have more to say.
            self.errors += 1
            _log.warning("lease_not_renewed", session=self.session, error=type(error).__name__)

    async def release(self) -> None:
        """Give the lease back, once nothing runs here any more; one that cannot be given back runs out."""
        with suppress(StoreError):
            await self._store.renew(replace(self._ownership, lease_ttl_ms=0))

    async def flush(self, ns_max: int) -> bool:
        """Wait until everything was written, at most `ns_max`; False where it was not."""
        try:
            async with asyncio.timeout(ns_max / 1e9):
                await self._idle.wait()
        except TimeoutError:
            return False
        return not self.failed.done()
