"""A worker that is asked to retire, by whoever keeps it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stages.messages import LINK_VERSION, Closed, CloseSession, Hello, Ping, Pong, Retire, Retiring, Welcome
from tests.stages.link_bench import WAIT_S_MAX, play
from tests.stages.worker_bench import HELLO, TAG, Running


def test_a_worker_that_retires_ends_once_nothing_is_left_in_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        one = Running(tmp_path)
        serving = asyncio.create_task(one.serve())
        async with asyncio.timeout(WAIT_S_MAX):
            await one.ready.wait()
            gateway = await one.gateway()
            keeper = await one.link(Hello(LINK_VERSION, "probe", "supervisor"), Ping(1), Retire())
            assert isinstance(await keeper.frame(), Welcome)
            assert await keeper.frame() == Pong(1, 0)
            assert await gateway.frame() == Retiring()
            late = await one.link(HELLO)
            assert [type(await late.frame()) for _ in range(2)] == [Welcome, Retiring]
            assert not serving.done()
            gateway.link.send(CloseSession("s"))
            assert await gateway.frame() == Closed(TAG, "cancelled", {})
            await serving
        for end in one.ends:
            await end.end()
        assert not one.path.exists()

    play(scenario())
