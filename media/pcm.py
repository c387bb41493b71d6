"""PCM16 bytes and float samples, and byte streams that do not respect sample borders.

Rules
* PCM is signed 16-bit little-endian mono; floats are float32 with full scale 1.0 = 32768.
* Integers survive the way to float and back unchanged.
* A byte stream may be cut anywhere: an odd byte waits for its other half, so one odd-length message neither
  stops the stream nor shifts it by half a sample (pipecat#4952).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from media.chunk import BYTES_PER_SAMPLE

FloatSamples = NDArray[np.float32]

FULL_SCALE = 32_768
PCM16_MAX = 32_767
_FULL_SCALE, _SAMPLE = np.float32(FULL_SCALE), np.float32(1 / FULL_SCALE)
_LOWEST, _HIGHEST = np.float32(-1.0), np.float32(PCM16_MAX / FULL_SCALE)


class PcmError(ValueError):
    """Bytes that are no whole number of samples: the sender of these bytes must act, or use `PcmAligner`."""


def pcm16_to_float(pcm: bytes) -> FloatSamples:
    """`pcm` as float32[n] in [-1, 1), a copy that may be written to. Raises `PcmError` at an odd length."""
    if len(pcm) % BYTES_PER_SAMPLE:
        raise PcmError(f"{len(pcm)} bytes are not whole 16-bit samples")
    return np.frombuffer(pcm, dtype="<i2").astype(np.float32) * _SAMPLE


def float_to_pcm16(samples: FloatSamples) -> bytes:
    """float32[n] as PCM16, rounded to nearest (ties to even) and clipped to [-32768, 32767]; NaN is silence."""
    # Each call of numpy costs more than the samples of a frame do: ufuncs alone, and in place.
    scaled = np.maximum(samples, _LOWEST)
    np.minimum(scaled, _HIGHEST, out=scaled)
    np.multiply(scaled, _FULL_SCALE, out=scaled)
    np.rint(scaled, out=scaled)
    np.copyto(scaled, 0.0, where=np.isnan(scaled))
    pcm: bytes = scaled.astype("<i2").tobytes()
    return pcm


class PcmAligner:
    """Cuts a byte stream at sample borders; holds at most one byte between calls."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    @property
    def pending_bytes(self) -> int:
        """0, or 1 when half a sample waits for the rest."""
        return len(self._pending)

    def align(self, data: bytes) -> bytes:
        """All whole samples of what waited and `data`, in order; may be empty."""
        if self._pending:
            data = self._pending + data
        cut = len(data) - len(data) % BYTES_PER_SAMPLE
        self._pending = data[cut:]
        return data[:cut] if self._pending else data

    def reset(self) -> None:
        """Forget half a sample: a new stream begins."""
        self._pending = b""
