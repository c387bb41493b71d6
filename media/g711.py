"""G.711, the codec of telephones: one byte for each sample at 8 kHz, in two dialects, by tables.

Theory of operation
    A byte holds the sign and one of 128 levels; seven bits name a segment and a step in it, and each segment's steps
    are twice as wide as those of the one before. A sample becomes the level in whose interval it lies: level k covers
    its amplitude, up to half a step to either side. A-law leaves the first two segments equal and inverts every other
    bit on the wire; mu-law shifts all levels so that the segments join, and inverts every bit.

Rules
* PCM is 16-bit, full scale 32768: a mu-law level is ITU-T G.711's (14 bits) times 4, an A-law one (13 bits) times 8.
* Decoding and encoding again gives the same samples. Only mu-law's two zeros share a sample, which becomes `0xFF`.
* A negative sample lies in the interval of its one's complement, as in the reference software of ITU-T G.191: A-law
  has no zero, and -1 is its smallest negative level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 8_000
LEVELS = 128
MANTISSA_STEPS = 16
SIGN = 0x80
PCM_VALUES = 1 << 16

_SEGMENTS, _STEPS = np.divmod(np.arange(LEVELS), MANTISSA_STEPS)


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """`decoded`: int16[256], the sample of each code. `encoded`: uint8[65536], the code of each sample, the samples
    taken as unsigned numbers."""

    decoded: NDArray[np.int16]
    encoded: NDArray[np.uint8]

    def decode(self, coded: bytes) -> bytes:
        """PCM16, little-endian, of as many samples as there are bytes."""
        pcm: bytes = self.decoded[np.frombuffer(coded, dtype=np.uint8)].astype("<i2", copy=False).tobytes()
        return pcm

    def encode(self, pcm: bytes) -> bytes:
        """A byte for each sample of PCM16, little-endian, which is a whole number of samples."""
        coded: bytes = self.encoded[np.frombuffer(pcm, dtype="<u2")].tobytes()
        return coded


def _law(levels: NDArray[np.int64], steps: NDArray[np.int64], codes: NDArray[np.int64]) -> Law:
    """`levels`, int64[128], are the amplitudes in rising order, `steps` their intervals; `codes` how a positive one of
    each is sent. A negative one differs in its sign bit."""
    decoded = np.empty(2 * LEVELS, dtype=np.int16)
    decoded[codes], decoded[codes ^ SIGN] = levels, -levels
    samples = np.arange(PCM_VALUES, dtype=np.uint16).view(np.int16).astype(np.int64)
    amplitudes = np.where(samples < 0, ~samples, samples)
    places = np.searchsorted(levels - steps // 2, amplitudes, side="right") - 1
    encoded = np.where(samples < 0, codes[places] ^ SIGN, codes[places]).astype(np.uint8)
    return Law(decoded, encoded)


def _mu_law() -> Law:
    bias = 0x84  # 33 of 14 bits: what makes each segment begin where the one before ends
    scale = 1 << _SEGMENTS
    return _law((8 * _STEPS + bias) * scale - bias, 8 * scale, np.arange(LEVELS) ^ 0xFF)


def _a_law() -> Law:
    steps = 16 * (1 << np.maximum(_SEGMENTS - 1, 0))
    offset = np.where(_SEGMENTS > 0, MANTISSA_STEPS, 0)
    return _law(steps * (_STEPS + offset) + steps // 2, steps, (np.arange(LEVELS) | SIGN) ^ 0x55)


MU_LAW = _mu_law()
A_LAW = _a_law()
