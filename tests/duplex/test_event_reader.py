"""Logs of several processes, read as one: in the order of time, bounded, and honest about who was not heard."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from duplex import event_reader
from duplex.event_reader import READERS_MAX, EventReader, ProcessLog, ReaderBusyError, ReadEvent, Reading, Wanted
from stages.event_log import PAGE_EVENTS_MAX, EventKind, EventLog
from stages.link import LinkError
from stages.messages import EventPage

S_MAX = 10


class FakeWorker:
    """Answers from a log of its own. `fails_at`: the question by which it is lost; `mute_at`: that it never answers."""

    def __init__(self, replica: str, *, fails_at: int = -1, mute_at: int = -1) -> None:
        self.replica = replica
        self.incarnation = 3
        self.revision = "rev"
        self.log = EventLog()
        self.asked: list[int] = []
        self.heard = asyncio.Event()
        self._fails_at = fails_at
        self._mute_at = mute_at

    async def read_events(self, before: int | None, session: str, response: str, events_max: int) -> EventPage:
        number = len(self.asked)
        self.asked.append(events_max)
        self.heard.set()
        if number == self._fails_at:
            raise LinkError("lost")
        if number == self._mute_at:
            await asyncio.Event().wait()
        excerpt = self.log.read(before, session=session, response=response, events_max=events_max)
        return EventPage(number, excerpt, self.log.statistics())


def play(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(S_MAX):
            await scenario

    asyncio.run(bounded())


def write(log: EventLog, *moments: int, session: str = "s", response: str = "r") -> None:
    for at_ns in moments:
        log.at(at_ns)
        log.of(session, response).add(EventKind.SENT, at_ns)


def moments(reading: Reading) -> list[tuple[str, int]]:
    return [(event.process, event.at_ns) for event in reading.events]


def test_events_of_all_processes_come_in_the_order_of_time() -> None:
    async def scenario() -> None:
        own, talker, vocoder = EventLog(), FakeWorker("talker"), FakeWorker("vocoder")
        write(own, 1, 5, 5, 9)
        write(talker.log, 2, 5)
        write(vocoder.log, 3, 8)
        reading = await EventReader(own, [talker, vocoder]).read(Wanted())
        order = [("gateway", 1), ("talker", 2), ("vocoder", 3), ("gateway", 5), ("gateway", 5), ("talker", 5)]
        assert moments(reading) == [*order, ("vocoder", 8), ("gateway", 9)]
        assert reading.events[0] == ReadEvent(1, "gateway", "sent", "s", "r", value=1)
        assert reading.processes == (
            ProcessLog("gateway", 0, "", 4, 0, since_ns=1),
            ProcessLog("talker", 3, "rev", 2, 0, since_ns=2),
            ProcessLog("vocoder", 3, "rev", 2, 0, since_ns=3),
        )
        assert (reading.partial, reading.truncated) == (False, False)

    play(scenario())


def test_one_session_or_one_response_is_read_of_all() -> None:
    async def scenario() -> None:
        own, talker = EventLog(), FakeWorker("talker")
        write(own, 1, session="s", response="r")
        write(own, 2, session="t", response="q")
        write(talker.log, 3, session="t", response="q#1")
        reader = EventReader(own, [talker])
        assert moments(await reader.read(Wanted(session="s"))) == [("gateway", 1)]
        assert moments(await reader.read(Wanted(response="q"))) == [("gateway", 2), ("talker", 3)]
        assert moments(await reader.read(Wanted(session="s", response="q"))) == []

    play(scenario())


def test_the_newest_of_all_are_kept_and_no_log_is_read_further_than_that() -> None:
    async def scenario() -> None:
        own, talker = EventLog(), FakeWorker("talker")
        write(own, *range(0, 2_000, 2))
        write(talker.log, *range(1, 2_000, 2))
        reading = await EventReader(own, [talker]).read(Wanted(events_max=PAGE_EVENTS_MAX + 50))
        assert [event.at_ns for event in reading.events] == list(range(2_000 - PAGE_EVENTS_MAX - 50, 2_000))
        assert talker.asked == [PAGE_EVENTS_MAX, 50]
        assert (reading.partial, reading.truncated) == (False, True)

    play(scenario())


def test_what_a_process_did_before_its_log_begins_is_missing_and_said_to_be() -> None:
    async def scenario() -> None:
        own, reborn, small = EventLog(), FakeWorker("talker"), FakeWorker("vocoder")
        own.at(1)
        reborn.log.at(1)
        small.log = EventLog(1)
        write(own, 5)
        reader = EventReader(own, [reborn])
        assert not (await reader.read(Wanted(response="r"))).truncated, "it was there, and did nothing"
        reborn.log = EventLog()
        reborn.log.at(6)
        assert (await reader.read(Wanted(response="r"))).truncated
        assert not (await reader.read(Wanted())).truncated, "no process is as old as the first"
        write(small.log, 6, 7)
        assert (await EventReader(own, [small]).read(Wanted(session="s"))).truncated

    play(scenario())


def test_as_many_as_there_are_is_all_of_them() -> None:
    async def scenario() -> None:
        own = EventLog()
        write(own, 1, 2)
        reading = await EventReader(own, []).read(Wanted(events_max=2))
        assert (len(reading.events), reading.truncated) == (2, False)
        write(own, 3)
        assert (await EventReader(own, []).read(Wanted(events_max=2))).truncated

    play(scenario())


@pytest.mark.parametrize(("how", "fault"), [("fails_at", "away"), ("mute_at", "no_answer")])
def test_who_is_not_heard_is_named_and_what_it_said_by_then_counts(
    monkeypatch: pytest.MonkeyPatch, how: str, fault: str
) -> None:
    async def scenario() -> None:
        own = EventLog()
        write(own, 5)
        lost, late = FakeWorker("lost", **{how: 0}), FakeWorker("late", **{how: 1})
        write(late.log, *range(1_000, 1_000 + PAGE_EVENTS_MAX + 1))
        reading = await EventReader(own, [lost, late]).read(Wanted())
        assert reading.partial
        assert [(log.process, log.fault) for log in reading.processes] == [
            ("gateway", ""),
            ("lost", fault),
            ("late", fault),
        ]
        assert moments(reading)[0] == ("gateway", 5)
        assert [at_ns for process, at_ns in moments(reading)[1:]] == list(range(1_001, 1_001 + PAGE_EVENTS_MAX))

    monkeypatch.setattr(event_reader, "ANSWER_MS_MAX", 50)
    play(scenario())


def test_so_many_may_read_and_no_more() -> None:
    async def scenario() -> None:
        mute = FakeWorker("talker", mute_at=0)
        reader = EventReader(EventLog(), [mute])
        reading = [asyncio.create_task(reader.read(Wanted())) for _ in range(READERS_MAX)]
        await mute.heard.wait()
        with pytest.raises(ReaderBusyError, match=f"{READERS_MAX} readings"):
            await reader.read(Wanted())
        assert len(mute.asked) == 1, "one after the other"
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)
        assert not (await reader.read(Wanted())).partial

    play(scenario())


def test_who_answers_is_counted_and_nothing_is_read() -> None:
    async def scenario() -> None:
        own, talker = EventLog(2), FakeWorker("talker")
        write(own, 1, 2, 3)
        write(talker.log, 4)
        counts = await EventReader(own, [talker, FakeWorker("lost", fails_at=0)]).counts()
        assert counts == (
            ProcessLog("gateway", 0, "", 3, 1, since_ns=2),
            ProcessLog("talker", 3, "rev", 1, 0, since_ns=4),
        )
        assert talker.asked == [0]

    play(scenario())
