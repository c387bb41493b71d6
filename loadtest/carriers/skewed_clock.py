"""A clock that runs faster or slower than the machine's, as a carrier's does."""

from __future__ import annotations

from loadtest.caller import Clock

PPM = 1_000_000


class SkewedClock:
    """`clock`, faster by `skew_ppm` millionths from the first reading on."""

    def __init__(self, clock: Clock, skew_ppm: int) -> None:
        assert skew_ppm > -PPM
        self._clock = clock
        self._rate = PPM + skew_ppm
        self._start_ns: int | None = None

    def now_ns(self) -> int:
        now_ns = self._clock.now_ns()
        if self._start_ns is None:
            self._start_ns = now_ns
        return self._start_ns + (now_ns - self._start_ns) * self._rate // PPM

    async def sleep_until(self, deadline_ns: int) -> None:
        assert self._start_ns is not None, "the clock has been read before"
        await self._clock.sleep_until(self._start_ns - (self._start_ns - deadline_ns) * PPM // self._rate)
