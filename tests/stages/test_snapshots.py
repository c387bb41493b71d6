"""What a worker says of how it stands."""

from __future__ import annotations

from dataclasses import replace

from stages.accounts import EdgeStatistics, StageStatistics
from stages.block_table import BlockTable, Owner
from stages.credit import CreditStatistics
from stages.edges import GATEWAY
from stages.kv_cache import KvStatistics
from stages.messages import ArenaSnapshot, EdgeSnapshot, KindSnapshot, KvSnapshot
from stages.outgoing import OutgoingStatistics
from stages.scheduler import Ready, StageScheduler
from stages.snapshots import Snapshots

NEXT_A, NEXT_B, MEDIA = 1, 2, 3
TARGETS = {NEXT_A: "next", NEXT_B: "next", MEDIA: GATEWAY}
IDLE = StageStatistics(0, 0, 0, StageScheduler(1).statistics(), ())
QUIET = OutgoingStatistics({}, {})
EMPTY = BlockTable("talker", 1).statistics(0)
NO_KV = KvStatistics()


def snapshots() -> Snapshots:
    return Snapshots("talker-1", TARGETS.__getitem__)


def held_up(moves: int) -> StageStatistics:
    return replace(IDLE, edges=(EdgeStatistics("next", 2, 40, 48, {"r1": moves, "r2": 1}),))


def test_an_idle_worker_has_an_edge_to_the_gateway_all_the_same() -> None:
    seen = snapshots().take(IDLE, QUIET, EMPTY, NO_KV, 0)
    assert (seen.replica, seen.streams, seen.sessions, seen.room_waiting, seen.room_wait_ns_max) == (
        "talker-1",
        *(0, 0, 0, 0),
    )
    assert seen.edges == (EdgeSnapshot(GATEWAY, 0, 0, 0, 0, 0, 0),)
    assert (seen.scheduler.waiting, seen.scheduler.wait_ns_max, seen.scheduler.kinds) == (0, 0, ())
    assert seen.arena == ArenaSnapshot(64, 0, 0, 0, 0)


def test_the_oldest_wait_of_an_edge_is_that_of_the_stream_whose_credit_stands_still() -> None:
    one = snapshots()
    assert one.take(held_up(1), QUIET, EMPTY, NO_KV, 1_000).edges[0].wait_ns_max == 0
    assert one.take(held_up(2), QUIET, EMPTY, NO_KV, 3_000).edges[0].wait_ns_max == 2_000, "r2's has not moved"
    assert one.take(replace(IDLE, edges=(EdgeStatistics("next", 0, 0, 48, {}),)), QUIET, EMPTY, NO_KV, 4_000).edges == (
        EdgeSnapshot("next", 0, 0, 48, 0, 0, 0),
        EdgeSnapshot(GATEWAY, 0, 0, 0, 0, 0, 0),
    )


def test_bytes_are_those_of_the_fullest_link_of_an_edge() -> None:
    windows = {
        NEXT_A: CreditStatistics(100, 10, 90, 0),
        NEXT_B: CreditStatistics(100, 30, 40, 0),
        MEDIA: CreditStatistics(100, 5, 6, 0),
    }
    to_next, to_gateway = snapshots().take(held_up(1), OutgoingStatistics(windows, {}), EMPTY, NO_KV, 0).edges
    assert (to_next.link_bytes, to_next.link_bytes_peak) == (30, 90)
    assert (to_gateway.link_bytes, to_gateway.link_bytes_peak) == (5, 6)


def test_streams_without_room_are_counted_and_the_first_of_them_told() -> None:
    one = snapshots()
    one.take(IDLE, OutgoingStatistics({}, {"r1": 2}), EMPTY, NO_KV, 1_000)
    seen = one.take(IDLE, OutgoingStatistics({}, {"r1": 2, "r2": 1}), EMPTY, NO_KV, 5_000)
    assert (seen.room_waiting, seen.room_wait_ns_max) == (2, 4_000)


def test_the_queue_and_what_was_expected_of_steps() -> None:
    scheduler = StageScheduler(1)
    for name, ready_ns in (("r1", 0), ("r2", 2_000)):
        scheduler.offer(Ready(name, "clause", 0, ready_ns))
    batch = scheduler.start(2_000)
    assert batch is not None
    seen = snapshots().take(replace(IDLE, scheduler=scheduler.statistics()), QUIET, EMPTY, NO_KV, 10_000).scheduler
    assert (seen.waiting, seen.waiting_peak, seen.wait_ns_max, seen.running) == (1, 2, 8_000, 1)
    scheduler.done(batch.number, 12_000)
    seen = snapshots().take(replace(IDLE, scheduler=scheduler.statistics()), QUIET, EMPTY, NO_KV, 12_000).scheduler
    assert seen.kinds == (KindSnapshot("clause", 1, 10_000, 10_000, 10_000),)


def test_blocks_in_any_use_and_the_age_of_the_oldest_lease() -> None:
    table = BlockTable("talker", 1)
    owner = Owner("s", "r")
    refs = [table.acquire(owner, 8) for _ in range(3)]
    assert all(refs)
    for ref, leased_ns in zip(refs[:2], (1_000, 2_000), strict=True):
        assert ref is not None
        table.written(ref)
        table.lease(ref, NEXT_A, leased_ns)
    assert snapshots().take(IDLE, QUIET, table.statistics(6_000), NO_KV, 6_000).arena == ArenaSnapshot(
        64, 3, 3, 0, 5_000
    )


def test_an_edge_of_sound_is_the_one_to_the_gateway() -> None:
    stage = replace(IDLE, edges=(EdgeStatistics(GATEWAY, 1, 480, 960, {}),))
    assert snapshots().take(stage, QUIET, EMPTY, NO_KV, 0).edges == (EdgeSnapshot(GATEWAY, 1, 480, 960, 0, 0, 0),)


def test_of_kv_all_is_told_where_there_is_any() -> None:
    kv = KvStatistics(4, 3, 1, 2, 500, 23_040, 9, {"new": 2}, {"idle": 1}, 1, 300, 40)
    assert snapshots().take(IDLE, QUIET, EMPTY, kv, 0).kv == KvSnapshot(
        4, 3, 1, 2, 500, 23_040, 9, {"new": 2}, {"idle": 1}, 1, 300, 40
    )
    assert snapshots().take(IDLE, QUIET, EMPTY, NO_KV, 0).kv is None
