"""The session store as a model in memory: the same answers, on a clock and with faults of the test's choosing.

Theory of operation
    Each operation decides and writes without awaiting, so it is as atomic as a script in the server. The fault hook
    is asked once per operation and can lose the request (nothing happened), lose the reply (it happened, and the
    caller is not told), refuse the connection, or say that there is no room. `go_back` makes of the store what a
    replica that lagged would be.

Rules
* Same contract as the server's store; one suite runs against both.
* What it cannot represent: durability, time spent, a server that runs out of memory by bytes.
"""

from __future__ import annotations

import asyncio
import copy
import enum
import heapq
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from sessions.durability import Persistence
from sessions.memory_quotas import MemoryQuotas
from sessions.quotas import Account, Amounts, OverQuota, Quotas
from sessions.records import SessionRecord, encode_record
from sessions.store import (
    RETENTION_MS,
    Appended,
    CursorRefused,
    LeaseHeld,
    Listing,
    LogFull,
    LogLimits,
    Notice,
    NoticeKind,
    Ownership,
    SequenceGap,
    SessionExists,
    SessionUnknown,
    Snapshot,
    StoredSession,
    StoreFull,
    StoreTimeout,
    StoreUnavailable,
    TokenRefused,
    check_entry_size,
    check_fence,
    check_new_record,
    valid_session_id,
)

# A model for tests: far more sessions than one process serves, yet not without end.
SESSIONS_MAX = 10_000
# What one listener may leave unread; it loses what is said beyond that.
NOTICES_WAITING_MAX = 1_000


_Heard = TypeVar("_Heard")


class Fault(enum.Enum):
    """What befalls one operation."""

    REQUEST_LOST = "request lost"
    REPLY_LOST = "reply lost"
    UNAVAILABLE = "unavailable"
    FULL = "full"


@dataclass(slots=True)
class _Session:
    record: SessionRecord
    fence: int
    owner: str
    lease_until_ms: int
    expires_ms: int
    active_ms: int = 0
    seq: int = 0
    covered: int = 0
    entries: list[tuple[int, int, bytes]] = field(default_factory=list)
    log_bytes: int = 0

    def held(self, fence: int, seq: int) -> bytes | None:
        return next((entry for of, number, entry in self.entries if (of, number) == (fence, seq)), None)


@dataclass(frozen=True, slots=True)
class Moment:
    """What a store held."""

    sessions: dict[str, _Session]


class MemorySessionStore:
    """`now_ms` gives Unix time in milliseconds; `faults` is asked with the operation's name."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        *,
        faults: Callable[[str], Fault | None] = lambda _operation: None,
        limits: LogLimits | None = None,
        retention_ms: int = RETENTION_MS,
        sessions_max: int = SESSIONS_MAX,
    ) -> None:
        self.limits = limits or LogLimits()
        self._now_ms = now_ms
        self._faults = faults
        self._retention_ms = retention_ms
        self._sessions_max = sessions_max
        self._sessions: dict[str, _Session] = {}
        self._listeners: set[asyncio.Queue[Notice]] = set()
        self._readers: dict[str, asyncio.Queue[bytes]] = {}
        self._secrets: dict[tuple[str, bytes], tuple[bytes, int]] = {}
        self._quotas = MemoryQuotas(now_ms)
        self._closed = False

    async def create(
        self, record: SessionRecord, owner: str, lease_ttl_ms: int, *, retention_ms: int | None = None
    ) -> Ownership:
        check_new_record(record)
        after = self._enter("create")
        ownership = Ownership(record.session, owner, record.fence, lease_ttl_ms, retention_ms)
        self._create(record, ownership)
        self._leave(after)
        return ownership

    async def acquire(
        self,
        session: str,
        owner: str,
        token_digest: bytes | None,
        lease_ttl_ms: int,
        *,
        seen_fence: int = 0,
        retention_ms: int | None = None,
    ) -> tuple[Ownership, Snapshot]:
        after = self._enter("acquire")
        held = self._find(session)
        self._check_claim(held, owner, token_digest)
        went_back = held.fence < seen_fence
        held.fence, held.owner, held.seq, held.covered = max(held.fence, seen_fence) + 1, owner, 0, 0
        ownership = Ownership(session, owner, held.fence, lease_ttl_ms, retention_ms)
        self._touch(held, ownership)
        record = msgspec.structs.replace(held.record, fence=held.fence)
        self._leave(after)
        return ownership, Snapshot(record, tuple(entry for _, _, entry in held.entries), went_back)

    async def append(self, ownership: Ownership, seq: int, entry: bytes) -> Appended:
        check_entry_size(ownership.session, entry, self.limits.entry_bytes_max)
        after = self._enter("append")
        held = self._owned(ownership)
        if self._repeated(held, ownership, seq, entry):
            outcome = Appended.DUPLICATE
        else:
            self._append(held, ownership, entry)
            outcome = Appended.OK
        self._leave(after)
        return outcome

    async def compact(self, ownership: Ownership, seq: int, snapshot: bytes) -> Appended:
        check_entry_size(ownership.session, snapshot, self.limits.snapshot_bytes_max)
        after = self._enter("compact")
        held = self._owned(ownership)
        if self._repeated(held, ownership, seq, snapshot):
            outcome = Appended.DUPLICATE
        else:
            held.seq = held.covered = seq
            held.entries = [(held.fence, seq, snapshot)]
            held.log_bytes = len(snapshot)
            self._touch(held, ownership)
            outcome = Appended.OK
        self._leave(after)
        return outcome

    async def renew(self, ownership: Ownership) -> None:
        after = self._enter("renew")
        self._extend(self._owned(ownership), ownership)
        self._leave(after)

    async def delete(self, session: str) -> bool:
        after = self._enter("delete")
        self._expire()
        existed = self._sessions.pop(session, None) is not None
        self._say(Notice(NoticeKind.DELETED, session))
        self._leave(after)
        return existed

    async def listing(self, cursor: str, count: int) -> Listing:
        if cursor and not valid_session_id(cursor):
            raise CursorRefused
        after = self._enter("listing")
        self._expire()
        names = heapq.nsmallest(count, (name for name in self._sessions if name > cursor))
        last = max(self._sessions, default="")
        self._leave(after)
        return Listing(self._described(names), names[-1] if names and names[-1] != last else None)

    async def describe(self, sessions: Sequence[str]) -> tuple[StoredSession, ...]:
        after = self._enter("describe")
        self._expire()
        self._leave(after)
        return self._described(sessions)

    async def read(self, session: str) -> tuple[StoredSession, Snapshot]:
        after = self._enter("read")
        held = self._find(session)
        self._leave(after)
        record = msgspec.structs.replace(held.record, fence=held.fence)
        return self._described([session])[0], Snapshot(record, tuple(entry for _, _, entry in held.entries))

    async def notify(self, notice: Notice) -> None:
        after = self._enter("notify")
        self._say(notice)
        self._leave(after)

    @asynccontextmanager
    async def notices(self) -> AsyncIterator[AsyncIterator[Notice]]:
        self._leave(self._enter("notices"))
        heard: asyncio.Queue[Notice] = asyncio.Queue(NOTICES_WAITING_MAX)
        self._listeners.add(heard)
        try:
            yield _each(heard)
        finally:
            self._listeners.discard(heard)

    async def send(self, owner: str, letter: bytes) -> bool:
        after = self._enter("send")
        letters = self._readers.get(owner)
        if letters is not None and not letters.full():
            letters.put_nowait(letter)
        self._leave(after)
        return letters is not None

    @asynccontextmanager
    async def letters(self, owner: str) -> AsyncIterator[AsyncIterator[bytes]]:
        self._leave(self._enter("letters"))
        letters: asyncio.Queue[bytes] = asyncio.Queue(NOTICES_WAITING_MAX)
        self._readers[owner] = letters
        try:
            yield _each(letters)
        finally:
            del self._readers[owner]

    async def keep_secret(self, holder: str, digest: bytes, grant: bytes, ttl_ms: int, secrets_max: int) -> bool:
        after = self._enter("secret")
        now_ms = self._now_ms()
        self._secrets = {one: held for one, held in self._secrets.items() if held[1] > now_ms}
        is_kept = (holder, digest) in self._secrets or sum(of == holder for of, _ in self._secrets) < secrets_max
        if is_kept:
            self._secrets[holder, digest] = grant, now_ms + ttl_ms
        self._leave(after)
        return is_kept

    async def find_secret(self, holder: str, digest: bytes) -> bytes | None:
        after = self._enter("secret")
        grant, until_ms = self._secrets.get((holder, digest), (None, 0))
        self._leave(after)
        return grant if until_ms > self._now_ms() else None

    async def spend_secret(self, holder: str, digest: bytes) -> bytes | None:
        after = self._enter("secret")
        grant, until_ms = self._secrets.pop((holder, digest), (None, 0))
        self._leave(after)
        return grant if until_ms > self._now_ms() else None

    async def open_account(
        self, tenant: str, lease: str, ttl_ms: int, quotas: Quotas, wanted: Amounts
    ) -> Account | OverQuota:
        after = self._enter("account")
        opened = self._quotas.open(tenant, lease, ttl_ms, quotas, wanted)
        self._leave(after)
        return opened

    async def draw(self, tenant: str, lease: str, ttl_ms: int, quotas: Quotas, wanted: Amounts) -> Account | None:
        after = self._enter("draw")
        drawn = self._quotas.draw(tenant, lease, ttl_ms, quotas, wanted)
        self._leave(after)
        return drawn

    async def close_account(self, tenant: str, lease: str, day: int, unspent: Amounts) -> None:
        after = self._enter("account")
        self._quotas.close(tenant, lease, day, unspent)
        self._leave(after)

    async def ping(self) -> None:
        self._leave(self._enter("ping"))

    async def persistence(self) -> Persistence:
        return Persistence(appendonly=False)

    async def close(self) -> None:
        self._closed = True

    def moment(self) -> Moment:
        """All that is stored now."""
        return Moment(copy.deepcopy(self._sessions))

    def go_back(self, moment: Moment) -> None:
        """Forget what was written since."""
        self._sessions = copy.deepcopy(moment.sessions)

    def _enter(self, operation: str) -> Fault | None:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        fault = self._faults(operation)
        if fault is Fault.UNAVAILABLE:
            raise StoreUnavailable(operation)
        if fault is Fault.FULL:
            raise StoreFull(operation)
        if fault is Fault.REQUEST_LOST:
            raise StoreTimeout(operation)
        return fault

    @staticmethod
    def _leave(fault: Fault | None) -> None:
        if fault is Fault.REPLY_LOST:
            raise StoreTimeout("the reply was lost")

    def _expire(self) -> None:
        now_ms = self._now_ms()
        for session in [name for name, held in self._sessions.items() if held.expires_ms <= now_ms]:
            del self._sessions[session]

    def _say(self, notice: Notice) -> None:
        for heard in self._listeners:
            if not heard.full():
                heard.put_nowait(notice)

    def _described(self, names: Sequence[str]) -> tuple[StoredSession, ...]:
        found = (self._sessions[name] for name in names if name in self._sessions)
        return tuple(
            StoredSession(
                held.record.session,
                held.record.tenant,
                held.owner,
                held.fence,
                held.record.created_ms,
                held.active_ms,
                max(0, held.lease_until_ms - self._now_ms()),
                len(held.entries),
                held.log_bytes,
                len(encode_record(held.record)),
            )
            for held in found
        )

    def _touch(self, held: _Session, ownership: Ownership) -> None:
        held.active_ms = self._now_ms()
        self._extend(held, ownership)

    def _extend(self, held: _Session, ownership: Ownership) -> None:
        now_ms, retention_ms = self._now_ms(), ownership.retention_ms
        held.lease_until_ms = now_ms + ownership.lease_ttl_ms
        held.expires_ms = now_ms + (self._retention_ms if retention_ms is None else retention_ms)

    def _create(self, record: SessionRecord, ownership: Ownership) -> None:
        self._expire()
        owner = ownership.owner
        held = self._sessions.get(record.session)
        if held is None:
            if len(self._sessions) >= self._sessions_max:
                raise StoreFull(f"{self._sessions_max} sessions are stored")
            held = self._sessions[record.session] = _Session(record, record.fence, owner, 0, 0)
        elif (held.record, held.fence, held.owner, held.seq) != (record, record.fence, owner, 0):
            raise SessionExists(record.session)
        self._touch(held, ownership)

    def _find(self, session: str) -> _Session:
        self._expire()
        held = self._sessions.get(session)
        if held is None:
            raise SessionUnknown(session)
        return held

    def _check_claim(self, held: _Session, owner: str, token_digest: bytes | None) -> None:
        session = held.record.session
        if token_digest is not None:
            if token_digest != held.record.token_digest:
                raise TokenRefused(session)
            return
        remaining_ms = held.lease_until_ms - self._now_ms()
        if remaining_ms > 0 and held.owner != owner:
            raise LeaseHeld(session, held.owner, remaining_ms)

    def _owned(self, ownership: Ownership) -> _Session:
        held = self._find(ownership.session)
        if (held.fence, held.owner) != (ownership.fence, ownership.owner):
            check_fence(ownership, held.fence)
        return held

    @staticmethod
    def _repeated(held: _Session, ownership: Ownership, seq: int, entry: bytes) -> bool:
        """Whether `seq` was taken already. Raises `SequenceGap` if it is neither that nor the next."""
        if seq == held.seq + 1:
            return False
        if 0 < seq < held.covered or (0 < seq <= held.seq and held.held(ownership.fence, seq) == entry):
            return True
        raise SequenceGap(ownership.session, held.seq + 1)

    def _append(self, held: _Session, ownership: Ownership, entry: bytes) -> None:
        too_many = len(held.entries) >= self.limits.entries_max
        if too_many or held.log_bytes + len(entry) > self.limits.bytes_max:
            raise LogFull(ownership.session)
        held.seq += 1
        held.entries.append((held.fence, held.seq, entry))
        held.log_bytes += len(entry)
        self._touch(held, ownership)


async def _each(heard: asyncio.Queue[_Heard]) -> AsyncIterator[_Heard]:
    while True:
        yield await heard.get()
