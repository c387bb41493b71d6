"""A detector's events for what a caller says while we are silent."""

from __future__ import annotations

import pytest

from media.end_of_turn import EndOfTurnSettings
from media.turn_detector import DetectorState
from media.turn_events import (
    SILENT,
    TurnEnded,
    TurnPaused,
    TurnResumed,
    TurnStarted,
)
from media.turn_settings import TurnDetectorSettings
from tests.media.detected_call import UNINTERRUPTIBLE, Call, at


def test_a_turn_starts_pauses_goes_on_and_ends() -> None:
    call = Call()
    assert call.hear(320, saying=SILENT) == [TurnStarted(0, at(2))]
    assert call.quiet(96, SILENT) == [TurnPaused(at(10))]
    assert call.hear(64, saying=SILENT) == [TurnResumed(at(13))]
    assert call.quiet(480, SILENT) == [TurnPaused(at(15))]
    assert call.quiet(32, SILENT) == [TurnEnded(at(15), at(31))]
    assert call.detector.state is DetectorState.FREE
    assert call.detector.next_deadline_ns() is None


def test_a_turn_that_is_under_way_is_not_touched_by_what_we_begin_to_say() -> None:
    call = Call()
    assert call.hear(64, saying=SILENT) == [TurnStarted(0, at(2))]
    assert call.hear(3_200) == []
    assert call.say("stop") == []


def test_where_we_may_not_be_interrupted_speech_opens_an_ordinary_turn() -> None:
    call = Call()
    assert call.hear(3_200, saying=UNINTERRUPTIBLE) == [TurnStarted(0, at(2))]
    assert call.say("stop right now") == []


def test_a_finished_sentence_ends_sooner_than_one_that_hangs() -> None:
    settings = TurnDetectorSettings(end_of_turn=EndOfTurnSettings("semantic_vad"))
    ends_ms = []
    for text in ("I live in London.", "", "I live in"):
        call = Call(settings)
        call.hear(640, saying=SILENT)
        call.quiet(160, SILENT)
        assert call.say(text, settled=True) == []
        events = call.quiet(3_200, SILENT)
        ended = next(event for event in events if isinstance(event, TurnEnded))
        ends_ms.append((ended.at - ended.sample) * 1_000 // 16_000)
    assert ends_ms == [448, 608, 1_824]


@pytest.mark.parametrize("is_last", [True, False])
def test_words_from_before_the_pause_can_only_delay_the_end(is_last: bool) -> None:
    settings = TurnDetectorSettings(end_of_turn=EndOfTurnSettings("semantic_vad"))
    call = Call(settings)
    call.hear(640, saying=SILENT)
    call.say("I live in London.", settled=True)
    assert call.quiet(128, SILENT) == [TurnPaused(at(20))]
    if not is_last:
        call.say("I live in London.")
    assert call.quiet(448, SILENT) == []
    assert call.quiet(32, SILENT) == [TurnEnded(at(20), at(39))]


def test_words_that_had_settled_are_old_once_the_caller_speaks_on() -> None:
    settings = TurnDetectorSettings(end_of_turn=EndOfTurnSettings("semantic_vad"))
    call = Call(settings)
    call.hear(640, saying=SILENT)
    call.quiet(160, SILENT)
    call.say("I live in London.", settled=True)
    call.hear(320, saying=SILENT)
    assert call.quiet(576, SILENT) == [TurnPaused(at(35))]
    assert call.quiet(32, SILENT) == [TurnEnded(at(35), at(54))]


def test_what_a_turn_has_said_does_not_delay_the_next_one() -> None:
    call = Call(TurnDetectorSettings(end_of_turn=EndOfTurnSettings("semantic_vad")))
    call.hear(320, saying=SILENT)
    call.say("and")
    call.quiet(3_200, SILENT)
    call.hear(320, saying=SILENT)
    assert call.quiet(608, SILENT) == [TurnPaused(at(120)), TurnEnded(at(120), at(139))]
