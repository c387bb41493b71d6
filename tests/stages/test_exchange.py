"""The sending side of a process's links, without sockets."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from stages.arena import Arena
from stages.block_table import BlockTable, TableSize
from stages.contracts import Clause, DataRef, Latents, Tag
from stages.event_log import EventLog
from stages.exchange import Exchange
from stages.messages import Closed, Feed, decode
from tests.stages.link_bench import WAIT_S_MAX, play

TAG, OTHER = Tag("task", 1, 1, "resp_1"), Tag("task_1_2", 1, 1, "resp_2")
SIZE = TableSize(blocks=1, block_bytes=1 << 15, lease_ns_max=1_000_000)
BIG = Feed(TAG, Latents(0, 1, bytes(SIZE.block_bytes)), 1)


def test_a_stream_is_told_to_pause_and_to_go_on() -> None:
    told: list[tuple[str, bool]] = []

    async def scenario() -> None:
        exchange = Exchange(Arena(BlockTable("w", 1, SIZE)), lambda key, *, paused: told.append((key, paused)))
        written: list[bytes] = []
        number = exchange.enrol(written.append)
        exchange.link_up(number, "data", lends=True)
        for _ in range(2):
            exchange.send(number, BIG)
        assert told == [("resp_1", True)]
        (first,) = map(decode, written)
        assert isinstance(first, Feed)
        assert first.body is not None
        exchange.released(number, first.body)
        assert told == [("resp_1", True), ("resp_1", False)]
        assert len(written) == 2
        exchange.close()

    play(scenario())


def test_a_block_of_one_link_goes_to_another() -> None:
    async def scenario() -> None:
        exchange = Exchange(Arena(BlockTable("w", 1, SIZE)))
        written: tuple[list[bytes], list[bytes]] = ([], [])
        numbers = [exchange.enrol(each.append) for each in written]
        for number in numbers:
            exchange.link_up(number, "data", lends=True)
            exchange.send(number, BIG)
        assert [len(each) for each in written] == [1, 0]
        exchange.link_lost(numbers[0])
        exchange.link_lost(numbers[0])
        assert [len(each) for each in written] == [1, 1]
        exchange.close()

    play(scenario())


def test_a_lease_that_lasts_too_long_is_reported_when_it_is_due() -> None:
    async def scenario() -> None:
        exchange = Exchange(Arena(BlockTable("w", 1, SIZE)))
        number = exchange.enrol(lambda _: None)
        exchange.link_up(number, "data", lends=True)
        with capture_logs() as said:
            exchange.send(number, BIG)
            due = asyncio.Event()
            asyncio.get_running_loop().call_later(SIZE.lease_ns_max / 1e9, due.set)
            async with asyncio.timeout(WAIT_S_MAX):
                await due.wait()
        assert [line["event"] for line in said] == ["block_orphaned"]
        exchange.close()

    play(scenario())


def test_a_timer_that_finds_nothing_due_waits_for_the_next_lease() -> None:
    async def scenario() -> None:
        table = BlockTable("w", 1, SIZE)
        exchange = Exchange(Arena(table))
        number = exchange.enrol(lambda _: None)
        exchange.link_up(number, "data", lends=True)
        with capture_logs() as said:
            exchange.send(number, BIG)
            exchange.link_lost(number)
            exchange._leases_due()
        assert (said, exchange._expiry) == ([], None)
        exchange.close()

    play(scenario())


def test_the_log_is_told_the_moment_of_what_comes() -> None:
    log = EventLog()
    marks_ns: list[int] = []

    async def scenario() -> None:
        exchange = Exchange(Arena(BlockTable("w", 1, SIZE, log)))
        written: list[bytes] = []
        number = exchange.enrol(written.append)
        exchange.link_up(number, "data", lends=True)
        ways: tuple[Callable[[], None], ...] = (
            lambda: exchange.released(number, body_of(written[-1])),
            lambda: exchange.link_lost(number),
        )
        for free in ways:
            marks_ns.append(time.monotonic_ns())
            exchange.send(number, BIG)
            marks_ns.append(time.monotonic_ns())
            free()
        exchange.close()

    play(scenario())
    acquired, leased, freed, again, leased_again, lost = log.read().events
    assert [event.cause for event in (freed, lost)] == ["acknowledged", "link_lost"]
    assert (acquired.at_ns, again.at_ns) == (0, freed.at_ns), "who sends has told the moment"
    for event, mark_ns in zip((leased, freed, leased_again, lost), marks_ns, strict=True):
        assert event.at_ns >= mark_ns


def body_of(encoded: bytes) -> DataRef:
    frame = decode(encoded)
    assert isinstance(frame, Feed)
    assert frame.body is not None
    return frame.body


def test_the_writer_gives_way_to_the_reader_of_a_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(os, "sched_yield", lambda: done.append("gave way"))

    async def scenario() -> None:
        exchange = Exchange(Arena(BlockTable("w", 1, SIZE)))
        number = exchange.enrol(lambda _: done.append("wrote"))
        exchange.link_up(number, "data", lends=True)
        exchange.send(number, Feed(TAG, Latents(0, 1, b"small"), 1))
        exchange.send(number, BIG)
        assert done == ["wrote", "wrote", "gave way"]
        exchange.close()

    play(scenario())


def test_without_an_arena_everything_goes_in_the_frame() -> None:
    written: list[bytes] = []
    exchange = Exchange()
    number = exchange.enrol(written.append)
    exchange.link_up(number, "media", lends=False)
    exchange.send(number, BIG)
    exchange.expire(1 << 62)
    assert ([decode(one) for one in written], exchange.offer) == ([BIG], None)
    exchange.close()


def test_a_failed_stream_closes_so() -> None:
    written: list[bytes] = []
    exchange = Exchange()
    numbers = [exchange.enrol(written.append) for _ in range(2)]
    exchange.link_up(numbers[0], "data", lends=False)
    exchange.link_up(numbers[1], "control", lends=False)
    exchange.fail(TAG, "hand_over_too_large", "it is")
    exchange.send(numbers[0], Feed(TAG, Clause(0, "word")))
    exchange.send(numbers[1], Closed(TAG, "finished", {}))
    assert [decode(one) for one in written] == [Closed(TAG, "failed", {}, "hand_over_too_large", "it is")]
    assert not exchange.is_closing(TAG.key)
    exchange.close()


def test_nothing_is_placed_once_the_arena_is_let_go_of() -> None:
    async def scenario() -> None:
        exchange = Exchange(Arena(BlockTable("w", 1, SIZE)))
        written: list[bytes] = []
        numbers = [exchange.enrol(written.append) for _ in range(3)]
        for number in numbers:
            exchange.link_up(number, "data", lends=True)
            exchange.send(number, BIG)
            exchange.send(number, Feed(OTHER, Latents(0, 1, bytes(SIZE.block_bytes)), 1))
        exchange.close()
        for number in numbers:
            exchange.link_lost(number)

    play(scenario())
