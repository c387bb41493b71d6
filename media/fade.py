"""Sound that stops or goes on mid-way, without a click: PCM16 faded out and in.

Rules
* The two fades are each other's mirror: the loudest neighbour of silence is a thousandth of full scale.
"""

from __future__ import annotations

import numpy as np

FADE_MS = 10  # shorter is heard as a click, longer as a swell


def faded_out(pcm: bytes) -> bytes:
    """All of `pcm`, from full loudness to silence."""
    return _scaled(pcm, _rising(len(pcm) // 2)[::-1])


def faded_in(pcm: bytes, samples: int) -> bytes:
    """`pcm`, of which the first `samples` rise from silence to full loudness."""
    head, rest = pcm[: 2 * samples], pcm[2 * samples :]
    return _scaled(head, _rising(len(head) // 2)) + rest


def _rising(samples: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Half a cosine from 0 to 1, neither end included."""
    places = (np.arange(samples) + 0.5) / max(1, samples)
    weights: np.ndarray[tuple[int], np.dtype[np.float64]] = (1 - np.cos(np.pi * places)) / 2
    return weights


def _scaled(pcm: bytes, weights: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bytes:
    scaled: bytes = np.round(np.frombuffer(pcm, dtype="<i2") * weights).astype("<i2").tobytes()
    return scaled
