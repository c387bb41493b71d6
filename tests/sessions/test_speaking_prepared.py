"""Replies begun in a pause behind the client's back: told once they are the answer, gone without a trace otherwise."""

from __future__ import annotations

import pytest

from sessions.effects import Measured
from sessions.events import (
    MessageStarted,
    ReplyAudio,
    ReplyText,
    ResponseFinished,
    ResponseStarted,
)
from sessions.plan import Marks, Plan
from sessions.speaking import Speaking
from stages.contracts import (
    TextDelta,
    TextDone,
    Word,
    WordTimes,
)
from tests.sessions.talk import MS, kinds, of, told
from tests.sessions.test_speaking import (
    FRAME,
    audio,
    close_all,
    opened,
    plan,
    send_all,
    speaking,
    started,
)


def prepared(mouth: Speaking) -> Plan:
    what = plan()
    assert kinds(mouth.prepare(what, 0)) == ["OpenStream"] * 2  # nobody is told
    opened(mouth, what)
    mouth.published(what.tag, TextDelta(" Hi"), 2 * MS)
    mouth.published(what.tag, TextDelta(" you"), 3 * MS)
    mouth.published(what.tag, WordTimes(0, 100, (Word("Hi", 0, 1),)), 4 * MS)
    mouth.published(what.tag, audio(2 * FRAME), 5 * MS)
    return what


def test_nothing_of_a_prepared_response_is_told_or_sent() -> None:
    mouth = speaking()
    what = plan()
    assert told(mouth.prepare(what, 0), ResponseStarted) == []
    opened(mouth, what)
    assert mouth.published(what.tag, TextDelta("Hi"), 0) == []
    mouth.published(what.tag, audio(FRAME), 0)
    assert mouth.take_due(0) == []
    assert mouth.prepared == what
    assert mouth.active is None
    assert mouth.running == ()
    assert mouth.undrained == 1


def test_a_confirmed_response_is_told_from_its_beginning() -> None:
    mouth = speaking()
    what = prepared(mouth)
    effects = mouth.confirm("before_it", Marks(1 * MS, 6 * MS, 7 * MS), 7 * MS)
    assert told(effects, ResponseStarted) == [ResponseStarted(what.view)]
    assert told(effects, MessageStarted) == [MessageStarted("r1", "r1_item", None)]
    assert told(effects, ReplyText) == [ReplyText("r1", "r1_item", " Hi you", spoken=True)]
    assert of(effects, Measured) == [Measured("prepared_replies", 1, "confirmed")]
    assert mouth.active == what.view
    assert mouth.prepared is None
    sent = send_all(mouth, 9 * MS)
    assert [each.frame.start_sample for each in told(sent, ReplyAudio)] == [0, FRAME]
    mouth.published(what.tag, TextDone("", "stop", 0, 0, 0), 9 * MS)
    mouth.published(what.tag, audio(0, seq=1, first=2 * FRAME, final=True), 9 * MS)
    timings = dict(told(send_all(mouth, 9 * MS), ResponseFinished)[0].timings)
    assert timings == {
        "end_of_turn_wait": 5.0,
        "encoder": 1.0,
        "thinker": 0.0,
        "talker": 0.0,
        "vocoder": 0.0,
        "playout": 2.0,
        "total": 8.0,
    }


def test_a_confirmed_response_without_text_so_far_is_only_begun() -> None:
    mouth = speaking()
    mouth.prepare(plan(), 0)
    assert kinds(mouth.confirm(None, Marks(), 8 * MS)) == ["ResponseStarted", "MessageStarted", "Measured"]


def test_a_withdrawn_response_leaves_no_trace() -> None:
    mouth = speaking()
    what = prepared(mouth)
    effects = mouth.withdraw(10 * MS)
    assert kinds(effects) == ["CancelStream"] * 3 + ["Measured"]
    assert of(effects, Measured) == [Measured("prepared_replies", 1, "withdrawn")]
    assert mouth.prepared is None
    assert mouth.take_ended() == []
    assert mouth.take_due(10 * MS) == []
    assert kinds(close_all(mouth, what, 12 * MS)) == ["Measured", *["AuditStream"] * 3]
    assert mouth.undrained == 0
    assert mouth.withdraw(20 * MS) == []


def test_a_prepared_response_that_fails_is_no_answer() -> None:
    mouth = speaking()
    what = prepared(mouth)
    mouth.published(what.tag, TextDelta("Well"), 0)
    assert told(mouth.lost(what.tag, "talker", 0), ResponseFinished) == []
    assert mouth.prepared is None
    close_all(mouth, what)
    assert mouth.undrained == 0
    assert mouth.withdraw(0) == []
    after = started(mouth, plan("r2"))
    mouth.published(after.tag, audio(FRAME), 0)
    assert len(told(send_all(mouth), ReplyAudio)) == 1


def test_what_can_be_prepared() -> None:
    mouth = speaking()
    with pytest.raises(AssertionError, match="text would be whole"):
        mouth.prepare(plan(with_audio=False), 0)
    mouth.prepare(plan(), 0)
    with pytest.raises(AssertionError, match="one response is prepared"):
        mouth.prepare(plan("r2"), 0)
    mouth.withdraw(0)
    with pytest.raises(AssertionError, match="only what was prepared"):
        mouth.confirm(None, Marks(), 8 * MS)
    started(mouth, plan("r3"))
    with pytest.raises(AssertionError, match="nothing is prepared while"):
        mouth.prepare(plan("r4"), 0)
