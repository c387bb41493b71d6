"""How loud a caller usually speaks, and whether a voice is so much softer that it is somebody else's, or not for us.

Theory of operation
    The power of each loud window of the caller's turns moves the usual one a little, so that it follows a caller who
    moves, and hardly follows somebody in the background whose speech was taken for a turn. A voice over our own is far
    where its level lies `FAR_DB` under the usual one: a person at the next table, a television, or the caller with a
    hand over the microphone. Of a caller who has not spoken yet nothing is known; then only a voice is far that is
    fainter than any line or microphone makes a caller, as what a telephone line sends back of ours is.

Rules
* Levels are dB of full scale, of windows that hold speech. How loud is loud does not matter; differences do.
* Means are of powers, not of dB: a VAD hears speech for up to 100 ms after its end, and the closure of a "p" within it.
  Silence takes 3 dB at most from a word of which it is half; of a mean of dB it would take half of a hundred.
"""

from __future__ import annotations

import math

from media.pcm import FloatSamples
from media.speech_gate import WINDOW_MS

# People are 3 to 6 dB softer in a listener's words or when hesitating; at thrice the distance a voice is 9.5 dB softer.
FAR_DB = 9.0
LEARNING_MS = 1_024  # loud speech after which the usual level is known
# Speech on a telephone is at -15 to -30 dB; at -40 it is hard to follow. An echo that is still fainter is lost in the
# noise of the line, where its sound does not tell it any more (`python -m benchmarks telephone-echo`).
FAINT_DB = -50.0
JUDGED_MS = 192  # of a voice, before it is compared: single sounds of speech are 10 dB softer than others
SLOWEST_MS = 8_192  # the level follows over so much loud speech
DISTRUST = 2  # what sounds far moves it by so much less
_FLOOR = 1e-12  # digital silence


def level_db(samples: FloatSamples) -> float:
    """The level of float32[n], n > 0, in dB of full scale (root mean square)."""
    return db_of(float(samples @ samples) / len(samples))


def db_of(power: float) -> float:
    """Of a mean square, 1 is full scale."""
    return 10 * math.log10(power + _FLOOR)


def power_of(db: float) -> float:
    """The mean square."""
    return float(10 ** (db / 10))


class VoiceLevel:
    """One caller's usual level."""

    def __init__(self) -> None:
        self._power = 0.0
        self._heard_ms = 0

    @property
    def usual_db(self) -> float | None:
        """None until the caller has spoken for `LEARNING_MS`."""
        return db_of(self._power) if self._heard_ms >= LEARNING_MS else None

    def learn(self, window_db: float) -> None:
        """A loud window of a turn of the caller's."""
        self._heard_ms = min(self._heard_ms + WINDOW_MS, SLOWEST_MS)
        share = WINDOW_MS / self._heard_ms
        if self._is_under(window_db):
            share /= DISTRUST
        self._power += share * (power_of(window_db) - self._power)

    def is_far(self, db: float, voiced_ms: int, *, so_far: bool) -> bool:
        """A voice that was loud for `voiced_ms`, at `db` as a whole, is not the caller's, or not meant for us.

        `so_far`: what was thought of what came before; it stands until this voice has lasted for `JUDGED_MS`.
        """
        if voiced_ms < JUDGED_MS:
            return so_far
        return db < FAINT_DB if self.usual_db is None else self._is_under(db)

    def _is_under(self, db: float) -> bool:
        usual_db = self.usual_db
        return usual_db is not None and db < usual_db - FAR_DB
