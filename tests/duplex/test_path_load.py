"""Newcomers are refused where a stage has fallen behind, and only there."""

from __future__ import annotations

from msgspec.structs import replace

from duplex.path_load import stage_behind
from stages.messages import ArenaSnapshot, EdgeSnapshot, KvSnapshot, SchedulerSnapshot, WorkerSnapshot

S = 1_000_000_000
SLOW_READER = EdgeSnapshot("gateway", 3, 96, 144, 60 * S, 40_000, 80_000)
IDLE = WorkerSnapshot(
    "talker",
    streams=3,
    sessions=2,
    room_waiting=0,
    room_wait_ns_max=0,
    scheduler=SchedulerSnapshot(4, 9, S, 1, 0, ()),
    arena=ArenaSnapshot(64, 3, 8, 1, 0),
    edges=(SLOW_READER,),
)
BEHIND = replace(IDLE, scheduler=SchedulerSnapshot(4, 9, 3 * S + 1, 1, 0, ()))


def test_a_stage_that_keeps_up_takes_calls_however_slow_a_client_is() -> None:
    assert stage_behind({}, 3 * S) is None
    assert stage_behind({("talker", "talker"): IDLE}, 3 * S) is None


def test_work_that_has_waited_for_too_long_refuses_them() -> None:
    assert stage_behind({("talker", "talker"): BEHIND}, 3 * S) == "the talker has had work waiting for 3.0 s"
    assert stage_behind({("talker", "talker"): BEHIND}, 4 * S) is None
    no_room = replace(IDLE, room_wait_ns_max=5 * S)
    told = {("encoder", "encoder"): IDLE, ("talker", "talker"): no_room}
    assert stage_behind(told, 3 * S) == "the talker has had work waiting for 5.0 s"


def test_one_replica_that_keeps_up_is_enough() -> None:
    assert stage_behind({("talker", "talker"): BEHIND, ("talker", "talker-2"): IDLE}, 3 * S) is None


def test_a_response_that_has_waited_for_a_place_for_too_long_refuses_them() -> None:
    def thinker(wait_ns_max: int) -> WorkerSnapshot:
        return replace(IDLE, kv=KvSnapshot(places=1, used=1, pinned=1, waiting=9, wait_ns_max=wait_ns_max))

    assert stage_behind({("thinker", "thinker"): thinker(S)}, S) is None
    wanted = "the thinker has had work waiting for 2.0 s"
    assert stage_behind({("thinker", "thinker"): thinker(2 * S)}, S) == wanted
