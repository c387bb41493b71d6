"""Which coded words a caller heard, and how much of each, from the recording of what the loudspeaker played.

Theory of operation
    `media.coded_tones.Decoder` finds the pieces of words that can be made out on their own: half a word is. Where a
    reply stood still within a word and went on, the shorter piece may be too short for that. But it is known what it
    sounds like: it is looked for between the longer piece and the next that was made out, where sound begins or ends.
    So is the beginning of the word in which a response broke off: behind the word before it, or where sound begins.

Rules
* The recording is on the ear's own clock: what was late left silence, what was flushed is not there.
* A word counts as wholly heard when all but `LOST_MS_MAX` of it was heard, in however many pieces.
* How much of a response was heard is exact to `EDGE_SAMPLES`, twice that where other sound follows, and to a
  millisecond or two behind Opus.

Limits
* A short piece is found where the reply stood still for `HALT_S_MAX` at most.
* A word that is cut within its last `LOST_MS_MAX` counts as whole.
* Of a word that breaks off, less than `SHORTEST_SAMPLES` go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from media.chunk import ms_to_samples
from media.coded_tones import (
    EAR_RATE,
    EDGE_SAMPLES,
    RESIDUE_MAX,
    SYMBOL,
    TONE_LEVEL,
    WORD,
    Decoder,
    Heard,
    encode,
    response_number,
)
from media.pcm import FloatSamples, pcm16_to_float
from media.resample import StreamResampler

# A reply that stands still fades out and in again, 10 ms each; about half of that is too soft to be made out.
LOST_MS_MAX = 12
# How alike a short piece must be to what is missing. Opus at 32 kbit/s adds 0.17 of the power at most (`coded_tones`),
# which leaves a likeness of 0.9; another symbol has one tone in common at most, a likeness of 0.5.
ALIKE_MIN = 0.7
SOFTEST = 0.1  # in parts of the word's loudness
HALT_S_MAX = 5
# Of a word that breaks off: the least that is not taken for the end of another sound; and, where it is not known to
# begin there, for another word, of which one in 251 begins with the same symbol.
EVIDENCE_SAMPLES = SYMBOL // 2
SHORTEST_SAMPLES = 3 * SYMBOL // 2
# Sound begins and ends at a tenth of the voice's loudest, beside a silence longer than any that a word has within it.
ONSET_LEVEL = 0.05
ONSET_SILENCE_SAMPLES = SYMBOL // 4
ONSET_SAMPLES = SYMBOL  # a fade takes as long until it is loud enough

Stretch = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WordHeard:
    """Word number `word` of response number `response`; its first piece began at `start_sample` of the recording.

    `lost_samples` of it were not heard, `repeated_samples` more than once; both at 24 kHz.
    """

    response: int
    word: int
    start_sample: int
    lost_samples: int
    repeated_samples: int

    @property
    def whole(self) -> bool:
        return self.lost_samples <= ms_to_samples(LOST_MS_MAX, EAR_RATE)


class CodedEar:
    """What is heard in a recording. `pcm` is PCM16 mono at `sample_rate`, one of `media.resample.SAMPLE_RATES`."""

    def __init__(self, pcm: bytes, sample_rate: int) -> None:
        resampler = StreamResampler(sample_rate, EAR_RATE)
        self._sound = np.concatenate((resampler.process(pcm16_to_float(pcm)), resampler.flush()))
        decoder = Decoder(EAR_RATE)
        pieces = [*decoder.feed(self._sound), *decoder.finish()]
        by_word: dict[tuple[int, int], list[Heard]] = {}
        for piece in pieces:
            by_word.setdefault((piece.response, piece.word), []).append(piece)
        self._onsets, offsets = _edges(self._sound)
        fits = _Fits(self._sound, self._onsets, offsets)
        self.words = [_word(own, pieces, fits) for own in by_word.values()]
        """All words, in the order of their beginnings."""

    def words_of(self, response_id: str) -> list[WordHeard]:
        """The words of one response, in the order of their beginnings."""
        number = response_number(response_id)
        return [word for word in self.words if word.response == number]

    def samples_of(self, response_id: str) -> int:
        """Up to which sample, at 24 kHz, the response was heard, as far as nothing before that is missing."""
        last = max(self.words_of(response_id), key=lambda word: word.word, default=None)
        if last is not None and not last.whole:
            return (last.word + 1) * WORD - last.lost_samples
        following, since = (0, -1) if last is None else (last.word + 1, last.start_sample + WORD)
        word = encode(response_number(response_id), following, EAR_RATE)
        beginning = max((_beginning(word, self._sound, place) for place in self._places() if place > since), default=0)
        beginning = beginning if beginning >= SHORTEST_SAMPLES else 0
        if last is not None:
            beginning = max(beginning, _beginning(word, self._sound, since)) or -last.lost_samples
        return following * WORD + beginning

    def sound_end(self, sample: int) -> int:
        """Where the sound that is heard at `sample` ends, at 24 kHz; `sample` where there is silence."""
        loud = np.flatnonzero(np.abs(self._sound[sample:]) >= ONSET_LEVEL)
        breaks = np.flatnonzero(np.diff(loud, prepend=-1) >= ONSET_SILENCE_SAMPLES)
        loud = loud[: breaks[0]] if len(breaks) else loud
        return sample + (int(loud[-1]) + 1 if len(loud) else 0)

    def sound_begin(self, sample: int) -> int:
        """Where the last sound before `sample` began, where nothing of it was made out; otherwise `sample`."""
        onset = max((onset for onset in self._onsets if onset < sample), default=sample)
        is_known = any(onset < word.start_sample + WORD and word.start_sample < sample for word in self.words)
        return sample if is_known else onset

    def _places(self) -> list[int]:
        """Where a word may begin: behind another, and where sound begins after silence."""
        return [*(word.start_sample + WORD for word in self.words), *self._onsets]


def words_heard(pcm: bytes, sample_rate: int) -> list[WordHeard]:
    """All words in a recording, in the order of their beginnings; of the arguments, see `CodedEar`."""
    return CodedEar(pcm, sample_rate).words


def wholly_heard(words: Iterable[WordHeard], response_id: str) -> list[int]:
    """The numbers of the response's words that were wholly heard, in the order of hearing."""
    return [word.word for word in words if word.response == response_number(response_id) and word.whole]


def _word(own: Sequence[Heard], pieces: Sequence[Heard], fits: _Fits) -> WordHeard:
    """The word of which `own` are the pieces, in order of time as all `pieces` are.

    A symbol may sound the same 5 ms later, and its piece lie beside where it is. Where more is found without the short
    pieces, they did.
    """
    short = [piece for piece in own if piece.samples_heard < SHORTEST_SAMPLES]
    readings = [_reading(own, pieces, fits)]
    if 0 < len(short) < len(own):
        own, pieces = ([piece for piece in some if piece not in short] for some in (own, pieces))
        readings.append(_reading(own, pieces, fits))
    return min(readings, key=lambda word: word.lost_samples)


def _reading(own: Sequence[Heard], pieces: Sequence[Heard], fits: _Fits) -> WordHeard:
    known = [(piece.skipped, piece.skipped + piece.samples_heard) for piece in own]
    found = [gap for gap in _gaps(known) if _is_there(gap, own, pieces, fits)]
    lost = sum(end - start for start, end in _gaps([*known, *found]))
    repeated = sum(end - start for start, end in [*known, *found]) + lost - WORD
    return WordHeard(own[0].response, own[0].word, own[0].start_sample, lost, repeated)


def _gaps(known: Sequence[Stretch]) -> list[Stretch]:
    """What of a word is in none of the stretches."""
    gaps: list[Stretch] = []
    place = 0
    for start, end in (*sorted(known), (WORD, WORD)):
        if start > place:
            gaps.append((place, start))
        place = max(place, end)
    return gaps


def _is_there(gap: Stretch, own: Sequence[Heard], pieces: Sequence[Heard], fits: _Fits) -> bool:
    """Whether what is missing of a word is heard before, behind or between its pieces."""
    halt = HALT_S_MAX * EAR_RATE
    wanted = encode(own[0].response, own[0].word, EAR_RATE)[slice(*gap)]
    if gap[0] == 0:
        end = own[0].start_sample
        begin = max((_end(one) for one in pieces if _end(one) <= end), default=0)
        return fits.ends_in(wanted, max(begin, end - halt), end)
    before = [one for one in own if one.skipped + one.samples_heard <= gap[0]]
    begin = _end(before[-1])
    end = min((one.start_sample for one in pieces if one.start_sample >= begin), default=begin + halt)
    return fits.begins_in(wanted, begin, min(end, begin + halt))


def _end(piece: Heard) -> int:
    return piece.start_sample + piece.samples_heard


class _Fits:
    """Looks for pieces of words where the sound begins and ends."""

    def __init__(self, sound: FloatSamples, onsets: Sequence[int], offsets: Sequence[int]) -> None:
        self._sound = sound
        self._onsets = onsets
        self._offsets = offsets

    def begins_in(self, wanted: FloatSamples, begin: int, end: int) -> bool:
        """Whether sound like `wanted` begins between these samples, and ends there."""
        starts = [begin, *(onset for onset in self._onsets if begin < onset < end)]
        return any(self._is_like(wanted, start, begin, end) for start in starts)

    def ends_in(self, wanted: FloatSamples, begin: int, end: int) -> bool:
        """Whether sound like `wanted` ends between these samples, and begins there."""
        ends = [end, *(offset for offset in self._offsets if begin < offset < end)]
        return any(self._is_like(wanted, one - len(wanted), begin, end) for one in ends)

    def _is_like(self, wanted: FloatSamples, about: int, begin: int, end: int) -> bool:
        first = max(begin - EDGE_SAMPLES, about - ONSET_SAMPLES, 0)
        where = self._sound[first : min(end + EDGE_SAMPLES, about + ONSET_SAMPLES + len(wanted))]
        if len(where) < len(wanted):
            return False
        fits = np.correlate(where, wanted, "valid")
        energies = np.cumsum(np.concatenate(([0.0], where.astype(np.float64) ** 2)))
        there = energies[len(wanted) :] - energies[: -len(wanted)]
        energy = float(np.vdot(wanted, wanted))
        loud = there >= SOFTEST**2 * energy
        return bool(np.any(loud & (fits >= ALIKE_MIN * np.sqrt(np.maximum(there, 0) * energy))))


def _edges(sound: FloatSamples) -> tuple[list[int], list[int]]:
    """Where sound begins after silence, and where it ends before one."""
    loud = np.flatnonzero(np.abs(sound) >= ONSET_LEVEL)
    begins = np.diff(loud, prepend=-ONSET_SILENCE_SAMPLES) >= ONSET_SILENCE_SAMPLES
    onsets: list[int] = loud[begins].tolist()
    offsets: list[int] = (loud[np.roll(begins, -1)] + 1).tolist()
    return onsets, offsets


def _beginning(word: FloatSamples, sound: FloatSamples, about: int) -> int:
    """How much of `word` is heard from about `about` on, before it breaks off."""
    best, heard = 0.0, 0
    for start in range(max(0, about - EDGE_SAMPLES), about + EDGE_SAMPLES + 1):
        there = sound[start : start + WORD]
        evidence = np.cumsum(RESIDUE_MAX - ((there - word[: len(there)]) / TONE_LEVEL) ** 2)
        if len(there) and evidence.max() > best:
            best, heard = float(evidence.max()), int(evidence.argmax()) + 1
    return heard if best >= RESIDUE_MAX * EVIDENCE_SAMPLES else 0
