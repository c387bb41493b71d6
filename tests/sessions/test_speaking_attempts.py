"""Replies whose stage is lost before anything of them was put out, and stages that fall silent."""

from __future__ import annotations

import pytest
from msgspec import structs

from sessions.effects import CancelStream, Measured, OpenStream
from sessions.events import ReplyWords, ResponseFinished
from sessions.response import Deadlines
from stages.contracts import AudioOut, TalkerOptions, TextDelta, TextDone, VocoderOptions, Word, WordTimes
from tests.sessions.talk import MS, kinds, told
from tests.sessions.test_speaking import FRAME, THINKER, WHOLE_NS, audio, plan, send_all, speaking, start, started


@pytest.mark.parametrize("teller", ["talker", "vocoder"])
def test_a_stage_that_is_lost_before_anything_was_put_out_is_made_up_for_by_another_attempt(teller: str) -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    # The stage before the lost one may tell first: it is the same fault.
    effects = (
        mouth.closed(what.tag, teller, {}, ("stage_lost", "the vocoder is gone"), 0)
        if teller == "talker"
        else mouth.lost(what.tag, teller, 0)
    )
    again = structs.replace(what.tag, attempt=1)
    cancelled = [stage for stage in ("thinker", "talker", "vocoder") if teller == "vocoder" or stage != "talker"]
    assert effects == [
        *(CancelStream(stage, what.tag) for stage in cancelled),
        Measured("responses_retried", 1),
        OpenStream("talker", again, TalkerOptions(), ("vocoder",), WHOLE_NS),
        OpenStream("vocoder", again, VocoderOptions(), (), WHOLE_NS),
    ]
    assert mouth.running == (what.view,), "its client learns nothing of it"
    assert mouth.opened(what.tag, "talker", 0) == [], "an answer to the first attempt"
    mouth.opened(again, "talker", 0)
    assert mouth.opened(again, "vocoder", 9) == [
        OpenStream("thinker", again, THINKER, ("talker",), WHOLE_NS - 9),
    ], "all attempts have one deadline"
    mouth.opened(again, "thinker", 0)
    assert mouth.published(what.tag, TextDelta("of the first"), 0) == []
    mouth.published(again, TextDelta("hi you"), 0)
    mouth.published(again, TextDone("", "stop", 0, 0, 0), 0)
    mouth.published(again, WordTimes(0, 100, (Word("hi", 0, 1), Word("you", 1, 2))), 0)
    mouth.published(again, audio(FRAME, final=True), 0)
    (end,) = told(send_all(mouth), ResponseFinished)
    assert (end.response.id, end.response.status, end.response.text) == ("r1", "completed", "hi you")
    for stage in ("thinker", "talker", "vocoder"):
        mouth.closed(again, stage, {}, None, 0)
    assert mouth.undrained == 1, "the first attempt is still held"
    for stage in ("thinker", "talker", "vocoder"):
        mouth.closed(what.tag, stage, {}, None, 0)
    assert mouth.undrained == 0


def test_a_stage_for_which_time_is_over_ends_a_reply_that_is_not_made_again() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    effects = mouth.closed(what.tag, "talker", {}, ("deadline_exceeded", "its time was over"), 0)
    (end,) = told(effects, ResponseFinished)
    assert (end.response.status, end.response.reason, end.response.code) == ("failed", "deadline", "deadline_exceeded")
    assert [effect for effect in effects if isinstance(effect, OpenStream | CancelStream)] == [
        CancelStream("thinker", what.tag),
        CancelStream("vocoder", what.tag),
    ]


def test_what_its_first_attempt_left_behind_is_no_part_of_a_reply() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    assert kinds(mouth.published(what.tag, WordTimes(0, 100, (Word("old", 0, 1),)), 0)) == ["SaveSpeaking"]
    mouth.published(what.tag, TextDone("", "stop", 9, 9, 9), 0)
    mouth.lost(what.tag, "vocoder", 0)
    assert mouth.take_written() is None
    again = structs.replace(what.tag, attempt=1)
    for stage in ("vocoder", "talker", "thinker"):
        mouth.opened(again, stage, 0)
    mouth.published(again, WordTimes(0, 100, (Word("new", 0, 1),)), 0)
    (words,) = told(mouth.published(again, audio(FRAME), 0), ReplyWords)
    assert [word.text for word in words.words] == ["new"]
    mouth.published(again, TextDelta("new"), 0)
    send_all(mouth)
    mouth.cancel("r1", "turn_detected", 0)
    (ended,) = mouth.take_ended()
    assert ended.text == "new"


def test_a_refusal_and_a_fault_of_the_first_attempt_do_not_end_the_second() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    mouth.lost(what.tag, "vocoder", 0)
    assert mouth.closed(what.tag, "talker", {}, ("stage_lost", "gone"), 0) == []
    assert mouth.refused(what.tag, "thinker", "busy", "", 0) == []
    assert mouth.running == (what.view,)


def test_sound_that_overtakes_its_text_is_output_too() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    mouth.published(what.tag, audio(FRAME), 0)
    assert told(mouth.lost(what.tag, "vocoder", 0), ResponseFinished)[0].response.code == "stage_lost"


def test_silence_of_a_stage_ends_a_response_and_that_of_its_reader_does_not() -> None:
    mouth, what = speaking(deadlines=Deadlines(idle_ns_max=10 * MS)), plan()
    started(mouth, what)
    mouth.published(what.tag, audio(FRAME), 5 * MS)
    assert mouth.next_deadline_ns() == 15 * MS
    assert mouth.tick(15 * MS) == [], "it is there, and nobody takes it"
    assert mouth.next_deadline_ns() == 25 * MS
    send_all(mouth, 20 * MS)
    assert mouth.next_deadline_ns() == 30 * MS
    (end,) = told(mouth.tick(30 * MS), ResponseFinished)
    assert (end.response.status, end.response.code) == ("failed", "stream_idle")


@pytest.mark.parametrize(
    "come",
    [
        TextDelta("Hi"),
        WordTimes(0, 24_000, (Word("Hi", 0, 480),)),
        audio(FRAME),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_has_come_of_an_attempt_could_not_be_made_again_unseen(come: TextDelta | WordTimes | AudioOut) -> None:
    mouth, what = speaking(), plan()
    start(mouth, what)
    assert mouth.is_untouched(what.tag)
    mouth.published(what.tag, come, 0)
    assert not mouth.is_untouched(what.tag)


def test_what_the_head_was_asked_for_may_be_on_its_way_though_it_has_not_answered() -> None:
    """Its answer is lost with its link, and the words that it handed on are not."""
    mouth, what = speaking(), plan()
    start(mouth, what)
    mouth.opened(what.tag, "vocoder", 0)
    assert mouth.is_untouched(what.tag)
    mouth.opened(what.tag, "talker", 0)
    assert not mouth.is_untouched(what.tag)
    effects = mouth.lost(what.tag, "thinker", 0)
    asked = [effect.tag.attempt for effect in effects if isinstance(effect, OpenStream)]
    assert asked == [1, 1], "the next stages are opened anew, and take nothing of the first attempt"
    assert mouth.is_untouched(structs.replace(what.tag, attempt=1))


def test_what_was_made_to_its_end_at_a_stage_could_not_be_made_again_unseen() -> None:
    mouth, what = speaking(), plan()
    start(mouth, what)
    mouth.closed(what.tag, "talker", {}, None, 0)
    assert not mouth.is_untouched(what.tag)


def test_each_attempt_is_untouched_at_first_and_nobody_else() -> None:
    mouth, what = speaking(), plan()
    started(mouth, what)
    mouth.published(what.tag, WordTimes(0, 24_000, (Word("Hi", 0, 480),)), 0)
    mouth.lost(what.tag, "vocoder", 0)
    again = structs.replace(what.tag, attempt=1)
    assert (mouth.is_untouched(again), mouth.is_untouched(what.tag)) == (True, False)
    assert not mouth.is_untouched(structs.replace(what.tag, response="r9"))
    assert mouth.is_untouched(structs.replace(what.tag, response="")), (
        "input shows nothing before its stage has answered"
    )
