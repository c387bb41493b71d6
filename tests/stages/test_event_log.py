"""The record of what happened: bounded, in order, without anybody's words, and read page by page."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages.event_log import (
    LABELS_MAX,
    NAME_CHARACTERS_MAX,
    NO_TRAIL,
    OTHER,
    PAGE_EVENTS_MAX,
    SCANNED_MAX,
    EventKind,
    EventLog,
    EventLogStatistics,
    Excerpt,
    LoggedEvent,
)
from stages.link_window import FRAME_BYTES_MAX
from stages.messages import EventPage, encode

SPOKEN = "My card is 4929, and please: hurry!"


def values(excerpt: Excerpt) -> list[int]:
    return [event.value for event in excerpt.events]


def test_what_is_written_is_read_in_order() -> None:
    log = EventLog()
    trail = log.of("sess_1", "resp_1", "acme")
    log.at(5)
    trail.add(EventKind.OPENED, 1)
    log.at(7)
    trail.add(EventKind.CREDIT_RETURNED, 2, "vocoder", "latents", "granted")
    assert log.read() == Excerpt(
        (
            LoggedEvent(5, "opened", "sess_1", "resp_1", "acme", 1, "", "", ""),
            LoggedEvent(7, "credit_returned", "sess_1", "resp_1", "acme", 2, "vocoder", "latents", "granted"),
        ),
        0,
        more=False,
    )
    assert log.statistics() == EventLogStatistics(2, 0, since_ns=5)


def test_a_log_says_since_when_it_holds_everything() -> None:
    log = EventLog(2)
    assert log.statistics().since_ns == 0, "nothing has happened yet"
    log.at(3)
    trail = log.of("s")
    for at_ns in (5, 7):
        log.at(at_ns)
        trail.add(EventKind.OPENED)
    assert log.statistics().since_ns == 3
    log.at(9)
    trail.add(EventKind.OPENED)
    assert log.statistics() == EventLogStatistics(3, 1, since_ns=7)


def test_a_moment_never_goes_back() -> None:
    log = EventLog()
    for at_ns in (5, 3, 9):
        log.at(at_ns)
        log.of("s").add(EventKind.STALE)
    assert [event.at_ns for event in log.read().events] == [5, 5, 9]


def test_events_of_a_session_or_of_a_response_can_be_read_alone() -> None:
    log = EventLog()
    whose = [("s", "r"), ("s", "r#1"), ("s", "r#12"), ("s", "r2"), ("s", ""), ("t", "r"), ("s", "s/3/r")]
    for number, names in enumerate(whose):
        log.of(*names).add(EventKind.QUEUED, number)
    assert values(log.read(session="s")) == [0, 1, 2, 3, 4, 6]
    assert values(log.read(response="r")) == [0, 1, 2, 5], "in all its attempts"
    assert values(log.read(session="t", response="r")) == [5]
    assert values(log.read(session="nobody")) == []


def test_nothing_that_somebody_said_goes_in() -> None:
    log = EventLog()
    log.of(SPOKEN, SPOKEN, SPOKEN).add(EventKind.CLOSED, 1, SPOKEN, SPOKEN, SPOKEN)
    log.of("s" * (NAME_CHARACTERS_MAX + 1)).add(EventKind.CLOSED, 1, cause="c" * (NAME_CHARACTERS_MAX + 1))
    log.of("sess_1", "sess_1/1048577/3#1", "Acme.de").add(EventKind.CLOSED, 1, "vocoder-2", "block_17", "Größe")
    assert log.read().events == (
        LoggedEvent(0, "closed", OTHER, OTHER, OTHER, 1, OTHER, OTHER, OTHER),
        LoggedEvent(0, "closed", OTHER, "", "", 1, "", "", OTHER),
        LoggedEvent(0, "closed", "sess_1", "sess_1/1048577/3#1", "Acme.de", 1, "vocoder-2", "block_17", OTHER),
    )


def test_labels_are_a_closed_set() -> None:
    log = EventLog()
    trail = log.of("s")
    for number in range(LABELS_MAX + 5):
        trail.add(EventKind.STALE, cause=f"cause_{number}")
    trail.add(EventKind.STALE, cause="cause_0")
    causes = [event.cause for event in log.read(events_max=LABELS_MAX * 2).events]
    assert len(set(causes)) == LABELS_MAX - 1, "the empty one counts, and is not used here"
    assert (causes[0], causes[-2], causes[-1]) == ("cause_0", OTHER, "cause_0")


def test_a_log_of_no_size_records_nothing() -> None:
    log = EventLog(0)
    log.at(5)
    log.of("s").add(EventKind.OPENED, 1, "a", "b", "c")
    NO_TRAIL.add(EventKind.OPENED)
    assert log.statistics() == EventLogStatistics(0, 0, since_ns=6), "of what has happened it holds nothing"
    assert log.read() == Excerpt((), 0, more=False)


def test_counting_reads_nothing() -> None:
    log = EventLog()
    log.of("s").add(EventKind.OPENED)
    assert log.read(events_max=0) == Excerpt((), 1, more=True)


def test_a_reading_looks_at_so_many_events_and_no_more() -> None:
    log = EventLog(2 * SCANNED_MAX)
    log.of("rare").add(EventKind.OPENED, 7)
    often = log.of("often")
    for _ in range(SCANNED_MAX):
        often.add(EventKind.QUEUED)
    nothing = log.read(session="rare")
    assert (nothing.events, nothing.before, nothing.more) == ((), 1, True)
    assert values(log.read(nothing.before, session="rare")) == [7]


def test_every_kind_is_described() -> None:
    described = Path(__file__).parents[2].joinpath("docs/architecture.md").read_text(encoding="utf-8")
    assert [kind for kind in EventKind if f"`{kind}`" not in described] == []


def test_the_largest_page_fits_a_frame() -> None:
    longest = "x" * NAME_CHARACTERS_MAX
    event = LoggedEvent(2**62, EventKind.CREDIT_RETURNED.value, longest, longest, longest, 2**62, *[longest] * 3)
    page = EventPage(2**62, Excerpt((event,) * PAGE_EVENTS_MAX, 2**62, more=True), EventLogStatistics(2**62, 2**62))
    assert len(encode(page)) < FRAME_BYTES_MAX


@pytest.mark.parametrize("before", [3, 100])
def test_what_is_overwritten_between_two_pages_is_gone(before: int) -> None:
    log = EventLog(4)
    for number in range(10):
        log.of("s").add(EventKind.QUEUED, number)
    excerpt = log.read(before)
    assert values(excerpt) == ([] if before == 3 else [6, 7, 8, 9])
    assert (excerpt.before, excerpt.more) == (6, False)


@given(
    size=st.integers(0, 12),
    written=st.lists(st.tuples(st.integers(0, 50), st.sampled_from("abc")), max_size=40),
    page=st.integers(1, 5),
    wanted=st.sampled_from(["", "a", "b", "nobody"]),
)
@example(size=2, written=[(0, "a"), (1, "a")], page=1, wanted="")
def test_pages_are_the_newest_events_in_order_and_each_once(
    size: int, written: list[tuple[int, str]], page: int, wanted: str
) -> None:
    log, latest_ns, entered = EventLog(size), 0, []
    for number, (at_ns, session) in enumerate(written):
        log.at(at_ns)
        log.of(session).add(EventKind.QUEUED, number)
        latest_ns = max(latest_ns, at_ns)
        entered.append((latest_ns, session, number))
    found: list[tuple[int, str, int]] = []
    before, more = None, True
    while more:
        excerpt = log.read(before, session=wanted, events_max=page)
        assert len(excerpt.events) <= page
        found = [(event.at_ns, event.session, event.value) for event in excerpt.events] + found
        before, more = excerpt.before, excerpt.more
    held = entered[max(0, len(entered) - size) :]
    assert found == [event for event in held if wanted in ("", event[1])]
    recorded = len(entered) if size else 0
    statistics = log.statistics()
    assert (statistics.recorded, statistics.overwritten) == (recorded, recorded - len(held))
    assert all(event[0] >= statistics.since_ns for event in held)
