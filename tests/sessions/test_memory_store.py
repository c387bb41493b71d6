"""What only the store in memory can do: a clock that is told, faults, and room for so many sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs

from sessions.memory_store import Fault, MemorySessionStore
from sessions.records import SessionRecord
from sessions.store import (
    Appended,
    LeaseHeld,
    LogLimits,
    SessionUnknown,
    StoreFull,
    StoreTimeout,
    StoreUnavailable,
)
from tests.sessions.store_backends import HOUR_MS, TOKEN, Clock, new_record


class Faults:
    """Lets one operation fail, once."""

    def __init__(self) -> None:
        self.armed: dict[str, Fault] = {}

    def __call__(self, operation: str) -> Fault | None:
        return self.armed.pop(operation, None)


def test_the_lease_runs_out_on_the_given_clock() -> None:
    clock = Clock()
    store = MemorySessionStore(clock)
    record = new_record()

    async def scenario() -> None:
        await store.create(record, "a", 5000)
        clock.now_ms += 4999
        with pytest.raises(LeaseHeld) as refusal:
            await store.acquire(record.session, "b", None, 5000)
        assert refusal.value.remaining_ms == 1
        clock.now_ms += 1
        taken, _ = await store.acquire(record.session, "b", None, 5000)
        assert taken.fence == 2

    asyncio.run(scenario())


def test_retention_counts_from_the_last_write() -> None:
    clock = Clock()
    store = MemorySessionStore(clock, retention_ms=1000)
    record = new_record()

    async def scenario() -> None:
        owner = await store.create(record, "a", HOUR_MS)
        clock.now_ms += 999
        await store.renew(owner)
        clock.now_ms += 999
        await store.append(owner, 1, b"x")
        clock.now_ms += 1000
        with pytest.raises(SessionUnknown):
            await store.append(owner, 2, b"late")
        assert await store.delete(record.session) is False

    asyncio.run(scenario())


def test_it_holds_so_many_sessions_and_an_expired_one_makes_room() -> None:
    clock = Clock()
    store = MemorySessionStore(clock, retention_ms=1000, sessions_max=1)

    async def scenario() -> None:
        await store.create(new_record(), "a", 0)
        with pytest.raises(StoreFull):
            await store.create(new_record(), "a", 0)
        clock.now_ms += 1000
        await store.create(new_record(), "a", 0)

    asyncio.run(scenario())


def test_a_lost_reply_means_done_and_a_lost_request_means_not_done() -> None:
    faults = Faults()
    store = MemorySessionStore(Clock(), faults=faults)
    record = new_record()

    async def scenario() -> None:
        owner = await store.create(record, "a", HOUR_MS)
        for operation, write in (("append", store.append), ("compact", store.compact)):
            for fault, outcome in ((Fault.REQUEST_LOST, Appended.OK), (Fault.REPLY_LOST, Appended.DUPLICATE)):
                owner, _ = await store.acquire(record.session, "a", TOKEN, HOUR_MS)
                faults.armed[operation] = fault
                with pytest.raises(StoreTimeout):
                    await write(owner, 1, b"x")
                assert await write(owner, 1, b"x") is outcome

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", ["create", "acquire", "append", "compact", "renew", "delete", "ping"])
@pytest.mark.parametrize("fault", list(Fault))
def test_every_operation_can_fail(operation: str, fault: Fault) -> None:
    faults = Faults()
    store = MemorySessionStore(Clock(), faults=faults)
    record = new_record()

    async def scenario() -> None:
        owner = await store.create(record, "a", HOUR_MS)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: store.create(record, "a", HOUR_MS),
            "acquire": lambda: store.acquire(record.session, "b", TOKEN, HOUR_MS),
            "append": lambda: store.append(owner, 1, b"x"),
            "compact": lambda: store.compact(owner, 1, b"x"),
            "renew": lambda: store.renew(owner),
            "delete": lambda: store.delete(record.session),
            "ping": store.ping,
        }
        faults.armed[operation] = fault
        with pytest.raises(StoreUnavailable if fault is Fault.UNAVAILABLE else StoreTimeout):
            await calls[operation]()
        assert not faults.armed, "the fault fired"

    asyncio.run(scenario())


def test_a_new_session_starts_at_the_first_fence() -> None:
    record: SessionRecord = structs.replace(new_record(), fence=2)
    with pytest.raises(ValueError, match="starts at fence 1"):
        asyncio.run(MemorySessionStore(Clock()).create(record, "a", 0))


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        ({"compact_entries": 1024}, "compact_entries"),
        ({"snapshot_bytes_max": 4 * 1024 * 1024}, "snapshot_bytes_max"),
        ({"entry_bytes_max": 3 * 1024 * 1024}, "an entry must fit"),
    ],
)
def test_limits_that_leave_no_room_are_refused(limits: dict[str, int], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        LogLimits(**limits)


@pytest.mark.parametrize(
    ("entries", "log_bytes", "due"), [(511, 0, False), (512, 0, True), (1, 3 * 1024 * 1024, True), (0, 0, False)]
)
def test_compaction_is_due_before_the_log_is_full(entries: int, log_bytes: int, due: bool) -> None:
    assert LogLimits().compaction_due(entries, log_bytes) is due
