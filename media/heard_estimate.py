"""What has been heard where its client does not say so: an interval, from the pace of sending and a model of the path.

Theory of operation
    Each sample that is sent has a moment at which a caller who plays everything on arrival, and whom it reaches in no
    time, hears it: `Pacing` keeps these. The ear really has it later, by a delay of which only bounds are known: the
    way there, a jitter buffer, the player and its device. A `Path` holds those bounds. By `now`, what was due
    `delay_ns_max` ago has been heard at least, and what was due `delay_ns_min` ago at most.

    A transport tells what it sees of the path as a `Probe`: how long a question and its answer took (a WebSocket's
    ping, RTCP's reports), up to where what was sent has arrived, and since when nothing comes back that should.
    `path_of` makes the bounds of it, and of the `Latency` behind the transport, which nobody measures for us.

Rules
* The lower bound errs low. The way there may have taken the whole of a round trip; a question without an answer has
  taken as long as it is waited for. What was sent after the peer was last known to take anything has not arrived, once
  it has fallen silent.
* A delay is at most `DELAY_NS_MAX`; a path that is worse is one that is silent.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

DELAY_NS_MAX = 2 * NS_PER_S  # as long as a client's reports are waited for
SILENCE_NS_MAX = 2 * NS_PER_S
ROUND_TRIP_NS_UNKNOWN = 300 * NS_PER_MS  # to the other side of the world and back, until one was measured
JITTER_DEVIATIONS = 4  # a mean deviation, times four, bounds what comes late: RFC 6298, section 2
SPANS_MAX = 128  # of 20 ms each these are more than the longest delay, though every one began late


@dataclass(frozen=True, slots=True)
class Latency:
    """From the arrival of a sample to the ear."""

    ns_min: int
    ns_max: int


# Over a WebSocket nothing is known of the player but that it has one. It may be a program that takes samples at once; a
# page gathers some frames of 20 ms first, and Chromium's `outputLatency` was measured as 32 ms.
WEBSOCKET_LATENCY = Latency(0, 100 * NS_PER_MS)
# Measured in Chromium on a path without jitter: 53 to 60 ms from a packet to the track, 30 to 39 of them in the jitter
# buffer, and then 32 ms of `outputLatency`.
WEBRTC_LATENCY = Latency(50 * NS_PER_MS, 100 * NS_PER_MS)
# From a carrier's queue to the ear: RTP and the jitter buffer of a phone, 40 to 100 ms, and of a mobile network as much
# again.
TELEPHONE_LATENCY = Latency(0, 200 * NS_PER_MS)


@dataclass(frozen=True, slots=True)
class Probe:
    """What a transport sees of its path now.

    `round_trip_ns`: of the last question that was answered. `jitter_ns`: mean deviation of what arrives (RFC 3550,
    section 6.4.1). `arrived_ns`: what was due by then has arrived. `asked_ns`: since when nothing has come back, though
    it should; None while it does. `alive_ns`: when the peer was last known to take what it is sent, if not then.
    """

    round_trip_ns: int | None = None
    jitter_ns: int = 0
    arrived_ns: int = 0
    asked_ns: int | None = None
    alive_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Path:
    """Bounds of the delay between the moment at which a sample is due and the ear.

    `report_ns_max`: how long a report takes to come back. `arrived_ns`: what was due by then has arrived for certain.
    `silent_ns`: of what was due after that nothing is believed to arrive; None: all of it will.
    """

    delay_ns_min: int = 0
    delay_ns_max: int = 0
    report_ns_max: int = 0
    arrived_ns: int = 0
    silent_ns: int | None = None

    def heard_by(self, now_ns: int) -> int:
        """What was due by this moment has been heard by `now_ns`, whatever the delay is."""
        at_ns = now_ns - self.delay_ns_max
        return at_ns if self.silent_ns is None else min(at_ns, self.silent_ns)


def path_of(latency: Latency, probe: Probe, now_ns: int) -> Path:
    """The path as far as `probe` shows it, with `latency` at its end."""
    waited_ns = 0 if probe.asked_ns is None else max(0, now_ns - probe.asked_ns)
    round_trip_ns = ROUND_TRIP_NS_UNKNOWN if probe.round_trip_ns is None else max(0, probe.round_trip_ns)
    round_trip_ns = min(max(round_trip_ns, waited_ns), DELAY_NS_MAX)
    delay_ns_max = min(latency.ns_max + round_trip_ns + JITTER_DEVIATIONS * probe.jitter_ns, DELAY_NS_MAX)
    alive_ns = probe.asked_ns if probe.alive_ns is None else probe.alive_ns
    silent_ns = alive_ns if waited_ns > SILENCE_NS_MAX else None
    return Path(latency.ns_min, delay_ns_max, round_trip_ns, probe.arrived_ns, silent_ns)


@dataclass(slots=True)
class _Span:
    start_ns: int
    start_sample: int
    samples: int


class Pacing:
    """When the samples of one response are due at an ear without delay. `sample_rate`: of its samples."""

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._spans: list[_Span] = []

    def record(self, start_ns: int, samples: int) -> None:
        """The next `samples` begin at `start_ns`, no sooner than those before them began."""
        last = self._spans[-1] if self._spans else None
        if last is not None and start_ns <= self._end_ns(last):
            last.samples += samples
            return
        start_sample = last.start_sample + last.samples if last else 0
        self._spans.append(_Span(start_ns, start_sample, samples))
        if len(self._spans) > SPANS_MAX:
            self._merge_oldest()

    def _merge_oldest(self) -> None:
        """Forget a gap of long ago: what was before it counts as later than it was, which errs low."""
        older, newer = self._spans[:2]
        samples = older.samples + newer.samples
        start_ns = self._end_ns(newer) - samples * NS_PER_S // self._rate
        self._spans[:2] = [_Span(start_ns, older.start_sample, samples)]

    @property
    def end_ns(self) -> int:
        """When all of them are whole."""
        return self._end_ns(self._spans[-1]) if self._spans else 0

    def take_back(self, samples: int) -> None:
        """No more than the first `samples` were sent after all."""
        while self._spans and self._spans[-1].start_sample >= samples:
            self._spans.pop()
        if self._spans:
            last = self._spans[-1]
            last.samples = min(last.samples, samples - last.start_sample)

    def _end_ns(self, span: _Span) -> int:
        return span.start_ns + span.samples * NS_PER_S // self._rate

    def due_by(self, at_ns: int) -> int:
        """How many samples are whole by then."""
        place = bisect_right(self._spans, at_ns, key=lambda span: span.start_ns) - 1
        if place < 0:
            return 0
        span = self._spans[place]
        return span.start_sample + min(span.samples, (at_ns - span.start_ns) * self._rate // NS_PER_S)

    def due_ns(self, samples: int) -> int | None:
        """The moment at which `samples` of them are whole; None where so many were not recorded, or none are asked."""
        if samples <= 0:
            return None
        place = bisect_right(self._spans, samples - 1, key=lambda span: span.start_sample) - 1
        if place < 0 or samples > self._spans[place].start_sample + self._spans[place].samples:
            return None
        span = self._spans[place]
        return span.start_ns - (-(samples - span.start_sample) * NS_PER_S // self._rate)
