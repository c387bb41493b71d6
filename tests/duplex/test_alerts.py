"""When an alert is raised, when it is cleared, and that it is neither twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.alerts import AlertLimits, Alerts, Cause, Cleared, Place, Raised, Reading, readings_of
from stages.link_window import LINK_WINDOW_BYTES
from stages.messages import ArenaSnapshot, EdgeSnapshot, SchedulerSnapshot, WorkerSnapshot

LIMIT = 10
HERE = Place("vocoder", "vocoder-1", "gateway")
OVER, BETWEEN, UNDER = 11, 10, 5


def reading(value: int, place: Place = HERE, cause: Cause = Cause.EDGE_WAIT) -> Reading:
    return Reading(cause, place, value, LIMIT)


def said(*values: int) -> list[str]:
    """What is said of each of these readings in turn."""
    alerts = Alerts()
    words = {Raised: "raised", Cleared: "cleared", type(None): ""}
    return [words[type(alerts.observe(reading(value)))] for value in values]


# Every state, and what each level makes of it.
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([UNDER, BETWEEN], ["", ""]),
        ([OVER, UNDER, OVER], ["", "", ""]),
        ([OVER, BETWEEN, OVER], ["", "", ""]),
        ([OVER, OVER], ["", "raised"]),
        ([OVER, OVER, OVER, BETWEEN], ["", "raised", "", ""]),
        ([OVER, OVER, UNDER, OVER, OVER], ["", "raised", "", "", ""]),
        ([OVER, OVER, UNDER, BETWEEN, UNDER], ["", "raised", "", "", ""]),
        ([OVER, OVER, UNDER, UNDER], ["", "raised", "", "cleared"]),
        ([OVER, OVER, UNDER, UNDER, OVER, OVER], ["", "raised", "", "cleared", "", "raised"]),
    ],
)
def test_two_looks_in_a_row_decide(values: list[int], expected: list[str]) -> None:
    assert said(*values) == expected


def test_what_is_said_names_the_reading() -> None:
    alerts = Alerts()
    alerts.observe(reading(12))
    assert alerts.observe(reading(14)) == Raised(reading(14))
    alerts.observe(reading(5))
    assert alerts.observe(reading(0)) == Cleared(reading(0))


def test_places_and_causes_are_apart_and_counted_by_cause() -> None:
    alerts, there = Alerts(), Place("talker", "talker", "vocoder")
    for place, cause in ((HERE, Cause.EDGE_WAIT), (there, Cause.EDGE_WAIT), (there, Cause.LINK_BYTES)):
        for _ in range(2):
            alerts.observe(reading(OVER, place, cause))
    alerts.observe(reading(OVER, there, Cause.LEASE_AGE))
    alerts.observe(reading(UNDER))
    assert [alerts.raised(cause) for cause in (Cause.EDGE_WAIT, Cause.LINK_BYTES, Cause.LEASE_AGE)] == [2, 1, 0]


def test_a_replica_that_is_gone_takes_its_alerts_with_it() -> None:
    alerts = Alerts()
    other = Place("vocoder", "vocoder-2", "gateway")
    for place in (HERE, other):
        for _ in range(2):
            alerts.observe(reading(OVER, place))
    alerts.observe(reading(OVER, Place("vocoder", "vocoder-1"), Cause.LEASE_AGE))
    assert alerts.forget("vocoder", "vocoder-1") == [Cleared(reading(OVER))]
    assert alerts.raised(Cause.EDGE_WAIT) == 1
    assert alerts.forget("vocoder", "vocoder-1") == []
    assert alerts.observe(reading(OVER)) is None, "it begins anew"


@given(st.lists(st.integers(0, 20), max_size=60))
def test_raised_and_cleared_take_turns_and_never_at_a_moments_reading(values: list[int]) -> None:
    alerts, standing = Alerts(), False
    for before, value in zip([0, *values], values, strict=False):
        match alerts.observe(reading(value)):
            case Raised():
                assert not standing
                assert min(before, value) > LIMIT
                standing = True
            case Cleared():
                assert standing
                assert max(before, value) <= LIMIT / 2
                standing = False
        assert alerts.raised(Cause.EDGE_WAIT) == standing


def test_all_of_a_snapshot_is_held_against_its_limits() -> None:
    snapshot = WorkerSnapshot(
        "vocoder-1",
        *(3, 2, 1, 70),
        SchedulerSnapshot(4, 9, 71, 1, 0, ()),
        ArenaSnapshot(64, 3, 8, 1, 72),
        (EdgeSnapshot("gateway", 3, 96, 144, 73, 40_000, 80_000),),
    )
    limits, replica = (
        AlertLimits(wait_ns_max=1_000, lease_ns_max=500, fill_percent_max=75),
        Place("vocoder", "vocoder-1"),
    )
    assert list(readings_of("vocoder", snapshot, limits)) == [
        Reading(Cause.ROOM_WAIT, replica, 70, 1_000),
        Reading(Cause.SCHEDULER_WAIT, replica, 71, 1_000),
        Reading(Cause.ARENA_BLOCKS, replica, 3, 48),
        Reading(Cause.LEASE_AGE, replica, 72, 500),
        Reading(Cause.EDGE_WAIT, HERE, 73, 1_000),
        Reading(Cause.LINK_BYTES, HERE, 40_000, LINK_WINDOW_BYTES * 3 // 4),
    ]


def test_causes_have_their_units() -> None:
    units = {cause.value: cause.unit for cause in Cause}
    assert units == {
        "edge_wait": "ns",
        "room_wait": "ns",
        "scheduler_wait": "ns",
        "link_bytes": "bytes",
        "arena_blocks": "blocks",
        "lease_age": "ns",
    }
