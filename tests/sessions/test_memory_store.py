"""What only the store in memory can do: a clock that is told, faults, and room for so many sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from msgspec import structs

from sessions.memory_store import Fault, MemorySessionStore
from sessions.records import SessionRecord
from sessions.store import (
    Appended,
    LeaseHeld,
    LogLimits,
    Ownership,
    SequenceGap,
    SessionUnknown,
    StaleOwner,
    StoreError,
    StoreFull,
    StoreTimeout,
    StoreUnavailable,
    StoreWentBack,
)
from tests.sessions.store_backends import HOUR_MS, START_MS, TOKEN, Clock, new_record

RECORD = new_record()
TTL_MS = 1_000
Result = TypeVar("Result")


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


ERRORS: dict[Fault, type[StoreError]] = {
    Fault.REQUEST_LOST: StoreTimeout,
    Fault.REPLY_LOST: StoreTimeout,
    Fault.UNAVAILABLE: StoreUnavailable,
    Fault.FULL: StoreFull,
}


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
        with pytest.raises(ERRORS[fault]):
            await calls[operation]()
        assert not faults.armed, "the fault fired"

    asyncio.run(scenario())


def test_a_store_that_goes_back_has_forgotten_later_owners() -> None:
    store = MemorySessionStore(Clock())
    record = new_record()

    async def scenario() -> None:
        first = await store.create(record, "a", HOUR_MS)
        moment = store.moment()
        await store.append(first, 1, b"x")
        second, _ = await store.acquire(record.session, "b", TOKEN, HOUR_MS)
        for _ in range(2):
            store.go_back(moment)
            with pytest.raises(StoreWentBack) as gone:
                await store.append(second, 1, b"y")
            assert gone.value.fence == 1
            assert await store.append(first, 1, b"other") is Appended.OK

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


def now(operation: Coroutine[Any, Any, Result]) -> Result:
    """The model never waits."""
    try:
        operation.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    raise AssertionError("the model waited")


class OwnersMachine(RuleBasedStateMachine):
    """Owners that take a session from each other, by token and by lease, and go on writing as if they had it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.store = MemorySessionStore(lambda: self.now_ms)
        self.owners = [now(self.store.create(RECORD, "gw_1", TTL_MS))]
        self.written: list[bytes] = []
        self.seqs = {1: 0}
        self.free_at_ms = TTL_MS

    @property
    def present(self) -> Ownership:
        return self.owners[-1]

    @rule(pause_ms=st.integers(0, 2 * TTL_MS))
    def time_passes(self, pause_ms: int) -> None:
        self.now_ms += pause_ms

    @rule(owner=st.sampled_from(("gw_1", "gw_2", "gw_3")), by_token=st.booleans())
    def acquire(self, owner: str, by_token: bool) -> None:
        token = RECORD.token_digest if by_token else None
        if not by_token and owner != self.present.owner and self.now_ms < self.free_at_ms:
            with pytest.raises(LeaseHeld):
                now(self.store.acquire(RECORD.session, owner, token, TTL_MS))
            return
        ownership, snapshot = now(self.store.acquire(RECORD.session, owner, token, TTL_MS))
        assert ownership.fence == self.present.fence + 1
        assert list(snapshot.entries) == self.written
        self.owners.append(ownership)
        self.seqs[ownership.fence] = 0
        self.free_at_ms = self.now_ms + TTL_MS

    @rule(data=st.data(), step=st.integers(-1, 2), entry=st.binary(min_size=1, max_size=3))
    def append(self, data: st.DataObject, step: int, entry: bytes) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        seq = self.seqs[owner.fence] + step
        if owner is not self.present:
            with pytest.raises(StaleOwner):
                now(self.store.append(owner, seq, entry))
        elif step == 1:
            assert now(self.store.append(owner, seq, entry)) is Appended.OK
            self.written.append(entry)
            self.seqs[owner.fence] = seq
            self.free_at_ms = self.now_ms + TTL_MS
        elif step == 0 and seq and self.written[-1] == entry:
            assert now(self.store.append(owner, seq, entry)) is Appended.DUPLICATE
        elif step != -1:
            with pytest.raises(SequenceGap):
                now(self.store.append(owner, seq, entry))

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        if owner is self.present:
            now(self.store.renew(owner))
            self.free_at_ms = self.now_ms + TTL_MS
        else:
            with pytest.raises(StaleOwner):
                now(self.store.renew(owner))


OwnersMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestOwnersInAnyOrder = OwnersMachine.TestCase


def test_a_session_is_kept_for_as_long_as_its_owner_says() -> None:
    now_ms = START_MS

    async def scenario() -> None:
        nonlocal now_ms
        store = MemorySessionStore(lambda: now_ms, retention_ms=HOUR_MS)
        short, usual = new_record(), new_record()
        owner = await store.create(short, "a", 0, retention_ms=10)
        await store.create(usual, "a", 0)
        now_ms += 9
        await store.append(owner, 1, b"more")
        now_ms += 9
        _, snapshot = await store.acquire(short.session, "b", TOKEN, 0, retention_ms=20)
        assert snapshot.entries == (b"more",)
        now_ms += 20
        assert [one.session for one in await store.describe([short.session, usual.session])] == [usual.session]

    asyncio.run(scenario())
