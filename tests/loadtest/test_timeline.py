"""Whole calls on a virtual clock: a caller's timeline against the scripted server's core."""

from __future__ import annotations

import pytest

from loadtest import timeline as module
from loadtest.errors import ConnectionLost, ServerViolation
from loadtest.playout_model import Faults
from loadtest.realtime_wire import SessionReplaced
from loadtest.timeline import FRAME_NS, CallPlan, CallTimeline, Phase
from loadtest.turns import CallOutcome, TurnOutcome, Utterance
from tests.loadtest.fake_realtime_server import CHUNK_SAMPLES, TURN_END_FRAMES, ReplyScript, Script
from tests.loadtest.link import START_NS, Link, play, tone, utterances

# The fake server ends a turn after 5 silent frames and answers 3 ticks later.
TTFA_MS = (TURN_END_FRAMES + 3) * 20


def test_a_turn_is_measured_from_the_last_audible_sample_to_the_first_of_the_reply() -> None:
    result = play(CallPlan(utterances(300)))

    (turn,) = result.turns
    assert turn.outcome is TurnOutcome.ANSWERED
    assert (turn.ttfa_ms, turn.ttfa_censored) == (TTFA_MS, False)
    assert turn.caller_text == "question 1"
    assert turn.reply_text == "0 1 2 3 4 5 6 7 8 9 "
    assert (turn.reply_ms, turn.heard_ms, turn.discarded_ms) == (400, 400, 0)
    assert (turn.status, turn.timings) == ("completed", {"thinker": 12.5})
    assert (turn.drain_status, turn.drain_lag_ms, turn.drain_lag_client_ms) == ("complete", 7, 0)
    assert turn.released == {"kv": 3}
    assert result.went_well
    assert result.outcome is CallOutcome.COMPLETED


def test_silence_at_the_edges_of_an_utterance_is_no_speech() -> None:
    (turn,) = play(CallPlan((Utterance.from_pcm("padded", tone(300, lead_ms=60, tail_ms=80)),))).turns

    # The 80 ms of tail are four of the five silent frames that the server waits for, so nothing changes.
    assert turn.ttfa_ms == TTFA_MS


def test_audible_time_skips_silence_at_the_head_of_the_reply() -> None:
    (turn,) = play(CallPlan(utterances(300)), Script((ReplyScript(silent_chunks=2),))).turns

    assert turn.ttfa_ms == TTFA_MS
    assert turn.ttfa_audible_ms == TTFA_MS + 80


def test_the_next_utterance_waits_until_the_reply_has_been_heard() -> None:
    link = Link(CallPlan(utterances(100, 200), lead_ms=500, think_ms=300), Script())
    result = link.play()

    assert [turn.outcome for turn in result.turns] == [TurnOutcome.ANSWERED] * 2
    assert [turn.caller_text for turn in result.turns] == ["question 1", "question 2"]
    # lead, speech, answer time, reply, thinking; then speech, answer time, reply, thinking, and the closing frame.
    expected_ms = 500 + (100 + TTFA_MS + 400 + 300) + (200 + TTFA_MS + 400 + 300)
    assert expected_ms <= result.duration_ms <= expected_ms + 3 * 20
    assert link.notes[0].endswith("saying clip 100")


def test_the_microphone_never_stops() -> None:
    link = Link(CallPlan(utterances(100, 200)), Script())
    link.play()

    assert link.server.ticks == link.frames - 1
    assert link.timeline.result().lateness.max_ms == 0


def test_a_reply_is_interrupted_and_the_stop_is_measured_from_the_first_interrupting_sample() -> None:
    plan = CallPlan(utterances(300, 300), barge_in_after_ms=200)
    first, second = play(plan, Script((ReplyScript(chunks=50), ReplyScript()))).turns

    assert first.outcome is TurnOutcome.INTERRUPTED
    assert (first.status, first.status_reason, first.yielded) == ("cancelled", "turn_detected", True)
    # The server needs two loud frames; what was queued then is flushed.
    assert first.barge_in_stop_ms == 40
    assert first.barge_in_received_ms is not None
    assert first.barge_in_received_ms <= 40
    assert first.discarded_ms > 0
    assert first.heard_ms + first.discarded_ms == first.reply_ms
    assert not first.faults.total
    assert second.outcome is TurnOutcome.ANSWERED
    assert second.caller_text == "question 2"


def test_the_last_reply_is_not_interrupted_for_want_of_words() -> None:
    (turn,) = play(CallPlan(utterances(300), barge_in_after_ms=100)).turns

    assert turn.outcome is TurnOutcome.ANSWERED
    assert turn.barge_in_stop_ms is None


def test_a_reply_that_ends_before_the_interruption_is_just_answered() -> None:
    first, _ = play(CallPlan(utterances(300, 300), barge_in_after_ms=5_000)).turns

    assert first.outcome is TurnOutcome.ANSWERED
    assert first.yielded is None


def test_stale_audio_after_a_barge_in_is_found() -> None:
    plan = CallPlan(utterances(300, 300), barge_in_after_ms=200)
    result = play(plan, Script((ReplyScript(chunks=50, stale_chunks=2), ReplyScript())))

    assert result.turns[0].faults == Faults(stale_samples=2 * CHUNK_SAMPLES)
    assert result.turns[0].barge_in_stop_ms == 40 + 80
    assert not result.went_well


def test_missing_and_doubled_samples_are_found() -> None:
    first, second = play(
        CallPlan(utterances(300, 300)), Script((ReplyScript(skip_chunk=4), ReplyScript(repeat_chunk=4)))
    ).turns

    assert first.faults == Faults(missing_samples=CHUNK_SAMPLES)
    assert second.faults == Faults(doubled_samples=CHUNK_SAMPLES)
    assert (first.reply_ms, second.reply_ms) == (360, 440)


def test_a_stock_server_is_called_without_offsets_acks_or_drains() -> None:
    script = Script((ReplyScript(chunks=50), ReplyScript()), resume_token=None)
    link = Link(CallPlan(utterances(300, 300), barge_in_after_ms=200), script)
    result = link.play()

    assert [turn.outcome for turn in result.turns] == [TurnOutcome.INTERRUPTED, TurnOutcome.ANSWERED]
    assert [turn.drain_status for turn in result.turns] == [None, None]
    assert [message["type"] for message in link.sent] == ["conversation.item.truncate"]
    assert link.sent[0]["audio_end_ms"] == result.turns[0].heard_ms


def test_heard_positions_are_acknowledged_and_the_cut_at_once() -> None:
    link = Link(CallPlan(utterances(300, 300), barge_in_after_ms=200), Script((ReplyScript(chunks=50), ReplyScript())))
    result = link.play()

    first = [message["played_samples"] for message in link.sent if message["response_id"] == "resp_1"]
    assert first == sorted(set(first))
    assert first[-1] == result.turns[0].heard_ms * 24
    second = [message for message in link.sent if message["response_id"] == "resp_2"]
    assert second[-1]["played_samples"] == 400 * 24
    assert second[-1]["item_id"] == "item_resp_2"


def test_a_reply_is_cancelled_by_command() -> None:
    link = Link(CallPlan(utterances(300, 300), cancel_after_ms=200), Script((ReplyScript(chunks=50), ReplyScript())))
    first, _ = link.play().turns

    assert [message for message in link.sent if message["type"] == "response.cancel"] == [
        {"type": "response.cancel", "response_id": "resp_1"},
        {"type": "response.cancel", "response_id": "resp_2"},
    ]
    assert first.outcome is TurnOutcome.CANCELLED
    assert (first.status_reason, first.cancel_stop_ms) == ("client_cancelled", 0)
    assert 200 <= first.heard_ms <= 220


def test_a_reply_that_is_wholly_made_is_cancelled_by_falling_silent() -> None:
    link = Link(CallPlan(utterances(300), cancel_after_ms=200), Script((ReplyScript(lead_chunks=20),)))
    (turn,) = link.play().turns

    assert not [message for message in link.sent if message["type"] == "response.cancel"]
    assert turn.outcome is TurnOutcome.CANCELLED
    assert turn.status == "completed"
    assert 200 <= turn.heard_ms <= 220


def test_a_turn_without_answer_counts_with_the_time_waited() -> None:
    plan = CallPlan(utterances(300, 300), turn_timeout_ms=2_000)
    first, second = play(plan, Script((ReplyScript(mute=True), ReplyScript()))).turns

    assert (first.outcome, first.ttfa_ms, first.ttfa_censored) == (TurnOutcome.NO_REPLY, 2_020, True)
    assert first.ttfa_audible_ms is None
    assert second.outcome is TurnOutcome.ANSWERED


def test_an_answer_after_the_caller_went_on_answers_nothing() -> None:
    plan = CallPlan(utterances(300, 1_000), turn_timeout_ms=400)
    result = play(plan, Script((ReplyScript(delay_ticks=30), ReplyScript())))

    first = result.turns[0]
    assert (first.outcome, first.ttfa_ms, first.ttfa_censored) == (TurnOutcome.NO_REPLY, 420, True)


def test_a_reply_that_stalls_is_given_up() -> None:
    plan = CallPlan(utterances(300), turn_timeout_ms=1_000)
    result = play(plan, Script((ReplyScript(stall_at_chunk=5),)))

    assert result.turns[0].outcome is TurnOutcome.UNFINISHED
    assert result.turns[0].ttfa_ms == TTFA_MS
    assert not result.went_well


def test_a_server_that_vanishes_leaves_the_turn_unfinished_and_the_rest_unsaid() -> None:
    result = play(CallPlan(utterances(300, 300)), Script((ReplyScript(vanish_at_chunk=5),)))

    assert [turn.outcome for turn in result.turns] == [TurnOutcome.UNFINISHED, TurnOutcome.NOT_SAID]
    assert result.turns[1].ttfa_ms is None
    assert result.outcome is CallOutcome.CONNECTION_LOST
    assert result.detail == "the connection closed (1006)"


def test_an_error_instead_of_a_reply_is_shown_with_its_turn() -> None:
    plan = CallPlan(utterances(300, 300), turn_timeout_ms=1_000)
    first, second = play(plan, Script((ReplyScript(), ReplyScript(error_code="engine_down")))).turns

    assert first.errors == ()
    assert second.errors == ("engine_down: no",)
    assert second.outcome is TurnOutcome.NO_REPLY


def test_a_failed_response_is_a_failed_turn_and_the_caller_goes_on() -> None:
    first, second = play(CallPlan(utterances(300, 300)), Script((ReplyScript(status="failed"), ReplyScript()))).turns

    assert first.outcome is TurnOutcome.FAILED
    assert second.outcome is TurnOutcome.ANSWERED


def test_a_response_that_is_never_drained_is_waited_for_and_shown() -> None:
    result = play(CallPlan(utterances(300)), Script((ReplyScript(drains=False),)))

    assert result.turns[0].drain_status is None
    assert result.duration_ms > module.DRAIN_WAIT_MS


def test_the_caller_lets_a_greeting_end() -> None:
    result = play(CallPlan(utterances(300), lead_ms=100), Script(greeting=ReplyScript(chunks=20)))

    assert result.unprompted_replies == 1
    assert result.turns[0].outcome is TurnOutcome.ANSWERED
    assert result.turns[0].premature_replies == 0
    assert result.duration_ms > 800 + 300


def test_an_endless_greeting_is_talked_over() -> None:
    plan = CallPlan(utterances(300), lead_ms=100, turn_timeout_ms=1_000)
    result = play(plan, Script(greeting=ReplyScript(chunks=10_000)))

    assert result.turns[0].outcome is TurnOutcome.ANSWERED


def test_an_end_of_turn_assumed_too_early_answers_nothing() -> None:
    two_parts = Utterance.from_pcm("two parts", tone(300, tail_ms=260) + tone(300))
    (turn,) = play(CallPlan((two_parts,))).turns

    assert turn.outcome is TurnOutcome.ANSWERED
    assert turn.premature_replies == 1
    assert turn.ttfa_ms == TTFA_MS
    assert turn.caller_text == "question 1 question 2"


def test_an_interruption_that_the_server_ignores_is_not_yielded_to() -> None:
    tick = Utterance.from_pcm("tick", tone(20))
    plan = CallPlan((*utterances(300), tick), barge_in_after_ms=200, turn_timeout_ms=1_000)
    first, second = play(plan, Script((ReplyScript(chunks=20),))).turns

    assert (first.outcome, first.yielded) == (TurnOutcome.INTERRUPTED, False)
    assert first.barge_in_stop_ms == 800 - 200
    assert second.outcome is TurnOutcome.NO_REPLY


def test_a_session_taken_over_elsewhere_ends_the_call() -> None:
    link = Link(CallPlan(utterances(300)), Script())
    link.play(until=lambda _: link.frames == 10)
    link.timeline.on_event(SessionReplaced(), link.now_ns)

    assert link.timeline.finished
    assert link.timeline.result().outcome is CallOutcome.SESSION_REPLACED
    assert link.timeline.frame(link.frames, link.now_ns) == []


def test_a_close_that_says_so_is_a_session_taken_over() -> None:
    timeline = CallTimeline(CallPlan(utterances(300)))
    timeline.begin(START_NS, "sess_1", None)
    timeline.fail(ConnectionLost(module.CLOSE_REPLACED, "session_replaced"), START_NS)

    assert timeline.result().outcome is CallOutcome.SESSION_REPLACED


def test_a_violation_ends_the_call_and_only_the_first_end_counts() -> None:
    timeline = CallTimeline(CallPlan(utterances(300)))
    timeline.begin(START_NS, "sess_1", None)
    timeline.fail(ServerViolation("nonsense"), START_NS)
    timeline.stop(CallOutcome.INTERRUPTED_BY_USER, "", START_NS)

    assert timeline.result().outcome is CallOutcome.PROTOCOL_VIOLATION
    assert timeline.take_notes() == ["call protocol_violation: nonsense"]


def test_a_call_has_a_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALL_MS_MAX", 200)
    result = play(CallPlan(utterances(300)))

    assert result.outcome is CallOutcome.TOO_LONG
    assert result.turns[0].outcome is TurnOutcome.NOT_SAID


def test_lateness_is_recorded_and_moves_no_deadline() -> None:
    timeline = CallTimeline(CallPlan(utterances(300)))
    timeline.begin(START_NS, "sess_1", None)
    for index in range(100):
        assert timeline.deadline_ns(index) == START_NS + (index + 1) * FRAME_NS
        late_ns = 7_000_000 if index == 40 else 1_000_000
        assert len(timeline.frame(index, timeline.deadline_ns(index) + late_ns)) == 1

    lateness = timeline.result().lateness
    assert (lateness.frames, lateness.p50_ms, lateness.p99_ms, lateness.max_ms) == (100, 1.0, 1.0, 7.0)


def test_the_recording_lies_on_the_timeline_of_the_call() -> None:
    link = Link(CallPlan(utterances(300), lead_ms=500), Script())
    link.play()

    pcm = link.timeline.recording.pcm
    silent_samples = (500 + 300 + TTFA_MS) * 24
    assert len(pcm) == 2 * (silent_samples + 400 * 24)
    assert pcm[: 2 * silent_samples] == bytes(2 * silent_samples)
    assert pcm[2 * silent_samples] != 0


def test_phases_are_named() -> None:
    assert [phase.value for phase in Phase] == ["leading", "speaking", "listening", "closing", "ended"]


def test_turns_may_be_interrupted_after_times_of_their_own() -> None:
    plan = CallPlan(utterances(300, 300, 300), barge_in_after_ms=(200, 60_000))

    first, second, _ = play(plan).turns

    assert (first.outcome, second.outcome) == (TurnOutcome.INTERRUPTED, TurnOutcome.ANSWERED)
