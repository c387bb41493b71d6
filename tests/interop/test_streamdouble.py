"""Twilio by somebody else: streamdouble calls the service as ours does, and finds the same faults."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamdouble import api
from streamdouble.protocol import ProtocolViolation, UnknownFrame, parse_outbound
from streamdouble.session import SessionConfig

from loadtest.carriers.media_stream import MediaStream
from loadtest.carriers.stream_dialects import StreamCall
from loadtest.coded_ear import words_heard
from media.audio_format import FORMATS
from tests.live.coded import serving_words
from tests.live.phone import speaking

PHONE = FORMATS["audio/pcmu"]
WORDS = 8
SAID_MS = 4_500  # in silence towards its end, as on a line


@pytest.mark.live
@pytest.mark.slow
def test_streamdouble_calls_the_service_and_finds_no_fault(tmp_path: Path) -> None:
    say = speaking((300, 1_000))
    frames = [PHONE.encode(say(at, 160, 8_000)) for at in range(0, SAID_MS * 8, 160)]
    config = SessionConfig(quiet_period_s=1.0)
    with serving_words(tmp_path, WORDS) as service:
        url = f"ws://{service.address}/v1/telephony/twilio"
        report = asyncio.run(api.call(url, frames=frames, config=config))

    assert report.violations == []
    assert report.passed
    assert report.result.marks_received
    assert report.result.marks_echoed == report.result.marks_received
    words = words_heard(PHONE.decode(report.audio_received), 8_000)
    assert [word.word for word in words] == list(range(WORDS))
    assert all(word.whole and not word.repeated_samples for word in words)


TEXT = st.text(max_size=6)
BODY = st.none() | TEXT | st.fixed_dictionaries({}, optional={"payload": TEXT | st.none(), "name": TEXT | st.none()})
COMMANDS = st.fixed_dictionaries(
    {},
    optional={
        "event": st.sampled_from(["media", "mark", "clear", "stop", "start"]) | st.none(),
        "streamSid": st.sampled_from(["MZ1", "MZ2", ""]) | st.none(),
        "media": BODY | st.just({"payload": "//8="}),
        "mark": BODY | st.just({"name": "a"}),
    },
)


@given(COMMANDS.map(json.dumps) | st.sampled_from(["", "{", "[]", "1"]) | st.just(b"\xff"))
def test_both_emulators_take_the_same_messages(message: str | bytes) -> None:
    stream = MediaStream(StreamCall("MZ1"))
    stream.begin()
    stream.receive(message, 0)
    try:
        is_taken = not isinstance(parse_outbound(message, expected_stream_sid="MZ1"), UnknownFrame)
    except ProtocolViolation:
        is_taken = False
    # They differ in one thing: a part that the event does not need is not looked at there.
    if is_taken and stream.mistakes:
        part = json.loads(message)
        assert any(not _is_whole(part.get(name), field) for name, field in (("media", "payload"), ("mark", "name")))
    else:
        assert bool(stream.mistakes) is not is_taken


def _is_whole(part: object, field: str) -> bool:
    return part is None or (isinstance(part, dict) and isinstance(part.get(field), str))
