"""Does the caller sound as if they had said all? Smart Turn's network over ONNX Runtime.

Theory of operation
    The network (Whisper tiny's encoder and a classifier, int8; github.com/pipecat-ai/smart-turn, version 3.2) hears the
    last 8 s of a turn, up to about 200 ms into its pause: Whisper's log-mel features of sound that is brought to zero
    mean and unit variance. What is shorter is preceded by silence, so that the end of the sound is always the end of
    the window. It hears melody, pace and hesitation, and understands words a little.

Rules
* `probability` runs in the thread that calls it: one thread per `SmartTurn`.
* Only sound of the turn itself is handed in: neither an earlier turn nor our own voice.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from media.mel import SAMPLE_RATE, log_mel
from media.onnx_model import open_model
from media.pcm import FloatSamples

WINDOW_SECONDS = 8  # fixed by the network
WINDOW_SAMPLES = WINDOW_SECONDS * SAMPLE_RATE
MODEL_INPUTS = frozenset({"input_features"})
# Keeps digital silence from being divided by zero: the constant of Whisper's feature extraction in transformers.
_VARIANCE_MIN = 1e-7


class SmartTurn:
    """The network, loaded once per process from `model_path`. Raises `ModelFileError`."""

    def __init__(self, model_path: Path) -> None:
        self._model = open_model(model_path, MODEL_INPUTS)

    def probability(self, sound: FloatSamples) -> float:
        """How probable it is, 0 to 1, that a turn ends with `sound`, float32 mono at 16 kHz; its last 8 s count."""
        (output,) = self._model.run(None, {"input_features": features(sound)[np.newaxis]})
        return float(output.item())


def features(sound: FloatSamples) -> FloatSamples:
    """Log-mel of the last 8 s of `sound`, float32[80, 800]."""
    window = np.zeros(WINDOW_SAMPLES, dtype=np.float32)
    last = sound[-WINDOW_SAMPLES:]
    window[WINDOW_SAMPLES - len(last) :] = last
    level = np.sqrt(window.var() + np.float32(_VARIANCE_MIN))
    return log_mel((window - window.mean()) / level, WINDOW_SAMPLES)
