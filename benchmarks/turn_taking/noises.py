"""Sounds without words, made from chance alone: coughs, clicks, doors, steady noise.

Theory of operation
    A cough has three phases (J. Korpáš and others, "Analysis of the cough sound: an overview", 1996): the burst in
    which the glottis opens, a longer rush of air, and sometimes a voiced end. Each is noise, or a buzz, with an
    envelope and a band of its own. A click is a few milliseconds of noise, a door a low thud with a latch. Steady noise
    is white noise given a slope of spectrum: 0 dB an octave is white, -3 pink, -6 the rumble of a car.

Rules
* float32[n] at 24 kHz, of no particular level: whoever uses it sets that.
* Equal generators give equal sounds.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from media.pcm import FloatSamples

RATE = 24_000
ATTACK_MS = 3  # from nothing to full: quick enough for a burst, slow enough not to click
SPECTRUM_HZ_MIN = 40.0  # a slope goes no further down


def cough(dice: Generator) -> FloatSamples:
    """One to three coughs in a row."""
    pieces = []
    for _ in range(int(dice.integers(1, 4))):
        burst = _decay(_band(dice, int(dice.integers(40, 70)), 300, 5_000), 40)
        rush = _decay(_band(dice, int(dice.integers(150, 260)), 700, 2_800), 110) * np.float32(0.6)
        pieces += [burst, rush]
        if dice.random() < 0.5:
            pieces.append(_buzz(dice, int(dice.integers(50, 110))) * np.float32(0.4))
        pieces.append(_silence(int(dice.integers(80, 180))))
    return np.concatenate(pieces[:-1])


def clicks(dice: Generator) -> FloatSamples:
    """A few strokes of a keyboard."""
    pieces = []
    for _ in range(int(dice.integers(2, 6))):
        pieces += [_decay(_band(dice, 12, 1_500, 9_000), 3), _silence(int(dice.integers(60, 220)))]
    return np.concatenate(pieces[:-1])


def door(dice: Generator) -> FloatSamples:
    """A door falls shut: a thud, then the latch."""
    thud = _decay(_band(dice, 300, 50, 260), 90)
    latch = _decay(_band(dice, 25, 1_200, 6_000), 8) * np.float32(0.5)
    return np.concatenate([thud, _silence(int(dice.integers(10, 60))), latch])


def steady(dice: Generator, ms: int, slope_db_per_octave: float) -> FloatSamples:
    """`ms` of noise with that slope of its spectrum."""
    spectrum = np.fft.rfft(dice.standard_normal(ms * RATE // 1000))
    octaves = np.log2(np.maximum(_hz(len(spectrum)), SPECTRUM_HZ_MIN) / SPECTRUM_HZ_MIN)
    return _unit(np.fft.irfft(spectrum * 10 ** (slope_db_per_octave * octaves / 20)))


def _band(dice: Generator, ms: int, low_hz: float, high_hz: float) -> FloatSamples:
    """`ms` of noise between two frequencies, with soft edges."""
    spectrum = np.fft.rfft(dice.standard_normal(ms * RATE // 1000))
    hz = _hz(len(spectrum))
    gain = 1 / (1 + (low_hz / np.maximum(hz, 1)) ** 4) / (1 + (hz / high_hz) ** 4)
    return _unit(np.fft.irfft(spectrum * gain))


def _buzz(dice: Generator, ms: int) -> FloatSamples:
    """A voiced sound of falling pitch: the first ten partials, each weaker than the one before."""
    clock = np.arange(ms * RATE // 1000) / RATE
    turns = np.cumsum(np.linspace(1.1, 0.8, len(clock)) * dice.uniform(110, 220)) / RATE
    partials = sum(np.sin(2 * np.pi * n * turns) / n for n in range(1, 11))
    return _decay(_unit(np.asarray(partials)), ms / 2)


def _decay(sound: FloatSamples, ms: float) -> FloatSamples:
    """A quick attack, then down to a third every `ms`."""
    clock_ms = np.arange(len(sound)) * 1000 / RATE
    envelope = np.minimum(clock_ms / ATTACK_MS, 1) * np.exp(-clock_ms / ms)
    decayed: FloatSamples = (sound * envelope).astype(np.float32)
    return decayed


def _silence(ms: int) -> FloatSamples:
    return np.zeros(ms * RATE // 1000, dtype=np.float32)


def _hz(bins: int) -> NDArray[np.float64]:
    return np.linspace(0, RATE / 2, bins)


def _unit(sound: NDArray[np.float64]) -> FloatSamples:
    """Root mean square 1."""
    scaled: FloatSamples = (sound / np.sqrt(np.mean(sound**2))).astype(np.float32)
    return scaled
