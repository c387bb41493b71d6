"""What a worker's event log tells a gateway that reads it."""

from __future__ import annotations

import time
from pathlib import Path

from msgspec.structs import replace

from stages.contracts import AudioOut
from stages.event_log import PAGE_EVENTS_MAX, EventLogStatistics
from stages.messages import EventPage, Ping, Pong, Published, ReadEvents, StepDone
from stages.stream import Publish
from tests.stages.link_bench import End, play
from tests.stages.puppet import PuppetStep
from tests.stages.worker_bench import TAG, running


def test_a_gateway_reads_what_happened(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            before_ns = time.monotonic_ns()
            gateway = await one.gateway()
            for since, session, events_max in ((None, "s", 1_000), (None, "other", 9), (0, "", 9)):
                gateway.link.send(ReadEvents(7, since, session, "", events_max))
            pages = [await gateway.frame() for _ in range(3)]
            assert all(isinstance(page, EventPage) and page.number == 7 for page in pages)
            found, nothing, older = [page.excerpt for page in pages if isinstance(page, EventPage)]
            (opened,) = found.events
            assert (opened.kind, opened.session, opened.stream, opened.value) == ("opened", "s", TAG.key, 1)
            assert before_ns <= opened.at_ns <= time.monotonic_ns()
            assert (nothing.events, older.events) == ((), ())
            (statistics,) = {page.statistics for page in pages if isinstance(page, EventPage)}
            assert replace(statistics, since_ns=0) == EventLogStatistics(1, 0)
            assert statistics.since_ns < before_ns, "the log begins with its worker"

    play(scenario())


async def page_of(gateway: End) -> EventPage:
    gateway.link.send(ReadEvents(1, None, "", "", PAGE_EVENTS_MAX))
    page = await gateway.frame()
    assert isinstance(page, EventPage)
    return page


def test_a_block_of_the_arena_is_followed_until_its_reader_has_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            one.plan(PuppetStep((Publish(AudioOut(0, 24_000, 0, bytes(20_000)), 10_000),)), ends=False)
            gateway.link.send(Ping(1))
            assert [type(await gateway.frame()) for _ in range(2)] == [Pong, StepDone]
            assert isinstance(await one.media.frame(), Published)
            events = (await page_of(gateway)).excerpt.events
            while events[-1].kind != "freed":  # the reader says so on another link
                events = (await page_of(gateway)).excerpt.events
            assert [(event.kind, event.value, event.state, event.cause) for event in events[-5:]] == [
                ("credit_taken", 10_000, "audio", ""),
                ("published", 10_000, "audio", ""),
                ("acquired", 20_000, "block_0", ""),
                ("leased", 20_000, "block_0", ""),
                ("freed", 20_000, "block_0", "acknowledged"),
            ]
            assert {(event.session, event.stream) for event in events} == {("s", TAG.key)}
            assert events[-3].at_ns < events[-1].at_ns

    play(scenario())
