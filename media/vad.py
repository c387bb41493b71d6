"""Voice activity: Silero's recurrent network over ONNX Runtime, many calls in one run.

Theory of operation
    The network sees 512 new samples at 16 kHz (32 ms), preceded by the last 64 of the window before, and a recurrent
    state. Both belong to the call and live in its `VadState`; the network itself keeps nothing, so windows of
    different calls are computed side by side and each result is the one that the call alone would have had.

Rules
* `probabilities` runs in the thread that calls it: one thread per `SileroVad`, no worker threads, no spinning.
* Windows of one call come in order, one per batch.
* ORT_DISABLE_TELEMETRY is set before this module is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from media.onnx_model import open_model
from media.pcm import FloatSamples
from media.speech_gate import VAD_SAMPLE_RATE, WINDOW_SAMPLES

# Fixed by the network (github.com/snakers4/silero-vad, the wrapper of the ONNX model at 16 kHz).
CONTEXT_SAMPLES = 64
STATE_SHAPE = (2, 128)
MODEL_INPUTS = frozenset({"input", "state", "sr"})


class VadState:
    """What the network remembers of one call: float32[2, 128] of state, float32[64] of sound."""

    __slots__ = ("context", "hidden")

    def __init__(self) -> None:
        self.hidden: FloatSamples = np.zeros(STATE_SHAPE, dtype=np.float32)
        self.context: FloatSamples = np.zeros(CONTEXT_SAMPLES, dtype=np.float32)

    def reset(self) -> None:
        """As for a new call."""
        self.hidden = np.zeros(STATE_SHAPE, dtype=np.float32)
        self.context = np.zeros(CONTEXT_SAMPLES, dtype=np.float32)


class SileroVad:
    """The network, loaded once per process from `model_path` (`silero_vad.onnx`). Raises `ModelFileError`."""

    def __init__(self, model_path: Path) -> None:
        self._model = open_model(model_path, MODEL_INPUTS)
        self._rate = np.array(VAD_SAMPLE_RATE, dtype=np.int64)

    def probabilities(self, batch: Sequence[tuple[VadState, FloatSamples]]) -> list[float]:
        """Probability of speech, 0 to 1, of each float32[512] at 16 kHz; moves each state on by its window."""
        if not batch:
            return []
        states = [state for state, _ in batch]
        assert len({id(state) for state in states}) == len(states), "one window per call and batch"
        windows = np.stack([window for _, window in batch])
        assert windows.shape[1] == WINDOW_SAMPLES
        sound = np.concatenate((np.stack([state.context for state in states]), windows), axis=1)
        hidden = np.stack([state.hidden for state in states], axis=1)
        output, hidden = self._model.run(None, {"input": sound, "state": hidden, "sr": self._rate})
        for index, state in enumerate(states):
            state.hidden = hidden[:, index].copy()
            state.context = sound[index, -CONTEXT_SAMPLES:].copy()
        probabilities: list[float] = output[:, 0].tolist()
        return probabilities
