"""Calls as a reply writes them, what is told of them, and where they and their outputs stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.events import CallArguments, CallFinished, CallStarted
from sessions.items import Item, ItemError
from sessions.tool_calls import (
    CALL_ANSWERED,
    CALL_EXISTS,
    CALL_INCOMPLETE,
    CALL_NOT_FOUND,
    CallError,
    Calls,
    before_calls,
    call_item,
    check_call,
    is_alone,
    output_item,
    outputs,
    place_of,
    service_answers,
)
from stages.contracts import CALL_CHARACTERS_MAX, CALLS_MAX, CallDelta, CallDone

FIRST = call_item("item_2_call_0", "call_0_resp_1", "look", "", "in_progress")
SECOND = call_item("item_2_call_1", "call_1_resp_1", "go", "", "in_progress")


def calls(*events: CallDelta | CallDone) -> Calls:
    one = Calls("resp_1", "item_2")
    for event in events:
        one.add(event)
    return one


# ---- as they are written ---------------------------------------------------------------------------


def test_a_call_begins_grows_and_is_whole() -> None:
    one = calls(CallDelta(0, "look"))
    assert one.news() == [CallStarted("resp_1", FIRST, None)]
    one.add(CallDelta(0, "look", '{"a":'))
    one.add(CallDelta(0, "look", "1}"))
    assert one.news() == [CallArguments("resp_1", FIRST.id, FIRST.call_id, '{"a":1}')]
    assert one.news() == []
    one.add(CallDone(0, '{"a":1}'))
    whole = replace(FIRST, text='{"a":1}', status="completed")
    assert one.news() == [CallFinished("resp_1", whole)]
    assert one.news() == []
    one.abandon()
    assert one.items == (whole,), "what is whole stays so"


def test_all_that_came_before_anything_was_told_is_told_at_once() -> None:
    one = calls(CallDelta(0, "look", "{}"), CallDone(0, "{}"), CallDelta(1, "go"))
    whole = replace(FIRST, text="{}", status="completed")
    assert one.news() == [
        CallStarted("resp_1", FIRST, None),
        CallArguments("resp_1", FIRST.id, FIRST.call_id, "{}"),
        CallFinished("resp_1", whole),
        CallStarted("resp_1", SECOND, None),
    ]


def test_a_call_in_which_its_reply_ended_is_incomplete() -> None:
    one = calls(CallDelta(0, "look", "{"))
    one.news()
    one.abandon()
    broken = replace(FIRST, text="{", status="incomplete")
    assert one.news() == [CallFinished("resp_1", broken)]


@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        ([], CallDone(0, "{}")),
        ([], CallDelta(1, "look")),
        ([CallDelta(0, "look")], CallDelta(1, "go")),
        ([CallDelta(0, "look")], CallDone(1, "{}")),
        ([CallDelta(0, "look"), CallDone(0, "{}")], CallDelta(0, "look", "{}")),
        ([CallDelta(0, "look"), CallDone(0, "{}")], CallDone(0, "{}")),
        ([CallDelta(0, "look")], CallDelta(0, "look", "x" * (CALL_CHARACTERS_MAX + 1))),
        (
            [event for at in range(CALLS_MAX) for event in (CallDelta(at, "look"), CallDone(at, "{}"))],
            CallDelta(CALLS_MAX, "look"),
        ),
    ],
)
def test_what_contradicts_itself_changes_nothing(
    before: list[CallDelta | CallDone], wrong: CallDelta | CallDone
) -> None:
    one = calls(*before)
    known = one.items
    with pytest.raises(CallError):
        one.add(wrong)
    assert one.items == known


@given(st.lists(st.text(min_size=1, max_size=5), max_size=20), st.sets(st.integers(0, 20)))
def test_what_is_told_is_what_was_written(pieces: list[str], told_after: set[int]) -> None:
    one, told = calls(CallDelta(0, "look")), list[object]()
    for at, piece in enumerate(pieces):
        one.add(CallDelta(0, "look", piece))
        told += one.news() if at in told_after else []
    one.add(CallDone(0, "".join(pieces)))
    told += one.news()
    assert "".join(event.delta for event in told if isinstance(event, CallArguments)) == "".join(pieces)
    assert [type(event) for event in told if not isinstance(event, CallArguments)] == [CallStarted, CallFinished]


def test_a_calls_place_is_behind_the_words_and_the_calls_before_it() -> None:
    one = calls(CallDelta(0, "look"), CallDone(0, "{}"), CallDelta(1, "go"))
    first, second = one.items
    assert one.before(first) == ["item_2"]
    assert one.before(second) == ["item_2", first.id]


# ---- in the history ----------------------------------------------------------------------------------


def said(name: str) -> Item:
    return Item(name, "user", "well", spoken=True)


def call(name: str) -> Item:
    return call_item(f"item_{name}", name, "look", "{}")


def found(name: str) -> Item:
    return output_item(f"output_{name}", name, "it")


def test_outputs_are_known_by_their_calls() -> None:
    assert outputs([said("a"), call("c"), found("c"), found("d")]) == {"c": "it", "d": "it"}


@pytest.mark.parametrize(
    ("items", "place"),
    [
        ([call("c")], "item_c"),
        ([said("a"), call("c"), said("b")], "item_c"),
        ([call("c"), call("d"), said("b")], "item_d"),
        ([call("b"), call("c"), found("b")], "item_c"),
        ([call("c"), said("b"), call("d")], "item_c"),
    ],
    ids=["last", "talk went on", "of several", "after another", "later call"],
)
def test_an_output_stands_behind_its_call_and_those_that_follow_it(items: Sequence[Item], place: str) -> None:
    assert place_of(found("c"), tuple(items)) == place


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([said("c"), found("c")], CALL_NOT_FOUND),
        ([call("d")], CALL_NOT_FOUND),
        ([call("c"), found("c")], CALL_ANSWERED),
        ([replace(call("c"), status="incomplete")], CALL_INCOMPLETE),
    ],
)
def test_an_output_that_no_call_waits_for(items: Sequence[Item], code: str) -> None:
    with pytest.raises(ItemError) as raised:
        place_of(found("c"), tuple(items))
    assert raised.value.code == code


def test_a_calls_id_is_used_once() -> None:
    check_call(call("c"), [call("d"), found("c")], is_taken=False)
    with pytest.raises(ItemError) as raised:
        check_call(call("c"), [call("c")], is_taken=False)
    assert raised.value.code == CALL_EXISTS
    with pytest.raises(ItemError) as raised:
        check_call(call("c"), [], is_taken=True)
    assert raised.value.code == CALL_EXISTS


# ---- what stands beside each other -------------------------------------------------------------------------

ASKED = Item("asked", "user", "hello", spoken=True)
LOOK, GO = (replace(each, status="completed") for each in (FIRST, SECOND))


def test_words_of_a_wait_stand_before_the_calls_that_are_waited_for() -> None:
    history = (ASKED, LOOK, GO)
    assert before_calls(LOOK.call_id, history) == before_calls(GO.call_id, history) == "asked"
    assert before_calls(GO.call_id, (LOOK, GO)) is None
    assert before_calls("gone", history) is None


def test_a_call_is_done_with_when_all_beside_it_are() -> None:
    of_look, of_go = output_item("a", LOOK.call_id, "seen"), output_item("b", GO.call_id, "gone")
    assert not is_alone(LOOK.call_id, (LOOK, GO, of_look))
    assert is_alone(LOOK.call_id, (LOOK, GO, of_look, of_go))
    assert is_alone(LOOK.call_id, (LOOK, replace(GO, status="incomplete"), of_look))
    assert is_alone(LOOK.call_id, (LOOK, of_look, ASKED, GO))
    assert not is_alone("gone", (LOOK, of_look))


def test_who_may_not_answer_is_told_why() -> None:
    refused = service_answers("call_1")
    assert (refused.code, refused.param) == ("tool_call_of_service", "item.call_id")
