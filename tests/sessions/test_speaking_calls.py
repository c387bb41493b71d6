"""Calls of a response as `Speaking` has them, and why no further response may begin."""

from __future__ import annotations

from sessions.events import CallFinished, CallStarted, CommandRefused, ResponseFinished
from sessions.plan import Marks
from sessions.responses import DRAINING_MAX
from stages.contracts import CallDelta, CallDone, TextDelta, TextDone
from tests.sessions.talk import kinds, told
from tests.sessions.test_speaking import audio, plan, send_all, speaking, started

BEGUN, WHOLE = CallDelta(0, "look", "{}"), CallDone(0, "{}")


def test_a_call_is_told_as_it_comes_and_kept_once_it_is_whole() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    assert kinds(mouth.published(what.tag, BEGUN, 1)) == ["CallStarted", "CallArguments"]
    assert mouth.take_called() == []
    (ended,) = told(mouth.published(what.tag, WHOLE, 2), CallFinished)
    (called,) = mouth.take_called()
    assert called.item == ended.item
    assert mouth.take_called() == []


def test_one_that_is_not_whole_ends_with_its_response() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    mouth.published(what.tag, TextDelta("Well"), 1)
    (begun,) = told(mouth.published(what.tag, BEGUN, 1), CallStarted)
    assert begun.previous == "r1_item"
    effects = mouth.cancel("r1", "turn_detected", 2)
    assert kinds(effects)[-2:] == ["CallFinished", "ResponseFinished"]
    (end,) = told(effects, ResponseFinished)
    assert [call.status for call in end.response.calls] == ["incomplete"]
    assert [one.item for one in mouth.take_called()] == list(end.response.calls)
    assert [one.leaves_nothing for one in mouth.take_ended()] == [True]


def test_of_a_prepared_one_nothing_is_told_or_kept_before_it_is_confirmed() -> None:
    mouth, what = speaking(), plan()
    mouth.prepare(what, 0)
    for leg, _ in reversed(what.stages):
        mouth.opened(what.tag, leg.stage, 0)
    for event in (BEGUN, WHOLE, TextDone("", "stop", 1, 0, 1), audio(0, final=True)):
        assert told(mouth.published(what.tag, event, 1), CallStarted) == []
    assert mouth.take_called() == []
    effects = mouth.confirm("item_9", Marks(), 1)
    assert kinds(effects) == [
        "ResponseStarted",
        "MessageStarted",
        "CallStarted",
        "CallArguments",
        "CallFinished",
        "Measured",
    ]
    assert len(mouth.take_called()) == 1
    assert kinds(send_all(mouth)) == ["ResponseFinished"]


def test_a_call_that_cannot_be_ends_its_response() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    (end,) = told(mouth.published(what.tag, WHOLE, 1), ResponseFinished)
    assert (end.response.status, end.response.code, end.response.calls) == ("failed", "invalid_call", ())


def code_of(refused: CommandRefused | None) -> str:
    return refused.code if refused else ""


def test_why_no_response_can_begin() -> None:
    mouth = speaking()
    assert mouth.why_not(in_conversation=True) is mouth.why_not(in_conversation=False) is None
    started(mouth, plan("r1"))
    started(mouth, plan("r2", in_conversation=False))
    assert code_of(mouth.why_not(in_conversation=True)) == "conversation_already_has_active_response"
    assert code_of(mouth.why_not(in_conversation=False)) == "out_of_band_response_active"
    for name in ("r1", "r2"):
        mouth.cancel(name, "client_cancelled", 1)
    for number in range(3, DRAINING_MAX + 1):
        started(mouth, plan(f"r{number}"))
        mouth.cancel(f"r{number}", "client_cancelled", 1)
    assert code_of(mouth.why_not(in_conversation=True)) == "too_many_responses"
