"""Credit of one stream on one edge: what may be in flight between a producer and its consumer.

Theory of operation
    The edge's window is known to both sides, so a stream starts with a full window. The producer takes units before
    it sends, all or nothing; the consumer gives them back once it has consumed, refused or cancelled. A stream that
    ends takes its credit with it. What all streams of an edge have in flight together stands in the edge's account.

Rules
* `available + in_flight == window`, always; giving back more than is in flight is a bug and raises.
* An account holds what its credits have in flight, and nothing once all are closed.
"""

from __future__ import annotations

from dataclasses import dataclass


class CreditError(RuntimeError):
    """Credit was given back twice, or an item can never fit the window: a bug on this side of the link."""


@dataclass(frozen=True, slots=True)
class CreditStatistics:
    window: int
    in_flight: int
    in_flight_peak: int
    refused: int


@dataclass(slots=True)
class CreditAccount:
    """What the streams of one edge have in flight together, now and at most."""

    in_flight: int = 0
    peak: int = 0

    def add(self, units: int) -> None:
        """Enter `units` more; negative ones came back."""
        self.in_flight += units
        self.peak = max(self.peak, self.in_flight)


class Credit:
    """`window` is in the edge's unit: samples, latent frames or characters. `account`: the edge's, if it has one."""

    def __init__(self, window: int, account: CreditAccount | None = None) -> None:
        if window <= 0:
            raise CreditError(f"a window of {window} units lets nothing pass")
        self._window = window
        self._account = account or CreditAccount()
        self._in_flight = 0
        self._peak = 0
        self._refused = 0
        self._moves = 0

    @property
    def window(self) -> int:
        return self._window

    @property
    def available(self) -> int:
        return self._window - self._in_flight

    @property
    def moves(self) -> int:
        """How often units were taken or have come back: who waits for credit that moves gets on."""
        return self._moves

    def take(self, units: int) -> bool:
        """Take `units`, all or nothing. Raises `CreditError` where they exceed the whole window."""
        if units < 0 or units > self._window:
            raise CreditError(f"{units} units can never fit a window of {self._window}")
        if units > self.available:
            self._refused += 1
            return False
        self._move(units)
        self._peak = max(self._peak, self._in_flight)
        return True

    def give_back(self, units: int) -> None:
        """Return `units` that were taken. Raises `CreditError` where fewer are in flight."""
        if units < 0 or units > self._in_flight:
            raise CreditError(f"{units} units given back, {self._in_flight} in flight")
        self._move(-units)

    def close(self) -> None:
        """The stream has ended, and its credit with it."""
        self._move(-self._in_flight)

    def _move(self, units: int) -> None:
        self._in_flight += units
        self._account.add(units)
        self._moves += 1

    def statistics(self) -> CreditStatistics:
        return CreditStatistics(self._window, self._in_flight, self._peak, self._refused)
