"""Figures of a turn from its record; whole calls are in test_timeline."""

from __future__ import annotations

import pytest

from loadtest.playout_model import Faults, ReplyAudio
from loadtest.turns import (
    Reply,
    SilentUtteranceError,
    Turn,
    TurnOutcome,
    Utterance,
    add_faults,
    elapsed_ms,
    turn_result,
)
from tests.loadtest.link import tone

MS = 1_000_000


def spoken() -> Turn:
    """Audible from 1020 to 1120 ms."""
    turn = Turn(0, Utterance.from_pcm("hello", tone(100, lead_ms=20, tail_ms=50)))
    turn.say(1_000 * MS)
    turn.waited_to_ns = 9_000 * MS
    return turn


def reply(first_ms: int = 1_300, last_ms: int = 2_000, status: str = "completed", cut_ms: int | None = None) -> Reply:
    audio = ReplyAudio(
        first_received_ns=first_ms * MS,
        last_received_ns=(last_ms - 100) * MS,
        received_samples=24_000,
        heard_samples=12_000,
        discarded_samples=12_000,
        first_audible_ns=(first_ms + 5) * MS,
        last_heard_ns=last_ms * MS,
        gap_ns_max=33 * MS,
        dry_ns=2 * MS,
    )
    cut_ns = None if cut_ms is None else cut_ms * MS
    return Reply("resp", 0, audio, done_ns=last_ms * MS, status=status, cut_ns=cut_ns)


def test_an_utterance_knows_where_it_is_audible() -> None:
    utterance = Utterance.from_pcm("hello", tone(100, lead_ms=20, tail_ms=50))
    assert (utterance.first, utterance.end) == (480, 480 + 2_400)

    with pytest.raises(SilentUtteranceError):
        Utterance.from_pcm("nothing", bytes(4_800))


def test_the_figures_of_an_answered_turn() -> None:
    result = turn_result(spoken(), [reply()], None)

    assert (result.outcome, result.ttfa_ms, result.ttfa_audible_ms) == (TurnOutcome.ANSWERED, 180, 185)
    assert (result.reply_ms, result.heard_ms, result.discarded_ms) == (1_000, 500, 500)
    assert (result.gap_ms_max, result.dry_ms) == (33, 2)
    assert (result.yielded, result.barge_in_stop_ms, result.cancel_stop_ms) == (None, None, None)


def test_an_interruption_is_timed_by_what_was_played_and_by_what_was_received() -> None:
    turn = spoken()
    turn.interrupted = True
    result = turn_result(turn, [reply(status="cancelled", cut_ms=2_000)], 1_800 * MS)

    assert (result.outcome, result.yielded) == (TurnOutcome.INTERRUPTED, True)
    assert (result.barge_in_stop_ms, result.barge_in_received_ms) == (200, 100)


def test_an_interruption_of_what_had_been_heard_stops_nothing() -> None:
    turn = spoken()
    turn.interrupted = True
    result = turn_result(turn, [reply()], 2_500 * MS)

    assert (result.outcome, result.yielded, result.barge_in_stop_ms) == (TurnOutcome.ANSWERED, None, None)


def test_a_reply_that_the_server_cut_by_itself_is_no_answer_as_it_should_be() -> None:
    assert turn_result(spoken(), [reply(status="cancelled", cut_ms=2_000)], None).outcome is TurnOutcome.CUT_OFF


def test_a_premature_reply_is_counted_and_its_text_left_out() -> None:
    early = reply(first_ms=1_050, last_ms=1_080, status="cancelled", cut_ms=1_080)
    early.text = "too early"
    late = reply()
    late.text = "in time"
    result = turn_result(spoken(), [early, late], None)

    assert (result.premature_replies, result.reply_text, result.ttfa_ms) == (1, "in time", 180)


def test_a_reply_to_another_turn_is_not_looked_at() -> None:
    other = reply()
    other.turn = 1
    result = turn_result(spoken(), [other], None)

    assert (result.outcome, result.ttfa_ms, result.ttfa_censored) == (TurnOutcome.NO_REPLY, 7_880, True)


def test_a_call_that_ended_amid_the_speech_waited_for_nothing() -> None:
    turn = spoken()
    turn.waited_to_ns = 1_050 * MS
    result = turn_result(turn, [], None)

    assert (result.ttfa_ms, result.ttfa_censored) == (0, True)


def test_faults_add_up_by_kind() -> None:
    total = add_faults([Faults(missing_samples=1, stale_samples=2), Faults(missing_samples=3)])
    assert total == Faults(missing_samples=4, stale_samples=2)
    assert add_faults([]) == Faults()


def test_times_are_to_a_tenth_of_a_millisecond() -> None:
    assert elapsed_ms(0, 1_260_000) == 1.3
    assert elapsed_ms(None, 1) is None
    assert elapsed_ms(1, None) is None
