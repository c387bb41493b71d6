"""What the gateway answers on a probe link, and to whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from duplex.probe_server import ProbeServer
from stages.messages import LINK_VERSION, Frame, Hello, OpenSession, Ping, Pong, ReplicaReport, Retire, Welcome
from tests.stages.link_bench import End, play

HELLO = Hello(LINK_VERSION, "probe", "supervisor")
WELCOME = Welcome(LINK_VERSION, "gateway", 0, "", ())
REPORT = ReplicaReport("vocoder", "vocoder-2", "up", 3, 2, 1)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.address = f"unix:{folder}/gateway.sock"
        self.reports: list[ReplicaReport] = []
        self.retired = 0
        self.server = ProbeServer(self.reports.append, self._retire)

    def _retire(self) -> None:
        self.retired += 1

    async def link(self, *frames: Frame) -> End:
        end = End()
        await end.connect(self.address)
        for frame in frames:
            end.link.send(frame)
        return end


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    one = Bench(folder)
    listening = await one.server.listen(one.address)
    try:
        yield one
    finally:
        listening.close()
        one.server.close()


def test_pings_are_answered_and_reports_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            end = await one.link(HELLO, Ping(1), REPORT, Retire(), Ping(2))
            assert [await end.frame() for _ in range(3)] == [WELCOME, Pong(1, 0), Pong(2, 0)]
            assert one.reports == [REPORT]
            assert one.retired == 1
            one.server.close()
            await end.end()

    play(scenario())


@pytest.mark.parametrize(
    "frames",
    [
        (Hello(LINK_VERSION + 1, "probe", "supervisor"),),
        (Hello(LINK_VERSION, "control", "supervisor"),),
        (Ping(1),),
        (REPORT,),
        (Retire(),),
        (HELLO, OpenSession("s", 1)),
    ],
)
def test_whoever_is_no_supervisor_is_refused(tmp_path: Path, frames: tuple[Frame, ...]) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as one:
            end = await one.link(*frames)
            await end.end()
            said = [end.frames.get_nowait() for _ in range(end.frames.qsize())]
            assert [frame for frame in said if isinstance(frame, Pong)] == []
            assert one.reports == []
            assert one.retired == 0

    play(scenario())
