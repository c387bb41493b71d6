"""The synthetic encoder: hears as many words as the sound has room for, when a recogniser would have heard them.

Theory of operation
    While the caller speaks it guesses, each guess no sooner than `partial_interval_ms` of sound after the one before.
    At a pause it settles; if the turn ends there, what was settled is the final transcript, and takes no more time.

Rules
* The final is published exactly once, and nothing after it. `SpeechResumed` makes what was settled a guess.
* A step that has begun runs to its end: a guess delays what follows it, as the longest pass of a recogniser does.
"""

from __future__ import annotations

from collections.abc import Sequence

from media.chunk import BYTES_PER_SAMPLE, ms_to_samples
from stages.contracts import (
    AudioIn,
    EncoderOptions,
    EndOfTurn,
    Item,
    Options,
    Pause,
    SpeechResumed,
    Tag,
    Transcript,
)
from stages.engines.synthetic.profile import EncoderProfile
from stages.engines.synthetic.work import Cost, TimedModel, TimedStream, Want, Work, wrong_item, wrong_options
from stages.stream import Consumed, Output, Publish, StageStream

RATE = 16_000
# Above what a caller says in six minutes; so many still fit a link's frame.
HEARD_WORDS_MAX = 1_000


class Encoder(TimedModel):
    """`StageModel`."""

    def __init__(self, profile: EncoderProfile) -> None:
        super().__init__(profile)
        self._profile = profile
        costs = {
            "partial": Cost(profile.partial_ms),
            "settle": Cost(profile.settle_ms),
            "final": Cost(profile.final_ms),
        }
        self._work = Work("encoder", profile, costs)

    def open(self, tag: Tag, options: Options) -> StageStream:  # noqa: ARG002 - utterances do not differ by tag
        """Raises `StageFailure("wrong_options")` for another stage's options."""
        if not isinstance(options, EncoderOptions):
            raise wrong_options("encoder", options)
        return _Utterance(self._work, self._profile, partials=options.partials)


class _Utterance(TimedStream):
    """Positions are samples of the session's input."""

    def __init__(self, work: Work, profile: EncoderProfile, *, partials: bool) -> None:
        super().__init__(work)
        self._word_samples = ms_to_samples(profile.heard_word_ms, RATE)
        self._interval_samples = ms_to_samples(profile.partial_interval_ms, RATE)
        self._partials = partials
        self._first: int | None = None
        self._received = 0
        self._guessed = 0
        self._paused: int | None = None
        self._settled: str | None = None
        self._ended: int | None = None

    def feed(self, item: Item) -> Sequence[Output]:
        match item:
            case AudioIn(start, pcm):
                return self._hear(start, len(pcm) // BYTES_PER_SAMPLE)
            case Pause(sample):
                self._paused = sample
            case SpeechResumed():
                self._paused = self._settled = None
            case EndOfTurn(sample):
                self._ended = sample
                return () if self._settled is None else self._final(self._settled, sample)
            case _:
                raise wrong_item("encoder", item)
        return ()

    def _hear(self, start: int, samples: int) -> Sequence[Output]:
        if self._first is None:
            self._first = self._guessed = start
        self._received = start + samples
        return (Consumed(samples),)

    def want(self) -> Want | None:
        if self._ended is not None:
            return Want("final", about=self._ended, urgency=0)
        if self._paused is not None:
            return Want("settle", about=self._paused, urgency=0) if self._settled is None else None
        if self._partials and self._received - self._guessed >= self._interval_samples:
            return Want("partial", urgency=2)
        return None

    def came(self, want: Want) -> Sequence[Output]:
        if want.kind == "final":
            return self._final(self._text(want.about), want.about)
        if want.kind == "settle" and want.about == self._paused:
            self._settled = text = self._text(want.about)
            if self._ended is not None:
                return self._final(text, self._ended)
            return (Publish(Transcript(text, want.about, settled=True)),)
        self._guessed = self._received
        return (Publish(Transcript(self._text(self._received), self._received)),)

    def _final(self, text: str, through: int) -> Sequence[Output]:
        self.finished = True
        return (Publish(Transcript(text, through, settled=True, final=True)),)

    def _text(self, through: int) -> str:
        """The words of the sound up to `through`: at least one where there was any sound."""
        if self._first is None:
            return ""
        words = (min(through, self._received) - self._first) // self._word_samples
        return " ".join(f"heard{number}" for number in range(min(max(1, words), HEARD_WORDS_MAX)))

    def held(self) -> dict[str, int]:
        return {"samples": self._received - self._guessed}
