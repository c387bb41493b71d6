"""Writes a call's checkpoints to the store, in order, behind the conversation's back.

Rules
* All decisions are in `duplex.log_queue`; this file carries its writes to the store, one at a time.
* `failed` is set at most once, with the reason that ends the call. What was taken by then may still be written.
* While what was to be written is not, `JournalPorts.suspended` has said so; each failure is told to `store_failed`.
* The lease is renewed between two writes: no renewal of ours comes to the store behind `release`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from duplex.log_queue import OUTAGE_NS_MAX, LogQueue, Write
from sessions.records import Compacted, TurnRecord
from sessions.store import (
    Ownership,
    SessionStore,
    SessionUnknown,
    StaleOwner,
    StoreError,
    StoreTrouble,
    StoreWentBack,
)

_log = structlog.get_logger("duplex.journal")


@dataclass(frozen=True, slots=True)
class JournalPorts:
    """What a journal asks and tells of the call that it belongs to.

    `whole`: all that was given to `write`, as one entry. `suspended`: whether the conversation would be cut short if
    this process died now. `store_failed`: the kind of a failure. `stored`: what the store has just taken.
    """

    whole: Callable[[], Compacted]
    suspended: Callable[[bool], None]
    store_failed: Callable[[str], None]
    stored: Callable[[TurnRecord], None] = lambda _: None


class Journal:
    """The log of one session, under one ownership. `earlier`: the entries of owners before."""

    def __init__(
        self,
        store: SessionStore,
        ownership: Ownership,
        earlier: Sequence[bytes] = (),
        *,
        outage_ns_max: int = OUTAGE_NS_MAX,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._outage_s_max = outage_ns_max / 1e9
        self._queue = LogQueue(store.limits, earlier, outage_ns_max=outage_ns_max)
        self._ports: JournalPorts | None = None
        self._is_suspended = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._renewal_due = False
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.errors = 0

    @property
    def session(self) -> str:
        return self._ownership.session

    @property
    def fence(self) -> int:
        """That of the ownership under which it writes."""
        return self._ownership.fence

    @property
    def is_over(self) -> bool:
        """Nothing more is written."""
        return self._queue.is_over or self.failed.cancelled()

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    @property
    def lost(self) -> int:
        """How many entries will not be written any more."""
        return self._queue.lost

    @property
    def suspended(self) -> bool:
        """Whether the store is failing to take what waits."""
        return self._queue.suspended

    def attach(self, ports: JournalPorts) -> None:
        """Before the first `write`."""
        self._ports = ports

    def compaction_due(self) -> bool:
        """Whether a `Compacted` of the whole conversation should be written now."""
        return self._queue.compaction_due()

    def write(self, entry: TurnRecord) -> None:
        """Take `entry`; it is written as soon as the store allows."""
        self._queue.write(entry)
        self._told()

    def late(self) -> None:
        """What waits has been waited for as long as sound may."""
        self._queue.late()
        self._told()

    def give_up(self) -> None:
        """What waits is lost: there is no more time."""
        self._queue.give_up()
        self._told()

    def _told(self) -> None:
        """The queue has changed: let those go on who wait for it."""
        if self._queue.end_reason is not None:
            self._end(self._queue.end_reason)
        elif self._ports is not None and self._queue.suspended is not self._is_suspended:
            self._is_suspended = self._queue.suspended
            self._ports.suspended(self._is_suspended)
        if self._queue.waiting or self._queue.must_reclaim:
            self._idle.clear()
        else:
            self._idle.set()
        if self._queue.is_crowded:
            self._has_room.clear()
        else:
            self._has_room.set()
        self._wake.set()

    def _end(self, reason: str) -> None:
        if not self.failed.done():
            self.failed.set_result(reason)

    async def until_room(self) -> None:
        """Wait, before more is taken of somebody who brings entries, until the store has had most of what waits."""
        await self._has_room.wait()

    def renew(self) -> None:
        """Have the lease renewed, which also tells whether the session is still there, and ours."""
        self._renewal_due = True
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled, or until nothing more can be written."""
        while not self.is_over:
            self._wake.clear()
            while (write := self._queue.next_write()) is not None or self._queue.must_reclaim:
                await self._ask(write)
            if self._renewal_due:
                await self._renew()
            await self._wake.wait()

    async def _ask(self, write: Write | None) -> None:
        try:
            if write is None or self._queue.must_reclaim:
                await self._reclaim()
            else:
                await self._write(write)
        except StoreError as error:
            pause_ms = self._failed(error)
            if not self._queue.is_over:
                await asyncio.sleep(pause_ms / 1000)
        else:
            self._told()

    async def _write(self, write: Write) -> None:
        put = self._store.compact if write.compacts else self._store.append
        await put(self._ownership, write.seq, write.entry)
        entry = self._queue.written()
        if entry is not None and self._ports is not None:
            self._ports.stored(entry)

    async def _reclaim(self) -> None:
        """Own the session again, above the fence that is known here. Without its token: who holds it now keeps it."""
        held = self._ownership
        self._ownership, _ = await self._store.acquire(
            held.session, held.owner, None, held.lease_ttl_ms, seen_fence=held.fence
        )
        assert self._ports is not None, "a call that writes has told what it is made of"
        self._queue.reclaimed(self._ports.whole())
        _log.error("store_went_back", session=self.session, fence=self._ownership.fence)

    def _failed(self, error: StoreError) -> int:
        self._count(error)
        pause_ms = self._queue.failed(error, time.monotonic_ns())
        is_usual = isinstance(error, StoreTrouble | StaleOwner | SessionUnknown)  # a takeover or a deletion is no fault
        report = _log.warning if is_usual else _log.error
        report("store_write_failed", session=self.session, error=type(error).__name__)
        self._told()
        return pause_ms

    def _count(self, error: StoreError) -> None:
        self.errors += 1
        if self._ports is not None:
            self._ports.store_failed(type(error).__name__)

    async def _renew(self) -> None:
        self._renewal_due = False
        try:
            await self._store.renew(self._ownership)
        except (SessionUnknown, StaleOwner, StoreWentBack) as error:
            _log.warning("session_lost", session=self.session, error=type(error).__name__)
            self._queue.failed(error, time.monotonic_ns())
            self._told()
        except StoreError as error:
            # Nothing is lost by that: it is asked again, and a write would have more to say.
            self._count(error)
            _log.warning("lease_not_renewed", session=self.session, error=type(error).__name__)

    async def release(self) -> None:
        """Give the lease back, once nothing runs here any more; one that cannot be given back runs out."""
        with suppress(StoreError):
            await self._store.renew(replace(self._ownership, lease_ttl_ms=0))

    async def flush(self, ns_max: int) -> bool:
        """Wait until everything was written, at most `ns_max`; False where it was not.

        Where the store is failing, or has much to take and takes it, wait for it as long as a call would.
        """
        written = self._queue.seq
        is_idle = await self._until_idle(ns_max / 1e9)
        if not is_idle and (self.suspended or self._queue.seq > written):
            is_idle = await self._until_idle(self._outage_s_max)
        return is_idle and not self.is_over and not self.lost

    async def _until_idle(self, s_max: float) -> bool:
        try:
            async with asyncio.timeout(s_max):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
