"""When no session can be kept, and why."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from duplex import store_watch
from duplex.store_standing import StoreStanding
from duplex.store_watch import StoreWatch
from duplex.tasks import stop_task
from sessions.durability import Durability, Persistence
from sessions.memory_store import Fault, MemorySessionStore
from sessions.store import StoreError, StoreFull, StoreRefused, StoreTimeout, StoreUnavailable

S_MAX = 5


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (StoreTimeout("lost"), "the store does not answer"),
        (StoreUnavailable("away"), "the store is away"),
        (StoreFull("full"), "the store is full"),
        (StoreRefused("no rights"), "the store refuses what it is asked"),
    ],
)
def test_two_failures_in_a_row_are_trouble_and_one_answer_ends_it(error: StoreError, trouble: str) -> None:
    standing = StoreStanding()
    said = []
    for answers in (False, True, False, False, True):
        if answers:
            standing.answered()
        else:
            standing.failed(error)
        said.append(standing.trouble)
    assert said == [None, None, None, trouble, None]


def test_the_present_failure_is_the_one_that_is_told() -> None:
    standing = StoreStanding()
    for error in (StoreTimeout("lost"), StoreUnavailable("away"), StoreFull("full")):
        standing.failed(error)
    assert standing.trouble == "the store is full"


def test_the_store_is_asked_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_watch, "PROBE_INTERVAL_S", 0)

    async def scenario() -> None:
        probes, changed = list[str | None](), asyncio.Event()
        faults = [None, Fault.UNAVAILABLE, Fault.UNAVAILABLE, Fault.FULL, None]

        def befall(_operation: str) -> Fault | None:
            probes.append(watch.trouble)
            if len(probes) > len(faults):
                changed.set()
                return None
            return faults[len(probes) - 1]

        watch = StoreWatch(MemorySessionStore(lambda: 0, faults=befall))
        running = asyncio.create_task(watch.run())
        await asyncio.wait_for(changed.wait(), S_MAX)
        await stop_task(running)
        assert probes[:6] == [None, None, None, "the store is away", "the store is full", None]

    asyncio.run(scenario())


class Kept(MemorySessionStore):
    """It says of itself what it is told to."""

    def __init__(self, *told: Persistence | None) -> None:
        super().__init__(lambda: 0)
        self.told = list(told)

    async def persistence(self) -> Persistence:
        said = self.told.pop(0)
        if said is None:
            raise StoreUnavailable("away")
        return said


@pytest.mark.parametrize(
    ("durability", "fsync", "is_durable", "level"),
    [("process-crash-safe", "everysec", True, "info"), ("power-loss-safe", "everysec", False, "error")],
)
def test_what_the_store_makes_of_the_promise_is_said_once_it_answers(
    durability: Durability, fsync: str, is_durable: bool, level: str
) -> None:
    watch = StoreWatch(Kept(None, Persistence(appendonly=True, appendfsync=fsync)), durability)

    async def scenario() -> None:
        with structlog.testing.capture_logs() as lines:
            await watch.look_at_persistence()
            assert (lines, watch.is_durable) == ([], False)
            await watch.look_at_persistence()
        (line,) = lines
        assert (line["event"], line["log_level"], line["given"]) == ("store_durability", level, "process-crash-safe")
        assert (line["lack"] is None) is is_durable

    asyncio.run(scenario())
    assert watch.is_durable is is_durable
