"""Snapshots become figures and alerts, and go when their replica does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog.testing
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from duplex import inspection
from duplex.alerts import AlertLimits
from duplex.inspection import Inspection
from duplex.tasks import stop_task
from stages.messages import (
    ArenaSnapshot,
    EdgeSnapshot,
    Inspect,
    KindSnapshot,
    KvSnapshot,
    SchedulerSnapshot,
    WorkerSnapshot,
)
from tests.duplex.pool_bench import bench

S = 1_000_000_000
LIMITS = AlertLimits(wait_ns_max=10 * S, lease_ns_max=S, fill_percent_max=75)
EDGE = EdgeSnapshot("vocoder", 3, 96, 144, 2 * S, 40_000, 80_000)
SNAPSHOT = WorkerSnapshot(
    "talker-2",
    streams=3,
    sessions=2,
    room_waiting=1,
    room_wait_ns_max=S // 2,
    scheduler=SchedulerSnapshot(4, 9, S // 4, 1, 2, (KindSnapshot("clause", 12, 30_000_000, 20_000_000, 10_000_000),)),
    arena=ArenaSnapshot(64, 3, 8, 1, S // 8),
    edges=(EDGE,),
)
HELD_UP = replace(SNAPSHOT, edges=(replace(EDGE, wait_ns_max=11 * S),))
AT = 'replica="talker-2",stage="talker"'


class Bench:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.inspection = Inspection(LIMITS, self.registry)

    def figures(self) -> list[str]:
        lines = generate_latest(self.registry).decode().splitlines()
        return [line for line in lines if not line.startswith("#")]

    def take(self, *snapshots: WorkerSnapshot) -> list[dict[str, object]]:
        """What is logged meanwhile."""
        with structlog.testing.capture_logs() as logs:
            for snapshot in snapshots:
                self.inspection.take("talker", snapshot)
        return [dict(line) for line in logs]


def test_every_figure_of_a_snapshot_is_told_with_its_place() -> None:
    one = Bench()
    assert one.take(SNAPSHOT) == []
    figures = one.figures()
    edge = f'edge="vocoder",{AT}'
    kind = f'kind="clause",{AT}'
    assert {line for line in figures if not line.startswith("duplex_alert")} == {
        f"duplex_stage_streams{{{AT}}} 3.0",
        f"duplex_stage_sessions{{{AT}}} 2.0",
        f"duplex_room_waiting{{{AT}}} 1.0",
        f"duplex_room_wait_seconds{{{AT}}} 0.5",
        f"duplex_edge_streams{{{edge}}} 3.0",
        f"duplex_edge_credit_out{{{edge}}} 96.0",
        f"duplex_edge_credit_out_peak{{{edge}}} 144.0",
        f"duplex_edge_wait_seconds{{{edge}}} 2.0",
        f"duplex_edge_bytes_in_flight{{{edge}}} 40000.0",
        f"duplex_edge_bytes_in_flight_peak{{{edge}}} 80000.0",
        f"duplex_arena_blocks{{{AT}}} 64.0",
        f"duplex_arena_blocks_used{{{AT}}} 3.0",
        f"duplex_arena_blocks_used_peak{{{AT}}} 8.0",
        f"duplex_arena_blocks_orphaned{{{AT}}} 1.0",
        f"duplex_arena_lease_seconds{{{AT}}} 0.125",
        f"duplex_scheduler_waiting{{{AT}}} 4.0",
        f"duplex_scheduler_waiting_peak{{{AT}}} 9.0",
        f"duplex_scheduler_wait_seconds{{{AT}}} 0.25",
        f"duplex_scheduler_running{{{AT}}} 1.0",
        f"duplex_scheduler_expired{{{AT}}} 2.0",
        f"duplex_scheduler_predicted_seconds{{{kind}}} 0.03",
        f"duplex_scheduler_service_mean_seconds{{{kind}}} 0.02",
        f"duplex_scheduler_error_mean_seconds{{{kind}}} 0.01",
    }


def test_every_figure_of_kv_is_told_where_there_is_any() -> None:
    one = Bench()
    kv = KvSnapshot(4, 3, 1, 2, 500, 20, 9, {"new": 2, "evicted": 1}, {"idle": 6}, 7, 30, wait_ns_max=2 * 10**9)
    one.take(replace(SNAPSHOT, kv=kv))
    assert {line for line in one.figures() if line.startswith("duplex_kv_")} == {
        f"duplex_kv_places{{{AT}}} 4.0",
        f"duplex_kv_places_used{{{AT}}} 3.0",
        f"duplex_kv_places_pinned{{{AT}}} 1.0",
        f"duplex_kv_waiting{{{AT}}} 2.0",
        f"duplex_kv_wait_seconds{{{AT}}} 2.0",
        f"duplex_kv_tokens{{{AT}}} 500.0",
        f"duplex_kv_bytes{{{AT}}} 10000.0",
        f"duplex_kv_hits{{{AT}}} 9.0",
        f'duplex_kv_misses{{cause="new",{AT}}} 2.0',
        f'duplex_kv_misses{{cause="evicted",{AT}}} 1.0',
        f'duplex_kv_evictions{{cause="idle",{AT}}} 6.0',
        f"duplex_kv_mismatches{{{AT}}} 7.0",
        f"duplex_kv_rebuilt_tokens{{{AT}}} 30.0",
        f"duplex_kv_rebuilt_bytes{{{AT}}} 600.0",
    }


def test_an_alert_is_logged_once_and_stands_in_a_gauge_until_it_is_cleared() -> None:
    one = Bench()
    assert 'duplex_alert{cause="edge_wait"} 0.0' in one.figures()
    about = {"cause": "edge_wait", "stage": "talker", "replica": "talker-2", "edge": "vocoder", "limit": 10 * S}
    raised = {"event": "alert_raised", "log_level": "warning", "value": 11 * S, "unit": "ns", **about}
    assert one.take(HELD_UP, HELD_UP, HELD_UP) == [raised]
    assert 'duplex_alert{cause="edge_wait"} 1.0' in one.figures()
    assert one.take(SNAPSHOT, SNAPSHOT) == [raised | {"event": "alert_cleared", "value": 2 * S}]
    assert 'duplex_alert{cause="edge_wait"} 0.0' in one.figures()


def test_of_a_replica_that_is_down_nothing_is_told() -> None:
    one = Bench()
    one.take(HELD_UP, HELD_UP)
    with structlog.testing.capture_logs() as logs:
        one.inspection.forget("talker", "talker-2")
        one.inspection.forget("talker", "talker-1")
    assert [line["event"] for line in logs] == ["alert_cleared"]
    assert [line for line in one.figures() if "talker" in line] == []


def test_it_asks_again_and_again() -> None:
    async def scenario() -> None:
        asked = asyncio.Event()
        asking = asyncio.create_task(Bench().inspection.run(asked.set))
        await asked.wait()
        await stop_task(asking)

    asyncio.run(scenario())


TALKER = ("talker", "talker-2")


def test_who_wants_to_see_the_present_waits_for_every_answer() -> None:
    async def scenario() -> None:
        one, asked = Bench(), list[str]()
        other = "vocoder", "vocoder"
        showing = asyncio.create_task(one.inspection.refresh(lambda: asked.append("all"), [TALKER, other]))
        await asyncio.sleep(0)
        assert asked == ["all"]
        one.inspection.take("talker", SNAPSHOT)
        await asyncio.sleep(0)
        assert not showing.done()
        one.inspection.forget(*other)
        await showing
        assert f"duplex_stage_streams{{{AT}}} 3.0" in one.figures()

    asyncio.run(scenario())


def test_who_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "ANSWER_S_MAX", 0)
    one = Bench()
    asyncio.run(one.inspection.refresh(lambda: None, [TALKER]))
    assert [line for line in one.figures() if "talker" in line] == []


def test_an_answer_that_is_only_shown_raises_no_alert() -> None:
    async def scenario() -> None:
        one = Bench()
        showing = asyncio.create_task(one.inspection.refresh(lambda: None, [TALKER]))
        await asyncio.sleep(0)
        assert one.take(HELD_UP, HELD_UP) == [], "the first was to be shown"
        await showing
        assert [line["event"] for line in one.take(HELD_UP)] == ["alert_raised"]

    asyncio.run(scenario())


def test_each_replica_that_is_up_is_asked_and_its_answer_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path, "talker-1", "talker-2") as one:
            worker = await one.worker("talker-2")
            one.pool.inspect()
            assert await worker.orders() == [Inspect()]
            worker.says(SNAPSHOT)
            await one.told.until("talker", SNAPSHOT)

    asyncio.run(scenario())
