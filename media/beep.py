"""The beep of an answering machine: one steady tone behind a voice, and silence behind the tone.

Theory of operation
    A window is a tone where nearly all of its power lies at one frequency. Windows of the same frequency that follow
    each other are one tone. It is a beep where it is as long as one, where its greeting came before it, and where the
    line is quiet behind it: whoever has spoken listens now. Tones of the network have no voice before them, or are two
    at once, or go on in a cadence.

        SILENT ──tone──► TONE ──as long as a beep──► LISTENING ──quiet for long enough──► SILENT, and `Beep`
          ▲               │  too short, too long,        │
          └───────────────┴──another tone, a voice───────┘

Rules
* The clock is the sample position of the input at 16 kHz; windows come in order.
* What a tone is does not depend on how loud it is, above `LOUD_DB`.
* Speech is none: its power lies in many partials, and they move.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from media.pcm import FloatSamples
from media.speech_gate import VAD_SAMPLE_RATE, WINDOW_MS, WINDOW_SAMPLES
from media.voice_level import level_db

# Beeps of answering machines and mailboxes last from 0.2 to 1.2 s and lie between 400 and 2,000 Hz.
BEEP_MS_MIN, BEEP_MS_MAX = 192, 1_216
BEEP_HZ = (380.0, 2_050.0)
APART_MS = 128  # two tones that are closer are one signal
# (from, to) Hz and ms of single tones of the network that sound like a beep, and come again after seconds only: the
# ringing tone of ITU-T E.180, and the calling tone of T.30.
NETWORK = ((415.0, 435.0, 640, 1_216), (1_062.0, 1_138.0, 416, 576))
QUIET_MS = 608  # behind it; the gap of a busy signal is 500 at most
QUIET_DB = 20.0  # so far below the tone
LOUD_DB = -45.0
VOICE_MS_MIN = 992  # of voice before it: "Leave a message." takes longer
VOICE_WITHIN_MS = 10_016
SAME_HZ = 15.0  # half a bin: the windows at the ends of a tone hold only a part of it

BIN_HZ = VAD_SAMPLE_RATE / WINDOW_SAMPLES
MAIN_LOBE_BINS = 2  # Hann's, to either side
PURITY = 0.9  # of the power within that
_HANN: FloatSamples = np.hanning(WINDOW_SAMPLES).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Beep:
    """A tone of `hz` from sample `start` to `end` of the input; `voice_ms` of the seconds before it were voice."""

    start: int
    end: int
    hz: float
    voice_ms: int


class _State(Enum):
    SILENT = auto()
    TONE = auto()
    LISTENING = auto()


class _Step(Enum):
    TONE = auto()
    OVER = auto()
    BEEPED = auto()
    NONE = auto()


_TRANSITIONS: dict[tuple[_State, _Step], _State] = {
    (_State.SILENT, _Step.TONE): _State.TONE,
    (_State.TONE, _Step.TONE): _State.TONE,
    (_State.TONE, _Step.OVER): _State.LISTENING,
    (_State.TONE, _Step.NONE): _State.SILENT,
    (_State.LISTENING, _Step.TONE): _State.TONE,
    (_State.LISTENING, _Step.BEEPED): _State.SILENT,
    (_State.LISTENING, _Step.NONE): _State.SILENT,
}


@dataclass(slots=True)
class _Tone:
    start: int
    end: int
    hz: float
    db: float
    voice_ms: int
    is_alone: bool  # no other came right before it
    quiet_ms: int = 0

    @property
    def ms(self) -> int:
        return (self.end - self.start) * 1_000 // VAD_SAMPLE_RATE


_NO_TONE = _Tone(-VAD_SAMPLE_RATE, -VAD_SAMPLE_RATE, 0.0, 0.0, 0, is_alone=True)


class BeepDetector:
    """Of one call."""

    def __init__(self) -> None:
        self._state = _State.SILENT
        self._tone = _NO_TONE
        self._voiced: deque[bool] = deque(maxlen=VOICE_WITHIN_MS // WINDOW_MS)

    def window(self, sound: FloatSamples, end: int, *, is_voice: bool) -> Beep | None:
        """Take float32[512] before sample `end`, in which a VAD hears a voice or none; the beep that it confirms."""
        self._voiced.append(is_voice)
        db = level_db(sound)
        hz = tone_hz(sound) if db >= LOUD_DB and not is_voice else None
        if hz is not None:
            self._sounds(hz, db, end)
        elif self._state is _State.TONE:
            self._stops()
        elif self._state is _State.LISTENING:
            return self._listen(db, is_voice)
        return None

    def _move(self, step: _Step) -> None:
        self._state = _TRANSITIONS[self._state, step]

    def _sounds(self, hz: float, db: float, end: int) -> None:
        start, tone = end - WINDOW_SAMPLES, self._tone
        if self._state is _State.TONE and abs(hz - tone.hz) <= SAME_HZ:
            tone.end = end
            if db > tone.db:  # the first window may hold a part of it
                tone.db, tone.hz = db, hz
        else:
            voice_ms = sum(self._voiced) * WINDOW_MS
            is_alone = (start - tone.end) * 1_000 > APART_MS * VAD_SAMPLE_RATE
            self._tone = _Tone(start, end, hz, db, voice_ms, is_alone)
        self._move(_Step.TONE)

    def _stops(self) -> None:
        """This window may still hold the last of the tone."""
        tone = self._tone
        is_like = tone.is_alone and tone.voice_ms >= VOICE_MS_MIN and _is_beep(tone.hz, tone.ms)
        self._move(_Step.OVER if is_like else _Step.NONE)

    def _listen(self, db: float, is_voice: bool) -> Beep | None:
        tone = self._tone
        if is_voice or db > tone.db - QUIET_DB:
            self._move(_Step.NONE)
            return None
        tone.quiet_ms += WINDOW_MS
        if tone.quiet_ms < QUIET_MS:
            return None
        self._move(_Step.BEEPED)
        return Beep(tone.start, tone.end, tone.hz, tone.voice_ms)


def _is_beep(hz: float, ms: int) -> bool:
    if not (BEEP_MS_MIN <= ms <= BEEP_MS_MAX and BEEP_HZ[0] <= hz <= BEEP_HZ[1]):
        return False
    return not any(low <= hz <= high and ms_min <= ms <= ms_max for low, high, ms_min, ms_max in NETWORK)


def tone_hz(sound: FloatSamples) -> float | None:
    """The frequency at which float32[512] at 16 kHz has nearly all of its power; None where it has not.

    Between bins by the ratio of the two strongest, for Hann's window: (2r - 1) / (r + 1) (Grandke, 1983).
    """
    strengths = np.abs(np.fft.rfft(sound * _HANN))
    powers = strengths**2
    peak = int(powers[1:-1].argmax()) + 1
    lobe, power = float(powers[max(0, peak - MAIN_LOBE_BINS) : peak + MAIN_LOBE_BINS + 1].sum()), float(powers.sum())
    if power == 0 or lobe < PURITY * power:  # all of the sound may lie where Hann's window is zero
        return None
    above = strengths[peak + 1] > strengths[peak - 1]
    ratio = float(strengths[peak + 1 if above else peak - 1] / strengths[peak])
    shift = (2 * ratio - 1) / (ratio + 1)
    return (peak + (shift if above else -shift)) * BIN_HZ
