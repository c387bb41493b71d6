"""Whose turn it is at a KV slot: streams of one session in the slot that it has, or gets, and out-of-band ones in the
spare.

Rules
* A step owns the slot from the moment that it is planned until its result is in, or its stream has left.
* A response has precedence: while one of the session is open, nothing is read ahead.
* A session's slot may be another one at each step of a stream that reads ahead; a response keeps the one that it began
  with (`stages.kv_cache`).
* The spare forgets what another stream has left there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from stages.engines.local.kv_slot import Slot
from stages.kv_cache import KvCache


class Seat(Protocol):
    """One stream's turn."""

    def take(self) -> Slot | None:
        """The slot, for the stream's next step; None while it is another's turn, or no slot is to be had."""
        ...

    def step_over(self) -> None:
        """The step is over, or will not be begun."""
        ...

    def leave(self) -> None:
        """The stream wants nothing for now."""
        ...

    @property
    def is_taken(self) -> bool:
        """A step of the stream owns the slot."""
        ...


@dataclass(slots=True, eq=False)
class Turns:
    """Of one session, or of all out-of-band streams. `responses` are open; `holder` owns the slot now."""

    responses: int = 0
    holder: Seat | None = None
    latest: Seat | None = None


class SessionSeat:
    """In the slot of `session`. `ahead`: its stream reads ahead. Raises `StageFailure("capacity")`."""

    def __init__(self, kv: KvCache[Slot], turns: Turns, session: str, *, ahead: bool) -> None:
        self._kv = kv
        self._turns = turns
        self._ahead = ahead
        self._claim = kv.claim(session, ahead=ahead)
        self._slot: Slot | None = None

    @property
    def is_taken(self) -> bool:
        return self._turns.holder is self

    def take(self) -> Slot | None:
        if self._ahead and self._turns.responses:
            self.leave()
            return None
        if self._turns.holder not in (None, self):
            return None
        self._slot = self._kv.take(self._claim)
        if self._slot is not None:
            self._turns.holder = self
        return self._slot

    def step_over(self) -> None:
        if self._turns.holder is self and self._slot is not None:
            self._turns.holder = None
            self._kv.step_over(self._claim, self._slot.tokens, self._slot.take_read())

    def leave(self) -> None:
        self.step_over()
        self._kv.release(self._claim)


class SpareSeat:
    """In the spare `slot`."""

    def __init__(self, slot: Slot, turns: Turns) -> None:
        self._slot = slot
        self._turns = turns

    @property
    def is_taken(self) -> bool:
        return self._turns.holder is self

    def take(self) -> Slot | None:
        if self._turns.holder not in (None, self):
            return None
        if self._turns.latest is not self:
            self._slot.text = None
        self._turns.holder = self._turns.latest = self
        return self._slot

    def step_over(self) -> None:
        if self._turns.holder is self:
            self._turns.holder = None

    def leave(self) -> None:
        self.step_over()
