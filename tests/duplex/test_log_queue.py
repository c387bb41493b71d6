"""What is written of a session's log: in order, once, as it was when it failed, and not on as if it were written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from duplex.log_queue import RETRY_MS_MAX, RETRY_MS_MIN, WAITING_MAX, LogQueue, Write
from sessions.records import Compacted, ItemAppended, ItemRecord, TurnRecord, encode_entry
from sessions.store import (
    LogLimits,
    SequenceGap,
    SessionUnknown,
    StaleOwner,
    StoreError,
    StoreFull,
    StoreTimeout,
    StoreUnavailable,
)


def item(number: int, text: str = "") -> ItemAppended:
    return ItemAppended(ItemRecord(f"item_{number}", "user", content=text))


WHOLE = Compacted((), b"{}", 1 << 20)


def limits(entries: int) -> LogLimits:
    return LogLimits(compact_entries=entries, entries_max=2 * entries)


def write_all(queue: LogQueue) -> list[Write]:
    writes = []
    while (write := queue.next_write()) is not None:
        writes.append(write)
        queue.written()
    return writes


def test_entries_are_numbered_in_their_order() -> None:
    queue = LogQueue(LogLimits())
    assert queue.next_write() is None
    for number in range(3):
        queue.write(item(number))
    assert queue.waiting == 3
    assert write_all(queue) == [Write(n + 1, encode_entry(item(n)), compacts=False) for n in range(3)]
    assert (queue.waiting, queue.seq, queue.end_reason) == (0, 3, None)


def test_what_is_to_be_written_stays_the_same_until_it_is() -> None:
    queue = LogQueue(LogLimits())
    queue.write(item(1))
    first = queue.next_write()
    queue.write(item(2))
    assert queue.next_write() is first


def test_a_failure_that_may_pass_is_repeated_with_growing_pauses() -> None:
    queue = LogQueue(LogLimits())
    queue.write(item(1))
    write = queue.next_write()
    pauses = [queue.failed(StoreTimeout("no answer")) for _ in range(8)]
    assert pauses == [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]
    assert queue.next_write() is write
    queue.written()
    queue.write(item(2))
    queue.next_write()
    assert queue.failed(StoreUnavailable("away")) == RETRY_MS_MIN, "the next one begins anew"
    assert pauses[-1] == RETRY_MS_MAX


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StaleOwner("sess", 2), "session_replaced"),
        (SessionUnknown("sess"), "session_deleted"),
        (SequenceGap("sess", 3), "store_refused"),
        (StoreFull("full"), "store_refused"),
    ],
)
def test_a_failure_that_cannot_pass_ends_the_log(error: StoreError, reason: str) -> None:
    queue = LogQueue(LogLimits())
    queue.write(item(1))
    queue.write(item(2))
    queue.next_write()
    queue.failed(error)
    assert (queue.end_reason, queue.waiting, queue.next_write()) == (reason, 0, None)
    queue.write(item(3))
    queue.written()  # an answer that comes late
    queue.failed(StoreFull("full"))
    assert (queue.end_reason, queue.waiting, queue.seq) == (reason, 0, 0)


def test_more_than_may_wait_ends_the_log() -> None:
    queue = LogQueue(LogLimits())
    for number in range(WAITING_MAX):
        queue.write(item(number))
    assert queue.waiting == WAITING_MAX
    queue.write(item(WAITING_MAX))
    assert (queue.end_reason, queue.waiting) == ("store_unavailable", 0)


def test_a_long_log_is_compacted_once() -> None:
    queue = LogQueue(limits(3))
    for number in range(3):
        assert not queue.compaction_due()
        queue.write(item(number))
        write_all(queue)
    assert queue.compaction_due()
    queue.write(WHOLE)
    assert not queue.compaction_due(), "one is on its way"
    assert write_all(queue) == [Write(4, encode_entry(WHOLE), compacts=True)]
    assert not queue.compaction_due(), "it stands for all that was there"


def size_of(entry: TurnRecord) -> int:
    return len(encode_entry(entry))


def bytes_limits(compact_bytes: int) -> LogLimits:
    return LogLimits(
        entry_bytes_max=10, snapshot_bytes_max=10, compact_bytes=compact_bytes, bytes_max=10 * compact_bytes
    )


@pytest.mark.parametrize(("earlier", "due"), [((), False), ((b"x" * 100,), True)])
def test_bytes_count_and_what_earlier_owners_wrote_counts_too(earlier: tuple[bytes, ...], due: bool) -> None:
    queue = LogQueue(bytes_limits(size_of(item(1)) + 100), earlier)
    queue.write(item(1))
    write_all(queue)
    assert queue.compaction_due() == due


class LogQueueMachine(RuleBasedStateMachine):
    """Whatever the store answers, it is asked for a gapless beginning of what was taken."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = LogQueue(LogLimits())
        self.taken: list[bytes] = []
        self.stored: list[bytes] = []

    @rule()
    def write(self) -> None:
        if self.queue.end_reason is None:
            self.taken.append(encode_entry(item(len(self.taken))))
        self.queue.write(item(len(self.taken) - 1))

    @precondition(lambda self: self.queue.next_write() is not None)
    @rule(
        outcome=st.sampled_from(
            (None, lambda: StoreTimeout("lost"), lambda: StoreUnavailable("away"), lambda: StaleOwner("sess", 9))
        ),
        happened=st.booleans(),
    )
    def answer(self, outcome: Callable[[], StoreError] | None, happened: bool) -> None:
        write = self.queue.next_write()
        assert write is not None
        if outcome is None or happened:
            self.store(write)
        if outcome is None:
            self.queue.written()
        else:
            self.queue.failed(outcome())

    def store(self, write: Write) -> None:
        """As a store does it: the next one, or one that it has."""
        assert write.seq in (len(self.stored), len(self.stored) + 1)
        if write.seq > len(self.stored):
            self.stored.append(write.entry)
        assert self.stored[write.seq - 1] == write.entry

    @invariant()
    def is_a_beginning(self) -> None:
        assert self.stored == self.taken[: len(self.stored)]
        assert self.queue.seq <= len(self.stored)
        if self.queue.end_reason is None:
            assert self.queue.seq + self.queue.waiting == len(self.taken)


LogQueueMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAnyAnswers = LogQueueMachine.TestCase
