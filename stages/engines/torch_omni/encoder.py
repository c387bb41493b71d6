"""The encoder stage: 16 kHz sound to embeddings that the Thinker listens to, while the caller speaks.

Theory of operation
    Sound is gathered until a window of the audio tower is full, or the turn has ended. Each window's embeddings go to
    the Thinker at once, in pieces. When the turn has ended the gateway is told so by a final transcript without text:
    this encoder hears sounds, not words.

Rules
* A step is one window. What was encoded before the end of the turn was known stays part of it.
* A pause changes nothing: the last window is computed when the turn ends.
* Credit comes back as long as at most a window and a second are held; the producer may hold `INPUT_CREDIT_SAMPLES`.
* Failure codes: wrong_options, wrong_item, and those of `Intake`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stages.contracts import AudioIn, EncoderOptions, EndOfTurn, Item, Options, Pause, SpeechResumed, Tag, Transcript
from stages.engines.local.intake import Intake, samples_of
from stages.engines.torch_omni.audio_net import HOP_SAMPLES, REACH_SAMPLES, SAMPLE_RATE, AudioNet, Window
from stages.engines.torch_omni.rows import emit_in_pieces, pack
from stages.stream import Consumed, Emit, Output, Publish, StageFailure, StageStream, StepContext

INPUT_CREDIT_SAMPLES = 6 * SAMPLE_RATE
HEARABLE_SAMPLES_MIN = SAMPLE_RATE // 20  # nobody says anything in less; the mirrored ends need a quarter of it


class EncoderModel:
    """The `StageModel` over the audio tower of `model`, whose weights are `revision`."""

    concurrency = 1

    def __init__(self, model: Any, revision: str) -> None:
        self._net = AudioNet(model)
        self._revision = revision

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
        """An utterance of `tag`'s turn. Raises `StageFailure("wrong_options")`."""
        if not isinstance(options, EncoderOptions):
            raise StageFailure("wrong_options", f"{type(options).__name__} for {tag.key} at the encoder")
        return _EncoderStream(self._net)

    def close(self) -> None:
        """The weights go with their last reference."""


@dataclass(frozen=True, slots=True)
class _Heard:
    rows: Any
    peak: float


@dataclass(frozen=True, slots=True)
class _Listen:
    """Encodes `window`, given the loudest value before it."""

    net: AudioNet
    window: Window
    peak: float

    kind = "encode"
    units = 0

    @property
    def urgency(self) -> int:
        return 0 if self.window.is_last else 1

    def run(self, context: StepContext) -> _Heard:  # noqa: ARG002 - bounded, so it need not ask
        with torch.inference_mode():
            rows, peak = self.net.encode(self.window, self.peak)
        return _Heard(rows, peak)


class _EncoderStream:
    """One utterance. Frames are counted from its first sample on."""

    def __init__(self, net: AudioNet) -> None:
        high_samples = net.window_frames * HOP_SAMPLES + SAMPLE_RATE
        self._net = net
        self._intake = Intake(high_samples, high_samples + INPUT_CREDIT_SAMPLES)
        self._high_samples = high_samples
        self._owed = 0
        self._begin: int | None = None
        self._end: int | None = None
        self._frames_encoded = 0
        self._peak = float("-inf")
        self._handed_over = 0
        self._window: Window | None = None
        self._finished = False

    @property
    def finished(self) -> bool:
        return self._finished

    def feed(self, item: Item) -> Sequence[Output]:
        match item:
            case AudioIn(start_sample, pcm) if self._end is None:
                self._intake.add(start_sample, pcm)
                self._owed += len(pcm) // 2
                self._begin = self._intake.start if self._begin is None else self._begin
                return self._credit()
            case AudioIn(_, pcm):
                return [Consumed(len(pcm) // 2)]
            case EndOfTurn(sample):
                self._end = self._intake.position(sample)
                return []
            case Pause() | SpeechResumed():
                return []
        raise StageFailure("wrong_item", f"an encoder takes no {type(item).__name__}")

    def _credit(self) -> list[Output]:
        withheld = min(self._owed, max(0, self._intake.stored - self._high_samples))
        returned, self._owed = self._owed - withheld, withheld
        return [Consumed(returned)] if returned else []

    def next_step(self) -> _Listen | None:
        self._window = None if self._finished else self._next_window()
        return None if self._window is None else _Listen(self._net, self._window, self._peak)

    def _next_window(self) -> Window | None:
        """The next full window; the last one, which may have no frames; or None until there is more."""
        begin, frames, is_last = self._begin or 0, self._net.window_frames, False
        until = begin + (self._frames_encoded + frames - 1) * HOP_SAMPLES + REACH_SAMPLES
        if self._end is not None:
            heard = self._end - begin
            left = heard // HOP_SAMPLES - self._frames_encoded if heard >= HEARABLE_SAMPLES_MIN else 0
            is_last = left <= frames
            frames, until = (max(0, left), self._end) if is_last else (frames, until)
        if until > self._intake.end:
            return None
        return Window(samples_of(self._intake.take(until)), frames, self._frames_encoded == 0, is_last)

    def finish_step(self, result: object) -> Sequence[Output]:
        assert isinstance(result, _Heard), "only a listening comes back"
        assert self._window is not None, "a window was listened to"
        self._frames_encoded += self._window.frames
        self._peak = result.peak
        emits: list[Output] = list(emit_in_pieces(self._handed_over, result.rows, "audio"))
        self._handed_over += len(result.rows)
        if self._window.is_last:
            return emits + self._finish()
        self._intake.drop((self._begin or 0) + self._frames_encoded * HOP_SAMPLES - REACH_SAMPLES)
        return emits + self._credit()

    def _finish(self) -> list[Output]:
        self._finished = True
        owed: list[Output] = [Consumed(self._owed)] if self._owed else []
        self._owed = 0
        none = pack(self._handed_over, torch.zeros((0, self._net.dim)), "audio", final=True)
        heard = Transcript("", self._intake.sample(self._end or 0), settled=True, final=True)
        self.close()
        return [*owed, Emit(none, 0), Publish(heard)]

    def held(self) -> dict[str, int]:
        """Samples that are not encoded, or are still looked back on."""
        return {"samples": self._intake.stored}

    def close(self) -> None:
        self._intake.drop(self._intake.end)
