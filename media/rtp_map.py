"""Which sample of which response plays at a given moment of the RTP clock.

Theory of operation
    Whoever sends packets records each one that carries sound of a response. A report of the ear names a moment of the
    same clock, and gets back the last sample that had been played by then. Between replies the clock runs on over
    silence: a moment there belongs to the end of the reply before it.

Rules
* Ticks count from the first packet and do not wrap; `unwrap` turns a 32-bit timestamp into them.
* Spans are recorded in the order of the clock. Contiguous ones are one span.
* The answer rounds down, and never lies beyond what was recorded.
* At most `SPANS_MAX` spans are kept, the newest.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

SPANS_MAX = 64  # replies that ran dry in between have several; a report is seconds old, not minutes
TIMESTAMP_MODULUS = 1 << 32  # RFC 3550, section 5.1


@dataclass(frozen=True, slots=True)
class Position:
    """So many `samples` of `response` have been played, and it sounds on without a gap until `until`."""

    response: str
    samples: int
    until: int


@dataclass(slots=True)
class _Span:
    start_tick: int
    response: str
    start_sample: int
    samples: int


def unwrap(timestamp: int, near: int) -> int:
    """The tick, of all that have this 32-bit timestamp, that is nearest to `near`."""
    ahead = (timestamp - near) % TIMESTAMP_MODULUS
    return near + (ahead if ahead < TIMESTAMP_MODULUS // 2 else ahead - TIMESTAMP_MODULUS)


class RtpMap:
    """`ticks_per_sample`: of the RTP clock, per sample of the output."""

    def __init__(self, ticks_per_sample: int) -> None:
        assert ticks_per_sample > 0
        self._ticks_per_sample = ticks_per_sample
        self._spans: list[_Span] = []

    @property
    def end_tick(self) -> int:
        """The end of what was recorded last."""
        return self._end_of(self._spans[-1]) if self._spans else 0

    def record(self, tick: int, response: str, start_sample: int, samples: int) -> None:
        """`samples` of `response`, from `start_sample` on, begin at `tick`."""
        assert samples > 0, "silence is not recorded"
        assert tick >= self.end_tick, "the clock does not run backwards"
        last = self._spans[-1] if self._spans else None
        goes_on = (
            last is not None
            and last.response == response
            and self._end_of(last) == tick
            and last.start_sample + last.samples == start_sample
        )
        if last is not None and goes_on:
            last.samples += samples
            return
        self._spans.append(_Span(tick, response, start_sample, samples))
        del self._spans[:-SPANS_MAX]

    def take_back(self, tick: int) -> Position | None:
        """What was recorded from `tick` on is not going to be sent. Gives what is left of the last response of which
        something was; None where nothing was recorded."""
        if self.end_tick <= tick:
            return None
        response, left = self._spans[-1].response, 0
        while self._spans and self._spans[-1].start_tick >= tick:
            taken = self._spans.pop()
            left = taken.start_sample if taken.response == response else left
        if self._spans and self._end_of(self._spans[-1]) > tick:
            last = self._spans[-1]
            last.samples = (tick - last.start_tick) // self._ticks_per_sample
            left = last.start_sample + last.samples if last.response == response else left
        return Position(response, left, left)

    def locate(self, tick: int) -> Position | None:
        """What had been played at `tick`; None before the first reply, or where that is forgotten."""
        place = bisect_right(self._spans, tick, key=lambda span: span.start_tick) - 1
        if place < 0:
            return None
        span = self._spans[place]
        played = min(span.samples, (tick - span.start_tick) // self._ticks_per_sample)
        return Position(span.response, span.start_sample + played, span.start_sample + span.samples)

    def heard_at(self, tick: int) -> tuple[Position, ...]:
        """What had been played at `tick`, and of the responses that begin after it, nothing."""
        located = self.locate(tick)
        coming = {span.response: Position(span.response, 0, 0) for span in self._spans if span.start_tick > tick}
        if located is None:
            return tuple(coming.values())
        coming.pop(located.response, None)
        return (located, *coming.values())

    def _end_of(self, span: _Span) -> int:
        return span.start_tick + span.samples * self._ticks_per_sample
