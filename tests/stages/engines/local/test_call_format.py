"""How the local model is told of tools, what it may write, and how that is read."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contracts import CallDelta, CallDone, Tool, ToolCall, ToolChoice
from stages.engines.local.call_format import (
    ARRAY_ITEMS_MAX,
    STRING_CHARACTERS_MAX,
    CallReader,
    answered,
    closed_schema,
    described,
    grammar,
    written,
)
from stages.stream import Output, Publish, StageFailure

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("get_weather", "The weather.", json.dumps(SCHEMA))
TIME = Tool("get_weather_time")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Paris"}}\n</tool_call>'
STRING = {"type": "string", "maxLength": STRING_CHARACTERS_MAX}
PLAIN = {"anyOf": [STRING, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]}


# ---- what the model reads --------------------------------------------------------------------------


def test_a_model_is_told_names_descriptions_and_schemas() -> None:
    told = described([WEATHER, TIME])
    listed = [json.loads(line) for line in told.splitlines() if line.startswith('{"type"')]
    assert [each["function"]["name"] for each in listed] == ["get_weather", "get_weather_time"]
    assert listed[0]["function"] == {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}


def test_calls_are_shown_as_they_are_written() -> None:
    call = ToolCall("c", "get_weather", '{"city":"Paris"}')
    assert written("", [call]) == CALL
    assert written("Well.", [call]) == f"Well.\n{CALL}"
    assert written("Well.", []) == "Well."
    assert answered("sunny") == "<tool_response>\nsunny\n</tool_response>"


# ---- what it may write -------------------------------------------------------------------------------


def test_without_tools_anything_may_be_written() -> None:
    assert grammar([], ToolChoice("required"), "<end>") == ""


@pytest.mark.parametrize(
    ("choice", "start", "calls"),
    [
        (ToolChoice(), "SPEECH <end> | SPEECH call", 2),
        (ToolChoice("required"), "call", 2),
        (ToolChoice("required", "get_weather_time"), "call", 1),
        (ToolChoice("none"), "SPEECH <end>", 0),
    ],
)
def test_what_may_be_written_is_what_was_chosen(choice: ToolChoice, start: str, calls: int) -> None:
    rules = grammar([WEATHER, TIME], choice, "<end>").splitlines()
    assert rules[:2] == ["%llguidance {}", f"start: {start}"]
    assert sum("%json" in rule for rule in rules) == calls
    if choice.name:
        assert not any('get_weather\\"' in rule for rule in rules)


def test_arguments_are_held_to_the_schema() -> None:
    (rule,) = [rule for rule in grammar([WEATHER], ToolChoice(), "<end>").splitlines() if "%json" in rule]
    schema = json.loads(rule.partition("%json ")[2])
    assert schema.pop("x-guidance") == {"whitespace_flexible": False}
    assert schema == {**SCHEMA, "properties": {"city": STRING}, "additionalProperties": False}


@pytest.mark.parametrize("parameters", ["{}", '{"type":"object","properties":{}}', '{"type":"object"}'])
def test_who_takes_no_arguments_is_given_none_or_any(parameters: str) -> None:
    rule = grammar([Tool("go", "", parameters)], ToolChoice(), "<end>").splitlines()[-1]
    assert json.loads(rule.partition("%json ")[2])["type"] == "object"


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({"type": "integer", "minimum": 1, "title": "n"}, {"type": "integer", "minimum": 1}),
        ({"type": "number", "maximum": 1.5, "minimum": "x"}, {"type": "number", "maximum": 1.5}),
        ({"type": "boolean", "default": True}, {"type": "boolean"}),
        ({"type": "string", "pattern": "[a-", "maxLength": 4}, {"type": "string", "maxLength": 4}),
        ({"type": "string", "maxLength": 10**9}, STRING),
        ({"type": "string", "maxLength": "x"}, STRING),
        (
            {"type": "array", "minItems": 10**9, "maxItems": -1, "items": {"const": 1}},
            {"type": "array", "minItems": ARRAY_ITEMS_MAX, "maxItems": 0, "items": {"const": 1}},
        ),
        ({"type": "string", "enum": ["a", "b"]}, {"enum": ["a", "b"]}),
        ({"const": 1}, {"const": 1}),
        ({"oneOf": [{"type": "null"}, {"const": 1}]}, {"anyOf": [{"type": "null"}, {"const": 1}]}),
        ({"type": ["boolean", "null", "null", {}]}, {"anyOf": [{"type": "boolean"}, {"type": "null"}]}),
        ({"type": []}, PLAIN),
        (
            {"type": "array", "items": {"type": "boolean"}},
            {"type": "array", "maxItems": ARRAY_ITEMS_MAX, "items": {"type": "boolean"}},
        ),
        ({"type": "array", "maxItems": 2}, {"type": "array", "maxItems": 2, "items": PLAIN}),
        ({"type": "object"}, {"type": "object"}),
        (
            {"type": "object", "additionalProperties": False},
            {"type": "object", "properties": {}, "additionalProperties": False},
        ),
        (
            {"properties": {"a": True}, "required": ["a", "b"]},
            {"type": "object", "properties": {"a": PLAIN}, "required": ["a"], "additionalProperties": False},
        ),
        (
            {"type": "object", "properties": {}, "required": "a"},
            {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        ),
        ({"$ref": "#/nowhere"}, PLAIN),
        ({"type": "banana"}, PLAIN),
        ("nonsense", PLAIN),
    ],
)
def test_only_what_is_enforced_is_asked_for(schema: Any, closed: dict[str, Any]) -> None:
    assert closed_schema(schema) == closed


def test_alternatives_in_alternatives_do_not_multiply() -> None:
    schema: dict[str, Any] = {}
    for _ in range(12):
        schema = {"type": ["object"] * 9, "properties": {"a": schema}}
    assert len(json.dumps(closed_schema(schema))) < 4_000


# ---- what it has written ------------------------------------------------------------------------------


def read(*pieces: str, must_call: bool = False) -> tuple[str, list[Output], CallReader]:
    reader, words, outputs = CallReader([TIME, WEATHER], must_call=must_call), "", list[Output]()
    for piece in pieces:
        said, published = reader.feed(piece)
        words, outputs = words + said, outputs + published
    return words, outputs, reader


def events(outputs: list[Output]) -> list[object]:
    return [output.event for output in outputs if isinstance(output, Publish)]


@given(st.lists(st.integers(1, len(CALL) + 11), max_size=12))
def test_words_and_call_are_told_apart_however_they_come(cuts: list[int]) -> None:
    text, at = f"Let me look.{CALL}", [0, *sorted(set(cuts)), None]
    words, outputs, reader = read(*(text[a:b] for a, b in itertools.pairwise(at)))
    assert words == "Let me look."
    told = events(outputs)
    assert told[0] == CallDelta(0, "get_weather")
    arguments = "".join(event.arguments for event in told if isinstance(event, CallDelta))
    assert told[-1] == CallDone(0, arguments)
    assert arguments == '{"city":"Paris"}'
    assert reader.has_begun
    assert reader.is_whole
    reader.check_end()


def test_words_alone_are_a_reply() -> None:
    words, outputs, reader = read("Well, ", "hello.")
    assert (words, outputs, reader.has_begun) == ("Well, hello.", [], False)
    reader.check_end()


@pytest.mark.parametrize(
    ("pieces", "must_call"),
    [
        (["<b>well"], False),
        (['<tool_call>\n{"name": "never", '], False),
        (["Well."], True),
    ],
)
def test_what_no_grammar_allows_is_not_believed(pieces: list[str], must_call: bool) -> None:
    with pytest.raises(StageFailure) as raised:
        read(*pieces, must_call=must_call)
    assert raised.value.code == "bad_call"


@pytest.mark.parametrize(("pieces", "must_call"), [([CALL[:-1]], False), ([], True)])
def test_an_end_before_the_call_is_whole_is_not_believed(pieces: list[str], must_call: bool) -> None:
    _, _, reader = read(*pieces, must_call=must_call)
    with pytest.raises(StageFailure) as raised:
        reader.check_end()
    assert raised.value.code == "bad_call"
