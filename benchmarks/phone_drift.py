"""Ten minutes of a telephone call between clocks that differ: is anything late in the end, and is there a gap?

Theory of operation
    The bridge's cores (pacing, line, codec, the way in) and an emulated carrier talk to each other on a virtual clock;
    no time passes. The carrier's clock is up to 200 ppm faster or slower than ours. What travels takes `WAY_MS`, and
    `STALLED` of the messages, each way, stand still for 10 to 25 ms and hold up what is behind them, as under TCP.

    Either the service speaks without an end, which is the worst for a queue, or replies of `REPLY_S` follow each other
    with pauses. Latency is how long a sample takes from when it was sent until it leaves the carrier's queue, and from
    when the caller said it until it is heard; the same call with equal clocks and without stalls lies beside it.

Promises
* At the end, latency is within a frame of that at the start, both ways.
* No gap: the lead is longer than any stall. The caller's sound is heard whole, and no silence is put in.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from benchmarks.turns import Say
from duplex.telephony.asterisk import Asterisk
from duplex.telephony.carrier import Carrier, Message, SoundIn, Started
from duplex.telephony.inbound import Inbound
from duplex.telephony.line import LinePorts, PhoneLine
from duplex.telephony.media_streams import TWILIO, MediaStreams
from duplex.telephony.outbound import Outbound
from loadtest.carriers.asterisk_channel import AsteriskChannel, ChannelCall
from loadtest.carriers.effects import Effect, Send
from loadtest.carriers.media_stream import MediaStream
from loadtest.carriers.skewed_clock import PPM
from loadtest.carriers.stream_dialects import StreamCall
from loadtest.carriers.unruly_line import Fault, Habits, UnrulyLine
from loadtest.playout_model import Heard
from media.chunk import BYTES_PER_SAMPLE, AudioChunk
from media.heard_estimate import Probe
from media.playout import Playout
from sessions.events import ReplyAudio

MINUTES = 10
SKEWS_PPM = (-200, 0, 200)
STALLED = 0.01
ORDERLY = Habits({})
STALLING = Habits({Fault.STALL: STALLED}, faults_max=1 << 30)
WAY_MS = 1  # on the way to a carrier near by; each way
FRAME_MS = 20
SLOT_MS = 5
REPLY_S, PAUSE_S = 8, 2
PUSH_MS = 1_000  # of sound at once
WINDOW_S = 20  # at either end, of which the median counts
SETTLING_S = 2
NS_PER_MS, NS_PER_S = 1_000_000, 1_000_000_000
RATE = 8_000
PER_FRAME = RATE * FRAME_MS // 1_000
EPOCH = 7
LATENCY_MS_MAX = FRAME_MS
GAP_NS_MIN = NS_PER_MS  # less is rounding

Core = MediaStream | AsteriskChannel


@dataclass(slots=True)
class Found:
    """Of one call. Latencies in ms, in the order of the sound; `gaps_ms`: of silence within replies."""

    out_ms: list[tuple[float, float]] = field(default_factory=list)  # at which s of the call, and what
    in_ms: list[tuple[float, float]] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)
    filled_ms: int = 0
    stalls: int = 0

    def change_ms(self, latencies: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """The median at the start, and by how much that at the end is above it."""
        end_s = latencies[-1][0]
        first = statistics.median(ms for at, ms in latencies if SETTLING_S <= at < SETTLING_S + WINDOW_S)
        return first, statistics.median(ms for at, ms in latencies if at >= end_s - WINDOW_S) - first


class VirtualCall:
    """A carrier whose clock is `skew_ppm` faster than ours, `way_ms` away, and the bridge. Replies follow each other
    with pauses, or the first has no end (`monologue`)."""

    def __init__(
        self,
        core: Core,
        carrier: Carrier,
        skew_ppm: int,
        habits: Habits,
        *,
        monologue: bool = False,
        way_ms: int = WAY_MS,
        seed: int = 1,
    ) -> None:
        self.found = Found()
        self._core, self._carrier = core, carrier
        self._rate_ppm = PPM + skew_ppm
        self._monologue = monologue
        self._way_ns = way_ms * NS_PER_MS
        self._in, self._out = (UnrulyLine(habits, Random(one), {}) for one in (seed, seed + 1))
        self._now_ns = 0
        self._silence = core.sound.encode(bytes(BYTES_PER_SAMPLE * core.frame_samples))
        self._ticks = 0
        self._travelling: list[tuple[int, Send]] = []
        self._inbound: Inbound | None = None
        self._heard_frames = 0
        self._line: PhoneLine | None = None
        self._outbound = Outbound(NS_PER_S * 3_600)
        self._replies = 0
        self._sent_ns: list[int] = []  # of each frame, and whether it begins a reply
        self._begins: set[int] = set()
        self._left: list[int] = []

    # ---- the clock -------------------------------------------------------------------------------

    def run(self, minutes: float) -> Found:
        """So long, in steps of a millisecond."""
        self._in.open([effect for effect in self._core.begin() if isinstance(effect, Send)], 0)
        for ms in range(round(minutes * 60_000)):
            self._now_ns = ms * NS_PER_MS
            for message in self._out.due(self._now_ns - self._way_ns):
                self._perform(self._core.receive(message, self._carrier_ns))
            self._tick()
            for message in self._in.due(self._now_ns - self._way_ns):
                self._take(message)
            if ms % SLOT_MS == 0:
                self._pace()
        self._account()
        return self.found

    @property
    def _carrier_ns(self) -> int:
        return self._now_ns * self._rate_ppm // PPM

    def _ours_ns(self, carrier_ns: int) -> int:
        return carrier_ns * PPM // self._rate_ppm

    # ---- the carrier -----------------------------------------------------------------------------

    def _tick(self) -> None:
        due_ns = (self._ticks + 1) * FRAME_MS * NS_PER_MS
        if self._carrier_ns >= due_ns:
            self._ticks += 1
            self._perform(self._core.frame(self._silence, due_ns))

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._in.take(effect, self._now_ns)
                case Heard(start_ns, pcm):
                    frames = len(pcm) // BYTES_PER_SAMPLE // PER_FRAME
                    self._left += [self._ours_ns(start_ns + at * FRAME_MS * NS_PER_MS) for at in range(frames)]
                case _:
                    pass

    # ---- the service -----------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        for event in self._carrier.receive(message):
            match event:
                case Started():
                    self._begin(event)
                case SoundIn():
                    assert self._inbound is not None, "it has started"
                    for _ in self._inbound.take(event):
                        said_ns = self._ours_ns((self._heard_frames + 1) * FRAME_MS * NS_PER_MS)
                        self._heard_frames += 1
                        self.found.in_ms.append((self._now_ns / NS_PER_S, (self._now_ns - said_ns) / NS_PER_MS))
                case _ if self._line is not None:
                    self._line.told(event, self._now_ns)

    def _begin(self, started: Started) -> None:
        can_do = self._carrier.capabilities
        self._inbound = Inbound(started.format, is_ordered=can_do.is_ordered)
        self._playout = Playout(RATE, PER_FRAME, can_do.lead_ms * NS_PER_MS, "mark")
        ports = LinePorts(self._heard, lambda: True, lambda: Probe(round_trip_ns=2 * self._way_ns))
        self._line = PhoneLine(self._carrier, started.format, RATE, self._outbound, ports)

    def _heard(self, response: str, samples: int) -> None:
        self._playout.acknowledge(response, samples, self._now_ns)

    def _pace(self) -> None:
        if self._line is None:
            return
        self._speak()
        self._line.pace(self._now_ns)
        while (frame_ns := self._line.next_frame_ns(self._now_ns)) is not None:
            frame = self._playout.due(frame_ns)
            if frame is None:
                break
            if frame.start_sample == 0:
                self._begins.add(len(self._sent_ns))
            self._sent_ns += [self._now_ns] * (frame.samples // PER_FRAME)
            self._line.tell(ReplyAudio("item", EPOCH, frame, frame.end_sample, "audio/pcmu"))
            self._write()
        self._write()

    def _write(self) -> None:
        while self._outbound.waiting:
            self._out.take(Send(self._taken()), self._now_ns)

    def _taken(self) -> Message:
        """What waits to be sent; nothing has to be waited for."""
        try:
            self._outbound.next().send(None)
        except StopIteration as done:
            message: Message = done.value
            return message
        raise AssertionError("something was waiting")

    def _speak(self) -> None:
        """Have the next reply made, or more of it, in time."""
        period_s = REPLY_S + PAUSE_S
        if self._monologue:
            due, seconds = self._now_ns // NS_PER_S + 1, None
        else:
            due, seconds = self._now_ns // NS_PER_S // period_s, REPLY_S
        while self._replies <= due:
            self._make(self._replies, seconds)
            self._replies += 1

    def _make(self, number: int, seconds: int | None) -> None:
        sound = bytes(BYTES_PER_SAMPLE * RATE * (seconds or 1))
        name = "monologue" if seconds is None else f"reply_{number}"
        start = RATE * number if seconds is None else 0
        if start == 0:
            self._playout.open(name)
        seq = number if seconds is None else 0
        self._playout.push(name, AudioChunk(seq, RATE, start, sound, final=seconds is not None))

    # ---- what was found --------------------------------------------------------------------------

    def _account(self) -> None:
        self.found.stalls = self._in.played[Fault.STALL] + self._out.played[Fault.STALL]
        assert self._inbound is not None
        self.found.filled_ms = self._inbound.counts.filled_ms
        for sent_ns, left_ns in zip(self._sent_ns, self._left, strict=False):
            self.found.out_ms.append((sent_ns / NS_PER_S, (left_ns - sent_ns) / NS_PER_MS))
        frame_ns = self._ours_ns(FRAME_MS * NS_PER_MS)
        for number, (before, after) in enumerate(pairwise(self._left), 1):
            if number not in self._begins and after - before - frame_ns >= GAP_NS_MIN:
                self.found.gaps_ms.append((after - before - frame_ns) / NS_PER_MS)


CALLS: dict[str, Callable[[], tuple[Core, Carrier]]] = {
    "twilio": lambda: (MediaStream(StreamCall()), MediaStreams(TWILIO)),
    "asterisk": lambda: (AsteriskChannel(ChannelCall()), Asterisk()),
}


def drifting(carrier: str, skew_ppm: int, minutes: float, *, stalls: bool = True, monologue: bool = False) -> Found:
    """Such a call."""
    core, codec = CALLS[carrier]()
    return VirtualCall(core, codec, skew_ppm, STALLING if stalls else ORDERLY, monologue=monologue).run(minutes)


def keeps(found: Found) -> bool:
    """Whether the promises were kept."""
    changes = [found.change_ms(latencies)[1] for latencies in (found.out_ms, found.in_ms)]
    return not found.gaps_ms and not found.filled_ms and all(abs(one) <= LATENCY_MS_MAX for one in changes)


async def phone_drift(say: Say, *, minutes: int) -> bool:
    """Each carrier with each clock; False where a promise was broken."""
    good = True
    for carrier in CALLS:
        for monologue in (False, True):
            name = f"{carrier}, {'one reply without an end' if monologue else 'replies and pauses'}"
            _tell(say, f"{name}, floor", drifting(carrier, 0, minutes, stalls=False, monologue=monologue))
            for skew_ppm in SKEWS_PPM:
                found = drifting(carrier, skew_ppm, minutes, monologue=monologue)
                _tell(say, f"{name}, {skew_ppm:+d} ppm", found)
                good &= keeps(found)
    return good


def _tell(say: Say, name: str, found: Found) -> None:
    (out, out_more), (into, in_more) = found.change_ms(found.out_ms), found.change_ms(found.in_ms)
    gaps = f"{len(found.gaps_ms)} gaps, {max(found.gaps_ms, default=0):.0f} ms at most"
    told = (
        f"latency out {out:6.1f} ms {out_more:+6.1f}, in {into:5.1f} ms {in_more:+5.1f}; {found.stalls} stalls, {gaps}"
    )
    say(f"{'good ' if keeps(found) else 'FAULT'} {name:<52} {told}, {found.filled_ms} ms filled in")
