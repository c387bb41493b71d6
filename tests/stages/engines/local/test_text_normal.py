from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.engines.local.text_normal import DISPLAY_CHARS_MAX, MARKS, WORD_CHARS_MAX, spoken_words


def said(text: str) -> list[str]:
    return [f"{word.spoken}{word.mark}" for word in spoken_words(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # What the phonemiser does well passes unchanged.
        ("It costs $45.50, or 12% off.", ["It", "costs", "$45.50,", "or", "12%", "off."]),
        ("the 3rd of May 2024", ["the", "3rd", "of", "May", "2024"]),
        ("1,234,567 at -5 or 3.14", ["1,234,567", "at", "-5", "or", "3.14"]),
        ("I’ve can't state-of-the-art and/or", ["I've", "can't", "state-of-the-art", "and/or"]),
        # Decoration has no sound.
        ("**Bold** and `code` ~~gone~~", ["Bold", "and", "code", "gone"]),
        ("# Heading", ["", "Heading"]),
        ("- item", ["", "item"]),
        ("> quoted", ["", "quoted"]),
        ("'quoted' (said) [here] «la»", ["quoted", "said", "here", "la"]),
        ("a_b #tag", ["a b", "tag"]),
        ("Hello 😀 world 👍🏽", ["Hello", "", "world", ""]),
        # Marks: the strongest of several, none from a silent word before.
        ('He said: "yes!"', ["He", "said:", "yes!"]),
        ("really?! ok… then...", ["really?", "ok.", "then."]),
        ("Well — fine -- and so—on", ["Well,", "", "fine,", "", "and", "so, on"]),
        ("... and ...so", ["", "and", "so"]),
        # Web and mail.
        ("see https://www.example.com/foo?x=1 now", ["see", "example dot com slash foo", "now"]),
        ("www.a-b.co.uk", ["a dash b dot co dot uk"]),
        ("a.b+c_d@example.com!", ["a dot b plus c underscore d at example dot com!"]),
        ("[our site](https://x.io/a) is", ["our", "site", "is"]),
        ("example.org/a-very-long-path-that-goes-on", ["example dot org"]),
        # Times.
        ("at 10:30 pm, or 10:05 a.m.", ["at", "10 30", "PM,", "or", "10 oh 5", "ay em."]),
        ("7:00 or 7:00 PM or 7:15pm", ["7 o'clock", "or", "7", "PM", "or", "7 15 PM"]),
        ("at 10:30:15", ["at", "10 30 and 15 seconds"]),
        ("7 p.m., I am here", ["7", "PM,", "I", "am", "here"]),
        ("99:99 and 2:1", ["99 to 99", "and", "2 to 1"]),
        # Ranges.
        ("Open 9-5 Mon-Fri.", ["Open", "9 to 5", "Monday to Friday."]),
        ("10am-5pm", ["10 ay em to 5 PM"]),
        ("10:30-11:00", ["10 30 to 11"]),
        ("$10–$20 or 10%-20%", ["$10 to $20", "or", "10% to 20%"]),
        ("30-day", ["30-day"]),
        # Dates.
        ("2024-05-01 and 2024-05-12", ["May 1st 2024", "and", "May 12th 2024"]),
        ("2024-13-01", ["2 0 2 4, 1 3, 0 1"]),
        ("in Sept. we", ["in", "September", "we"]),
        # Numbers to dial or to look up.
        ("Call 555-0123", ["Call", "5 5 5, 0 1 2 3"]),
        ("+1-415-555-1234", ["plus 1, 4 1 5, 5 5 5, 1 2 3 4"]),
        ("415 555 1234 now", ["4 1 5", "5 5 5", "1 2 3 4", "now"]),
        ("(415) 555-1234", ["4 1 5", "5 5 5, 1 2 3 4"]),
        ("no. 12345678 or 007", ["number", "1 2 3 4 5 6 7 8", "or", "0 0 7"]),
        ("192.168.1.1", ["192.168.1.1"]),
        # Money, measures, signs.
        ("$5 million or $5M or £2bn", ["5", "million dollars", "or", "5 million dollars", "or", "2 billion pounds"]),
        ("$5 each", ["$5", "each"]),
        ("5 kg of 1 kg", ["5", "kilograms", "of", "1", "kilogram"]),
        ("20°C 5ft 3.5mm 90km/h", ["20 degrees Celsius", "5 feet", "3.5 millimeters", "90 kilometers per hour"]),
        ("$1.50/kg 50¢ 10/x", ["$1.50 per kilogram", "50 cents", "10/x"]),
        ("5 in the morning on 5G", ["5", "in", "the", "morning", "on", "5G"]),
        ("1/2 cup and ¾ cup", ["one half", "cup", "and", "three quarters", "cup"]),
        ("#1 or ~5", ["number 1", "or", "about 5"]),
        ("2+2=4, AT&T & you", ["2 plus 2 equals 4,", "AT and T", "and", "you"]),
        ("x < y, @ home", ["x", "less than", "y,", "at", "home"]),
        ("& that", ["", "that"]),
        # Shortened words: their stop is no pause unless the text ends there.
        ("Dr. Smith, e.g. at 12 Main St.", ["Dr", "Smith,", "for example", "at", "12", "Main", "Street."]),
        ("St. Paul's on Main St. is", ["Saint", "Paul's", "on", "Main", "Street", "is"]),
        ("U.S. law vs. the US.", ["U.S", "law", "versus", "the", "U.S.."]),
        ("Prof. Lee, Jr., I sat", ["Professor", "Lee,", "Junior,", "I", "sat"]),
        ("no problem, no. Sun", ["no", "problem,", "no.", "Sun"]),
        ("", []),
    ],
)
def test_what_is_said(text: str, expected: list[str]) -> None:
    assert said(text) == expected


def test_display_words_are_the_text_as_it_stands() -> None:
    text = " It's **10:30**  pm — at\nexample.com! "
    assert [word.display for word in spoken_words(text)] == text.split()


def test_nothing_is_unbounded() -> None:
    (word,) = spoken_words("x" * 1_000)
    assert word.spoken == "x" * WORD_CHARS_MAX
    (number,) = spoken_words("9" * 1_000)
    assert number.spoken.split() == ["9"] * DISPLAY_CHARS_MAX
    (amount,) = spoken_words("$99,999,999,999,999,999,999")
    assert amount.spoken == "$" + " ".join("9" * 20)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.sampled_from("aB7 .,:;!?-–—'\"()[]*_/@&$%°½😀é\u200d=+#~"), max_size=40))
def test_one_spoken_word_per_display_word(text: str) -> None:
    words = spoken_words(text)
    assert [word.display for word in words] == text.split()
    for word in words:
        assert word.mark in ("", *MARKS)
        assert word.spoken or not word.mark
        assert word.spoken == " ".join(word.spoken.split())
