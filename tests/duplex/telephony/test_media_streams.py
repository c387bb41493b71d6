"""Twilio's protocol and Telnyx's: the same events, in other words."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.telephony.carrier import (
    A_LAW_LINE,
    MU_LAW_LINE,
    CarrierError,
    Closed,
    Dtmf,
    Event,
    Fault,
    Played,
    Returned,
    SoundIn,
    Started,
    linear_line,
)
from duplex.telephony.media_streams import OTHER_FAULT, TELNYX, TWILIO, MediaStreams, StreamDialect

FRAME = bytes(range(160))
PAYLOAD = base64.b64encode(FRAME).decode()
TWILIO_START = {
    "event": "start",
    "sequenceNumber": "1",
    "streamSid": "MZ01",
    "start": {
        "streamSid": "MZ01",
        "accountSid": "AC01",
        "callSid": "CA01",
        "tracks": ["inbound"],
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        "customParameters": {"ticket": "q3Zk"},
    },
}
TELNYX_START = {
    "event": "start",
    "sequence_number": "1",
    "stream_id": "st-1",
    "start": {
        "user_id": "user-1",
        "call_control_id": "v3:1",
        "from": "+15550100",
        "to": "+15550199",
        "custom_parameters": {"room": "7"},
        "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
    },
}


def receive(carrier: MediaStreams, **fields: Any) -> list[Event]:
    return carrier.receive(json.dumps(fields))


def twilio() -> MediaStreams:
    carrier = MediaStreams(TWILIO)
    receive(carrier, **TWILIO_START)
    return carrier


def telnyx(**format_fields: Any) -> tuple[MediaStreams, Started]:
    carrier = MediaStreams(TELNYX)
    start = json.loads(json.dumps(TELNYX_START))
    start["start"]["media_format"] |= format_fields
    (started,) = receive(carrier, **start)
    assert isinstance(started, Started)
    return carrier, started


def sent(message: str | bytes) -> Any:
    assert isinstance(message, str)
    return json.loads(message)


def test_a_stream_of_twilios_starts_with_its_ids_and_parameters() -> None:
    carrier = MediaStreams(TWILIO)
    assert receive(carrier, event="connected", protocol="Call", version="1.0.0") == []
    assert receive(carrier, **TWILIO_START) == [
        Started("MZ01", "CA01", MU_LAW_LINE, "AC01", parameters={"ticket": "q3Zk"})
    ]


def test_a_stream_of_telnyxs_starts_with_its_ids_and_numbers() -> None:
    _, started = telnyx()
    assert started == Started("st-1", "v3:1", MU_LAW_LINE, "user-1", "+15550100", "+15550199", {"room": "7"})


@pytest.mark.parametrize(
    ("encoding", "rate", "line", "frame_bytes"),
    [
        ("audio/x-mulaw", 8_000, MU_LAW_LINE, 160),
        ("PCMA", "8000", A_LAW_LINE, 160),
        ("L16", 16_000, linear_line(16_000), 640),
        ("L16", 24_000, linear_line(24_000), 960),
    ],
)
def test_telnyx_says_how_sound_travels(encoding: str, rate: Any, line: Any, frame_bytes: int) -> None:
    carrier, started = telnyx(encoding=encoding, sample_rate=rate)
    assert started.format == line
    assert carrier.capabilities.frame_bytes == frame_bytes
    carrier.audio(1, 0, bytes(2 * frame_bytes))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"encoding": "OPUS"}, "unsupported_format"),
        ({"encoding": "PCMU", "sample_rate": 16_000}, "unsupported_format"),
        ({"encoding": "L16", "sample_rate": 11_025}, "unsupported_format"),
        ({"channels": 2}, "unsupported_format"),
    ],
)
def test_sound_that_cannot_be_heard_here_begins_no_call(fields: Any, code: str) -> None:
    with pytest.raises(CarrierError) as refused:
        telnyx(**fields)
    assert (refused.value.code, refused.value.fatal) == (code, True)


def test_linear_sound_is_none_of_twilios() -> None:
    start = json.loads(json.dumps(TWILIO_START))
    start["start"]["mediaFormat"] = {"encoding": "L16", "sampleRate": 16_000}
    with pytest.raises(CarrierError):
        receive(MediaStreams(TWILIO), **start)


@pytest.mark.parametrize(
    ("told", "parameters"),
    [(None, {}), ([{"name": "room", "value": "7"}], {"room": "7"}), ([1], {}), ({"room": "7", "n": 1}, {"room": "7"})],
)
def test_what_was_added_may_be_told_in_either_form(told: Any, parameters: dict[str, str]) -> None:
    start = {**TELNYX_START["start"], "custom_parameters": told}  # type: ignore[dict-item]
    (started,) = receive(MediaStreams(TELNYX), **{**TELNYX_START, "start": start})
    assert isinstance(started, Started)
    assert started.parameters == parameters


def test_a_rate_may_be_written_with_a_point() -> None:
    assert telnyx(sample_rate=8_000.0)[1].format == MU_LAW_LINE


def test_a_stream_without_an_id_begins_no_call() -> None:
    with pytest.raises(CarrierError) as refused:
        receive(MediaStreams(TWILIO), event="start", start={})
    assert (refused.value.code, refused.value.fatal) == ("no_stream", True)


def test_numbers_are_texts_or_numbers() -> None:
    carrier = twilio()
    for chunk, at in (("1", "20"), (2, 40)):
        media = {"track": "inbound", "chunk": chunk, "timestamp": at, "payload": PAYLOAD}
        assert receive(carrier, event="media", streamSid="MZ01", media=media) == [SoundIn(FRAME, int(at), int(chunk))]
    assert receive(carrier, event="media", media={"payload": PAYLOAD}) == [SoundIn(FRAME)]


def test_our_own_sound_is_not_the_callers() -> None:
    media = {"track": "outbound", "payload": PAYLOAD}
    assert receive(twilio(), event="media", media=media) == []


def test_keys_faults_and_the_end() -> None:
    carrier, _ = telnyx()
    assert receive(carrier, event="dtmf", stream_id="st-1", dtmf={"digit": "5"}) == [Dtmf("5")]
    error = {"code": 100003, "title": "malformed"}
    assert receive(carrier, event="error", payload=error) == [Fault("100003", "malformed")]
    assert receive(carrier, event="something_new") == []
    assert receive(carrier, event="stop", stream_id="st-1", stop={}) == [Closed("carrier_hung_up")]
    assert receive(carrier, event="media", media={"payload": PAYLOAD}) == [], "nothing counts behind the end"


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (100003, "100003"),
        ("100005", "100005"),
        ("evil-1-+15550101", OTHER_FAULT),
        (15550101, OTHER_FAULT),
        (None, OTHER_FAULT),
        ({}, OTHER_FAULT),
    ],
)
def test_a_fault_is_named_as_its_carrier_does_only_where_that_is_known(code: Any, named: str) -> None:
    error = {"code": code, "title": "no way to +15550101"}
    for carrier in (telnyx()[0], MediaStreams(TELNYX)):
        assert receive(carrier, event="error", payload=error) == [Fault(named, "no way to +…")]
    assert receive(twilio(), event="error", payload={"code": 100003}) == [Fault(OTHER_FAULT, "")]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"\x00", "binary_message"),
        ("{", "invalid_json"),
        ("{}", "invalid_field"),
        ('{"event": "start"}', "out_of_order"),
        ('{"event": "connected"}', "out_of_order"),
        ('{"event": "media", "streamSid": "MZ02"}', "other_stream"),
        ('{"event": "media", "media": {}}', "invalid_payload"),
        ('{"event": "media", "media": {"payload": "?"}}', "invalid_payload"),
        ('{"event": "media", "media": []}', "invalid_field"),
        ('{"event": "mark", "mark": {}}', "invalid_field"),
        ('{"event": "mark", "mark": {"name": "x"}}', "unknown_mark"),
        ('{"event": "mark", "mark": {"name": "1:160"}}', "unknown_mark"),
        ('{"event": "dtmf", "dtmf": {"digit": "xx"}}', "invalid_digit"),
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(message: str | bytes, code: str) -> None:
    carrier = twilio()
    with pytest.raises(CarrierError) as refused:
        carrier.receive(message)
    assert (refused.value.code, refused.value.fatal) == (code, False)
    assert receive(carrier, event="media", media={"payload": PAYLOAD}) == [SoundIn(FRAME)]


@pytest.mark.parametrize("event", ["media", "mark", "dtmf", "stop"])
def test_nothing_counts_before_the_start(event: str) -> None:
    with pytest.raises(CarrierError) as refused:
        receive(MediaStreams(TWILIO), event=event)
    assert refused.value.code == "out_of_order"


def test_what_twilio_is_sent_names_its_stream() -> None:
    carrier = twilio()
    assert sent(carrier.audio(7, 0, FRAME)) == {"event": "media", "streamSid": "MZ01", "media": {"payload": PAYLOAD}}
    (mark,), (clear,) = carrier.mark(7, 160), carrier.flush(7, 160)
    assert sent(mark) == {"event": "mark", "streamSid": "MZ01", "mark": {"name": "7:160"}}
    assert sent(clear) == {"event": "clear", "streamSid": "MZ01"}
    assert (carrier.answer(), carrier.pause(7, 160), carrier.resume(), carrier.hang_up()) == ([], [], [], [])


def test_what_telnyx_is_sent_does_not() -> None:
    carrier, _ = telnyx()
    assert sent(carrier.audio(7, 0, FRAME)) == {"event": "media", "media": {"payload": PAYLOAD}}
    assert [sent(each) for each in carrier.flush(7, 160)] == [{"event": "clear"}]


def test_pipecat_1929_a_payload_is_sound_from_its_first_byte() -> None:
    assert base64.b64decode(sent(twilio().audio(7, 0, FRAME))["media"]["payload"]) == FRAME


def test_half_a_frame_is_not_sent() -> None:
    with pytest.raises(AssertionError):
        twilio().audio(7, 0, FRAME[:80])


def test_nothing_is_sent_before_the_start() -> None:
    with pytest.raises(AssertionError):
        MediaStreams(TWILIO).flush(1, 0)


def test_a_mark_that_comes_back_behind_a_clear_was_not_played() -> None:
    carrier = twilio()
    carrier.mark(7, 160)
    assert receive(carrier, event="mark", mark={"name": "7:160"}) == [Played(7, 160)]
    carrier.mark(7, 320)
    carrier.flush(7, 320)
    assert receive(carrier, event="mark", mark={"name": "7:320"}) == [Returned(7, 320)]


def test_what_each_can_do() -> None:
    telnyx_s, _ = telnyx()
    for carrier, lead_ms, hangs_up, is_ordered in ((twilio(), 250, True, True), (telnyx_s, 250, False, False)):
        can_do = carrier.capabilities
        assert (can_do.marks_on_clear, can_do.exact_queue, can_do.can_pause) == ("returned", False, False)
        assert (can_do.lead_ms, can_do.hangup_on_close, can_do.is_ordered) == (lead_ms, hangs_up, is_ordered)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(PAYLOAD),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=10), values, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(["event", "media", "mark", "dtmf", "start", "streamSid", "stream_id", "payload", "stop"])
EVENTS = st.sampled_from(["connected", "start", "media", "mark", "dtmf", "stop", "error", "other"])


@given(
    st.sampled_from([TWILIO, TELNYX]),
    st.booleans(),
    st.lists(
        st.text(max_size=60)
        | st.binary(max_size=60)
        | st.dictionaries(NAMES, JSON, max_size=6).flatmap(
            lambda fields: EVENTS.map(lambda event: json.dumps({**fields, "event": event}))
        ),
        max_size=8,
    ),
)
def test_no_message_does_harm(dialect: StreamDialect, has_started: bool, messages: list[str | bytes]) -> None:
    carrier = MediaStreams(dialect)
    if has_started:
        receive(carrier, **(TWILIO_START if dialect is TWILIO else TELNYX_START))
    for message in messages:
        with suppress(CarrierError):
            carrier.receive(message)
