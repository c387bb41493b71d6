"""Windows of all calls, judged together in one thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pytest

from duplex.tasks import stop_task
from duplex.vad_service import BATCH_MAX, VadService, Window
from media.vad import VadState

S_MAX = 5


class Model:
    """Answers with each window's first sample. While `gate` is closed it computes; `began` says that it does."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        self.failure: Exception | None = None

    def probabilities(self, batch: Sequence[Window]) -> list[float]:
        self.began.set()
        assert self.gate.wait(S_MAX)
        self.batches.append(len(batch))
        self.threads.add(threading.current_thread().name)
        if self.failure is not None:
            raise self.failure
        return [float(window[0]) for _, window in batch]


def window(value: float) -> npt.NDArray[np.float32]:
    return np.full(512, value, dtype=np.float32)


async def ask(service: VadService, *values: float) -> list[asyncio.Task[float]]:
    """Windows of so many calls, handed in."""
    tasks = [asyncio.create_task(service.probability(VadState(), window(value))) for value in values]
    await asyncio.sleep(0)
    return tasks


async def until_computing(model: Model) -> None:
    assert await asyncio.to_thread(model.began.wait, S_MAX)


def test_each_call_gets_its_own_answer_from_one_thread() -> None:
    async def scenario() -> None:
        model = Model()
        service = VadService(model)
        running = asyncio.create_task(service.run())
        assert await asyncio.gather(*await ask(service, 0.25, 0.5, 0.75)) == [0.25, 0.5, 0.75]
        assert await service.probability(VadState(), window(1.0)) == 1.0
        await stop_task(running)
        assert model.threads == {"vad_0"}

    asyncio.run(scenario())


def test_what_comes_in_meanwhile_makes_the_next_batch() -> None:
    async def scenario() -> None:
        model = Model()
        model.gate.clear()
        service = VadService(model)
        running = asyncio.create_task(service.run())
        first = await ask(service, 0.0)
        await until_computing(model)
        others = await ask(service, *([0.5] * 10))
        model.gate.set()
        await asyncio.gather(*first, *others)
        await stop_task(running)
        assert model.batches == [1, 10]

    asyncio.run(scenario())


def test_a_batch_is_bounded() -> None:
    async def scenario() -> None:
        model = Model()
        service = VadService(model)
        asked = await ask(service, *([0.5] * (2 * BATCH_MAX + 1)))
        running = asyncio.create_task(service.run())
        await asyncio.gather(*asked)
        await stop_task(running)
        assert model.batches == [BATCH_MAX, BATCH_MAX, 1]

    asyncio.run(scenario())


def test_a_caller_who_has_left_harms_nobody() -> None:
    async def scenario() -> None:
        model = Model()
        model.gate.clear()
        service = VadService(model)
        running = asyncio.create_task(service.run())
        gone, stays = await ask(service, 0.25, 0.5)
        await until_computing(model)
        gone.cancel()
        model.gate.set()
        assert await stays == 0.5
        with pytest.raises(asyncio.CancelledError):
            await gone
        await stop_task(running)

    asyncio.run(scenario())


def test_at_the_end_nobody_waits_for_ever() -> None:
    async def scenario() -> None:
        model = Model()
        model.gate.clear()
        service = VadService(model)
        running = asyncio.create_task(service.run())
        computed = await ask(service, 0.25)
        await until_computing(model)
        waiting = await ask(service, 0.5)
        await stop_task(running)
        done, _ = await asyncio.wait([*computed, *waiting], timeout=S_MAX)
        assert len(done) == 2
        assert all(task.cancelled() for task in done)
        model.gate.set()

    asyncio.run(scenario())


def test_a_model_that_fails_ends_the_service_and_its_callers() -> None:
    async def scenario() -> None:
        model = Model()
        model.failure = RuntimeError("out of memory")
        service = VadService(model)
        running = asyncio.create_task(service.run())
        (asked,) = await ask(service, 0.5)
        with pytest.raises(RuntimeError, match="out of memory"):
            await running
        await asyncio.wait([asked], timeout=S_MAX)
        assert asked.cancelled()

    asyncio.run(scenario())


def test_stopping_waits_for_the_end() -> None:
    async def scenario() -> None:
        ended = []

        async def work() -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            ended.append(True)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        await stop_task(task)
        assert ended == [True]

    asyncio.run(scenario())
