"""When a caller's sound is spoken, where it comes faster than anybody speaks.

Theory of operation
    What a live microphone sends was spoken just now. A client that sends a recording at once is ahead of time: what it
    sends is taken to be spoken from its arrival on, each sample in its time, so that what it says after a reply is not
    taken to be said over the last of its sound, which is still on its way to the ear.

    How far input is ahead is kept as in a leaky bucket: sound fills it, and time drains it somewhat faster than sound
    can be spoken. What was held up on its way and then came at once is soon live again.

Rules
* Nothing is ever taken to be spoken before it has come.
* Only what ends by its clock depends on this: what is being said goes on until it is stopped.
"""

from __future__ import annotations

NS_PER_S = 1_000_000_000

LIVE_NS = 200_000_000  # live clients send messages of 20 to 200 ms
LEAD_NS_MAX = 1_000_000_000  # longer than any sound is on its way to the ear; drained in 4 s
DRAIN_NUMERATOR, DRAIN_DENOMINATOR = 5, 4


class InputPace:
    """Of one call. `sample_rate`: of the input that is counted."""

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._lead_ns = 0
        self._last_ns = 0

    def spoken_ns(self, samples: int, now_ns: int) -> int:
        """So many samples have come; gives when the first of them is spoken, `now_ns` or later."""
        drained_ns = (now_ns - self._last_ns) * DRAIN_NUMERATOR // DRAIN_DENOMINATOR
        lead_ns = max(0, self._lead_ns - drained_ns)
        self._lead_ns = min(lead_ns + samples * NS_PER_S // self._rate, LEAD_NS_MAX)
        self._last_ns = now_ns
        return now_ns + max(0, lead_ns - LIVE_NS)
