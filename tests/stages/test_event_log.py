"""The record of what happened: bounded, in order, and without anybody's words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stages.event_log import EventKind, EventLog, LoggedEvent


def test_what_is_written_is_read_in_order() -> None:
    log = EventLog()
    log.add(5, EventKind.OPENED, "resp_1", 1)
    log.add(7, EventKind.STARTED, "resp_1", 2, "decode")
    assert list(log.events()) == [
        LoggedEvent(5, "opened", "resp_1", 1, ""),
        LoggedEvent(7, "started", "resp_1", 2, "decode"),
    ]


def test_a_part_can_be_read() -> None:
    log = EventLog()
    for key in ("resp_1", "resp_2", "sess/1", "resp_2"):
        log.add(1, EventKind.PUBLISHED, key, 1)
    assert [event.key for event in log.events(lambda key: key == "resp_2")] == ["resp_2", "resp_2"]


def test_a_moment_never_goes_back() -> None:
    log = EventLog()
    for at_ns in (5, 3, 9):
        log.add(at_ns, EventKind.STALE, "", 1)
    assert [event.at_ns for event in log.events()] == [5, 5, 9]


@given(written=st.integers(0, 40), size=st.integers(1, 10))
def test_the_newest_are_held_and_the_others_counted(written: int, size: int) -> None:
    log = EventLog(size)
    for number in range(written):
        log.add(number, EventKind.QUEUED, "s", number)
    assert [event.value for event in log.events()] == list(range(max(0, written - size), written))
    statistics = log.statistics()
    assert (statistics.held, statistics.lost) == (min(size, written), max(0, written - size))
    assert statistics.counts == ({"queued": written} if written else {})


def test_it_can_be_written_while_it_is_read() -> None:
    log = EventLog(2)
    log.add(1, EventKind.OPENED, "s", 1)
    for event in log.events():
        log.add(2, EventKind.CLOSED, event.key, 0)
    assert [event.kind for event in log.events()] == ["opened", "closed"]
