"""Checkpoints: in order, once, through a store that fails, and never on as if they were written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from duplex import log_queue
from duplex.journal import Journal
from duplex.log_queue import WAITING_MAX
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

    def __call__(self, operation: str) -> Fault | None:
        if operation != self._operation:
            return None
        self.asked += 1
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
        assert journal.waiting == 0
        await stop_task(running)

    asyncio.run(scenario())


def test_a_flush_is_bounded() -> None:
    async def scenario() -> None:
        store = memory(Faults("append", for_ever=Fault.REQUEST_LOST))
        journal = Journal(store, await opened(store))
        running = asyncio.create_task(journal.run())
        assert await journal.flush(0), "there was nothing to write"
        journal.write(item(1))
        assert not await journal.flush(1)
        assert journal.waiting == 1
        await stop_task(running)

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
