"""What one response says: its text as it grows, and where each word stands on the output's sample clock."""

from __future__ import annotations

from dataclasses import dataclass

from media.chunk import rescale
from sessions.filler import without_filler
from sessions.settings import OUTPUT_RATE
from stages.contracts import WordTimes

WORDS_MAX = 4_096  # about half an hour of speech; a longer reply is a fault upstream


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """`start` and `end` in samples from the response's start, at its rate, rounded down."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Unsure:
    """What was being said, as `response`, when its gateway died: its `words`, and the `rest` of its text, of which it
    is not known where it stands. What of it was heard beyond a certain sample is not known."""

    response: str
    words: tuple[SpokenWord, ...]
    rest: str = ""

    def beyond(self, sample: int) -> str:
        """The words that may have been heard where the sound up to `sample` was."""
        words = [word.text for word in self.words if word.end > sample]
        return " ".join([*words, self.rest] if self.rest else words)


class Reply:
    """Text and words of one response, whose sound has `sample_rate`."""

    def __init__(self, sample_rate: int = OUTPUT_RATE) -> None:
        self.sample_rate = sample_rate
        self.filler = ""  # its words that bridged a wait, at its beginning
        self.is_limited = False  # its text ends where it had to, and not where it would have
        self._parts: list[str] = []
        self._words: list[SpokenWord] = []
        self._aligned = False
        self._taken = 0

    @classmethod
    def of(cls, unsure: Unsure, sample_rate: int) -> Reply:
        """What is known of a reply that broke off."""
        reply = cls(sample_rate)
        reply._words = list(unsure.words)
        reply.add_text(unsure.beyond(-1))
        return reply

    @property
    def raw_text(self) -> str:
        """The deltas, joined as they came."""
        return "".join(self._parts)

    @property
    def text(self) -> str:
        return self.raw_text.strip()

    @property
    def words(self) -> tuple[SpokenWord, ...]:
        """Those of which it is known where they stand."""
        return tuple(self._words)

    @property
    def is_aligned(self) -> bool:
        return self._aligned

    @property
    def untimed(self) -> str:
        """The text of which it is not known yet where it stands."""
        return "" if self._aligned else " ".join(self.raw_text.split()[len(self._words) :])

    @property
    def answer(self) -> str:
        """Its text without a filler."""
        return without_filler(self.text, self.filler)

    def add_text(self, delta: str) -> None:
        self._parts.append(delta)

    def add_filler(self, delta: str) -> None:
        """Before all other text."""
        self.filler = " ".join(delta.split())
        self._parts.append(delta)

    def add_words(self, times: WordTimes) -> None:
        """Words of the next clause, or the aligned ones of all, which nothing replaces any more.

        Times beyond the bound are dropped, and then count as never said.
        """
        if self._aligned:
            return
        if times.basis == "aligned":
            self._aligned = True
            self._words.clear()
        for word in times.words[: WORDS_MAX - len(self._words)]:
            start, end = (rescale(at, times.sample_rate, self.sample_rate) for at in (word.start, word.end))
            self._words.append(SpokenWord(word.text, start, end))

    def take_words(self) -> tuple[SpokenWord, ...]:
        """The words that were added since the last call; no aligned ones, which are no news."""
        if self._aligned:
            return ()
        words = tuple(self._words[self._taken :])
        self._taken = len(self._words)
        return words

    def text_until(self, sample: int) -> str:
        """The words that were whole by `sample`."""
        return " ".join(word.text for word in self._words if word.end <= sample)

    def cut_at(self, sample: int) -> tuple[str, str]:
        """The words that were whole by `sample`, and the one that it falls into."""
        word = next((word.text for word in self._words if word.start < sample < word.end), "")
        return self.text_until(sample), word

    def words_between(self, first: int, last: int) -> str:
        """The words that are said in part between these samples."""
        return " ".join(word.text for word in self._words if word.end > first and word.start < last)

    def rest_of(self, said: str) -> str:
        """What the deltas lack of `said`; empty where they are ahead of it, as they mostly are."""
        told = " ".join(self.raw_text.split())
        rest = said.removeprefix(told)
        if rest == said and told:
            return ""
        return rest.lstrip() if self.raw_text[-1:].isspace() else rest
