"""The audio tower over a growing sound: window by window, as if the whole had been there from the start.

Theory of operation
    Sound becomes a log-mel spectrogram, 100 frames a second, as Whisper was trained on (Radford et al. 2022, section
    2.2). The tower attends within windows of `n_window_infer` frames and never across them, so a window that is full
    can be computed while the caller goes on. Its convolutions see chunks of 100 frames; the last, shorter one is padded
    as it would be beside the others.

Rules
* The spectrogram is clamped to 8 decades below the loudest value *so far*. That is what the library computes over the
  whole sound, unless a later peak is so loud that it would have clamped an earlier window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.audio_utils import mel_filter_bank

SAMPLE_RATE = 16_000
HOP_SAMPLES = 160
FFT_SAMPLES = 400
REACH_SAMPLES = FFT_SAMPLES // 2  # a frame looks so far to both sides of its middle

_POWER_MIN = 1e-10
_DECADES = 8.0


@dataclass(frozen=True, slots=True)
class Window:
    """One window: `samples`, float32, reach `REACH_SAMPLES` beyond its `frames` frames on either side, except where the
    sound begins (`is_first`) or ends (`is_last`)."""

    samples: Any
    frames: int
    is_first: bool
    is_last: bool


class AudioNet:
    """The audio tower of a whole model."""

    def __init__(self, model: Any) -> None:
        config = model.config.thinker_config.audio_config
        self._tower = model.thinker.model.audio_tower
        self._device = str(model.device)
        self.dim: int = config.output_dim
        self.window_frames: int = config.n_window_infer
        self._chunk_frames = 2 * config.n_window
        bands = mel_filter_bank(
            num_frequency_bins=FFT_SAMPLES // 2 + 1,
            num_mel_filters=config.num_mel_bins,
            min_frequency=0.0,
            max_frequency=SAMPLE_RATE / 2,
            sampling_rate=SAMPLE_RATE,
            norm="slaney",
            mel_scale="slaney",
        )
        self._bands = torch.tensor(bands.T, dtype=torch.float32, device=self._device)
        self._hann = torch.hann_window(FFT_SAMPLES, device=self._device)

    def encode(self, window: Window, peak: float) -> tuple[Any, float]:
        """The embeddings of `window`, float (position, channel), given the loudest value before it; and the loudest
        value now."""
        if not window.frames:
            return torch.zeros((0, self.dim), device=self._device), peak
        levels = self._levels(window)
        peak = max(peak, float(levels.max()))
        features = (levels.clamp(min=peak - _DECADES) + 4.0) / 4.0
        chunks = features.split(self._chunk_frames, dim=1)
        longest = chunks[0].shape[1] if window.is_first else self._chunk_frames
        padded = [torch.nn.functional.pad(chunk, (0, longest - chunk.shape[1])) for chunk in chunks]
        out = self._tower(
            feature_lens=torch.tensor([window.frames], device=self._device),
            padded_feature=torch.stack(padded),
            chunk_lengths=torch.tensor([chunk.shape[1] for chunk in chunks], device=self._device),
        )
        return out.last_hidden_state, peak

    def _levels(self, window: Window) -> Any:
        """Decades of power, float32 (band, frame). The signal is mirrored at its ends."""
        signal = torch.as_tensor(window.samples, device=self._device)
        before = signal[1 : REACH_SAMPLES + 1].flip(0) if window.is_first else signal[:0]
        behind = signal[-REACH_SAMPLES - 1 : -1].flip(0) if window.is_last else signal[:0]
        framed = torch.cat((before, signal, behind)).unfold(0, FFT_SAMPLES, HOP_SAMPLES)[: window.frames]
        power = torch.fft.rfft(framed * self._hann).abs().square()
        return (self._bands @ power.T).clamp(min=_POWER_MIN).log10()
