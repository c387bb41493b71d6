"""What the measured callers say, spoken by the project's own voice, and how words are compared."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from duplex import config
from duplex.call_command import LocalVoice
from loadtest.realtime_wire import SAMPLE_RATE
from loadtest.turns import Utterance
from media.pcm import float_to_pcm16, pcm16_to_float
from stages.engines.local.text_normal import spoken_words

QUESTIONS = (
    "What is the capital of France?",
    "Please tell me about the weather in spring.",
    "How many days are there in a week?",
    "Can you tell me a short story about a dog?",
    "What should I cook for dinner tonight?",
    "I would like to know more about the moon.",
    "Why is the sky blue during the day?",
    "What is a good name for a small cat?",
    "Tell me something nice about the sea.",
    "How do I make a good cup of tea?",
)

_UNIT_WORDS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen
"""
_UNITS = _UNIT_WORDS.split()
_TENS = {2: "twenty", 3: "thirty", 4: "forty", 5: "fifty", 6: "sixty", 7: "seventy", 8: "eighty", 9: "ninety"}


@lru_cache(maxsize=1)
def _voice() -> LocalVoice:
    return LocalVoice(config.load())


@lru_cache(maxsize=256)
def utterance(text: str) -> Utterance:
    """`text`, spoken at 24 kHz."""
    return Utterance.from_pcm(text, _voice()(text, SAMPLE_RATE))


def with_noise(pcm: bytes, snr_db: float, seed: int) -> bytes:
    """`pcm` with white noise, `snr_db` below the power of its sound."""
    sound = pcm16_to_float(pcm)
    power = float(np.mean(sound[np.abs(sound) > 0.01] ** 2))
    noise = np.random.default_rng(seed).standard_normal(len(sound)) * np.sqrt(power / 10 ** (snr_db / 10))
    return float_to_pcm16((sound + noise).astype(np.float32))


def words(text: str) -> list[str]:
    """What is said for `text`, as lower-case words without punctuation, whole numbers below 1,000 written out."""
    said = " ".join(word.spoken for word in spoken_words(text)).lower()
    return [part for word in re.findall(r"[a-z0-9']+", said) for part in _written_out(word)]


def _written_out(word: str) -> list[str]:
    if not word.isdigit() or int(word) > 999:
        return [word]
    number = int(word)
    if number < 20:
        return [_UNITS[number]]
    if number < 100:
        return [_TENS[number // 10], *([_UNITS[number % 10]] if number % 10 else [])]
    return [_UNITS[number // 100], "hundred", *(_written_out(str(number % 100)) if number % 100 else [])]


def word_errors(said: list[str], heard: list[str]) -> int:
    """Substitutions, insertions and deletions that turn `said` into `heard` (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]
