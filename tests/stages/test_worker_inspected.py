"""A worker that is asked how it stands."""

from __future__ import annotations

from pathlib import Path

from stages.block_table import BLOCKS
from stages.contracts import AudioOut, Clause
from stages.messages import (
    Audit,
    Audited,
    Closed,
    CloseSession,
    Feed,
    Inspect,
    Published,
    StepDone,
    WorkerSnapshot,
)
from stages.stream import Publish
from tests.stages.link_bench import play
from tests.stages.puppet import PuppetStep
from tests.stages.worker_bench import TAG, running


def test_the_arena_is_as_large_as_the_worker_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, arena_blocks=3) as one:
            gateway = await one.gateway()
            gateway.link.send(Inspect())
            seen = await gateway.frame()
            assert isinstance(seen, WorkerSnapshot)
            assert seen.arena.blocks == 3

    play(scenario())


def test_a_gateway_that_asks_is_told_how_the_worker_stands(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            one.plan(PuppetStep((Publish(AudioOut(0, 24_000, 0, bytes(960)), 480),)), ends=False)
            one.media.link.send(Feed(TAG, Clause(0, "Hi.", final=True)))
            assert isinstance(await one.media.frame(), Published)
            assert isinstance(await gateway.frame(), StepDone)
            gateway.link.send(Inspect())
            seen = await gateway.frame()
            assert isinstance(seen, WorkerSnapshot)
            assert (seen.replica, seen.streams, seen.sessions) == ("stage", 1, 1)
            assert (seen.scheduler.waiting, seen.scheduler.running) == (0, 0)
            (kind,) = seen.scheduler.kinds
            assert (kind.batches, kind.predicted_ns) == (1, kind.service_ns_mean)
            assert (seen.arena.blocks, seen.arena.used) == (BLOCKS, 0)
            (edge,) = seen.edges
            assert (edge.target, edge.streams, edge.credit_out, edge.wait_ns_max) == ("gateway", 1, 480, 0)
            assert edge.link_bytes > 960

    play(scenario())


def test_a_gateway_that_asks_is_told_what_is_left_of_a_stream_and_of_a_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            gateway.link.send(Audit("s", TAG.key))
            assert await gateway.frame() == Audited("stage", "s", TAG.key, {"streams": 1}, {})
            gateway.link.send(Audit("s"))
            assert await gateway.frame() == Audited("stage", "s", "", {"streams": 1, "sessions": 1}, {})
            gateway.link.send(CloseSession("s"))
            assert await gateway.frame() == Closed(TAG, "cancelled", {})
            for stream in (TAG.key, ""):
                gateway.link.send(Audit("s", stream))
                assert await gateway.frame() == Audited("stage", "s", stream, {}, {})

    play(scenario())
