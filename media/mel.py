"""Log-mel features as Whisper was trained on, in numpy.

Theory of operation
    The signal is framed every 10 ms with a periodic Hann window of 25 ms, centred, so frame `k` looks at
    samples `160 k - 200 … 160 k + 199`; the power spectrum is gathered into 80 Slaney mel bands, taken to
    log10, clamped to 8 decades below its loudest value, and scaled by `(x + 4) / 4` (Radford et al. 2022,
    "Robust Speech Recognition via Large-Scale Weak Supervision", section 2.2). Frames past the audio are
    silence and have one known value, so only frames that touch the audio are computed.

Rules
* Only 16 kHz mono float32 comes in; the window is a whole number of hops, at least as long as the audio.
* Tables are computed once, by formula, when the module is loaded.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16_000
MEL_BANDS = 80
FFT_SAMPLES = 400
HOP_SAMPLES = 160

# Below 1 kHz the Slaney scale is linear, above logarithmic (Slaney 1998, Auditory Toolbox, mfcc).
_LINEAR_HZ_PER_MEL = 200.0 / 3.0
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _LINEAR_HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27.0

_POWER_MIN = 1e-10
_DECADES_MAX = 8.0

Floats = NDArray[np.float32]


def _hz_of_mel(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    linear = mel * _LINEAR_HZ_PER_MEL
    logarithmic = _BREAK_HZ * np.exp(_LOG_STEP * (np.maximum(mel, _BREAK_MEL) - _BREAK_MEL))
    return np.where(mel < _BREAK_MEL, linear, logarithmic)


def mel_filters() -> Floats:
    """Triangular filters of equal area over 0 – 8 kHz, shape `(FFT_SAMPLES // 2 + 1, MEL_BANDS)`."""
    top_mel = _BREAK_MEL + np.log(SAMPLE_RATE / 2 / _BREAK_HZ) / _LOG_STEP
    corners_hz = _hz_of_mel(np.linspace(0.0, top_mel, MEL_BANDS + 2))
    bins_hz = np.arange(FFT_SAMPLES // 2 + 1) * (SAMPLE_RATE / FFT_SAMPLES)
    low, centre, high = corners_hz[:-2], corners_hz[1:-1], corners_hz[2:]
    rising = (bins_hz[:, None] - low) / (centre - low)
    falling = (high - bins_hz[:, None]) / (high - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return (triangles * (2.0 / (high - low))).astype(np.float32)


_FILTERS = mel_filters()
_HANN = (0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(FFT_SAMPLES) / FFT_SAMPLES)).astype(np.float32)


def log_mel(pcm: Floats, window_samples: int) -> Floats:
    """Features of `pcm` (float32 mono, 16 kHz) followed by silence up to `window_samples`.

    Gives float32 of shape `(MEL_BANDS, window_samples // HOP_SAMPLES)`, C order. Raises `ValueError` when the
    window is not a whole number of hops, or shorter than a frame or the audio.
    """
    if window_samples % HOP_SAMPLES or window_samples < max(len(pcm), FFT_SAMPLES):
        raise ValueError(f"a window of {window_samples} samples cannot hold {len(pcm)} samples")
    features = np.full((MEL_BANDS, window_samples // HOP_SAMPLES), np.log10(_POWER_MIN), dtype=np.float32)
    frames = min(features.shape[1], math.ceil((len(pcm) + FFT_SAMPLES // 2) / HOP_SAMPLES))
    features[:, :frames] = np.log10(np.maximum(_mel_power(pcm, frames), _POWER_MIN)).T
    floor = features.max() - _DECADES_MAX
    scaled: Floats = (np.maximum(features, floor) + 4.0) / 4.0
    return scaled


def _mel_power(pcm: Floats, frames: int) -> Floats:
    """Mel band powers of the first `frames` frames, shape `(frames, MEL_BANDS)`."""
    half, covered = FFT_SAMPLES // 2, frames * HOP_SAMPLES
    padded = np.zeros(covered + FFT_SAMPLES, dtype=np.float32)
    padded[half : half + len(pcm)] = pcm
    # Whisper mirrors the window at both ends. Where silence follows the audio, its mirror image is silent too.
    padded[:half] = padded[2 * half : half : -1]
    if len(pcm) + half > covered:
        padded[half + covered :] = padded[half + covered - 2 : covered - 2 : -1]
    framed = np.lib.stride_tricks.sliding_window_view(padded, FFT_SAMPLES)[::HOP_SAMPLES][:frames]
    spectrum = np.fft.rfft(framed * _HANN, axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    bands: Floats = power.astype(np.float32, copy=False) @ _FILTERS
    return bands
