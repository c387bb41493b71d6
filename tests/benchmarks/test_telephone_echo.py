"""How the line of the benchmark sends our voice back; its figures are its own."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.echo import Room, Studio, rms
from benchmarks.telephone_echo import NOISE_DB, come_back, hybrid
from benchmarks.turn_taking.voices import RATE
from media.pcm import FloatSamples


def voice(seconds: float = 1.0) -> FloatSamples:
    """Sound in the band of a telephone that comes and goes."""
    time = np.arange(int(seconds * RATE)) / RATE
    sound = 0.3 * np.sin(2 * np.pi * 1_000 * time) * (time % 0.5 < 0.3)
    return sound.astype(np.float32)


@pytest.mark.parametrize(("delay_ms", "gain_db"), [(20, -10), (700, -30)])
def test_an_echo_is_as_late_and_as_soft_as_it_is_asked_for(delay_ms: int, gain_db: int) -> None:
    sound = voice()
    heard = come_back(sound, delay_ms, gain_db, np.random.default_rng(1))
    start = delay_ms * RATE // 1_000
    echoed = heard[start : start + len(sound)]
    assert 20 * np.log10(rms(echoed) / rms(sound)) == pytest.approx(gain_db, abs=2.0)
    quiet = heard[: start // 2]
    assert 20 * np.log10(np.sqrt(np.mean(quiet**2))) == pytest.approx(NOISE_DB, abs=1.5)


@pytest.mark.parametrize("seed", range(3))
def test_a_hybrid_lets_nothing_through_beside_the_band_and_makes_nothing_louder(seed: int) -> None:
    response = hybrid(np.random.default_rng(seed))
    power = np.abs(np.fft.rfft(response, 1 << 14)) ** 2
    hz = np.fft.rfftfreq(1 << 14, 1 / RATE)
    assert np.sum(response**2) == pytest.approx(1, rel=1e-4)
    assert power[hz < 100].max() < 0.05 * power.max()
    assert power[hz > 4_000].max() < 0.05 * power.max()


@pytest.mark.models
@pytest.mark.slow
def test_a_faint_echo_over_a_line_interrupts_nothing() -> None:
    studio = Studio(1)
    reply, _ = studio.said(2)
    trial = Room().play(reply, come_back(reply, 300, -30, studio.dice), is_telephone=True)
    assert not trial.is_interrupted
    assert not trial.has_turn
