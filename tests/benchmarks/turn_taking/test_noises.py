"""Sounds from chance: repeatable, and of the shape that makes them what they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.turn_taking import noises
from media.pcm import FloatSamples

RATE = noises.RATE
Make = Callable[[np.random.Generator], FloatSamples]
BURSTS: list[Make] = [noises.cough, noises.clicks, noises.door]


@pytest.mark.parametrize("make", BURSTS)
def test_equal_generators_give_equal_sounds(make: Make) -> None:
    first, again, other = (make(np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert first.dtype == np.float32
    assert np.array_equal(first, again)
    assert not np.array_equal(first[:240], other[:240])


@pytest.mark.parametrize("make", BURSTS)
def test_a_burst_is_loudest_at_its_beginning_and_short(make: Make) -> None:
    for seed in range(10):
        sound = make(np.random.default_rng(seed))
        assert 0.05 * RATE < len(sound) < 2 * RATE
        first = np.abs(sound[: RATE // 20]).max()
        assert first >= 0.5 * np.abs(sound).max()


def test_a_cough_lies_where_voices_do_and_a_door_below() -> None:
    def middle_hz(sound: FloatSamples) -> float:
        energy = np.abs(np.fft.rfft(sound)) ** 2
        return float(np.searchsorted(np.cumsum(energy), energy.sum() / 2) * RATE / len(sound))

    dice = np.random.default_rng(3)
    assert 300 < middle_hz(noises.cough(dice)) < 4_000
    assert middle_hz(noises.door(dice)) < 400


@pytest.mark.parametrize(("slope", "tolerance"), [(0.0, 1.0), (-3.0, 1.0), (-6.0, 1.0)])
def test_steady_noise_falls_as_asked(slope: float, tolerance: float) -> None:
    energy = np.abs(np.fft.rfft(noises.steady(np.random.default_rng(1), 8_000, slope))) ** 2
    octaves = [energy[hz * 8 : 2 * hz * 8].mean() for hz in (200, 400, 800, 1_600, 3_200)]
    steps = np.diff(10 * np.log10(octaves))
    assert np.allclose(steps, slope, atol=tolerance)
