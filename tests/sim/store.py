"""The store of a simulated world: the model that keeps the server's contract, behind lines that fail.

Theory of operation
    A request travels to the store, is carried out there at one moment, and its answer travels back. The gateway waits
    `TIMEOUT_MS` for it; a request that is still under way then arrives all the same, which is how a late writer comes
    about. `StoreWatch` keeps a book of its own of who owned what and what was written. A fail-over to a replica that
    lagged makes of the store what that held, and of the book what it said then.

Rules
* At most one owner's writes are taken under each fence, in their order, each once; none under an earlier one.
* What was deleted is written no more, and owned by nobody.
* What a new owner gets is everything that was written, in its order; whoever is asked (`taken_over`) says whether it is
  all that was said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from sessions.log import Log, replay
from sessions.memory_store import MemorySessionStore, Moment
from sessions.quota_scripts import LEASES_PER_SESSION_MAX, SESSION_RETRY_MS
from sessions.quotas import KINDS, Account, Amounts, OverQuota, Quotas
from sessions.records import (
    CallBegun,
    Compacted,
    Conversation,
    ItemAppended,
    SessionRecord,
    TurnRecord,
    decode_entry,
)
from sessions.store import (
    Appended,
    LeaseHeld,
    LogLimits,
    Ownership,
    Snapshot,
    StaleOwner,
    StoredSession,
    StoreError,
    StoreFull,
    StoreTimeout,
    StoreUnavailable,
)
from tests.sim.clock import MS, Clock

TIMEOUT_MS = 400
LEASE_TTL_MS = 1_500
# So small that a call of a few seconds is compacted.
LIMITS = LogLimits(compact_entries=12, entries_max=64)
ANSWER_MS_MAX = 1.0

_Result = TypeVar("_Result")
Answer = Callable[[Any], None]


@dataclass(slots=True)
class _Book:
    """What is known of one session. `owners` by fence; `seq` entries under `fence`. `has_gone_back`: what its owner has
    written may be lost."""

    record: SessionRecord
    owners: dict[int, str]
    fence: int = 1
    seq: int = 0
    log: list[TurnRecord] = field(default_factory=list)
    has_gone_back: bool = False

    def copy(self) -> _Book:
        return replace(self, owners=dict(self.owners), log=list(self.log), has_gone_back=True)


@dataclass(frozen=True, slots=True)
class _Replica:
    """What one that lags has, and what it would be right for it to have."""

    held: Moment
    books: dict[str, _Book]
    deleted: frozenset[str]


class StoreWatch:
    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._books: dict[str, _Book] = {}
        self._deleted: set[str] = set()
        self.taken_over: Callable[[str, int, Conversation], None] = lambda session, fence, stored: None
        self.went_back: Callable[[str], object] = lambda session: None
        self.called: Callable[[str], object] = lambda owner: None
        self._begun: set[tuple[str, str]] = set()  # calls of tools of which the log has said so

    def count(self, what: str) -> None:
        self._counts[what] += 1

    def created(self, record: SessionRecord, ownership: Ownership) -> None:
        assert record.session not in self._deleted, "what was deleted is not made again"
        if record.session not in self._books:
            self._books[record.session] = _Book(record, {1: ownership.owner})

    def acquired(self, ownership: Ownership, snapshot: Snapshot, seen_fence: int) -> None:
        book = self._book(ownership.session)
        assert ownership.fence == max(book.fence, seen_fence) + 1, "each owner has a fence of its own"
        if book.has_gone_back:
            self._counts["takeovers behind a fail-over"] += 1
        else:
            self.taken_over(ownership.session, book.fence, self._under_way(book))
        book.fence, book.seq, book.has_gone_back = ownership.fence, 0, False
        book.owners[ownership.fence] = ownership.owner
        wanted = replay(snapshot.record, book.log)
        given = replay(snapshot.record, [decode_entry(entry) for entry in snapshot.entries])
        assert given == wanted, "a new owner gets all that was written"
        self._counts["takeovers"] += 1

    @staticmethod
    def _under_way(book: _Book) -> Conversation:
        """What is written, with what is being said still told apart."""
        log = Log(Conversation((), book.record.config, book.record.epoch))
        for entry in book.log:
            log.apply(entry)
        return log.conversation()

    def written(self, ownership: Ownership, seq: int, entry: bytes, outcome: Appended) -> None:
        book = self._book(ownership.session)
        assert ownership.fence == book.fence, f"a late writer of fence {ownership.fence} was heard"
        assert ownership.owner == book.owners[book.fence], "one owner writes under a fence"
        if outcome is Appended.DUPLICATE:
            self._counts["entries written twice"] += 1
            assert seq <= book.seq
            return
        book.seq += 1
        assert seq == book.seq, "entries are written in their order"
        record = decode_entry(entry)
        book.log.append(record)
        if isinstance(record, ItemAppended) and record.item.kind == "function_call":
            self.called(ownership.owner)
        if isinstance(record, CallBegun):
            self._begun.add((ownership.session, record.call.id))
        elif isinstance(record, Compacted):
            self._begun.update((ownership.session, call.id) for call in record.calls)

    def has_begun(self, session: str, call_id: str) -> bool:
        """The log has said that this call is about to be made."""
        return (session, call_id) in self._begun

    def _book(self, session: str) -> _Book:
        assert session not in self._deleted, f"{session} was deleted, and is there again"
        return self._books[session]

    def deleted(self, session: str) -> None:
        del self._books[session]
        self._deleted.add(session)

    def replica(self, held: Moment) -> _Replica:
        """A replica that has no more than is `held` now."""
        return _Replica(held, {name: book.copy() for name, book in self._books.items()}, frozenset(self._deleted))

    def failed_over(self, replica: _Replica) -> None:
        for name, book in self._books.items():
            had = replica.books.get(name)
            self._counts["sessions lost by a fail-over"] += had is None
            is_same = had is not None and (had.fence, had.seq) == (book.fence, book.seq)
            if had is not None and not is_same:
                self._counts["sessions gone back"] += 1
                self.went_back(name)
            if had is not None and is_same:
                had.has_gone_back = book.has_gone_back
        self._books, self._deleted = replica.books, set(replica.deleted)

    def conversation(self, session: str) -> Conversation:
        """What is written of `session`."""
        book = self._books[session]
        return replay(book.record, book.log)


def _session_of(lease: str) -> str:
    return lease.split(":", maxsplit=1)[0]


def _now(operation: Coroutine[Any, Any, _Result]) -> _Result:
    """The model answers without ever waiting."""
    try:
        operation.send(None)
    except StopIteration as stop:
        result: _Result = stop.value
        return result
    raise AssertionError("the model of the store waited")


class Store:
    def __init__(self, clock: Clock, counts: Counter[str]) -> None:
        self.model = MemorySessionStore(lambda: clock.wall_ms, limits=LIMITS)
        self.watch = StoreWatch(counts)

    def create(self, record: SessionRecord, owner: str) -> Ownership:
        ownership = _now(self.model.create(record, owner, LEASE_TTL_MS))
        self.watch.created(record, ownership)
        return ownership

    def acquire(
        self, session: str, owner: str, digest: bytes | None, *, seen_fence: int = 0
    ) -> tuple[Ownership, Snapshot]:
        ownership, snapshot = _now(self.model.acquire(session, owner, digest, LEASE_TTL_MS, seen_fence=seen_fence))
        self.watch.acquired(ownership, snapshot, seen_fence)
        return ownership, snapshot

    def renew(self, ownership: Ownership) -> None:
        _now(self.model.renew(ownership))

    def describe(self, session: str) -> tuple[StoredSession, ...]:
        return _now(self.model.describe([session]))

    def delete(self, session: str) -> bool:
        existed = _now(self.model.delete(session))
        if existed:
            self.watch.deleted(session)
        return existed

    def open_account(self, tenant: str, lease: str, quotas: Quotas, wanted: Amounts) -> Account | OverQuota:
        before = self._leases_of(tenant)
        own = before[_session_of(lease)]
        opened = _now(self.model.open_account(tenant, lease, LEASE_TTL_MS, quotas, wanted))
        if opened == OverQuota("sessions", SESSION_RETRY_MS):
            assert own == 0 or own >= LEASES_PER_SESSION_MAX, f"the place that is taken is that of {lease} itself"
        elif own and len(before) >= (quotas.sessions or 0):
            self.watch.count("tenants at their quota returned to")
        self._check_sessions(tenant, quotas, len(before))
        self._check_account(tenant, quotas)
        return opened

    def draw(self, tenant: str, lease: str, quotas: Quotas, wanted: Amounts) -> Account | None:
        before = self._leases_of(tenant)
        drawn = _now(self.model.draw(tenant, lease, LEASE_TTL_MS, quotas, wanted))
        self._check_sessions(tenant, quotas, len(before))
        self._check_account(tenant, quotas)
        return drawn

    def close_account(self, tenant: str, lease: str, day: int, unspent: Amounts) -> bool:
        """Whether the lease was still there, and what is unspent goes back."""
        before, _ = self.account(tenant)
        _now(self.model.close_account(tenant, lease, day, unspent))
        return self.account(tenant)[0] < before

    def _check_sessions(self, tenant: str, quotas: Quotas, before: int) -> None:
        """What was asked while more were allowed may still have its place."""
        sessions = len(self._leases_of(tenant))
        assert sessions <= max(before, quotas.sessions or sessions), f"{tenant} has {sessions} sessions"
        numbers = Counter(lease.split(":", maxsplit=1)[1] for lease in self.model._quotas._now_of(tenant).leases)
        assert set(numbers.values()) <= {1}, f"a call of {tenant} has two leases: {numbers}"

    def _check_account(self, tenant: str, quotas: Quotas) -> None:
        _, used = self.account(tenant)
        for kind in KINDS:
            most = quotas.of_day(kind)
            assert most is None or 0 <= used.get(kind, 0) <= most, f"{tenant} was given {used}"

    def _leases_of(self, tenant: str) -> Counter[str]:
        """How many each session has."""
        return Counter(map(_session_of, self.model._quotas._now_of(tenant).leases))

    def account(self, tenant: str) -> tuple[int, Amounts]:
        """How many leases it has, and what it was given today."""
        held = self.model._quotas._now_of(tenant)
        return len(held.leases), held.used

    def replica(self) -> _Replica:
        """One that has all that is stored now, and nothing of what follows."""
        return self.watch.replica(self.model.moment())

    def fail_over(self, replica: _Replica) -> None:
        self.model.go_back(replica.held)
        self.watch.failed_over(replica)

    def write(self, ownership: Ownership, seq: int, entry: bytes, *, compacts: bool) -> Appended:
        put = self.model.compact if compacts else self.model.append
        outcome = _now(put(ownership, seq, entry))
        self.watch.written(ownership, seq, entry, outcome)
        return outcome


@dataclass(slots=True)
class Weather:
    """How one gateway reaches the store. `is_held`: what is sent waits; the shares are of all requests."""

    is_held: bool = False
    delay_ms_max: float = ANSWER_MS_MAX
    unavailable: float = 0.0
    full: float = 0.0
    request_lost: float = 0.0
    reply_lost: float = 0.0


class StoreLine:
    """A gateway's connections to the store. `random` is its own."""

    def __init__(self, clock: Clock, store: Store, random: Random, counts: Counter[str]) -> None:
        self.weather = Weather()
        self.store = store
        self._clock = clock
        self._random = random
        self._counts = counts
        self._waiting: list[Callable[[], None]] = []
        self.under_way = 0

    def ask(self, operation: Callable[[], object], answer: Answer) -> None:
        """Have `operation` carried out at the store; `answer` gets its result, or the `StoreError` that it raised."""
        call = _Call(answer)
        if self._falls_to("unavailable", self.weather.unavailable):
            self._clock.after(self._delay_ms(), call.end, StoreUnavailable("by chance"))
            return
        self._clock.after(TIMEOUT_MS, call.end, StoreTimeout("no answer"))
        if not self._falls_to("store requests lost", self.weather.request_lost):
            self.under_way += 1
            self._clock.after(self._delay_ms(), self._arrive, operation, call)

    def _falls_to(self, what: str, share: float) -> bool:
        falls = share > 0 and self._random.random() < share
        self._counts[what] += falls
        return falls

    def _delay_ms(self) -> float:
        return self._random.random() * self.weather.delay_ms_max

    def _arrive(self, operation: Callable[[], object], call: _Call) -> None:
        if self.weather.is_held:
            self._waiting.append(lambda: self._arrive(operation, call))
            return
        self.under_way -= 1
        self._counts["late requests"] += call.is_over
        try:
            result = StoreFull("by chance") if self._falls_to("full", self.weather.full) else operation()
        except StoreError as error:
            self._counts["writers fenced off"] += isinstance(error, StaleOwner)
            self._counts["leases held"] += isinstance(error, LeaseHeld)
            result = error
        if not self._falls_to("store replies lost", self.weather.reply_lost):
            self._clock.after(self._delay_ms(), call.end, result)

    def clear_up(self) -> None:
        """All is well again, and what has waited arrives."""
        self.weather = Weather()
        waiting, self._waiting = self._waiting, []
        for arrive in waiting:
            self._clock.at(self._clock.now_ns + int(self._delay_ms() * MS), arrive)


class _Call:
    """One request; whatever ends it first counts."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.is_over = False

    def end(self, result: object) -> None:
        if not self.is_over:
            self.is_over = True
            self._answer(result)
