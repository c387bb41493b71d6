"""Words as sound: tones that tell, sample by sample, which word of which response is heard.

Theory of operation
    A word is sixteen symbols (`media.word_code`) of 12.5 ms. A symbol v is two tones at once: one of sixteen from 400
    to 1,600 Hz (v // 16) and one of sixteen from 2,000 to 3,200 Hz (v % 16), 80 Hz apart. Every tone makes whole
    oscillations within a symbol: the tones of a symbol are orthogonal, and each symbol begins and ends at zero, so
    there is no click between symbols, words and silence. These are 638 bit/s, of which 140 tell the word; all of it
    passes a telephone.

    The ear measures the tones of each window of a symbol's length, four times as often as symbols come, and asks the
    code which words these may be. A proposed word is made anew, laid over what was heard where it fits best, and
    subtracted: where that removes the sound, the word was heard. So the borders of pieces are found to the sample, and
    what is a word to the code alone is found out.

Rules
* A word takes `word_samples` samples, 200 ms. The sound of a word depends on its numbers and the rate alone.
* A piece is reported where seven of its word's symbols in a row can be made out, or nine in all: any half of a word is
  enough. What is heard of a word in separate pieces is reported piece by piece.
* What is reported was there. A word out of chance takes pieces of words that are in step with each other; in 1,500 s
  of such pieces, none of them long enough to be made out, there was none.
* Reports do not depend on how the sound was cut into chunks. They come `DELAY_MS_MAX` after a piece's end at the
  latest, in the order of the pieces' beginnings.
* Gains of 0.1 to 1, 20 dB of noise, 8 and 16 kHz, G.711 and Opus at 32 kbit/s change nothing. A cut is seen where it
  is, or a few samples late where the sound behind it begins like the word would have gone on: of 100, half are exact
  and 98 right to within `EDGE_SAMPLES`, twice that where another word follows (tests/media/test_coded_tones.py).

Limits
* Silence of less than 3 ms within a word goes unnoticed, as does a single sample that is lost. A fade counts as heard
  down to 45 % of the word's loudness.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from media.pcm import FloatSamples
from media.resample import StreamResampler
from media.word_code import (
    AGREEING_IN_A_ROW,
    FIELD,
    RESPONSES,
    SYMBOLS,
    Candidate,
    Symbols,
    candidates,
    codeword,
    is_proof,
)

SYMBOL_RATE = 80
WORD_MS = SYMBOLS * 1000 // SYMBOL_RATE
RATES = (8_000, 16_000, 24_000, 48_000)  # those at which a symbol is a whole number of samples

TONES = 16  # in each of both bands
LOW_HZ = 400
HIGH_HZ = 2_000
TONE_LEVEL = 0.25  # of full scale, each of two

# ---- the ear; lengths in samples at its own rate --------------------------------------------------------------

EAR_RATE = 24_000
SYMBOL = EAR_RATE // SYMBOL_RATE
WORD = SYMBOLS * SYMBOL
# The best window is off by an eighth of a symbol at most, which leaves three quarters of its energy in its own tones;
# one that is off by half a symbol may still be read right.
HOP = SYMBOL // 4
HOPS_PER_SYMBOL = SYMBOL // HOP
REACH = SYMBOL // 2
# Words whose beginnings lie within a block are decided together, so a report waits for a block, a word and the margin.
BLOCK = WORD
MARGIN = 2 * REACH
SPAN = MARGIN + BLOCK + WORD + MARGIN
DELAY_MS_MAX = 415

# The part of a window's energy that its two tones must have; white noise gives 0.1.
CLARITY_MIN = 0.4
# Below -66 dBFS nothing is made out: a tenth of TONE_LEVEL is 34 dB above.
AUDIBLE_POWER_MIN = 0.25e-6

# What may remain, in parts of the word's power, where the word was heard. Over a symbol, Opus leaves 0.17 at most,
# 20 dB of noise 0.013; silence leaves 1, another symbol 1 (one tone in common) or 2.
RESIDUE_MAX = 0.3
# A piece must outweigh, and a hole be outweighed by, what half a symbol of undisturbed sound gives.
PIECE_EVIDENCE_MIN = 0.5 * RESIDUE_MAX * SYMBOL
EDGE_SAMPLES = 16  # two thirds of a millisecond


def word_samples(sample_rate: int) -> int:
    """The length of a word at `sample_rate`, one of `RATES`."""
    assert sample_rate in RATES, f"{sample_rate} is not one of {RATES}"
    return WORD_MS * sample_rate // 1000


def response_number(response_id: str) -> int:
    """The number by which the synthetic voice speaks of the response with this id (`resp_…`, as on the wire).

    A checksum folded to 0..63000, the same in every process: of two ids, one pair in 63,001 shares a number.
    """
    return crc32(response_id.encode()) % RESPONSES


def encode(response: int, word: int, sample_rate: int) -> FloatSamples:
    """The sound of a word, float32[word_samples(sample_rate)] within ±0.5."""
    return render(codeword(response, word), sample_rate)


def render(symbols: Symbols, sample_rate: int) -> FloatSamples:
    """The sound of symbols int64[n], each 0..250 or -1 for silence: float32[n * sample_rate / 80]."""
    return _sounds(sample_rate)[symbols].ravel()


@lru_cache(maxsize=len(RATES))
def _sounds(sample_rate: int) -> FloatSamples:
    """The sound of every symbol; in the last row, which is also number -1, silence."""
    assert sample_rate in RATES, f"{sample_rate} is not one of {RATES}"
    clock = np.arange(sample_rate // SYMBOL_RATE) / sample_rate
    low, high = np.divmod(np.arange(FIELD)[:, None], TONES)
    hz = LOW_HZ + SYMBOL_RATE * low, HIGH_HZ + SYMBOL_RATE * high
    tones = sum(np.sin(2 * np.pi * one * clock) for one in hz) * TONE_LEVEL
    return np.concatenate((tones, np.zeros((1, len(clock))))).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Heard:
    """A piece of a word. `start_sample`: where it began in the stream, `samples_heard`: how long it was, `skipped`: how
    much of the word is missing before it; all at the stream's rate. `whole`: nothing is missing."""

    response: int
    word: int
    start_sample: int
    samples_heard: int
    skipped: int
    whole: bool


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece at the ear's rate; `start` counts from the stream's first sample."""

    start: int
    length: int
    skipped: int
    response: int
    word: int


class Decoder:
    """Hears coded words in one stream of float32 samples at `sample_rate`, one of `media.resample.SAMPLE_RATES`."""

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._resampler = StreamResampler(sample_rate, EAR_RATE)
        self._begin()

    def _begin(self) -> None:
        # Before the stream there is silence, in which a word may begin of which only the end is heard.
        self._block_start = -WORD
        self._samples: FloatSamples = np.zeros(WORD + MARGIN, dtype=np.float32)
        self._waiting: list[_Piece] = []

    def feed(self, samples: FloatSamples) -> list[Heard]:
        """Take float32[n], n may be 0; the pieces of words that are certain by now."""
        self._samples = np.concatenate((self._samples, self._resampler.process(samples)))
        return [self._report(piece) for piece in self._settled()]

    def finish(self) -> list[Heard]:
        """The stream is over: the rest of the pieces. The next sample is the first of a new stream."""
        rest = self._resampler.flush()
        silence = np.zeros(BLOCK + SPAN, dtype=np.float32)
        self._samples = np.concatenate((self._samples, rest, silence))
        pieces = [*self._settled(), *self._waiting]
        self._begin()
        return [self._report(piece) for piece in pieces]

    def _report(self, piece: _Piece) -> Heard:
        start, end, skipped = (
            (place * self._rate + EAR_RATE // 2) // EAR_RATE
            for place in (piece.start, piece.start + piece.length, piece.skipped)
        )
        whole = piece.length >= WORD - EDGE_SAMPLES
        return Heard(piece.response, piece.word, start, end - start, skipped, whole)

    def _settled(self) -> list[_Piece]:
        """Go through the blocks that are there. No later word begins before a block's end, so order is certain."""
        settled: list[_Piece] = []
        done = 0
        while len(self._samples) - done >= SPAN:
            self._waiting += _pieces_in(self._samples[done : done + SPAN], self._block_start)
            self._waiting.sort(key=lambda piece: piece.start)
            done += BLOCK
            self._block_start += BLOCK
            while self._waiting and self._waiting[0].start < self._block_start:
                settled.append(self._waiting.pop(0))
        self._samples = self._samples[done:].copy()
        return settled


# ---- one block --------------------------------------------------------------------------------------------------


_LOW_BINS, _HIGH_BINS = (slice(first // SYMBOL_RATE, first // SYMBOL_RATE + TONES) for first in (LOW_HZ, HIGH_HZ))


def _symbols_in(samples: FloatSamples) -> Symbols:
    """The symbol that is heard from each `HOP` on, or -1."""
    windows = sliding_window_view(samples, SYMBOL)[::HOP]
    energies = np.abs(np.fft.rfft(windows)) ** 2
    lows, highs = energies[:, _LOW_BINS], energies[:, _HIGH_BINS]
    power = np.vecdot(windows, windows) / SYMBOL
    # A tone of amplitude a has the energy (a * SYMBOL / 2)^2 here, and the power a^2 / 2.
    tonal = (lows.max(axis=1) + highs.max(axis=1)) * 2 / SYMBOL**2
    clear = (tonal >= CLARITY_MIN * power) & (power >= AUDIBLE_POWER_MIN)
    return np.where(clear, lows.argmax(axis=1) * TONES + highs.argmax(axis=1), -1)


def _pieces_in(samples: FloatSamples, block_start: int) -> list[_Piece]:
    """The pieces of words that begin in the block: `MARGIN` after `samples` begins, at `block_start` of the stream."""
    symbols = _symbols_in(samples)
    starts = np.arange(MARGIN - REACH, MARGIN + BLOCK + REACH, HOP)
    received = symbols[starts[:, None] // HOP + HOPS_PER_SYMBOL * np.arange(SYMBOLS)]
    pieces: dict[_Piece, None] = {}
    heard: list[Candidate] = []
    for candidate in _most_agreeing_first(candidates(received)):
        if any(_alike(candidate, other) for other in heard):
            continue
        start, found = _heard_of(candidate, samples, int(starts[candidate.row]))
        if found:
            heard.append(candidate)
        if MARGIN <= start < MARGIN + BLOCK:
            first = block_start + start - MARGIN
            numbers = candidate.response, candidate.word
            pieces |= dict.fromkeys(_Piece(first + begin, end - begin, begin, *numbers) for begin, end in found)
    return list(pieces)


def _most_agreeing_first(proposed: list[Candidate]) -> list[Candidate]:
    """Each proposal once. Of those of the same word at nearly the same place, the first that is heard counts: beside a
    halt, the one with the most symbols may have some from either side of it, and enough from none."""
    once = {(one.row, one.response, one.word): one for one in proposed}
    return sorted(once.values(), key=lambda one: -int(one.agreeing.sum()))


def _alike(one: Candidate, other: Candidate) -> bool:
    numbers = one.response, one.word
    return numbers == (other.response, other.word) and abs(one.row - other.row) * HOP < SYMBOL


def _heard_of(candidate: Candidate, samples: FloatSamples, about: int) -> tuple[int, list[tuple[int, int]]]:
    """Where the word begins, within `REACH` of `about`, and which spans of it are heard: none where it was not."""
    word = encode(candidate.response, candidate.word, EAR_RATE)
    fits = _fits(word, samples[about - REACH : about + REACH + WORD]) * candidate.agreeing[:, None]
    # The best place is that of the best seven symbols: where a few samples are lost, the halves lie at two places.
    runs = sliding_window_view(fits, AGREEING_IN_A_ROW, axis=0).sum(axis=2)
    run, place = divmod(int(runs.argmax()), runs.shape[1])
    agreeing = candidate.agreeing[run : run + AGREEING_IN_A_ROW].sum()
    gain = float(runs[run, place] / (agreeing * SYMBOL * TONE_LEVEL**2))
    start = about - REACH + place
    residue = (samples[start : start + WORD] - gain * word) ** 2 / (gain * TONE_LEVEL) ** 2
    matching = residue.reshape(SYMBOLS, SYMBOL).mean(axis=1) < RESIDUE_MAX
    return start, _stretches(RESIDUE_MAX - residue) if is_proof(matching) else []


def _fits(word: FloatSamples, samples: FloatSamples) -> FloatSamples:
    """How well each symbol fits where the word is laid at each place of `samples`, (16, len(samples) - WORD + 1)."""
    places = len(samples) - WORD
    symbols = word.reshape(SYMBOLS, SYMBOL)
    cuts = (samples[first : first + places + SYMBOL] for first in range(0, WORD, SYMBOL))
    return np.array([np.correlate(cut, symbol, "valid") for cut, symbol in zip(cuts, symbols, strict=True)])


def _stretches(evidence: NDArray[np.floating], offset: int = 0) -> list[tuple[int, int]]:
    """The spans [begin, end) of `evidence` that speak for a piece of the word, in order."""
    begin, end, weight = _heaviest(evidence)
    if weight < PIECE_EVIDENCE_MIN:
        return []
    before = _stretches(evidence[:begin], offset)
    after = _stretches(evidence[end:], offset + end)
    hole_begin, hole_end, hole_weight = _heaviest(-evidence[begin:end])
    if hole_weight < PIECE_EVIDENCE_MIN:
        return [*before, (offset + begin, offset + end), *after]
    left = _stretches(evidence[begin : begin + hole_begin], offset + begin)
    right = _stretches(evidence[begin + hole_end : end], offset + begin + hole_end)
    return [*before, *left, *right, *after]


def _heaviest(weights: NDArray[np.floating]) -> tuple[int, int, float]:
    """The span [begin, end) with the largest sum, and that sum (J. Bentley, "Algorithm Design Techniques", 1984)."""
    sums = np.concatenate(([0.0], np.cumsum(weights, dtype=np.float64)))
    gains = sums - np.minimum.accumulate(sums)
    end = int(gains.argmax())
    return int(sums[: end + 1].argmin()), end, float(gains[end])
