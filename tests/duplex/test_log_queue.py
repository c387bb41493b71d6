"""What is written of a session's log: in order, once, as it was when it failed, and not on as if it were written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from duplex.log_queue import (
    CLOSING_MAX,
    CROWDED_MIN,
    OUTAGE_NS_MAX,
    RETRY_MS_MAX,
    RETRY_MS_MIN,
    WAITING_MAX,
    LogQueue,
    Write,
)
from sessions.records import Compacted, ItemAppended, ItemRecord, TurnRecord, encode_entry
from sessions.store import (
    LeaseHeld,
    LogLimits,
    SequenceGap,
    SessionUnknown,
    StaleOwner,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
    StoreWentBack,
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
    pauses = [queue.failed(StoreTimeout("no answer"), 0) for _ in range(8)]
    assert pauses == [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]
    assert queue.next_write() is write
    queue.written()
    queue.write(item(2))
    queue.next_write()
    assert queue.failed(StoreUnavailable("away"), 0) == RETRY_MS_MIN, "the next one begins anew"
    assert pauses[-1] == RETRY_MS_MAX


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StaleOwner("sess", 2), "session_replaced"),
        (SessionUnknown("sess"), "session_deleted"),
        (SequenceGap("sess", 3), "store_refused"),
        (StoreRefused("no rights"), "store_refused"),
    ],
)
def test_a_failure_that_cannot_pass_ends_the_log(error: StoreError, reason: str) -> None:
    queue = LogQueue(LogLimits())
    queue.write(item(1))
    queue.write(item(2))
    queue.next_write()
    queue.failed(error, 0)
    assert (queue.end_reason, queue.waiting, queue.next_write()) == (reason, 0, None)
    queue.write(item(3))
    queue.written()  # an answer that comes late
    queue.failed(StoreFull("full"), 0)
    assert (queue.end_reason, queue.waiting, queue.seq) == (reason, 0, 0)


def state(queue: LogQueue) -> tuple[str | None, int, bool]:
    return queue.end_reason, queue.waiting, queue.suspended


@pytest.mark.parametrize("error", [StoreTimeout("lost"), StoreUnavailable("away"), StoreFull("full")])
def test_the_promise_is_suspended_from_a_failure_until_it_is_written(error: StoreError) -> None:
    queue = LogQueue(LogLimits())
    queue.write(item(1))
    write = queue.next_write()
    assert state(queue) == (None, 1, False), "nothing has failed"
    queue.failed(error, 5)
    queue.write(item(2))
    assert (state(queue), queue.next_write()) == ((None, 2, True), write)
    queue.written()
    assert state(queue) == (None, 1, True), "not all of it is written"
    queue.next_write()
    queue.written()
    assert state(queue) == (None, 0, False)


@pytest.mark.parametrize(
    ("error", "reason"), [(StoreUnavailable("away"), "store_unavailable"), (StoreFull("full"), "store_full")]
)
def test_an_outage_that_lasts_too_long_ends_the_log(error: StoreError, reason: str) -> None:
    queue = LogQueue(LogLimits(), outage_ns_max=1_000)
    queue.write(item(1))
    queue.write(item(2))
    for began_ns in (0, 10_000):
        queue.next_write()
        queue.failed(StoreTimeout("lost"), began_ns)
        queue.failed(error, began_ns + 999)
        assert state(queue) == (None, 1 + (began_ns == 0), True)
        if not began_ns:
            queue.written()
    queue.failed(error, 11_000)
    assert state(queue) == (reason, 0, False)
    assert queue.lost == 1
    assert OUTAGE_NS_MAX == 30_000_000_000


@pytest.mark.parametrize("error", [StoreWentBack("sess", 1), SequenceGap("sess", 1), SequenceGap("sess", 2)])
def test_a_store_that_has_gone_back_gets_all_of_it_anew(error: StoreError) -> None:
    queue = LogQueue(limits(3), (b"earlier",))
    for number in range(2):
        queue.write(item(number))
    write_all(queue)
    queue.write(item(2))
    assert queue.next_write() is not None
    queue.failed(error, 0)
    assert (queue.must_reclaim, queue.suspended, queue.waiting) == (True, True, 1)
    queue.failed(LeaseHeld("sess", "gw_0", 100), 1)
    queue.write(item(3))
    assert (queue.must_reclaim, queue.end_reason) == (True, None)
    queue.reclaimed(WHOLE)
    assert state(queue) == (None, 1, True), "until it is written"
    queue.write(item(4))
    whole, last = Write(1, encode_entry(WHOLE), compacts=True), Write(2, encode_entry(item(4)), compacts=False)
    assert write_all(queue) == [whole, last]
    assert state(queue) == (None, 0, False)
    assert not queue.compaction_due(), "what the store had is not there any more"


def test_a_session_that_another_has_cannot_be_reclaimed() -> None:
    queue = LogQueue(LogLimits())
    queue.write(item(1))
    queue.next_write()
    queue.failed(StoreWentBack("sess", 1), 0)
    queue.failed(StaleOwner("sess", 9), 0)
    queue.reclaimed(WHOLE)  # an answer that comes late
    assert (queue.end_reason, queue.waiting) == ("session_replaced", 0)


def test_who_has_no_more_time_gives_up_what_waits() -> None:
    queue = LogQueue(LogLimits())
    queue.give_up()
    assert state(queue) == (None, 0, False), "nothing is lost by it"
    queue.write(item(1))
    queue.give_up()
    assert state(queue) == ("store_unavailable", 0, False)
    other = LogQueue(LogLimits())
    other.failed(StoreWentBack("sess", 1), 0)
    other.give_up()
    assert (state(other), other.must_reclaim) == (("store_unavailable", 0, False), False)


def filled(entries: int) -> LogQueue:
    queue = LogQueue(LogLimits())
    for number in range(entries):
        queue.write(item(number))
    return queue


def test_where_more_waits_than_may_the_call_ends_and_all_of_it_is_written() -> None:
    queue = filled(WAITING_MAX)
    assert state(queue) == (None, WAITING_MAX, False)
    queue.write(item(WAITING_MAX))
    assert (state(queue), queue.is_over) == (("store_unavailable", WAITING_MAX + 1, False), False)
    queue.next_write()
    queue.failed(StoreTimeout("lost"), 0)
    assert state(queue) == ("store_unavailable", WAITING_MAX + 1, True), "it is asked again"
    stored = [write.entry for write in write_all(queue)]
    queue.write(item(WAITING_MAX + 1))  # how what was being said has ended
    stored += [write.entry for write in write_all(queue)]
    assert stored == [encode_entry(item(number)) for number in range(WAITING_MAX + 2)]
    assert (state(queue), queue.lost) == (("store_unavailable", 0, False), 0)


def test_nothing_is_stored_behind_what_was_not_taken() -> None:
    queue = filled(WAITING_MAX + CLOSING_MAX + 1)
    assert (queue.waiting, queue.lost) == (WAITING_MAX + CLOSING_MAX, 1)
    assert len(write_all(queue)) == WAITING_MAX + CLOSING_MAX
    queue.write(item(0))
    assert (queue.next_write(), queue.lost) == (None, 2)


def test_an_outage_that_lasts_too_long_ends_what_was_still_to_be_written() -> None:
    queue = filled(WAITING_MAX + 1)
    queue.next_write()
    queue.failed(StoreFull("full"), 0)
    queue.failed(StoreFull("full"), OUTAGE_NS_MAX)
    assert (state(queue), queue.is_over) == (("store_unavailable", 0, False), True), "the first reason stands"
    assert queue.lost == WAITING_MAX + 1


def test_more_than_half_is_a_crowd_while_the_store_takes_it() -> None:
    queue = filled(CROWDED_MIN)
    crowded = [queue.is_crowded]
    queue.write(item(CROWDED_MIN))
    crowded.append(queue.is_crowded)
    queue.late()
    crowded.append(queue.is_crowded)  # the store is behind, and does not fail
    queue.next_write()
    queue.failed(StoreTimeout("lost"), 0)
    crowded.append(queue.is_crowded)  # nobody waits for a store that takes nothing
    queue.written()
    crowded.append(queue.is_crowded)
    assert crowded == [False, True, True, False, False]


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
            self.queue.failed(outcome(), 0)

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


def test_what_is_waited_for_too_long_is_not_stored_until_it_is() -> None:
    queue = LogQueue(LogLimits())
    queue.write(item(1))
    queue.next_write()
    queue.late()
    assert state(queue) == (None, 1, True)
    assert queue.written() == item(1)
    assert state(queue) == (None, 0, False)
    queue.late()
    assert not queue.suspended, "nothing waits"
    assert queue.written() is None
