"""What a telephone line sounds of without a person: tones of the network, beeps, data, music. All from numbers.

Rules
* Sound is float32 at 16 kHz, as before a telephone's codec.
* Frequencies and cadences are those of ITU-T E.180 (supplement 2) for North America and Europe, of T.30 for facsimile.
* The same seed is the same music: a progression of four chords, a bass, a melody that walks over their notes, drums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from media.pcm import FloatSamples
from media.speech_gate import VAD_SAMPLE_RATE as RATE

Wave = NDArray[np.float64]

TONE_LEVEL = 0.2
MUSIC_LEVEL = 0.1  # as a root mean square
PARTIALS = 8
PROGRESSION = ((0, 4, 7), (-3, 0, 4), (-7, -3, 0), (-5, -1, 2))  # semitones over the root: I, vi, IV, V
BEATS_PER_CHORD = 4


def silence(seconds: float) -> FloatSamples:
    return np.zeros(int(seconds * RATE), dtype=np.float32)


def tone(hz: Sequence[float], seconds: float, level: float = TONE_LEVEL) -> FloatSamples:
    """All of `hz` at once; their amplitudes sum to `level`."""
    time = _time(seconds)
    waves = [np.sin(2 * np.pi * one * time) for one in hz]
    together: FloatSamples = (np.sum(waves, axis=0) * level / len(hz)).astype(np.float32)
    return together


def cadence(hz: Sequence[float], on_s: float, off_s: float, seconds: float) -> FloatSamples:
    """A tone that comes and goes, from its beginning on."""
    is_on = _time(seconds) % (on_s + off_s) < on_s
    return tone(hz, seconds) * is_on


def network(seconds: float) -> dict[str, FloatSamples]:
    """What a network says without words, `seconds` of each."""
    special = np.concatenate([tone([hz], 0.33) for hz in (950, 1_400, 1_800)])
    return {
        "dial tone": tone([350, 440], seconds),
        "ringback": cadence([440, 480], 2, 4, seconds),
        "ringback, Europe": cadence([425], 1, 4, seconds),
        "busy": cadence([480, 620], 0.5, 0.5, seconds),
        "busy, Europe": cadence([425], 0.5, 0.5, seconds),
        "congestion": cadence([480, 620], 0.25, 0.25, seconds),
        "not in service": np.resize(np.concatenate([special, silence(2)]), len(_time(seconds))),
        "keys": cadence([770, 1_336], 0.1, 0.1, seconds),
        "facsimile calls": cadence([1_100], 0.5, 3, seconds),
        "facsimile answers": tone([2_100], seconds),
        "modem": hiss(seconds, 0.05, seed=1),
    }


def hiss(seconds: float, level: float, seed: int) -> FloatSamples:
    """White, `level` as a root mean square."""
    noise = np.random.default_rng(seed).standard_normal(len(_time(seconds))) * level
    return noise.astype(np.float32)


def music(seconds: float, seed: int, *, drums: bool = True) -> FloatSamples:
    """What is played to those who wait."""
    dice = np.random.default_rng(seed)
    beat_s = 60 / dice.uniform(70, 130)
    root_hz = 220 * 2 ** (dice.integers(0, 12) / 12)
    decay = dice.uniform(1, 5)
    count = len(_time(seconds))
    sound = np.zeros(count + 2 * BEATS_PER_CHORD * RATE)
    for beat in range(int(seconds / beat_s) + 1):
        chord = PROGRESSION[beat // BEATS_PER_CHORD % len(PROGRESSION)]
        place = int(beat * beat_s * RATE)
        played = [_note(root_hz / 2 * 2 ** (chord[0] / 12), beat_s, decay) * 1.6]
        if beat % BEATS_PER_CHORD == 0:
            played += [_note(root_hz * 2 ** (step / 12), BEATS_PER_CHORD * beat_s, decay) for step in chord]
        melody = [chord[int(dice.integers(3))] + 12 * int(dice.integers(1, 3)) for _ in range(2)]
        played.append(np.concatenate([_note(root_hz * 2 ** (step / 12), beat_s / 2, 4.0) for step in melody]))
        if drums:
            played.append(_kick() if beat % 2 == 0 else _snare(dice))
        for note in played:
            sound[place : place + len(note)] += note
    sound = sound[:count]
    played_out: FloatSamples = (sound * MUSIC_LEVEL / np.sqrt(np.mean(sound**2))).astype(np.float32)
    return played_out


def _time(seconds: float) -> Wave:
    return np.arange(int(seconds * RATE)) / RATE


def _note(hz: float, seconds: float, decay: float) -> Wave:
    time = _time(seconds)
    partials = [np.sin(2 * np.pi * hz * number * time) / number**1.3 for number in range(1, PARTIALS + 1)]
    envelope: Wave = np.minimum(1, time / 0.02) * np.exp(-time * decay)
    note: Wave = envelope * np.sum(partials, axis=0) * 0.15
    return note


def _kick() -> Wave:
    time = _time(0.15)
    kick: Wave = 0.4 * np.sin(2 * np.pi * 60 * time * np.exp(-8 * time)) * np.exp(-25 * time)
    return kick


def _snare(dice: np.random.Generator) -> Wave:
    time = _time(0.15)
    snare: Wave = 0.2 * dice.standard_normal(len(time)) * np.exp(-30 * time)
    return snare
