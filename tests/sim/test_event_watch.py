"""Event logs that break a promise are found out, and those that keep them are not."""

from __future__ import annotations

import pytest

from stages.event_log import EventKind, EventLog
from tests.sim.event_watch import EventWatch

K = EventKind
Event = tuple[EventKind, int, str, str]


def event(kind: EventKind, value: int = 0, link: str = "", state: str = "") -> Event:
    return kind, value, link, state


BEGUN = [event(K.ACCEPTED), event(K.ADMITTED), event(K.ASKED, 0, "talker"), event(K.OPENED, 0, "talker")]
ENDED = event(K.TERMINAL, 0, "", "succeeded")
GONE = event(K.CLOSED, 0, "talker")
DRAINED = event(K.DRAINED, 5, "", "complete")


def log_of(*events: Event, stream: str = "resp_1", from_ns: int = 1) -> EventLog:
    log = EventLog()
    trail = log.of("sess_1", stream)
    for at_ns, (kind, value, link, state) in enumerate(events, from_ns):
        log.at(at_ns)
        trail.add(kind, value, link, state)
    return log


def at_gateway(*events: Event, is_alive: bool = True) -> None:
    EventWatch().gateway(log_of(*events), is_alive=is_alive)


@pytest.mark.parametrize(
    "events",
    [
        [*BEGUN, event(K.SENT, 480), event(K.TERMINAL, 480), GONE, DRAINED, event(K.STALE)],
        [event(K.ACCEPTED), ENDED, DRAINED],
        [*BEGUN, event(K.RETRIED, 1), event(K.ASKED, 1, "talker"), GONE, event(K.REFUSED, 1, "talker"), ENDED, DRAINED],
        [*BEGUN, ENDED, event(K.DRAINED, 9, "", "orphaned")],
        [*BEGUN, ENDED],
    ],
)
def test_what_keeps_its_promises_passes(events: list[Event]) -> None:
    at_gateway(*events)


@pytest.mark.parametrize(
    ("events", "broken"),
    [
        ([event(K.ADMITTED)], "admitted after nothing"),
        ([*BEGUN, event(K.ADMITTED)], "admitted after admitted"),
        ([*BEGUN, ENDED, ENDED], "terminal after terminal"),
        ([*BEGUN, DRAINED], "drained after admitted"),
        ([*BEGUN, ENDED, GONE, DRAINED, DRAINED], "drained after drained"),
        ([*BEGUN, ENDED, event(K.SENT, 480)], "sent after terminal"),
        ([*BEGUN, ENDED, event(K.ASKED, 1, "talker")], "asked after terminal"),
        ([*BEGUN, event(K.SENT, 480), event(K.TERMINAL, 960)], "ended with 960 samples sent, and sent 480"),
        ([*BEGUN, ENDED, DRAINED], "have not let go"),
        ([*BEGUN, event(K.ASKED, 1, "talker"), GONE, ENDED, DRAINED], "have not let go"),
        (BEGUN, "resp_1 never ended"),
    ],
)
def test_what_breaks_one_is_named(events: list[Event], broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        at_gateway(*events)


def test_a_gateway_that_died_owes_no_end() -> None:
    at_gateway(*BEGUN, is_alive=False)


@pytest.mark.parametrize(("closed_ns", "holds"), [(6, False), (7, True)])
def test_what_has_drained_is_held_by_no_worker(closed_ns: int, holds: bool) -> None:
    watch = EventWatch()
    watch.gateway(log_of(*BEGUN, GONE, ENDED, DRAINED, from_ns=0), is_alive=True)  # drained at 6
    worker = log_of(event(K.OPENED), stream="resp_1#1", from_ns=3)
    worker.at(closed_ns)
    worker.of("sess_1", "resp_1#1").add(K.CLOSED)
    if not holds:
        watch.worker(worker, is_alive=True)
        assert watch.events == 9
        return
    with pytest.raises(AssertionError, match="resp_1#1 had drained when it was still held"):
        watch.worker(worker, is_alive=True)


def test_a_worker_that_lives_has_let_go_of_all_and_one_that_died_need_not() -> None:
    log = log_of(event(K.OPENED))
    EventWatch().worker(log, is_alive=False)
    with pytest.raises(AssertionError, match="never closed"):
        EventWatch().worker(log, is_alive=True)
