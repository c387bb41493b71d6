"""Voice activity of all calls of the process, in one thread, in batches.

Theory of operation
    Each call hands in one window at a time and awaits its probability. Whatever has come in while the thread was busy
    makes the next batch, so the batch grows with the load and one quiet call waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt

from media.vad import VadState

BATCH_MAX = 64  # about 3.5 ms of work, well below a window's 32 ms

Window = tuple[VadState, npt.NDArray[np.float32]]


class SpeechModel(Protocol):
    """What the service needs of a VAD model; called from one thread."""

    def probabilities(self, batch: Sequence[Window]) -> list[float]: ...


class VadService:
    def __init__(self, model: SpeechModel) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vad")
        # One window per call, and admission bounds the calls.
        self._waiting: list[tuple[Window, asyncio.Future[float]]] = []
        self._wake = asyncio.Event()

    async def probability(self, state: VadState, window: npt.NDArray[np.float32]) -> float:
        """Speech probability of 512 samples at 16 kHz that continue `state`."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append(((state, window), future))
        self._wake.set()
        return await future

    async def run(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        batch: list[tuple[Window, asyncio.Future[float]]] = []
        try:
            while True:
                await self._wake.wait()
                batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
                if not self._waiting:
                    self._wake.clear()
                windows = [window for window, _ in batch]
                results = await loop.run_in_executor(self._thread, self._model.probabilities, windows)
                for (_, future), result in zip(batch, results, strict=True):
                    if not future.done():
                        future.set_result(result)
        finally:
            for _, future in (*batch, *self._waiting):
                future.cancel()
            self._thread.shutdown(wait=False)
