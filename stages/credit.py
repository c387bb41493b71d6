"""Credit of one stream on one edge: what may be in flight between a producer and its consumer.

Theory of operation
    The edge's window is known to both sides, so a stream starts with a full window. The producer takes units before
    it sends, all or nothing; the consumer gives them back once it has consumed, refused or cancelled. A stream that
    ends takes its credit with it.

Rules
* `available + in_flight == window`, always; giving back more than is in flight is a bug and raises.
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


class Credit:
    """`window` is in the edge's unit: samples, latent frames or characters."""

    def __init__(self, window: int) -> None:
        if window <= 0:
            raise CreditError(f"a window of {window} units lets nothing pass")
        self._window = window
        self._in_flight = 0
        self._peak = 0
        self._refused = 0

    @property
    def window(self) -> int:
        return self._window

    @property
    def available(self) -> int:
        return self._window - self._in_flight

    def take(self, units: int) -> bool:
        """Take `units`, all or nothing. Raises `CreditError` where they exceed the whole window."""
        if units < 0 or units > self._window:
            raise CreditError(f"{units} units can never fit a window of {self._window}")
        if units > self.available:
            self._refused += 1
            return False
        self._in_flight += units
        self._peak = max(self._peak, self._in_flight)
        return True

    def give_back(self, units: int) -> None:
        """Return `units` that were taken. Raises `CreditError` where fewer are in flight."""
        if units < 0 or units > self._in_flight:
            raise CreditError(f"{units} units given back, {self._in_flight} in flight")
        self._in_flight -= units

    def statistics(self) -> CreditStatistics:
        return CreditStatistics(self._window, self._in_flight, self._peak, self._refused)
