"""From a growing text to clauses: where speech may be cut while the text is still being made.

Theory of operation
    A reply comes in small pieces. `ClauseSplitter` hands over a clause as soon as its end is certain, which is when
    white space follows a stop or comma, or when the clause has grown to its limit at a word's end. The first clause
    has a small limit, so that speech starts early. `SentenceLimit` lets through a given number of sentences.
    `Reply` joins both with the text's bookkeeping: pieces in, what to publish and hand on out.

Rules
* The clauses, joined as they are, equal the text without the white space around it. White space between two
  clauses leads the later one; of a run of it, what exceeds `SPACES_MAX` is dropped.
* Each character is decided on by what came before it and the white space that follows it, so the same text gives
  the same clauses however it is chunked.
* A stop without white space after it ends nothing: "3.5", "10:30", "www.example.com". Nor does one that belongs to
  an abbreviation ("Mr.", "e.g.", "J.") or to a number in a list ("1. First").
* Nothing is cut inside a word, unless that word alone exceeds `word_chars_max`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stages.contracts import Clause, TextDelta
from stages.stream import Emit, Output, Publish

Boundary = Literal["none", "comma", "stop"]

_STOPS = ".!?…"
_COMMAS = ",;:—–"
_CLOSERS = "\"'”’)]}*"
_OPENERS = "\"'“‘([{*"
_ABBREVIATION = re.compile(
    r"(?:mrs?|ms|dr|prof|st|mt|rev|gen|capt|sgt|lt|col|hon|sen|rep|gov|[js]r|vs|etc|approx|dept|est|inc|ltd|co|corp|"
    r"ave|blvd|rd|jan|feb|apr|aug|sept?|oct|nov|dec)\.",
    re.IGNORECASE,
)
_INITIALS = re.compile(r"(?:[A-HJ-Z]|(?:[A-Za-z]\.)+[A-Za-z])\.")  # "J.", "e.g.", "U.S."; a lone "I." ends a sentence

SPACES_MAX = 16
_SENTENCE_TAIL_CHARS = 400  # of a sentence, only its end matters


@dataclass(frozen=True, slots=True)
class ClauseLimits:
    """When a clause without a stop is cut. About 2.5 words are spoken in a second: six give the second clause
    two seconds to be made in; fourteen, or 120 characters, keep the Talker's work on one clause under 150 ms."""

    first_words_max: int = 6
    words_max: int = 14
    chars_max: int = 120
    comma_words_min: int = 3  # in later clauses: "red, green, blue" is one breath
    word_chars_max: int = 140  # a longer "word" is noise; with white space before it, it still fits one hand-over

    def __post_init__(self) -> None:
        if not 1 <= self.first_words_max <= self.words_max or self.comma_words_min < 1:
            raise ValueError("a clause needs 1 <= first_words_max <= words_max and comma_words_min >= 1")
        if not 2 <= self.chars_max <= self.word_chars_max:
            raise ValueError("a clause needs 2 <= chars_max <= word_chars_max")


def boundary_after(fragment: str) -> Boundary:
    """What `fragment`, which is followed by white space, ends with."""
    core = fragment.rstrip(_CLOSERS)
    if not core or not any(char.isalpha() for char in core):
        return "none"
    if core[-1] in _COMMAS:
        return "comma"
    if core[-1] not in _STOPS:
        return "none"
    word = core.split()[-1].lstrip(_OPENERS)
    if _ABBREVIATION.fullmatch(word) or _INITIALS.fullmatch(word):
        return "none"
    return "stop"


class ClauseSplitter:
    """Text in, clauses out. `finish` is called once, at the end of the text."""

    def __init__(self, limits: ClauseLimits | None = None) -> None:
        self._limits = limits or ClauseLimits()
        self._pending = ""
        self._cuts = 0

    def feed(self, text: str) -> list[str]:
        """The clauses that `text` completes."""
        clauses = (self._push(char) for char in text)
        return [clause for clause in clauses if clause]

    def finish(self) -> str:
        """What remains, without white space after it; perhaps nothing."""
        rest, self._pending = self._pending.rstrip(), ""
        return rest

    def _push(self, char: str) -> str:
        if char.isspace():
            return self._push_space(char)
        self._pending += char
        if len(self._pending) >= self._limits.chars_max:
            return self._cut_at_length()
        return ""

    def _push_space(self, space: str) -> str:
        body = self._pending.rstrip()
        if not body and not self._cuts:
            return ""  # white space before the text
        if self._ends(body, space):
            return self._cut(len(body), space)
        if len(self._pending) - len(body) < SPACES_MAX:
            self._pending += space
        return ""

    def _ends(self, body: str, space: str) -> bool:
        words = len(body.split())
        if not words:
            return False
        if space == "\n":
            return True
        if len(body) < len(self._pending):
            return False  # decided at the first white space
        limits = self._limits
        boundary = boundary_after(body)
        if boundary == "comma" and (not self._cuts or words >= limits.comma_words_min):
            return True
        return boundary == "stop" or words >= (limits.words_max if self._cuts else limits.first_words_max)

    def _cut_at_length(self) -> str:
        head, *rest = self._pending.rsplit(maxsplit=1)
        if rest:
            return self._cut(len(head))
        if len(self._pending.strip()) >= self._limits.word_chars_max:
            return self._cut(len(self._pending))
        return ""

    def _cut(self, end: int, following: str = "") -> str:
        clause, self._pending = self._pending[:end], self._pending[end:] + following
        self._cuts += 1
        return clause


class SentenceLimit:
    """Lets `sentences_max` sentences through. A sentence ends at a stop, or a line's end, with white space after it."""

    def __init__(self, sentences_max: int) -> None:
        if sentences_max < 1:
            raise ValueError("at least one sentence must be allowed")
        self._left = sentences_max
        self._sentence = ""

    @property
    def reached(self) -> bool:
        return self._left == 0

    def admit(self, text: str) -> str:
        """The part of `text` that lies within the limit."""
        for at, char in enumerate(text):
            if self.reached:
                return text[:at]
            self._push(char)
        return text

    def _push(self, char: str) -> None:
        if char.isspace() and self._is_sentence(char):
            self._left -= 1
            self._sentence = ""
        else:
            self._sentence = (self._sentence + char)[-_SENTENCE_TAIL_CHARS:]

    def _is_sentence(self, space: str) -> bool:
        line_ends = space == "\n" and any(char.isalpha() for char in self._sentence)
        return line_ends or boundary_after(self._sentence) == "stop"


class Reply:
    """A reply's text as it grows: `feed` and `finish` give the deltas to publish and the clauses to hand on.

    The text is what has been published: without white space around it, and no more than `sentences_max` sentences.
    """

    def __init__(self, limits: ClauseLimits, sentences_max: int) -> None:
        self._sentences = SentenceLimit(sentences_max)
        self._splitter = ClauseSplitter(limits)
        self._space = ""
        self._between = ""  # clauses, put together, are the text
        self._index = 0
        self._is_finished = False
        self.text = ""

    @property
    def ended(self) -> bool:
        """No more text is wanted."""
        return self._sentences.reached

    def feed(self, piece: str) -> list[Output]:
        """Take the next piece of the reply."""
        grown = self._space + self._sentences.admit(piece)
        delta = (grown if self.text else grown.lstrip()).rstrip()
        self._space = grown[len(grown.rstrip()) :] if self.text or delta else ""
        if not delta:
            return []
        self.text += delta
        return [Publish(TextDelta(delta)), *(self._emit(text) for text in self._splitter.feed(delta))]

    def interject(self, words: str) -> list[Output]:
        """Have `words` said before the reply; they are no part of its text."""
        assert not self.text, "what has begun is not interrupted"
        said = self._emit(words)
        self._between = " "
        return [Publish(TextDelta(f"{words} ", filler=True)), said]

    def finish(self) -> Sequence[Output]:
        """The last clause, which may be empty; nothing where it was finished before, as words are before a call."""
        if self._is_finished:
            return []
        self._is_finished = True
        return [self._emit(self._splitter.finish(), final=True)]

    def _emit(self, text: str, *, final: bool = False) -> Emit:
        clause = Clause(self._index, f"{self._between}{text}" if text else text, final)
        self._index, self._between = self._index + 1, ""
        return Emit(clause, units=max(1, len(clause.text)))
