"""The probe link: pings that come back, silence, steps without end, and links that break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from duplex.watchdog import Watchdog
from stages.link import LinkError
from stages.liveness import Hung, Liveness
from stages.messages import LINK_VERSION, Hello, Ping, Pong, Retire, Welcome
from tests.stages.link_bench import WAIT_S_MAX, End, Listener, play

SILENCE_NS = 40_000_000
HELLO = Hello(LINK_VERSION, "probe", "supervisor")


class Bench:
    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.linked = 0
        self.watchdog = Watchdog(listener.address, Liveness(SILENCE_NS, 500), self._link)
        self.watching = asyncio.create_task(self.watchdog.until_hung())

    def _link(self) -> None:
        self.linked += 1

    async def process(self) -> End:
        """The watched process's end of the next link."""
        end = await self.listener.accepted()
        assert await end.frame() == HELLO
        end.link.send(Welcome(LINK_VERSION, "part", 1, "", ()))
        return end

    async def hung(self) -> Hung:
        async with asyncio.timeout(WAIT_S_MAX):
            return await self.watching


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    async with Listener(f"unix:{folder}/s") as listener:
        one = Bench(listener)
        try:
            yield one
        finally:
            one.watching.cancel()
            await asyncio.gather(one.watching, return_exceptions=True)


async def answer(end: End, count: int, age_ns: int = 0) -> None:
    for _ in range(count):
        ping = await end.frame()
        assert isinstance(ping, Ping)
        end.link.send(Pong(ping.sequence, age_ns))


def test_a_process_that_answers_is_watched_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            end = await one.process()
            await answer(end, 12)  # three times the silence
            assert not one.watching.done()

    play(scenario())


def test_one_that_takes_links_and_never_answers_hangs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            end = await one.process()
            assert await one.hung() == Hung("silence")
            await end.end()

    play(scenario())


def test_one_whose_step_does_not_end_hangs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            end = await one.process()
            await answer(end, 1)
            await answer(end, 1, age_ns=501)
            assert await one.hung() == Hung("step")

    play(scenario())


def test_a_link_that_breaks_is_made_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            await (await one.process()).abort()
            end = await one.process()
            await answer(end, 8)
            assert one.linked == 2
            assert not one.watching.done()

    play(scenario())


def test_what_else_is_to_be_said_goes_the_same_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            one.watchdog.send(Retire())  # to nobody
            end = await one.process()
            one.watchdog.send(Retire())
            while isinstance(frame := await end.frame(), Ping):
                end.link.send(Pong(frame.sequence, 0))
            assert frame == Retire()

    play(scenario())


def test_who_can_never_be_reached_is_no_hang() -> None:
    async def scenario() -> None:
        watchdog = Watchdog("nowhere", Liveness(SILENCE_NS), lambda: None)
        with pytest.raises(LinkError, match="nowhere"):
            await watchdog.until_hung()

    play(scenario())
