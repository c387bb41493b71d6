"""The conversation's events as the Realtime API tells them: whole families, in its order."""

from __future__ import annotations

import base64
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from duplex.realtime.dialect import Message, RealtimeDialect, error_message, item_dict
from media.audio_format import FormatName
from media.playout import Frame
from sessions import events
from sessions.items import Item
from sessions.settings import Modality

EPOCH = 1 << 20
SPOKEN: tuple[Modality, ...] = ("audio",)
TYPED: tuple[Modality, ...] = ("text",)
PLACE = {"response_id": "resp_1", "item_id": "item_2", "output_index": 0, "content_index": 0}


class Ids:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __call__(self, prefix: str) -> str:
        self._counts[prefix] += 1
        return f"{prefix}_{self._counts[prefix]}"


def dialect(*, extensions: bool = True) -> RealtimeDialect:
    return RealtimeDialect(Ids(), extensions=extensions)


def plain(messages: list[Message]) -> list[Message]:
    """Without what numbers them."""
    return [{k: v for k, v in m.items() if k not in {"event_id", "server_event_seq"}} for m in messages]


def told(event: events.Event, of: RealtimeDialect | None = None) -> list[Message]:
    return plain((of or dialect()).encode(event))


def types(messages: list[Message]) -> list[str]:
    return [message["type"] for message in messages]


def view(modalities: tuple[Modality, ...] = SPOKEN, **more: Any) -> events.ResponseView:
    return events.ResponseView("resp_1", "item_2", EPOCH, modalities, True, (), **more)


def frame(start: int, samples: int, *, final: bool = False) -> events.ReplyAudio:
    sound = Frame("resp_1", start, b"\x01\x02" * samples, final)
    return events.ReplyAudio("item_2", EPOCH, sound, start + samples)


def family(response: events.ResponseView, *between: events.Event) -> list[Message]:
    """A response from its start to its end."""
    one = dialect()
    begun = replace(response, text="", status="in_progress", reason="", usage=events.Usage())
    told_events: list[events.Event] = [
        events.ResponseStarted(begun),
        events.MessageStarted("resp_1", "item_2", "item_1"),
        *between,
        events.ResponseFinished(response, (("total", 1.5),), "item_0"),
        events.ResponseDrained("resp_1", "complete", 2.5, (("vocoder.samples", 480),)),
    ]
    return plain([message for event in told_events for message in one.encode(event)])


@pytest.mark.parametrize(("name", "delta"), [("audio/pcmu", b"\xfe\x7e"), ("audio/pcma", b"\xd5\x55")])
def test_a_frame_travels_in_the_format_that_its_response_began_with(name: FormatName, delta: bytes) -> None:
    sound = Frame("resp_1", 160, b"\x08\x00\xf8\xff", final=False)
    (message,) = told(events.ReplyAudio("item_2", EPOCH, sound, 162, name))
    assert base64.b64decode(message["delta"]) == delta
    assert message.items() >= {"start_sample": 160, "samples": 2, "sample_rate": 8_000, "watermark": 162}.items()


COMPLETED = view(text="Well. Hello.", status="completed", usage=events.Usage(12, 5, 3))
ITEM = {"id": "item_2", "object": "realtime.item", "type": "message", "role": "assistant"}


def response_body(**more: Any) -> Message:
    return {
        "id": "resp_1",
        "object": "realtime.response",
        "status": "in_progress",
        "status_details": None,
        "output": [],
        "output_modalities": ["audio"],
        "conversation_id": "conv",
        "metadata": None,
        "usage": None,
        "epoch": EPOCH,
        **more,
    }


def test_a_spoken_response() -> None:
    begun: Message = {**ITEM, "status": "in_progress", "content": []}
    said = {"type": "output_audio", "transcript": "Well. Hello."}
    done: Message = {**ITEM, "status": "completed", "content": [said]}
    usage = {
        "total_tokens": 15,
        "input_tokens": 12,
        "output_tokens": 3,
        "input_token_details": {"cached_tokens": 5},
    }
    delta = base64.b64encode(b"\x01\x02" * 480).decode()
    sound = {"epoch": EPOCH, "samples": 480, "sample_rate": 24_000, "delta": delta}
    assert family(COMPLETED, events.ReplyText("resp_1", "item_2", "Well.", True), frame(0, 480), frame(480, 480)) == [
        {"type": "response.created", "response": response_body()},
        {"type": "response.output_item.added", "response_id": "resp_1", "output_index": 0, "item": begun},
        {"type": "conversation.item.added", "previous_item_id": "item_1", "item": begun},
        {"type": "response.content_part.added", **PLACE, "part": {"type": "audio", "transcript": ""}},
        {"type": "response.output_audio_transcript.delta", **PLACE, "delta": "Well."},
        {"type": "response.output_audio.delta", **PLACE, **sound, "start_sample": 0, "watermark": 480},
        {"type": "response.output_audio.delta", **PLACE, **sound, "start_sample": 480, "watermark": 960},
        {"type": "response.output_audio.done", **PLACE},
        {"type": "response.output_audio_transcript.done", **PLACE, "transcript": "Well. Hello."},
        {"type": "response.content_part.done", **PLACE, "part": {"type": "audio", "transcript": "Well. Hello."}},
        {"type": "response.output_item.done", "response_id": "resp_1", "output_index": 0, "item": done},
        {"type": "conversation.item.done", "previous_item_id": "item_0", "item": done},
        {
            "type": "response.done",
            "response": response_body(status="completed", output=[done], usage=usage),
            "timings": {"total": 1.5},
        },
        {
            "type": "response.drained",
            "response_id": "resp_1",
            "status": "complete",
            "lag_ms": 2.5,
            "released": {"vocoder.samples": 480},
        },
    ]


def test_a_typed_response() -> None:
    response = replace(COMPLETED, modalities=TYPED)
    messages = family(response, events.ReplyText("resp_1", "item_2", "Well.", False))
    assert types(messages) == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
        "response.drained",
    ]
    assert messages[3]["part"] == {"type": "text", "text": ""}
    assert messages[5] == {"type": "response.output_text.done", **PLACE, "text": "Well. Hello."}
    assert messages[6]["part"] == {"type": "text", "text": "Well. Hello."}
    assert messages[9]["response"]["output"][0]["content"] == [{"type": "output_text", "text": "Well. Hello."}]
    assert messages[9]["response"]["output_modalities"] == ["text"]


@pytest.mark.parametrize(
    ("status", "reason", "details"),
    [
        ("cancelled", "turn_detected", {"type": "cancelled", "reason": "turn_detected"}),
        ("cancelled", "client_cancelled", {"type": "cancelled", "reason": "client_cancelled"}),
        ("cancelled", "of_our_own", None),
        ("incomplete", "max_output_tokens", {"type": "incomplete", "reason": "max_output_tokens"}),
        ("incomplete", "content_filter", {"type": "incomplete", "reason": "content_filter"}),
        ("completed", "", None),
    ],
)
def test_how_a_response_ended(status: str, reason: str, details: Message | None) -> None:
    messages = told(events.ResponseFinished(view(text="We", status=status, reason=reason)))
    done = messages[-1]["response"]
    assert (done["status"], done["status_details"]) == (status, details)
    item_status = "completed" if status == "completed" else "incomplete"
    assert {message["item"]["status"] for message in messages if "item" in message} == {item_status}
    assert done["output"][0]["status"] == item_status
    assert messages[-1]["timings"] is None


def test_a_failed_response_says_who_must_act_and_why() -> None:
    failed = view(text="", status="failed", reason="failed", code="stage_lost", message="the vocoder was lost")
    messages = told(events.ResponseFinished(failed))
    assert messages[-1]["response"]["status_details"] == {
        "type": "failed",
        "error": {"type": "server_error", "code": "stage_lost", "message": "the vocoder was lost"},
    }
    assert types(messages) == types(told(events.ResponseFinished(COMPLETED))), "the family is the same"


def test_a_response_out_of_band_is_no_part_of_the_conversation() -> None:
    aside = replace(COMPLETED, in_conversation=False, metadata=(("a", "b"),))
    one = dialect()
    started = told(events.ResponseStarted(replace(aside, status="in_progress")), one)
    started += told(events.MessageStarted("resp_1", "item_2", None), one)
    finished = told(events.ResponseFinished(aside), one)
    assert not [kind for kind in types(started + finished) if kind.startswith("conversation.")]
    assert finished[-1]["response"]["conversation_id"] is None
    assert finished[-1]["response"]["metadata"] == {"a": "b"}


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (events.DurabilitySuspended(), "session.durability.suspended"),
        (events.DurabilityRestored(), "session.durability.restored"),
    ],
)
def test_whoever_opted_in_is_told_whether_what_is_said_is_stored(event: events.Event, kind: str) -> None:
    assert told(event) == [{"type": kind}]
    assert told(event, dialect(extensions=False)) == []


def test_events_of_ours_are_for_those_who_asked() -> None:
    drained = events.ResponseDrained("resp_1", "orphaned", 5_000.0, ())
    one = dialect(extensions=False)
    assert one.encode(drained) == []
    one.extensions = True
    (message,) = one.encode(drained)
    assert (message["status"], message["released"]) == ("orphaned", {})


def test_a_response_that_went_with_its_connection_has_failed_and_says_nothing_else() -> None:
    (message,) = told(events.ResponseLost("resp_1"))
    body = message["response"]
    assert (message["type"], body["id"], body["status"], body["output"]) == ("response.done", "resp_1", "failed", [])
    assert body["status_details"]["error"]["code"] == "response_lost"


def test_messages_are_numbered_and_named() -> None:
    one = dialect()
    told_events = *one.encode(events.InputCleared()), error_message("c", "m"), *one.encode(COMMITTED)
    messages = [one.stamp(message) for message in told_events]
    assert [message["server_event_seq"] for message in messages] == [1, 2, 3]
    assert [message["event_id"] for message in messages] == ["event_1", "event_2", "event_3"]


COMMITTED = events.InputCommitted("item_1", None)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (
            events.SpeechStarted("item_1", 320),
            {"type": "input_audio_buffer.speech_started", "item_id": "item_1", "audio_start_ms": 320},
        ),
        (
            events.CallerIdle("item_1", 900, 6_900),
            {
                "type": "input_audio_buffer.timeout_triggered",
                "item_id": "item_1",
                "audio_start_ms": 900,
                "audio_end_ms": 6_900,
            },
        ),
        (
            events.SpeechStopped("item_1", 900),
            {"type": "input_audio_buffer.speech_stopped", "item_id": "item_1", "audio_end_ms": 900},
        ),
        (COMMITTED, {"type": "input_audio_buffer.committed", "item_id": "item_1", "previous_item_id": None}),
        (events.InputCleared(), {"type": "input_audio_buffer.cleared"}),
        (events.ItemDeleted("item_1"), {"type": "conversation.item.deleted", "item_id": "item_1"}),
        (
            events.ItemTruncated("item_1", 100),
            {
                "type": "conversation.item.truncated",
                "item_id": "item_1",
                "content_index": 0,
                "audio_end_ms": 100,
            },
        ),
        (
            events.CallerText("item_1", "Hel", final=False),
            {
                "type": "conversation.item.input_audio_transcription.delta",
                "item_id": "item_1",
                "content_index": 0,
                "delta": "Hel",
            },
        ),
        (
            events.CallerText("item_1", "Hello.", final=True),
            {
                "type": "conversation.item.input_audio_transcription.completed",
                "item_id": "item_1",
                "content_index": 0,
                "transcript": "Hello.",
            },
        ),
        (
            events.CallerTextFailed("item_1", "stage_lost", "gone"),
            {
                "type": "conversation.item.input_audio_transcription.failed",
                "item_id": "item_1",
                "content_index": 0,
                "error": {"type": "transcription_error", "code": "stage_lost", "message": "gone"},
            },
        ),
        (
            events.CommandRefused("item_not_found", "no such item", "item_id"),
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "code": "item_not_found",
                    "message": "no such item",
                    "param": "item_id",
                    "event_id": None,
                },
            },
        ),
    ],
)
def test_one_event_is_one_message(event: events.Event, message: Message) -> None:
    assert told(event) == [message]


def test_a_refusal_names_the_command_that_it_answers() -> None:
    one = dialect()
    one.answered = "mine"
    (message,) = one.encode(events.CommandRefused("c", "m"))
    assert message["error"]["event_id"] == "mine"


def test_transcripts_of_the_caller_are_told_where_they_are_wanted() -> None:
    one = dialect()
    one.transcription = False
    assert one.encode(events.CallerText("item_1", "Hello.", final=True)) == []
    assert one.encode(events.CallerTextFailed("item_1", "c", "m")) == []


def test_an_item_is_added_and_done_at_once() -> None:
    item = Item("item_1", "user", "Hello.", spoken=False)
    body = {"item": item_dict(item), "previous_item_id": "item_0"}
    assert told(events.ItemAdded(item, "item_0")) == [
        {"type": "conversation.item.added", **body},
        {"type": "conversation.item.done", **body},
    ]
    assert told(events.ItemRetrieved(item)) == [{"type": "conversation.item.retrieved", "item": item_dict(item)}]


@pytest.mark.parametrize(
    ("item", "content"),
    [
        (Item("i", "user", "Hello.", spoken=True), {"type": "input_audio", "transcript": "Hello."}),
        (Item("i", "user", "", spoken=True), {"type": "input_audio", "transcript": None}),
        (Item("i", "user", "Hello.", spoken=False), {"type": "input_text", "text": "Hello."}),
        (Item("i", "system", "Be kind.", spoken=False), {"type": "input_text", "text": "Be kind."}),
        (Item("i", "assistant", "Hello.", spoken=True), {"type": "output_audio", "transcript": "Hello."}),
        (Item("i", "assistant", "Hello.", spoken=False), {"type": "output_text", "text": "Hello."}),
    ],
)
def test_items(item: Item, content: Message) -> None:
    assert item_dict(item) == {
        "id": "i",
        "object": "realtime.item",
        "type": "message",
        "status": "completed",
        "role": item.role,
        "content": [content],
    }


def test_a_cut_item_says_so() -> None:
    shown = item_dict(
        Item(
            "i",
            "assistant",
            "Hel",
            spoken=True,
            status="incomplete",
            audio_samples=4_800,
            cut=True,
            heard_samples=2_423,
            cut_word="lo",
            heard_error_samples=1_201,
        )
    )
    assert (shown["status"], shown["cut"], shown["cut_word"]) == ("incomplete", True, "lo")
    assert (shown["heard_ms"], shown["heard_basis"], shown["heard_error_ms"]) == (100, "estimated", 51)


def test_a_fault_of_ours_is_no_fault_of_the_client() -> None:
    body = error_message("store_unavailable", "away", kind="server_error", event_id="e")["error"]
    assert (body["type"], body["code"], body["event_id"]) == ("server_error", "store_unavailable", "e")


def test_what_is_at_the_end_of_the_line_is_told_to_those_who_asked_for_more() -> None:
    event = events.LineRecognised("queue", "item_1")
    assert dialect(extensions=False).encode(event) == []
    assert dialect(extensions=True).encode(event) == [
        {"type": "line.recognised", "what": "queue", "item_id": "item_1", "answered": False}
    ]


def test_items_that_had_to_leave_are_named_with_the_limits() -> None:
    assert dialect(extensions=False).encode(events.HistoryTrimmed(("item_1",))) == []
    (trimmed,) = dialect(extensions=True).encode(events.HistoryTrimmed(("item_1", "item_2")))
    assert trimmed == {
        "type": "conversation.trimmed",
        "item_ids": ["item_1", "item_2"],
        "items_max": 512,
        "characters_max": 256_000,
    }
