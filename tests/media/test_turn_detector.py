"""A detector's events for what a caller does over our speech and in our silence."""

from __future__ import annotations

import pytest

from media.end_of_turn import EndOfTurnSettings
from media.speech_gate import WINDOW_MS
from media.turn_detector import _TRANSITIONS, NS_PER_MS, DetectorState, DetectorStep
from media.turn_events import (
    SILENT,
    Held,
    Resumed,
    TurnDropped,
    TurnEnded,
    TurnEvent,
    TurnPaused,
    TurnResumed,
    TurnStarted,
    Yielded,
)
from media.turn_settings import TurnDetectorSettings
from tests.media.detected_call import FAINT, LOUD, UNCLEAR, UNEVEN, UNINTERRUPTIBLE, Call, at, doubted, held

# ---- hold ------------------------------------------------------------------------------------------


def test_the_first_clear_window_of_speech_over_ours_holds() -> None:
    call = Call()
    assert call.hear(32, UNCLEAR) == []
    assert call.hear(32, 0.8) == [Held(0)]
    assert call.detector.state is DetectorState.HELD


def test_a_voice_that_is_never_clear_holds_by_lasting() -> None:
    call = Call()
    assert call.hear(128, UNCLEAR) == []
    assert call.hear(32, UNCLEAR) == [Held(0)]


def test_pipecat_1391_a_blip_that_is_not_clearly_a_voice_has_no_effect_on_what_we_say() -> None:
    call = Call()
    for _ in range(20):
        assert call.hear(128, UNCLEAR) + call.quiet(64) == []
    assert call.detector.state is DetectorState.FREE


def test_pipecat_1391_a_clear_click_holds_us_for_a_moment_and_ends_nothing() -> None:
    """One window that sounds like a voice holds by design: whether it was one is known only after it."""
    call = Call()
    assert call.hear(32) == [Held(0)]
    assert call.quiet(128) == [TurnPaused(at(1)), Resumed("short")]
    assert call.quiet(1_600) == [TurnDropped(0)]


def test_another_burst_holds_where_it_is_clear_too_or_lasts() -> None:
    call = held(Call())
    assert call.quiet(160) == [TurnPaused(1_024), Resumed("short")]
    call.quiet(320)
    assert Held not in {type(event) for event in call.hear(128, UNCLEAR)}
    assert Held in {type(event) for event in call.hear(32)}


def test_long_speech_interrupts_without_words() -> None:
    call = held(Call())
    assert call.hear(544) == []
    assert call.hear(32) == [Yielded(0, "duration")]
    assert call.now_ms == 640


def test_uneven_sound_interrupts_only_when_it_lasts() -> None:
    call = Call()
    assert call.hear(160, UNEVEN) == [Held(0)]
    assert call.hear(768, UNEVEN) == []
    assert call.hear(32, UNEVEN) == [Resumed("noise")]
    assert call.hear(224, UNEVEN) == []
    assert call.hear(32, UNEVEN) == [Yielded(0, "duration")]


def test_words_interrupt_at_once() -> None:
    call = held(Call())
    call.hear(256)
    assert call.say("I need a train") == [Yielded(0, "words")]
    assert call.hear(320) == []
    assert call.quiet(512) == [TurnPaused(at(20)), TurnEnded(at(20), at(36))]


def test_one_word_of_content_in_a_clear_voice_shortens_the_wait() -> None:
    call = held(Call())
    call.hear(384)
    assert call.say("Wednesday") == []
    assert call.hear(32) == []
    assert call.hear(32) == [Yielded(0, "duration")]


def test_a_turn_that_has_interrupted_ends_by_silence() -> None:
    """After a barge-in the turn used to have no end elsewhere (python-genai#1987)."""
    call = held(Call())
    assert call.say("stop") == [Yielded(0, "words")]
    assert call.quiet(512, SILENT) == [TurnPaused(at(2)), TurnEnded(at(2), at(18))]
    assert call.hear(64, saying=SILENT) == [TurnStarted(at(18), at(20))]


def test_livekit_js_2132_an_interruption_does_not_outlive_the_reply_that_it_cut() -> None:
    call = held(Call())
    assert call.say("stop") == [Yielded(0, "words")]
    call.quiet(512, SILENT)
    assert call.hear(64) == [Held(at(18))]
    assert call.hear(256) == []
    assert call.quiet(128) == [TurnPaused(at(28)), Resumed("short")]


# ---- resume ----------------------------------------------------------------------------------------


def test_livekit_4039_a_backchannel_pauses_us_and_we_go_on() -> None:
    call = held(Call())
    call.hear(256)
    assert call.say("Mm-hmm.") == []
    assert call.quiet(128) == [TurnPaused(at(10)), Resumed("backchannel")]
    assert call.say("Mm-hmm.", settled=True) == []
    assert call.wait(3_000) == [TurnDropped(0)]
    assert call.detector.state is DetectorState.FREE


def test_a_burst_that_ends_lets_us_go_on_before_its_words_are_known() -> None:
    call = doubted(Call())
    assert call.now_ms - 64 == 384, "how long we were held"
    assert call.detector.state is DetectorState.DOUBTED


@pytest.mark.parametrize("text", ["Stop.", "wait", "No.", "What is that?", "I need something else"])
def test_late_words_interrupt(text: str) -> None:
    call = doubted(Call())
    call.quiet(256)
    assert call.say(text, settled=True) == [Yielded(0, "late_words")]
    assert call.quiet(128, SILENT) == [TurnEnded(at(10), at(26))]


@pytest.mark.parametrize("text", ["", "Thank you.", "Okay.", "Wednesday", "[coughs]"])
def test_late_words_that_say_little_change_nothing(text: str) -> None:
    call = doubted(Call())
    assert call.say(text, settled=True) == []
    assert call.wait(1_500) == [TurnDropped(0)]


def test_words_that_are_too_late_are_nobodys() -> None:
    call = doubted(Call())
    call.now_ns += 1_500 * NS_PER_MS
    assert call.say("stop", settled=True) == [TurnDropped(0)]
    assert call.say("stop", settled=True) == []


def test_livekit_4395_a_late_final_of_an_earlier_turn_interrupts_nothing() -> None:
    call = Call()
    call.hear(640, saying=SILENT)
    call.quiet(512, SILENT)
    assert call.detector.state is DetectorState.FREE
    assert call.say("Tell me everything about it, please", settled=True) == []
    assert call.quiet(320) == []


def test_listeners_words_are_waited_for_less_and_interrupt_only_when_they_do_not_end() -> None:
    call = held(Call())
    call.hear(320)
    assert call.say("yeah yeah") == []
    assert call.hear(224) == []
    assert call.hear(32) == [Resumed("backchannel")]
    assert call.now_ms - 64 == 576
    assert call.hear(544) == []
    assert call.hear(32) == [Yielded(0, "duration")]
    assert call.now_ms == 1_216


def test_listeners_words_that_come_after_their_time_let_us_go_on_at_once() -> None:
    call = Call(TurnDetectorSettings(backchannel_hold_ms_max=320))
    held(call)
    call.hear(384)
    assert call.say("right, right") == [Resumed("backchannel")]


def test_a_click_is_no_word_whatever_a_recogniser_makes_of_it() -> None:
    call = Call()
    assert call.hear(32) + call.quiet(128) == [Held(0), TurnPaused(at(1)), Resumed("short")]
    assert call.say("I need a train") == []
    assert call.hear(32, FAINT, SILENT) == []
    assert call.wait(1_500) == [TurnDropped(0)]


def test_words_that_follow_a_backchannel_without_a_pause_interrupt() -> None:
    call = held(Call())
    call.hear(320)
    call.say("okay")
    assert call.hear(256) == [Resumed("backchannel")]
    assert call.say("okay stop") == [Yielded(0, "late_words")]


def test_a_client_that_stops_sending_cannot_freeze_us() -> None:
    call = held(Call())
    assert call.wait(799) == []
    assert call.wait(1) == [Resumed("undecided")]
    assert call.wait(10_000) == [TurnDropped(0)]
    assert call.detector.next_deadline_ns() is None
    assert call.hear(64) == [Held(at(2))]


def test_speech_with_gaps_has_the_benefit_of_the_doubt() -> None:
    call = held(Call())
    for _ in range(6):
        assert call.quiet(64) + call.hear(64) == []
    assert call.now_ms == 832
    assert call.hear(32, FAINT) == [Yielded(0, "duration")]


def test_sound_that_comes_late_is_still_weighed() -> None:
    call = held(Call())
    assert call.wait(900) == [Resumed("undecided")]
    assert call.hear(544) == []
    assert call.hear(32) == [Yielded(0, "duration")]


def test_a_tick_that_comes_very_late_decides_all_that_is_due() -> None:
    call = held(Call())
    call.now_ns += 20_000 * NS_PER_MS
    assert call.detector.tick(call.now_ns) == (Resumed("undecided"), TurnDropped(0))


def test_a_hole_in_the_sound_ends_the_burst_and_the_turn() -> None:
    call = held(Call())
    call.windows += 60_000 // WINDOW_MS
    hole = at(call.windows)
    assert call.quiet(32) == []
    call.windows += 60_000 // WINDOW_MS
    assert call.quiet(32) == [TurnPaused(hole), Resumed("short"), TurnDropped(0)]
    assert call.hear(64) == [Held(at(call.windows - 2))]


# ---- another burst ---------------------------------------------------------------------------------


def test_another_burst_holds_again_in_the_same_turn() -> None:
    call = doubted(Call())
    call.quiet(192)
    assert call.hear(32, UNCLEAR) == [TurnResumed(at(20))]
    assert call.hear(32) == [Held(at(20))]
    assert call.hear(544) == []
    assert call.hear(32) == [Yielded(0, "duration")]


def test_a_burst_that_follows_at_once_goes_on_with_the_evidence() -> None:
    call = doubted(Call())
    assert call.hear(32, UNCLEAR) + call.hear(32) == [TurnResumed(at(14)), Held(at(14))]
    assert call.hear(224) == []
    assert call.hear(32) == [Yielded(0, "duration")]


def test_a_blip_after_a_burst_holds_nothing_and_prolongs_nothing() -> None:
    call = doubted(Call())
    deadline_ns = call.detector.next_deadline_ns()
    assert call.hear(32, UNCLEAR) == [TurnResumed(at(14))]
    assert call.quiet(128) == [TurnPaused(at(15))]
    assert call.detector.next_deadline_ns() == deadline_ns


def test_a_blip_does_not_join_a_burst_to_the_next() -> None:
    call = doubted(Call())
    call.quiet(96)
    assert call.hear(32, UNCLEAR) + call.quiet(128) == [TurnResumed(at(17)), TurnPaused(at(18))]
    assert call.hear(32, UNCLEAR) + call.hear(32) == [TurnResumed(at(22)), Held(at(22))]
    assert call.hear(544) == []
    assert call.hear(32) == [Yielded(0, "duration")]


def test_a_turn_does_not_stay_provisional_for_long() -> None:
    call = Call(TurnDetectorSettings(provisional_ms_max=1_500, vain_holds_max=100))
    events = held(call).quiet(128)
    while not any(isinstance(event, TurnDropped) for event in events):
        assert call.now_ms < 3_000
        events += call.hear(64) + call.quiet(256)
    dropped = events.index(TurnDropped(0))
    onset = at(call.windows - 10)
    assert events[dropped - 1 : dropped + 2] == [TurnResumed(onset), TurnDropped(0), Held(onset)]


def test_sound_that_never_ends_does_not_keep_a_turn_provisional() -> None:
    call = held(Call())
    assert call.say("the weather in Paris") == [Resumed("echo")]
    assert call.hear(9_984) == []
    assert call.hear(32, UNCLEAR) == [TurnDropped(0)]
    assert call.hear(32) == [Held(at(314))]


# ---- echo and noise --------------------------------------------------------------------------------


def test_pipecat_1626_our_echo_interrupts_nothing() -> None:
    call = held(Call())
    call.hear(256)
    assert call.say("The weather in Paris") == [Resumed("echo")]
    assert call.hear(3_200) == []
    assert call.say("The weather in Paris will be sunny on Tuesday") == []
    assert call.quiet(128) == [TurnPaused(at(110))]
    assert call.wait(1_500) == [TurnDropped(0)]


@pytest.mark.parametrize("probability", [0.55, UNEVEN, 0.75, LOUD])
@pytest.mark.parametrize("delay_ms", [0, 96, 256, 448])
def test_pipecat_1626_no_loudness_and_no_delay_makes_an_interruption_of_our_echo(
    probability: float, delay_ms: int
) -> None:
    """It is as loud as a bad loudspeaker makes it, and its words are known so long after it began."""
    call = Call()
    call.quiet(960)
    events = call.hear(64 + delay_ms, probability) + call.say("The weather in Paris")
    for words in ("will be sunny", "will be sunny on Tuesday", "with a light wind"):
        events += call.hear(640, probability) + call.say(f"The weather in Paris {words}")
    events += call.quiet(128) + call.wait(1_500)
    assert [type(event) for event in events] == [Held, Resumed, TurnPaused, TurnDropped]


def test_quickvoice_154_our_echo_never_becomes_a_turn_when_we_fall_silent() -> None:
    call = held(Call())
    call.hear(256)
    call.say("The weather in Paris")
    assert call.hear(320, saying=SILENT) == []
    assert call.quiet(1_600, SILENT) == [TurnPaused(at(20)), TurnDropped(0)]


def test_our_echo_is_known_when_it_is_understood_only_after_we_have_fallen_silent() -> None:
    call = doubted(Call())
    assert call.quiet(64, SILENT) == []
    assert call.say("The weather in Paris", settled=True) == []
    assert call.wait(1_500) == [TurnDropped(0)]


def test_after_an_echo_sound_alone_does_not_hold_us_for_a_while() -> None:
    call = held(Call())
    call.hear(256)
    call.say("The weather in Paris")
    call.quiet(320)
    assert call.hear(64) == [TurnResumed(at(20)), TurnDropped(0), Held(at(20)), Resumed("guarded")]
    call.hear(640)
    assert call.say("sunny on Tuesday") == []
    call.quiet(1_600)
    assert call.quiet(4_000) == []
    assert call.hear(64) == [Held(at(call.windows - 2))]


def test_after_an_echo_words_and_long_speech_still_interrupt() -> None:
    for text in ("stop", "I want something else"):
        call = held(Call())
        call.say("The weather in Paris")
        call.quiet(320)
        call.hear(320)
        assert call.say(text) == [Yielded(at(12), "late_words")]
    call = held(Call())
    call.say("The weather in Paris")
    call.quiet(320)
    call.hear(1_184)
    assert call.hear(32) == [Yielded(at(12), "duration")]


def test_an_interruption_is_heard_through_our_echo() -> None:
    call = held(Call())
    call.say("The weather in Paris")
    call.hear(640)
    assert call.say("The weather in Paris will stop") == [Yielded(0, "late_words")]


def test_after_an_echo_the_caller_can_speak_once_we_are_silent() -> None:
    call = held(Call())
    call.say("The weather in Paris")
    call.quiet(320)
    assert call.hear(64, saying=SILENT) == [TurnResumed(at(12)), TurnDropped(0), TurnStarted(at(12), at(14))]


def test_noise_that_holds_in_vain_again_and_again_holds_no_more() -> None:
    call = Call()
    for _ in range(3):
        assert Resumed("noise") in in_vain(call)
    assert call.hear(160, UNEVEN)[-2:] == [Held(at(call.windows - 5)), Resumed("guarded")]


def test_holds_in_vain_that_are_far_apart_do_not_count() -> None:
    call = Call()
    for _ in range(6):
        assert call.hear(96)[-1] == Held(at(call.windows - 3))
        call.quiet(6_400)


def in_vain(call: Call) -> list[TurnEvent]:
    """Noise that may hold us, and 512 ms of quiet."""
    return call.hear(192, UNEVEN) + call.quiet(512)


def test_only_holds_in_vain_that_follow_each_other_count() -> None:
    call = Call()
    in_vain(call)
    call.quiet(6_400)
    for _ in range(3):
        assert Resumed("guarded") not in in_vain(call)
    assert Resumed("guarded") in in_vain(call)


def test_after_an_interruption_holds_in_vain_are_counted_anew() -> None:
    call = Call()
    in_vain(call)
    in_vain(call)
    call.hear(64)
    assert isinstance(call.say("stop")[0], Yielded)
    call.quiet(512, SILENT)
    for _ in range(3):
        assert Resumed("guarded") not in in_vain(call)


def test_a_guard_that_is_over_leaves_no_count_behind() -> None:
    call = Call()
    for _ in range(3):
        in_vain(call)
    for _ in range(5):
        assert Resumed("guarded") in in_vain(call)
    for _ in range(3):
        assert Resumed("guarded") not in in_vain(call)


def test_a_burst_that_has_ended_does_not_interrupt_when_a_guard_does() -> None:
    """It was too short under the guard, and has been judged: only its words may interrupt yet."""
    call = Call()
    for _ in range(3):
        in_vain(call)
    call.quiet(2_592)
    events = call.hear(704)
    assert events[0] == Held(at(call.windows - 22))
    assert events[1:] == [Resumed("guarded")]
    assert [type(event) for event in call.quiet(1_600)] == [TurnPaused, TurnDropped]


def test_livekit_1229_a_cough_before_the_first_sound_only_holds() -> None:
    """A reply that is under way but not yet heard is audible by definition: it is held, and goes on."""
    call = Call()
    assert call.hear(160, UNEVEN) == [Held(0)]
    assert call.quiet(128) == [TurnPaused(at(5)), Resumed("noise")]
    assert call.wait(1_500) == [TurnDropped(0)]


# ---- we fall silent, or may no longer be interrupted -----------------------------------------------


def test_a_reply_that_ends_while_it_is_held_leaves_the_floor_to_the_caller() -> None:
    call = held(Call())
    assert call.hear(32, saying=SILENT) == [Resumed("floor_free"), TurnStarted(0, at(3))]


def test_a_reply_that_may_no_longer_be_interrupted_goes_on() -> None:
    call = held(Call())
    assert call.hear(32, saying=UNINTERRUPTIBLE) == [Resumed("not_interruptible"), TurnStarted(0, at(3))]
    assert call.say("stop") == []


def test_a_caller_who_speaks_on_when_we_fall_silent_has_a_turn() -> None:
    call = held(Call())
    call.hear(320)
    call.say("yeah yeah")
    call.hear(256)
    assert call.detector.state is DetectorState.DOUBTED
    assert call.hear(32, saying=SILENT) == [TurnStarted(0, at(21))]


def test_an_answer_over_our_last_words_is_a_turn_once_we_fall_silent() -> None:
    call = doubted(Call())
    assert call.say("Yes.", settled=True) == []
    assert call.quiet(32, SILENT) == [TurnStarted(0, at(15))]
    assert call.quiet(352, SILENT) == [TurnEnded(at(10), at(26))]


def test_an_answer_that_is_understood_long_after_its_end_has_ended() -> None:
    call = doubted(Call())
    assert call.quiet(480, SILENT) == []
    assert call.say("Yes.", settled=True) == [TurnStarted(0, at(29)), TurnEnded(at(10), at(29))]
    assert call.detector.state is DetectorState.FREE


def test_words_that_settle_late_end_a_turn_without_another_window() -> None:
    call = Call(TurnDetectorSettings(end_of_turn=EndOfTurnSettings("semantic_vad")))
    call.hear(320, saying=SILENT)
    assert call.quiet(480, SILENT) == [TurnPaused(at(10))], "of an unknown end it waits longer"
    assert call.say("What is the time?", settled=True) == [TurnEnded(at(10), at(25))]


def test_an_answer_that_is_understood_only_when_we_are_silent_is_a_turn() -> None:
    call = doubted(Call())
    assert call.quiet(32, SILENT) == []
    assert call.say("Yes.", settled=True) == [TurnStarted(0, at(15))]


def test_an_interruption_that_is_understood_only_when_we_are_silent_cuts_nothing() -> None:
    call = doubted(Call())
    assert call.quiet(32, SILENT) == []
    assert call.say("Stop.", settled=True) == [TurnStarted(0, at(15))]


def test_a_cough_over_our_last_words_is_no_turn() -> None:
    call = doubted(Call())
    assert call.quiet(160, SILENT) == []
    assert call.say("", settled=True) == []
    assert call.wait(1_500) == [TurnDropped(0)]


def test_another_burst_once_we_are_silent_is_the_same_turn() -> None:
    call = doubted(Call())
    assert call.quiet(64, SILENT) == []
    assert call.hear(64, saying=SILENT) == [TurnResumed(at(16)), TurnStarted(0, at(18))]


def test_unknown_sound_that_outlasts_us_while_we_are_on_guard_needs_words() -> None:
    call = held(Call())
    call.say("The weather in Paris")
    call.quiet(320)
    call.hear(96)
    assert call.hear(320, saying=SILENT) == []
    assert call.say("and tomorrow") == [TurnStarted(at(12), at(25))]


# ---- commands and settings -------------------------------------------------------------------------


def test_a_commit_makes_a_turn_of_what_is_being_heard() -> None:
    call = Call()
    assert call.detector.force_end() == ()
    held(call)
    assert call.detector.force_end() == (Resumed("committed"), TurnStarted(0, at(2)), TurnEnded(at(2), at(2)))
    assert call.detector.state is DetectorState.FREE
    call = doubted(Call())
    assert call.detector.force_end() == (TurnStarted(0, at(14)), TurnEnded(at(10), at(14)))
    call = Call()
    call.hear(64, saying=SILENT)
    assert call.detector.force_end() == (TurnEnded(at(2), at(2)),)
    assert call.hear(32, UNCLEAR) == []
    assert call.hear(32) == [Held(at(2))]


def test_what_was_committed_is_no_evidence_against_us() -> None:
    call = Call()
    call.hear(640, saying=SILENT)
    call.detector.force_end()
    assert call.hear(64) == [Held(at(20))]
    assert call.hear(544) == []


def test_a_reset_forgets_the_turn_and_leaves_nothing_held() -> None:
    call = Call()
    assert call.detector.reset() == ()
    held(call)
    assert call.detector.reset() == (Resumed("reset"),)
    assert call.wait(10_000) == []
    assert call.detector.state is DetectorState.FREE
    doubted_call = doubted(Call())
    assert doubted_call.detector.reset() == ()
    assert doubted_call.wait(10_000) == []
    call = Call()
    call.hear(64, saying=SILENT)
    assert call.detector.reset() == ()
    assert call.quiet(3_200) == []


def test_settings_change_at_any_time() -> None:
    call = Call()
    call.hear(64, saying=SILENT)
    call.detector.settings = TurnDetectorSettings(end_of_turn=EndOfTurnSettings(silence_duration_ms=160))
    assert call.detector.settings.end_of_turn.silence_duration_ms == 160
    assert call.quiet(160, SILENT) == [TurnPaused(at(2)), TurnEnded(at(2), at(7))]
    assert call.hear(64) == [Held(at(7))]
    call.detector.settings = TurnDetectorSettings(decide_ms_max=600)
    assert call.wait(600) == [Resumed("undecided")]


def test_every_state_can_be_left_and_every_step_is_used() -> None:
    assert {state for state, _ in _TRANSITIONS} == set(DetectorState)
    assert {step for _, step in _TRANSITIONS} == set(DetectorStep)
    reached = {DetectorState.FREE}
    for _ in DetectorState:
        reached |= {target for (state, _), target in _TRANSITIONS.items() if state in reached}
    assert reached == set(DetectorState)
