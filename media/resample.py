"""Streaming sample-rate conversion: a polyphase windowed-sinc filter that adds no delay and loses no sample.

Theory of operation
    With `up / down = to_rate / from_rate` in lowest terms, output `m` lies at input position `m * down / up`.
    It is the dot product of the input around that place with one of `up` phases of a Kaiser-windowed sinc.
    The sinc reaches `HALF_PERIODS` sample periods of the lower of both rates to either side, so an output waits
    for that much input to come (look-ahead) and is then exactly in time: group delay is compensated, not added.

Rules
* The output does not depend on how the input was cut into chunks.
* Before and after the stream there is silence. After `flush`, a stream of n samples has given exactly
  ceil(n * to_rate / from_rate), and the object is ready for the next stream.
* At most `lookahead_samples` of input are held: 2.0 ms when the lower rate is 8 kHz, 1.0 ms at 16 kHz,
  0.73 ms at 22.05 kHz; none when both rates are equal.
* Measured for all pairs of `SAMPLE_RATES` (tests/media/test_resample.py): pass-band within ±0.1 dB up to 90 % of the
  lower Nyquist frequency, at least 60 dB down from `STOP_BAND_START` times that frequency.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from media.pcm import FloatSamples

SAMPLE_RATES = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)

# 16 periods of 8 kHz are the 2 ms that a call may spend here. Beta is Kaiser's formula for 60 dB, 0.1102 * (60 - 8.7)
# (J. F. Kaiser, 1974); the cut-off (-6 dB) is the lower Nyquist frequency itself, and the stop-band begins where
# this length then allows it.
HALF_PERIODS = 16
KAISER_BETA = 5.65
STOP_BAND_START = 1.14

# Outputs computed at once: bounds the scratch memory to 2 * 4096 * 193 floats (6 MB) however long the input is.
OUTPUT_BLOCK_SAMPLES = 4_096


# With so few phases, the windows of each are read where they lie; with more, gathering them all at once costs less.
STRIDED_PHASES_MAX = 8


class ResampleError(ValueError):
    """A sample rate that is not among `SAMPLE_RATES`: the configuration or the peer that named it must change."""


@dataclass(frozen=True, slots=True, eq=False)
class FilterBank:
    """`phases` is float32[up, 2 * half + 1]; row r weighs the input around an output r / up past a sample."""

    up: int
    down: int
    half: int
    phases: FloatSamples


@lru_cache(maxsize=len(SAMPLE_RATES) ** 2)
def filter_bank(from_rate: int, to_rate: int) -> FilterBank:
    """The filter of one pair of rates, shared by all streams. Raises `ResampleError`."""
    for rate in (from_rate, to_rate):
        if rate not in SAMPLE_RATES:
            raise ResampleError(f"sample rate {rate} is not one of {SAMPLE_RATES}")
    divisor = gcd(from_rate, to_rate)
    up, down = to_rate // divisor, from_rate // divisor
    if up == down:
        return FilterBank(1, 1, 0, np.ones((1, 1), dtype=np.float32))
    bandwidth = min(1.0, up / down)
    half = int(HALF_PERIODS / bandwidth)
    distance = np.arange(-half, half + 1)[None, :] - np.arange(up)[:, None] / up
    phases = np.sinc(bandwidth * distance) * _kaiser(distance / half)
    # Each phase on its own passes a constant exactly, so that no tone at from_rate rides on an offset.
    phases /= phases.sum(axis=1, keepdims=True)
    return FilterBank(up, down, half, phases.astype(np.float32))


def _kaiser(place: NDArray[np.float64]) -> NDArray[np.float64]:
    """Kaiser's window at `place` in [-1, 1], 0 outside."""
    inside = np.i0(KAISER_BETA * np.sqrt(np.clip(1.0 - place**2, 0.0, None))) / np.i0(KAISER_BETA)
    return np.where(np.abs(place) <= 1.0, inside, 0.0)


class StreamResampler:
    """Converts one stream of float32 samples from `from_rate` to `to_rate`, both in `SAMPLE_RATES`."""

    __slots__ = ("_bank", "_history", "_position")

    def __init__(self, from_rate: int, to_rate: int) -> None:
        self._bank = filter_bank(from_rate, to_rate)
        self._history: FloatSamples = np.zeros(self._bank.half, dtype=np.float32)
        # Numerator, over `up`, of the place in the history where the next output's window starts.
        self._position = 0

    @property
    def lookahead_samples(self) -> int:
        """Input samples that must follow a sample before its output can come: the most that is ever held."""
        return self._bank.half

    @property
    def held_samples(self) -> int:
        """Input samples at and after the place of the next output: taken, but not yet heard in the output."""
        return len(self._history) - self._bank.half

    def process(self, samples: FloatSamples) -> FloatSamples:
        """Take float32[n], give what can be computed by now, float32[m]; n and m may be 0."""
        assert samples.dtype == np.float32
        assert samples.ndim == 1
        bank = self._bank
        history = np.concatenate((self._history, samples))
        windows_count = len(history) - 2 * bank.half
        count = max(0, -((self._position - windows_count * bank.up) // bank.down))
        output = np.empty(count, dtype=np.float32)
        for start in range(0, count, OUTPUT_BLOCK_SAMPLES):
            self._filter(history, start, output[start : start + OUTPUT_BLOCK_SAMPLES])
        consumed, self._position = divmod(self._position + count * bank.down, bank.up)
        self._history = history[consumed:].copy()
        return output

    def flush(self) -> FloatSamples:
        """The rest of the stream, as if silence followed it; then `reset`."""
        rest = self.process(np.zeros(self._bank.half, dtype=np.float32))
        self.reset()
        return rest

    def reset(self) -> None:
        """Forget the stream; the next sample is the first of a new one."""
        self._history = np.zeros(self._bank.half, dtype=np.float32)
        self._position = 0

    def _filter(self, history: FloatSamples, start: int, output: FloatSamples) -> None:
        """Fill `output` with the outputs number `start` and following, counted from the next one."""
        bank = self._bank
        if bank.up <= STRIDED_PHASES_MAX:
            for offset in range(min(bank.up, len(output))):
                self._filter_phase(history, start + offset, output[offset :: bank.up])
            return
        positions = self._position + bank.down * np.arange(start, start + len(output))
        places, phases = np.divmod(positions, bank.up)
        windows = sliding_window_view(history, 2 * bank.half + 1)
        np.vecdot(windows[places], bank.phases[phases], out=output)

    def _filter_phase(self, history: FloatSamples, first: int, output: FloatSamples) -> None:
        """Fill `output` with every `up`th output from number `first` on: all of one phase, `down` samples apart."""
        bank = self._bank
        place, phase = divmod(self._position + bank.down * first, bank.up)
        step = history.itemsize
        shape, strides = (len(output), 2 * bank.half + 1), (bank.down * step, step)
        windows: FloatSamples = np.ndarray(shape, history.dtype, history, place * step, strides)
        np.vecdot(windows, bank.phases[phase], out=output)
