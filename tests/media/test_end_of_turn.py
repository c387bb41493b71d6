"""Where a turn seems to end, over labelled utterances, and what silence follows from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.end_of_turn import (
    DICTATING,
    FINISHED,
    HANGING,
    LIKELY,
    UNKNOWN,
    WAITS,
    Eagerness,
    EndOfTurnSettings,
    silence_ms,
    turn_end_probability,
    usual_silence_ms,
)

COMPLETE = """
What is the capital of France?
what is the capital of france
Tell me about the weather in spring.
How many days are there in a week?
Can you tell me a short story about a dog?
I would like to know more about the moon.
Yes.
No.
Yeah
Okay.
Yes, it is.
No, I don't think so.
No, it's not.
Yes, I am.
yes please
Thank you.
That's all.
I live in London.
I'm looking for a hotel near the station.
Please turn it on.
Turn the light off.
Come in.
Who is it for?
What are you looking for?
Where do you come from?
what time is it
how old are you
what is it made of
Book a table for two.
book a table for two people
I have two dogs.
I am twenty five.
It leaves at seven thirty.
My phone number is 555 123 4567.
My number is five five five one two three four.
My zip code is 90210.
My PIN is 1 2 3 4.
Tuesday at nine works for me.
Cancel my order.
Stop it.
I'd rather go by train.
I do not understand.
It does not work.
Mm-hmm.
Goodbye.
"""
INCOMPLETE = """
I want to go to the
I want to go to the...
I would like to
I'd like a
And then I
My name is
I was thinking that
Because
I can't come because
Can you
Could you
Could you tell me
Do you
What is the
What is
How do I get to the
How do I get to
I live in
Well —
I need
I want
Um
Well, um
So I was like, uh
I went to the shop and
I went to the shop, and…
I don't know if
We could go on Monday or
The problem is that
It's about my
I'm looking for
Let me
If I take the
When I get to the station, I
The thing is, well
Hello, I'm calling about
Yes, but
I think
My address is
My favourite one is the one with
Which of the
So
I would have
It was really very
You know
Between nine and
I ordered it on Monday, but it
Not until
"""
DICTATION = """
My number is five five five
My phone number is 555
My phone number is 555-12
five five five
It's zero seven seven
The code is A
The code is A B seven
My account number is 4 4 1
My card number is 4929 1234
It's spelled S M
That is S-M-I
J O
My zip code is nine oh
Reference B, seven, two
double oh seven
The pin is one two
"""
UTTERANCES = [
    (text, label)
    for label, texts in (("complete", COMPLETE), ("incomplete", INCOMPLETE), ("dictation", DICTATION))
    for text in texts.strip().splitlines()
]
ACCURACY_MIN = 0.9

SEMANTIC = EndOfTurnSettings("semantic_vad")
EAGERNESS: list[Eagerness] = ["low", "medium", "high", "auto"]


def label(probability: float) -> str:
    if probability >= UNKNOWN:
        return "complete"
    return "incomplete" if probability > DICTATING else "dictation"


def test_the_labelled_utterances_are_told_apart() -> None:
    assert len(UTTERANCES) >= 80
    wrong = [(text, wanted) for text, wanted in UTTERANCES if label(turn_end_probability(text)) != wanted]
    accuracy = 1 - len(wrong) / len(UTTERANCES)
    assert accuracy >= ACCURACY_MIN, f"{accuracy:.2f} of {len(UTTERANCES)} are right; not {wrong}"


@pytest.mark.parametrize("wanted", ["complete", "incomplete", "dictation"])
def test_no_kind_of_utterance_pays_for_the_others(wanted: str) -> None:
    texts = [text for text, kind in UTTERANCES if kind == wanted]
    right = sum(label(turn_end_probability(text)) == wanted for text in texts)
    assert right / len(texts) >= ACCURACY_MIN, f"{right} of {len(texts)}"


@pytest.mark.parametrize(
    ("text", "probability"),
    [
        ("", UNKNOWN),
        ("  ", UNKNOWN),
        ("[Music]", UNKNOWN),
        ("Please turn it on.", UNKNOWN),
        ("turn it on", HANGING),
        ("I live in London.", FINISHED),
        ("a small cat", LIKELY),
        ("Paris", LIKELY),
        ("My zip code is 90210.", LIKELY),
        ("My zip code is 9021", DICTATING),
        ("The code is 90210", DICTATING),
        ("I don’t know if", HANGING),
        ("could you?", FINISHED),
        ("I went,", HANGING),
    ],
)
def test_each_class_has_its_probability(text: str, probability: float) -> None:
    assert turn_end_probability(text) == probability


@pytest.mark.parametrize(
    "text", ["Ich möchte nach Köln und", "quiero una mesa para dos personas", "je voudrais réserver une table pour"]
)
def test_other_languages_wait_as_long_as_usual(text: str) -> None:
    assert turn_end_probability(text) == UNKNOWN
    assert silence_ms(text, SEMANTIC) == usual_silence_ms(SEMANTIC)


@pytest.mark.parametrize("text", ["", "I live in London.", "my number is five five five", "and"])
def test_server_vad_waits_for_what_the_client_asked_for(text: str) -> None:
    assert silence_ms(text, EndOfTurnSettings("server_vad", 700, "low")) == 700


@pytest.mark.parametrize(
    ("eagerness", "silences"),
    [
        ("low", [730, 850, 1_000, 3_520, 6_670]),
        ("medium", [420, 500, 600, 1_824, 3_354]),
        ("auto", [420, 500, 600, 1_824, 3_354]),
        ("high", [310, 350, 400, 976, 1_696]),
    ],
)
def test_semantic_vad_waits_by_what_was_said(eagerness: Eagerness, silences: list[int]) -> None:
    settings = EndOfTurnSettings("semantic_vad", eagerness=eagerness)
    texts = ("I live in London.", "a small cat", "", "I want to go to the", "it's five five five")
    assert [silence_ms(text, settings) for text in texts] == silences


@given(st.text(max_size=80) | st.sampled_from([text for text, _ in UTTERANCES]), st.sampled_from(EAGERNESS))
def test_no_text_waits_longer_than_its_eagerness_allows(text: str, eagerness: Eagerness) -> None:
    silence = silence_ms(text, EndOfTurnSettings("semantic_vad", eagerness=eagerness))
    assert WAITS[eagerness].finished_ms <= silence <= WAITS[eagerness].max_ms
    assert 0.0 <= turn_end_probability(text) <= 1.0


# ---- the sound ---------------------------------------------------------------------------------------

NO_WORDS, READS_FINISHED, HANGS, DICTATES = "", "I live in London.", "I live in", "five five five"


@pytest.mark.parametrize(
    ("text", "sound", "waits_ms"),
    [
        (NO_WORDS, 0.5, 600),
        (NO_WORDS, 0.9, 440),
        (NO_WORDS, 0.1, 2_776),
        (READS_FINISHED, 0.5, 420),
        (READS_FINISHED, 0.99, 400),
        # One says so and the other the contrary: nothing is known.
        (READS_FINISHED, 0.05, 600),
        # As sure as a sound may be.
        (READS_FINISHED, 0.02, 1_262),
        (READS_FINISHED, 0.0, 1_262),
        # What hangs is not finished by its sound, only more unfinished.
        (HANGS, 0.99, 1_824),
        (HANGS, 0.5, 1_824),
        (HANGS, 0.2, 3_247),
        # A number may be complete, as far as words can tell.
        (DICTATES, 0.99, 1_824),
        (DICTATES, 0.5, 3_354),
        (DICTATES, 0.8, 2_046),
    ],
)
def test_sound_and_words_are_joined(text: str, sound: float, waits_ms: int) -> None:
    assert silence_ms(text, SEMANTIC, sound=sound) == waits_ms


def test_words_from_before_the_pause_are_no_evidence_that_it_ends_the_turn() -> None:
    assert silence_ms(READS_FINISHED, SEMANTIC, settled=False) == silence_ms(NO_WORDS, SEMANTIC) == 600
    assert silence_ms(READS_FINISHED, SEMANTIC, settled=False, sound=0.9) == silence_ms(NO_WORDS, SEMANTIC, sound=0.9)
    assert silence_ms(HANGS, SEMANTIC, settled=False) == silence_ms(HANGS, SEMANTIC)


@given(st.sampled_from([text for text, _ in UTTERANCES]), st.floats(0, 1), st.booleans())
def test_the_silence_that_was_asked_for_heeds_no_sound(text: str, sound: float, settled: bool) -> None:
    assert silence_ms(text, EndOfTurnSettings("server_vad", 700), settled=settled, sound=sound) == 700


@given(
    st.sampled_from([NO_WORDS, *(text for text, _ in UTTERANCES)]),
    st.sampled_from(EAGERNESS),
    st.booleans(),
    st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
)
def test_a_more_finished_sound_never_waits_longer(
    text: str, eagerness: Eagerness, settled: bool, sounds: list[float]
) -> None:
    settings = EndOfTurnSettings("semantic_vad", eagerness=eagerness)
    less, more = (silence_ms(text, settings, settled=settled, sound=sound) for sound in sounds)
    assert WAITS[eagerness].finished_ms <= more <= less <= WAITS[eagerness].max_ms
