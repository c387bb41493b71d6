"""Payloads in an arena while cancels, slow readers and deaths come at the worst moment. Every order is pinned."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from stages.arena import Arena
from stages.block_table import BlockTable, Owner, TableSize, TableStatistics
from stages.contracts import AudioOut, Clause, Latents, ObserverOptions, Tag
from stages.exchange import Exchange
from stages.messages import (
    LINK_VERSION,
    Cancel,
    Closed,
    Feed,
    Frame,
    Grant,
    Hello,
    Open,
    Opened,
    OpenSession,
    Published,
    Refused,
    Release,
    SessionOpened,
    StepDone,
    Welcome,
)
from stages.stream import Publish
from tests.stages.link_bench import End, Listener, play
from tests.stages.puppet import PuppetStep
from tests.stages.worker_bench import TAG, Running, running

BLOCK_BYTES = 1 << 16
LEASE_NS = 3_600_000_000_000  # no lease ends by itself
OWNER = Owner("task", "resp")
TASK, SIBLING = Tag("task", 1, 1, "resp"), Tag("task_1_2", 1, 1, "resp_1_2")


def chunk(tag: Tag = TASK, number: int = 0) -> Feed:
    """Its bytes tell it from every other."""
    payload = f"{tag.session}/{number};".encode().ljust(BLOCK_BYTES, b".")
    return Feed(tag, Latents(number, 16, payload), 16)


@dataclass(slots=True)
class Pair:
    """A data link from a producer with an arena to its reader."""

    exchange: Exchange
    table: BlockTable
    producer: End
    reader: End
    listener: Listener

    def statistics(self) -> TableStatistics:
        return self.table.statistics(0)

    def pause_reader(self) -> None:
        assert self.reader.link._transport is not None
        self.reader.link._transport.pause_reading()

    def resume_reader(self) -> None:
        assert self.reader.link._transport is not None
        self.reader.link._transport.resume_reading()

    async def settle(self) -> None:
        """Come back when the producer has dealt with all that the reader has sent so far."""
        self.reader.link.send(Cancel(Tag("mark", 1, 1)))
        assert await self.producer.frame() == Cancel(Tag("mark", 1, 1))


@asynccontextmanager
async def paired(folder: Path, blocks: int = 2, session_blocks_max: int = 1) -> AsyncIterator[Pair]:
    table = BlockTable("talker", 3, TableSize(blocks, BLOCK_BYTES, session_blocks_max, LEASE_NS))
    exchange = Exchange(Arena(table))
    async with Listener(f"unix:{folder}/s", here=exchange) as listener:
        producer, reader = await listener.greeted_pair()
        yield Pair(exchange, table, producer, reader, listener)
    exchange.close()


def test_a_payload_comes_whole_and_its_block_is_free_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with paired(tmp_path) as pair:
            for number in range(5):
                pair.producer.link.send(chunk(number=number))
                assert await pair.reader.frame() == chunk(number=number)
            await pair.settle()
            statistics = pair.statistics()
            assert (statistics.free, statistics.used_peak, statistics.stale_releases) == (2, 1, 0)

    play(scenario())


# ---- a full arena -------------------------------------------------------------------------------------------


def test_a_full_arena_holds_back_one_session_and_goes_on_when_a_block_is_free(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with paired(tmp_path) as pair:
            pair.pause_reader()
            frames: list[Frame] = [chunk(number=number) for number in range(4)]
            for frame in frames:
                pair.producer.link.send(frame)
            pair.producer.link.send(chunk(SIBLING))
            assert pair.statistics().leased == 2, "one of each session"
            pair.resume_reader()
            came = [await pair.reader.frame() for _ in range(5)]
            assert [frame for frame in came if frame != chunk(SIBLING)] == frames
            await pair.settle()
            assert pair.statistics().free == 2

    play(scenario())


def test_a_stage_whose_reader_is_slow_keeps_its_outputs_and_computes_no_more(tmp_path: Path) -> None:
    """Eight blocks are what a session may have: the ninth chunk waits, and after the one begun then none is made."""
    chunks = [AudioOut(number, 24_000, 0, bytes([number]) * 20_000, final=number == 11) for number in range(12)]

    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await one.gateway()
            assert one.media.link._transport is not None
            one.media.link._transport.pause_reading()
            one.plan(*(PuppetStep((Publish(event),)) for event in chunks))
            one.media.link.send(Feed(TAG, Clause(0, "")))
            assert [type(await gateway.frame()) for _ in range(10)] == [StepDone] * 10
            gateway.link.send(OpenSession("probe", 1))
            assert await gateway.frame() == SessionOpened("probe")
            assert len(one.model.streams[TAG.key].steps) == 2
            one.media.link._transport.resume_reading()
            assert [await one.media.frame() for _ in chunks] == [Published(TAG, event) for event in chunks]
            assert [type(await gateway.frame()) for _ in range(2)] == [StepDone] * 2
            assert await one.media.frame() == Closed(TAG, "finished", {})

    play(scenario())


# ---- cancel, write, reuse of the id -------------------------------------------------------------------------


async def lent(one: Running) -> End:
    """A stream that has published a chunk which its gateway does not read; gives the control link."""
    gateway = await one.gateway()
    assert one.media.link._transport is not None
    one.media.link._transport.pause_reading()
    one.plan(PuppetStep((Publish(AudioOut(0, 24_000, 0, bytes(20_000))),)), ends=False)
    one.media.link.send(Feed(TAG, Clause(0, "")))
    assert isinstance(await gateway.frame(), StepDone)
    return gateway


def test_an_id_is_not_free_while_its_predecessor_is_being_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            gateway = await lent(one)
            gateway.link.send(Cancel(TAG))
            gateway.link.send(Open(TAG, ObserverOptions()))
            refused = await gateway.frame()
            assert isinstance(refused, Refused)
            assert refused.code == "busy"
            assert one.media.link._transport is not None
            one.media.link._transport.resume_reading()
            assert await gateway.frame() == Closed(TAG, "cancelled", {})
            gateway.link.send(Open(TAG, ObserverOptions()))
            assert await gateway.frame() == Opened(TAG)

    play(scenario())


def test_a_worker_that_stops_does_not_wait_for_a_reader_that_sleeps(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as one:
            await lent(one)
            assert one.media.link._transport is not None
            one.stopped.set()
            await asyncio.sleep(0)
            one.media.link._transport.resume_reading()

    play(scenario())


def test_a_cancel_touches_no_stream_whose_name_begins_alike(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with paired(tmp_path) as pair:
            pair.pause_reader()
            for tag in (TASK, SIBLING):
                for number in range(2):
                    pair.producer.link.send(chunk(tag, number))
            pair.exchange.send(pair.producer.link.number, Closed(TASK, "cancelled", {}))
            pair.resume_reader()
            came = [await pair.reader.frame() for _ in range(4)]
            assert came.count(Closed(TASK, "cancelled", {})) == 1
            assert [f for f in came if isinstance(f, Feed)] == [chunk(TASK), chunk(SIBLING), chunk(SIBLING, 1)]
            await pair.settle()
            assert pair.statistics().free == 2

    play(scenario())


def test_a_success_leaves_its_last_chunk_to_be_read_and_a_failure_takes_it_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with paired(tmp_path) as pair:
            pair.pause_reader()
            for tag in (TASK, SIBLING):
                for number in range(2):
                    pair.producer.link.send(chunk(tag, number))
            pair.exchange.send(pair.producer.link.number, Closed(TASK, "finished", {}))
            pair.exchange.send(pair.producer.link.number, Closed(SIBLING, "failed", {}))
            assert pair.statistics().leased == 2
            pair.resume_reader()
            came = [await pair.reader.frame() for _ in range(5)]
            assert [f for f in came if isinstance(f, Feed)] == [chunk(TASK), chunk(SIBLING), chunk(TASK, 1)]
            assert came.index(Closed(TASK, "finished", {})) > came.index(chunk(TASK, 1))
            assert came.count(Closed(SIBLING, "failed", {})) == 1

    play(scenario())


# ---- readers ------------------------------------------------------------------------------------------------


def test_a_reader_that_stops_early_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with paired(tmp_path) as pair:
            pair.pause_reader()
            for number in range(3):
                pair.producer.link.send(chunk(number=number))
            await pair.reader.abort()
            await pair.producer.end()
            assert pair.statistics().free == 2
            _, reader = await pair.listener.greeted_pair()
            assert reader.frames.empty()

    play(scenario())


def test_a_reader_paused_beyond_its_lease_sees_nothing_of_another_caller(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with paired(tmp_path, blocks=1) as pair:
            pair.pause_reader()
            pair.producer.link.send(chunk())
            with capture_logs() as said:
                pair.exchange.expire(time.monotonic_ns() + LEASE_NS)
            assert [line["event"] for line in said] == ["block_orphaned"]

            other, other_reader = await pair.listener.greeted_pair()
            other.link.send(chunk(SIBLING))
            assert pair.statistics().orphaned == 1, "the block is still the reader's"

            # Only when the link to it is given up does the block go to the other caller.
            await pair.producer.abort()
            assert await other_reader.frame() == chunk(SIBLING)
            assert pair.statistics().used_peak == 1
            pair.resume_reader()
            await pair.reader.end()
            assert (pair.reader.frames.empty(), pair.reader.link.stale_dropped) == (True, 1)

    play(scenario())


def test_what_cannot_be_read_gives_back_its_block_and_its_credit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with paired(tmp_path) as pair:
            pair.pause_reader()
            pair.producer.link.send(chunk())
            words = pair.exchange._arena._words  # type: ignore[union-attr]
            words[8] += 1  # as if the block were being written anew
            pair.resume_reader()
            assert await pair.producer.frame() == Grant(TASK, 16)
            await pair.settle()
            assert (pair.reader.frames.empty(), pair.reader.link.stale_dropped) == (True, 1)
            assert pair.statistics().free == 2
            pair.producer.link.send(chunk(number=1))
            assert await pair.reader.frame() == chunk(number=1)

    play(scenario())


def test_a_frame_that_cannot_be_decoded_ends_the_link_and_frees_what_it_held(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with paired(tmp_path) as pair:
            pair.pause_reader()
            pair.producer.link.send(chunk())
            pair.producer.link._write(b"\xc1")
            pair.resume_reader()
            assert await pair.reader.frame() == chunk()
            await pair.producer.end()
            assert pair.statistics().free == 2

    play(scenario())


@pytest.mark.parametrize("offered", [False, True])
def test_a_name_that_leads_nowhere_is_refused(tmp_path: Path, offered: bool) -> None:
    async def scenario() -> None:
        async with paired(tmp_path) as pair, Listener(f"unix:{tmp_path}/bare") as bare:
            producer, reader = (pair.producer, pair.reader) if offered else await bare.greeted_pair()
            ref = pair.table.acquire(OWNER, 1)
            assert ref is not None
            nowhere = type(ref)(ref.worker, ref.incarnation, 99, 1, 1)
            with capture_logs() as said:
                producer.link.send(Feed(TASK, Latents(0, 1, b""), 1, body=nowhere))
                await producer.end()
            wanted = "outside the arena" if offered else "not offered"
            assert [wanted in line["reason"] for line in said] == [True, True]
            assert reader.frames.empty()

    play(scenario())


# ---- producers ----------------------------------------------------------------------------------------------


def test_a_producer_that_dies_amid_a_write_has_sent_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with paired(tmp_path) as pair:
            ref = pair.table.acquire(OWNER, BLOCK_BYTES)
            assert ref is not None
            arena = pair.exchange._arena
            assert arena is not None
            arena.write(type(ref)(ref.worker, ref.incarnation, ref.block, ref.generation, 10), b"half of it")
            assert pair.producer.link._transport is not None
            pair.producer.link._transport.write(b"\x00\x00\x01\x00half a frame")
            await pair.producer.abort()
            await pair.reader.end()
            assert pair.reader.frames.empty()

    play(scenario())


def test_the_arena_of_another_process_is_not_taken_for_the_offered_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with paired(tmp_path) as pair:
            offer = pair.exchange.offer
            assert offer is not None
            here, there = await pair.listener.pair()
            other_fd = os.memfd_create("other")
            os.ftruncate(other_fd, 1 << 20)
            forged = type(offer)(offer.worker, offer.incarnation, other_fd, offer.nonce, offer.blocks, BLOCK_BYTES)
            with capture_logs() as said:
                here.link._exchange.send(here.link.number, Hello(LINK_VERSION, "data", "here", forged))
                await here.end()
            os.close(other_fd)
            assert there.frames.empty()
            assert "is not the arena of talker" in said[0]["reason"]

    play(scenario())


def test_an_arena_cannot_be_offered_from_another_host(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with paired(tmp_path) as pair, Listener("tcp:127.0.0.1:0") as far:
            address = f"tcp:127.0.0.1:{far._server.sockets[0].getsockname()[1]}"
            here = End(exchange=pair.exchange)
            await here.connect(address)
            there = await far.accepted()
            with capture_logs() as said:
                hello = Hello(LINK_VERSION, "data", "here", pair.exchange.offer)
                pair.exchange.send(here.link.number, hello)
                await here.end()
            assert there.frames.empty()
            assert "another host" in said[0]["reason"]

    play(scenario())


def test_between_hosts_a_payload_travels_in_its_frame(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with paired(tmp_path) as pair, Listener("tcp:127.0.0.1:0") as far:
            address = f"tcp:127.0.0.1:{far._server.sockets[0].getsockname()[1]}"
            here = End(exchange=pair.exchange)
            await here.connect(address)
            there = await far.accepted()
            here.link.send(Hello(LINK_VERSION, "data", "here"))
            assert await there.frame() == Hello(LINK_VERSION, "data", "here")
            there.link.send(Welcome(LINK_VERSION, "there", 1, "rev", ()))
            here.link.send(chunk())
            assert await there.frame() == chunk()
            assert pair.statistics().used_peak == 0
            await here.abort()

    play(scenario())


def test_what_a_reader_gives_back_without_having_it_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with paired(tmp_path) as pair:
            ref = pair.table.acquire(OWNER, 1)
            assert ref is not None
            pair.reader.link.send(Release(ref))
            await pair.settle()
            assert (pair.statistics().writing, pair.statistics().stale_releases) == (1, 1)

    play(scenario())
