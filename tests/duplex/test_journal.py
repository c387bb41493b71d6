"""Checkpoints: in order, once, through a store that fails, and never on as if they were written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from duplex import log_queue
from duplex.journal import Journal, JournalPorts
from duplex.log_queue import CROWDED_MIN, WAITING_MAX
from duplex.tasks import stop_task
from sessions.memory_store import Fault, MemorySessionStore
from sessions.records import (
    Compacted,
    ItemAppended,
    ItemRecord,
    SessionRecord,
    TurnRecord,
    decode_entry,
    encode_entry,
    token_digest,
)
from sessions.store import LogLimits, Ownership

SESSION = "sess_1"
S_MAX = 5
NS_PER_S = 1_000_000_000


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_queue, "RETRY_MS_MIN", 0)
    monkeypatch.setattr(log_queue, "RETRY_MS_MAX", 0)


class Faults:
    """The next faults of one operation; afterwards all is well, or `for_ever` is not."""

    def __init__(self, operation: str, *faults: Fault, for_ever: Fault | None = None) -> None:
        self._operation = operation
        self._left = list(faults)
        self._for_ever = for_ever
        self.asked = 0
        self._many = asyncio.Event()
        self._wanted = 0

    def begin(self, *faults: Fault) -> None:
        self._left = list(faults)

    def end(self) -> None:
        self._left, self._for_ever = [], None

    async def until_asked(self, times: int) -> None:
        self._wanted = times
        await self._many.wait()

    def __call__(self, operation: str) -> Fault | None:
        if operation != self._operation:
            return None
        self.asked += 1
        if self.asked == self._wanted:
            self._many.set()
        return self._left.pop(0) if self._left else self._for_ever


async def settle() -> None:
    """Until everything has happened that can happen now."""
    for _ in range(10):
        await asyncio.sleep(0)


def item(number: int, text: str = "") -> ItemAppended:
    return ItemAppended(ItemRecord(f"item_{number}", "user", content=text or f"line {number}"))


async def opened(store: MemorySessionStore) -> Ownership:
    return await store.create(SessionRecord(SESSION, "default", 0, b"{}", token_digest("x")), "gw_1", 10_000)


async def stored(store: MemorySessionStore) -> list[TurnRecord]:
    _, snapshot = await store.acquire(SESSION, "reader", token_digest("x"), 0)
    return [decode_entry(entry) for entry in snapshot.entries]


def memory(
    faults: Callable[[str], Fault | None] = lambda _: None, limits: LogLimits | None = None
) -> MemorySessionStore:
    return MemorySessionStore(lambda: 0, faults=faults, limits=limits)


def test_entries_are_written_in_order() -> None:
    async def scenario() -> None:
        store = memory()
        journal = Journal(store, await opened(store))
        running = asyncio.create_task(journal.run())
        entries: list[TurnRecord] = [item(number) for number in range(20)]
        for entry in entries[:10]:
            journal.write(entry)
        assert await journal.flush(S_MAX * NS_PER_S)
        for entry in entries[10:]:
            journal.write(entry)
        assert journal.waiting == 10
        assert await journal.flush(S_MAX * NS_PER_S)
        await stop_task(running)
        assert (journal.session, journal.waiting, journal.errors) == (SESSION, 0, 0)
        assert await stored(store) == entries

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", list(Fault))
def test_a_write_that_failed_is_repeated_as_it_was(fault: Fault) -> None:
    async def scenario() -> None:
        faults = Faults("append", fault, fault)
        store = memory(faults)
        journal = Journal(store, await opened(store))
        running = asyncio.create_task(journal.run())
        for number in range(3):
            journal.write(item(number))
        assert await journal.flush(S_MAX * NS_PER_S)
        await stop_task(running)
        assert journal.errors == 2
        assert not journal.failed.done()
        assert await stored(store) == [item(0), item(1), item(2)]

    asyncio.run(scenario())


def test_a_session_that_was_taken_over_ends_the_journal() -> None:
    async def scenario() -> None:
        store = memory()
        journal = Journal(store, await opened(store))
        running = asyncio.create_task(journal.run())
        await store.acquire(SESSION, "gw_2", token_digest("x"), 10_000)
        journal.write(item(1))
        journal.write(item(2))
        assert await asyncio.wait_for(journal.failed, S_MAX) == "session_replaced"
        assert not await journal.flush(S_MAX * NS_PER_S)
        await asyncio.wait_for(running, S_MAX)
        journal.write(item(3))  # whoever comes later is not kept waiting
        assert journal.waiting == 0
        assert await stored(store) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", list(Fault))
def test_a_renewal_that_failed_ends_nothing(fault: Fault) -> None:
    async def scenario() -> None:
        faults = Faults("renew", fault)
        store = memory(faults)
        journal = Journal(store, await opened(store))
        running = asyncio.create_task(journal.run())
        journal.renew()
        journal.write(item(1))
        assert await journal.flush(S_MAX * NS_PER_S)
        await settle()
        journal.renew()
        await settle()
        assert faults.asked == 2
        assert (journal.errors, journal.failed.done()) == (1, False)
        await stop_task(running)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_renewal_tells_that_the_session_is_lost(is_deleted: bool) -> None:
    async def scenario() -> None:
        store = memory()
        journal = Journal(store, await opened(store))
        running = asyncio.create_task(journal.run())
        if is_deleted:
            await store.delete(SESSION)
        else:
            await store.acquire(SESSION, "gw_2", token_digest("x"), 10_000)
        journal.renew()
        reason = await asyncio.wait_for(journal.failed, S_MAX)
        assert reason == ("session_deleted" if is_deleted else "session_replaced")
        await asyncio.wait_for(running, S_MAX)
        await journal.release()  # of what is not ours: nothing happens

    asyncio.run(scenario())


def test_a_lease_that_was_given_back_is_free() -> None:
    async def scenario() -> None:
        store = memory()
        journal = Journal(store, await opened(store))
        await journal.release()
        await store.acquire(SESSION, "gw_2", None, 10_000)

    asyncio.run(scenario())


def test_a_deleted_session_ends_the_journal() -> None:
    async def scenario() -> None:
        store = memory()
        journal = Journal(store, await opened(store))
        running = asyncio.create_task(journal.run())
        await store.delete(SESSION)
        journal.write(item(1))
        assert await asyncio.wait_for(journal.failed, S_MAX) == "session_deleted"
        await asyncio.wait_for(running, S_MAX)

    asyncio.run(scenario())


def test_a_store_that_stays_away_ends_the_journal_when_too_much_waits() -> None:
    async def scenario() -> None:
        store = memory(Faults("append", for_ever=Fault.UNAVAILABLE))
        journal = Journal(store, await opened(store))
        running = asyncio.create_task(journal.run())
        for number in range(WAITING_MAX):
            journal.write(item(number))
        assert (journal.waiting, journal.failed.done()) == (WAITING_MAX, False)
        journal.write(item(WAITING_MAX))
        assert await journal.failed == "store_unavailable"
        assert (journal.waiting, journal.is_over) == (WAITING_MAX + 1, False)
        journal.give_up()
        assert (journal.waiting, journal.lost) == (0, WAITING_MAX + 1)
        await asyncio.wait_for(running, S_MAX)

    asyncio.run(scenario())


def test_what_was_taken_is_written_though_the_call_has_to_end() -> None:
    async def scenario() -> None:
        store = memory()
        journal = Journal(store, await opened(store))
        entries = [item(number) for number in range(WAITING_MAX + 1)]
        for entry in entries:
            journal.write(entry)
        assert journal.failed.result() == "store_unavailable"
        running = asyncio.create_task(journal.run())
        assert await journal.flush(1), "the store takes it, however long that is"
        await stop_task(running)
        assert (await stored(store), journal.lost) == (entries, 0)

    asyncio.run(scenario())


def test_who_brings_entries_waits_while_much_is_to_be_written() -> None:
    async def scenario() -> None:
        faults = Faults("append")
        store = memory(faults)
        journal = Journal(store, await opened(store))
        await asyncio.wait_for(journal.until_room(), S_MAX)
        for number in range(CROWDED_MIN + 2):
            journal.write(item(number))
        waiting = asyncio.create_task(journal.until_room())
        await settle()
        assert not waiting.done()
        running = asyncio.create_task(journal.run())
        await asyncio.wait_for(waiting, S_MAX)
        assert faults.asked >= 2, "two of them were written"
        await stop_task(running)

    asyncio.run(scenario())


def test_who_brings_entries_does_not_wait_for_a_store_that_fails() -> None:
    async def scenario() -> None:
        store = memory(Faults("append", for_ever=Fault.UNAVAILABLE))
        journal = Journal(store, await opened(store))
        for number in range(CROWDED_MIN + 1):
            journal.write(item(number))
        running = asyncio.create_task(journal.run())
        await asyncio.wait_for(journal.until_room(), S_MAX)
        assert journal.waiting == CROWDED_MIN + 1
        await stop_task(running)

    asyncio.run(scenario())


def test_a_flush_is_bounded() -> None:
    async def scenario() -> None:
        journal = Journal(memory(), Ownership(SESSION, "gw_1", 1, 10_000))
        assert await journal.flush(0), "there was nothing to write"
        journal.write(item(1))
        assert not await journal.flush(1), "nobody writes"
        assert journal.waiting == 1

    asyncio.run(scenario())


class Call:
    """What a journal asks and tells."""

    def __init__(self, journal: Journal, *entries: TurnRecord) -> None:
        self.journal = journal
        self.entries = list(entries)
        self.suspended: list[bool] = []
        self.failures: list[str] = []
        self.failed = asyncio.Event()
        self.told = asyncio.Event()
        journal.attach(JournalPorts(self._whole, self._suspended, self._store_failed))

    def write(self, entry: ItemAppended) -> None:
        self.entries.append(entry)
        self.journal.write(entry)

    def _whole(self) -> Compacted:
        return Compacted(tuple(e.item for e in self.entries if isinstance(e, ItemAppended)), b"{}", 1 << 20)

    def _suspended(self, suspended: bool) -> None:
        self.suspended.append(suspended)
        self.told.set()

    def _store_failed(self, kind: str) -> None:
        self.failures.append(kind)
        self.failed.set()


@pytest.mark.parametrize("fault", list(Fault))
def test_what_is_not_stored_is_told_until_it_is(fault: Fault) -> None:
    async def scenario() -> None:
        faults = Faults("append", for_ever=fault)
        store = memory(faults)
        call = Call(Journal(store, await opened(store)))
        running = asyncio.create_task(call.journal.run())
        call.write(item(0))
        await asyncio.wait_for(call.failed.wait(), S_MAX)
        assert (call.suspended, call.journal.suspended) == ([True], True)
        faults.end()
        assert await call.journal.flush(S_MAX * NS_PER_S)
        call.write(item(1))
        assert await call.journal.flush(S_MAX * NS_PER_S)
        await stop_task(running)
        assert (call.suspended, call.journal.suspended) == ([True, False], False)
        assert len(call.failures) == call.journal.errors
        assert await stored(store) == call.entries

    asyncio.run(scenario())


@pytest.mark.parametrize(("fault", "reason"), [(Fault.REQUEST_LOST, "store_unavailable"), (Fault.FULL, "store_full")])
def test_a_store_that_stays_away_ends_the_journal_in_time(fault: Fault, reason: str) -> None:
    async def scenario() -> None:
        store = memory(Faults("append", for_ever=fault))
        call = Call(Journal(store, await opened(store), outage_ns_max=1))
        running = asyncio.create_task(call.journal.run())
        call.write(item(0))
        assert await asyncio.wait_for(call.journal.failed, S_MAX) == reason
        await asyncio.wait_for(running, S_MAX)
        assert False not in call.suspended, "it never was restored"

    asyncio.run(scenario())


def test_a_flush_waits_for_a_store_that_fails_as_long_as_a_call_would() -> None:
    async def scenario() -> None:
        faults = Faults("append", for_ever=Fault.UNAVAILABLE)
        store = memory(faults)
        call = Call(Journal(store, await opened(store)))
        running = asyncio.create_task(call.journal.run())
        call.write(item(0))
        await asyncio.wait_for(call.failed.wait(), S_MAX)
        flushing = asyncio.create_task(call.journal.flush(1))
        asked = faults.asked
        await asyncio.wait_for(faults.until_asked(asked + 10), S_MAX)
        assert not flushing.done()
        faults.end()
        assert await asyncio.wait_for(flushing, S_MAX)
        await stop_task(running)
        assert await stored(store) == call.entries

    asyncio.run(scenario())


def test_a_flush_ends_with_the_time_of_a_shutdown() -> None:
    async def scenario() -> None:
        store = memory(Faults("append", for_ever=Fault.UNAVAILABLE))
        call = Call(Journal(store, await opened(store)))
        running = asyncio.create_task(call.journal.run())
        call.write(item(0))
        await asyncio.wait_for(call.failed.wait(), S_MAX)
        flushing = asyncio.create_task(call.journal.flush(1))
        call.journal.give_up()
        assert not await asyncio.wait_for(flushing, S_MAX)
        assert await call.journal.failed == "store_unavailable"
        await stop_task(running)

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", [None, *Fault])
def test_a_store_that_went_back_has_all_of_it_again(fault: Fault | None) -> None:
    async def scenario() -> None:
        faults = Faults("acquire", *([fault] if fault else []))
        store = memory(faults)
        first = await opened(store)
        await store.append(first, 1, encode_entry(item(0)))
        replica = store.moment()
        ownership = Ownership(SESSION, "gw_1", 2, 10_000)
        faults.end()
        assert (await store.acquire(SESSION, "gw_1", token_digest("x"), 10_000))[0] == ownership
        faults.begin(*([fault] if fault else []))
        call = Call(Journal(store, ownership, (encode_entry(item(0)),)), item(0))
        running = asyncio.create_task(call.journal.run())
        call.write(item(1))
        assert await call.journal.flush(S_MAX * NS_PER_S)
        store.go_back(replica)
        call.write(item(2))
        call.write(item(3))
        assert await call.journal.flush(S_MAX * NS_PER_S)
        call.write(item(4))
        assert await call.journal.flush(S_MAX * NS_PER_S)
        await stop_task(running)
        assert (call.failures[0], call.suspended) == ("StoreWentBack", [True, False])
        fence = 3 + (fault is Fault.REPLY_LOST)
        after, snapshot = await store.acquire(SESSION, "reader", token_digest("x"), 0)
        assert after.fence == fence + 1
        whole, *rest = [decode_entry(entry) for entry in snapshot.entries]
        assert isinstance(whole, Compacted)
        assert [item.id for item in whole.items] == [f"item_{number}" for number in range(4)]
        assert rest == [item(4)]

    asyncio.run(scenario())


def test_a_silent_call_finds_out_when_it_renews_its_lease() -> None:
    async def scenario() -> None:
        store = memory()
        await opened(store)
        replica = store.moment()
        ownership, _ = await store.acquire(SESSION, "gw_1", token_digest("x"), 10_000)
        call = Call(Journal(store, ownership))
        running = asyncio.create_task(call.journal.run())
        call.write(item(0))
        assert await call.journal.flush(S_MAX * NS_PER_S)
        store.go_back(replica)
        call.journal.renew()
        await asyncio.wait_for(call.told.wait(), S_MAX)
        assert await call.journal.flush(S_MAX * NS_PER_S)
        await stop_task(running)
        assert call.suspended == [True, False]
        after, snapshot = await store.acquire(SESSION, "reader", token_digest("x"), 0)
        assert (after.fence, [decode_entry(entry) for entry in snapshot.entries]) == (4, [call._whole()])

    asyncio.run(scenario())


def test_a_session_that_went_back_to_another_is_not_taken_from_them() -> None:
    async def scenario() -> None:
        store = memory()
        await store.create(SessionRecord(SESSION, "default", 0, b"{}", token_digest("x")), "gw_0", 10_000)
        call = Call(Journal(store, Ownership(SESSION, "gw_1", 2, 10_000), outage_ns_max=1))
        running = asyncio.create_task(call.journal.run())
        call.write(item(1))
        assert await asyncio.wait_for(call.journal.failed, S_MAX) == "store_unavailable"
        await asyncio.wait_for(running, S_MAX)
        assert call.failures == ["StoreWentBack", "LeaseHeld"]
        assert await stored(store) == []

    asyncio.run(scenario())


def limits(entries: int) -> LogLimits:
    return LogLimits(compact_entries=entries, entries_max=2 * entries)


def whole(number: int) -> Compacted:
    return Compacted(tuple(item(k).item for k in range(number)), b"{}", 1 << 20)


def test_a_long_log_is_compacted_once() -> None:
    async def scenario() -> None:
        store = memory(limits=limits(4))
        journal = Journal(store, await opened(store))
        running = asyncio.create_task(journal.run())
        for number in range(4):
            assert not journal.compaction_due()
            journal.write(item(number))
        assert await journal.flush(S_MAX * NS_PER_S)
        assert journal.compaction_due()
        journal.write(whole(4))
        assert not journal.compaction_due(), "one is on its way"
        journal.write(item(4))
        assert await journal.flush(S_MAX * NS_PER_S)
        assert not journal.compaction_due()
        await stop_task(running)
        assert await stored(store) == [whole(4), item(4)]

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", list(Fault))
def test_a_compaction_that_failed_is_repeated(fault: Fault) -> None:
    async def scenario() -> None:
        store = memory(Faults("compact", fault), limits=limits(4))
        journal = Journal(store, await opened(store))
        running = asyncio.create_task(journal.run())
        for number in range(4):
            journal.write(item(number))
        journal.write(whole(4))
        journal.write(item(5))
        assert await journal.flush(S_MAX * NS_PER_S)
        await stop_task(running)
        assert await stored(store) == [whole(4), item(5)]

    asyncio.run(scenario())


def test_many_bytes_are_compacted_too() -> None:
    async def scenario() -> None:
        size = len(encode_entry(item(0, "x" * 1_000)))
        small = LogLimits(entry_bytes_max=2_000, snapshot_bytes_max=2_000, compact_bytes=3 * size, bytes_max=5 * size)
        store = memory(limits=small)
        journal = Journal(store, await opened(store))
        running = asyncio.create_task(journal.run())
        due = []
        for number in range(3):
            journal.write(item(number, "x" * 1_000))
            await journal.flush(S_MAX * NS_PER_S)
            due.append(journal.compaction_due())
        await stop_task(running)
        assert due == [False, False, True]

    asyncio.run(scenario())


def test_what_earlier_owners_wrote_counts() -> None:
    async def scenario() -> None:
        store = memory(limits=limits(4))
        first = Journal(store, await opened(store))
        running = asyncio.create_task(first.run())
        for number in range(3):
            first.write(item(number))
        assert await first.flush(S_MAX * NS_PER_S)
        await stop_task(running)
        ownership, snapshot = await store.acquire(SESSION, "gw_2", token_digest("x"), 10_000)
        second = Journal(store, ownership, snapshot.entries)
        running = asyncio.create_task(second.run())
        assert not second.compaction_due()
        second.write(item(3))
        assert await second.flush(S_MAX * NS_PER_S)
        assert second.compaction_due(), "or a session that is resumed often fills its log"
        await stop_task(running)

    asyncio.run(scenario())


def test_an_entry_that_is_too_large_ends_the_journal() -> None:
    async def scenario() -> None:
        store = memory(limits=LogLimits(entry_bytes_max=100))
        journal = Journal(store, await opened(store))
        running = asyncio.create_task(journal.run())
        journal.write(item(1, "x" * 100))
        assert await asyncio.wait_for(journal.failed, S_MAX) == "store_refused"
        await asyncio.wait_for(running, S_MAX)

    asyncio.run(scenario())


def test_what_the_store_has_taken_is_told_entry_by_entry() -> None:
    async def scenario() -> None:
        store, taken = memory(Faults("append", Fault.REPLY_LOST)), list[TurnRecord]()
        journal = Journal(store, await opened(store))
        journal.attach(JournalPorts(lambda: Compacted((), b"{}", 1), lambda _: None, lambda _: None, taken.append))
        running = asyncio.create_task(journal.run())
        for number in range(3):
            journal.write(item(number))
        assert taken == []
        assert await journal.flush(S_MAX * NS_PER_S)
        await stop_task(running)
        assert taken == [item(number) for number in range(3)]

    asyncio.run(scenario())


def test_what_is_late_suspends_the_promise_until_it_is_stored() -> None:
    async def scenario() -> None:
        store = memory()
        call = Call(Journal(store, await opened(store)))
        call.journal.late()
        assert call.suspended == [], "nothing waits"
        call.write(item(0))
        call.journal.late()
        assert call.suspended == [True]
        running = asyncio.create_task(call.journal.run())
        assert await call.journal.flush(S_MAX * NS_PER_S)
        await stop_task(running)
        assert call.suspended == [True, False]

    asyncio.run(scenario())
