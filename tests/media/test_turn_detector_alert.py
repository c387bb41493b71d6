"""A client that notices its caller's speech before we hear it: `TurnDetector.alert`."""

from __future__ import annotations

import pytest

from media.turn_detector import NS_PER_MS, DetectorState
from media.turn_events import SILENT, Held, Resumed, ResumeWhy, Saying, TurnDropped, TurnPaused, TurnStarted, Yielded
from tests.media.detected_call import LOUD, SETTINGS, SPEAKING, UNCLEAR, UNINTERRUPTIBLE, Call, at, held

CONFIRM_MS = SETTINGS.confirm_ms_max


def alerted(call: Call) -> Call:
    """Held by the client's word, two windows of quiet into the call."""
    assert call.quiet(64) == []
    assert call.alert() == [Held(at(2))]
    assert call.detector.state is DetectorState.ALERTED
    return call


def test_the_reply_is_held_before_anything_is_heard() -> None:
    alerted(Call())


def test_what_is_heard_in_time_confirms_it_without_another_hold() -> None:
    call = alerted(Call())
    assert call.hear(64) == []
    assert call.detector.state is DetectorState.HELD
    assert call.say("I need a train") == [Yielded(at(2), "words")]


def test_the_confirmed_burst_is_judged_from_its_first_window() -> None:
    call = alerted(Call())
    assert call.hear(608) == []
    assert call.hear(32) == [Yielded(at(2), "duration")]


def test_a_short_sound_that_was_confirmed_lets_the_reply_go_on() -> None:
    call = alerted(Call())
    call.hear(320)
    assert call.quiet(128) == [TurnPaused(at(12)), Resumed("short")]


def test_the_longest_hold_counts_from_the_alert() -> None:
    call = alerted(Call())
    began_ns = call.now_ns
    call.hear(64)
    assert call.detector.next_deadline_ns() == began_ns + SETTINGS.decide_ms_max * NS_PER_MS


def test_what_nobody_else_hears_is_dismissed() -> None:
    call = alerted(Call())
    assert call.wait(CONFIRM_MS - 1) == []
    assert call.wait(1) == [Resumed("unconfirmed"), TurnDropped(at(2))]
    assert call.detector.state is DetectorState.FREE


def test_quiet_that_comes_in_does_not_confirm() -> None:
    call = alerted(Call())
    assert call.quiet(256) == [Resumed("unconfirmed"), TurnDropped(at(2))]


def test_speech_that_comes_after_a_dismissal_holds_by_itself() -> None:
    call = alerted(Call())
    call.quiet(256)
    assert call.hear(64) == [Held(at(10))]


def test_a_client_that_is_wrong_again_and_again_is_not_believed_for_a_while() -> None:
    call = alerted(Call())
    call.wait(CONFIRM_MS)
    for _ in range(SETTINGS.vain_holds_max - 1):
        assert call.alert() == [Held(at(2))]
        call.wait(CONFIRM_MS)
    assert call.alert() == []
    call.now_ns += SETTINGS.guard_ms * NS_PER_MS
    assert call.alert() == [Held(at(2))]


@pytest.mark.parametrize("saying", [SILENT, UNINTERRUPTIBLE])
def test_there_must_be_something_to_hold(saying: Saying) -> None:
    assert Call().alert(saying) == []


def test_what_is_held_or_a_turn_already_is_left_alone() -> None:
    call = alerted(Call())
    assert call.alert() == []
    call.hear(64)
    assert call.alert() == []
    call.say("I need a train")
    assert call.alert() == []


def test_an_alert_finds_overdue_decisions_made() -> None:
    call = held(Call())
    call.now_ns += SETTINGS.decide_ms_max * NS_PER_MS
    assert call.alert() == [Resumed("undecided")]


@pytest.mark.parametrize(("saying", "why"), [(SILENT, "floor_free"), (UNINTERRUPTIBLE, "not_interruptible")])
def test_the_reply_may_end_before_anything_is_heard(saying: Saying, why: ResumeWhy) -> None:
    call = alerted(Call())
    assert call.quiet(32, saying) == [Resumed(why), TurnDropped(at(2))]


def test_speech_that_is_heard_once_the_reply_has_ended_is_a_turn() -> None:
    call = alerted(Call())
    call.hear(32, UNCLEAR)
    assert call.hear(32, LOUD, SILENT) == [Resumed("floor_free"), TurnDropped(at(2)), TurnStarted(at(2), at(4))]


def test_a_commit_finds_no_turn() -> None:
    call = alerted(Call())
    assert list(call.detector.force_end()) == [Resumed("committed"), TurnDropped(at(2))]
    assert call.detector.state is DetectorState.FREE


def test_a_reset_ends_the_hold_and_says_no_more() -> None:
    call = alerted(Call())
    assert list(call.detector.reset()) == [Resumed("reset")]
    assert call.detector.state is DetectorState.FREE


def test_words_that_come_before_the_sound_wait_for_it() -> None:
    call = alerted(Call())
    assert call.say("I need a train") == []
    assert call.hear(32, UNCLEAR) == []
    assert call.hear(32) == [Yielded(at(2), "words")]


def test_words_of_an_alert_that_was_dismissed_are_not_those_of_the_next() -> None:
    call = alerted(Call())
    call.say("I need a train")
    call.wait(CONFIRM_MS)
    assert call.alert(SPEAKING) == [Held(at(2))]
    assert call.hear(64) == []
