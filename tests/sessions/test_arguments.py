"""Arguments of calls are held to their tool's schema, in bounded time, and the first fault is told by its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessions.arguments import misfit
from stages.contracts import Tool

BOOKING = {
    "type": "object",
    "required": ["people"],
    "additionalProperties": False,
    "properties": {
        "people": {"type": "integer", "minimum": 1, "maximum": 12},
        "name": {"type": ["string", "null"], "minLength": 1, "maxLength": 5},
        "at": {"enum": ["noon", "night", 7]},
        "wishes": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string"}},
        "place": {"type": "object", "required": ["row"], "properties": {"row": {"type": "number"}}},
    },
}


def fault(arguments: Any, schema: Any = BOOKING) -> str | None:
    return misfit(json.dumps(arguments), Tool("book", parameters=json.dumps(schema)))


@pytest.mark.parametrize(
    "arguments",
    [
        {"people": 2},
        {"people": 2.0, "name": None, "at": 7, "wishes": ["window"], "place": {"row": 1.5, "seat": 3}},
    ],
)
def test_what_fits_is_no_fault(arguments: Any) -> None:
    assert fault(arguments) is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "people is missing"),
        ({"people": "two"}, "people must be of type integer"),
        ({"people": True}, "people must be of type integer"),
        ({"people": 2.5}, "people must be of type integer"),
        ({"people": 0}, "people is beyond its minimum, 1"),
        ({"people": 13}, "people is beyond its maximum, 12"),
        ({"people": 1, "name": 7}, "name must be of type string or null"),
        ({"people": 1, "name": ""}, "name is shorter than its minLength, 1"),
        ({"people": 1, "name": "Fridolin"}, "name is longer than its maxLength, 5"),
        ({"people": 1, "at": "dawn"}, 'at must be one of ["noon","night",7]'),
        ({"people": 1, "wishes": []}, "wishes is shorter than its minItems, 1"),
        ({"people": 1, "wishes": ["a", "b", "c"]}, "wishes is longer than its maxItems, 2"),
        ({"people": 1, "wishes": ["a", 2]}, "wishes[1] must be of type string"),
        ({"people": 1, "place": {}}, "place.row is missing"),
        ({"people": 1, "place": {"row": "x"}}, "place.row must be of type number"),
        ({"people": 1, "dog": True}, "dog is not allowed"),
        ([], "the arguments are no object"),
    ],
)
def test_what_does_not_fit_is_told_by_its_place(arguments: Any, told: str) -> None:
    assert fault(arguments) == told


def test_alternatives_and_bounds() -> None:
    either = {"properties": {"x": {"anyOf": [{"type": "string"}, {"exclusiveMinimum": 3, "type": "number"}]}}}
    assert fault({"x": "a"}, either) is None
    assert fault({"x": 4}, either) is None
    assert fault({"x": 3}, either) == "x is none of what it may be"
    one = {"properties": {"x": {"oneOf": [{"const": 1}, {"const": True}]}}}
    assert (fault({"x": 1}, one), fault({"x": True}, one)) == (None, None)
    assert fault({"x": 2}, one) == "x is none of what it may be"
    both = {"allOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert fault({"a": 1}, both) == "b is missing"
    assert fault({"x": 9}, {"properties": {"x": {"exclusiveMaximum": 9}}}) == "x is beyond its exclusiveMaximum, 9"


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "of my own"},
        {"type": 7, "required": 3, "properties": [], "enum": "a", "minimum": "x", "anyOf": {}},
        {"$ref": "#", "additionalProperties": False},
        {"patternProperties": {"(a+)+$": {}}, "additionalProperties": False},
        {"properties": {"x": {"pattern": "(a+)+$", "minLength": "long"}}},
    ],
)
def test_what_is_not_checked_is_taken_to_fit(schema: Any) -> None:
    assert fault({"x": "a" * 40 + "b"}, schema) is None


def test_what_is_no_json_is_told_so() -> None:
    assert misfit("{", Tool("look")) == "the arguments are no JSON"
    assert misfit("", Tool("look")) is None, "nothing is an empty object"
    assert misfit("[" * 100_000, Tool("look")) == "the arguments are no JSON"


def test_a_schema_that_branches_without_end_is_left() -> None:
    schema: Any = {"type": "string"}
    for _ in range(30):
        schema = {"allOf": [schema, schema]}
    assert misfit('{"a": 1}', Tool("look", parameters='{"properties": {"b": {}}}')) is None
    wide = {"items": {"anyOf": [{"const": number} for number in range(200)]}}
    assert fault({"x": [-1.5] * 200}, {"properties": {"x": wide}}) == "x[0] is none of what it may be"
    assert fault({"x": list(range(200))}, {"properties": {"x": wide}}) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*"ab", *BOOKING, "items"]), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=2), JSON, max_size=3), JSON)
@example({}, {"required": [[]]})
def test_whatever_the_schema_is_there_is_an_answer(arguments: Any, schema: Any) -> None:
    told = fault(arguments, schema)
    assert told is None or told
