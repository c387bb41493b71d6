"""Turns that their client commits: what was said by then is all in them, and nobody waits for their end."""

from __future__ import annotations

import pytest

from sessions.effects import CancelStream, FeedStream, HearFrom, OpenStream, ResetGate, StopHearing
from sessions.events import CallerTextFailed, CommandRefused, InputCommitted, SpeechStarted, SpeechStopped, TurnHeld
from sessions.settings import ResponseSpec, SessionSettings, TurnDetection
from stages.contracts import EncoderOptions, EndOfTurn, SpeechResumed
from tests.sessions.talk import Talk, kinds, of, told, user

MANUAL = SessionSettings(turn_detection=None)
SILENT = SessionSettings(turn_detection=TurnDetection(create_response=False))


def buffered(talk: Talk, end: int, start: int = 0) -> list[str]:
    """Sound has come up to `end`."""
    return kinds(talk.do(talk.core.buffered(start, end)))


def ask(talk: Talk) -> None:
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))


def test_what_is_pushed_is_heard_from_its_beginning_before_it_is_committed() -> None:
    talk = Talk(MANUAL)
    assert buffered(talk, 512) == ["OpenStream", "HearFrom"]
    for seconds in range(1, 60):
        assert buffered(talk, seconds * 16_000) == []
    tag = talk.turn_tag()
    assert talk.opened_at("encoder")[0].options == EncoderOptions(partials=False)
    assert of(talk.effects, HearFrom) == [HearFrom(tag, 0)]
    effects = talk.commit(900_000, 960_100)
    assert told(effects, InputCommitted) == [InputCommitted("item_1", None)]
    assert FeedStream("encoder", tag, EndOfTurn(960_100)) in effects
    talk.heard("all of it")
    assert (talk.texts, talk.started()) == ([("user", "all of it")], [])
    ask(talk)
    assert talk.prompt("resp_1")[-1] == user("all of it")


def test_a_response_waits_for_nothing_that_is_only_buffered() -> None:
    talk = Talk(MANUAL)
    buffered(talk, 512)
    ask(talk)
    assert talk.started() == ["resp_1"]


def test_what_is_cleared_leaves_no_trace() -> None:
    talk = Talk(MANUAL)
    buffered(talk, 512)
    tag = talk.turn_tag()
    effects = talk.do(talk.core.clear_input(talk.now_ns))
    assert effects[:2] == [StopHearing(tag), CancelStream("encoder", tag)]
    assert talk.core.items == ()
    assert [refused.code for refused in told(talk.commit(512, 512), CommandRefused)] == [
        "input_audio_buffer_commit_empty"
    ]
    assert buffered(talk, 1_024, start=512) == ["OpenStream", "HearFrom"]


def test_words_that_were_lost_before_the_commit_are_told_of_at_the_commit() -> None:
    talk = Talk(MANUAL)
    buffered(talk, 512)
    talk.do(talk.core.lost(talk.turn_tag(), "encoder", talk.now_ns, 1))
    assert told(talk.effects, CallerTextFailed) == []
    assert [failed.code for failed in told(talk.commit(0, 1_024), CallerTextFailed)] == ["input_lost"]


def test_a_call_that_ends_throws_it_away() -> None:
    talk = Talk(MANUAL)
    buffered(talk, 512)
    assert CancelStream("encoder", talk.turn_tag()) in talk.do(talk.core.close(talk.now_ns))


# ---- detection is switched off amid speech -------------------------------------------------------------


@pytest.mark.parametrize("paused", [True, False])
def test_what_was_being_said_waits_for_the_commit_and_keeps_nobody_waiting(paused: bool) -> None:
    talk = Talk()
    talk.start()
    tag = talk.turn_tag()
    if paused:
        talk.do(talk.core.speech_paused(20_000))
    ask(talk)
    assert talk.started() == (["resp_1"] if paused else [])
    effects = talk.update(MANUAL)
    assert talk.started() == ["resp_1"]
    assert told(effects, SpeechStopped) == []
    assert [effect.item for effect in of(effects, FeedStream) if effect.tag == tag] == [SpeechResumed()] * paused
    assert buffered(talk, 40_000) == [], "the same turn goes on"
    talk.reply("resp_1", "one")
    talk.send()
    talk.let_go("resp_1")
    effects = talk.commit(0, 64_000)
    assert [event.item for event in told(effects, SpeechStopped)] == ["item_1"]
    assert [event.item for event in told(effects, InputCommitted)] == ["item_1"]
    talk.heard("all of it", tag)
    assert talk.started() == ["resp_1"], "its client asks"


def test_speech_over_our_own_is_set_aside_as_well() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "one two three")
    assert told(talk.do(talk.core.held(48_000, talk.now_ns)), TurnHeld)
    tag = talk.turn_tag()
    talk.update(MANUAL)
    assert talk.core.dropped(talk.now_ns) == []
    effects = talk.commit(0, 64_000)
    assert FeedStream("encoder", tag, EndOfTurn(64_000)) in effects
    assert told(talk.effects, SpeechStarted)[1:] == []


def test_an_answer_that_was_prepared_for_it_is_withdrawn() -> None:
    talk = Talk(prepare=True)
    talk.start()
    talk.do(talk.core.speech_paused(20_000))
    talk.heard("hello", final=False)
    assert talk.core.speaking.prepared is not None
    talk.update(MANUAL)
    assert talk.core.speaking.prepared is None


# ---- and on again ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "answers"), [(SessionSettings(), ["resp_1"]), (SILENT, [])])
def test_a_turn_that_had_begun_is_over_when_speech_is_detected_again(
    settings: SessionSettings, answers: list[str]
) -> None:
    talk = Talk()
    talk.start()
    tag = talk.turn_tag()
    talk.update(MANUAL)
    effects = talk.update(settings, 48_000)
    assert kinds(effects)[:3] == ["ResetGate", "StopHearing", "FeedStream"]
    assert FeedStream("encoder", tag, EndOfTurn(48_000)) in effects
    assert [type(event) for event in talk.events[-3:-1]] == [SpeechStopped, InputCommitted]
    talk.heard("all of it", tag)
    assert talk.started() == answers


def test_what_nobody_had_said_to_be_speech_is_dropped() -> None:
    talk = Talk(MANUAL)
    buffered(talk, 512)
    tag = talk.turn_tag()
    assert talk.update(SessionSettings()) == [StopHearing(tag), CancelStream("encoder", tag), ResetGate()]
    assert len(of(talk.start(), OpenStream)) == 2, "the encoder, and a prefill"


def test_where_nothing_is_buffered_nothing_ends() -> None:
    talk = Talk(MANUAL)
    assert talk.update(SessionSettings()) == [ResetGate()]
    assert talk.update(SILENT) == []
    talk.start()
    assert talk.update(SessionSettings()) == [], "another detection goes on with the turn"
    assert talk.core.hearing.current is not None
