"""The core of Twilio and Telnyx, on a virtual clock."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.carriers.effects import Accepted, Cleared, Complaint, Effect, HungUp, Send
from loadtest.carriers.media_stream import BACKLOG_MAX, FRAME_MS, MARKS_MAX, MediaStream, Phase, Step
from loadtest.carriers.stream_dialects import TELNYX, TWILIO, WIDE, Mistake, StreamCall
from loadtest.carriers.unruly_line import OVERSIZED_BYTES, Fault
from loadtest.playout_model import QUEUE_S_MAX, Heard

MS = 1_000_000
SILENCE = b"\xff" * 160
CALL = StreamCall("MZ1", "CA1", "AC1", parameters={"ticket": "t-1"})


class Peer:
    """A stream that has begun, and what came of it."""

    def __init__(self, stream: MediaStream | None = None) -> None:
        self.stream = stream or MediaStream(CALL)
        self.effects: list[Effect] = self.stream.begin()

    def command(self, now_ms: float, **fields: Any) -> list[Effect]:
        return self.raw(now_ms, json.dumps({"streamSid": "MZ1"} | fields))

    def raw(self, now_ms: float, message: str | bytes) -> list[Effect]:
        return self.add(self.stream.receive(message, round(now_ms * MS)))

    def play(self, now_ms: float, ms: int, value: int = 0x80) -> list[Effect]:
        return self.command(now_ms, event="media", media={"payload": sound(ms, value)})

    def mark(self, now_ms: float, name: str) -> list[Effect]:
        return self.command(now_ms, event="mark", mark={"name": name})

    def frame(self, now_ms: float, backlog: int = 0) -> list[Effect]:
        return self.add(self.stream.frame(SILENCE, round(now_ms * MS), backlog))

    def add(self, effects: list[Effect]) -> list[Effect]:
        self.effects += effects
        return effects

    @property
    def samples_accepted(self) -> int:
        return sum(len(effect.pcm) // 2 for effect in self.effects if isinstance(effect, Accepted))

    @property
    def samples_heard(self) -> int:
        return sum(len(effect.pcm) // 2 for effect in self.effects if isinstance(effect, Heard))

    @property
    def samples_cleared(self) -> int:
        return sum(effect.samples for effect in self.effects if isinstance(effect, Cleared))


def sound(ms: int, value: int = 0x80) -> str:
    return b64encode(bytes([value]) * 8 * ms).decode()


def sent(effects: list[Effect]) -> list[dict[str, Any]]:
    return [json.loads(effect.message) for effect in effects if isinstance(effect, Send)]


def echoes(effects: list[Effect]) -> list[str]:
    return [message["mark"]["name"] for message in sent(effects) if message["event"] == "mark"]


def complaints(effects: list[Effect]) -> list[str]:
    return [effect.code for effect in effects if isinstance(effect, Complaint)]


def test_twilio_begins_with_connected_and_start() -> None:
    connected, start = sent(Peer().effects)

    assert connected == {"event": "connected", "protocol": "Call", "version": "1.0.0"}
    assert start == {
        "event": "start",
        "sequenceNumber": "1",
        "streamSid": "MZ1",
        "start": {
            "streamSid": "MZ1",
            "accountSid": "AC1",
            "callSid": "CA1",
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            "customParameters": {"ticket": "t-1"},
        },
    }


def test_the_caller_is_heard_in_frames_whose_numbers_are_strings() -> None:
    peer = Peer()
    (first,) = peer.frame(20)
    assert isinstance(first, Send)
    assert first.is_sound
    (media,) = sent(peer.frame(40))

    assert media["sequenceNumber"] == "3"
    assert media["media"] == {
        "track": "inbound",
        "chunk": "2",
        "timestamp": "40",
        "payload": b64encode(SILENCE).decode(),
    }
    assert peer.stream.frame_samples == 160
    assert FRAME_MS == 20


def test_a_key_and_the_end() -> None:
    peer = Peer()
    (digit,) = sent(peer.stream.press("5"))
    assert (digit["event"], digit["dtmf"]) == ("dtmf", {"track": "inbound_track", "digit": "5"})
    peer.play(0, 100)
    effects = peer.add(peer.stream.hang_up(30 * MS))

    assert sent(effects)[-1]["stop"] == {"accountSid": "AC1", "callSid": "CA1"}
    assert effects[-1] == HungUp("the caller hung up")
    assert (peer.samples_heard, peer.samples_cleared) == (240, 560)
    assert peer.stream.is_over
    assert peer.stream.press("5") == peer.stream.hang_up(40 * MS) == peer.frame(60) == peer.play(70, 20) == []


def test_a_call_that_ends_before_it_was_answered_says_nothing() -> None:
    stream = MediaStream(CALL)
    assert stream.frame(SILENCE, 0) == stream.press("1") == []
    assert stream.hang_up(0) == [HungUp("the caller hung up")]
    with pytest.raises(AssertionError, match=f"{Step.BEGIN} in {Phase.ENDED}"):
        stream.begin()


def test_sound_leaves_without_a_break_from_its_arrival_on() -> None:
    peer = Peer()
    assert [type(effect) for effect in peer.play(5, 50)] == [Accepted]
    heard = [effect for effect in peer.frame(40) if isinstance(effect, Heard)]
    assert [(piece.start_ns, len(piece.pcm)) for piece in heard] == [(5 * MS, 320)]
    heard = [effect for effect in peer.frame(60) if isinstance(effect, Heard)]
    assert [(piece.start_ns, len(piece.pcm)) for piece in heard] == [(25 * MS, 320), (45 * MS, 160)]
    assert peer.stream.queued_samples == 0


def test_a_mark_comes_back_when_all_before_it_has_left() -> None:
    peer = Peer()
    peer.play(0, 30)
    assert peer.mark(1, "a") == []
    peer.play(2, 30)
    assert peer.mark(3, "b") == []
    assert echoes(peer.frame(29.999)) == []
    assert echoes(peer.frame(30)) == ["a"]
    assert echoes(peer.frame(60)) == ["b"]


def test_a_mark_behind_nothing_comes_back_at_once() -> None:
    peer = Peer()
    assert echoes(peer.mark(0, "a")) == ["a"]
    peer.play(0, 20)
    assert echoes(peer.mark(20, "b")) == ["b"]


def test_vellum_assistant_38316_clear_returns_marks_whose_sound_was_never_heard() -> None:
    peer = Peer()
    peer.play(0, 100)
    peer.mark(1, "a")
    peer.play(2, 100)
    peer.mark(3, "b")
    effects = peer.command(50, event="clear")

    assert echoes(effects) == ["a", "b"]
    assert [effect for effect in effects if isinstance(effect, Cleared)] == [Cleared(150 * 8, ("a", "b"))]
    assert peer.samples_heard == 50 * 8
    assert echoes(peer.frame(300)) == []
    peer.play(300, 20)
    assert [piece.start_ns for piece in peer.frame(320) if isinstance(piece, Heard)] == [300 * MS]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"\xff" * 160, "31950"),
        ("{", "31950"),
        ('{"deep": ' + "[" * 100_000, "31950"),
        ('{"event": "\ud800"}', "31950"),
        ("[]", "31951"),
        ('{"event": 1}', "31951"),
        ('{"event": "media", "media": {"payload": ""}}', "31951"),
        ('{"event": "clear", "streamSid": "MZ2"}', "31951"),
        ('{"event": "media", "streamSid": "MZ1"}', "31951"),
        ('{"event": "mark", "streamSid": "MZ1", "media": {"payload": ""}}', "31951"),
        ('{"event": "media", "streamSid": "MZ1", "media": {"payload": "/"}}', "31951"),
        ('{"event": "media", "streamSid": "MZ1", "media": {"payload": "é"}}', "31951"),
        ('{"event": "media", "streamSid": "MZ1", "media": {"payload": "/v7+!/v7+"}}', "31951"),
        ('{"event": "stop", "streamSid": "MZ1"}', "31924"),
    ],
)
def test_what_twilio_does_not_take_is_written_down_once(message: str | bytes, code: str) -> None:
    peer = Peer()
    peer.play(0, 20)
    assert complaints(peer.raw(1, message)) == [code]
    assert peer.raw(2, message) == []
    assert peer.stream.mistakes.total() == 2
    assert peer.stream.queued_samples == 160


def test_nothing_is_taken_before_the_start() -> None:
    stream = MediaStream(CALL)
    message = json.dumps({"event": "media", "streamSid": "MZ1", "media": {"payload": sound(20)}})
    assert complaints(stream.receive(message, 0)) == ["31951"]
    assert (stream.queued_samples, stream.mistakes[Mistake.TOO_EARLY]) == (0, 1)


def test_a_service_that_reads_too_slowly_misses_sound_and_sees_the_gap() -> None:
    peer = Peer()
    assert sent(peer.frame(20, BACKLOG_MAX - 1))
    assert complaints(peer.frame(40, BACKLOG_MAX)) == ["31930"]
    assert peer.frame(60, BACKLOG_MAX) == []
    (media,) = sent(peer.frame(80))
    assert (media["sequenceNumber"], media["media"]["chunk"], media["media"]["timestamp"]) == ("5", "4", "80")


def test_what_waits_is_bounded() -> None:
    peer = Peer()
    peer.play(0, QUEUE_S_MAX * 1000)
    assert complaints(peer.play(0, 20)) == [""]
    assert peer.stream.queued_samples == QUEUE_S_MAX * 8000
    assert complaints(peer.play(20, 20)) == []
    for number in range(MARKS_MAX + 2):
        peer.mark(20, str(number))
    assert peer.stream.mistakes == {Mistake.TOO_MUCH: 3}
    assert len(echoes(peer.command(30, event="clear"))) == MARKS_MAX


def test_an_empty_payload_is_no_sound_and_no_mistake() -> None:
    peer = Peer()
    assert peer.play(0, 0) == []
    assert not peer.stream.mistakes


def test_telnyx_speaks_snake_case_and_names_the_stream_beside_the_start() -> None:
    peer = Peer(MediaStream(CALL, TELNYX))
    connected, start = sent(peer.effects)
    assert connected["event"] == "connected"
    assert (start["sequence_number"], start["stream_id"]) == ("1", "MZ1")
    assert "stream_id" not in start["start"]
    assert start["start"]["media_format"] == {"encoding": "PCMU", "sample_rate": 8000, "channels": 1}
    assert start["start"]["custom_parameters"] == {"ticket": "t-1"}
    (media,) = sent(peer.frame(20))
    assert (media["stream_id"], media["media"]["chunk"]) == ("MZ1", "1")
    assert sent(peer.stream.press("#"))[0]["dtmf"] == {"digit": "#"}
    assert sent(peer.stream.hang_up(0))[0]["stop"] == {"user_id": "AC1", "call_control_id": "CA1"}


def test_telnyx_wants_no_stream_in_commands_and_sends_its_errors_back() -> None:
    peer = Peer(MediaStream(CALL, TELNYX))
    assert peer.raw(0, json.dumps({"event": "media", "media": {"payload": sound(20)}}))[0] == Accepted(
        TELNYX.sound.decode(b64decode(sound(20)))
    )
    for message, code in (
        ({"event": "bye"}, 100002),
        ({"event": "mark"}, 100003),
        ({"event": "media", "media": {"payload": sound(10)}}, 100004),
        ({"event": "media", "media": {"payload": sound(30_020)}}, 100004),
    ):
        (error,) = sent(peer.raw(1, json.dumps(message)))
        assert (error["event"], error["payload"]["code"]) == ("error", code)
    assert sent(peer.raw(1, b""))[0]["payload"]["code"] == 100003
    assert sent(peer.raw(1, json.dumps({"event": "media", "media": {"payload": sound(30_000)}}))) == []
    peer.frame(20, BACKLOG_MAX)
    assert complaints(peer.effects) == ["100002", "100003", "100004", ""]


def test_telnyx_without_g711() -> None:
    peer = Peer(MediaStream(CALL, TELNYX, WIDE))
    assert sent(peer.effects)[1]["start"]["media_format"]["encoding"] == "L16"
    assert peer.stream.frame_samples == 320
    odd = b64encode(bytes(641)).decode()
    assert sent(peer.raw(0, json.dumps({"event": "media", "media": {"payload": odd}})))[0]["payload"]["code"] == 100004
    whole = b64encode(bytes(640)).decode()
    peer.raw(0, json.dumps({"event": "media", "media": {"payload": whole}}))
    assert peer.stream.queued_samples == 320


@pytest.mark.parametrize("dialect", [TWILIO, TELNYX])
def test_forgeries_are_what_they_are_called(dialect: Any) -> None:
    forgeries = MediaStream(CALL, dialect).forgeries
    assert json.loads(forgeries[Fault.OTHER_STREAM])[dialect.stream] == "another"
    assert json.loads(forgeries[Fault.OVERSIZED])[dialect.stream] == "MZ1"
    assert len(forgeries[Fault.OVERSIZED]) > OVERSIZED_BYTES
    assert isinstance(forgeries[Fault.BINARY], bytes)
    with pytest.raises(json.JSONDecodeError):
        json.loads(forgeries[Fault.MALFORMED])


ACTS = st.one_of(
    st.tuples(st.just("play"), st.integers(0, 400)),
    st.tuples(st.just("mark"), st.just(0)),
    st.tuples(st.just("clear"), st.just(0)),
    st.tuples(st.just("frame"), st.just(0)),
    st.tuples(st.just("odd"), st.integers(1, 999)),
)


@settings(max_examples=50)
@given(st.lists(st.tuples(ACTS, st.integers(0, 50_000_000)), max_size=40))
def test_samples_are_conserved_and_marks_come_back_once_and_in_order(acts: list[tuple[tuple[str, int], int]]) -> None:
    peer, now_ns, marks = Peer(), 0, 0
    for (act, size), later_ns in acts:
        now_ns += later_ns
        now_ms = now_ns / MS
        match act:
            case "play":
                peer.play(now_ms, size)
            case "odd":
                payload = b64encode(bytes(size)).decode()
                peer.command(now_ms, event="media", media={"payload": payload})
            case "mark":
                peer.mark(now_ms, str(marks))
                marks += 1
            case "clear":
                peer.command(now_ms, event="clear")
                assert peer.stream.queued_samples == 0
            case _:
                peer.frame(now_ms)
        assert peer.samples_accepted == peer.samples_heard + peer.stream.queued_samples + peer.samples_cleared
    peer.frame(now_ns / MS + QUEUE_S_MAX * 1000)

    assert peer.stream.queued_samples == 0
    assert echoes(peer.effects) == [str(number) for number in range(marks)]
    heard = [effect for effect in peer.effects if isinstance(effect, Heard)]
    ends = [piece.start_ns + len(piece.pcm) * 62_500 for piece in heard]
    assert all(piece.start_ns >= end - 1 for piece, end in zip(heard[1:], ends, strict=False))
    numbers = [int(message["sequenceNumber"]) for message in sent(peer.effects)[1:]]
    assert numbers == list(range(1, len(numbers) + 1))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "event": st.sampled_from(["media", "mark", "clear", "start"]) | JSON,
        "streamSid": st.just("MZ1") | JSON,
        "media": st.fixed_dictionaries({"payload": st.text(max_size=8) | JSON}) | JSON,
        "mark": st.fixed_dictionaries({"name": JSON}) | JSON,
    },
)


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=64) | st.text(max_size=64) | FIELDS.map(json.dumps), max_size=10))
def test_nothing_that_a_service_sends_breaks_it(messages: list[str | bytes]) -> None:
    for dialect in (TWILIO, TELNYX):
        peer = Peer(MediaStream(CALL, dialect))
        for message in messages:
            peer.raw(0, message)
        assert peer.samples_accepted == peer.stream.queued_samples + peer.samples_heard + peer.samples_cleared
