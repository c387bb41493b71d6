"""What the caller makes of single events; whole calls are in test_timeline."""

from __future__ import annotations

import pytest

from loadtest import hearing as module
from loadtest import realtime_wire as wire
from loadtest.errors import ServerViolation
from loadtest.hearing import Hearing
from loadtest.turns import Turn
from tests.loadtest.link import tone, utterances

MS = 1_000_000


def listening(turns: int = 2, *, extended: bool = True) -> tuple[Hearing, list[Turn]]:
    """A caller who has just said the first utterance, which ended at 100 ms."""
    said = [Turn(index, utterance) for index, utterance in enumerate(utterances(*[100] * turns))]
    hearing = Hearing(said)
    hearing.begin_call(0, extended=extended)
    said[0].say(0)
    hearing.begin_turn(0)
    return hearing, said


def created(response_id: str) -> wire.ResponseCreated:
    return wire.ResponseCreated(response=wire.CreatedResponse(response_id))


def delta(response_id: str, ms: int = 40, start: int | None = None) -> wire.AudioDelta:
    return wire.AudioDelta(response_id=response_id, item_id="i", delta=tone(ms), start_sample=start)


def done(response_id: str, status: str = "completed") -> wire.ResponseDone:
    return wire.ResponseDone(response=wire.FinishedResponse(response_id, status))


def test_a_reply_belongs_to_the_turn_committed_last_even_when_the_caller_has_gone_on() -> None:
    hearing, turns = listening()
    hearing.on_event(wire.SpeechStarted(item_id="first"), 50 * MS)
    turns[1].say(500 * MS)
    hearing.begin_turn(1)
    hearing.on_event(wire.InputCommitted(item_id="first"), 510 * MS)
    hearing.on_event(created("a"), 520 * MS)
    hearing.on_event(wire.SpeechStarted(item_id="second"), 530 * MS)
    hearing.on_event(wire.InputCommitted(item_id="second"), 700 * MS)
    hearing.on_event(created("b"), 710 * MS)

    assert [reply.turn for reply in hearing.replies] == [0, 1]


def test_without_commits_a_reply_belongs_to_the_turn_begun_last() -> None:
    hearing, _ = listening()
    hearing.on_event(created("a"), 200 * MS)

    assert hearing.replies[0].turn == 0


def test_transcripts_find_their_turn_and_join() -> None:
    hearing, turns = listening()
    hearing.on_event(wire.SpeechStarted(item_id="x"), 0)
    hearing.on_event(wire.InputTranscribed(item_id="y", transcript="what time"), 0)
    hearing.begin_turn(1)
    hearing.on_event(wire.InputTranscribed(item_id="x", transcript=" is it "), 0)

    assert [turn.caller_text for turn in turns] == ["what time is it", ""]


def test_a_transcript_from_before_the_first_turn_is_nobody_s() -> None:
    turn = Turn(0, utterances(100)[0])
    hearing = Hearing([turn])
    hearing.on_event(wire.InputTranscribed(item_id="noise", transcript="hm"), 0)

    assert turn.caller_text == ""


def test_errors_are_kept_with_their_turn_up_to_a_bound() -> None:
    hearing, turns = listening()
    for _ in range(module.ERRORS_PER_TURN_MAX + 5):
        hearing.on_event(wire.ErrorEvent(error=wire.ErrorBody("server_error", None, "no")), 0)

    assert turns[0].errors == ["server_error: no"] * module.ERRORS_PER_TURN_MAX
    assert hearing.take_notes()[0] == "error from the server: server_error: no"
    assert hearing.take_notes() == []


def test_a_server_without_acknowledgements_is_told_of_cuts_only() -> None:
    hearing, turns = listening()
    hearing.on_event(delta("a", ms=400), 200 * MS)
    assert hearing.acknowledge(210 * MS)
    hearing.on_event(wire.ErrorEvent(error=wire.ErrorBody("invalid_request_error", module.UNKNOWN_EVENT, "?")), 0)

    assert turns[0].errors == []
    assert hearing.acknowledge(220 * MS) == []
    assert hearing.on_event(wire.SpeechStarted(item_id="x"), 230 * MS) == [wire.TruncateItem("i", 30)]
    assert hearing.undrained()


def test_a_second_terminal_is_a_violation() -> None:
    hearing, _ = listening()
    hearing.on_event(done("a"), 0)
    with pytest.raises(ServerViolation):
        hearing.on_event(done("a"), 0)


def test_what_a_server_can_make_the_caller_remember_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPLIES_MAX", 2)
    monkeypatch.setattr(module, "ITEMS_MAX", 2)
    monkeypatch.setattr(module, "TEXT_CHARS_MAX", 10)
    hearing, _ = listening()
    for name in ("a", "b"):
        hearing.on_event(created(name), 0)
        hearing.on_event(wire.InputCommitted(item_id=name), 0)
    hearing.on_event(wire.TranscriptDelta(response_id="a", delta="x" * 100), 0)

    assert hearing.replies[0].text == "x" * 10
    with pytest.raises(ServerViolation):
        hearing.on_event(created("c"), 0)
    with pytest.raises(ServerViolation):
        hearing.on_event(wire.InputCommitted(item_id="c"), 0)


def test_events_count_up_by_one() -> None:
    hearing, _ = listening()
    for seq in (None, 4, 5, 7, 7, 8):
        hearing.on_event(wire.OtherEvent(type="noise", server_event_seq=seq), 0)
    assert hearing.event_seq_faults == 2

    hearing.on_event(wire.SessionResumed(server_event_seq=90), 0)
    hearing.on_event(wire.OtherEvent(type="noise", server_event_seq=91), 0)
    assert hearing.event_seq_faults == 2


def test_a_reply_is_over_when_it_is_made_and_heard() -> None:
    hearing, turns = listening()
    assert hearing.over_ns(turns[0]) is None
    hearing.on_event(created("a"), 200 * MS)
    hearing.on_event(delta("a"), 200 * MS)
    assert hearing.over_ns(turns[0]) is None
    assert hearing.open_response(turns[0]) == "a"

    hearing.on_event(done("a"), 210 * MS)
    assert hearing.over_ns(turns[0]) == 240 * MS
    hearing.advance(300 * MS)
    assert hearing.over_ns(turns[0]) == 240 * MS
    assert hearing.open_response(turns[0]) is None
    assert hearing.first_heard_ns(turns[0]) == 200 * MS


def test_a_second_response_of_the_turn_keeps_it_open() -> None:
    hearing, turns = listening()
    hearing.on_event(done("a"), 200 * MS)
    hearing.on_event(created("b"), 220 * MS)

    assert hearing.over_ns(turns[0]) is None
    hearing.on_event(done("b"), 300 * MS)
    assert hearing.over_ns(turns[0]) == 300 * MS


def test_a_response_withdrawn_before_its_first_sample_is_no_answer() -> None:
    hearing, turns = listening()
    hearing.on_event(created("a"), 200 * MS)
    hearing.on_event(done("a", "cancelled"), 210 * MS)

    assert hearing.over_ns(turns[0]) is None
    assert hearing.progress_ns(turns[0]) == 100 * MS


def test_progress_is_the_last_sign_of_life() -> None:
    hearing, turns = listening()
    hearing.on_event(delta("a", ms=400), 200 * MS)

    assert hearing.progress_ns(turns[0]) == 600 * MS


def test_a_cancelled_response_silences_itself_alone() -> None:
    hearing, _ = listening()
    hearing.on_event(delta("a", ms=400), 200 * MS)
    hearing.on_event(delta("b", ms=400), 200 * MS)
    messages = hearing.on_event(done("a", "cancelled"), 300 * MS)

    assert messages == [wire.PlaybackAck("a", "i", 2_400)]
    assert hearing.replies[0].cut_ns == 300 * MS
    assert hearing.replies[1].cut_ns is None
    hearing.advance(700 * MS)
    assert hearing.replies[1].audio.heard_samples == 9_600


def test_a_position_is_reported_once() -> None:
    hearing, _ = listening()
    assert hearing.acknowledge(150 * MS) == []
    hearing.on_event(delta("a"), 200 * MS)
    assert hearing.acknowledge(200 * MS) == []
    assert hearing.acknowledge(210 * MS) == [wire.PlaybackAck("a", "i", 240)]
    assert hearing.acknowledge(210 * MS) == []


def test_a_stock_server_is_told_only_where_a_reply_was_cut() -> None:
    hearing, _ = listening(extended=False)
    hearing.on_event(delta("a", ms=400), 200 * MS)

    assert hearing.acknowledge(250 * MS) == []
    assert hearing.on_event(wire.SpeechStarted(item_id="x"), 305 * MS) == [wire.TruncateItem("i", 105)]
    assert not hearing.undrained()


def test_a_cut_before_the_first_sample_has_nothing_to_report() -> None:
    hearing, _ = listening()
    hearing.on_event(created("a"), 200 * MS)

    assert hearing.on_event(wire.SpeechStarted(item_id="x"), 210 * MS) == []
    assert hearing.replies[0].cut_ns == 210 * MS


def test_a_drain_of_a_response_that_was_never_done_has_no_lag_of_ours() -> None:
    hearing, _ = listening()
    hearing.on_event(created("a"), 0)
    assert hearing.undrained()
    hearing.on_event(wire.ResponseDrained(response_id="a", status="orphaned", lag_ms=3.5, released=[1]), 0)

    drain = hearing.replies[0].drain
    assert drain is not None
    assert (drain.status, drain.lag_ms, drain.lag_client_ms, drain.released) == ("orphaned", 3.5, None, [1])
    assert not hearing.undrained()


def test_hanging_up_ends_the_sound() -> None:
    hearing, _ = listening()
    hearing.on_event(delta("a", ms=400), 200 * MS)
    hearing.hang_up(300 * MS)

    assert hearing.replies[0].audio.heard_samples == 2_400
    assert hearing.replies[0].cut_ns is None


def test_the_whole_transcript_replaces_the_deltas_of_a_reply_that_was_cut() -> None:
    hearing, _ = listening()
    hearing.on_event(created("a"), 0)
    hearing.on_event(wire.TranscriptDelta(response_id="a", delta="It is five o'clock."), 0)
    hearing.on_event(wire.TranscriptDone(response_id="a", transcript="It is"), 0)

    assert hearing.replies[0].text == "It is"
