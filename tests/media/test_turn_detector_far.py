"""A voice in the background while we speak: much softer than the caller's usual one."""

from __future__ import annotations

from media.speech_gate import WINDOW_MS
from media.turn_detector import DetectorState
from media.turn_events import SILENT, Held, Resumed, TurnDropped, TurnEnded, TurnEvent, TurnPaused, TurnStarted, Yielded
from media.voice_level import JUDGED_MS
from tests.media.detected_call import FAR_AWAY_DB, LOUD, SETTINGS, SPEAKING, Call, at

SILENCE_DB = -120.0  # the closure of a plosive, and what a VAD still hears behind a word


def known() -> tuple[Call, int]:
    """A caller whose voice is known from a turn of theirs, and how many windows that has taken."""
    call = Call()
    call.hear(1_600, LOUD, SILENT)
    assert isinstance(call.quiet(1_024, SILENT)[-1], TurnEnded)
    return call, call.windows


def far(call: Call, ms: int) -> list[TurnEvent]:
    return call.hear(ms, LOUD, SPEAKING, FAR_AWAY_DB)


def test_it_holds_the_reply_no_longer_than_it_takes_to_tell() -> None:
    call, first = known()
    assert far(call, 64) == [Held(at(first))]
    assert far(call, JUDGED_MS - 64 - WINDOW_MS) == []
    assert far(call, WINDOW_MS) == [Resumed("far")]


def test_its_words_interrupt_nobody() -> None:
    call, _ = known()
    far(call, JUDGED_MS)
    assert call.say("Wait, where did you put the keys") == []
    assert far(call, 640) == []


def test_what_it_says_after_a_pause_is_not_believed_before_it_is_judged_again() -> None:
    call, _ = known()
    far(call, 480)
    assert call.say("Where did you put the keys") == []
    call.quiet(320)
    *_, again, on_at_once = far(call, 64)
    assert isinstance(again, Held)
    assert on_at_once == Resumed("far")
    assert far(call, 640) == []


def test_a_word_with_silence_in_it_is_not_far() -> None:
    call, first = known()
    call.hear(160)
    call.hear(128, LOUD, SPEAKING, SILENCE_DB)
    assert call.say("Stop") == [Yielded(at(first), "words")]


def test_its_bursts_one_after_the_other_are_not_held_against_the_caller() -> None:
    """Each but the first holds nothing, and none of them is one in vain."""
    call, _ = known()
    far(call, 480)
    for _ in range(SETTINGS.vain_holds_max):
        call.quiet(320)
        far(call, 64)
    call.quiet(320 + SETTINGS.late_ms_max)
    assert call.hear(64) == [Held(at(call.windows - 2))], "and it stays held"


def test_who_speaks_over_our_replies_teaches_nothing_of_how_loud_the_caller_is() -> None:
    """A television that is nobody's turn, before the caller has said anything: they may be softer."""
    call = Call()
    for _ in range(5):
        call.hear(352)
        call.quiet(SETTINGS.late_ms_max + 320)
    call.quiet(SETTINGS.guard_ms)
    first = call.windows
    assert far(call, 480) == [Held(at(first))]
    assert call.say("Wait a moment") == [Yielded(at(first), "words")]


def test_it_is_forgotten_when_it_ends() -> None:
    call, first = known()
    far(call, 480)
    assert call.quiet(128) == [TurnPaused(at(first + 15))]
    assert call.wait(SETTINGS.late_ms_max) == [TurnDropped(at(first))]
    assert call.detector.state is DetectorState.FREE


def test_it_answers_nothing_when_our_reply_ends() -> None:
    call, _ = known()
    far(call, 480)
    call.say("Where did you put the keys")
    assert call.hear(320, LOUD, SILENT, FAR_AWAY_DB) == []


def test_a_caller_who_has_put_the_telephone_down_gets_through_in_time() -> None:
    call, first = known()
    far(call, JUDGED_MS)
    limit_ms = SETTINGS.interruption.yield_ms_far
    assert far(call, limit_ms - JUDGED_MS - WINDOW_MS) == []
    assert far(call, WINDOW_MS) == [Yielded(at(first), "duration")]


def test_the_caller_is_heard_over_it() -> None:
    call, first = known()
    far(call, 320)
    call.quiet(320)
    call.hear(JUDGED_MS)
    assert call.say("Stop") == [Yielded(at(first), "late_words")]


def test_of_a_caller_who_has_said_nothing_yet_a_soft_voice_interrupts() -> None:
    call = Call()
    far(call, 320)
    assert call.say("Wait a moment") == [Yielded(0, "words")]


def test_in_silence_a_soft_voice_has_its_turn() -> None:
    call, first = known()
    assert call.hear(64, LOUD, SILENT, FAR_AWAY_DB) == [TurnStarted(at(first), at(first + 2))]
