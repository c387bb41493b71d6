"""One utterance at the encoder: what to listen to next, what to say about it, and when it is over.

Theory of operation
    Audio flows into an `Intake`; a recogniser turns spans of it into text, one step at a time. Four kinds of
    span are planned, the first that applies:

    cut      more audio than one window holds: up to its quietest spot, which becomes committed text
    final    the turn has ended and no settled text covers it: all that is left
    settle   the caller paused: up to the pause and the silence known to follow it, so that the final is
             ready before the end of the turn is decided
    partial  the caller speaks: all there is, a guess

    `Pause` gives the settled text a right to become the final one; `SpeechResumed` takes it away, also from a
    step that is still running. `EndOfTurn` publishes the settled text at once where it holds. Long utterances
    are committed at pauses: settled text becomes committed text, and the audio up to the middle of the silence
    is dropped, so that neither the end of a word nor the start of the next is lost.

Rules
* The final is published exactly once; nothing is published after it.
* Credit goes back when audio is stored, since storing is bounded: it is withheld only while more than
  `STORED_SAMPLES_HIGH` are held (an engine that lags), and comes back as they become text. The producer may
  hold `INPUT_CREDIT_SAMPLES` of credit.
* Time is the number of samples received. A partial that cost `c` is followed by another no sooner than
  `c / share` of audio later, where `share` is this utterance's part of the core time for partials.
* A step that has become useless (a guess once the caller paused, a settled text once speech resumed) is void:
  its result is thrown away. It stops between its encoder and its decoder pass; neither can be stopped within.
* Being asked for the next step means that the last one, if it has not come back, was never started.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stages.contracts import AudioIn, EncoderOptions, EndOfTurn, Item, Pause, SpeechResumed, Transcript
from stages.engines.local.intake import BYTES_PER_SAMPLE, SAMPLE_RATE, Intake, samples_of
from stages.stream import Consumed, Output, Publish, StageFailure, Step, StepContext

# A window is at most 12 s (its cost grows with it), of which 0.3 s must stay silent.
SEGMENT_SAMPLES_MAX = 117 * SAMPLE_RATE // 10
# While the caller speaks on, a cut is made before the window is full, at the quietest spot of the last 5 s.
CUT_SAMPLES = 11 * SAMPLE_RATE
CUT_SEARCH_SAMPLES = 5 * SAMPLE_RATE
# At a pause, committing starts here: the next window would otherwise be likely to overflow.
COMMIT_SAMPLES = 8 * SAMPLE_RATE
# Silence after a pause that a settled text listens to: the recogniser needs little of it to end a sentence.
TAIL_SAMPLES = SAMPLE_RATE // 5
# Silence kept before the present while a pause lasts: the onset of speech is noticed late.
ONSET_SAMPLES = 1 * SAMPLE_RATE

# Above the longest segment by what comes in while two steps run behind those of others.
STORED_SAMPLES_HIGH = 14 * SAMPLE_RATE
INPUT_CREDIT_SAMPLES = 6 * SAMPLE_RATE

# Less than a short vowel: nothing to hear.
HEARABLE_SAMPLES_MIN = SAMPLE_RATE // 20
# Before half a second a guess is wrong more often than right.
FIRST_PARTIAL_SAMPLES = SAMPLE_RATE // 2
# About 15 minutes of speech; it keeps a transcript within one frame of a link.
TRANSCRIPT_CHARS_MAX = 12_000

NS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Heard:
    """Text of a span of audio. `looped`: the recogniser repeated itself and its text was cut back."""

    text: str
    looped: bool = False


class Recogniser(Protocol):
    """Turns speech into text; called on the engine thread only."""

    def transcribe(
        self, pcm: NDArray[np.float32], *, thorough: bool = True, cancelled: Callable[[], bool] = ...
    ) -> Heard:
        """Hear float32 mono at 16 kHz. `thorough`: try again where the first result is implausible."""
        ...


class PartialBudget:
    """Core time for partials, shared evenly by the utterances open at one model."""

    def __init__(self, core_share: float = 0.3) -> None:
        """`core_share` is the part of one core that all partials may take together, 0 < share ≤ 1."""
        if not 0.0 < core_share <= 1.0:
            raise ValueError(f"core_share must be within (0, 1], not {core_share}")
        self._core_share = core_share
        self._utterances = 0

    def join(self) -> None:
        self._utterances += 1

    def leave(self) -> None:
        self._utterances -= 1

    def interval_samples(self, cost_ns: int) -> int:
        """Audio from the start of a partial that cost `cost_ns` to the start of the next."""
        return int(cost_ns * SAMPLE_RATE * max(1, self._utterances) / (self._core_share * NS_PER_SECOND))


@dataclass(frozen=True, slots=True)
class PartialSettings:
    """How often guesses are made while the caller speaks."""

    core_share: float = 0.3
    interval_ms_min: int = 320


@dataclass(frozen=True, slots=True, eq=False)
class _Silence:
    """One pause, told from others by identity: speech ended at `position`; it is quiet up to `known`."""

    position: int
    known: int


@dataclass(frozen=True, slots=True)
class Listen:
    """A step: hear the audio up to position `end`. `silence` is the pause that it settles. `void` is set on the
    loop thread and read on the engine thread."""

    kind: str
    urgency: int
    end: int
    pcm: bytes
    recogniser: Recogniser
    silence: _Silence | None
    void: threading.Event
    units: int = 0

    def run(self, context: StepContext) -> Listened:
        def useless() -> bool:
            return context.cancelled() or self.void.is_set()

        if useless():
            return Listened(self, Heard(""), 0)
        started_ns = time.perf_counter_ns()
        heard = self.recogniser.transcribe(samples_of(self.pcm), thorough=self.kind != "partial", cancelled=useless)
        return Listened(self, heard, time.perf_counter_ns() - started_ns)


@dataclass(frozen=True, slots=True)
class Listened:
    """What a step heard, and the time it took."""

    step: Listen
    heard: Heard
    cost_ns: int


class Utterance:
    """The stream of one turn's input (`StageStream`)."""

    def __init__(
        self, recogniser: Recogniser, options: EncoderOptions, settings: PartialSettings, budget: PartialBudget
    ) -> None:
        self._recogniser = recogniser
        self._partials = options.partials
        self._interval_samples_min = settings.interval_ms_min * SAMPLE_RATE // 1000
        self._budget = budget
        if self._partials:
            self._budget.join()
        self._intake = Intake(STORED_SAMPLES_HIGH, STORED_SAMPLES_HIGH + INPUT_CREDIT_SAMPLES)
        self._owed = 0
        self._committed = ""
        self._silence: _Silence | None = None
        self._settled: str | None = None
        self._partial_from = 0
        self._end_sample: int | None = None
        self._end = 0
        self._running: Listen | None = None
        self._open = True

    @property
    def finished(self) -> bool:
        return not self._open

    # ---- input ------------------------------------------------------------------------------------

    def feed(self, item: Item) -> Sequence[Output]:
        """Take audio, a pause, its end, or the end of the turn; what follows the end is ignored.

        Raises `StageFailure`: `wrong_item`, or `bad_audio` and `input_overrun` of the intake.
        """
        match item:
            case AudioIn():
                return self._on_audio(item)
            case Pause():
                return self._on_pause(item)
            case SpeechResumed():
                return self._on_resumed()
            case EndOfTurn():
                return self._on_end(item)
            case _:
                raise StageFailure("wrong_item", f"the encoder does not take {type(item).__name__}")

    def _on_audio(self, item: AudioIn) -> list[Output]:
        samples = len(item.pcm) // BYTES_PER_SAMPLE
        if self._end_sample is not None:
            return [Consumed(samples)]
        self._intake.add(item.start_sample, item.pcm)
        self._owed += samples
        self._commit_long_pause()
        return self._credit()

    def _on_pause(self, item: Pause) -> list[Output]:
        position = self._intake.position(item.sample)
        if self._end_sample is not None or (self._silence is not None and self._silence.position == position):
            return []
        # Silence is known only up to what had been received, and judged, when the pause was declared.
        self._silence = _Silence(position, min(position + TAIL_SAMPLES, self._intake.end))
        self._settled = None
        self._void_useless()
        return self._conclude()

    def _on_resumed(self) -> list[Output]:
        if self._end_sample is None:
            self._forget_pause()
            self._void_useless()
        return []

    def _on_end(self, item: EndOfTurn) -> list[Output]:
        if self._end_sample is not None:
            return []
        self._end_sample = item.sample
        self._end = self._intake.position(item.sample)
        if self._silence is not None and self._silence.position > self._end:
            self._forget_pause()
        self._void_useless()
        return self._conclude()

    def _forget_pause(self) -> None:
        self._silence = None
        self._settled = None

    def _void_useless(self) -> None:
        """Void the running step if the state that it was planned for is gone."""
        if self._running is None:
            return
        match self._running.kind:
            case "partial":
                useless = self._silence is not None or self._end_sample is not None
            case "settle":
                useless = self._running.silence is not self._silence
            case _:
                useless = self._end_sample is not None and self._running.end > self._end
        if useless:
            self._running.void.set()

    # ---- steps --------------------------------------------------------------------------------------

    def next_step(self) -> Step | None:
        self._running = self._plan() if self._open else None
        return self._running

    def _plan(self) -> Listen | None:
        target = self._target()
        waited_for = self._end_sample is not None or self._silence is not None
        if target - self._intake.start > (SEGMENT_SAMPLES_MAX if waited_for else CUT_SAMPLES):
            last = self._intake.start + CUT_SAMPLES
            return self._listen("cut", 0 if waited_for else 1, self._intake.quietest(last - CUT_SEARCH_SAMPLES, last))
        if self._end_sample is not None:
            return self._listen("final", 0, target)
        if self._silence is not None:
            return self._listen("settle", 0, target) if self._settled is None else None
        if self._partials and target >= max(self._partial_from, self._intake.start + FIRST_PARTIAL_SAMPLES):
            return self._listen("partial", 2, target)
        return None

    def _target(self) -> int:
        """The position up to which there is something to hear."""
        if self._silence is not None:
            return max(self._silence.known, self._intake.start)
        return self._intake.end if self._end_sample is None else self._end

    def _listen(self, kind: str, urgency: int, end: int) -> Listen:
        pcm = self._intake.take(end)
        return Listen(kind, urgency, end, pcm, self._recogniser, self._silence, threading.Event())

    def finish_step(self, result: object) -> Sequence[Output]:
        """Fold in what a step heard. Raises `StageFailure("utterance_too_long")`."""
        assert isinstance(result, Listened)
        assert result.step is self._running
        self._running = None
        step = result.step
        if step.kind == "partial":
            interval_samples = max(self._interval_samples_min, self._budget.interval_samples(result.cost_ns))
            self._partial_from = step.end + interval_samples
        outputs = [] if step.void.is_set() else self._fold(step, result.heard)
        return [*outputs, *self._conclude()]

    def _fold(self, step: Listen, heard: Heard) -> list[Output]:
        text = f"{self._committed} {heard.text}".strip()
        match step.kind:
            case "partial":
                return [] if heard.looped else [self._transcript(text, step.end)]
            case "cut":
                self._commit(text, step.end)
                published = [self._transcript(text, step.end)] if self._end_sample is None else []
                return [*published, *self._credit()]
            case "settle":
                outputs = self._settle(text, step.end)
                self._commit_long_pause()
                return [*outputs, *self._credit()]
            case _:
                return self._finish(text)

    # ---- text ---------------------------------------------------------------------------------------

    def _conclude(self) -> list[Output]:
        """Say what can be said without listening. While a step runs, that waits for its result."""
        if self._running is not None or not self._open:
            return []
        outputs: list[Output] = []
        nothing_left = self._target() - self._intake.start < HEARABLE_SAMPLES_MIN
        if self._silence is not None and self._settled is None and nothing_left:
            outputs += self._settle(self._committed, self._target())
        if self._end_sample is not None and self._settled is not None:
            outputs += self._finish(self._settled)
        elif self._end_sample is not None and nothing_left:
            outputs += self._finish(self._committed)
        return outputs

    def _settle(self, text: str, through: int) -> list[Output]:
        self._settled = text
        return [self._transcript(text, through, settled=True)] if self._end_sample is None else []

    def _commit_long_pause(self) -> None:
        """Drop audio that the settled text of the current pause accounts for, once there is much of it."""
        if self._silence is None or self._settled is None or self._intake.stored <= COMMIT_SAMPLES:
            return
        middle = (self._silence.position + self._silence.known) // 2
        self._commit(self._settled, max(self._intake.start, middle, self._intake.end - ONSET_SAMPLES))

    def _commit(self, text: str, until: int) -> None:
        if len(text) > TRANSCRIPT_CHARS_MAX:
            raise StageFailure("utterance_too_long", f"{len(text)} characters in one utterance")
        self._committed = text
        self._intake.drop(until)

    def _transcript(self, text: str, through: int, *, settled: bool = False) -> Output:
        return Publish(Transcript(text, self._intake.sample(through), settled=settled))

    def _finish(self, text: str) -> list[Output]:
        assert self._end_sample is not None
        final = Publish(Transcript(text, self._end_sample, settled=True, final=True))
        self.close()
        return [final, *self._credit()]

    # ---- resources ----------------------------------------------------------------------------------

    def _credit(self) -> list[Output]:
        """What is owed to the producer, less what is held above the high mark."""
        withheld = min(self._owed, max(0, self._intake.stored - STORED_SAMPLES_HIGH))
        returned, self._owed = self._owed - withheld, withheld
        return [Consumed(returned)] if returned else []

    def held(self) -> dict[str, int]:
        return {"samples": self._intake.stored}

    def close(self) -> None:
        """Give back the audio and the share of core time. Harmless once finished."""
        if self._open:
            self._open = False
            self._intake.drop(self._intake.end)
            if self._partials:
                self._budget.leave()
