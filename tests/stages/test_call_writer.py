"""Calls on their way out of an engine: named, bounded, whole or never made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stages.call_writer import CallWriter, callable_now
from stages.contracts import CALL_CHARACTERS_MAX, CALLS_MAX, CallDelta, CallDone, Tool, ToolChoice
from stages.stream import Publish, StageFailure


def writer() -> CallWriter:
    return CallWriter([Tool("look"), Tool("go")])


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (ToolChoice(), ["look", "go"]),
        (ToolChoice("required"), ["look", "go"]),
        (ToolChoice("required", "go"), ["go"]),
        (ToolChoice("none"), []),
    ],
)
def test_the_choice_says_what_may_be_called(choice: ToolChoice, names: list[str]) -> None:
    assert [tool.name for tool in callable_now([Tool("look"), Tool("go")], choice)] == names


def test_calls_are_written_one_after_the_other() -> None:
    one = writer()
    assert one.begin("go") == [Publish(CallDelta(0, "go"))]
    assert one.add('{"a":') == [Publish(CallDelta(0, "go", '{"a":'))]
    assert one.add("") == []
    one.add("1}")
    assert one.finish() == [Publish(CallDone(0, '{"a":1}'))]
    assert one.begin("look") == [Publish(CallDelta(1, "look"))]


def test_a_call_is_being_written_until_it_is_whole() -> None:
    one = writer()
    seen = [one.is_writing, *(one.is_writing for _ in one.begin("go")), *(one.is_writing for _ in one.finish()[:1])]
    assert seen == [False, True, False]


@pytest.mark.parametrize("nothing", ["", "  "])
def test_no_arguments_are_an_empty_object(nothing: str) -> None:
    one = writer()
    one.begin("go")
    one.add(nothing)
    told, done = one.finish()
    assert told == Publish(CallDelta(0, "go", "{}"))
    assert done == Publish(CallDone(0, f"{nothing}{{}}"))


def written(arguments: str) -> CallWriter:
    one = writer()
    one.begin("go")
    one.add(arguments)
    return one


def too_many() -> None:
    one = writer()
    for _ in range(CALLS_MAX + 1):
        one.begin("go")
        one.finish()


@pytest.mark.parametrize(
    "act",
    [
        lambda: writer().begin("never"),
        lambda: written("x" * (CALL_CHARACTERS_MAX + 1)),
        lambda: written('{"a":').finish(),
        lambda: written("[1]").finish(),
        lambda: written('{"a":' + "[" * 5_000).finish(),
        too_many,
    ],
    ids=["unknown", "too long", "broken", "no object", "nested without end", "too many"],
)
def test_what_is_no_call_is_refused_by_name(act: Callable[[], object]) -> None:
    with pytest.raises(StageFailure) as raised:
        act()
    assert raised.value.code == "bad_call"
