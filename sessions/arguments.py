"""Whether the arguments that a model has written for a call fit the schema that its tool was declared with.

Theory of operation
    Value and schema are walked together. Models that are held to a schema by a grammar keep to it; others leave out
    what is required, make up names, or write numbers as words, and that is what is looked for: types, required and
    unknown properties, enumerations, bounds of numbers, lengths and lists, and these within each other.

Rules
* A schema may be a stranger's, and the check runs where all calls do: so it is bounded (`CHECKS_MAX`), follows no
  `$ref`, and tries no `pattern`, either of which can be made to run for hours. What is not checked is taken to fit.
* The first fault is told, by its place, in words for a model.
* No library: those that check all of JSON Schema have no bound on what a schema makes them do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from stages.contracts import Tool

CHECKS_MAX = 10_000  # each of a value against a schema; arguments and schemas of a few KB need hundreds

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
_NUMBER_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
_LENGTHS: tuple[tuple[type[str] | type[list[Any]] | type[dict[str, Any]], str, str], ...] = (
    (str, "minLength", "maxLength"),
    (list, "minItems", "maxItems"),
    (dict, "minProperties", "maxProperties"),
)


def misfit(arguments: str, tool: Tool) -> str | None:
    """What is wrong with `arguments` (JSON) for `tool`; None where nothing is, or nothing can be told."""
    try:
        value = msgspec.json.decode(arguments or "{}")
        schema = msgspec.json.decode(tool.parameters)
    except (msgspec.DecodeError, RecursionError):
        return "the arguments are no JSON"
    if not isinstance(value, dict):
        return "the arguments are no object"
    return next(_Check().faults(value, schema, ""), None)


class _Check:
    def __init__(self) -> None:
        self._left = CHECKS_MAX

    def faults(self, value: Any, schema: Any, place: str) -> Iterator[str]:
        """What is wrong with `value`, at `place`, one fault after the other."""
        self._left -= 1
        if self._left < 0 or not isinstance(schema, dict):
            if schema is False:
                yield f"{_named(place)} is not allowed"
            return
        yield from _plain_faults(value, schema, place)
        yield from self._alternatives(value, schema, place)
        if isinstance(value, dict):
            yield from self._properties(value, schema, place)
        elif isinstance(value, list) and "items" in schema:
            for number, item in enumerate(value):
                yield from self.faults(item, schema["items"], f"{place}[{number}]")

    def _alternatives(self, value: Any, schema: Mapping[str, Any], place: str) -> Iterator[str]:
        for each in _listed(schema.get("allOf")):
            yield from self.faults(value, each, place)
        for name in ("anyOf", "oneOf"):
            either = _listed(schema.get(name))
            if either and all(next(self.faults(value, each, place), None) for each in either):
                yield f"{_named(place)} is none of what it may be"

    def _properties(self, value: Mapping[str, Any], schema: Mapping[str, Any], place: str) -> Iterator[str]:
        declared = schema.get("properties")
        known = declared if isinstance(declared, dict) else {}
        for name in _listed(schema.get("required")):
            if isinstance(name, str) and name not in value:
                yield f"{_within(place, name)} is missing"
        others = schema.get("additionalProperties", True)
        is_open = "patternProperties" in schema or "$ref" in schema
        for name, each in value.items():
            if name in known:
                yield from self.faults(each, known[name], _within(place, name))
            elif not is_open:
                yield from self.faults(each, others, _within(place, name))


def _plain_faults(value: Any, schema: Mapping[str, Any], place: str) -> Iterator[str]:
    wanted = schema.get("type")
    names = wanted if isinstance(wanted, list) else [wanted] if wanted is not None else []
    if names and not any(_is(value, name) for name in names):
        yield f"{_named(place)} must be of type {' or '.join(map(str, names))}"
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(allowed, list) and not any(_same(value, each) for each in allowed):
        yield f"{_named(place)} must be one of {msgspec.json.encode(allowed).decode()[:200]}"
    if _is(value, "number"):
        for name, holds in _NUMBER_BOUNDS.items():
            bound = schema.get(name)
            if _is(bound, "number") and not holds(value, bound):
                yield f"{_named(place)} is beyond its {name}, {bound}"
    for kind, least, most in _LENGTHS:
        if isinstance(value, kind):
            yield from _length_faults(len(value), schema, least, most, place)


def _length_faults(length: int, schema: Mapping[str, Any], least: str, most: str, place: str) -> Iterator[str]:
    if _is(schema.get(least), "integer") and length < schema[least]:
        yield f"{_named(place)} is shorter than its {least}, {schema[least]}"
    if _is(schema.get(most), "integer") and length > schema[most]:
        yield f"{_named(place)} is longer than its {most}, {schema[most]}"


def _is(value: Any, name: object) -> bool:
    kinds = _TYPES.get(name) if isinstance(name, str) else None
    if kinds is None:
        return name is not None  # a type that is none of JSON's says nothing
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, kinds)


def _same(value: Any, other: Any) -> bool:
    """As JSON has it: true is not 1."""
    return isinstance(value, bool) is isinstance(other, bool) and bool(value == other)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _within(place: str, name: object) -> str:
    return f"{place}.{name}" if place else str(name)


def _named(place: str) -> str:
    return place or "the whole"
