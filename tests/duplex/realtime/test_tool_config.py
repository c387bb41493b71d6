"""Tools and their choice: what a client may set, how that is shown, and how it is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from duplex.realtime.client_events import (
    ClientEventError,
    FunctionBody,
    ItemBody,
    NamedChoice,
    ResponseBody,
    SessionPatch,
)
from duplex.realtime.session_config import apply_patch, item_of, response_spec, session_dict
from duplex.realtime.tool_config import (
    DESCRIPTION_CHARACTERS_MAX,
    SCHEMA_DEPTH_MAX,
    TOOLS_BYTES_MAX,
    TOOLS_MAX,
    tools_of,
)
from sessions.items import Item
from sessions.settings import SessionSettings
from sessions.tool_calls import call_item, output_item
from stages.contracts import CALL_CHARACTERS_MAX, Tool, ToolChoice

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LOOK = {"type": "function", "name": "look", "description": "Look up.", "parameters": SCHEMA}
NAMED = {"type": "function", "name": "look"}


def patched(settings: SessionSettings | None = None, **patch: Any) -> SessionSettings:
    return apply_patch(settings or SessionSettings(), msgspec.convert(patch, SessionPatch))


def refusal(**patch: Any) -> tuple[str, str | None]:
    with pytest.raises(ClientEventError) as raised:
        patched(**patch)
    return raised.value.code, raised.value.param


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


def test_tools_are_set_and_shown_as_they_were_sent() -> None:
    settings = patched(tools=[LOOK, {"type": "function", "name": "go"}], tool_choice="required")
    (look, go) = settings.tools
    assert (look.name, look.description, json.loads(look.parameters)) == ("look", "Look up.", SCHEMA)
    assert go == Tool("go")
    assert settings.tool_choice == ToolChoice("required")
    shown = session_dict("s", settings)
    assert shown["tools"] == [LOOK, {"type": "function", "name": "go", "description": "", "parameters": {}}]
    assert shown["tool_choice"] == "required"
    assert patched(settings, **shown) == settings


def test_a_choice_may_be_a_name() -> None:
    settings = patched(tools=[LOOK], tool_choice=NAMED)
    assert settings.tool_choice == ToolChoice("required", "look")
    assert session_dict("s", settings)["tool_choice"] == NAMED


def test_what_a_patch_does_not_name_stays() -> None:
    settings = patched(tools=[LOOK], tool_choice="none")
    assert patched(settings, instructions="Be brief.").tools == settings.tools
    assert patched(settings, tools=[]).tool_choice == ToolChoice("none")
    assert patched(settings, tool_choice="auto").tools == settings.tools


@pytest.mark.parametrize(
    ("tools", "code", "param"),
    [
        ([{**LOOK, "name": f"t{at}"} for at in range(TOOLS_MAX + 1)], "too_many_tools", ""),
        ([LOOK, {"type": "mcp", "server_label": "x"}], "unsupported_tool", "[1].type"),
        ([{"type": "function"}], "invalid_tool_name", "[0].name"),
        ([{**LOOK, "name": "look up"}], "invalid_tool_name", "[0].name"),
        ([{**LOOK, "name": "x" * 65}], "invalid_tool_name", "[0].name"),
        ([LOOK, LOOK], "duplicate_tool", "[1].name"),
        (
            [{**LOOK, "description": "x" * (DESCRIPTION_CHARACTERS_MAX + 1)}],
            "string_above_max_length",
            "[0].description",
        ),
        ([{**LOOK, "parameters": {"type": "string"}}], "invalid_schema", "[0].parameters.type"),
        ([{**LOOK, "parameters": nested(SCHEMA_DEPTH_MAX + 1)}], "schema_too_deep", "[0].parameters"),
        ([{**LOOK, "parameters": {"description": "x" * TOOLS_BYTES_MAX}}], "tools_too_large", ""),
    ],
)
def test_what_is_no_tool_is_named(tools: list[Any], code: str, param: str) -> None:
    assert refusal(tools=tools) == (code, f"session.tools{param}")


def test_what_is_just_allowed() -> None:
    tools_of([FunctionBody(name=f"t{at}") for at in range(TOOLS_MAX)], "p")
    tools_of([FunctionBody(name="t", parameters=nested(SCHEMA_DEPTH_MAX))], "p")


@pytest.mark.parametrize(
    ("choice", "code", "param"),
    [
        ("sometimes", "invalid_value", ""),
        ({"type": "mcp", "server_label": "x"}, "unsupported_tool", ".type"),
        ({"type": "function"}, "invalid_tool_name", ".name"),
        ({"type": "function", "name": "go"}, "unknown_tool", ""),
    ],
)
def test_what_is_no_choice_is_named(choice: Any, code: str, param: str) -> None:
    assert refusal(tools=[LOOK], tool_choice=choice) == (code, f"session.tool_choice{param}")


def test_a_tool_that_is_chosen_cannot_be_taken_away() -> None:
    settings = patched(tools=[LOOK], tool_choice=NAMED)
    with pytest.raises(ClientEventError, match="'look'"):
        patched(settings, tools=[])


# ---- of one response ---------------------------------------------------------------------------------


def test_a_response_says_first_which_tools_there_are() -> None:
    settings = patched(tools=[LOOK])
    body = msgspec.convert({"tools": [{"name": "go"}], "tool_choice": {"name": "go"}}, ResponseBody)
    spec = response_spec(body, settings)
    assert (spec.tools, spec.tool_choice) == ((Tool("go"),), ToolChoice("required", "go"))
    chosen = response_spec(msgspec.convert({"tool_choice": NAMED}, ResponseBody), settings)
    assert (chosen.tools, chosen.tool_choice) == (None, ToolChoice("required", "look"))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": {"name": "go"}}, "response.tool_choice"),
        ({"tools": [{"name": "go"}]}, "response.tool_choice"),
    ],
)
def test_a_choice_that_a_response_leaves_without_its_tool_is_named(body: dict[str, Any], param: str) -> None:
    settings = patched(tools=[LOOK], tool_choice=NAMED)
    with pytest.raises(ClientEventError) as raised:
        response_spec(msgspec.convert(body, ResponseBody), settings)
    assert (raised.value.code, raised.value.param) == ("unknown_tool", param)


# ---- items -------------------------------------------------------------------------------------------


def item(**body: Any) -> Item:
    return item_of(msgspec.convert(body, ItemBody), "item_new")


def test_what_came_of_a_call_is_an_item() -> None:
    made = item(type="function_call_output", id="mine", call_id="c", output="")
    assert made == output_item("mine", "c", "")


def test_a_call_is_an_item() -> None:
    assert item(type="function_call", call_id="c", name="look", arguments='{"a":1}') == call_item(
        "item_new", "c", "look", '{"a":1}'
    )
    assert item(type="function_call", call_id="c", name="look").text == "{}"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"type": "function_call_output", "output": "x"}, "missing_value", "call_id"),
        ({"type": "function_call_output", "call_id": "c"}, "missing_value", "output"),
        ({"type": "function_call_output", "call_id": "c" * 65, "output": ""}, "string_above_max_length", "call_id"),
        ({"type": "function_call_output", "call_id": "c", "output": "x" * 16_385}, "string_above_max_length", "output"),
        ({"type": "function_call", "call_id": "c"}, "invalid_tool_name", "name"),
        ({"type": "function_call", "call_id": "c", "name": "go", "arguments": "[]"}, "invalid_value", "arguments"),
        (
            {"type": "function_call", "call_id": "c", "name": "go", "arguments": "x" * (CALL_CHARACTERS_MAX + 1)},
            "string_above_max_length",
            "arguments",
        ),
    ],
)
def test_what_is_no_item_of_a_call_is_named(body: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ClientEventError) as raised:
        item(**body)
    assert (raised.value.code, raised.value.param) == (code, f"item.{param}")


# ---- tools of the service ----------------------------------------------------------------------------

SERVED = (Tool("book", "Books a table."),)


def with_service(settings: SessionSettings | None = None, **patch: Any) -> SessionSettings:
    return apply_patch(settings or SessionSettings(), msgspec.convert(patch, SessionPatch), SERVED)


def test_a_name_of_the_service_is_taken() -> None:
    with pytest.raises(ClientEventError) as raised:
        with_service(tools=[LOOK, {"type": "function", "name": "book"}])
    assert (raised.value.code, raised.value.param) == ("tool_name_taken", "session.tools[1].name")


def test_a_choice_may_be_of_the_service() -> None:
    named = {"type": "function", "name": "book"}
    assert with_service(tools=[LOOK], tool_choice=named).tool_choice == ToolChoice("required", "book")
    asked = ResponseBody(tool_choice=NamedChoice("function", "book"))
    assert response_spec(asked, SessionSettings(), SERVED).tool_choice == ToolChoice("required", "book")


def test_out_of_band_the_service_has_none() -> None:
    asked = ResponseBody(conversation="none", tool_choice=NamedChoice("function", "book"))
    with pytest.raises(ClientEventError) as raised:
        response_spec(asked, SessionSettings(), SERVED)
    assert raised.value.code == "unknown_tool"
    chosen = with_service(tool_choice={"type": "function", "name": "book"})
    assert response_spec(ResponseBody(conversation="none"), chosen, SERVED).tool_choice is None


def test_what_the_service_has_counts() -> None:
    many = [{"type": "function", "name": f"tool_{at}"} for at in range(TOOLS_MAX)]
    assert len(patched(tools=many).tools) == TOOLS_MAX
    with pytest.raises(ClientEventError) as raised:
        with_service(tools=many)
    assert raised.value.code == "too_many_tools"
    large = Tool("large", "x" * TOOLS_BYTES_MAX)
    with pytest.raises(ClientEventError) as raised:
        apply_patch(SessionSettings(), msgspec.convert({"tools": [LOOK]}, SessionPatch), (large,))
    assert raised.value.code == "tools_too_large"


def test_a_session_shows_their_names() -> None:
    assert session_dict("s", SessionSettings(), SERVED)["service_tools"] == ["book"]
    assert "service_tools" not in session_dict("s", SessionSettings())
