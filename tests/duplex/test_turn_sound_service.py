"""Questions how pauses sound, answered one by one in a thread; what nobody waits for is not computed."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine

import pytest
from structlog.testing import capture_logs

from duplex.tasks import stop_task
from duplex.turn_sound_service import WAITING_MAX, TurnSoundService
from media.pcm import FloatSamples

S_MAX = 5


class Model:
    """Answers with the first sample. While `gate` is closed it computes; `began` says that it does."""

    def __init__(self) -> None:
        self.heard: list[float] = []
        self.threads: set[str] = set()
        self.loaded = 0
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        self.failure: Exception | None = None
        self.answer: float | None = None

    def load(self) -> Model:
        self.loaded += 1
        self.threads.add(threading.current_thread().name)
        return self

    def probability(self, sound: FloatSamples) -> float:
        self.began.set()
        assert self.gate.wait(S_MAX)
        self.threads.add(threading.current_thread().name)
        if self.failure is not None:
            raise self.failure
        self.heard.append(float(sound[0]))
        return float(sound[0]) if self.answer is None else self.answer


def sound(value: float) -> bytes:
    """One sample."""
    return int(value * 32_768).to_bytes(2, "little", signed=True)


def serve(scenario: Callable[[TurnSoundService, Model], Coroutine[None, None, None]]) -> Model:
    """Run `scenario` over a service that lives as long as it."""
    model = Model()

    async def run() -> None:
        service = TurnSoundService(model.load)
        running = asyncio.create_task(service.run())
        try:
            await scenario(service, model)
            assert not running.done()
        finally:
            model.gate.set()
            await stop_task(running)

    asyncio.run(run())
    return model


async def until_computing(model: Model) -> None:
    assert await asyncio.to_thread(model.began.wait, S_MAX)


def test_questions_are_answered_in_a_thread_of_their_own() -> None:
    async def scenario(service: TurnSoundService, model: Model) -> None:
        await asyncio.sleep(0)
        assert model.loaded == 0, "nobody has asked"
        assert list(await asyncio.gather(service.ask(sound(0.25)), service.ask(sound(0.5)))) == [0.25, 0.5]
        assert await service.ask(sound(0.75)) == 0.75

    model = serve(scenario)
    assert model.threads == {"turn-sound_0"}
    assert model.loaded == 1


def test_what_is_not_wanted_any_more_is_not_computed() -> None:
    async def scenario(service: TurnSoundService, model: Model) -> None:
        model.gate.clear()
        begun = service.ask(sound(0.25))
        await until_computing(model)
        gone, stays = service.ask(sound(0.5)), service.ask(sound(0.75))
        gone.cancel()
        begun.cancel()
        model.gate.set()
        assert await stays == 0.75
        assert begun.cancelled(), "too late to be spared, and heeded by nobody"

    assert serve(scenario).heard == [0.25, 0.75]


def test_only_the_newest_questions_wait() -> None:
    async def scenario(service: TurnSoundService, model: Model) -> None:
        model.gate.clear()
        service.ask(sound(0.75))
        await until_computing(model)
        oldest = service.ask(sound(0.5))
        newest = [service.ask(sound(0.25)) for _ in range(WAITING_MAX)]
        assert oldest.cancelled()
        model.gate.set()
        assert await asyncio.gather(*newest) == [0.25] * WAITING_MAX

    assert serve(scenario).heard == [0.75] + [0.25] * WAITING_MAX


def fail_to_compute(model: Model) -> None:
    model.failure = RuntimeError("out of memory")


def give_no_number(model: Model) -> None:
    model.answer = math.nan


def fail_to_load(model: Model) -> None:
    def load() -> Model:
        raise OSError("no such file")

    model.load = load  # type: ignore[method-assign]


@pytest.mark.parametrize("fail", [fail_to_compute, give_no_number, fail_to_load])
def test_a_model_that_fails_is_logged_once_and_asked_no_more(fail: Callable[[Model], None]) -> None:
    model = Model()
    fail(model)

    async def scenario() -> None:
        service = TurnSoundService(model.load)
        waiting = [service.ask(sound(0.25)) for _ in range(2)]
        running = asyncio.create_task(service.run())
        await asyncio.wait(waiting, timeout=S_MAX)
        model.failure = None
        waiting.append(service.ask(sound(0.5)))
        assert all(answer.cancelled() for answer in waiting)
        await asyncio.sleep(0)
        assert not running.done(), "calls go on by their words"
        await stop_task(running)

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("turn_sound_failed", "error")]
    assert len(model.heard) <= 1


def test_at_the_end_nobody_is_left_to_hope() -> None:
    async def scenario() -> None:
        model = Model()
        model.gate.clear()
        service = TurnSoundService(model.load)
        running = asyncio.create_task(service.run())
        begun = service.ask(sound(0.25))
        await until_computing(model)
        waiting = service.ask(sound(0.5))
        await stop_task(running)
        assert begun.cancelled()
        assert waiting.cancelled()
        model.gate.set()

    asyncio.run(scenario())
