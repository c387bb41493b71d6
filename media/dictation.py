"""Whether words end in something that is being dictated: digits and letters that are said one by one.

Theory of operation
    The *run* is the digits and letters at the end of what was said. It is dictated where it is long, where it is
    spelled, or where what stands right before it announces it ("my code is"). A number that a sentence ends with is
    none of that: a recogniser writes it as one figure ("I was born in 1984."), while of groups that are dictated it
    writes several, or one of which nothing else was said ("It's 415.").

Rules
* In doubt it is dictated: that costs time, where a group that is taken for the end costs the rest of the number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from media.backchannels import words

DIGITS = frozenset({"zero", "oh", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "double"})
# What is about to be dictated, and how long it is, where that is fixed. Telephone numbers are North American.
_ANNOUNCED: dict[str, frozenset[int]] = {
    "phone": frozenset({7, 10, 11}),
    "telephone": frozenset({7, 10, 11}),
    "mobile": frozenset({10, 11}),
    "zip": frozenset({5, 9}),
    "pin": frozenset({4}),
    "card": frozenset({15, 16}),
    "number": frozenset({7, 10, 11, 16}),
    "code": frozenset(),
    "account": frozenset(),
    "reference": frozenset(),
    "digits": frozenset(),
    "spelled": frozenset(),
    "spelt": frozenset(),
    "spell": frozenset(),
}
# Between what is announced and its first digit or letter: "my card number is", "the code starts with".
_BRIDGES = frozenset(words("again are as begins ends er in is it's no so starts the um uh was with"))
# What is mostly a figure of several groups, though two letters or digits of it alone may be all.
_FIGURES = frozenset(
    words(
        """
        address booking confirmation email extension id initials licence license name order passport plate policy
        postcode serial social tracking
        """
    )
)
# Before a figure that is an answer, of which more may come.
_ANSWERS = frozenset(words("and er i is it it's my no okay so sure that that's the then this uh um well yeah yes"))
# "You can reach me at": what comes is a telephone number.
_REACHED = frozenset({("me", "at"), ("me", "on"), ("us", "at"), ("us", "on")})
_RUN_MIN = 3  # shorter runs that nothing announces are numbers: "it takes two", "one two"
_LETTERS_MIN = 2  # two single letters in a row are spelled: "J O"
# One number, as a recogniser writes it: 144, 1,500, 3.50, 7:30, 24/7. A longer one without a comma was dictated.
_NUMBER = r"\d{1,4}|\d{1,3}(?:,\d{3})+|\d{1,4}\.\d{1,2}|\d{1,2}[:/]\d{1,2}"
_FIGURE = re.compile(rf"(?:^|\s)\$?(?:{_NUMBER})%?[.!?]+$")
_ABBREVIATION = re.compile(r"(?:^|\s)[A-Z][. ]{0,2}[A-Z][.!?]+$")  # "T V.", "T.V.", "TV."
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_QUESTIONS = frozenset(words("who what where which whose whom how why when"))
# How a letter is made clear: "B as in boy", "M for mother".
_CLEAR_LETTER_WORDS = 4


def spelled(said: Sequence[str]) -> int:
    """How many digits and letters the run at the end of `said` has."""
    return sum(len(word) if word.isdigit() else 1 for word in _run(said))


def is_dictated_in_full(said: Sequence[str]) -> bool:
    """`said` ends with as many digits as were announced."""
    lengths = [_ANNOUNCED[word] for word in said if word in _ANNOUNCED]
    return bool(lengths) and spelled(said) in lengths[0]


def is_dictating(text: str, said: Sequence[str]) -> bool:
    """More digits or letters may follow `text`, of which `said` are the words."""
    run = _run(said)
    before = said[: len(said) - len(run)]
    if _is_clear_letter(said):
        return True
    if not run:
        return False
    if _is_announced(before, run):
        return not (text.endswith("?") and len(run) == 1)
    letters = [word for word in run[-_LETTERS_MIN:] if len(word) == 1 and word.isalpha()]
    is_long = spelled(run) >= _RUN_MIN or len(letters) == _LETTERS_MIN
    return is_long and not _is_of_sentence(text, before, run)


def _run(said: Sequence[str]) -> Sequence[str]:
    """The digits and letters at the end of `said`."""
    first = len(said)
    while first and (said[first - 1].isdigit() or said[first - 1] in DIGITS or _is_letter(said[first - 1])):
        first -= 1
    return said[first:]


def _is_letter(word: str) -> bool:
    return len(word) == 1 and word.isalpha()


def _is_announced(before: Sequence[str], run: Sequence[str]) -> bool:
    """What stands right `before` the run says what it is."""
    at = len(before)
    while at and before[at - 1] in _BRIDGES and before[at - 1] not in _ANNOUNCED:
        at -= 1
    frame = before[at - 1] if at else ""
    if frame == "number" and at == len(before) and spelled(run) < _RUN_MIN:
        return at > 1 and before[at - 2] in _ANNOUNCED  # "phone number", and not "he is number one"
    return frame in _ANNOUNCED


def _is_of_sentence(text: str, before: Sequence[str], run: Sequence[str]) -> bool:
    """`text` is a question or a sentence that ends with one number or abbreviation, and is not about that."""
    ending = _FIGURE.search(text) or _ABBREVIATION.search(text)
    if ending is None or not before or words(ending.group()) != tuple(run):
        return False
    sentence = words(_SENTENCE_END.split(text[: ending.start()])[-1])
    if not sentence:
        return False  # it stands alone, whatever was said before
    if text.endswith("?") or sentence[0] in _QUESTIONS:
        return True
    is_about_it = not _FIGURES.isdisjoint(sentence) or _ANSWERS.issuperset(sentence)
    return not is_about_it and tuple(sentence[-2:]) not in _REACHED


def _is_clear_letter(said: Sequence[str]) -> bool:
    """It ends with "B as in boy" or "M for mother"."""
    if len(said) >= _CLEAR_LETTER_WORDS and tuple(said[-3:-1]) == ("as", "in"):
        return _is_letter(said[-4])
    is_for = len(said) >= _CLEAR_LETTER_WORDS - 1 and said[-2] == "for" and _is_letter(said[-3])
    return is_for and said[-3] not in ("a", "i") and said[-1].startswith(said[-3])
