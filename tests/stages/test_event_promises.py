"""A log that breaks a promise is found out, and one that keeps them is not."""

from __future__ import annotations

import pytest

from stages.event_log import EventKind, EventLog
from tests.stages.event_promises import WorkerPromises

K = EventKind
Event = tuple[EventKind, int, str, str]


def event(kind: EventKind, value: int = 1, link: str = "", state: str = "") -> Event:
    return kind, value, link, state


OPEN, CLOSE = event(K.OPENED), event(K.CLOSED)
BLOCK = [event(kind, 9, "", "block_1") for kind in (K.ACQUIRED, K.LEASED, K.LEASE_EXPIRED, K.FREED)]
WHOLE = [
    OPEN,
    *(event(kind) for kind in (K.QUEUED, K.UNQUEUED, K.QUEUED, K.STARTED, K.PRODUCED)),
    *(event(K.CREDIT_TAKEN, 4, link) for link in ("talker", "gateway")),
    event(K.CREDIT_RETURNED, 3, "talker"),
    event(K.CANCELLED),
    event(K.COMPUTED),
    event(K.CREDIT_RETURNED, 1, "talker"),
    event(K.CREDIT_RETURNED, 4, "gateway"),
    CLOSE,
]


def checked(events: list[Event], size: int = 100) -> WorkerPromises:
    log, promises = EventLog(size), WorkerPromises()
    trail = log.of("s", "r")
    for at_ns, (kind, value, link, state) in enumerate(events):
        log.at(at_ns)
        trail.add(kind, value, link, state)
    promises.check(log)
    return promises


def test_what_keeps_them_passes() -> None:
    promises = checked([event(K.STALE), event(K.REFUSED), *WHOLE, *BLOCK, OPEN, CLOSE])
    promises.nothing_is_left()
    assert promises.lives == {"r": [(2, 15), (20, 21)]}
    assert promises.blocks == set()


@pytest.mark.parametrize(
    ("events", "broken"),
    [
        ([OPEN, OPEN], "opened twice"),
        ([CLOSE], "not open"),
        ([*WHOLE, event(K.PUBLISHED)], "published of r, which is not open"),
        ([OPEN, event(K.CANCELLED), event(K.PRODUCED)], "produced after it was cancelled"),
        ([OPEN, event(K.STARTED)], "started while its step is idle"),
        ([OPEN, event(K.QUEUED), event(K.QUEUED)], "queued while its step is queued"),
        ([OPEN, event(K.QUEUED), CLOSE], "closed while its step was queued"),
        ([OPEN, event(K.CREDIT_TAKEN, 4, "a"), event(K.CREDIT_RETURNED, 5, "a")], "more credit of a"),
        ([OPEN, event(K.CREDIT_TAKEN, 4, "a"), event(K.CREDIT_RETURNED, 4, "b")], "more credit of b"),
        ([OPEN, event(K.CREDIT_TAKEN, 4, "a"), CLOSE], "closed with credit in flight"),
        ([BLOCK[0], BLOCK[0]], "acquired amid acquired"),
        ([BLOCK[1]], "leased after freed"),
        ([BLOCK[0], BLOCK[2]], "expired after acquired"),
        ([BLOCK[0], BLOCK[3], BLOCK[3]], "freed twice"),
    ],
)
def test_what_breaks_one_is_named(events: list[Event], broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        checked(events)


@pytest.mark.parametrize(("events", "left"), [([OPEN], "never closed"), (BLOCK[:2], "never freed")])
def test_what_is_left_is_named(events: list[Event], left: str) -> None:
    with pytest.raises(AssertionError, match=left):
        checked(events).nothing_is_left()


def test_a_log_that_has_lost_events_proves_nothing() -> None:
    with pytest.raises(AssertionError, match="holds all"):
        checked(WHOLE, size=5)
