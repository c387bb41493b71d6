"""How long a silence ends the caller's turn, from what was said so far and from how it sounds.

Theory of operation
    The words are put into one of a few classes, each with the probability that the turn ends there: `_RULES` are asked
    in order, the first that applies decides. Where a model has listened to the end of the sound, its probability and
    that of the words are joined as independent witnesses: their odds are multiplied. `semantic_vad` turns the result
    into a silence: a finished sentence waits less than usual, one that hangs in the air more, a number that is being
    dictated most. `server_vad` waits for what the client asked for, whatever was said.

Rules
* The words are English only. Text that is not seems unknown, and alone it waits as long as usual.
* What ends a turn sooner than usual must be known of its present pause; words of before can only delay the end.
* Unfinished words stay unfinished, however finished they sound. Only in dictation, where no word tells which group is
  the last, a finished sound makes of them what a sentence is that hangs.
* A doubt costs time, never words: no class waits longer than the maximum of its eagerness.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from media.backchannels import words
from media.dictation import DIGITS, is_dictated_in_full, is_dictating, spelled

Eagerness = Literal["low", "medium", "high", "auto"]

FINISHED = 0.95
LIKELY = 0.75
UNKNOWN = 0.5
HANGING = 0.2
DICTATING = 0.05

# How sure a sound may be, either way, since its model is often surer than it is right (docs/figures.md). A sentence
# that reads finished and sounds as unfinished as can be waits for about twice as long as usual.
SOUND_MIN = 0.02
SOUND_MAX = 1 - SOUND_MIN


@dataclass(frozen=True, slots=True)
class EndOfTurnSettings:
    """`silence_duration_ms` is for `server_vad`, `eagerness` for `semantic_vad`."""

    kind: Literal["server_vad", "semantic_vad"] = "server_vad"
    silence_duration_ms: int = 500
    eagerness: Eagerness = "auto"


@dataclass(frozen=True, slots=True)
class Waits:
    """Silence in ms that ends a finished turn, one of which nothing is known, and one that surely goes on."""

    finished_ms: int
    usual_ms: int
    max_ms: int


# The maxima and that "auto" is "medium" are documented by OpenAI (platform.openai.com/docs/api-reference/realtime,
# turn_detection.eagerness: 8, 4 and 2 s). The shortest leaves the recogniser time to settle on what was said: 150 to
# 250 ms. Gaps between the turns of people are about 200 ms in the median (Stivers et al. 2009), pauses within a turn
# often longer than 500 ms, hence the usual ones.
_MEDIUM = Waits(finished_ms=400, usual_ms=600, max_ms=4_000)
WAITS: dict[Eagerness, Waits] = {
    "low": Waits(finished_ms=700, usual_ms=1_000, max_ms=8_000),
    "medium": _MEDIUM,
    "auto": _MEDIUM,
    "high": Waits(finished_ms=300, usual_ms=400, max_ms=2_000),
}


def usual_silence_ms(settings: EndOfTurnSettings) -> int:
    """The silence that ends a turn of which nothing is known."""
    return WAITS[settings.eagerness].usual_ms if settings.kind == "semantic_vad" else settings.silence_duration_ms


def silence_ms(text: str, settings: EndOfTurnSettings, *, settled: bool = True, sound: float | None = None) -> int:
    """The silence that ends a turn in which `text` has been said so far; "" where that is not known.

    `settled`: the text covers the turn up to the present pause. `sound`: how probable it is, 0 to 1, that the turn is
    over, by the sound of it up to this pause; None where nobody has listened.
    """
    usual = usual_silence_ms(settings)
    if settings.kind == "server_vad":
        return usual
    waits = WAITS[settings.eagerness]
    by_words = turn_end_probability(text)
    # 1 at a sure end, 0 where nothing is known, -1 where the caller surely goes on.
    leaning = (joined(by_words if settled else min(by_words, UNKNOWN), sound) - UNKNOWN) / UNKNOWN
    if leaning >= 0:
        return usual - round(leaning * (usual - waits.finished_ms))
    # By the square, since most ends that seem doubtful are ends: only near certainty waits for long.
    return usual + round(leaning**2 * (waits.max_ms - usual))


def joined(by_words: float, sound: float | None) -> float:
    """The probability, 0 to 1, that words and sound give together; `sound` None: nobody has listened."""
    if sound is None:
        return by_words
    heard = min(max(sound, SOUND_MIN), SOUND_MAX)
    odds = by_words / (1 - by_words) * heard / (1 - heard)
    both = odds / (1 + odds)
    return min(both, max(by_words, HANGING)) if by_words < UNKNOWN else both


# ---- classes ---------------------------------------------------------------------------------------

# After these a sentence goes on: articles, determiners, conjunctions, prepositions that seldom close one.
_OPEN_WORDS = frozenset(
    words(
        """
        a about after also although an and any as at because before between but by during each even every
        except for from her his however if in including into its like maybe my nor of on or our perhaps plus
        since some than the their then these so this those though through till to toward towards unless until
        upon very via well whereas whether while with without your
        """
    )
)
# After these too, unless they close a short answer or a question: "I am", "yes, it is", "who are they".
_OPEN_VERBS = frozenset(
    words(
        """
        am are can could did do does had has have he i i'd i'll i'm i've is it's let's may might must need
        shall she should that's there's they they're wants was we we'd we'll we're were will would you'd
        you're
        """
    )
)
# Prepositions and particles that may close a sentence: "turn it on", "come in".
_PARTICLES = frozenset({"about", "before", "by", "in", "like", "on", "so", "through", "after", "well"})
# Prepositions that may close a question: "who is it for". With "to" most go on: "how do I get to".
_QUESTION_ENDS = frozenset({"about", "at", "by", "for", "from", "in", "like", "of", "on", "with"})
# Pairs that open something still to come, though their last word alone would not say so.
_OPENINGS = """
    can you | could you | would you | will you | do you | did you | tell me | let me | give me | i want | i think
    i mean | i guess | you know | how much | is that | said that | so that | think that | thinking that
"""
_OPEN_PAIRS = frozenset(words(pair) for pair in re.split(r"[|\n]", _OPENINGS.strip()))
_FILLERS = frozenset({"er", "erm", "uh", "uhh", "um", "umm"})
_SHORT_ANSWERS = frozenset(
    words(
        """
        yes no yeah yep nope okay ok sure thanks hello hi hey stop goodbye bye please correct right exactly
        absolutely never maybe
        """
    )
)
_ANSWER_SUBJECTS = frozenset({"i", "it", "he", "she", "we", "they", "you", "that", "there", "this"})
_QUESTION_WORDS = frozenset({"who", "what", "where", "which", "whose", "whom", "how", "why", "when"})

# Function words without which an English text of `_ENGLISH_WORDS_MIN` words is rare.
_ENGLISH_WORDS_MIN = 4
_ENGLISH = (
    _OPEN_WORDS | _OPEN_VERBS | _SHORT_ANSWERS | _QUESTION_WORDS | DIGITS | {"it", "you", "me", "them", "us", "not"}
)


@dataclass(frozen=True, slots=True)
class _Said:
    text: str
    words: tuple[str, ...]

    @property
    def last(self) -> str:
        return self.words[-1]

    @property
    def is_question(self) -> bool:
        return self.words[0] in _QUESTION_WORDS


def turn_end_probability(text: str) -> float:
    """How probable it is, 0 to 1, that who has said `text` has said all; `UNKNOWN` (0.5) where there is no telling."""
    said = _Said(text.strip(), words(text))
    if not said.words or not _is_english(said):
        return UNKNOWN
    return next((probability for applies, probability in _RULES if applies(said)), LIKELY)


def _is_english(said: _Said) -> bool:
    is_long = len(said.words) >= _ENGLISH_WORDS_MIN and not spelled(said.words)
    return all(map(str.isascii, said.words)) and not (is_long and _ENGLISH.isdisjoint(said.words))


def _is_dictated_in_full(said: _Said) -> bool:
    return is_dictated_in_full(said.words)


def _is_dictating(said: _Said) -> bool:
    return is_dictating(said.text, said.words)


def _hesitates(said: _Said) -> bool:
    trails_off = said.text.endswith(("...", "…", "-", "—", ","))
    return trails_off or said.last in _FILLERS


def _is_pair_open(said: _Said) -> bool:
    return said.words[-2:] in _OPEN_PAIRS and not said.text.endswith("?")


def _is_asked(said: _Said) -> bool:
    """A question that may close with a preposition or a verb: "who is it for", "what time is it"."""
    is_open = said.last in _OPEN_WORDS - _QUESTION_ENDS or said.last in {"i", "is"}
    return said.text.endswith("?") or (said.is_question and len(said.words) >= 4 and not is_open)


def _is_short_answer(said: _Said) -> bool:
    """ "Yes", "no, I don't", "yes it is"."""
    if len(said.words) < 3:
        return len(said.words) == 1 and said.last in _SHORT_ANSWERS
    is_elliptic = said.words[-2] in _ANSWER_SUBJECTS and said.last in _OPEN_VERBS
    return is_elliptic and said.words[0] in _SHORT_ANSWERS


def _may_close(said: _Said) -> bool:
    return said.last in _PARTICLES and len(said.words) >= 3 and said.text.endswith((".", "!"))


def _is_open(said: _Said) -> bool:
    return said.last in _OPEN_WORDS or said.last in _OPEN_VERBS


def _is_sentence(said: _Said) -> bool:
    return len(said.words) >= 3 and said.text.endswith((".", "!"))


_RULES: tuple[tuple[Callable[[_Said], bool], float], ...] = (
    (_is_dictated_in_full, LIKELY),
    (_is_dictating, DICTATING),
    (_hesitates, HANGING),
    (_is_asked, FINISHED),
    (_is_short_answer, FINISHED),
    (_is_pair_open, HANGING),
    (_may_close, UNKNOWN),
    (_is_open, HANGING),
    (_is_sentence, FINISHED),
)
