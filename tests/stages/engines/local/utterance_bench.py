"""Drives one utterance step by step, with a recogniser that numbers what it hears."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stages.contracts import AudioIn, EncoderOptions, Item, Transcript
from stages.engines.local.intake import SAMPLE_RATE, samples_of
from stages.engines.local.utterance import Heard, Listen, Listened, PartialBudget, PartialSettings, Utterance
from stages.stream import Consumed, Output, Publish

Audio = NDArray[np.int16]
MS = SAMPLE_RATE // 1000
SECOND = SAMPLE_RATE


class NumberedRecogniser:
    """Answers the n-th hearing with `#n` and keeps what it heard. It cannot represent errors of hearing."""

    def __init__(self, *, looped: bool = False, padding: str = "") -> None:
        self.heard: list[NDArray[np.float32]] = []
        self.thorough: list[bool] = []
        self._looped = looped
        self._padding = padding

    def transcribe(
        self, pcm: NDArray[np.float32], *, thorough: bool = True, cancelled: Callable[[], bool] = bool
    ) -> Heard:
        assert not cancelled()
        self.heard.append(pcm)
        self.thorough.append(thorough)
        return Heard(f"#{len(self.heard) - 1}{self._padding}", looped=self._looped)

    def audio_of(self, text: str) -> NDArray[np.float32]:
        """What was heard to give `text`, end to end."""
        parts = [self.heard[int(number)] for number in re.findall(r"#(\d+)", text)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)


class LiveContext:
    def cancelled(self) -> bool:
        return False

    def wait_cancelled(self, ns_max: int) -> bool:
        return False

    def stalled(self) -> bool:
        return False

    def progress(self, outputs: Sequence[Output]) -> None:
        raise AssertionError("the encoder reports nothing early")


class Bench:
    """One utterance, driven as a worker drives it, except that the test says when steps run and what they cost."""

    def __init__(
        self,
        *,
        partials: bool = True,
        recogniser: NumberedRecogniser | None = None,
        budget: PartialBudget | None = None,
    ) -> None:
        self.recogniser = recogniser or NumberedRecogniser()
        self.budget = budget or PartialBudget(0.3)
        self.stream = Utterance(self.recogniser, EncoderOptions(partials=partials), PartialSettings(), self.budget)
        self.transcripts: list[Transcript] = []
        self.consumed = 0
        self.sent = 0
        self.step: Listen | None = None
        self.stored_peak = 0

    def _take(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            match output:
                case Publish(event=Transcript() as event, units=0):
                    self.transcripts.append(event)
                case Consumed(units=units):
                    assert units > 0
                    self.consumed += units
                case _:
                    raise AssertionError(output)
        self.stored_peak = max(self.stored_peak, self.stream.held()["samples"])

    def feed(self, item: Item) -> None:
        self._take(self.stream.feed(item))

    def say(self, samples: Audio) -> None:
        """Audio that follows what was sent."""
        self.feed(AudioIn(self.sent, samples.astype("<i2").tobytes()))
        self.sent += len(samples)

    def start(self) -> str:
        """Start the next step; its kind, or nothing."""
        assert self.step is None
        step = self.stream.next_step()
        assert step is None or isinstance(step, Listen)
        self.step = step
        return step.kind if step is not None else ""

    def end(self, cost_ms: int = 0) -> None:
        """The running step comes back after `cost_ms`."""
        assert self.step is not None
        result = self.step.run(LiveContext())
        step, self.step = self.step, None
        self._take(self.stream.finish_step(Listened(step, result.heard, cost_ms * 1_000_000)))

    def work(self) -> list[str]:
        """Run steps until there is nothing to do."""
        kinds = []
        while kind := self.start():
            kinds.append(kind)
            self.end()
        return kinds

    @property
    def final(self) -> Transcript:
        finals = [transcript for transcript in self.transcripts if transcript.final]
        assert len(finals) == 1
        assert finals[0] is self.transcripts[-1]
        assert finals[0].settled
        assert self.stream.finished
        return finals[0]


def speech(samples: int, seed: int = 0) -> Audio:
    """Nowhere zero, nowhere equal to its neighbours."""
    values = np.random.default_rng(seed).integers(100, 30_000, samples)
    return values.astype(np.int16)


def silence(samples: int) -> Audio:
    return np.zeros(samples, dtype=np.int16)


def equal(heard: NDArray[np.float32], audio: Audio) -> bool:
    return bool(np.array_equal(heard, samples_of(audio.astype("<i2").tobytes())))
