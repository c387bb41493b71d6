"""Functions of the client's through the real service: declared, called, answered, and what came of them said."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.caller import Caller, Message, calling, utterance
from tests.live.service import Service, serving
from tests.live.test_turns import runs

pytestmark = [pytest.mark.live, pytest.mark.slow]

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "get_weather", "description": "The weather of a city.", "parameters": SCHEMA}
ARGUMENTS = '{"city": "Paris"}'
FIRST, THEN = f"Let me look. @get_weather {ARGUMENTS}", "It is @result in Paris."
CALL_FAMILY = [
    "response.output_item.added",
    "conversation.item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "conversation.item.done",
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    replies = f"{FIRST}|{THEN}"
    with serving(tmp_path_factory.mktemp("tools"), {"scripted_replies": replies}) as running:
        yield running


def is_call(message: Message) -> bool:
    return message["type"] == "response.output_item.done" and bool(message["item"]["type"] == "function_call")


def answer(caller: Caller, call_id: str, output: str) -> None:
    caller.send("conversation.item.create", item={"type": "function_call_output", "call_id": call_id, "output": output})


def asked(caller: Caller) -> Message:
    """Somebody asks aloud; gives the call, as soon as it is the client's."""
    shown = caller.settle(tools=[WEATHER])["session"]
    assert (shown["tools"], shown["tool_choice"]) == ([WEATHER], "auto")
    caller.hear(utterance())
    call: Message = caller.until(is_call)["item"]
    return call


def test_a_question_is_answered_with_what_a_tool_has_found(service: Service) -> None:
    with calling(service) as caller:
        call = asked(caller)
        assert call | {"id": "", "call_id": ""} == {
            "id": "",
            "object": "realtime.item",
            "type": "function_call",
            "status": "completed",
            "call_id": "",
            "name": "get_weather",
            "arguments": ARGUMENTS,
        }
        done = caller.until("response.done")["response"]
        assert [item["type"] for item in done["output"]] == ["message", "function_call"]
        assert done["output"][0]["content"][0]["transcript"] == "Let me look."
        of_call = [
            e for e in caller.events if e.get("item_id") == call["id"] or e.get("item", {}).get("id") == call["id"]
        ]
        assert runs([event["type"] for event in of_call]) == CALL_FAMILY
        deltas = [e["delta"] for e in of_call if e["type"].endswith("arguments.delta")]
        assert "".join(deltas) == ARGUMENTS
        answer(caller, call["call_id"], "sunny")
        added = caller.until("conversation.item.added")
        assert (added["item"]["output"], added["previous_item_id"]) == ("sunny", call["id"])
        caller.send("response.create")
        said = caller.until("response.done")["response"]["output"]
        assert said[0]["content"][0]["transcript"] == "It is sunny in Paris."


def test_a_tool_may_be_quicker_than_the_words_before_its_call(service: Service) -> None:
    """Clients ask for the reply as soon as they have the result: it begins behind those words."""
    with calling(service) as caller:
        call = asked(caller)
        answer(caller, call["call_id"], "sunny")
        caller.send("response.create")
        first, second = (caller.until("response.done")["response"] for _ in range(2))
        assert [item["type"] for item in first["output"]] == ["message", "function_call"]
        assert first["status"] == "completed"
        assert second["output"][0]["content"][0]["transcript"] == "It is sunny in Paris."
        assert caller.of_type("error") == []


def test_who_comes_back_may_still_answer(service: Service) -> None:
    with calling(service) as caller:
        call = asked(caller)
        caller.until("response.drained")
        token = next(iter(caller.of_type("session.created")))["session"]["resume_token"]
    with calling(service) as caller:
        caller.send("session.resume", token=token)
        resumed = caller.until("session.resumed")
        assert resumed["session"]["tools"] == [WEATHER]
        assert resumed["items"][-1] == call
        answer(caller, call["call_id"], "windy")
        caller.send("response.create")
        said = caller.until("response.done")["response"]["output"]
        assert said[0]["content"][0]["transcript"] == "It is windy in Paris."
