"""The store of a simulated world: the model that keeps the server's contract, behind lines that fail.

Theory of operation
    A request travels to the store, is carried out there at one moment, and its answer travels back. The gateway waits
    `TIMEOUT_MS` for it; a request that is still under way then arrives all the same, which is how a late writer comes
    about. `StoreWatch` keeps a book of its own of who owned what and what was written.

Rules
* At most one owner's writes are taken under each fence, in their order, each once; none under an earlier one.
* What a new owner gets is everything that was written, in its order; whoever is asked (`taken_over`) says whether it is
  all that was said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from sessions.log import Log, replay
from sessions.memory_store import MemorySessionStore
from sessions.records import Conversation, SessionRecord, TurnRecord, decode_entry
from sessions.store import (
    Appended,
    LeaseHeld,
    LogLimits,
    Ownership,
    Snapshot,
    StaleOwner,
    StoreError,
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
    """What is known of one session. `owners` by fence; `entries` under `fence`."""

    record: SessionRecord
    owners: dict[int, str]
    fence: int = 1
    seq: int = 0
    log: list[TurnRecord] = field(default_factory=list)


class StoreWatch:
    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._books: dict[str, _Book] = {}
        self.taken_over: Callable[[str, int, Conversation], None] = lambda session, fence, stored: None

    def created(self, record: SessionRecord, ownership: Ownership) -> None:
        if record.session not in self._books:
            self._books[record.session] = _Book(record, {1: ownership.owner})

    def acquired(self, ownership: Ownership, snapshot: Snapshot) -> None:
        book = self._books[ownership.session]
        assert ownership.fence == book.fence + 1, "each owner has a fence of its own"
        self.taken_over(ownership.session, book.fence, self._under_way(book))
        book.fence, book.seq = ownership.fence, 0
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
        book = self._books[ownership.session]
        assert ownership.fence == book.fence, f"a late writer of fence {ownership.fence} was heard"
        assert ownership.owner == book.owners[book.fence], "one owner writes under a fence"
        if outcome is Appended.DUPLICATE:
            self._counts["entries written twice"] += 1
            assert seq <= book.seq
            return
        book.seq += 1
        assert seq == book.seq, "entries are written in their order"
        book.log.append(decode_entry(entry))

    def seq(self, session: str, fence: int) -> int:
        """How many entries were written under `fence`, if it is in force."""
        book = self._books[session]
        return book.seq if book.fence == fence else 0

    def conversation(self, session: str) -> Conversation:
        """What is written of `session`."""
        book = self._books[session]
        return replay(book.record, book.log)


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

    def acquire(self, session: str, owner: str, digest: bytes | None) -> tuple[Ownership, Snapshot]:
        ownership, snapshot = _now(self.model.acquire(session, owner, digest, LEASE_TTL_MS))
        self.watch.acquired(ownership, snapshot)
        return ownership, snapshot

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
            result = operation()
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
