"""What the answers of the store amount to: whether new sessions can be kept.

Rules
* One failure is none: it takes two in a row, and one good answer ends it. A call that comes in between is refused by
  the store itself.
"""

from __future__ import annotations

from sessions.store import OperatorError, StoreError, StoreFull, StoreTimeout

FAILURES_IN_A_ROW = 2


class StoreStanding:
    def __init__(self) -> None:
        self._failures = 0
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why no session can be kept now, or None where one can."""
        return self._trouble

    def answered(self) -> None:
        """The store has taken a write."""
        self._failures, self._trouble = 0, None

    def failed(self, error: StoreError) -> None:
        """It has not."""
        self._failures += 1
        if self._failures >= FAILURES_IN_A_ROW:
            self._trouble = _said_of(error)


def _said_of(error: StoreError) -> str:
    match error:
        case StoreFull():
            return "the store is full"
        case OperatorError():
            return "the store refuses what it is asked"
        case StoreTimeout():
            return "the store does not answer"
        case _:
            return "the store is away"
