"""What there is of a response under way, and what its client is told of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sessions.effects import AuditStream, Measured, Tell
from sessions.events import CallFinished, CallStarted, MessageStarted, ReplyText, ReplyWords, Usage
from sessions.heard import Cut
from sessions.items import History, Item
from sessions.plan import Marks
from sessions.response import Deadlines, Done, Phase, Response
from sessions.run import Run
from stages.contracts import CALLS_MAX, OUT_OF_BAND, CallDelta, CallDone, TextDone, Word, WordTimes
from stages.event_log import EventLog
from tests.sessions.talk import kinds
from tests.sessions.test_speaking import plan

WORDS = WordTimes(0, 24_000, (Word("well", 0, 480),))
CUT = Cut(480, "well")


def run(*, prepared: bool = False, in_conversation: bool = True, may_call: bool = False) -> Run:
    what = plan(in_conversation=in_conversation)
    what = replace(what, view=replace(what.view, may_call=may_call))
    life = Response(what.tag, ("thinker",), finals=what.finals, deadlines=Deadlines(), now_ns=0)
    life.admit(0)
    history = History((Item("before", "user", "hello", spoken=True),))
    return Run(what, life, EventLog(0).of("sess"), Marks(), history, is_prepared=prepared)


def with_a_call(one: Run) -> Run:
    one.calls.add(CallDelta(0, "look"))
    one.calls.add(CallDone(0, "{}"))
    return one


def test_words_are_told_once_there_is_output_and_then_once() -> None:
    one = run(may_call=True)
    assert kinds(one.started()) == ["ResponseStarted"]
    one.reply.add_words(WORDS)
    assert one.news() == [], "alone they are none"
    one.life.output(1)
    begun, told = one.news()
    assert begun == Tell(MessageStarted("r1", "r1_item", "before"))
    assert isinstance(told, Tell)
    assert isinstance(told.event, ReplyWords)
    assert one.news() == []
    assert one.text("well") == [Tell(ReplyText("r1", "r1_item", "well", True))]


@pytest.mark.parametrize(
    ("reason", "told", "is_limited"),
    [("stop", "", False), ("max_output_tokens", "max_output_tokens", True)],
)
def test_a_text_that_is_whole_says_why_it_ends_where_that_is_not_its_own_end(
    reason: str, told: str, is_limited: bool
) -> None:
    one = run()
    assert one.written(TextDone("", reason, 7, 3, 5)) == told
    assert (one.is_written, one.usage, one.reply.is_limited) == (True, Usage(7, 3, 5), is_limited)


def test_of_what_is_prepared_nothing_is_told() -> None:
    one = with_a_call(run(prepared=True))
    one.life.output(1)
    one.reply.add_words(WORDS)
    assert (one.news(), one.news_of_calls()) == ([], ([], []))


@pytest.mark.parametrize(("text", "previous"), [("", "before"), ("well", "r1_item")])
def test_a_call_stands_behind_the_words_or_in_their_place(text: str, previous: str) -> None:
    one = with_a_call(run(may_call=True))
    one.started()
    if text:
        one.text(text)
    effects, called = one.news_of_calls()
    started = next(effect.event for effect in effects if isinstance(effect, Tell))
    assert isinstance(started, CallStarted)
    assert started.previous == previous
    assert [one.item.text for one in called] == ["{}"]
    assert one.news_of_calls() == ([], [])


def test_a_call_out_of_band_is_told_and_kept_nowhere() -> None:
    one = with_a_call(run(in_conversation=False))
    assert one.plan.tag.epoch == OUT_OF_BAND
    effects, called = one.news_of_calls()
    assert [type(effect.event) for effect in effects if isinstance(effect, Tell)][-1] is CallFinished
    assert called == []


def test_of_an_attempt_that_was_given_up_nothing_is_left() -> None:
    one = with_a_call(run())
    one.reply.add_text("well")
    one.is_touched = one.is_written = True
    one.begin_anew(1)
    assert (one.plan.tag.attempt, one.reply.text, one.calls.items, one.usage) == (1, "", (), Usage())
    assert not (one.is_touched)
    assert not (one.is_written)


@pytest.mark.parametrize(
    ("phase", "reason", "status"),
    [
        (Phase.SUCCEEDED, "", "completed"),
        (Phase.SUCCEEDED, "max_output_tokens", "incomplete"),
        (Phase.CANCELLED, "turn_detected", "cancelled"),
        (Phase.FAILED, "failed", "failed"),
    ],
)
def test_how_it_ended(phase: Phase, reason: str, status: str) -> None:
    one = with_a_call(run())
    view = one.terminal(Done(phase, reason, "code", "why"), CUT, 480, was_cut=phase is Phase.CANCELLED)
    assert (view.status, view.reason, view.code, view.message) == (status, reason, "code", "why")
    assert (view.text, view.cut) == ("well", CUT if phase is Phase.CANCELLED else None)
    assert [call.name for call in view.calls] == ["look"]


@pytest.mark.parametrize(
    ("phase", "text", "sent", "calls", "leaves_nothing"),
    [
        (Phase.CANCELLED, "", 0, False, True),
        (Phase.FAILED, "", 0, True, True),
        (Phase.CANCELLED, "well", 0, False, False),
        (Phase.CANCELLED, "", 480, False, False),
        (Phase.SUCCEEDED, "", 0, False, False),
        (Phase.SUCCEEDED, "", 0, True, True),
    ],
)
def test_what_said_nothing_leaves_nothing_unless_that_was_all_it_had_to_say(
    phase: Phase, text: str, sent: int, calls: bool, leaves_nothing: bool
) -> None:
    one = with_a_call(run()) if calls else run()
    view = one.terminal(Done(phase, "", "", ""), Cut(sent, text), sent, was_cut=True)
    assert view.leaves_nothing is leaves_nothing


def test_the_ids_of_what_it_makes_or_may_make_are_taken_from_the_beginning() -> None:
    one = run()
    last = CALLS_MAX - 1
    taken = ("r1_item", "r1_item_call_0", f"r1_item_call_{last}", "call_0_r1", f"call_{last}_r1")
    assert [one.takes(name) for name in taken] == [True] * 5
    free = ("r1", "another", f"r1_item_call_{CALLS_MAX}", f"call_{CALLS_MAX}_r1", "call_0_r2")
    assert [one.takes(name) for name in free] == [False] * 5


def test_its_items_are_being_made_until_each_is_over() -> None:
    one = run()
    one.calls.add(CallDelta(0, "look"))
    assert [one.is_making(item) for item in ("r1_item", "r1_item_call_0", "another")] == [True, True, False]
    one.calls.add(CallDone(0, "{}"))
    assert [one.is_making(item) for item in ("r1_item", "r1_item_call_0")] == [True, False]
    one.life.cancel("client_cancelled", 1)
    assert not one.is_making("r1_item")


@pytest.mark.parametrize(("prepared", "in_conversation"), [(True, True), (False, False)])
def test_what_was_not_announced_to_the_conversation_is_not_being_made_there(
    prepared: bool, in_conversation: bool
) -> None:
    assert not run(prepared=prepared, in_conversation=in_conversation).is_making("r1_item")


@pytest.mark.parametrize(("speech_end_ns", "measured"), [(500, [Measured("first_audio_seconds", 1e-6)]), (0, [])])
def test_the_first_sound_is_measured_from_the_end_of_the_turn(speech_end_ns: int, measured: list[Measured]) -> None:
    one = run()
    one.marks.speech_end_ns = speech_end_ns
    assert one.first_sent(1_500) == measured
    assert (one.first_sent(2_500), one.marks.first_sent_ns) == ([], 1_500)


def test_each_stage_that_was_asked_is_asked_what_it_holds() -> None:
    one = run()
    assert one.audits() == [AuditStream("thinker", one.plan.tag)]
