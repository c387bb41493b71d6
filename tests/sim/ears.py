"""The scripted encoder, made fallible: it guesses in pauses, hears nothing in coughs, and says each thing once.

Every stream hears words of its own (`turn 7`), so that a prompt tells which turns it knows of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from stages.contracts import AudioIn, EndOfTurn, Item, Options, Pause, SpeechResumed, Tag, Transcript
from stages.stream import Consumed, Output, Publish, StageFailure, StageStream, Step, StepContext

COUGHS = 0.2
SHORT_GUESSES = 0.3


@dataclass(frozen=True, slots=True)
class _Hear:
    """Makes `transcript` of what came in before `asked`."""

    asked: Pause | EndOfTurn
    transcript: Transcript
    kind: str = "hear"
    urgency: int = 0
    units: int = 0

    def run(self, context: StepContext) -> object:
        return self


@dataclass(slots=True)
class _Utterance:
    text: str
    guess: str
    finished: bool = False
    first_sample: int = -1
    next_sample: int = 0
    asked: deque[Pause | EndOfTurn] = field(default_factory=deque)

    def feed(self, item: Item) -> Sequence[Output]:
        match item:
            case AudioIn(start, pcm):
                if self.first_sample < 0:
                    self.first_sample = self.next_sample = start
                assert start == self.next_sample, "audio is contiguous"
                self.next_sample += len(pcm) // 2
                return (Consumed(len(pcm) // 2),)
            case Pause() | EndOfTurn():
                self.asked.append(item)
            case SpeechResumed():
                self.asked.clear()
            case _:
                raise StageFailure("wrong_item", f"an encoder does not take {type(item).__name__}")
        return ()

    def next_step(self) -> Step | None:
        if self.finished or not self.asked:
            return None
        asked = self.asked[0]
        if isinstance(asked, Pause):
            return _Hear(asked, Transcript(self.guess, asked.sample, settled=True))
        assert self.next_sample >= asked.sample, "the end comes after its audio"
        return _Hear(asked, Transcript(self.text, asked.sample, settled=True, final=True))

    def finish_step(self, result: object) -> Sequence[Output]:
        assert isinstance(result, _Hear)
        if not self.asked or self.asked[0] is not result.asked:
            return ()  # the caller went on meanwhile: a guess amid speech is void
        self.asked.popleft()
        self.finished = result.transcript.final
        return (Publish(result.transcript),)

    def held(self) -> dict[str, int]:
        return {"items": len(self.asked)}

    def close(self) -> None:
        self.asked.clear()


class Ears:
    """The encoder's model; `next_words` gives words that nobody has said before."""

    concurrency = 2
    revision = "ears"

    def __init__(self, random: Random, next_words: Callable[[], str], coughs: Callable[[], bool]) -> None:
        self._random = random
        self._next_words = next_words
        self._coughs = coughs

    def open_session(self, session: str) -> None:
        pass

    def close_session(self, session: str) -> None:
        pass

    def open(self, tag: Tag, options: Options) -> StageStream:
        words = self._next_words()
        guess = f"{words} or" if self._random.random() < SHORT_GUESSES else words
        if self._coughs() and self._random.random() < COUGHS:
            words = ""
        return _Utterance(words, guess)

    def close(self) -> None:
        pass
