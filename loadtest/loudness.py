"""Where in a piece of sound something can be heard.

A window of `WINDOW_MS` is audible when its RMS reaches `AUDIBLE_DBFS`. That lies above the noise floor of ordinary
recordings and below the weakest endings of words at usual recording levels; both constants are this project's choice.
"""

from __future__ import annotations

import numpy as np

from media.chunk import BYTES_PER_SAMPLE, ms_to_samples

WINDOW_MS = 5
AUDIBLE_DBFS = -45.0

# RMS over full scale 32768, squared: compared with the mean square so that no root is taken.
_AUDIBLE_MEAN_SQUARE = (32_768 * 10 ** (AUDIBLE_DBFS / 20)) ** 2


def audible_span(pcm: bytes, sample_rate: int) -> tuple[int, int] | None:
    """First audible sample and the one after the last, to within a window; None where all is silence.

    `pcm` is PCM16 mono at `sample_rate`, of whole samples; windows count from its start.
    """
    assert len(pcm) % BYTES_PER_SAMPLE == 0
    samples = np.frombuffer(pcm, dtype="<i2").astype(np.float64)
    window = ms_to_samples(WINDOW_MS, sample_rate)
    starts = np.arange(0, len(samples), window)
    if not len(starts):
        return None
    lengths = np.minimum(window, len(samples) - starts)
    loud = np.flatnonzero(np.add.reduceat(samples**2, starts) / lengths >= _AUDIBLE_MEAN_SQUARE)
    if not len(loud):
        return None
    return int(starts[loud[0]]), int(starts[loud[-1]] + lengths[loud[-1]])
