"""A detector's events for what a caller says while we are silent."""

from __future__ import annotations

import pytest

from media.end_of_turn import EndOfTurnSettings
from media.turn_detector import DetectorState
from media.turn_events import (
    SILENT,
    Held,
    Resumed,
    SoundWanted,
    TurnEnded,
    TurnEvent,
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


# ---- how finished it sounds ------------------------------------------------------------------------

BY_SOUND = TurnDetectorSettings(end_of_turn=EndOfTurnSettings("semantic_vad"), sound_ms=200)


def paused(settings: TurnDetectorSettings = BY_SOUND) -> Call:
    """In the pause of a turn of 640 ms, one window before its sound is asked about."""
    call = Call(settings)
    assert call.hear(640, saying=SILENT) == [TurnStarted(0, at(2))]
    assert call.quiet(192, SILENT) == [TurnPaused(at(20))]
    return call


def wait_ms(call: Call) -> int:
    """How long a silence ends the turn."""
    ended = next(event for event in call.quiet(5_120, SILENT) if isinstance(event, TurnEnded))
    return (ended.at - ended.sample) * 1_000 // 16_000


def pause(call: Call) -> int | None:
    return call.detector.pause


def test_the_sound_is_asked_about_once_in_each_pause_that_lasts() -> None:
    call = paused()
    assert pause(call) == at(20)
    assert call.quiet(32, SILENT) == [SoundWanted(0, at(20), at(27))]
    assert call.quiet(96, SILENT) == []
    assert call.hear(160, saying=SILENT) == [TurnResumed(at(30))]
    assert pause(call) is None
    assert call.quiet(160, SILENT) == [TurnPaused(at(35))]
    assert call.hear(64, saying=SILENT) == [TurnResumed(at(40))]
    assert call.quiet(224, SILENT) == [TurnPaused(at(42)), SoundWanted(0, at(42), at(49))]


@pytest.mark.parametrize(
    "settings",
    [
        TurnDetectorSettings(sound_ms=200),
        TurnDetectorSettings(end_of_turn=EndOfTurnSettings("semantic_vad")),
    ],
)
def test_nobody_is_asked_where_the_sound_does_not_count(settings: TurnDetectorSettings) -> None:
    assert paused(settings).quiet(224, SILENT) == []


@pytest.mark.parametrize(
    ("text", "sound", "waits_ms"),
    [
        ("", None, 608),
        ("", 0.95, 448),
        ("", 0.02, 3_744),
        ("I live in London.", None, 448),
        ("I live in London.", 0.02, 1_280),
        ("I live in", 0.98, 1_824),
    ],
)
@pytest.mark.parametrize("words_first", [True, False])
def test_words_and_sound_decide_together_whichever_comes_first(
    text: str, sound: float | None, waits_ms: int, words_first: bool
) -> None:
    call = paused()
    call.quiet(32, SILENT)
    if words_first:
        assert call.say(text, settled=True) == []
    if sound is not None:
        assert call.sound(at(20), sound) == []
    if not words_first:
        assert call.say(text, settled=True) == []
    assert wait_ms(call) == waits_ms


def test_an_answer_may_end_a_turn_that_has_been_silent_for_long_enough() -> None:
    call = paused()
    call.quiet(32, SILENT)
    assert call.say("I live in", settled=True) == []
    assert call.quiet(640, SILENT) == []
    assert call.say("I live in London", settled=True) == [TurnEnded(at(20), at(47))]

    call = paused()
    assert call.quiet(288, SILENT) == [SoundWanted(0, at(20), at(27))]
    assert call.sound(at(20), 0.98) == [TurnEnded(at(20), at(35))]


def test_an_answer_about_a_pause_that_is_over_is_no_answer() -> None:
    call = paused()
    call.quiet(32, SILENT)
    call.hear(160, saying=SILENT)
    assert call.sound(at(20), 0.02) == []
    call.quiet(128, SILENT)
    assert call.sound(at(20), 0.02) == []
    assert wait_ms(call) == 608
    assert pause(call) is None
    assert call.sound(at(32), 0.98) == []
    assert call.detector.state is DetectorState.FREE


def test_what_is_heard_of_one_pause_says_nothing_of_the_next() -> None:
    call = paused()
    call.quiet(32, SILENT)
    call.sound(at(20), 0.02)
    call.hear(160, saying=SILENT)
    assert wait_ms(call) == 608


@pytest.mark.parametrize("leave", ["force_end", "reset"])
def test_a_pause_ends_with_its_turn(leave: str) -> None:
    call = paused()
    getattr(call.detector, leave)()
    assert pause(call) is None
    assert call.quiet(320, SILENT) == []


# ---- sound that stops coming -----------------------------------------------------------------------

SEMANTIC = TurnDetectorSettings(end_of_turn=EndOfTurnSettings("semantic_vad"))


def speaking(settings: TurnDetectorSettings | None = None) -> Call:
    """Amid a turn of 640 ms."""
    call = Call(settings) if settings else Call()
    assert call.hear(640, saying=SILENT) == [TurnStarted(0, at(2))]
    return call


def miss(call: Call, ms: int) -> list[TurnEvent]:
    """So much sound is missing by now."""
    return list(call.detector.missing(ms * 16, call.now_ns))


def test_sound_that_is_missing_amid_a_turn_ends_it_as_silence_does() -> None:
    call = speaking()
    assert miss(call, 95) == []
    assert miss(call, 96) == [TurnPaused(at(20))]
    assert miss(call, 499) == []
    assert miss(call, 500) == [TurnEnded(at(20), at(20))]
    assert call.detector.state is DetectorState.FREE
    assert miss(call, 5_000) == []


def test_silence_and_sound_that_is_missing_behind_it_are_one() -> None:
    call = speaking()
    assert call.quiet(192, SILENT) == [TurnPaused(at(20))]
    assert miss(call, 307) == []
    assert miss(call, 308) == [TurnEnded(at(20), at(26))]


def test_who_is_heard_again_in_time_goes_on() -> None:
    call = speaking(SEMANTIC)
    assert miss(call, 400) == [TurnPaused(at(20))]
    assert call.hear(32, saying=SILENT) == [TurnResumed(at(20))]
    assert call.quiet(576, SILENT) == [TurnPaused(at(21))], "what was missing counts no more"
    assert call.quiet(32, SILENT) == [TurnEnded(at(21), at(40))]


def test_words_that_hang_in_the_air_wait_longer_for_sound_that_is_missing() -> None:
    call = speaking(SEMANTIC)
    assert miss(call, 120) == [TurnPaused(at(20))]
    assert call.say("I live in", settled=True) == []
    assert miss(call, 1_200) == []
    assert miss(call, 2_000) == [TurnEnded(at(20), at(20))]


def test_words_that_settle_later_end_what_has_been_missing_for_long_enough() -> None:
    call = speaking(SEMANTIC)
    assert miss(call, 500) == [TurnPaused(at(20))]
    assert call.say("I live in London.", settled=True) == [TurnEnded(at(20), at(20))]


def test_where_nobody_speaks_nothing_is_missed() -> None:
    call = Call()
    assert call.hear(32, saying=SILENT) == [], "one loud window is no speech yet"
    assert miss(call, 5_000) == []
    assert call.hear(32, saying=SILENT) == [TurnStarted(0, at(2))]


def test_of_a_provisional_turn_its_deadlines_decide() -> None:
    call = Call()
    assert call.hear(64) == [Held(0)]
    assert miss(call, 5_000) == []
    assert call.detector.state is DetectorState.HELD
    assert call.wait(800) == [Resumed("undecided")]
