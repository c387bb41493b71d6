"""What must not be sent: it is answered by name, and neither this call nor any other ends by it."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.caller import BROKEN, Caller, calling, silence, slow_reader
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

MESSAGE_BYTES_MAX = 64 << 10
APPEND = "input_audio_buffer.append"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"message_bytes_max": str(MESSAGE_BYTES_MAX), "scripted_replies": "Yes indeed."}
    with serving(tmp_path_factory.mktemp("input"), settings) as running:
        yield running


def refusal_of(caller: Caller, message: str | bytes) -> dict[str, Any]:
    caller.socket.send(message)
    error: dict[str, Any] = caller.until("error")["error"]
    return error


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("", "invalid_json", None),
        ("{", "invalid_json", None),
        ("[]", "invalid_value", None),
        ("{}", "invalid_value", None),
        (b"\x00\x01\x02\x03", "invalid_json", None),
        ('{"type": "\\ud800"}', "invalid_json", None),
        ('{"type": "response.sing"}', "unknown_event", "type"),
        ('{"type": "response.cancel", "event_id": 5}', "invalid_value", "event_id"),
        ('{"type": "session.update"}', "invalid_value", None),
        ('{"type": "session.update", "session": {"audio": {"output": {"speed": "fast"}}}}', "invalid_value", None),
        (json.dumps({"type": APPEND, "audio": "not base64"}), "invalid_audio", "audio"),
        (json.dumps({"type": APPEND, "audio": "naïve"}, ensure_ascii=False), "invalid_audio", "audio"),
        (json.dumps({"type": APPEND, "audio": 5}), "invalid_value", "audio"),
        (json.dumps({"type": "session.resume", "token": "late.token"}), "resume_too_late", None),
    ],
)
def test_a_bad_message_is_named_and_the_call_goes_on(
    service: Service, message: str | bytes, code: str, param: str | None
) -> None:
    with calling(service) as caller:
        caller.settle()
        error = refusal_of(caller, message)
        caller.settle()
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert param is None or error["param"] == param


def test_a_call_may_begin_with_a_bad_message(service: Service) -> None:
    with calling(service) as caller:
        assert refusal_of(caller, "nonsense")["code"] == "invalid_json"
        assert refusal_of(caller, b"nonsense")["code"] == "invalid_json"
        caller.settle()


def test_answers_stay_small_however_large_the_fault(service: Service) -> None:
    word = "w" * (MESSAGE_BYTES_MAX // 2)
    for message in (
        {"type": word},
        {"type": "response.cancel", "event_id": word},
        {"type": "session.update", "session": {"output_modalities": [word]}},
        {"type": "session.update", "session": {"type": "realtime", "model": word}},
        {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "id": word, "content": []}},
        {"type": "response.create", "response": {"metadata": {"key": word}}},
    ):
        with calling(service) as caller:
            caller.settle()
            assert len(json.dumps(refusal_of(caller, json.dumps(message)))) < 1_024
            caller.settle()


def test_a_message_over_the_limit_closes_the_connection(service: Service) -> None:
    with calling(service) as caller:
        caller.send(APPEND, audio="A" * MESSAGE_BYTES_MAX)
        assert caller.until_closed()[0] == 1009
    with calling(service) as caller:
        caller.settle()


def test_text_that_is_no_utf8_closes_the_connection(service: Service) -> None:
    with calling(service) as caller:
        caller.socket.send(b'{"type": "\xff"}', text=True)
        assert caller.until_closed()[0] == 1007


def test_what_cannot_be_done_is_refused_by_name_and_changes_nothing(service: Service) -> None:
    with calling(service) as caller:
        before = caller.settle()["session"]
        for session, code in (
            ({"audio": {"input": {"format": {"type": "audio/pcmu", "rate": 16_000}}}}, "unsupported_format"),
            ({"audio": {"output": {"format": {"type": "audio/pcm", "rate": 16_000}}}}, "unsupported_format"),
            ({"audio": {"output": {"voice": {"id": "voice_1"}}}}, "unsupported_voice"),
            ({"instructions": "Be brief.", "output_modalities": ["audio", "text"]}, "invalid_value"),
        ):
            error = refusal_of(caller, json.dumps({"type": "session.update", "session": session}))
            assert error["code"] == code
            assert error["param"].startswith("session.")
        item = {"type": "function_call_output", "call_id": "call_1", "output": "{}"}
        refused = refusal_of(caller, json.dumps({"type": "conversation.item.create", "item": item}))
        assert refused["code"] == "invalid_tool_call_id"
        assert caller.settle()["session"] == before


def test_more_sound_than_anybody_can_say_is_taken_at_our_pace(service: Service) -> None:
    piece = base64.b64encode(silence(500)).decode()
    with calling(service) as caller:
        for _ in range(120):  # a minute, at once
            caller.send(APPEND, audio=piece)
        caller.settle()
        assert caller.of_type("error") == []


def test_a_long_history_sent_at_once_is_taken(service: Service) -> None:
    with calling(service) as caller:
        for number in range(300):
            caller.type_text(f"Line {number}.")
        caller.settle()
        assert len(caller.of_type("conversation.item.done")) == 300
        caller.send("response.create", response={"output_modalities": ["text"]})
        assert caller.until("response.done")["response"]["status"] == "completed"


def test_a_history_too_large_for_a_link_harms_nobody(service: Service) -> None:
    with calling(service) as other, calling(service) as caller:
        for number in range(30):
            caller.type_text(f"{number} " + "lorem ipsum " * 1_300)
        caller.send("response.create", response={"output_modalities": ["text"]})
        done = caller.until("response.done")["response"]
        since = len(service.lines)
        other.type_text("Are you there?")
        other.send("response.create")
        assert other.until("response.done")["response"]["status"] == "completed"
        assert done["status"] == "completed"
        assert [line for line in service.lines[since:] if "stage_down" in line] == []


def test_a_flood_from_one_who_does_not_read_ends_that_call_alone(service: Service) -> None:
    with calling(service) as other:
        other.type_text("Are you there?")
        other.send("response.create")
        other.until("response.created")
        with calling(service, max_queue=1, sock=slow_reader(service)) as caller:
            session = caller.settle()["session"]["id"]
            flood = b"".join(_masked_text(b"{}") for _ in range(20_000))
            caller.socket.socket.sendall(flood)
            service.wait_for_event("call_ended", session=session, reason="slow_client")
            service.wait_for_calls(1)
            caller.socket.socket.shutdown(socket.SHUT_RDWR)
        assert other.until("response.done")["response"]["status"] == "completed"


def _masked_text(payload: bytes) -> bytes:
    """A WebSocket text frame from a client, masked with zeros (RFC 6455, section 5.2)."""
    return bytes([0x81, 0x80 | len(payload), 0, 0, 0, 0]) + payload


def test_a_connection_that_breaks_in_the_middle_of_a_message_gives_its_place_back(service: Service) -> None:
    service.wait_for_calls(0)
    with calling(service) as caller:
        caller.socket.socket.sendall(_masked_text(b'{"type": "response.cancel"}')[:-5])
        caller.socket.socket.shutdown(socket.SHUT_RDWR)
        assert caller.until_closed() == BROKEN
    service.wait_for_calls(0)


def test_bad_messages_are_counted_for_the_client(service: Service) -> None:
    name = 'duplex_errors_total{code="invalid_json",owner="client"}'
    before = service.metric(name)
    with calling(service) as caller:
        refusal_of(caller, "first")
        caller.settle()
        refusal_of(caller, "second")
        assert service.metric(name) == before + 2


def test_it_is_no_page(service: Service) -> None:
    assert service.get("/v1/realtime").status in {404, 426}
