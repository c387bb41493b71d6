from __future__ import annotations

import json
from typing import Any

import pytest

from loadtest import realtime_wire as wire
from loadtest.errors import ServerViolation


def decoded(**event: Any) -> wire.ServerEvent:
    return wire.decode(json.dumps(event).encode())


def test_an_audio_delta_carries_samples_and_offsets() -> None:
    event = decoded(
        type="response.output_audio.delta",
        server_event_seq=9,
        response_id="r",
        item_id="i",
        delta="AQACAA==",
        epoch=3,
        start_sample=480,
        samples=2,
        sample_rate=24_000,
        watermark=0,
        content_index=0,
    )

    assert event == wire.AudioDelta(
        server_event_seq=9,
        response_id="r",
        item_id="i",
        delta=b"\1\0\2\0",
        epoch=3,
        start_sample=480,
        samples=2,
        sample_rate=24_000,
    )


def test_extensions_are_optional() -> None:
    event = decoded(type="response.output_audio.delta", response_id="r", item_id="i", delta="")
    assert event == wire.AudioDelta(response_id="r", item_id="i", delta=b"")
    created = decoded(type="session.created", session={"id": "s", "model": "m"})
    assert created == wire.SessionCreated(session=wire.Session("s"))
    done = decoded(type="response.done", response={"id": "r", "status": "completed", "output": []}, timings=None)
    assert done == wire.ResponseDone(response=wire.FinishedResponse("r", "completed"))


def test_a_terminal_passes_timings_and_reason_on() -> None:
    response = {"id": "r", "status": "cancelled", "status_details": {"type": "cancelled", "reason": "turn_detected"}}
    event = decoded(type="response.done", response=response, timings={"encoder": 12.5, "vocoder": None})

    assert isinstance(event, wire.ResponseDone)
    assert event.timings == {"encoder": 12.5, "vocoder": None}
    assert event.response.status_details == wire.StatusDetails("turn_detected")


def test_a_held_reply_is_an_event_of_its_own() -> None:
    assert decoded(type="turn.held", response_id="r") == wire.TurnHeld()
    assert decoded(type="turn.resumed", response_id="r") == wire.TurnResumed()


def test_an_unknown_event_is_no_fault() -> None:
    assert decoded(type="rate_limits.updated", server_event_seq=4) == wire.OtherEvent(
        type="rate_limits.updated", server_event_seq=4
    )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"not json",
        b"[]",
        b'{"event": "no type"}',
        b'{"type": "session.created"}',
        b'{"type": "response.output_audio.delta", "response_id": "r", "item_id": "i", "delta": "?"}',
        b'{"type": "response.output_audio.delta", "response_id": "r", "item_id": "i", "delta": "", "start_sample": -1}',
    ],
)
def test_what_breaks_the_protocol_is_a_violation(text: bytes) -> None:
    with pytest.raises(ServerViolation):
        wire.decode(text)


def test_client_messages_have_the_api_s_shape() -> None:
    def sent(message: wire.ClientMessage) -> Any:
        return json.loads(wire.encode(message))

    assert sent(wire.AppendAudio(b"\1\0")) == {"type": "input_audio_buffer.append", "audio": "AQA="}
    assert sent(wire.CancelResponse("r")) == {"type": "response.cancel", "response_id": "r"}
    assert sent(wire.ResumeSession("s", "t")) == {"type": "session.resume", "session_id": "s", "token": "t"}
    assert sent(wire.TruncateItem("i", 120)) == {
        "type": "conversation.item.truncate",
        "item_id": "i",
        "content_index": 0,
        "audio_end_ms": 120,
    }
    assert sent(wire.PlaybackAck("r", "i", 960)) == {
        "type": "playback.ack",
        "response_id": "r",
        "item_id": "i",
        "played_samples": 960,
        "sample_rate": 24_000,
    }
    assert sent(wire.CreateResponse()) == {"type": "response.create"}
    assert sent(wire.DeleteItem("i")) == {"type": "conversation.item.delete", "item_id": "i"}
    for role, kind in (("user", "input_text"), ("assistant", "output_text")):
        content = [{"type": kind, "text": "hello"}]
        item = {"type": "message", "id": "i", "role": role, "content": content}
        assert sent(wire.typed("i", role, "hello")) == {"type": "conversation.item.create", "item": item}


def test_settings_name_the_format_and_only_what_was_asked_for() -> None:
    pcm = {"type": "audio/pcm", "rate": 24_000}
    assert json.loads(wire.encode(wire.UpdateSession(wire.settings(None, None)))) == {
        "type": "session.update",
        "session": {
            "type": "realtime",
            "audio": {
                "input": {"format": pcm, "transcription": {"model": "whisper-1"}},
                "output": {"format": pcm},
            },
        },
    }
    session = json.loads(wire.encode(wire.UpdateSession(wire.settings("Be brief.", 300))))["session"]
    assert session["instructions"] == "Be brief."
    assert session["audio"]["input"]["turn_detection"] == {"type": "server_vad", "silence_duration_ms": 300}
    telephone = json.loads(wire.encode(wire.UpdateSession(wire.settings(None, None, "audio/pcma"))))["session"]["audio"]
    assert telephone["input"]["format"] == telephone["output"]["format"] == {"type": "audio/pcma"}


def test_the_body_of_a_refusal_is_read_where_it_can_be() -> None:
    body = b'{"error": {"type": "server_error", "code": "capacity_full", "message": "all busy"}}'
    assert wire.decode_refusal(body) == wire.ErrorBody("server_error", "capacity_full", "all busy")
    assert wire.decode_refusal(b"<html>") == wire.ErrorBody()
