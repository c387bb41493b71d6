"""The vocoder stage: codec frames to samples at 24 kHz, with the model's Code2Wav.

Theory of operation
    Frames wait until the decoder, which keeps the state of the response, takes some of them at a time. How frames were
    cut into items, and how many are decoded at once, changes nothing of the sound.

Rules
* The sound lags: after n frames `n * samples_per_frame - lag` samples are out, and as many are all there are. Of
  Qwen3-Omni these are 1,920 a frame, and 555 samples (23 ms) that never come.
* `AudioOut` is contiguous; exactly one is final, and it may be empty.
* The credit of frames goes back when they have been decoded.
* Failure codes: wrong_options, wrong_item, input_overrun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from media.chunk import BYTES_PER_SAMPLE
from media.pcm import float_to_pcm16
from stages.contracts import AudioOut, CodecFrames, Item, Options, Tag, VocoderOptions
from stages.engines.torch_omni.options import Code2WavSettings
from stages.engines.torch_omni.waveform import StreamingDecoder, WaveformNet
from stages.stream import Consumed, Output, Publish, StageFailure, StageStream, StepContext

SAMPLE_RATE = 24_000
BYTES_PER_CODE = 8

# Frames that may wait undecoded: far beyond any edge's window, so only a faulty producer meets it.
FRAMES_WAITING_MAX = 4_096

Codes = NDArray[np.int64]


class Code2WavModel:
    """The `StageModel` over Code2Wav of `model`, whose weights are `revision`."""

    concurrency = 1

    def __init__(self, model: Any, revision: str, settings: Code2WavSettings) -> None:
        self._net = WaveformNet(model)
        self._revision = revision
        self._settings = settings

    @property
    def revision(self) -> str:
        return self._revision

    def open_session(self, session: str) -> None:
        """Nothing is kept for a session."""

    def close_session(self, session: str) -> None:
        """Nothing was kept for a session."""

    def kept_for(self, session: str) -> dict[str, int]:  # noqa: ARG002 - of any session
        """Nothing is kept for a session."""
        return {}

    def open(self, tag: Tag, options: Options) -> StageStream:
        """One response. Raises `StageFailure("wrong_options")`, also for another rate than 24 kHz."""
        if not isinstance(options, VocoderOptions) or options.sample_rate != SAMPLE_RATE:
            raise StageFailure(
                "wrong_options", f"{options} for {tag.key}: Code2Wav makes {SAMPLE_RATE} samples a second"
            )
        return _Code2WavStream(self._net, self._settings)

    def close(self) -> None:
        """The weights go with their last reference."""


@dataclass(frozen=True, slots=True)
class _Sound:
    frames: int
    pcm: bytes


@dataclass(frozen=True, slots=True)
class _Decode:
    """Decodes `codes`, (codebook, frame); none only end the sound."""

    decoder: StreamingDecoder
    codes: Codes
    units: int
    urgency: int

    kind = "decode"

    def run(self, context: StepContext) -> _Sound:  # noqa: ARG002 - bounded, so it need not ask
        if not self.codes.shape[1]:
            return _Sound(0, b"")
        with torch.inference_mode():
            return _Sound(self.codes.shape[1], float_to_pcm16(self.decoder.decode(self.codes)))


class _Code2WavStream:
    """One response."""

    def __init__(self, net: WaveformNet, settings: Code2WavSettings) -> None:
        self._net = net
        self._settings = settings
        self._decoder = StreamingDecoder(net)
        self._waiting: deque[Codes] = deque()
        self._frames_taken = 0
        self._frames_decoded = 0
        self._samples = 0
        self._seq = 0
        self._ended = False
        self._finished = False

    @property
    def finished(self) -> bool:
        return self._finished

    def feed(self, item: Item) -> Sequence[Output]:
        if not isinstance(item, CodecFrames):
            raise StageFailure("wrong_item", f"Code2Wav takes no {type(item).__name__}")
        if self._ended or item.start_frame != self._frames_taken:
            raise StageFailure(
                "wrong_item", f"frame {item.start_frame} after {self._frames_taken}, ended: {self._ended}"
            )
        if len(item.codes) != item.frames * self._net.codebooks * BYTES_PER_CODE:
            raise StageFailure("wrong_item", f"{len(item.codes)} bytes for {item.frames} frames")
        self._frames_taken += item.frames
        if self._frames_taken - self._frames_decoded > FRAMES_WAITING_MAX:
            raise StageFailure("input_overrun", f"more than {FRAMES_WAITING_MAX} frames without credit")
        self._add(np.frombuffer(item.codes, dtype="<i8").reshape(self._net.codebooks, item.frames))
        self._ended = item.final
        return ()

    def _add(self, codes: Codes) -> None:
        if codes.size and not 0 <= codes.min() <= codes.max() < self._net.codes:
            raise StageFailure("wrong_item", f"codes {codes.min()} to {codes.max()}, of {self._net.codes}")
        self._waiting.extend(codes.T)

    def next_step(self) -> _Decode | None:
        if not self._waiting and (self._finished or not self._ended):
            return None
        count = min(len(self._waiting), self._settings.decode_frames_max)
        codes = np.array([self._waiting[at] for at in range(count)], dtype=np.int64)
        units = self._net.samples_after(self._frames_decoded + count) - self._samples
        return _Decode(
            self._decoder, codes.reshape(count, self._net.codebooks).T, units, 1 if self._frames_decoded else 0
        )

    def finish_step(self, result: object) -> Sequence[Output]:
        assert isinstance(result, _Sound), "only a decoding comes back"
        for _ in range(result.frames):
            self._waiting.popleft()
        self._frames_decoded += result.frames
        self._finished = self._ended and not self._waiting
        samples = len(result.pcm) // BYTES_PER_SAMPLE
        audio = AudioOut(self._seq, SAMPLE_RATE, self._samples, result.pcm, self._finished)
        self._seq += 1
        self._samples += samples
        if self._finished:
            self.close()
        return [*([Consumed(result.frames)] if result.frames else []), Publish(audio, samples)]

    def held(self) -> dict[str, int]:
        """Frames that wait, and positions of KV."""
        return {"frames": len(self._waiting), "positions": self._decoder.positions}

    def close(self) -> None:
        self._waiting.clear()
        self._decoder = StreamingDecoder(self._net)
