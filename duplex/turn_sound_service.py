"""How finished pauses sound, for all calls of the process, in one thread.

Theory of operation
    A call asks about a pause and looks at the answer with each window that it judges: it is there, or it is not, and
    nobody waits. The thread takes one question after the other, about 60 ms of CPU each, so that neither the event loop
    nor the thread of the VAD stands still. A question whose pause is over is cancelled by its call, and dropped before
    anything is computed for it.

Rules
* The newest `WAITING_MAX` questions wait; the oldest is forgotten, since its pause is the likeliest to be over.
* The model is loaded in its thread when the first question comes, since most services never ask.
* A model that cannot be loaded, or fails, is not asked again: that is logged once, and the words decide alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import structlog

from media.pcm import FloatSamples, pcm16_to_float

# About a second and a half of work. What would wait for longer comes too late: `semantic_vad` usually ends a turn of
# which it knows nothing after 0.6 s. At 256 kB of sound each, 6 MB.
WAITING_MAX = 24
SOUND_SECONDS_MAX = 8  # as much as the model of `media.smart_turn` hears

_log = structlog.get_logger("duplex.turn_sound_service")


class TurnSoundModel(Protocol):
    """What the service needs of a model; called from one thread."""

    def probability(self, sound: FloatSamples) -> float:
        """How probable it is that a turn ends with `sound`, float32 mono at 16 kHz."""
        ...


@dataclass(frozen=True, slots=True)
class _Question:
    pcm: bytes
    answer: asyncio.Future[float]


class TurnSoundService:
    """`load` gives the model; it may take its time, and fail in any way."""

    def __init__(self, load: Callable[[], TurnSoundModel]) -> None:
        self._load = load
        self._model: TurnSoundModel | None = None
        self._has_failed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="turn-sound")
        self._waiting: deque[_Question] = deque()
        self._wake = asyncio.Event()

    def ask(self, pcm: bytes) -> asyncio.Future[float]:
        """How probable it is that a turn ends with `pcm`, PCM16 mono at 16 kHz, the pause behind it begun.

        Cancel what is returned when the answer is not wanted any more. It is cancelled where there will be none.
        """
        question = _Question(pcm, asyncio.get_running_loop().create_future())
        if self._has_failed:
            question.answer.cancel()
            return question.answer
        if len(self._waiting) == WAITING_MAX:
            self._waiting.popleft().answer.cancel()
        self._waiting.append(question)
        self._wake.set()
        return question.answer

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            while True:
                await self._wake.wait()
                question = self._next()
                if question is not None:
                    await self._answer(question)
        finally:
            self._cancel_all()
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> _Question | None:
        """The oldest question that is still wanted."""
        while self._waiting:
            question = self._waiting.popleft()
            if not question.answer.cancelled():
                return question
        self._wake.clear()
        return None

    async def _answer(self, question: _Question) -> None:
        loop = asyncio.get_running_loop()
        try:
            probability = await loop.run_in_executor(self._thread, self._listen, question.pcm)
            if not question.answer.cancelled():
                question.answer.set_result(probability)
        except Exception as error:  # noqa: BLE001 - whatever a model can fail by costs no call anything
            self._has_failed = True
            self._cancel_all()
            _log.error("turn_sound_failed", exc_info=error)
        finally:
            question.answer.cancel()

    def _cancel_all(self) -> None:
        for question in self._waiting:
            question.answer.cancel()
        self._waiting.clear()

    def _listen(self, pcm: bytes) -> float:
        """In the model's thread."""
        if self._model is None:
            self._model = self._load()
        probability = self._model.probability(pcm16_to_float(pcm))
        assert 0.0 <= probability <= 1.0, "a model that gives no probability is broken"
        return probability
