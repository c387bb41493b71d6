"""The clock of packets, with a peer that writes when it is told to."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from duplex.webrtc.mouth import DEVICE_MS, LATENCY_MS_MAX, PACKETS_GAP_NS_MAX, REPORT_AGE_MS_MAX, Mouth
from duplex.webrtc.rtp import PACKET_NS, PACKET_TICKS, SENDING_PACKETS_MAX, ReceiverReport, SentPacket
from media.heard_estimate import SILENCE_NS_MAX, WEBRTC_LATENCY, Probe, path_of
from media.playout import Frame
from media.rtp_map import Position
from sessions.events import Event, InputCleared, ReplyAudio

SAMPLES = 480
BEGAN_NS = 7_000_000_000
ORIGIN = (1 << 32) - 10_000
LOOKAHEAD = 120
SILENCE = b"silence"


@dataclass(slots=True)
class Sender:
    """Writes what it has when `write` is called."""

    is_sending: bool = True
    timestamp_origin: int | None = ORIGIN
    report: ReceiverReport | None = None
    last_packet_ns: int | None = None
    queue: list[SentPacket] = field(default_factory=list)
    written: list[SentPacket] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        return len(self.queue)

    def put(self, packet: SentPacket) -> None:
        assert len(self.queue) < SENDING_PACKETS_MAX
        self.queue.append(packet)

    def take_back(self) -> list[SentPacket]:
        packets, self.queue = self.queue, []
        return packets

    def write(self) -> None:
        self.written += self.take_back()


class Encoder:
    lookahead_ticks = LOOKAHEAD

    def encode(self, pcm: bytes) -> bytes:
        return pcm

    def silence(self) -> bytes:
        return SILENCE


@dataclass(slots=True)
class Messages:
    told: list[Event] = field(default_factory=list)
    dropped: int = 0
    paced_ns: list[int] = field(default_factory=list)

    def pace(self, now_ns: int) -> None:
        self.paced_ns.append(now_ns)

    def tell(self, event: Event) -> None:
        self.told.append(event)

    def drop_audio(self) -> None:
        self.dropped += 1


class Bench:
    def __init__(self) -> None:
        self.sender, self.messages = Sender(), Messages()
        self.passed: list[int] = []
        self.mouth = Mouth(self.sender, Encoder(), self.messages, self.passed.append)
        self.said = 0

    def slot(self, at_ns: int, *, replies: int = 0) -> list[int]:
        """The pacer's slot at `at_ns` after the beginning, with `replies` frames to send; the moments asked for."""
        now_ns, moments = BEGAN_NS + at_ns, list[int]()
        self.mouth.pace(now_ns)
        while (frame_ns := self.mouth.next_frame_ns(now_ns)) is not None:
            moments.append(frame_ns - BEGAN_NS)
            if replies:
                replies -= 1
                self.say()
            else:
                assert self.mouth.pad()
        return moments

    def say(self, samples: int = SAMPLES) -> None:
        frame = Frame("resp", self.said, b"\x01" * 2 * samples, final=False)
        self.said += samples
        self.mouth.tell(ReplyAudio("item", 0, frame, self.said))


def test_nothing_goes_before_the_peer_is_there() -> None:
    bench = Bench()
    bench.sender.is_sending = False
    assert bench.slot(0) == []
    bench.sender.is_sending = True
    assert bench.slot(PACKET_NS) == [PACKET_NS]
    assert [packet.tick for packet in bench.sender.queue] == [0]


def test_silence_goes_where_nothing_is_said() -> None:
    bench = Bench()
    bench.slot(0)
    bench.slot(PACKET_NS, replies=1)
    bench.slot(2 * PACKET_NS)
    assert [packet.payload for packet in bench.sender.queue] == [SILENCE, b"\x01" * 2 * SAMPLES, SILENCE]


def test_a_slot_that_is_late_or_early_shifts_nothing() -> None:
    bench = Bench()
    bench.slot(0)
    assert bench.slot(PACKET_NS - 3_000_000) == [PACKET_NS]
    assert bench.slot(4 * PACKET_NS + 3_000_000) == [2 * PACKET_NS, 3 * PACKET_NS, 4 * PACKET_NS]
    assert bench.slot(4 * PACKET_NS + 4_000_000) == []


def test_after_a_long_stall_the_clock_has_gone_on() -> None:
    bench = Bench()
    bench.slot(0)
    bench.sender.write()
    stall = SENDING_PACKETS_MAX + 5
    assert bench.slot(stall * PACKET_NS) == [stall * PACKET_NS]
    assert bench.sender.queue[-1].tick == stall * PACKET_TICKS


def test_a_peer_that_does_not_write_takes_no_more() -> None:
    bench = Bench()
    for number in range(SENDING_PACKETS_MAX + 3):
        bench.slot(number * PACKET_NS, replies=1)
    assert bench.said == SENDING_PACKETS_MAX * SAMPLES
    bench.sender.write()
    bench.slot((SENDING_PACKETS_MAX + 3) * PACKET_NS, replies=9)
    assert bench.said == (SENDING_PACKETS_MAX + 4) * SAMPLES


def test_events_go_beside_the_sound() -> None:
    bench = Bench()
    bench.mouth.tell(InputCleared())
    assert bench.messages.told == [InputCleared()]
    assert bench.sender.queue == []


def test_a_stop_leaves_nothing_of_the_reply() -> None:
    bench = Bench()
    bench.slot(0, replies=1)
    bench.sender.write()
    bench.slot(2 * PACKET_NS, replies=2)
    assert bench.mouth.drop_audio() == Position("resp", SAMPLES, SAMPLES), "one frame has left"
    assert bench.messages.dropped == 1
    assert bench.sender.queue == [SentPacket(PACKET_TICKS, SILENCE), SentPacket(2 * PACKET_TICKS, SILENCE)]
    assert bench.mouth.locate(timestamp(10 * PACKET_TICKS), 0, 0) == (Position("resp", SAMPLES, SAMPLES),)
    bench.sender.write()
    assert bench.mouth.drop_audio() is None
    assert bench.sender.queue == []


def test_fastrtc_99_after_a_stop_the_next_reply_goes_in_the_next_packet() -> None:
    bench = Bench()
    for number in range(4):
        bench.slot(number * PACKET_NS, replies=1)
    bench.mouth.drop_audio()
    for number in (4, 5):
        bench.slot(number * PACKET_NS, replies=1)
    bench.sender.write()
    assert [packet.tick for packet in bench.sender.written] == [number * PACKET_TICKS for number in range(6)]
    assert [packet.payload == SILENCE for packet in bench.sender.written] == [True] * 4 + [False] * 2


def timestamp(tick: int) -> int:
    return (ORIGIN + tick) % (1 << 32)


def reporting() -> Bench:
    """Ten frames of a reply have gone out after ten packets of silence."""
    bench = Bench()
    bench.slot(0)
    for number in range(1, 20):
        bench.slot(number * PACKET_NS, replies=int(number >= 10))
        bench.sender.write()
    return bench


def test_a_report_is_a_sample_less_what_lies_behind_the_track() -> None:
    mouth = reporting().mouth
    at = timestamp(15 * PACKET_TICKS)
    late = (DEVICE_MS + 40) * 48 + LOOKAHEAD
    assert mouth.locate(at, 0, 40) == (Position("resp", (5 * PACKET_TICKS - late) // 2, 10 * SAMPLES),)
    assert mouth.locate(at, 10, 40) == (Position("resp", (5 * PACKET_TICKS - late + 480) // 2, 10 * SAMPLES),)


def test_nobody_has_heard_what_was_not_sent() -> None:
    mouth = reporting().mouth
    end = (Position("resp", 10 * SAMPLES - LOOKAHEAD // 2, 10 * SAMPLES),)
    assert mouth.locate(timestamp(500 * PACKET_TICKS), 0, 0) == end
    assert mouth.locate(timestamp(20 * PACKET_TICKS), REPORT_AGE_MS_MAX, 0) == end


def test_before_the_reply_nothing_was_heard() -> None:
    assert reporting().mouth.locate(timestamp(5 * PACKET_TICKS), 0, 0) == (Position("resp", 0, 0),)


def test_reports_without_sense_are_passed_over() -> None:
    bench = reporting()
    at = timestamp(15 * PACKET_TICKS)
    for age_ms, latency_ms in ((-1.0, 0.0), (REPORT_AGE_MS_MAX + 1, 0.0), (0.0, -1.0), (0.0, LATENCY_MS_MAX + 1)):
        assert bench.mouth.locate(at, age_ms, latency_ms) == ()
    bench.sender.timestamp_origin = None
    assert bench.mouth.locate(at, 0, 0) == ()


def test_the_path_is_as_the_peer_reports_it() -> None:
    bench = Bench()
    now_ns = BEGAN_NS + 10 * PACKET_NS
    unknown = path_of(WEBRTC_LATENCY, Probe(), now_ns)
    assert bench.mouth.path(now_ns) == unknown, "nothing was sent"
    bench.slot(0)
    assert bench.mouth.path(now_ns) == unknown, "nothing was reported"
    bench.sender.report = ReceiverReport(4 * PACKET_TICKS, jitter_ns=2_000_000, round_trip_ns=30_000_000)
    arrived_ns = BEGAN_NS + 5 * PACKET_NS
    assert bench.mouth.path(now_ns) == path_of(WEBRTC_LATENCY, Probe(30_000_000, 2_000_000, arrived_ns), now_ns)


def test_a_peer_whose_packets_stay_away_has_fallen_silent() -> None:
    bench = Bench()
    bench.sender.last_packet_ns = BEGAN_NS
    assert bench.mouth.path(BEGAN_NS + PACKETS_GAP_NS_MAX) == path_of(WEBRTC_LATENCY, Probe(), BEGAN_NS)
    assert bench.mouth.path(BEGAN_NS + SILENCE_NS_MAX).silent_ns is None
    assert bench.mouth.path(BEGAN_NS + SILENCE_NS_MAX + 1).silent_ns == BEGAN_NS


@given(st.lists(st.integers(0, 60_000_000), max_size=60))
def test_ticks_are_a_sample_clock(steps: list[int]) -> None:
    bench, now = Bench(), 0
    bench.slot(0)
    for step in steps:
        now += step
        bench.slot(now)
        bench.sender.write()
    ticks = [packet.tick for packet in bench.sender.written]
    assert all(after - before == PACKET_TICKS for before, after in itertools.pairwise(ticks))
    if ticks:
        assert abs(ticks[-1] // PACKET_TICKS * PACKET_NS - now) <= PACKET_NS // 2


def test_messages_are_paced_with_the_sound_and_before_it_begins() -> None:
    one = Bench()
    one.sender.is_sending = False
    one.mouth.pace(5)
    one.sender.is_sending = True
    one.mouth.pace(7)
    assert one.messages.paced_ns == [5, 7]


def test_each_packet_is_counted_once_also_where_it_is_taken_back() -> None:
    one = Bench()
    one.slot(0, replies=1)
    one.slot(PACKET_NS)
    counted = list(one.passed)
    assert len(counted) == 2
    assert counted[-1] == len(Encoder().silence())
    one.mouth.drop_audio()
    assert one.passed == counted
