"""The line between a conversation and a carrier, with a carrier that writes down what it is told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from duplex.telephony.carrier import (
    MU_LAW_LINE,
    Capabilities,
    Event,
    Flushed,
    Message,
    Played,
    Returned,
    Xoff,
    Xon,
)
from duplex.telephony.line import FULL_NS_MAX, MARK_FRAMES, MARK_FRAMES_SOON, REST_NS_MAX, LinePorts, PhoneLine
from duplex.telephony.outbound import Outbound
from media.heard_estimate import TELEPHONE_LATENCY, Probe, path_of
from media.playout import Frame
from media.rtp_map import SPANS_MAX, Position
from sessions.events import (
    InputCleared,
    ItemTruncated,
    ReplyAudio,
    SettingsChanged,
    SpeechStarted,
    TurnHeld,
    TurnResumed,
)
from sessions.settings import SessionSettings

MS = 1_000_000
TWILIO = Capabilities("returned", False, False, 160, 250, True)
ASTERISK = Capabilities("dropped", True, True, 160, 80, True)


@dataclass
class Recorder:
    """`Carrier` whose messages say what they are."""

    capabilities: Capabilities = TWILIO
    name: str = "recorder"
    is_paused: bool = False

    def receive(self, message: Message, /) -> list[Event]:
        raise NotImplementedError

    def answer(self) -> list[Message]:
        raise NotImplementedError

    def audio(self, epoch: int, offset: int, coded: bytes, /) -> Message:
        assert len(coded) == 160
        return f"audio {epoch}:{offset}"

    def mark(self, epoch: int, offset: int, /) -> list[Message]:
        return [f"mark {epoch}:{offset}"]

    def flush(self, epoch: int, offset: int, /) -> list[Message]:
        self.is_paused = False
        return [f"flush {epoch}:{offset}"]

    def pause(self, epoch: int, offset: int, /) -> list[Message]:
        self.is_paused = True
        return [f"pause {epoch}:{offset}"]

    def resume(self) -> list[Message]:
        was_paused, self.is_paused = self.is_paused, False
        return ["resume"] if was_paused else []

    def hang_up(self) -> list[Message]:
        raise NotImplementedError


@dataclass
class Bench:
    capabilities: Capabilities = TWILIO
    interrupts: bool = True
    probe: Probe = field(default_factory=Probe)
    reports: list[tuple[str, int]] = field(default_factory=list)
    now_ns: int = 1_000 * MS
    sent: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outbound = Outbound(10_000 * MS)
        ports = LinePorts(lambda *heard: self.reports.append(heard), lambda: self.interrupts, lambda: self.probe)
        self.line = PhoneLine(Recorder(self.capabilities), MU_LAW_LINE, 8_000, self.outbound, ports)
        self.line.pace(self.now_ns)

    def pass_ms(self, ms: int) -> None:
        self.now_ns += ms * MS
        self.line.pace(self.now_ns)

    def speak(self, frames: int = 1, response: str = "a", *, epoch: int = 7, final: bool = False) -> None:
        for number in range(frames):
            start = self.sent.get(response, 0)
            self.sent[response] = start + 160
            frame = Frame(response, start, bytes(320), final and number == frames - 1)
            self.line.tell(ReplyAudio("item", epoch, frame, frame.end_sample, "audio/pcmu"))

    def told(self, event: Event) -> None:
        self.line.told(event, self.now_ns)

    def written(self) -> list[Message]:
        """What has left by now."""
        messages = [entry.message for entry in self.outbound._waiting]
        self.outbound._waiting.clear()
        self.outbound._sound = 0
        return messages


def test_frames_go_with_a_mark_behind_each_so_many() -> None:
    bench = Bench(ASTERISK)
    bench.speak(MARK_FRAMES + 1)
    audio = [f"audio 7:{160 * number}" for number in range(MARK_FRAMES + 1)]
    assert bench.written() == [*audio[:MARK_FRAMES], f"mark 7:{160 * MARK_FRAMES}", audio[MARK_FRAMES]]


def test_where_the_carrier_may_have_had_nothing_to_play_a_mark_goes_sooner() -> None:
    bench = Bench()
    first = MARK_FRAMES_SOON * 160
    bench.speak(MARK_FRAMES_SOON + MARK_FRAMES)
    marks = [message for message in bench.written() if str(message).startswith("mark")]
    assert marks == [f"mark 7:{first}", f"mark 7:{first + 160 * MARK_FRAMES}"]
    bench.pass_ms(MARK_FRAMES * 20 + 1)
    bench.speak(MARK_FRAMES_SOON)
    assert bench.written()[-1] == f"mark 7:{2 * first + 160 * MARK_FRAMES}", "it has become thin"


def test_a_reply_ends_with_a_mark() -> None:
    bench = Bench(ASTERISK)
    bench.speak(final=True)
    assert bench.written() == ["audio 7:0", "mark 7:160"]
    bench.speak(MARK_FRAMES, "b", final=True)
    assert [message for message in bench.written() if str(message).startswith("mark")] == ["mark 7:1120"]


def test_half_a_frame_is_filled_up_where_nothing_follows() -> None:
    bench = Bench()
    bench.line.tell(ReplyAudio("item", 7, Frame("a", 0, bytes(160), final=False), 80, "audio/pcmu"))
    bench.pass_ms(REST_NS_MAX // MS - 1)
    assert bench.written() == []
    bench.pass_ms(1)
    assert bench.written() == ["audio 7:0", "mark 7:160"]


def test_frames_go_while_there_is_room() -> None:
    bench = Bench()
    assert bench.line.next_frame_ns(bench.now_ns) == bench.now_ns
    bench.speak(2)
    assert bench.line.next_frame_ns(bench.now_ns) is None, "the socket has yet to take them"
    bench.written()
    bench.told(Xoff())
    assert bench.line.next_frame_ns(bench.now_ns) is None
    bench.told(Xon())
    assert bench.line.next_frame_ns(bench.now_ns) is not None
    assert not bench.line.pad()


def is_sent_to(bench: Bench) -> bool:
    return bench.line.next_frame_ns(bench.now_ns) is not None


def test_a_flush_makes_room() -> None:
    bench = Bench(ASTERISK)
    bench.told(Xoff())
    bench.line.drop_audio()
    assert is_sent_to(bench)


def test_a_carrier_that_should_long_have_room_is_asked_again_and_again() -> None:
    bench = Bench(ASTERISK)
    bench.speak(4, final=True)
    bench.written()
    bench.told(Xoff())
    for _ in range(2):
        bench.pass_ms(FULL_NS_MAX // MS - 1)
        assert bench.written() == []
        bench.pass_ms(1)
        assert bench.written() == ["pause 7:640", "resume"]
        assert not is_sent_to(bench), "it has not answered"
    bench.told(Xon())
    assert is_sent_to(bench)
    bench.pass_ms(FULL_NS_MAX // MS)
    assert bench.written() == []


def test_a_carrier_that_is_paused_makes_no_room_and_is_not_asked() -> None:
    bench = Bench(ASTERISK)
    bench.told(Xoff())
    bench.line.tell(TurnHeld(0))
    bench.written()
    bench.pass_ms(FULL_NS_MAX // MS)
    bench.line.tell(TurnResumed("backchannel"))
    assert bench.written() == ["resume"]
    bench.pass_ms(FULL_NS_MAX // MS - 1)
    assert bench.written() == []
    bench.pass_ms(1)
    assert bench.written() == ["pause 0:0", "resume"]


def test_a_carrier_with_a_fast_clock_is_sent_as_much_as_it_plays() -> None:
    bench = Bench()
    bench.speak(2 * MARK_FRAMES)
    bench.written()
    bench.pass_ms(115)
    bench.told(Played(7, 160 * MARK_FRAMES))
    assert bench.line.next_frame_ns(bench.now_ns) == bench.now_ns + 5 * MS


def test_asterisk_2115_no_more_than_the_lead_waits_at_the_carrier() -> None:
    bench = Bench(ASTERISK)
    for _ in range(4):
        assert bench.line.next_frame_ns(bench.now_ns) is not None
        bench.speak()
        bench.written()
    assert bench.line.next_frame_ns(bench.now_ns) is None
    bench.pass_ms(20)
    assert bench.line.next_frame_ns(bench.now_ns) is not None


def test_asterisk_2115_what_waits_there_is_let_play_first() -> None:
    bench = Bench(ASTERISK, probe=Probe(round_trip_ns=10 * MS))
    bench.speak(8)
    bench.written()
    bench.pass_ms(500)
    assert bench.line.next_frame_ns(bench.now_ns) is not None
    bench.told(Played(7, 0))
    bench.told(Played(7, 160))
    assert bench.line.next_frame_ns(bench.now_ns) is None, "it was held up, and seven frames are there"
    bench.pass_ms(60)
    assert bench.line.next_frame_ns(bench.now_ns) is not None


def test_marks_and_the_clock_tell_what_was_heard() -> None:
    bench = Bench()
    bench.speak(3 * MARK_FRAMES)
    bench.pass_ms(130)
    assert bench.reports == []
    first = 160 * MARK_FRAMES_SOON
    bench.told(Played(7, first))
    bench.pass_ms(50)
    assert bench.reports == [("a", first), ("a", first + 400)]
    bench.pass_ms(500)
    assert bench.reports[-1] == ("a", first + 160 * MARK_FRAMES), "the next mark bounds it"
    bench.pass_ms(20)
    assert len(bench.reports) == 3, "nothing is told twice"


def test_a_carrier_that_counts_is_believed_alone() -> None:
    bench = Bench(ASTERISK)
    bench.speak(2 * MARK_FRAMES)
    bench.told(Played(7, 960))
    bench.pass_ms(50)
    assert bench.reports == [("a", 960)]


def test_a_reply_is_wholly_heard_once_the_next_is() -> None:
    bench = Bench()
    bench.speak(2, final=True)
    bench.speak(2, "b", final=True)
    bench.told(Played(7, 480))
    assert bench.reports == [("a", 320), ("b", 160)]
    bench.told(Played(7, 640))
    assert bench.reports[2:] == [("b", 320)]


def test_pipecat_366_an_interruption_takes_back_what_has_not_left_and_flushes_the_rest() -> None:
    bench = Bench()
    bench.speak(2)
    bench.written()
    bench.speak(2)
    assert bench.line.drop_audio() == Position("a", 320, 320)
    assert bench.written() == ["flush 7:320"]
    bench.speak(1, "b", epoch=8)
    assert bench.written() == ["audio 8:320"]
    bench.told(Played(8, 480))
    assert bench.reports == [("b", 160)], "where it stands"


def test_marks_behind_a_flush_are_of_what_follows_it() -> None:
    bench = Bench(ASTERISK)
    bench.speak(MARK_FRAMES - 1)
    bench.line.drop_audio()
    bench.written()
    bench.speak(MARK_FRAMES - 1, "b", epoch=8)
    assert all(str(message).startswith("audio") for message in bench.written())
    bench.speak(1, "b", epoch=8)
    assert bench.written()[-1] == f"mark 8:{160 * MARK_FRAMES}"


def test_cloudflare_2261_the_carrier_is_flushed_though_all_has_left() -> None:
    bench = Bench()
    bench.speak(2, final=True)
    bench.written()
    assert bench.line.drop_audio() is None
    assert bench.written() == ["flush 7:320"]


def test_openai_agents_js_1173_speech_after_the_end_flushes_what_still_plays() -> None:
    bench = Bench()
    bench.speak(2, final=True)
    bench.written()
    bench.line.tell(SpeechStarted("item", 0))
    assert bench.written() == ["flush 7:320"]
    bench.line.tell(SpeechStarted("item", 0))
    assert bench.written() == [], "nothing plays any more"


def test_speech_flushes_nothing_where_it_does_not_interrupt() -> None:
    bench = Bench(interrupts=False)
    bench.speak(2)
    bench.written()
    bench.line.tell(SpeechStarted("item", 0))
    assert bench.written() == []


def test_what_history_does_not_have_is_not_heard() -> None:
    bench = Bench()
    bench.speak(2)
    bench.written()
    bench.line.tell(ItemTruncated("item", 0))
    assert bench.written() == ["flush 7:320"]


def test_vellum_38316_what_comes_back_of_a_flush_reports_nothing() -> None:
    bench = Bench()
    bench.speak(2, final=True)
    bench.written()
    bench.line.drop_audio()
    bench.speak(2, "b", epoch=8, final=True)
    bench.told(Returned(7, 320))
    bench.told(Played(7, 320))
    bench.pass_ms(500)
    assert bench.reports == []
    bench.told(Played(8, 640))
    assert bench.reports == [("b", 320)]


def test_a_flush_that_tells_how_much_was_not_played_is_a_report() -> None:
    bench = Bench(ASTERISK)
    bench.speak(4)
    bench.written()
    bench.line.drop_audio()
    bench.told(Flushed(7, 640, 320))
    assert bench.reports == [("a", 320)]
    bench.told(Flushed(7, 640, None))
    assert bench.reports == [("a", 320)]


def test_what_was_played_to_its_end_before_a_flush_is_told_with_it() -> None:
    bench = Bench(ASTERISK)
    bench.speak(2, final=True)
    bench.speak(2, "b")
    bench.written()
    bench.line.drop_audio()
    bench.speak(1, "c", epoch=8, final=True)
    bench.told(Flushed(7, 640, 160))
    assert bench.reports == [("a", 320), ("b", 160)]


def test_what_ends_where_it_was_flushed_was_played_whole_and_what_follows_not_at_all() -> None:
    bench = Bench(ASTERISK)
    bench.speak(2)
    bench.written()
    bench.line.drop_audio()
    bench.speak(2, "b", epoch=8)
    bench.written()
    bench.line.drop_audio()
    bench.told(Flushed(7, 320, 0))
    bench.told(Flushed(8, 640, 320))
    assert bench.reports == [("a", 320)]


def test_a_reply_that_was_flushed_is_not_heard_whole_when_the_next_is() -> None:
    bench = Bench()
    bench.speak(2)
    bench.written()
    bench.line.drop_audio()
    bench.speak(1, "b", epoch=8, final=True)
    bench.told(Played(8, 480))
    assert bench.reports == [("b", 160)]


def test_what_was_heard_of_what_is_flushed_is_told_again() -> None:
    bench = Bench()
    bench.speak(MARK_FRAMES + 1, final=True)
    bench.written()
    bench.told(Played(7, 160 * MARK_FRAMES))
    bench.reports.clear()
    bench.line.drop_audio()
    assert bench.reports == [], "whoever flushes has yet to note that it does"
    bench.pass_ms(20)
    bench.pass_ms(20)
    assert bench.reports == [("a", 160 * MARK_FRAMES)]


def test_an_exact_count_is_told_also_where_it_is_no_news() -> None:
    bench = Bench(ASTERISK)
    bench.speak(2)
    bench.written()
    bench.told(Played(7, 160))
    bench.line.drop_audio()
    bench.told(Flushed(7, 320, 160))
    assert bench.reports[-2:] == [("a", 160), ("a", 160)]


def test_a_place_that_is_forgotten_reports_nothing() -> None:
    bench = Bench(ASTERISK)
    bench.told(Flushed(7, 0, 0))
    for number in range(SPANS_MAX + 2):
        bench.speak(1, f"reply_{number}", final=True)
    bench.told(Played(7, 160))
    assert bench.reports == []


def test_a_hold_pauses_a_carrier_that_can_and_its_end_goes_on() -> None:
    bench = Bench(ASTERISK)
    bench.speak(2)
    bench.written()
    bench.line.tell(TurnHeld(0))
    assert bench.written() == ["pause 7:320"]
    bench.told(Played(7, 160))
    bench.pass_ms(500)
    assert bench.reports == [("a", 160), ("a", 160)], "nothing is heard meanwhile, which is told"
    bench.line.tell(TurnResumed("backchannel"))
    assert bench.written() == ["mark 7:320", "resume"]
    bench.pass_ms(10)
    assert len(bench.reports) == 2


def test_a_hold_leaves_any_other_carrier_alone() -> None:
    bench = Bench()
    bench.speak(2)
    bench.written()
    bench.line.tell(TurnHeld(0))
    bench.line.tell(TurnResumed("backchannel"))
    assert bench.written() == []


@pytest.mark.parametrize("ends", [SpeechStarted("item", 0), SettingsChanged("s", SessionSettings(), ())])
def test_whatever_ends_a_hold_lets_the_carrier_go_on(ends: SpeechStarted | SettingsChanged) -> None:
    bench = Bench(ASTERISK)
    bench.line.tell(TurnHeld(0))
    bench.written()
    bench.line.tell(ends)
    assert bench.written() == ["resume"]


def test_what_else_happens_is_nothing_to_a_telephone() -> None:
    bench = Bench()
    bench.line.tell(InputCleared())
    assert bench.written() == []
    assert not bench.line.is_playing


def test_the_path_is_what_is_seen_of_it_and_the_telephone_behind_it() -> None:
    probe = Probe(round_trip_ns=40 * MS)
    bench = Bench(probe=probe)
    assert bench.line.path(bench.now_ns) == path_of(TELEPHONE_LATENCY, probe, bench.now_ns)


def test_a_carrier_that_takes_nothing_is_noticed() -> None:
    bench = Bench(replace(TWILIO, lead_ms=100_000))
    bench.speak()
    bench.pass_ms(1)
    bench.pass_ms(10_000)
    assert bench.outbound.overflowed.is_set()
