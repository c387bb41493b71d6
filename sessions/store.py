"""The contract of a session store: who owns a session, and what has been written of it.

Theory of operation
    `create` makes a session and its first owner. `acquire` makes the next one: the fence rises by one, and from then
    on whatever the earlier owner still sends is refused. An owner numbers its entries 1, 2, 3…; `append` takes
    the next one, and knows a repeated one. A call that timed out may or may not have happened: repeat it as it was.

    Beside that, a store says which sessions it holds (`listing`, `describe`, `read`), to whoever operates the service,
    and carries notices to all gateways, of what has become of a session, and letters from one owner to another.
    Both may be lost; what a notice tells shows at the owner's next write or renewal all the same. It also keeps secrets
    that are good for one call, whichever gateway is shown them.

Rules
* All decisions (existence, owner, fence, sequence, limits, lease) and the write they allow are one atomic operation.
* A late writer can neither fork a session nor bring a deleted one back.
* The lease only answers who may take over unasked. What protects the log is the fence.
* Every write postpones the end of retention; then all of the session vanishes at once.
* Session ids are random, never reused and at most 128 of `A-Z a-z 0-9 _ -`.

Errors, by who must act
    StoreError
    ├── ClientError            the client: its session or token is not good
    │   ├── SessionUnknown
    │   ├── TokenRefused
    │   └── CursorRefused
    ├── OwnerError             this gateway: the session is somebody else's
    │   ├── StaleOwner         stop serving it
    │   └── LeaseHeld          leave it alone, or ask again once the lease has run out
    ├── WriterError            the code that writes: a bug, or a limit it has to heed
    │   ├── SessionExists
    │   ├── SequenceGap
    │   ├── EntryTooLarge
    │   └── LogFull            compact, then append again
    ├── StoreTrouble           nobody yet: repeat the call as it was, it may pass
    │   ├── StoreTimeout       no answer: it may have happened
    │   └── StoreUnavailable   a connection that broke (it may have happened), or a server that cannot answer now
    └── OperatorError          the operator of the store
        ├── StoreFull          makes room; the call may be repeated as it was until then
        ├── StoreRefused
        ├── StoreWentBack      the store has lost what it had acknowledged
        └── StoreUnsuitable
"""

from __future__ import annotations

import enum
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from sessions.durability import Persistence
from sessions.quotas import Account, Amounts, OverQuota, Quotas
from sessions.records import FIRST_FENCE, SessionRecord, StoredDataError, decode_record

# How long a silent session can still be resumed. A Realtime session lasts an hour at most; a day also covers
# the caller who comes back the next morning, and bounds what an abandoned one costs.
RETENTION_MS = 24 * 60 * 60 * 1000

_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class StoreError(Exception):
    """Base of all failures of a store. Texts name sessions, never what they hold."""


class ClientError(StoreError):
    """The client asked for what it cannot have."""


class SessionUnknown(ClientError):
    """Never made, deleted, or past its retention."""

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session} does not exist")
        self.session = session


class TokenRefused(ClientError):
    """The resume token is not this session's."""

    def __init__(self, session: str) -> None:
        super().__init__(f"the resume token is not that of session {session}")
        self.session = session


class CursorRefused(ClientError):
    """No listing gave this cursor."""

    def __init__(self) -> None:
        super().__init__("the cursor is not one that a listing gave")


class OwnerError(StoreError):
    """The session belongs to another owner."""


class StaleOwner(OwnerError):
    """A later owner has taken the session: `fence` is now in force."""

    def __init__(self, session: str, fence: int) -> None:
        super().__init__(f"session {session} was taken over; its fence is {fence}")
        self.session = session
        self.fence = fence


class LeaseHeld(OwnerError):
    """`owner` holds the session for another `remaining_ms`."""

    def __init__(self, session: str, owner: str, remaining_ms: int) -> None:
        super().__init__(f"session {session} is held by {owner} for another {remaining_ms} ms")
        self.session = session
        self.owner = owner
        self.remaining_ms = remaining_ms


class WriterError(StoreError):
    """The writer did not keep to the contract."""


class SessionExists(WriterError):
    """The id is taken."""

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session} exists already")
        self.session = session


class SequenceGap(WriterError):
    """Not the next entry (`expected`), and not a repetition of one that was taken."""

    def __init__(self, session: str, expected: int) -> None:
        super().__init__(f"session {session} expects entry {expected}")
        self.session = session
        self.expected = expected


class EntryTooLarge(WriterError):
    """An entry of `size` bytes, where `size_max` are allowed."""

    def __init__(self, session: str, size: int, size_max: int) -> None:
        super().__init__(f"session {session}: an entry of {size} bytes; {size_max} are allowed")
        self.session = session
        self.size = size
        self.size_max = size_max


class LogFull(WriterError):
    """The log has reached `LogLimits`: compact it."""

    def __init__(self, session: str) -> None:
        super().__init__(f"the log of session {session} is full")
        self.session = session


class StoreTrouble(StoreError):
    """The store could not be asked; a repeated call may pass."""


class StoreTimeout(StoreTrouble):
    """No answer in time: it may or may not have happened. Repeat the call as it was."""


class StoreUnavailable(StoreTrouble):
    """No connection, one that broke, or a server that starts, fails over or is busy with a script.

    With a connection that broke, it may have happened.
    """


class OperatorError(StoreError):
    """The store itself needs care."""


class StoreFull(OperatorError):
    """The store is out of memory, or its disk takes no more: nothing was written. It may pass."""


class StoreRefused(OperatorError):
    """The store refused the command: rights, or what is there is not ours."""


class StoreWentBack(OperatorError):
    """The session's fence is `fence` again, though a later one was given out: writes that were acknowledged are lost.

    So it is after a fail-over to a replica that lagged. Only `acquire` with the fence that was seen helps.
    """

    def __init__(self, session: str, fence: int) -> None:
        super().__init__(f"the store has gone back: the fence of session {session} is {fence}")
        self.session = session
        self.fence = fence


class StoreUnsuitable(OperatorError):
    """A server that cannot keep what this service promises."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """The right to write, until somebody takes over. Each write renews the lease for `lease_ttl_ms`, and the session is
    kept for `retention_ms` from then on; None: for as long as the store keeps others."""

    session: str
    owner: str
    fence: int
    lease_ttl_ms: int
    retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a new owner starts from: the record under its fence, and the entries, oldest first.

    `went_back`: the store had forgotten a later owner, and with it what that one wrote.
    """

    record: SessionRecord
    entries: tuple[bytes, ...]
    went_back: bool = False


@dataclass(frozen=True, slots=True)
class StoredSession:
    """What a store says of a session without opening it.

    Times are Unix time in milliseconds by the store's clock but `created_ms`, which its maker gave. `active_ms` is that
    of the last write; a renewal is none. `lease_ms` is what is left of `owner`'s lease, 0 where nobody holds it.
    `entries` and `log_bytes` are the log's, `record_bytes` the record's. `tenant` is empty and `created_ms` 0 where the
    record cannot be read.
    """

    session: str
    tenant: str
    owner: str
    fence: int
    created_ms: int
    active_ms: int
    lease_ms: int
    entries: int
    log_bytes: int
    record_bytes: int


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of sessions, in no order. `cursor` asks for the next page, which may be empty; None: this is the last."""

    sessions: tuple[StoredSession, ...]
    cursor: str | None


class NoticeKind(enum.StrEnum):
    """What is said of a session to all gateways."""

    DELETED = "deleted"  # it is gone
    END = "end"  # its owner shall end the call
    TAKEN = "taken"  # it has another owner now


@dataclass(frozen=True, slots=True)
class Notice:
    """One gateway to all, itself among them."""

    kind: NoticeKind
    session: str


class Appended(enum.Enum):
    """How an append went; both mean that the entry is stored, once."""

    OK = "ok"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class LogLimits:
    """What one session may occupy, so that a takeover reads a bounded amount in one atomic step.

    `entry_bytes_max` bounds one entry and `snapshot_bytes_max` a compacted one; `entries_max` and `bytes_max`
    bound the log. An owner compacts at `compact_entries` or `compact_bytes`, well before the log is full, so that
    a call goes on while a compaction has to be repeated.
    """

    entry_bytes_max: int = 256 * 1024
    snapshot_bytes_max: int = 2 * 1024 * 1024
    entries_max: int = 1024
    bytes_max: int = 4 * 1024 * 1024
    compact_entries: int = 512
    compact_bytes: int = 3 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 0 < self.compact_entries < self.entries_max:
            raise ValueError("compact_entries must be below entries_max")
        if not 0 < self.snapshot_bytes_max < self.compact_bytes < self.bytes_max:
            raise ValueError("snapshot_bytes_max < compact_bytes < bytes_max must hold")
        if not 0 < self.entry_bytes_max <= self.bytes_max - self.snapshot_bytes_max:
            raise ValueError("an entry must fit behind the largest snapshot")

    def compaction_due(self, entries: int, log_bytes: int) -> bool:
        """Whether the owner of a log of this size should compact it now."""
        return entries >= self.compact_entries or log_bytes >= self.compact_bytes


class SessionStore(Protocol):
    """See the module. Beside what each method names, all raise `StoreTrouble` and `OperatorError`."""

    @property
    def limits(self) -> LogLimits: ...

    async def create(
        self, record: SessionRecord, owner: str, lease_ttl_ms: int, *, retention_ms: int | None = None
    ) -> Ownership:
        """Make the session; `owner` holds it under fence 1. The same call may be repeated until the first entry.

        Raises `SessionExists`, and ValueError for a record that cannot be that of a new session.
        """
        ...

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
        """Take the session over: one above its fence, and above `seen_fence`, the greatest that anybody has seen.

        With the right token at once; without one, when the lease has run out or is `owner`'s own. A TTL of 0
        leaves it free for the next. Raises `SessionUnknown`, `TokenRefused` or `LeaseHeld`.
        """
        ...

    async def append(self, ownership: Ownership, seq: int, entry: bytes) -> Appended:
        """Store entry `seq` (1 for the owner's first) and renew the lease.

        The same entry again is DUPLICATE, as is any that a compaction by this owner covers.
        Raises `SessionUnknown`, `StaleOwner`, `StoreWentBack`, `SequenceGap`, `EntryTooLarge` or `LogFull`. A gap at an
        entry that was stored already means that the store has gone back, too.
        """
        ...

    async def compact(self, ownership: Ownership, seq: int, snapshot: bytes) -> Appended:
        """Like `append`, but `snapshot` then stands for all that came before, which is dropped in the same step."""
        ...

    async def renew(self, ownership: Ownership) -> None:
        """Extend the lease and retention; a TTL of 0 gives the lease back.

        Raises `SessionUnknown`, `StaleOwner` or `StoreWentBack`.
        """
        ...

    async def delete(self, session: str) -> bool:
        """Remove all of the session, whoever owns it; false if there was nothing.

        Its owner learns by a notice, or by its next call.
        """
        ...

    async def listing(self, cursor: str, count: int) -> Listing:
        """About `count` sessions from `cursor` on; an empty one begins.

        All pages together name each session that is there throughout, seldom one twice. Raises `CursorRefused`.
        """
        ...

    async def describe(self, sessions: Sequence[str]) -> tuple[StoredSession, ...]:
        """Those of `sessions` that are there, in their order."""
        ...

    async def read(self, session: str) -> tuple[StoredSession, Snapshot]:
        """All of a session, of one moment; nothing of it changes. Raises `SessionUnknown` or `StoredDataError`."""
        ...

    async def notify(self, notice: Notice) -> None:
        """Say it to whoever listens now."""
        ...

    def notices(self) -> AbstractAsyncContextManager[AsyncIterator[Notice]]:
        """What is said from the entering on. Ends with the error of a connection that is lost."""
        ...

    async def send(self, owner: str, letter: bytes) -> bool:
        """Give `letter` to `owner`; false where nobody of that name reads letters now."""
        ...

    def letters(self, owner: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """What is sent to `owner` from the entering on. Ends with the error of a connection that is lost."""
        ...

    async def keep_secret(self, holder: str, digest: bytes, grant: bytes, ttl_ms: int, secrets_max: int) -> bool:
        """Keep `grant` for whoever shows the secret of `digest`, in place of what it has granted until now; false
        where `secrets_max` others of `holder` are kept. A holder's name is one that a session could have."""
        ...

    async def find_secret(self, holder: str, digest: bytes) -> bytes | None:
        """What the secret of `digest` grants, where `holder` has it and its time is not over."""
        ...

    async def spend_secret(self, holder: str, digest: bytes) -> bytes | None:
        """The same, to one of all that ever ask for it; it is kept no longer."""
        ...

    async def open_account(
        self, tenant: str, lease: str, ttl_ms: int, quotas: Quotas, wanted: Amounts
    ) -> Account | OverQuota:
        """Enter a call of `tenant` under `lease`, and draw what is `wanted` of the day's quotas, as far as there is
        any; all in one step. Nothing is entered where a quota is used up, but that of tool calls.

        A lease is called `<session>:<number>`: those of one session take one place, and who comes back to a session
        that has one starts none."""
        ...

    async def draw(self, tenant: str, lease: str, ttl_ms: int, quotas: Quotas, wanted: Amounts) -> Account | None:
        """Draw more, and renew the lease, which has this name from now on; None where it has run out and its place is
        another's."""
        ...

    async def close_account(self, tenant: str, lease: str, day: int, unspent: Amounts) -> None:
        """The call is over: its place is free. What is `unspent` goes back, where all was drawn on `day`, today."""
        ...

    async def ping(self) -> None:
        """Return if the store answers and takes writes."""
        ...

    async def persistence(self) -> Persistence:
        """What becomes of what it acknowledges, as it says itself."""
        ...

    async def close(self) -> None:
        """Give back connections. Later calls raise `StoreUnavailable`."""
        ...


def valid_session_id(session: str) -> bool:
    """Whether a session may have this id: it is part of key names, so its alphabet is closed."""
    return _SESSION_ID.fullmatch(session) is not None


def describe_record(stored: bytes) -> tuple[str, int]:
    """Tenant and time of making, as `StoredSession` has them."""
    try:
        record = decode_record(stored)
    except StoredDataError:
        return "", 0
    return record.tenant, record.created_ms


def check_new_record(record: SessionRecord) -> None:
    """Raises ValueError unless `record` can be that of a new session."""
    if not valid_session_id(record.session):
        raise ValueError(f"{record.session!r} cannot be the id of a session")
    if record.fence != FIRST_FENCE:
        raise ValueError(f"a new session starts at fence {FIRST_FENCE}, not {record.fence}")


def check_fence(ownership: Ownership, fence: int) -> None:
    """For one whose session is not its own any more: raises `StoreWentBack` where the present `fence` is an earlier
    one, since fences only rise, and else `StaleOwner`."""
    if fence < ownership.fence:
        raise StoreWentBack(ownership.session, fence)
    raise StaleOwner(ownership.session, fence)


def check_entry_size(session: str, entry: bytes, size_max: int) -> None:
    """Raises `EntryTooLarge`."""
    if len(entry) > size_max:
        raise EntryTooLarge(session, len(entry), size_max)
