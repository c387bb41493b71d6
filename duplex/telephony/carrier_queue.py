"""What a carrier has yet to play of what it was sent, and up to where it has played: from its marks and the clock.

Theory of operation
    The last mark that came back says where the carrier was when it sent it. From then on it has gone on in real time,
    as far as anybody knows: up to the next mark that has not come back, and up to a *break*, where it may have waited
    for sound and a mark has yet to show that it has gone on. That errs low by the way of the mark, since the carrier
    played on meanwhile. Before the first mark nothing is known.

    How full its queue is follows from what it was sent, and the clock. A pause stops both. What was held up on its way
    comes in a burst, and then waits there longer than the clock knows; a carrier whose clock is faster than ours has
    less than that says. The marks show both.

Rules
* Offsets are samples of the line; what is heard never goes back.
* Behind a flush all begins anew, at what was sent until then.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

NS_PER_S = 1_000_000_000
TICK_NS = 20_000_000  # a mark is sent back with the frame that follows it
# Sound that is held up on its way for 10 to 25 ms, as is common, comes in time where there is so much to play.
DRY_NS = 40_000_000


class CarrierQueue:
    """Of one call; `sample_rate`: of its line. `is_counted`: the carrier tells what it has not played where that
    matters."""

    def __init__(self, sample_rate: int, *, is_counted: bool = False) -> None:
        self._rate = sample_rate
        self._is_counted = is_counted
        self._sent = 0
        self._begins = 0  # where it was flushed last
        self._play_end_ns = 0  # when what was sent has been played
        self._marks: deque[int] = deque()
        self._breaks: deque[int] = deque()
        self._played: int | None = None  # by the last mark
        self._played_ns = 0
        self._paused_ns: int | None = None
        self.gained_ns = 0
        """How much more than our clock's time it has played since it had nothing to play."""

    @property
    def end(self) -> int:
        """Where what was sent ends."""
        return self._sent

    @property
    def is_playing(self) -> bool:
        """Something that was sent has not been played yet, by the marks."""
        return self._sent > (self._begins if self._played is None else self._played)

    def sent(self, end: int, now_ns: int) -> bool:
        """What was sent ends at `end`. True where the carrier surely has something to play until that is there."""
        samples = end - self._sent
        if not self.is_playing:
            self.gained_ns = 0
        is_surely_on = self.lead_ns(now_ns) >= DRY_NS
        if not is_surely_on:
            self._breaks.append(self._sent)
        self._play_end_ns = max(self._play_end_ns, self._clock(now_ns)) + samples * NS_PER_S // self._rate
        self._sent = end
        return is_surely_on

    def flush(self, end: int, now_ns: int) -> None:
        """No more than what ends at `end` was sent after all. What of it has not been played never will be, and playing
        goes on with what is sent from now on."""
        self._begins = self._sent = end
        self._played = None
        self._marks.clear()
        self._breaks.clear()
        self._play_end_ns = now_ns
        self._paused_ns = None
        self.gained_ns = 0

    def marked(self) -> None:
        """A mark was sent behind all that was."""
        self._marks.append(self._sent)

    def _clock(self, now_ns: int) -> int:
        """The carrier's, which stands still while it is paused."""
        return now_ns if self._paused_ns is None else min(now_ns, self._paused_ns)

    def played(self, offset: int, now_ns: int, round_trip_ns: int | None = None) -> None:
        """The carrier says that it has played all before `offset`. `round_trip_ns`: how long it takes to ask it and be
        answered; None: not known."""
        offset = min(offset, self._sent)
        if offset <= self._begins:
            return
        unplayed_ns = (self._sent - offset) * NS_PER_S // self._rate
        gained_ns = max(0, self._play_end_ns - self._clock(now_ns) - unplayed_ns)
        self._play_end_ns -= gained_ns
        self.gained_ns += gained_ns
        if round_trip_ns is not None:
            least_ns = self._clock(now_ns) + unplayed_ns - round_trip_ns - TICK_NS
            self._play_end_ns = max(self._play_end_ns, least_ns)
        while self._marks and self._marks[0] <= offset:
            self._marks.popleft()
        while self._breaks and self._breaks[0] < offset:
            self._breaks.popleft()
        if self._played is None or offset >= self._played:
            self._played, self._played_ns = offset, self._clock(now_ns)

    def heard(self, now_ns: int) -> int | None:
        """Up to where it has played, as far as is known; None where nothing is."""
        if self._played is None or self._is_counted:
            return self._played
        since_ns = max(0, self._clock(now_ns) - self._played_ns)
        most = min([self._sent, *islice(self._marks, 1), *islice(self._breaks, 1)])
        return max(self._played, min(self._played + since_ns * self._rate // NS_PER_S, most))

    def lead_ns(self, now_ns: int) -> int:
        """How much it has yet to play, by the clock."""
        return max(0, self._play_end_ns - self._clock(now_ns))

    @property
    def is_paused(self) -> bool:
        return self._paused_ns is not None

    def pause(self, now_ns: int) -> None:
        if self._paused_ns is None:
            self._paused_ns = now_ns

    def resume(self, now_ns: int) -> None:
        if self._paused_ns is not None:
            stood_ns = now_ns - self._paused_ns
            self._paused_ns = None
            self._play_end_ns += stood_ns
            self._played_ns += stood_ns
