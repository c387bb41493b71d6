"""How far into the input the caller's words are known, and when that is worth an entry of the log.

Theory of operation
    Whoever takes the session over hears the caller again from there, where its client has kept what it sent. Turns say
    it by themselves, as their items have places; a caller who is silent is told of every `STEP_SAMPLES`.

Rules
* It errs low: speech is noticed after it has begun, and so much of the newest input counts as not known.
"""

from __future__ import annotations

from sessions.hearing import Hearing
from sessions.settings import INPUT_RATE

# A client that comes back sends so much silence again at most, beside what was said.
STEP_SAMPLES = 5 * INPUT_RATE
# The detector needs two windows, under 0.1 s; over our own speech, its decision 0.8 s; and a turn's padding is 0.3 s.
UNNOTICED_SAMPLES = INPUT_RATE * 3 // 2


class TakenInput:
    """Of one call, whose turns `hearing` follows."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._told = hearing.input_from

    def due(self, newest: int) -> int | None:
        """Up to where the words are known, where that is to be stored now; `newest`: the end of the input, 16 kHz."""
        return self._tell(newest - UNNOTICED_SAMPLES, STEP_SAMPLES)

    def dismissed(self, newest: int) -> int | None:
        """What has come so far and is in no turn, its client wants in none."""
        return self._tell(newest, 1)

    def last(self, newest: int) -> int | None:
        """The same as `due`, before all that is heard now is given up."""
        return self._tell(newest - UNNOTICED_SAMPLES, 1)

    def _tell(self, sample: int, step: int) -> int | None:
        settled = self._hearing.settled_until(sample)
        if settled - self._told < step:
            return None
        self._told = settled
        return settled
