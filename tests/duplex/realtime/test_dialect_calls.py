"""Calls of tools as the Realtime API tells them: items of their own, beside the message or in its place."""

from __future__ import annotations

from dataclasses import replace

from duplex.realtime.dialect import Message, RealtimeDialect, item_dict
from sessions import events
from sessions.items import Item
from sessions.tool_calls import call_item, output_item

VIEW = events.ResponseView("resp_1", "item_2", 0, ("audio",), in_conversation=True, metadata=(), may_call=True)
BEGUN = call_item("item_3", "call_1", "look", "", "in_progress")
CALL = replace(BEGUN, text='{"a":1}', status="completed")
BROKEN = replace(BEGUN, text='{"a"', status="incomplete")
STARTED = events.ResponseStarted(VIEW)
MESSAGE = events.MessageStarted("resp_1", "item_2", "item_1")
CALL_STARTED = events.CallStarted("resp_1", BEGUN, "item_2")
TEXT = events.ReplyText("resp_1", "item_2", "Well.", spoken=True)
SHOWN = {
    "id": "item_3",
    "object": "realtime.item",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "look",
    "arguments": '{"a":1}',
}
MESSAGE_BEGUN = ["response.output_item.added", "conversation.item.added", "response.content_part.added"]
MESSAGE_DONE = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
]


def dialect() -> RealtimeDialect:
    return RealtimeDialect(lambda prefix: f"{prefix}_1")


def told(*told_events: events.Event, by: RealtimeDialect | None = None) -> list[Message]:
    one = by or dialect()
    return [message for event in told_events for message in one.encode(event)]


def types(messages: list[Message]) -> list[str]:
    return [message["type"] for message in messages]


def finished(*calls: Item, text: str = "", status: str = "completed") -> events.ResponseFinished:
    nothing = not text and (bool(calls) or status != "completed")
    return events.ResponseFinished(replace(VIEW, status=status, text=text, calls=calls, leaves_nothing=nothing))


def test_a_call_alone() -> None:
    arguments = events.CallArguments("resp_1", "item_3", "call_1", '{"a":1}')
    messages = told(STARTED, CALL_STARTED, arguments, events.CallFinished("resp_1", CALL, "item_0"), finished(CALL))
    begun = {**SHOWN, "status": "in_progress", "arguments": ""}
    place = {"response_id": "resp_1", "item_id": "item_3", "output_index": 0, "call_id": "call_1"}
    assert messages[1:-1] == [
        {"type": "response.output_item.added", "response_id": "resp_1", "output_index": 0, "item": begun},
        {"type": "conversation.item.added", "previous_item_id": "item_2", "item": begun},
        {"type": "response.function_call_arguments.delta", **place, "delta": '{"a":1}'},
        {"type": "response.function_call_arguments.done", **place, "name": "look", "arguments": '{"a":1}'},
        {"type": "response.output_item.done", "response_id": "resp_1", "output_index": 0, "item": SHOWN},
        {"type": "conversation.item.done", "previous_item_id": "item_0", "item": SHOWN},
    ]
    assert types(messages)[0] == "response.created"
    assert messages[-1]["response"]["output"] == [SHOWN], "there is no message"


def test_words_and_a_call() -> None:
    called = events.CallFinished("resp_1", CALL)
    messages = told(STARTED, MESSAGE, TEXT, CALL_STARTED, called, finished(CALL, text="Well."))
    assert types(messages) == [
        "response.created",
        *MESSAGE_BEGUN,
        "response.output_audio_transcript.delta",
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "conversation.item.done",
        *MESSAGE_DONE,
        "response.done",
    ]
    assert [output["type"] for output in messages[-1]["response"]["output"]] == ["message", "function_call"]
    places = {m["item"]["id"]: m["output_index"] for m in messages if m["type"] == "response.output_item.done"}
    assert places == {"item_2": 0, "item_3": 1}
    assert messages[2]["previous_item_id"] == "item_1"


def test_a_response_that_had_nothing_to_say_has_an_empty_message() -> None:
    messages = told(STARTED, MESSAGE, finished())
    assert types(messages) == ["response.created", *MESSAGE_BEGUN, *MESSAGE_DONE, "response.done"]
    assert messages[-1]["response"]["output"][0]["status"] == "completed"


def test_one_that_did_not_come_to_say_anything_has_none() -> None:
    messages = told(STARTED, finished(status="cancelled"))
    assert types(messages) == ["response.created", "response.done"]
    assert messages[-1]["response"]["output"] == []


def test_a_call_that_was_broken_off_is_never_offered() -> None:
    """There are clients that carry out whatever `arguments.done` or a completed item says."""
    messages = told(STARTED, CALL_STARTED, events.CallFinished("resp_1", BROKEN), finished(BROKEN, status="cancelled"))
    assert "response.function_call_arguments.done" not in types(messages)
    ends = [message["item"] for message in messages if message["type"].endswith("item.done")]
    assert [end["status"] for end in ends] == ["incomplete"] * 2
    assert messages[-1]["response"]["output"][0]["status"] == "incomplete"


def test_a_call_out_of_band_is_no_part_of_the_conversation() -> None:
    aside = events.ResponseStarted(replace(VIEW, in_conversation=False))
    messages = told(aside, CALL_STARTED, events.CallFinished("resp_1", CALL))
    assert not [kind for kind in types(messages) if kind.startswith("conversation.")]


def test_what_came_of_a_call_as_an_item() -> None:
    assert item_dict(output_item("item_4", "call_1", "it")) == {
        "id": "item_4",
        "object": "realtime.item",
        "type": "function_call_output",
        "status": "completed",
        "call_id": "call_1",
        "output": "it",
    }


# ---- calls that the service carries out ----------------------------------------------------------------


def test_a_reply_of_the_services_calls_alone_has_no_item() -> None:
    ended = events.ResponseFinished(replace(VIEW, status="completed", leaves_nothing=True))
    done = told(STARTED, ended)[-1]
    assert (done["type"], done["response"]["output"]) == ("response.done", [])


def test_an_outcome_that_nobody_knows_is_told_to_those_who_can_use_it() -> None:
    unknown = events.CallUnknown("call_1", "book")
    assert RealtimeDialect(str).encode(unknown) == []
    (message,) = RealtimeDialect(str, extensions=True).encode(unknown)
    assert message == {"type": "service_tool.outcome_unknown", "call_id": "call_1", "name": "book"}


def test_who_comes_amid_a_response_knows_its_calls_from_its_end() -> None:
    late = dialect()
    finished = events.CallFinished("resp_1", CALL)
    arguments = events.CallArguments("resp_1", "item_3", "call_1", "{}")
    assert told(MESSAGE, CALL_STARTED, arguments, finished, by=late) == []
    done = told(events.ResponseFinished(replace(VIEW, status="completed", calls=(CALL,)), ()), by=late)[-1]
    assert [item["id"] for item in done["response"]["output"]] == ["item_2", "item_3"]
