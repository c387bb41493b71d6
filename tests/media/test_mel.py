"""Log-mel features have the properties that Whisper was trained on."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from media.mel import HOP_SAMPLES, MEL_BANDS, SAMPLE_RATE, Floats, log_mel, mel_filters


def tone(hz: float, samples: int, amplitude: float = 0.5) -> Floats:
    return (amplitude * np.sin(2 * np.pi * hz * np.arange(samples) / SAMPLE_RATE)).astype(np.float32)


def plainly(padded: NDArray[np.float64], frames: int) -> NDArray[np.float64]:
    """The formula, frame by frame, of sound that has been padded at its ends."""
    hann = np.hanning(401)[:-1]
    framed = np.stack([padded[k * HOP_SAMPLES : k * HOP_SAMPLES + 400] * hann for k in range(frames)])
    power = np.abs(np.fft.rfft(framed, axis=1)) ** 2 @ mel_filters().astype(np.float64)
    logs = np.log10(np.maximum(power, 1e-10))
    scaled: NDArray[np.float64] = (np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0
    return scaled.T


def test_filters_are_equal_area_triangles_linear_below_one_kilohertz_and_logarithmic_above() -> None:
    filters = mel_filters()
    peaks_hz = filters.argmax(axis=0) * 40.0
    assert filters.shape == (201, MEL_BANDS)
    assert (filters >= 0).all()
    assert (np.diff(peaks_hz) >= 0).all()
    # 7.5 mel per band at 200/3 Hz per mel, up to 1 kHz: the 81 steps reach from 0 to 45.245 mel.
    step_hz = (15.0 + np.log(8.0) / (np.log(6.4) / 27.0)) / 81 * 200 / 3
    assert peaks_hz[10] == pytest.approx(11 * step_hz, abs=20.0)
    # The area of a triangle of height 2 / width is 1, sampled every 40 Hz where it is wide enough.
    assert filters[:, 60:].sum(axis=0) * 40.0 == pytest.approx(np.ones(20), abs=0.05)


def test_known_values_of_the_filter_bank() -> None:
    """Two weights worked out by hand: band 0 spans 0 – 74.48 Hz and peaks at 37.24 Hz."""
    filters = mel_filters()
    assert filters[1, 0] == pytest.approx((74.476 - 40.0) / 37.238 * 2 / 74.476, rel=1e-3)
    assert filters[0, 0] == 0.0


def test_silence_is_flat_at_the_floor() -> None:
    features = log_mel(np.zeros(SAMPLE_RATE, dtype=np.float32), 2 * SAMPLE_RATE)
    assert features.shape == (80, 200)
    assert features.dtype == np.float32
    assert features == pytest.approx(np.full((80, 200), (-10.0 + 4.0) / 4.0))
    assert log_mel(np.zeros(0, dtype=np.float32), 1600) == pytest.approx(features[:, :10])


def test_a_tone_is_loudest_in_its_band_and_the_range_is_eight_decades() -> None:
    features = log_mel(tone(2000.0, SAMPLE_RATE), 2 * SAMPLE_RATE)
    loudest = features[:, 10:90].argmax(axis=0)
    expected = mel_filters()[50].argmax()
    assert (loudest == expected).all()
    assert features.max() - features.min() == pytest.approx(2.0)
    assert (features[:, 102:] == features.min()).all()


def test_power_of_a_tone_is_that_of_a_hann_window() -> None:
    """A tone of amplitude A in the middle of a bin has power (A · 400 / 4)² there, A² · 10⁴."""
    features = log_mel(tone(2000.0, SAMPLE_RATE, amplitude=0.5), 2 * SAMPLE_RATE)
    band = mel_filters()[50].argmax()
    power = 0.25e4 * mel_filters()[50, band] + 0.25e4 / 4 * (mel_filters()[49, band] + mel_filters()[51, band])
    assert features[band, 50] == pytest.approx((np.log10(power) + 4.0) / 4.0, abs=1e-4)


def test_it_equals_the_plain_definition() -> None:
    """Reflected at the start, zeros at the end, every frame computed in float64."""
    rng = np.random.default_rng(7)
    pcm = rng.standard_normal(4000).astype(np.float32) * np.float32(0.1)
    padded = np.concatenate([pcm[200:0:-1], pcm, np.zeros(8000 - 4000 + 200)])
    assert log_mel(pcm, 8000) == pytest.approx(plainly(padded, 50), abs=2e-4)


def test_a_window_that_ends_with_the_audio_is_mirrored_there() -> None:
    """The last frame looks beyond the end: the window, not the audio, is reflected, at both of its ends."""
    pcm = np.random.default_rng(8).standard_normal(8000).astype(np.float32)
    for length in (8000, 7900):
        window = np.concatenate([pcm[:length], np.zeros(8000 - length)])
        assert log_mel(pcm[:length], 8000) == pytest.approx(plainly(np.pad(window, 200, "reflect"), 50), abs=2e-4)


def test_a_longer_window_only_adds_silence() -> None:
    pcm = tone(440.0, SAMPLE_RATE)
    assert (log_mel(pcm, 4 * SAMPLE_RATE)[:, :200] == log_mel(pcm, 2 * SAMPLE_RATE)).all()


@pytest.mark.parametrize("window_samples", [SAMPLE_RATE - 160, SAMPLE_RATE + 159, 2 * SAMPLE_RATE + 1])
def test_a_window_that_cannot_hold_the_audio_is_refused(window_samples: int) -> None:
    with pytest.raises(ValueError, match="cannot hold 16000 samples"):
        log_mel(np.zeros(SAMPLE_RATE, dtype=np.float32), window_samples)
