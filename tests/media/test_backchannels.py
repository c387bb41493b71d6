"""What is said over us, in the spellings of a recogniser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.backchannels import Meaning, meaning, words

CASES = {
    Meaning.NOTHING: [
        *("", " ", "...", "♪ ♪", "(coughing)", "[Music]", "*laughs*", "[BLANK_AUDIO]", "(coughs) Thank you."),
        *("Thank you.", "you", "Thanks for watching!", "Bye.", "Bye-bye.", "I'm sorry.", "So", "The"),
    ],
    Meaning.BACKCHANNEL: [
        *("Mm-hmm.", "Mm-hm", "Mhm", "mmhmm", "Mm", "Mmm.", "Hmm.", "Hm", "Hum", "Uh-huh.", "uh huh", "Uhhuh", "Huh?"),
        *("Ah.", "Aha!", "Ha ha ha", "Hahaha.", "hehe", "Oh!", "Ohh", "Um", "Uhm, yeah", "Er"),
        *("Yeah.", "yeah, yeah", "YEP", "Yes.", "Okay.", "ok", "Okay, I see.", "Right.", "Right, right.", "All right."),
        *("I see.", "Got it.", "Of course", "That’s right.", "Makes sense.", "Really?", "Oh wow, great!", "Go on."),
        *("No problem.", "No way!", "Okay, thank you.", "Sure, sounds good."),
    ],
    Meaning.WORD: ["Tuesday", "Okay, Paris.", "ham", "mum", "m", "h", "Ja"],
    Meaning.WORDS: ["I want", "the weather is", "yeah I need a different one", "I see a problem", "noch nicht"],
    Meaning.INTERRUPTION: [
        *("Stop!", "stop stop", "Wait.", "Wait a second", "No.", "No, no, no.", "nope", "Okay, stop.", "Yeah, but"),
        *(
            "Hold on.",
            "Actually",
            "Sorry, what?",
            "What?",
            "why",
            "Hello?",
            "Paris?",
            "is it Tuesday?",
            "that's not it",
        ),
    ],
}


@pytest.mark.parametrize(("text", "expected"), [(text, kind) for kind, texts in CASES.items() for text in texts])
def test_what_is_said_has_its_meaning(text: str, expected: Meaning) -> None:
    assert meaning(words(text), is_question="?" in text) is expected


@pytest.mark.parametrize("text", ["And", "and I'm...", "a", "am", "he", "she", "her", "I'm fine.", "Yeah, it's"])
def test_words_that_only_join_others_say_nothing_yet(text: str) -> None:
    assert meaning(words(text)) is Meaning.BACKCHANNEL
    assert meaning(words(f"{text} late")) is Meaning.WORDS


@pytest.mark.parametrize("text", ["I", "That", "that makes", "Okay, of", "yeah, I"])
def test_what_may_become_a_listeners_phrase_says_nothing_yet(text: str) -> None:
    assert meaning(words(text)) is Meaning.BACKCHANNEL
    assert meaning(words(f"{text} trains leave")) is Meaning.WORDS


def test_the_beginning_of_a_phrase_that_interrupts_is_no_beginning() -> None:
    assert meaning(words("no")) is Meaning.INTERRUPTION


def test_words_are_lower_case_and_bare() -> None:
    assert words("I’m “Fine” — mm-hmm, S-M (coughs) 555-12.") == ("i'm", "fine", "mm", "hmm", "s", "m", "555", "12")
    assert words("...") == ()


@given(st.text(max_size=60))
def test_case_and_closing_punctuation_say_nothing(text: str) -> None:
    plain = words(text)
    assert meaning(plain) is meaning(words(" ".join(plain).upper() + "."))


@given(st.lists(st.sampled_from(CASES[Meaning.BACKCHANNEL]), min_size=1, max_size=6))
def test_any_number_of_backchannels_is_one(texts: list[str]) -> None:
    said = words(" ".join(texts))
    assert meaning(said, is_question=True) in (Meaning.BACKCHANNEL, Meaning.NOTHING)


@given(
    st.lists(st.sampled_from(["yeah", "okay", "mm-hmm", "i see"]), max_size=4), st.sampled_from(["stop", "no", "wait"])
)
def test_an_interruption_is_heard_among_backchannels(before: list[str], word: str) -> None:
    assert meaning(words(" ".join([*before, word]))) is Meaning.INTERRUPTION


def test_a_recogniser_that_repeats_itself_costs_no_time() -> None:
    for word in ("hah" * 2_000 + "x", "m" * 5_000 + "x", "mh" * 3_000 + "u", "uhh" * 2_000 + "m"):
        assert meaning((word,)) is Meaning.WORD
