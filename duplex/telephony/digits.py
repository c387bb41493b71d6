"""The keys that a caller presses, until they are a number: what IVRs call collecting digits.

Rules
* `#` ends a number; so does a pause of `PAUSE_NS` behind a key, and `DIGITS_MAX` of them.
* A terminator alone is a number without digits, and says nothing.
"""

from __future__ import annotations

PAUSE_NS = 3_000_000_000  # Twilio's <Gather> waits 5 s, Asterisk's Read 10; a voice that waits too seems deaf
DIGITS_MAX = 32  # a credit card has 19
TERMINATOR = "#"


class Digits:
    """Of one call."""

    def __init__(self) -> None:
        self._digits = ""
        self._last_ns = 0

    @property
    def due_ns(self) -> int | None:
        """When what was pressed so far is a number, unless anything comes before; None where nothing was."""
        return self._last_ns + PAUSE_NS if self._digits else None

    def press(self, digit: str, now_ns: int) -> str:
        """A key is pressed. Gives the number that is complete with it; empty where none is."""
        if digit == TERMINATOR:
            return self._take()
        self._digits += digit
        self._last_ns = now_ns
        return self._take() if len(self._digits) >= DIGITS_MAX else ""

    def tick(self, now_ns: int) -> str:
        """Time goes by. Gives the number that is complete by now; empty where none is."""
        return self._take() if self.due_ns is not None and now_ns >= self.due_ns else ""

    def _take(self) -> str:
        digits, self._digits = self._digits, ""
        return digits
