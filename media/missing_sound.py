"""How much of a caller's sound is missing, where it has stopped coming.

Theory of operation
    A live microphone sends all the time, silence too. One that is muted, unplugged or paused, or whose page is frozen,
    sends nothing, and so do senders that leave silence out (discontinuous transmission, RFC 7587, section 3.1.3). What
    has come covers its own length of time from its arrival on; what is not covered after that is late at first, and
    then missing.

Rules
* What is late for less than `LATE_NS_MAX` is not missing: it may still come.
* Where nobody has looked for `LOOK_NS_MAX`, it was we who stood still: what came meanwhile may yet be read.
* What was sent ahead of time counts for at most `AHEAD_NS_MAX`, so that no recording, however long, which breaks off
  amid speech is waited for any longer.
"""

from __future__ import annotations

NS_PER_S = 1_000_000_000

# A second is what a busy page or a bad network holds back, and 0.2 s the jitter beside it. A sender of Opus that is
# silent still sends every 0.4 s (RFC 6716, section 2.1.9).
LATE_NS_MAX = 1_200_000_000
LOOK_NS_MAX = 200_000_000  # ten slots of the pacer
AHEAD_NS_MAX = 10_000_000_000  # messages of a few seconds are common, of more than ten unheard of in a live call


class MissingSound:
    """Of one call. `sample_rate`: of the input that is counted."""

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._covered_ns: int | None = None
        self._looked_ns = 0

    def came(self, samples: int, now_ns: int) -> None:
        """So many samples have come."""
        covered_ns = max(self._covered_ns or now_ns, now_ns) + samples * NS_PER_S // self._rate
        self._covered_ns = min(covered_ns, now_ns + AHEAD_NS_MAX)

    def is_coming(self, now_ns: int) -> bool:
        """Some has come, and none is missing."""
        return self._covered_ns is not None and now_ns - self._covered_ns < LATE_NS_MAX

    def samples(self, now_ns: int) -> int:
        """How many are missing by now; 0 while they may only be late, and before any has come. To be asked all the
        time."""
        unseen_ns, self._looked_ns = now_ns - self._looked_ns, now_ns
        if self._covered_ns is not None and unseen_ns > LOOK_NS_MAX:
            self._covered_ns = max(self._covered_ns, min(self._covered_ns + unseen_ns, now_ns))
        if self._covered_ns is None or self.is_coming(now_ns):
            return 0
        return (now_ns - self._covered_ns) * self._rate // NS_PER_S
