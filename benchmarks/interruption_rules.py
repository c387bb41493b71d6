"""What speech over a reply amounts to, rule by rule: who interrupts, who only listens, and how long each is waited for.

Theory of operation
    Nothing is played and no time passes: what the callers of `benchmarks.turn_taking` say over a reply goes through the
    VAD, the detector and the encoder's stream as in a call, but in virtual time, in which each pass of the recogniser
    takes `STEP_MS`. So every rule judges the same sounds, without the chance of a busy machine.

Rules
* Before each event its caller asks something in silence, as callers do: the detector learns how loud they are.
* The reply is audible until it is interrupted, and of words that no caller says. There is no echo.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.turn_taking import corpus
from benchmarks.turn_taking.labels import Kind
from benchmarks.turn_taking.voices import RATE, Voices
from media.interruption import InterruptionSettings
from media.pcm import FloatSamples, float_to_pcm16, pcm16_to_float
from media.resample import StreamResampler
from media.speech_gate import VAD_SAMPLE_RATE, WINDOW_MS, WINDOW_SAMPLES
from media.turn_detector import NS_PER_MS, TurnDetector
from media.turn_events import (
    SILENT,
    HeardWindow,
    Held,
    Resumed,
    Saying,
    TurnDropped,
    TurnEnded,
    TurnEvent,
    TurnPaused,
    TurnResumed,
    TurnStarted,
    Yielded,
)
from media.turn_settings import TurnDetectorSettings
from media.vad import SileroVad, VadState
from media.voice_level import level_db
from stages.contracts import AudioIn, EncoderOptions, Item, Pause, SpeechResumed, Transcript
from stages.engines.local.utterance import Heard, Listened, PartialBudget, PartialSettings, Recogniser, Utterance
from stages.engines.local.whisper import Whisper, never
from stages.stream import Output, Publish
from stages.weights import locate

Say = Callable[[str], None]

VOICE_CACHE = Path("build/voices")
SEEDS = 6  # of `EVENTS` each
EVENTS = 64
STEP_MS = 100  # of the recogniser, and what lies between it and the detector
PADDING_SAMPLES = 300 * VAD_SAMPLE_RATE // 1_000  # `prefix_padding_ms`
LEAD_MS, TAIL_MS = 1_024, 2_000
QUESTION = "Can you tell me something about the moon?"
REPLY = Saying(is_audible=True, words="nobody says these")

OURS = "ours"
RULES = {
    OURS: InterruptionSettings(),
    "one word of content after 320 ms": InterruptionSettings(yield_ms_sure=320),
    "voice after 768 ms": InterruptionSettings(yield_ms=768),
}


@dataclass(slots=True)
class Outcome:
    """Of one event: when the reply was interrupted, and how long it stood still in all, in virtual time."""

    yielded_ms: float | None = None
    paused_ms: float = 0.0


class OnceForAll:
    """Whisper, which hears the same sound once for all rules (`Recogniser`)."""

    def __init__(self) -> None:
        self._whisper = Whisper(locate("whisper-tiny.en"))
        self._known: dict[tuple[bytes, bool], Heard] = {}

    def transcribe(self, pcm: FloatSamples, *, thorough: bool = True, cancelled: Callable[[], bool] = never) -> Heard:
        key = (pcm.tobytes(), thorough)
        if key not in self._known:
            self._known[key] = self._whisper.transcribe(pcm, thorough=thorough, cancelled=cancelled)
        return self._known[key]

    def forget(self) -> None:
        self._known.clear()


@dataclass(frozen=True, slots=True)
class Sound:
    """What one caller's microphone takes, at 16 kHz, in whole windows, each with its `probabilities` of speech. The
    reply begins with window `reply_from`, the event `LEAD_MS` later."""

    samples: FloatSamples
    probabilities: Sequence[float]
    reply_from: int

    @property
    def event_ms(self) -> float:
        return self.reply_from * WINDOW_MS + LEAD_MS


@dataclass(slots=True)
class Encoder:
    """The encoder's streams of one call, one after the other; a pass takes `STEP_MS`."""

    recogniser: Recogniser
    utterance: Utterance | None = None
    result: object = None
    due_ms: float = 0.0
    budget: PartialBudget = field(default_factory=PartialBudget)

    def open(self) -> None:
        self.utterance = Utterance(self.recogniser, EncoderOptions(partials=True), PartialSettings(), self.budget)

    def close(self) -> None:
        if self.utterance is not None:
            self.utterance.close()
        self.utterance, self.result = None, None

    def feed(self, item: Item) -> list[Transcript]:
        assert self.utterance is not None, "somebody speaks"
        return _transcripts(self.utterance.feed(item))

    def work(self, now_ms: float) -> list[Transcript]:
        """What has been understood by now; begins the next pass."""
        heard: list[Transcript] = []
        if self.utterance is None or (self.result is not None and now_ms < self.due_ms):
            return heard
        if self.result is not None:
            heard = _transcripts(self.utterance.finish_step(self.result))
            self.result = None
        step = self.utterance.next_step()
        if step is not None:
            listened = step.run(_Uncancelled())
            assert isinstance(listened, Listened), "the encoder only listens"
            self.result = dataclasses.replace(listened, cost_ns=STEP_MS * NS_PER_MS)
            self.due_ms = now_ms + STEP_MS
        return heard


def _transcripts(outputs: Sequence[Output]) -> list[Transcript]:
    events = [output.event for output in outputs if isinstance(output, Publish)]
    return [event for event in events if isinstance(event, Transcript)]


class _Uncancelled:
    """The `StepContext` of a step that nobody cancels."""

    def cancelled(self) -> bool:
        return False

    def wait_cancelled(self, ns_max: int) -> bool:  # noqa: ARG002 - nobody ever does
        return False

    def stalled(self) -> bool:
        return False

    def progress(self, outputs: Sequence[Output]) -> None:
        raise AssertionError(f"the encoder says {outputs} when its step is over")


class Line:
    """One caller's way in, from the VAD's judgements to the detector's."""

    def __init__(self, sound: Sound, rule: InterruptionSettings, recogniser: Recogniser) -> None:
        self._sound = sound
        self._detector = TurnDetector(TurnDetectorSettings(interruption=rule))
        self._encoder = Encoder(recogniser)
        self._end = self._fed = 0
        self._held_ms: float | None = None
        self.outcome = Outcome()

    def hear(self) -> Outcome:
        """All of it, until it has interrupted us."""
        for place, probability in enumerate(self._sound.probabilities):
            self._end += WINDOW_SAMPLES
            self._understand(self._encoder.work(self._now_ms))
            self._feed_sound()
            level = level_db(self._sound.samples[self._end - WINDOW_SAMPLES : self._end])
            saying = REPLY if place >= self._sound.reply_from else SILENT
            self._act(self._detector.window(HeardWindow(probability, self._end, level), saying, self._now_ns))
            if self.outcome.yielded_ms is not None:
                break
        self._encoder.close()
        return self.outcome

    @property
    def _now_ms(self) -> float:
        return self._end * 1_000 / VAD_SAMPLE_RATE

    @property
    def _now_ns(self) -> int:
        return round(self._now_ms * NS_PER_MS)

    def _understand(self, transcripts: Sequence[Transcript]) -> None:
        for heard in transcripts:
            self._act(self._detector.transcript(heard.text, heard.settled, self._now_ns))

    def _feed_sound(self) -> None:
        if self._encoder.utterance is not None:
            pcm = float_to_pcm16(self._sound.samples[self._fed : self._end])
            self._understand(self._encoder.feed(AudioIn(self._fed, pcm)))
            self._fed = self._end

    def _act(self, events: Sequence[TurnEvent]) -> None:
        for event in events:
            match event:
                case TurnStarted(onset, _):
                    self._open(onset)
                case Held(onset):
                    self._held_ms = self._now_ms
                    self._open(onset)
                case Resumed():
                    self._stand_still_no_more()
                case Yielded():
                    self._stand_still_no_more()
                    self.outcome.yielded_ms = self._now_ms - self._sound.event_ms
                case TurnDropped() | TurnEnded():
                    self._encoder.close()
                case TurnPaused(sample):
                    self._understand(self._encoder.feed(Pause(sample)))
                case TurnResumed():
                    self._understand(self._encoder.feed(SpeechResumed()))

    def _open(self, onset: int) -> None:
        if self._encoder.utterance is None:
            self._encoder.open()
            self._fed = max(0, onset - PADDING_SAMPLES)
            self._feed_sound()

    def _stand_still_no_more(self) -> None:
        if self._held_ms is not None:
            self.outcome.paused_ms += self._now_ms - self._held_ms
            self._held_ms = None


async def interruption_rules(say: Say) -> bool:
    """All rules over the tuning and the test corpus; minutes."""
    voices, vad, recogniser = Voices(VOICE_CACHE), SileroVad(locate("silero-vad")), OnceForAll()
    for title, first in (("tuning", 0), ("test", corpus.TEST_SEED_MIN)):
        plans = [one for seed in range(first, first + SEEDS) for one in corpus.plan(seed, EVENTS)]
        over = [one for one in plans if one.moment_ms is not None and one.texts]
        say(f"{len(over)} events of {title} seeds {first} to {first + SEEDS - 1}")
        outcomes: dict[str, list[Outcome]] = {name: [] for name in RULES}
        for one in over:
            sound = _taken(one, voices, vad)
            for name, rule in RULES.items():
                outcomes[name].append(Line(sound, rule, recogniser).hear())
            recogniser.forget()
        for name, judged in outcomes.items():
            _tell(say, name, over, judged)
    return True


def _taken(one: corpus.Plan, voices: Voices, vad: SileroVad) -> Sound:
    """The event `one` behind its caller's question."""
    question = dataclasses.replace(one, kind=Kind.QUESTION, texts=(QUESTION,), gaps_ms=())
    before, event = (_with_silence(_at_16_khz(plan, voices)) for plan in (question, one))
    samples, state = np.concatenate((before, event)), VadState()
    windows = samples.reshape(-1, WINDOW_SAMPLES)
    probabilities = [vad.probabilities([(state, window)])[0] for window in windows]
    return Sound(samples, probabilities, len(before) // WINDOW_SAMPLES)


def _at_16_khz(one: corpus.Plan, voices: Voices) -> FloatSamples:
    resampler = StreamResampler(RATE, VAD_SAMPLE_RATE)
    sound = pcm16_to_float(corpus.build(one, voices.speak).clip.pcm)
    return np.concatenate((resampler.process(sound), resampler.flush()))


def _with_silence(sound: FloatSamples) -> FloatSamples:
    """Silence around it, to whole windows."""
    lead, tail = (ms * VAD_SAMPLE_RATE // 1_000 for ms in (LEAD_MS, TAIL_MS))
    tail += -(lead + len(sound) + tail) % WINDOW_SAMPLES
    return np.concatenate((np.zeros(lead, dtype=np.float32), sound, np.zeros(tail, dtype=np.float32)))


def _tell(say: Say, name: str, plans: Sequence[corpus.Plan], outcomes: Sequence[Outcome]) -> None:
    say(f"  {name}")
    for kind in (Kind.INTERRUPTION, Kind.BACKCHANNEL, Kind.TIC, Kind.SIDE_TALK):
        chosen = [(one, outcome) for one, outcome in zip(plans, outcomes, strict=True) if one.kind is kind]
        yielded = [outcome.yielded_ms for _, outcome in chosen if outcome.yielded_ms is not None]
        paused = [outcome.paused_ms for _, outcome in chosen if outcome.yielded_ms is None]
        wrong = kind is Kind.INTERRUPTION
        odd = Counter(one.label for one, outcome in chosen if (outcome.yielded_ms is None) is wrong)
        say(
            f"    {kind} ({len(chosen)}): interrupted {len(yielded) / len(chosen):.3f}, after {_spread(yielded)} ms; "
            f"else held for {_spread(paused)} ms; not as it should: {dict(odd) or 'none'}"
        )


def _spread(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.0f}" for value in np.percentile(values, [50, 95])) if values else "-"
