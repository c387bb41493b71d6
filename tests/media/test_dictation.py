"""What is dictated, and what is a number that a sentence ends with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.backchannels import words
from media.dictation import is_dictated_in_full, is_dictating, spelled
from media.end_of_turn import EndOfTurnSettings, silence_ms

DICTATED = """
my number is five five five
My number is 555.
My number is one
My phone number is 555-12
My phone number, five five
my phone number again, 555.
The number is 5.
it's 0 4 1
It's 415.
Yes, it's 415.
Sure. 415.
415
4 1 5 5 5 5
4155550132.
You can call me at 415.
Reach us on 555.
B as in boy
It's M for mother
S-M-I.
That is S-M-I
J O
My name is J O.
It's spelled S M
The code is A
The code is 7.
The code starts with 9.
My zip code is nine oh
Reference B, seven, two
Reference number 144.
double oh seven
The pin is one two
My PIN is 1 2.
My order is 4471.
My account number is 4 4 1.
the last four digits are 41
Call 415 555.
four one five
"""
SAID = """
What is the square root of 144?
What is the square root of 144.
I was born in 1984.
Call 911!
Set my phone alarm for seven.
Set my phone alarm for 7:30.
He is number one.
Watch T V.
I saw it on TV.
My train leaves at 10:30.
The answer is 144.
It costs $1,500.
It grew by 150%.
Is my code 7?
Can you wake me at 730?
Play channel 102.
It was founded in 1066.
I want two tickets for row 12.
B for effort
I for instance
What is the room for 144 people
"""


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


@pytest.mark.parametrize("text", lines(DICTATED))
def test_what_is_dictated_is_waited_for(text: str) -> None:
    assert is_dictating(text, words(text))
    assert silence_ms(text, EndOfTurnSettings("semantic_vad")) == 3_354


@pytest.mark.parametrize("text", lines(SAID))
def test_a_number_that_a_sentence_ends_with_is_none(text: str) -> None:
    assert not is_dictating(text, words(text))


@pytest.mark.parametrize(
    ("text", "waits_ms"),
    [
        ("What is the square root of 144?", 420),
        ("I was born in 1984.", 420),
        ("Call 911!", 500),
        ("Set my phone alarm for seven.", 420),
        ("He is number one.", 420),
        ("Watch T V.", 420),
    ],
)
def test_a_finished_sentence_is_answered_as_soon_as_any_other(text: str, waits_ms: int) -> None:
    assert silence_ms(text, EndOfTurnSettings("semantic_vad")) == waits_ms


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), ("my number is", 0), ("it's 0 4 1", 3), ("555-12", 5), ("A b seven", 3), ("7 more", 0)]
)
def test_the_run_at_the_end_is_counted(text: str, count: int) -> None:
    assert spelled(words(text)) == count


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("My zip code is 90210.", True),
        ("My zip code is 9021", False),
        ("My PIN is 1 2 3 4", True),
        ("The code is 1234", False),
        ("1234567", False),
    ],
)
def test_what_has_a_length_is_whole_at_that(text: str, whole: bool) -> None:
    assert is_dictated_in_full(words(text)) is whole


@given(st.text(max_size=60) | st.lists(st.sampled_from(words(DICTATED + SAID)), max_size=8).map(" ".join))
def test_any_text_is_taken_and_what_ends_without_a_digit_or_a_letter_is_no_number(text: str) -> None:
    said = words(text)
    dictating = is_dictating(text, said)
    assert not dictating or spelled(said) or said[-2] == "for" or said[-3:-1] == ("as", "in")
