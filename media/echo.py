"""Is what comes in our own sound? Known by the sound itself, in a fraction of a second, without a recogniser.

Theory of operation
    What was sent lately is kept, at the moments at which it goes out. The newest piece of the input, up to
    `PIECE_MS_MAX` of it, is laid over that at every delay from `LEAD_MS` before to `DELAY_MS_MAX` after, and compared.
    Both sides are whitened first, so that a loudspeaker, a room or a telephone changes little, and loudness nothing:
    speech has its own course of phases, and what is an echo fits at one delay, while two voices fit nowhere, even if
    they are of one speaker. All delays are compared at once by a Fourier transform (the generalised cross-correlation
    of Knapp and Carter, 1976, with weights between plain and phase transform).

    The longer the piece, the less fits by chance, so the longer it must last where it fits badly. Once the delay of a
    call is known, far less will do near it. How well its echoes fit, and how loud they are, is remembered too: where
    they fit worse and are louder, somebody speaks over them.

Rules
* What is sent counts from the moment at which it goes out, whether or not it is heard. What is held is not sent.
* The input's clock is its samples, at 16 kHz; it is laid beside the moments of the sender by the earliest arrival.
* Nothing is computed but in `judge`, which need not be asked while nobody speaks.
* No more is kept than `KEPT_MS` of sound and `FRAMES_MAX` frames.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from media.chunk import BYTES_PER_SAMPLE
from media.pcm import FloatSamples, pcm16_to_float
from media.resample import StreamResampler
from media.speech_gate import VAD_SAMPLE_RATE, WINDOW_SAMPLES
from media.voice_level import level_db

NS_PER_S, NS_PER_MS = 1_000_000_000, 1_000_000

# Speech and loudspeakers have most of their power below 2 kHz, and a telephone lets 0.3 to 3.4 through.
RATE = 4_000
HALVED_RATE = 2 * RATE
PER_MS = RATE // 1_000
NS_PER_TICK = NS_PER_MS // PER_MS
SAMPLES_PER_TICK = VAD_SAMPLE_RATE // RATE

PIECE_MS_MIN, PIECE_MS_MAX = 96, 512
PIECE_SAMPLES_MIN, PIECE_SAMPLES_MAX = (ms * VAD_SAMPLE_RATE // 1_000 for ms in (PIECE_MS_MIN, PIECE_MS_MAX))
DELAY_MS_MAX = 1_300  # a second of echo, and messages that hold 200 ms of sound back
LEAD_MS = 100  # clocks that drift, and moments that are rounded
DELAY_TICKS_MAX, LEAD_TICKS = DELAY_MS_MAX * PER_MS, LEAD_MS * PER_MS
TRANSFORM = 8_192  # at least a piece and all delays: 7,648
KEPT_MS = 2_500  # all that a piece may be an echo of, also where it comes late
KEPT_TICKS = KEPT_MS * PER_MS
FRAMES_MAX = 200  # they hold 20 ms each, and some less, at holds
REVERBERATION_SAMPLES = 64 * VAD_SAMPLE_RATE // 1_000  # longer ones are soft by then, and a caller is louder
RUN_GAP_SAMPLES = 96 * VAD_SAMPLE_RATE // 1_000  # quiet that parts one piece from the next
CLOCK_NS_MAX = 500_000_000  # what comes later than this by the input's clock shows that it stood still
JOIN_TICKS = 2 * PER_MS  # frames follow each other, but for the rounding of moments
SAME_DELAY_TICKS = 8 * PER_MS  # reflections, and the drift of two clocks within a reply

# Between a plain correlation, which the loudest partial decides, and the phase transform, which noise decides.
WHITENING = 0.7
FLOOR = 0.01  # of the strongest partial: what lies below is taken for noise of the line
QUIET = 3e-3  # of the loudest stretch of ours: against softer ones nothing is compared
AUDIBLE = 1e-3  # of full scale; below, we are silent

# By the length of the piece in ms: how well it must fit at any delay, and at the known one. Chosen on the tuning seeds
# of `python -m benchmarks echo` so that no voice but our own reaches them.
LENGTHS_MS = (96, 256, 512)
FITS_ANYWHERE = (0.70, 0.52, 0.42)
FITS_WHERE_KNOWN = (0.48, 0.34, 0.28)
SUSPECT_SHARE = 0.6  # of either: as little as this, and a short piece is not judged yet
SUSPECT_MS_MAX = 256
# A voice as loud as the echo takes half its power, so that what fits falls to 0.7 of what it was, and adds 3 dB; one
# twice as loud leaves 0.45. The end of a sentence in noise falls as far, but it adds nothing: of an echo alone, one
# window in a hundred does both.
FALLEN, FALLEN_FAR = 0.75, 0.6
ADDED_DB = 1.0
FIT_RISES, FIT_FALLS, GAIN_FOLLOWS = 0.3, 0.03, 0.1  # how quickly the usual follows
USUAL_TICKS_MIN = 256 * PER_MS  # shorter pieces fit as it happens
TINY = 1e-9

Floats = NDArray[np.float32]

# Whitened, an edge is a click, and clicks are alike: sound is faded in and out where it is cut.
EDGE_TICKS = 16 * PER_MS
EDGE: Floats = (np.sin(np.pi / 2 * (np.arange(EDGE_TICKS) + 0.5) / EDGE_TICKS) ** 2).astype(np.float32)


class Kinship(Enum):
    """`OTHER`: not ours, as far as is known. `SUSPECT`: perhaps ours, too short to tell. `MIXED`: our echo, and perhaps
    a voice over it. `OURS`: our echo alone."""

    OTHER = auto()
    SUSPECT = auto()
    MIXED = auto()
    OURS = auto()


@dataclass(frozen=True, slots=True)
class Likeness:
    """Of a window. `since`: where it began that all was ours, up to here; `until`: where our sound ends in it, and its
    reverberation, as far as is known yet (16 kHz samples of the input)."""

    kinship: Kinship = Kinship.OTHER
    since: int = 0
    until: int = 0

    @property
    def is_ours(self) -> bool:
        return self.kinship is Kinship.OURS


UNLIKE = Likeness()


@dataclass(slots=True)
class _Run:
    """Input that was judged without a gap, in samples. `ours_since`: where our echo began, while it lasts."""

    start: int
    end: int
    ours_since: int | None = None


@dataclass(slots=True)
class _Usual:
    """How well the echoes of a call fit at their delay, and how much louder than ours they are."""

    fit: float
    gain_db: float

    def follow(self, fitting: float, gain_db: float) -> None:
        """An echo without a voice."""
        self.fit += (fitting - self.fit) * (FIT_RISES if fitting > self.fit else FIT_FALLS)
        self.gain_db += (gain_db - self.gain_db) * GAIN_FOLLOWS


class Echo:
    """What one call has sent lately, and what of its input is that again."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, bytes, int]] = deque(maxlen=FRAMES_MAX)
        self._sent = _Sent()
        self._sent_until_ns: int | None = None
        self._clock_ns: int | None = None  # when sample 0 of the input was spoken
        self._run = _Run(0, 0)
        self._delay: int | None = None
        self._usual: _Usual | None = None
        self._behind = 0  # ticks of the last piece that lie behind our sound

    @property
    def delay_ms(self) -> int | None:
        """From the sending to the coming back, where there was an echo."""
        return None if self._delay is None else self._delay // PER_MS

    def sent(self, pcm: bytes, sample_rate: int, at_ns: int) -> None:
        """PCM16 that sounds from `at_ns` on, at one of `media.resample.SAMPLE_RATES`."""
        self._waiting.append((at_ns, pcm, sample_rate))
        self._sent_until_ns = at_ns + len(pcm) // BYTES_PER_SAMPLE * NS_PER_S // sample_rate

    def may_be_heard(self, now_ns: int) -> bool:
        """Something was sent so lately that its echo may come now."""
        until_ns = self._sent_until_ns
        return until_ns is not None and now_ns - until_ns <= (DELAY_MS_MAX + PIECE_MS_MAX) * NS_PER_MS

    def judge(self, sound: FloatSamples, end: int, now_ns: int) -> Likeness:
        """Of the window that ends with sample `end`, holds a voice and has just come: is it our echo?

        `sound` is the input up to there, float32 at 16 kHz, one window of it or more; `PIECE_MS_MAX` are used.
        """
        run = self._run
        if end - run.end > RUN_GAP_SAMPLES:
            run = self._run = _Run(end - 2 * WINDOW_SAMPLES, end)
        run.end = end
        if not self.may_be_heard(now_ns):
            run.ours_since = None
            return UNLIKE
        length = max(end - run.start, PIECE_SAMPLES_MIN)
        piece = _halved(_halved(sound[-min(length, PIECE_SAMPLES_MAX) :]))
        kinship = self._kinship(piece, self._tick_of(end, now_ns))
        if kinship is not Kinship.OURS:
            run.ours_since = None
            return Likeness(kinship)
        if run.ours_since is None:
            run.ours_since = end - len(piece) * SAMPLES_PER_TICK
        behind = max(0, self._behind * SAMPLES_PER_TICK - REVERBERATION_SAMPLES)
        return Likeness(Kinship.OURS, run.ours_since, end - behind)

    def _tick_of(self, sample: int, now_ns: int) -> int:
        """When `sample` of the input was spoken, as it has just come."""
        began_ns = now_ns - sample * NS_PER_S // VAD_SAMPLE_RATE
        if self._clock_ns is None or not self._clock_ns <= began_ns <= self._clock_ns + CLOCK_NS_MAX:
            self._clock_ns = began_ns
        return self._clock_ns // NS_PER_TICK + sample // SAMPLES_PER_TICK

    def _kinship(self, piece: Floats, end: int) -> Kinship:
        """`piece` was spoken until the tick `end`."""
        while self._waiting:
            self._sent.add(*self._waiting.popleft())
        ours = self._sent.between(end - len(piece) - DELAY_TICKS_MAX, end + LEAD_TICKS)
        if float(np.abs(ours).max()) < AUDIBLE:
            return Kinship.OTHER
        fits = fit(piece, ours)
        anywhere, known = self._best(fits)
        ms = len(piece) // PER_MS
        needed, needed_there = _needed(ms, FITS_ANYWHERE), _needed(ms, FITS_WHERE_KNOWN)
        there = fits[known] if known is not None else 0.0
        best = anywhere if fits[anywhere] >= needed or known is None else known
        if fits[anywhere] < needed and there < needed_there:
            is_near = fits[anywhere] >= SUSPECT_SHARE * needed or there >= SUSPECT_SHARE * needed_there
            return Kinship.SUSPECT if is_near and ms < SUSPECT_MS_MAX else Kinship.OTHER
        return self._known_again(piece, ours[best : best + len(piece)], float(fits[best]), DELAY_TICKS_MAX - best)

    def _best(self, fits: Floats) -> tuple[int, int | None]:
        """Where `fits` is best, and where it is best near the delay that is known."""
        anywhere = int(fits.argmax())
        if self._delay is None:
            return anywhere, None
        first = max(0, DELAY_TICKS_MAX - self._delay - SAME_DELAY_TICKS)
        return anywhere, first + int(fits[first : first + 2 * SAME_DELAY_TICKS + 1].argmax())

    def _known_again(self, piece: Floats, ours: Floats, fitting: float, delay: int) -> Kinship:
        """It is our echo, unless it fits so much worse than usual, and is louder, that there is a voice over it."""
        if self._delay is None or abs(delay - self._delay) > SAME_DELAY_TICKS:
            self._usual = None
        self._delay = delay
        self._behind = _silence_behind(ours)
        if len(piece) < USUAL_TICKS_MIN:
            return Kinship.OURS
        gain_db = level_db(piece) - level_db(ours)
        usual = self._usual
        if usual is None:
            self._usual = _Usual(fitting, gain_db)
        elif fitting < FALLEN * usual.fit and gain_db > usual.gain_db + ADDED_DB:
            return Kinship.OTHER if fitting < FALLEN_FAR * usual.fit else Kinship.MIXED
        else:
            usual.follow(fitting, gain_db)
        return Kinship.OURS


def _silence_behind(ours: Floats) -> int:
    """How many ticks at the end cannot be heard."""
    audible = np.flatnonzero(np.abs(ours) >= AUDIBLE)
    return len(ours) - 1 - int(audible[-1]) if len(audible) else len(ours)


def _needed(ms: int, fits: tuple[float, ...]) -> float:
    return float(np.interp(ms, LENGTHS_MS, fits))


def fit(piece: Floats, ours: Floats) -> Floats:
    """How well float32[n] `piece` fits each stretch of float32[m] `ours`, m >= n: float32[m - n + 1] from 0 to 1.

    Both at `RATE`; the sum of both lengths does not matter, `ours` alone must be up to `TRANSFORM` long.
    """
    of_piece, of_ours = _whitened(piece), _whitened(ours)
    stretches = len(ours) - len(piece) + 1
    products = np.fft.irfft(np.conj(of_piece) * of_ours, TRANSFORM)[:stretches]
    sums = np.concatenate(([0.0], np.cumsum(np.fft.irfft(of_ours, TRANSFORM)[: len(ours)].astype(np.float64) ** 2)))
    powers = sums[len(piece) :] - sums[:stretches]
    power = 2 * float(np.vdot(of_piece, of_piece).real) / TRANSFORM  # Parseval's theorem; both ends are next to nothing
    fits: NDArray[np.float64] = np.abs(products) / np.sqrt(power * np.maximum(powers, QUIET * powers.max()) + TINY)
    return fits.astype(np.float32)


def _whitened(sound: Floats) -> NDArray[np.complex64]:
    tapered = sound.copy()
    tapered[:EDGE_TICKS] *= EDGE
    tapered[-EDGE_TICKS:] *= EDGE[::-1]
    spectrum = np.fft.rfft(tapered, TRANSFORM)
    strength = np.abs(spectrum)
    whitened: NDArray[np.complex64] = spectrum * (strength + FLOOR * strength.max() + TINY) ** np.float32(-WHITENING)
    return whitened


def _halved(sound: Floats) -> Floats:
    """At half its rate, which the filter of any such pair of rates serves."""
    halving = StreamResampler(2 * HALVED_RATE, HALVED_RATE)
    return np.concatenate((halving.process(sound), halving.flush()))


class _Sent:
    """The last `KEPT_MS` of what was sent, at `RATE`; silence where nothing was. Places are ticks since time 0."""

    def __init__(self) -> None:
        self._sound = np.zeros(KEPT_TICKS, dtype=np.float32)
        self._end = 0  # the tick behind the last one that is kept
        self._next = -KEPT_TICKS  # where the stream of frames goes on
        self._written = -KEPT_TICKS
        self._rate = 0
        self._steps = (StreamResampler(HALVED_RATE, HALVED_RATE), StreamResampler(HALVED_RATE, HALVED_RATE))

    def add(self, at_ns: int, pcm: bytes, rate: int) -> None:
        """Sound from `at_ns` on. Where it was sent before, that is never heard, and replaced."""
        place = at_ns // NS_PER_TICK
        if rate != self._rate or abs(place - self._next) > JOIN_TICKS:
            self._steps = (StreamResampler(rate, HALVED_RATE), StreamResampler(2 * HALVED_RATE, HALVED_RATE))
            self._rate, self._next, self._written = rate, place, place
        sound = pcm16_to_float(pcm)
        self._next += len(sound) * RATE // rate
        first, second = self._steps
        self._write(second.process(first.process(sound)))

    def _write(self, sound: Floats) -> None:
        start, end = self._written, self._written + len(sound)
        self._written = end
        moved = min(max(0, end - self._end), KEPT_TICKS)
        self._sound[: KEPT_TICKS - moved] = self._sound[moved:]
        self._sound[KEPT_TICKS - moved :] = 0.0
        self._end = max(self._end, end)
        first = self._end - KEPT_TICKS
        skipped = min(max(0, first - start), len(sound))
        start = max(start, first)
        self._sound[start - first : start - first + len(sound) - skipped] = sound[skipped:]

    def between(self, start: int, end: int) -> Floats:
        """Float32[end - start]; silence where nothing is kept."""
        found = np.zeros(end - start, dtype=np.float32)
        first = self._end - KEPT_TICKS
        low, high = max(start, first), min(end, self._end)
        if low < high:
            found[low - start : high - start] = self._sound[low - first : high - first]
        return found
