"""Asterisk's channel: what it says, what it is commanded, and what its queue had not played."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.telephony.asterisk import COMMAND_BYTES_MAX, EARLY_BYTES_MAX, STATUSES_MAX, Asterisk
from duplex.telephony.carrier import (
    A_LAW_LINE,
    MU_LAW_LINE,
    CarrierError,
    Dtmf,
    Event,
    Fault,
    Flushed,
    Message,
    Played,
    Returned,
    SoundIn,
    Started,
    Xoff,
    Xon,
    linear_line,
)

START: dict[str, Any] = {
    "event": "MEDIA_START",
    "connection_id": "conn1",
    "channel": "WebSocket/conn1/0x7f01",
    "channel_id": "pbx-17.4",
    "format": "ulaw",
    "optimal_frame_size": 160,
    "ptime": 20,
    "channel_variables": {"ticket": "q3Zk", "n": 1},
}
PAUSE, STATUS, FLUSH, CONTINUE = (
    {"command": name} for name in ("PAUSE_MEDIA", "GET_STATUS", "FLUSH_MEDIA", "CONTINUE_MEDIA")
)


def receive(carrier: Asterisk, **fields: Any) -> list[Event]:
    return carrier.receive(json.dumps(fields))


def started(**fields: Any) -> Asterisk:
    carrier = Asterisk()
    receive(carrier, **{**START, **fields})
    return carrier


def commands(messages: list[Message]) -> list[Any]:
    assert all(len(message) <= COMMAND_BYTES_MAX for message in messages)
    return [json.loads(message) for message in messages]


@pytest.mark.parametrize(
    ("name", "line", "frame_bytes"),
    [
        ("ulaw", MU_LAW_LINE, 160),
        ("alaw", A_LAW_LINE, 160),
        ("slin", linear_line(8_000), 320),
        ("slin16", linear_line(16_000), 640),
        ("slin24", linear_line(24_000), 960),
    ],
)
def test_a_channel_starts_with_its_codec(name: str, line: Any, frame_bytes: int) -> None:
    carrier = Asterisk()
    events = receive(carrier, **{**START, "format": name, "optimal_frame_size": frame_bytes})
    assert events == [Started("conn1", "pbx-17.4", line, parameters={"ticket": "q3Zk"})]
    can_do = carrier.capabilities
    assert (can_do.frame_bytes, can_do.lead_ms) == (frame_bytes, 80)
    assert (can_do.marks_on_clear, can_do.exact_queue, can_do.can_pause) == ("dropped", True, True)
    assert (can_do.hangup_on_close, can_do.is_ordered) == (True, True)


def test_older_releases_say_it_in_plain_text() -> None:
    carrier = Asterisk()
    text = "MEDIA_START connection_id:conn1 channel:x format:ulaw optimal_frame_size:160 ptime:20 channel_id:pbx-1"
    assert carrier.receive(text) == [Started("conn1", "pbx-1", MU_LAW_LINE)]
    assert carrier.receive("DTMF_END digit:# channel_id:pbx-1") == [Dtmf("#")]
    carrier.mark(3, 160)
    assert carrier.receive("MEDIA_MARK_PROCESSED correlation_id:3:160") == [Played(3, 160)]
    with pytest.raises(CarrierError):
        Asterisk().receive("MEDIA_START format:ulaw optimal_frame_size:160 channel_variables:x passthrough:true")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"format": "opus"}, "unsupported_format"),
        ({"passthrough": True}, "unsupported_mode"),
        ({"unbuffered": True}, "unsupported_mode"),
        ({"optimal_frame_size": 0}, "invalid_frame_size"),
        ({"optimal_frame_size": None}, "invalid_frame_size"),
        ({"optimal_frame_size": 99_999}, "invalid_frame_size"),
        ({"format": "slin", "optimal_frame_size": 321}, "invalid_frame_size"),
        ({"optimal_frame_size": 7}, "invalid_frame_size"),
        ({"optimal_frame_size": 33}, "invalid_frame_size"),
        ({"optimal_frame_size": 560}, "invalid_frame_size"),
        ({"format": "slin16", "optimal_frame_size": 160}, "invalid_frame_size"),
    ],
)
def test_a_channel_that_cannot_be_served_begins_no_call(fields: Any, code: str) -> None:
    with pytest.raises(CarrierError) as refused:
        started(**fields)
    assert (refused.value.code, refused.value.fatal) == (code, True)


@pytest.mark.parametrize(("name", "frame_bytes"), [("ulaw", 80), ("ulaw", 240), ("ulaw", 480), ("slin24", 2_880)])
def test_frames_may_be_of_10_to_60_ms(name: str, frame_bytes: int) -> None:
    assert started(format=name, optimal_frame_size=frame_bytes).capabilities.frame_bytes == frame_bytes


def test_asterisk_1712_sound_before_the_start_is_kept_up_to_a_second() -> None:
    carrier, piece = Asterisk(), bytes(EARLY_BYTES_MAX // 2)
    assert [carrier.receive(piece) for _ in range(3)] == [[], [], []]
    start, *early = receive(carrier, **START)
    assert isinstance(start, Started)
    assert early == [SoundIn(piece), SoundIn(piece)]
    assert carrier.receive(b"\xff" * 160) == [SoundIn(b"\xff" * 160)]


def test_what_it_says_of_its_queue_and_its_keys() -> None:
    carrier = started()
    assert receive(carrier, event="MEDIA_XOFF") == [Xoff()]
    assert receive(carrier, event="MEDIA_XON") == [Xon()]
    assert receive(carrier, event="DTMF_END", digit="5") == [Dtmf("5")]
    assert receive(carrier, event="ERROR", error_text="no mode of 100-2000") == [Fault("error", "no mode of …")]
    assert receive(carrier, event="QUEUE_DRAINED") == []


def test_sound_is_raw_and_in_whole_frames() -> None:
    carrier = started()
    assert carrier.audio(1, 0, bytes(320)) == bytes(320)
    with pytest.raises(AssertionError):
        carrier.audio(1, 0, bytes(161))
    with pytest.raises(AssertionError):
        Asterisk().audio(1, 0, bytes(160))


def test_a_mark_that_comes_back_was_played_unless_what_is_before_it_was_flushed() -> None:
    carrier = started()
    assert commands(carrier.mark(3, 160)) == [{"command": "MARK_MEDIA", "correlation_id": "3:160"}]
    carrier.mark(2**62, 10**14)
    assert receive(carrier, event="MEDIA_MARK_PROCESSED", correlation_id="3:160") == [Played(3, 160)]
    carrier.flush(3, 10**14)
    crossed = receive(carrier, event="MEDIA_MARK_PROCESSED", correlation_id=f"{2**62}:{10**14}")
    assert crossed == [Returned(2**62, 10**14)], "it was on its way, and is no fault"


def test_an_interruption_asks_what_was_not_played_before_it_is_thrown_away() -> None:
    carrier = started()
    assert commands(carrier.flush(3, 8_000)) == [PAUSE, STATUS, FLUSH, CONTINUE]
    assert receive(carrier, event="STATUS", queue_length=7) == [Flushed(3, 8_000, 7 * 160)]


def test_a_flush_of_nothing_tells_nothing_of_what_was_flushed_before() -> None:
    carrier = started()
    carrier.flush(3, 8_000)
    carrier.flush(4, 8_000)
    assert receive(carrier, event="STATUS", queue_length=4) == [Flushed(3, 8_000, 640)]
    assert receive(carrier, event="STATUS", queue_length=0) == [Flushed(4, 8_000, None)]
    carrier.flush(5, 8_160)
    assert receive(carrier, event="STATUS", queue_length=0) == [Flushed(5, 8_160, 0)]


@pytest.mark.parametrize("said", [False, "false"])
def test_a_status_of_a_queue_that_is_not_full_is_an_xon(said: object) -> None:
    carrier = started()
    carrier.pause(3, 1_600)
    carrier.flush(3, 1_600)
    carrier.flush(4, 1_600)
    assert receive(carrier, event="STATUS", queue_length=4, queue_full=said) == [Played(3, 960), Xon()]
    assert receive(carrier, event="STATUS", queue_length=4, queue_full=said) == [Flushed(3, 1_600, 640), Xon()]
    assert receive(carrier, event="STATUS", queue_length=0, queue_full=said) == [Flushed(4, 1_600, None), Xon()]
    carrier.flush(5, 3_200)
    told = receive(carrier, event="STATUS", queue_length=900, queue_full=True)
    assert told == [Flushed(5, 3_200, 3_200)], "what it says is of before the flush"


def test_frames_of_linear_sound_are_counted_in_samples() -> None:
    carrier = started(format="slin16", optimal_frame_size=640)
    carrier.flush(3, 8_000)
    assert receive(carrier, event="STATUS", queue_length="2") == [Flushed(3, 8_000, 640)]


def test_a_hold_pauses_and_tells_where_it_stands() -> None:
    carrier = started()
    assert commands(carrier.pause(3, 1_600)) == [PAUSE, STATUS]
    assert carrier.pause(3, 1_600) == []
    assert receive(carrier, event="STATUS", queue_length=4) == [Played(3, 960)]
    assert commands(carrier.resume()) == [CONTINUE]
    assert carrier.resume() == []


def test_an_interruption_that_was_held_goes_on_from_there() -> None:
    carrier = started()
    carrier.pause(3, 1_600)
    assert commands(carrier.flush(3, 1_600)) == [STATUS, FLUSH, CONTINUE]
    assert carrier.resume() == [], "a flush goes on by itself"
    assert receive(carrier, event="STATUS", queue_length=4) == [Played(3, 960)]
    assert receive(carrier, event="STATUS", queue_length=99) == [Flushed(3, 1_600, 1_600)]


def test_what_is_taken_back_before_it_has_left_was_not_played_when_a_question_before_it_is_answered() -> None:
    carrier = started()
    carrier.pause(3, 1_600)
    carrier.flush(3, 1_280)
    assert receive(carrier, event="STATUS", queue_length=4) == [Played(3, 640)]
    assert receive(carrier, event="STATUS", queue_length=4) == [Flushed(3, 1_280, 640)]


def test_of_questions_that_are_never_answered_the_newest_are_kept() -> None:
    carrier = started()
    for number in range(1, STATUSES_MAX + 2):
        carrier.pause(3, number * 160)
        carrier.resume()
    answers = [receive(carrier, event="STATUS", queue_length=0) for _ in range(STATUSES_MAX)]
    assert answers == [[Played(3, number * 160)] for number in range(2, STATUSES_MAX + 2)]
    with pytest.raises(CarrierError):
        receive(carrier, event="STATUS", queue_length=0)


def test_an_answer_and_a_hang_up_are_commands() -> None:
    assert commands(started().answer()) == [{"command": "ANSWER"}]
    assert commands(started().hang_up()) == [{"command": "HANGUP"}]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "invalid_json"),
        ("{}", "invalid_field"),
        (json.dumps(START), "out_of_order"),
        ('{"event": "STATUS", "queue_length": 1}', "unexpected_status"),
        ('{"event": "DTMF_END"}', "invalid_field"),
        ('{"event": "MEDIA_MARK_PROCESSED", "correlation_id": ""}', "unknown_mark"),
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(message: str, code: str) -> None:
    carrier = started()
    with pytest.raises(CarrierError) as refused:
        carrier.receive(message)
    assert (refused.value.code, refused.value.fatal) == (code, False)
    assert carrier.receive(bytes(160)) == [SoundIn(bytes(160))]


def test_a_status_without_a_length_leaves_the_question_open() -> None:
    carrier = started()
    carrier.flush(3, 160)
    with pytest.raises(CarrierError):
        receive(carrier, event="STATUS")
    assert receive(carrier, event="STATUS", queue_length=0) == [Flushed(3, 160, 0)]


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.dictionaries(st.text(), st.text())
FIELDS = st.sampled_from(["format", "optimal_frame_size", "queue_length", "correlation_id", "digit", "passthrough"])
EVENTS = st.sampled_from(["MEDIA_START", "MEDIA_MARK_PROCESSED", "STATUS", "MEDIA_XOFF", "DTMF_END", "ERROR", "X"])


@given(
    st.booleans(),
    st.lists(
        st.text(max_size=80)
        | st.binary(max_size=80)
        | st.dictionaries(FIELDS, VALUES).flatmap(
            lambda fields: EVENTS.map(lambda event: json.dumps({**fields, "event": event}))
        ),
        max_size=8,
    ),
)
def test_no_message_does_harm(has_started: bool, messages: list[str | bytes]) -> None:
    carrier = started() if has_started else Asterisk()
    for message in messages:
        with suppress(CarrierError):
            carrier.receive(message)
