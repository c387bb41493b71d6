"""Blocks of an arena: each has one owner and one reader, and is used again only when nobody can mean the old use."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stages.block_table import ArenaError, BlockTable, FanOutError, Owner, TableSize
from stages.contracts import DataRef
from stages.event_log import EventLog
from tests.stages.event_promises import WorkerPromises

READER, OTHER_READER = 1, 2
LEASE_NS = 1_000
OWNER = Owner("task", "resp_1")
SIBLING = Owner("task_1_2", "resp_1_2")


def table(blocks: int = 4, session_blocks_max: int = 2) -> BlockTable:
    return BlockTable("talker", 3, TableSize(blocks, 64, session_blocks_max, LEASE_NS), EventLog())


def acquired(one: BlockTable, owner: Owner = OWNER, length: int = 10) -> DataRef:
    ref = one.acquire(owner, length)
    assert ref is not None
    return ref


def leased(one: BlockTable, owner: Owner = OWNER, reader: int = READER, now_ns: int = 0) -> DataRef:
    ref = acquired(one, owner)
    assert one.written(ref)
    one.lease(ref, reader, now_ns)
    return ref


def test_a_block_is_named_by_where_it_is_and_which_use_of_it() -> None:
    one = table()
    ref = leased(one)
    assert ref == DataRef("talker", 3, 0, 1, 10)
    assert one.release(ref, READER)
    assert acquired(one) == DataRef("talker", 3, 0, 2, 10), "the block that is warm is used first"


def test_a_payload_that_fits_no_block_is_a_bug_of_its_sender() -> None:
    one = table()
    with pytest.raises(ArenaError, match="65 bytes"):
        one.acquire(OWNER, 65)
    assert one.statistics(0).free == 4


def test_a_session_that_is_not_read_leaves_room_for_others() -> None:
    one = table()
    first = leased(one)
    leased(one)
    assert one.acquire(Owner("task", "another stream"), 1) is None
    assert one.acquire(SIBLING, 1) is not None
    assert one.release(first, READER)
    assert one.acquire(OWNER, 1) is not None


def test_blocks_are_counted_by_whom_they_were_acquired_for() -> None:
    one = table()
    first = leased(one)
    acquired(one, Owner("task", "another stream"))
    acquired(one, SIBLING)
    assert (one.used_by("task"), one.used_by("task", OWNER.key), one.used_by(SIBLING.session)) == (2, 1, 1)
    assert one.release(first, READER)
    assert (one.used_by("task"), one.used_by("task", OWNER.key), one.used_by("nobody")) == (1, 0, 0)


def test_a_full_arena_gives_nothing_until_a_block_is_free() -> None:
    one = table(blocks=2)
    first = leased(one)
    leased(one)
    assert one.acquire(SIBLING, 1) is None
    assert one.statistics(0).refused == 1
    assert one.release(first, READER)
    assert acquired(one, SIBLING, 1).block == first.block


def test_what_was_not_sent_is_free_once_withdrawn() -> None:
    one = table()
    ref = acquired(one)
    assert one.written(ref)
    one.withdraw(ref)
    assert (one.statistics(0).free, one.holds(OWNER)) == (4, False)


def test_what_is_withdrawn_amid_the_write_is_free_when_that_has_ended() -> None:
    one = table(blocks=1)
    ref = acquired(one)
    one.withdraw(ref)
    assert one.holds(OWNER)
    assert one.acquire(SIBLING, 1) is None, "somebody still writes there"
    assert not one.written(ref)
    assert not one.holds(OWNER)
    assert acquired(one, SIBLING).generation == ref.generation + 1


def test_what_was_sent_cannot_be_withdrawn() -> None:
    one = table()
    ref = leased(one)
    with pytest.raises(ArenaError, match="LEASED"):
        one.withdraw(ref)
    assert one.holds(OWNER)


def test_a_block_has_one_reader() -> None:
    one = table()
    ref = leased(one)
    with pytest.raises(FanOutError, match="reader 1"):
        one.lease(ref, OTHER_READER, 0)
    assert one.release(ref, READER)
    with pytest.raises(ArenaError, match="FREE"):
        one.lease(ref, OTHER_READER, 0)


def test_it_is_given_back_once_by_its_reader_and_by_its_name() -> None:
    one = table()
    ref = leased(one)
    old = DataRef(ref.worker, ref.incarnation, ref.block, ref.generation - 1, ref.length)
    outside = DataRef(ref.worker, ref.incarnation, 99, 1, 1)
    assert [one.release(stale, READER) for stale in (old, outside)] == [False, False]
    assert not one.release(ref, OTHER_READER)
    assert one.release(ref, READER)
    assert not one.release(ref, READER)
    assert one.statistics(0).stale_releases == 4


def test_what_is_being_written_cannot_be_given_back() -> None:
    one = table()
    ref = acquired(one)
    assert not one.release(ref, 0)
    assert one.holds(OWNER)


def test_an_old_name_moves_nothing() -> None:
    one = table()
    old = leased(one)
    assert one.release(old, READER)
    new = acquired(one)
    for use in (one.written, one.withdraw, lambda ref: one.lease(ref, READER, 0)):
        with pytest.raises(ArenaError, match="generation 2, not 1"):
            use(old)
    assert one.written(new)


def test_a_lost_reader_gives_back_all_that_it_held_and_nothing_else() -> None:
    one = table()
    leased(one)
    other = leased(one, SIBLING, OTHER_READER)
    assert one.reader_lost(READER) == {OWNER}
    assert (one.holds(OWNER), one.holds(SIBLING)) == (False, True)
    assert one.reader_lost(READER) == set()
    assert one.release(other, OTHER_READER)


def test_a_lease_past_its_deadline_is_orphaned_and_stays_with_its_reader() -> None:
    one = table(blocks=2)
    first, second = leased(one, now_ns=100), leased(one, SIBLING, OTHER_READER, now_ns=200)
    assert one.next_expiry_ns() == 100 + LEASE_NS
    assert one.expire(99 + LEASE_NS) == []
    assert one.expire(100 + LEASE_NS) == [first]
    assert one.expire(100 + LEASE_NS) == [], "told once"
    assert one.next_expiry_ns() == 200 + LEASE_NS
    assert one.acquire(Owner("third", "r"), 1) is None, "its reader may still look at it"
    with pytest.raises(FanOutError):
        one.lease(first, OTHER_READER, 0)
    assert one.release(first, READER)
    assert one.expire(200 + LEASE_NS) == [second]
    assert one.next_expiry_ns() is None
    one.reader_lost(OTHER_READER)
    statistics = one.statistics(0)
    assert (statistics.free, statistics.orphaned, statistics.orphaned_ever) == (2, 0, 2)


def test_statistics_say_who_holds_what_and_since_when() -> None:
    one = table()
    assert one.statistics(7).lease_age_ns_max == 0
    leased(one, now_ns=100)
    leased(one, now_ns=150)
    acquired(one, SIBLING, 5)
    statistics = one.statistics(400)
    assert (statistics.free, statistics.writing, statistics.leased, statistics.used_peak) == (1, 1, 2, 3)
    assert (statistics.lease_age_ns_max, statistics.session_bytes) == (300, {"task": 20, "task_1_2": 5})
    one.expire(100 + LEASE_NS)
    one.reader_lost(READER)
    assert one.statistics(0).used_peak == 3


@dataclass(slots=True)
class Held:
    owner: Owner
    reader: int = 0
    written: bool = False
    doomed: bool = False
    leased_ns: int | None = None


class Blocks(RuleBasedStateMachine):
    """Owners and readers do as they please; the model knows who holds what."""

    BLOCKS, SESSION_MAX = 5, 2
    owners = st.sampled_from([OWNER, Owner("task", "resp_2"), SIBLING, Owner("other", "resp_1")])
    pick = st.integers(0, 1_000)

    def __init__(self) -> None:
        super().__init__()
        self.table = table(self.BLOCKS, self.SESSION_MAX)
        self.held: dict[DataRef, Held] = {}
        self.names: set[DataRef] = set()
        self.now_ns = 0

    def picked(self, which: int, **wanted: object) -> DataRef | None:
        """Some held block that is as wanted."""
        found = [
            ref
            for ref, held in self.held.items()
            if all(getattr(held, name) == value for name, value in wanted.items())
        ]
        return found[which % len(found)] if found else None

    def out(self) -> list[DataRef]:
        return [ref for ref, held in self.held.items() if held.leased_ns is not None]

    @rule(owner=owners, length=st.integers(0, 64))
    def acquire(self, owner: Owner, length: int) -> None:
        used = sum(held.owner.session == owner.session for held in self.held.values())
        ref = self.table.acquire(owner, length)
        assert (ref is None) == (len(self.held) == self.BLOCKS or used == self.SESSION_MAX)
        if ref is not None:
            assert ref not in self.names, "no name is used twice"
            assert ref.block not in {held.block for held in self.held}, "no block is in two hands"
            self.names.add(ref)
            self.held[ref] = Held(owner)

    @rule(which=pick)
    def write(self, which: int) -> None:
        ref = self.picked(which, written=False)
        if ref is not None:
            doomed = self.held[ref].doomed
            assert self.table.written(ref) is not doomed
            self.held[ref].written = True
            if doomed:
                del self.held[ref]

    @rule(which=pick, reader=st.integers(1, 2))
    def lease(self, which: int, reader: int) -> None:
        ref = self.picked(which, written=True, leased_ns=None)
        if ref is not None:
            self.table.lease(ref, reader, self.now_ns)
            self.held[ref].reader, self.held[ref].leased_ns = reader, self.now_ns

    @rule(which=pick)
    def withdraw(self, which: int) -> None:
        ref = self.picked(which, doomed=False, leased_ns=None)
        if ref is not None:
            self.table.withdraw(ref)
            if self.held[ref].written:
                del self.held[ref]
            else:
                self.held[ref].doomed = True

    @rule(which=pick, reader=st.integers(1, 2))
    def release(self, which: int, reader: int) -> None:
        """Any name that ever was, by any reader."""
        names = sorted(self.names, key=lambda ref: (ref.block, ref.generation))
        if names:
            ref = names[which % len(names)]
            held = self.held.get(ref)
            is_its = held is not None and held.leased_ns is not None and held.reader == reader
            assert self.table.release(ref, reader) is is_its
            if is_its:
                del self.held[ref]

    @rule(reader=st.integers(1, 2))
    def lose(self, reader: int) -> None:
        gone = [ref for ref in self.out() if self.held[ref].reader == reader]
        assert self.table.reader_lost(reader) == {self.held[ref].owner for ref in gone}
        for ref in gone:
            del self.held[ref]

    @rule(passes_ns=st.integers(0, LEASE_NS))
    def time(self, passes_ns: int) -> None:
        self.now_ns += passes_ns

    @precondition(lambda self: self.out())
    @rule()
    def expire(self) -> None:
        for ref in self.table.expire(self.now_ns):
            since_ns = self.held[ref].leased_ns
            assert since_ns is not None
            assert since_ns + LEASE_NS <= self.now_ns
        due_ns = self.table.next_expiry_ns()
        assert due_ns is None or due_ns > self.now_ns

    def teardown(self) -> None:
        """What became of every block is in the log."""
        promises = WorkerPromises()
        promises.check(self.table.events)
        assert promises.blocks == {f"block_{ref.block}" for ref in self.held}

    @invariant()
    def agree(self) -> None:
        statistics = self.table.statistics(self.now_ns)
        assert statistics.leased + statistics.orphaned == len(self.out())
        assert statistics.free == self.BLOCKS - len(self.held)
        assert statistics.writing == len(self.held) - len(self.out())
        for owner in (OWNER, SIBLING):
            assert self.table.holds(owner) == any(held.owner == owner for held in self.held.values())
        by_session = Counter(held.owner.session for held in self.held.values())
        assert all(count <= self.SESSION_MAX for count in by_session.values())
        assert statistics.session_bytes.keys() == by_session.keys()


TestBlocks = pytest.mark.slow(Blocks.TestCase)
TestBlocks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
