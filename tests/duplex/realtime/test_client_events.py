"""What a client may send: each event, and what is wrong with each that is not one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from duplex.realtime import client_events as ask
from duplex.realtime.client_events import OPEN_RESPONSES_MAX, PROBLEM_CHARACTERS_MAX, ClientEventError, parse


def event(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields})


def fault(text: str | bytes) -> ClientEventError:
    with pytest.raises(ClientEventError) as raised:
        parse(text)
    return raised.value


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (event("session.update", session={}), ask.SessionUpdate(session=ask.SessionPatch())),
        (event("session.resume", token="a.b"), ask.SessionResume(token="a.b")),
        (
            event("session.resume", token="a.b", responses=["resp_1"]),
            ask.SessionResume(token="a.b", responses=["resp_1"]),
        ),
        (event("session.resume", token="a.b", epoch=1 << 52), ask.SessionResume(token="a.b", epoch=1 << 52)),
        (event("input_audio_buffer.append", audio="AAA="), ask.InputAppend(audio="AAA=")),
        (event("input_audio_buffer.commit"), ask.InputCommit()),
        (event("input_audio_buffer.clear", event_id="e"), ask.InputClear(event_id="e")),
        (event("conversation.item.delete", item_id="i"), ask.ItemDelete(item_id="i")),
        (event("conversation.item.retrieve", item_id="i"), ask.ItemRetrieve(item_id="i")),
        (
            event("conversation.item.truncate", item_id="i", content_index=0, audio_end_ms=1500),
            ask.ItemTruncate(item_id="i", audio_end_ms=1500),
        ),
        (event("response.create"), ask.ResponseCreate()),
        (event("response.create", response={"conversation": "none"}), None),
        (event("response.cancel"), ask.ResponseCancel()),
        (event("response.cancel", response_id="r", event_id=None), ask.ResponseCancel(response_id="r")),
    ],
)
def test_every_event(text: str, command: ask.Command | None) -> None:
    parsed = parse(text)
    assert parse(text.encode()) == parsed
    if command is not None:
        assert parsed == command


def test_an_item() -> None:
    item = {"type": "message", "role": "user", "id": "i", "content": [{"type": "input_text", "text": "Hi"}]}
    command = parse(event("conversation.item.create", item=item, previous_item_id="root"))
    assert command == ask.ItemCreate(
        item=ask.ItemBody(role="user", id="i", content=[ask.ContentPart("input_text", "Hi")]),
        previous_item_id="root",
    )


def test_a_response_in_full() -> None:
    body = {
        "instructions": "Be brief.",
        "output_modalities": ["text"],
        "conversation": "none",
        "input": [{"type": "message", "role": "user", "content": []}],
        "max_output_tokens": "inf",
        "temperature": 0.5,
        "metadata": {"a": "b"},
    }
    command = parse(event("response.create", response=body))
    assert command == ask.ResponseCreate(
        response=ask.ResponseBody("Be brief.", ["text"], "none", [ask.ItemBody(role="user")], "inf", 0.5, {"a": "b"})
    )


def test_absent_is_not_null() -> None:
    absent = parse(event("session.update", session={"audio": {"input": {}}}))
    null = parse(event("session.update", session={"audio": {"input": {"turn_detection": None, "transcription": None}}}))
    assert isinstance(absent, ask.SessionUpdate)
    assert isinstance(null, ask.SessionUpdate)
    for command, value in ((absent, UNSET), (null, None)):
        audio = command.session.audio
        assert isinstance(audio, ask.AudioPatch)
        assert isinstance(audio.input, ask.AudioInputPatch)
        assert audio.input.turn_detection is value
        assert audio.input.transcription is value


def test_fields_that_we_do_not_know_are_left_unread() -> None:
    session = {"type": "realtime", "tools": [], "tracing": "auto", "audio": {"input": {"noise_reduction": None}}}
    parse(event("session.update", session=session, extra={"any": "thing"}))


@pytest.mark.parametrize("text", ["", "{", "nonsense", '{"type": "response.cancel"', b"\x00\xff", b'{"type": "\xff"}'])
def test_what_is_no_json(text: str | bytes) -> None:
    error = fault(text)
    assert (error.code, error.param, error.event_id) == ("invalid_json", None, None)


@pytest.mark.parametrize(
    ("text", "param"),
    [("[]", None), ("5", None), ("null", None), ('"response.cancel"', None), ("{}", "type"), ('{"type": 5}', "type")],
)
def test_what_is_no_event(text: str, param: str | None) -> None:
    error = fault(text)
    assert (error.code, error.param) == ("invalid_value", param)


def test_an_event_that_we_do_not_know_is_named() -> None:
    error = fault(event("response.sing", event_id="e"))
    assert (error.code, error.param, error.event_id) == ("unknown_event", "type", "e")
    assert "response.sing" in str(error)


@pytest.mark.parametrize(
    ("text", "param"),
    [
        (event("session.update", session=[]), "session"),
        (event("session.update", session={"type": "transcription"}), "session.type"),
        (event("session.update", session={"instructions": None}), "session.instructions"),
        (event("session.update", session={"output_modalities": ["smell"]}), "session.output_modalities[0]"),
        (event("session.update", session={"audio": {"output": {"speed": "1"}}}), "session.audio.output.speed"),
        (
            event("session.update", session={"audio": {"input": {"turn_detection": {"type": "none"}}}}),
            "session.audio.input.turn_detection.type",
        ),
        (event("session.update", session={"max_output_tokens": True}), "session.max_output_tokens"),
        (event("session.update", session={"max_output_tokens": "all"}), "session.max_output_tokens"),
        (event("session.resume", token=5), "token"),
        (event("session.resume", token="a.b", epoch=-1), "epoch"),
        (event("session.resume", token="a.b", epoch=(1 << 52) + 1), "epoch"),
        (event("input_audio_buffer.append", audio=[]), "audio"),
        (event("conversation.item.create", item={"role": "robot"}), "item.role"),
        (event("conversation.item.create", item={"content": [{"type": 5}]}), "item.content[0].type"),
        (event("conversation.item.truncate", item_id="i", audio_end_ms="all"), "audio_end_ms"),
        *(
            (event("conversation.item.truncate", item_id="i", audio_end_ms=5, content_index=index), "content_index")
            for index in (-1, 1, 0.5)
        ),
        (event("playback.ack", response_id="resp_1", played_samples=-5), "played_samples"),
        (event("response.create", response={"conversation": "other"}), "response.conversation"),
        (event("response.create", response={"metadata": {"a": 5}}), "response.metadata[...]"),
        (event("response.cancel", event_id=5), "event_id"),
        (event("response.cancel", event_id="e" * 513), "event_id"),
        (event("response.cancel", response_id=5), "response_id"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(text: str, param: str) -> None:
    error = fault(text)
    assert (error.code, error.param) == ("invalid_value", param)


def test_a_missing_field_is_named() -> None:
    content = {"content": [{"text": "hello"}]}
    for text, field in (
        (event("conversation.item.delete"), "item_id"),
        (event("session.update"), "session"),
        (event("conversation.item.truncate", item_id="i"), "audio_end_ms"),
        (event("conversation.item.create", item=content), "item.content[0].type"),
        (event("response.create", response={"input": [content]}), "response.input[0].content[0].type"),
    ):
        error = fault(text)
        assert (error.code, error.param) == ("invalid_value", field)
        assert field.rpartition(".")[2] in str(error)


def test_the_event_is_named_to_whom_it_belongs() -> None:
    assert fault(event("response.cancel", response_id=5, event_id="mine")).event_id == "mine"


@pytest.mark.parametrize(
    "text",
    [
        event("w" * 1_000_000),
        event("session.update", session={"type": "w" * 1_000_000}),
        event("session.update", session={"output_modalities": ["w" * 1_000_000]}),
        event("response.create", response={"conversation": "w - at `$." * 100_000}),
        "[" * 1_000_000,
        '{"type": "response.cancel", "x": ' + "[" * 100_000,
    ],
)
def test_an_answer_never_grows_with_the_fault(text: str) -> None:
    error = fault(text)
    assert len(str(error)) <= PROBLEM_CHARACTERS_MAX + 50
    assert len(error.param or "") < 1_000


def outcome(text: str) -> str:
    try:
        parse(text)
    except ClientEventError as error:
        return error.code
    return "event"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
KINDS = sorted(ask._commands)
FIELDS = ["session", "token", "audio", "item", "item_id", "audio_end_ms", "response", "response_id", "event_id"]


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_json_is_an_event_or_a_fault_of_the_client(kind: str, fields: dict[str, Any]) -> None:
    assert outcome(event(kind, **fields)) in {"event", "invalid_value"}


@given(st.binary(max_size=50))
def test_any_bytes_are_a_fault_of_the_client(data: bytes) -> None:
    assert fault(data).code in {"invalid_json", "invalid_value", "unknown_event"}


def test_more_open_responses_than_anybody_can_have_are_refused() -> None:
    held_open = [f"resp_{number}" for number in range(OPEN_RESPONSES_MAX + 1)]
    assert fault(event("session.resume", token="a.b", responses=held_open)).param == "responses"
    assert parse(event("session.resume", token="a.b", responses=held_open[1:]))
