"""Is what the caller says while we speak an interruption? The evidence of one burst of sound, and what it amounts to.

Theory of operation
    A burst is judged by how long its voice has lasted, how steady the probabilities of speech are (speech is steadily
    near 1; coughs, noise and hums are short or uneven) and by the words that a recogniser has made of it so far.
    Words come late but decide at once; until then the length of the voice has to serve.

Rules
* Words that we are saying ourselves are our echo, as far as they come in our order. What sounds as ours does
  (`media.echo`) is no voice, however long it lasts. Words may tell of a caller under it, but only where some of it did
  not sound as ours: a recogniser makes other words of our own, and among them some that interrupt.
* Nothing here remembers anything beyond the burst: when to ask, and what follows, is `media.turn_detector`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from media.backchannels import Meaning, meaning, words
from media.speech_gate import HYSTERESIS, WINDOW_MS
from media.voice_level import db_of, power_of

# The most recent words that are compared with our own: more than anybody says within the delay of an echo.
ECHO_WORDS_MAX = 64

# As much voice as this over an echo, and what is heard is a voice again, whatever came before.
ECHO_WINDOWS_MAX = 14

YieldReason = Literal["words", "duration"]


class InterruptionSettingsError(ValueError):
    """A setting out of its range: who configured it must act."""


@dataclass(frozen=True, slots=True)
class InterruptionSettings:
    """Validated when built; raises `InterruptionSettingsError`. All but the published values await measurement.

    `yield_ms`: voice that is an interruption whatever it says; longer than almost all backchannels, and between the
    0.5 s that LiveKit (docs.livekit.io, turn handling, `min_duration`) and the 0.8 s that Hume (dev.hume.ai,
    `min_interruption_ms`) ask for. `yield_ms_sure`: the same where the voice is clear and one word of content is known.
    Of half a "right" a recogniser makes another word, so this is no less than such words last.
    `yield_ms_doubtful`: where the words are a listener's, the voice is uneven or we have been fooled just now.
    `yield_ms_far`: the same for a far voice, whatever it says: a caller who has put the telephone down must still get
    through, and what is said in the background mostly ends before.
    `sure_mean`, `sure_spread`: a clear voice, from this mean and up to this standard deviation of the probabilities.
    `doubtful_mean`, `doubtful_spread`: an uneven one, under this mean or over this deviation. Silero gives a
    synthetic voice means of 0.87 to 0.99 and deviations up to 0.20, and a modulated hum a mean of 0.76.
    `echo_share`: of a text's words, as many in our order as make it our own.
    `words_ms_min`: a shorter sound is a click, whatever a recogniser makes of it: the shortest words have twice that.
    `words_over_echo_ms_min`: so much of our echo must have been a voice, or words in it are ours, misheard. One call in
    eight that nobody speaks in has as much; callers as loud as our echo have it within half a second, those 6 dB under
    it within a whole one.
    """

    yield_ms: int = 640
    yield_ms_sure: int = 512
    yield_ms_doubtful: int = 1_200
    yield_ms_far: int = 2_400
    sure_mean: float = 0.9
    sure_spread: float = 0.15
    doubtful_mean: float = 0.8
    doubtful_spread: float = 0.25
    echo_share: float = 0.6
    words_ms_min: int = 64
    words_over_echo_ms_min: int = 128

    def __post_init__(self) -> None:
        if not WINDOW_MS <= self.yield_ms_sure <= self.yield_ms <= self.yield_ms_doubtful <= self.yield_ms_far:
            raise InterruptionSettingsError(
                "surer evidence must not ask for longer voice, nor any for less than a window"
            )
        if not (0.0 <= self.doubtful_mean <= self.sure_mean <= 1.0 and 0.0 <= self.sure_spread <= self.doubtful_spread):
            raise InterruptionSettingsError("a clear voice must not be an uneven one")
        for name in ("words_ms_min", "words_over_echo_ms_min"):
            if not 0 <= getattr(self, name) <= self.yield_ms:
                raise InterruptionSettingsError(
                    f"{name} is {getattr(self, name)}, but must be from 0 to yield_ms, {self.yield_ms}"
                )
        if not 0.0 < self.echo_share <= 1.0:
            raise InterruptionSettingsError(f"echo_share is {self.echo_share}, but must be over 0 and at most 1")


class Burst:
    """Voice without a longer gap: how much of it there is, and how steady."""

    __slots__ = ("_count", "_loud", "_most", "_ours", "_power", "_sum", "_sum_of_squares")

    def __init__(self) -> None:
        self._count = self._loud = self._most = self._ours = 0
        self._sum = self._sum_of_squares = self._power = 0.0

    def add(self, probability: float, threshold: float, db: float) -> None:
        """One window at a level of `db`. Those that are neither loud nor faint are gaps, and count for nothing."""
        if probability < threshold - HYSTERESIS:
            return
        self._count += 1
        if probability >= threshold:
            self._loud += 1
            self._most = max(self._most, self._loud)
            self._ours = max(0, self._ours - 1)
            self._power += power_of(db)
        self._sum += probability
        self._sum_of_squares += probability * probability

    def add_ours(self, *, all_of_it: bool) -> None:
        """One window of our echo, which takes one of voice away: what lies scattered in an echo is no voice.
        `all_of_it`: what was voice up to here was echo too."""
        self._ours = min(self._ours + 1 + self._loud * all_of_it, ECHO_WINDOWS_MAX)
        kept = 0.0 if all_of_it or not self._loud else 1 - 1 / self._loud
        self._most = 0 if all_of_it else self._most
        self._loud, self._count = round(self._loud * kept), round(self._count * kept)
        self._sum, self._sum_of_squares, self._power = (
            total * kept for total in (self._sum, self._sum_of_squares, self._power)
        )

    def join(self, other: Burst) -> None:
        """`other` goes on with this one."""
        self._ours += other._ours
        self._count += other._count
        self._loud += other._loud
        self._most = max(self._most, other._most, self._loud)
        self._power += other._power
        self._sum += other._sum
        self._sum_of_squares += other._sum_of_squares

    @property
    def voiced_ms(self) -> int:
        """Without what is our echo."""
        return self._loud * WINDOW_MS

    @property
    def most_voiced_ms(self) -> int:
        """The most that this was, before an echo took voice away."""
        return self._most * WINDOW_MS

    @property
    def sounded_ms(self) -> int:
        """With it."""
        return (self._loud + self._ours) * WINDOW_MS

    @property
    def is_ours(self) -> bool:
        """Most of it is our echo, of late."""
        return self._ours > self._loud

    @property
    def is_over_echo(self) -> bool:
        """It was our echo, and is a voice by now."""
        return 0 < self._ours <= self._loud

    def forget_echo(self) -> None:
        """What remains is the voice over it."""
        self._ours = 0

    @property
    def level_db(self) -> float:
        """The level of what was loud, as a whole; 0 where nothing was."""
        return db_of(self._power / self._loud) if self._loud else 0.0

    @property
    def mean(self) -> float:
        """Of the probabilities; 0 where there are none."""
        return self._sum / self._count if self._count else 0.0

    @property
    def spread(self) -> float:
        """Their standard deviation; 0 where there are none."""
        variance = self._sum_of_squares / self._count - self.mean**2 if self._count else 0.0
        return math.sqrt(max(0.0, variance))


@dataclass(frozen=True, slots=True)
class Heard:
    """What a transcript says; of an echo, what it says beyond our own words. `fresh`: the latter in any case."""

    meaning: Meaning
    is_echo: bool
    fresh: Meaning = Meaning.NOTHING


NOTHING_HEARD = Heard(Meaning.NOTHING, is_echo=False)


def hear(text: str, our_words: str, echo_share: float) -> Heard:
    """What the transcript `text` of the caller says, while we are saying about `our_words`."""
    said, ours = words(text)[-ECHO_WORDS_MAX:], words(our_words)[-ECHO_WORDS_MAX:]
    means = meaning(said, is_question="?" in text)
    fresh = _not_ours(said, ours)
    if len(said) == 1 and not fresh and means is Meaning.WORD:
        # An echo that has only begun, or an answer in our words: no interruption, but not dismissed either.
        return Heard(Meaning.BACKCHANNEL, is_echo=False)
    beyond = meaning(fresh)
    if len(said) > 1 and len(said) - len(fresh) >= echo_share * len(said):
        return Heard(beyond, is_echo=True, fresh=beyond)
    return Heard(means, is_echo=False, fresh=beyond)


def _not_ours(said: tuple[str, ...], ours: tuple[str, ...]) -> tuple[str, ...]:
    """The words of `said` that do not follow the order of `ours`."""
    blocks = SequenceMatcher(None, ours, said, autojunk=False).get_matching_blocks()
    matched = {index for _, start, size in blocks for index in range(start, start + size)}
    return tuple(word for index, word in enumerate(said) if index not in matched)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of a burst. `is_guarded`: noise or echo has held us in vain just now. `is_far`: the voice is
    much softer than the caller's usual one (`media.voice_level`)."""

    burst: Burst
    heard: Heard
    is_guarded: bool
    is_far: bool
    settings: InterruptionSettings

    @property
    def is_echo(self) -> bool:
        """By its words or by its sound."""
        return self.heard.is_echo or self.burst.is_ours

    @property
    def is_uneven(self) -> bool:
        settings = self.settings
        return self.burst.mean < settings.doubtful_mean or self.burst.spread > settings.doubtful_spread

    @property
    def is_doubtful(self) -> bool:
        """Voice alone does not make this an interruption before it has lasted long."""
        return self.heard.meaning is Meaning.BACKCHANNEL or self.is_guarded or self.is_uneven

    @property
    def yield_ms(self) -> int:
        """How long the voice must last to be an interruption."""
        settings = self.settings
        if self.is_far:
            return settings.yield_ms_far
        if self.is_doubtful:
            return settings.yield_ms_doubtful
        is_clear = self.burst.mean >= settings.sure_mean and self.burst.spread <= settings.sure_spread
        return settings.yield_ms_sure if is_clear and self.heard.meaning is Meaning.WORD else settings.yield_ms

    @property
    def says_something(self) -> bool:
        settings, burst = self.settings, self.burst
        needed_ms = settings.words_over_echo_ms_min if burst.is_ours else settings.words_ms_min
        return burst.most_voiced_ms >= needed_ms and self.heard.meaning is not Meaning.NOTHING

    @property
    def interrupts_in_words(self) -> bool:
        if not self.says_something:
            return False
        if self.is_echo:  # a recogniser mishears our words, so they must be clear
            return self.heard.fresh is Meaning.INTERRUPTION
        return self.heard.meaning in (Meaning.INTERRUPTION, Meaning.WORDS)

    @property
    def reason_to_yield(self) -> YieldReason | None:
        """Why this is an interruption, once it is one."""
        if self.interrupts_in_words and not self.is_far:
            return "words"
        lasts = not self.is_echo and self.burst.voiced_ms >= self.yield_ms
        return "duration" if lasts else None

    def leans_to_yield(self, elapsed_ms: int) -> bool:
        """With no time left to wait: the caller has the benefit of the doubt if half of `elapsed_ms` was voice."""
        return not (self.is_echo or self.is_far or self.is_doubtful) and 2 * self.burst.voiced_ms >= elapsed_ms
