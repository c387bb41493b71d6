"""Tasks that are stopped, and clean-ups that nobody can interrupt."""

from __future__ import annotations

import asyncio

import pytest

from duplex.tasks import see_through, stop_task


async def for_ever() -> None:
    await asyncio.Event().wait()


async def failing() -> None:
    raise ValueError("it broke")


class Work:
    """Ends when it is let go."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.ended = False

    async def run(self) -> None:
        await self.may_end.wait()
        self.ended = True


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_task_is_stopped() -> None:
    async def scenario() -> None:
        task = asyncio.create_task(for_ever())
        await stop_task(task)
        assert task.cancelled()
        await stop_task(task)

    asyncio.run(scenario())


def test_what_a_stopped_task_has_raised_is_raised() -> None:
    async def scenario() -> None:
        task = asyncio.create_task(failing())
        await settle()
        with pytest.raises(ValueError, match="it broke"):
            await stop_task(task)

    asyncio.run(scenario())


def test_who_is_cancelled_while_stopping_a_task_is_cancelled() -> None:
    async def scenario() -> None:
        release = asyncio.Event()

        async def reluctant() -> None:
            try:
                await for_ever()
            finally:
                await release.wait()

        task = asyncio.create_task(reluctant())
        await settle()
        stopping = asyncio.create_task(stop_task(task))
        await settle()
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        release.set()
        await settle()
        assert task.cancelled()

    asyncio.run(scenario())


@pytest.mark.parametrize("times", [0, 1, 3])
def test_work_is_seen_through_and_a_cancellation_raised_after_it(times: int) -> None:
    async def scenario() -> None:
        work = Work()
        task = asyncio.create_task(see_through(work.run()))
        await settle()
        for _ in range(times):
            task.cancel()
            await settle()
            assert not task.done()
        work.may_end.set()
        await asyncio.wait({task})
        assert work.ended
        assert task.cancelled() == (times > 0)

    asyncio.run(scenario())


def test_what_the_work_raises_is_raised() -> None:
    with pytest.raises(ValueError, match="it broke"):
        asyncio.run(see_through(failing()))
