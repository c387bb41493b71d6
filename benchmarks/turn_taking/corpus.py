"""Everything that callers do in one evaluation, made from a seed.

Theory of operation
    `plan` deals out the kinds by their shares, then words, voices, levels and moments by chance. `build` lets somebody
    speak the words, sets the levels, joins the pieces with pauses of exact length and writes down the labels.

Rules
* Equal seeds give equal events. Seeds below `TEST_SEED_MIN` are for tuning, those from there on for testing: neither
  voices nor seeds are shared between the two, words are.
* Speech is at -23 dBFS while it is voiced, backchannels are 4 dB softer, people in the background 14 dB and dull.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np

from benchmarks.turn_taking import noises
from benchmarks.turn_taking.labels import NOT_FOR_IT, TURNS, Clip, Event, Kind, Span
from benchmarks.turn_taking.voices import RATE, Voice
from loadtest.loudness import audible_span
from media.pcm import FloatSamples, float_to_pcm16, pcm16_to_float

SEED_MAX = 1_999
TEST_SEED_MIN = 1_000

# Of 64 events, with which every rate of the table but those of questions and noise has the ten events that it needs.
SHARES = {
    Kind.INTERRUPTION: 13,
    Kind.BACKCHANNEL: 10,
    Kind.TIC: 10,
    Kind.SIDE_TALK: 10,
    Kind.PAUSED: 6,
    Kind.DIGITS: 5,
    Kind.QUESTION: 4,
    Kind.BURST: 2,
    Kind.NOISE: 2,
    Kind.SILENCE: 2,
}

TUNING_VOICES = ("en-us+m1", "en-us+f1", "en-gb+m4", "en-gb-x-rp+f3", "en-us-nyc+m6")
TEST_VOICES = ("en-us+m3", "en-us+f2", "en-gb+m7", "en-gb-scotland+f4", "en-029+m2")
SPEEDS = (145, 165, 185)
PITCHES = (35, 50, 65)

SPEECH_DBFS = -23.0
BACKCHANNEL_DBFS = -27.0
BACKGROUND_DBFS = -37.0
BURST_DBFS = -20.0  # of the loudest 10 ms, as the whole is mostly decay
NOISE_DBFS = (-60.0, -50.0, -42.0, -36.0)
NOISE_SLOPES = (0.0, -3.0, -6.0)
NOISE_MS = 4_000
SILENCE_MS = 4_000
BACKGROUND_HZ_MAX = 2_500  # behind a door, or at the other end of a room
PAUSES_MS = (300, 450, 700, 1_000)
DIGIT_GAPS_MS = (250, 400, 650)
# A reply lasts about eight seconds, and the longest event must end before it.
MOMENTS_MS = (700, 2_200)

INTERRUPTIONS = (
    "stop",
    "wait a second",
    "no, I meant the other one",
    "hold on. That is not what I asked. Tell me about the weather instead.",
    "excuse me, what does that cost?",
    "sorry, can I ask you something else?",
    "no, no, that is wrong. I wanted to know when it opens.",
    "no thank you, what else is there?",
    "hang on a moment, I have a question",
    "okay, but what should I do first?",
    "I do not need that. How long does it take?",
    "actually, could you tell me your name?",
)
# After these the service may well keep quiet.
WITHOUT_ANSWER = frozenset({"stop", "wait a second"})
BACKCHANNELS = ("[[@mh'Vm]]", "uh-huh", "yeah", "okay", "right", "[[h'Vm]]", "I see", "yes", "sure")
TICS = ("um", "uh", "er")
SIDE_TALKS = (
    "did you feed the cat",
    "just a moment, I am on the phone",
    "can you close the window please",
    "no, put it on the other table",
    "what time are we leaving",
    "have you seen my keys anywhere",
)
QUESTIONS = (
    "What is the capital of France?",
    "How many days are there in a week?",
    "Why is the sky blue during the day?",
    "What should I cook for dinner tonight?",
    "How do I make a good cup of tea?",
    "Can you tell me something about the moon?",
)
PAUSED = (
    ("I would like to know", "how long it takes to get to the station"),
    ("my brother and I want to", "go to the mountains in the summer", "but we have no car"),
    ("could you tell me", "what I need for", "a simple apple cake"),
    ("I was wondering if", "you could help me with a letter"),
    ("when I come home in the evening and", "I am tired", "what should I do"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """An event before it has sound. `texts` are spoken with `gaps_ms` between them; where there are none, it is a
    noise, whose chance is `seed`."""

    number: int
    kind: Kind
    texts: tuple[str, ...]
    gaps_ms: tuple[int, ...]
    voice: Voice
    seed: int
    moment_ms: int | None

    @property
    def label(self) -> str:
        return " … ".join(self.texts) or self.kind


Speak = Callable[[str, Voice], bytes]


def part_of(seed: int) -> str:
    """`tuning` or `test`. Raises ValueError outside 0..1999."""
    if not 0 <= seed <= SEED_MAX:
        raise ValueError(f"seed {seed} is not within 0..{SEED_MAX}")
    return "test" if seed >= TEST_SEED_MIN else "tuning"


def plan(seed: int, count: int) -> list[Plan]:
    """`count` events, in the order in which they happen."""
    dice = random.Random(seed)
    voices = TEST_VOICES if part_of(seed) == "test" else TUNING_VOICES
    kinds = _deal(count)
    texts = {kind: _said(kind, kinds.count(kind), dice) for kind in SHARES}
    plans = []
    for number, kind in enumerate(kinds):
        said = texts[kind].pop()
        gaps = DIGIT_GAPS_MS if kind is Kind.DIGITS else PAUSES_MS
        voice = Voice(dice.choice(voices), dice.choice(SPEEDS), dice.choice(PITCHES))
        gaps_ms = tuple(dice.choice(gaps) for _ in said[1:])
        plans.append(Plan(number, kind, said, gaps_ms, voice, dice.randrange(1 << 32), dice.randrange(*MOMENTS_MS)))
    return _in_silence(plans, dice)


def _deal(count: int) -> list[Kind]:
    """The kinds in the numbers that come nearest to their shares, at least one of each that `count` has room for."""
    total = sum(SHARES.values())
    dealt: list[Kind] = []
    for _ in range(count):
        wanted = {kind: share * (len(dealt) + 1) / total - dealt.count(kind) for kind, share in SHARES.items()}
        dealt.append(max(wanted, key=lambda kind: wanted[kind]))
    return dealt


def _said(kind: Kind, count: int, dice: random.Random) -> list[tuple[str, ...]]:
    """What `count` events of a kind say: each text in turn, in an order of chance."""
    coughs = [()] * len(TICS)
    choices: dict[Kind, Sequence[tuple[str, ...]]] = {
        Kind.INTERRUPTION: [(text,) for text in INTERRUPTIONS],
        Kind.BACKCHANNEL: [(text,) for text in BACKCHANNELS],
        Kind.TIC: [*((text,) for text in TICS), *coughs],
        Kind.SIDE_TALK: [(text,) for text in SIDE_TALKS],
        Kind.QUESTION: [(text,) for text in QUESTIONS],
        Kind.PAUSED: PAUSED,
        Kind.DIGITS: [tuple(_digit_groups(dice)) for _ in range(count)],
    }
    order = list(choices.get(kind, [()])) or [()]
    dice.shuffle(order)
    return list(islice(cycle(order), count))


def _digit_groups(dice: random.Random) -> list[str]:
    """A telephone number: three groups of digits."""
    return [" ".join(str(dice.randrange(10)) for _ in range(size)) for size in (3, 3, 4)]


def _in_silence(plans: list[Plan], dice: random.Random) -> list[Plan]:
    """Turns, and two of five tics and side talks, happen while nobody speaks; then all of it is shuffled."""
    placed = []
    seen = dict.fromkeys(SHARES, 0)
    for one in plans:
        seen[one.kind] += 1
        aside = one.kind in (Kind.TIC, Kind.SIDE_TALK) and seen[one.kind] % 5 in (2, 4)
        moment_ms = None if aside or one.kind in TURNS else one.moment_ms
        placed.append(Plan(one.number, one.kind, one.texts, one.gaps_ms, one.voice, one.seed, moment_ms))
    dice.shuffle(placed)
    return placed


# ---- sound ----------------------------------------------------------------------------------------


def build(one: Plan, speak: Speak) -> Event:
    """The event with its sound and labels."""
    clip = _spoken(one, speak) if one.texts else _noise(one)
    wants_answer = one.kind not in NOT_FOR_IT and one.label not in WITHOUT_ANSWER
    return Event(one.number, one.kind, clip, one.moment_ms, wants_answer)


def _spoken(one: Plan, speak: Speak) -> Clip:
    levels = {Kind.BACKCHANNEL: BACKCHANNEL_DBFS, Kind.TIC: BACKCHANNEL_DBFS, Kind.SIDE_TALK: BACKGROUND_DBFS}
    pieces: list[FloatSamples] = []
    voiced: list[Span] = []
    place = 0
    for text, gap_ms in zip(one.texts, (*one.gaps_ms, 0), strict=True):
        piece = _trimmed(speak(text, one.voice))
        piece = _dull(piece) if one.kind is Kind.SIDE_TALK else piece
        gap = np.zeros(gap_ms * RATE // 1000, dtype=np.float32)
        pieces += [_at_level(piece, levels.get(one.kind, SPEECH_DBFS)), gap]
        voiced.append((place, place + len(piece)))
        place += len(piece) + len(gap)
    return Clip(one.label, float_to_pcm16(np.concatenate(pieces)), tuple(voiced))


def _noise(one: Plan) -> Clip:
    dice = np.random.default_rng(one.seed)
    match one.kind:
        case Kind.TIC:
            label, sound = "cough", _at_peak(noises.cough(dice), BURST_DBFS)
        case Kind.BURST:
            make = noises.clicks if dice.random() < 0.5 else noises.door
            label, sound = make.__name__, _at_peak(make(dice), BURST_DBFS)
        case Kind.NOISE:
            level, slope = float(dice.choice(NOISE_DBFS)), float(dice.choice(NOISE_SLOPES))
            label = f"{slope:g} dB/octave at {level:g} dBFS"
            sound = _at_level(noises.steady(dice, NOISE_MS, slope), level)
        case _:
            label, sound = "nothing", np.zeros(SILENCE_MS * RATE // 1000, dtype=np.float32)
    return Clip(label, float_to_pcm16(sound), ((0, len(sound)),))


def _trimmed(pcm: bytes) -> FloatSamples:
    """From the first to the last sample that can be heard."""
    span = audible_span(pcm, RATE)
    assert span is not None, "a voice said nothing"
    return pcm16_to_float(pcm)[slice(*span)]


def _at_level(sound: FloatSamples, dbfs: float) -> FloatSamples:
    """With that root mean square."""
    return sound * np.float32(10 ** (dbfs / 20) / np.sqrt(np.mean(sound**2)))


def _at_peak(sound: FloatSamples, dbfs: float) -> FloatSamples:
    """With that root mean square in its loudest 10 ms."""
    window = RATE // 100
    energies = np.convolve(sound.astype(np.float64) ** 2, np.ones(window) / window, "valid")
    return sound * np.float32(10 ** (dbfs / 20) / np.sqrt(energies.max()))


def _dull(sound: FloatSamples) -> FloatSamples:
    """Without its high frequencies."""
    spectrum = np.fft.rfft(sound)
    hz = np.linspace(0, RATE / 2, len(spectrum))
    dulled: FloatSamples = np.fft.irfft(spectrum / (1 + (hz / BACKGROUND_HZ_MAX) ** 4), len(sound)).astype(np.float32)
    return dulled
