"""What several gateways of a host tell, as one."""

from __future__ import annotations

import asyncio

from duplex.event_reader import EventReader, ProcessLog, ReadEvent, Reading, Wanted, joined
from stages.event_log import EventKind, EventLog


def reading(process: str, *at_ns: int, since_ns: int = 0, fault: str = "", truncated: bool = False) -> Reading:
    events = tuple(ReadEvent(at, process, "drained", "sess_1") for at in at_ns)
    log = ProcessLog(process, 0, "", len(events), 0, fault, since_ns)
    return Reading(bool(fault), truncated, (log,), events)


def test_events_are_joined_in_the_order_of_time_and_the_newest_stay() -> None:
    whole = joined([reading("gateway-1", 10, 30), reading("gateway-2", 20, 30)], Wanted(events_max=3))
    told = [(event.at_ns, event.process) for event in whole.events]
    assert told == [(20, "gateway-2"), (30, "gateway-1"), (30, "gateway-2")]
    assert [log.process for log in whole.processes] == ["gateway-1", "gateway-2"]
    assert (whole.partial, whole.truncated) == (False, True)


def test_it_is_partial_where_one_has_a_fault_and_truncated_where_one_knows_less() -> None:
    wanted = Wanted(session="sess_1")
    assert joined([reading("gateway-1", 10), reading("gateway-2", fault="away")], wanted).partial
    assert joined([reading("gateway-1", 10), reading("gateway-2", 20, truncated=True)], wanted).truncated
    assert joined([reading("gateway-1", 10), reading("gateway-2", 20, since_ns=15)], wanted).truncated
    assert not joined([reading("gateway-1", 10), reading("gateway-2", 20, since_ns=5)], wanted).truncated
    assert joined([], wanted).events == ()


def test_one_that_is_asked_for_its_own_asks_nobody() -> None:
    class Nobody:
        replica, incarnation, revision = "talker", 1, ""

        async def read_events(self, *_asked: object) -> None:
            raise AssertionError("not to be asked")

    log = EventLog()
    log.at(5)
    log.of("sess_1").add(EventKind.DRAINED)
    reader = EventReader(log, [Nobody()], "gateway-2")  # type: ignore[list-item]
    own = asyncio.run(reader.read(Wanted(), own_only=True))
    assert [log.process for log in own.processes] == ["gateway-2"]
    assert [event.process for event in own.events] == ["gateway-2"]
