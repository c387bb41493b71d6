"""An exchange from the caller's first sound to the empty ledger: turns, transcripts, answers, history."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sessions.effects import EndEpoch, FeedStream, HearFrom, OpenStream, SaveDeletion, SaveItem, Tell
from sessions.events import (
    CallerText,
    CallerTextFailed,
    InputCommitted,
    ItemDeleted,
    MessageStarted,
    ReplyAudio,
    ReplyText,
    ReplyWords,
    ResponseDrained,
    SpeechStarted,
    SpeechStopped,
)
from sessions.hearing import TRANSCRIPT_NS_MAX
from sessions.items import Item
from sessions.reply import SpokenWord
from sessions.route import line
from sessions.settings import Modality, ResponseSpec, SessionSettings, TurnDetection
from stages.contracts import EndOfTurn, Message, Pause, SpeechResumed, TalkerOptions
from tests.sessions.talk import (
    EPOCH,
    SYSTEM,
    WORD_SAMPLES,
    Talk,
    assistant,
    kinds,
    of,
    told,
    user,
    without_interruption,
)

SILENT = SessionSettings(turn_detection=TurnDetection(create_response=False))
MANUAL = SessionSettings(turn_detection=None)


# ---- a whole exchange -----------------------------------------------------------------------------


def test_an_exchange_as_the_client_sees_it() -> None:
    talk = Talk()
    talk.answered("hello there", "hi you")
    assert kinds([Tell(event) for event in talk.events if not isinstance(event, ReplyAudio)]) == [
        "SpeechStarted",
        "SpeechStopped",
        "InputCommitted",
        "ItemAdded",
        "CallerText",
        "ResponseStarted",
        "MessageStarted",
        "ReplyText",
        "ReplyWords",
        "ResponseFinished",
        "ResponseDrained",
    ]
    assert of(talk.events, SpeechStarted) == [SpeechStarted("item_1", 1_000)]
    assert of(talk.events, SpeechStopped) == [SpeechStopped("item_1", 2_000)]
    assert of(talk.events, CallerText) == [CallerText("item_1", "hello there", final=True)]
    assert of(talk.events, ReplyText) == [ReplyText("resp_1", "item_2", "hi you", spoken=True)]
    words = (SpokenWord("hi", 0, WORD_SAMPLES), SpokenWord("you", WORD_SAMPLES, 2 * WORD_SAMPLES))
    assert of(talk.events, ReplyWords) == [ReplyWords("resp_1", "item_2", words)]
    assert talk.finished("resp_1").status == "completed"
    assert talk.core.speaking.undrained == 0


def test_pipecat_1591_a_whole_reply_enters_the_history_once() -> None:
    talk = Talk()
    talk.answered("hello there", "hi you")
    caller = Item("item_1", "user", "hello there", spoken=True)
    reply = Item("item_2", "assistant", "hi you", spoken=True, audio_samples=2 * WORD_SAMPLES)
    assert talk.core.items == (caller, reply)
    assert of(talk.effects, SaveItem) == [
        SaveItem(replace(caller, text=""), None),
        SaveItem(caller, None),
        SaveItem(reply, "item_1"),
    ]


def test_the_caller_is_heard_from_before_the_onset() -> None:
    talk = Talk(SessionSettings(turn_detection=TurnDetection(prefix_padding_ms=300)))
    assert of(talk.start(16_000), HearFrom)[0].sample == 16_000 - 4_800
    talk.end()
    assert of(talk.start(4_000), HearFrom)[0].sample == 0  # there is nothing before the first sample


def test_a_pause_and_its_end_are_told_to_the_encoder() -> None:
    talk = Talk()
    talk.start()
    assert of(talk.do(talk.core.speech_paused(20_000)), FeedStream)[0].item == Pause(20_000)
    assert of(talk.do(talk.core.speech_resumed(talk.now_ns)), FeedStream)[0].item == SpeechResumed()
    assert of(talk.end(30_000), FeedStream)[0].item == EndOfTurn(30_000)


def test_what_the_gate_says_of_no_turn_changes_nothing() -> None:
    talk = Talk()
    assert talk.core.speech_paused(0) == []
    assert talk.core.speech_resumed(0) == []
    assert talk.core.speech_ended(0, 0, 0) == []
    talk.start()
    assert talk.core.speech_started(0, 0) == []  # it is being spoken already
    assert talk.core.speech_resumed(0) == []  # it did not pause


def test_without_turn_detection_speech_opens_no_turn() -> None:
    assert Talk(MANUAL).start() == []


def test_speech_that_is_noticed_anew_goes_on_with_the_turn_that_had_paused() -> None:
    talk = Talk()
    talk.start()
    talk.do(talk.core.speech_paused(20_000))
    assert of(talk.start(40_000), FeedStream)[0].item == SpeechResumed()
    talk.do(talk.core.speech_paused(50_000))
    talk.end(50_000)
    talk.heard("all of it")
    assert talk.started() == ["resp_1"]


def test_a_response_is_tagged_with_its_turn_and_epoch() -> None:
    talk = Talk()
    talk.say("hello")
    tag = talk.tag("resp_1")
    assert (tag.session, tag.epoch, tag.response) == ("sess", EPOCH, "resp_1")
    assert tag.turn == talk.turn_tag().turn


def test_the_stages_may_have_other_names() -> None:
    talk = Talk(route=line("ears", "mind", "tongue", "throat"))
    talk.start()
    talk.end()
    assert of(talk.effects, FeedStream)[-1].stage == "ears"
    talk.heard("hello", of(talk.effects, OpenStream)[0].tag)
    for stage in ("throat", "tongue"):
        talk.do(talk.core.opened(talk.tag("resp_1"), stage, talk.now_ns))
    assert [effect.stage for effect in of(talk.effects, OpenStream)] == ["ears", "mind", "tongue", "throat", "mind"]


def test_a_stage_that_opens_input_work_needs_no_answer() -> None:
    talk = Talk()
    talk.start()
    assert talk.core.opened(talk.turn_tag(), "encoder", talk.now_ns) == []


# ---- what is answered -----------------------------------------------------------------------------


def test_a_turn_is_only_answered_where_that_is_asked_for() -> None:
    talk = Talk(SILENT)
    talk.say("hello")
    assert talk.started() == []
    assert talk.texts == [("user", "hello")]
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    assert talk.prompt("resp_1") == (SYSTEM, user("hello"))


def test_nothing_is_answered_while_the_caller_speaks_on() -> None:
    talk = Talk()
    talk.start()
    talk.end()
    first = talk.turn_tag()
    talk.start(48_000)
    talk.heard("one moment", first)
    assert talk.started() == []
    talk.end(64_000)
    talk.heard("what time is it")
    assert talk.started() == ["resp_1"]
    assert talk.prompt("resp_1") == (SYSTEM, user("one moment"), user("what time is it"))


def test_nothing_is_answered_while_another_turn_is_still_being_understood() -> None:
    talk = Talk()
    talk.start()
    talk.end()
    first = talk.turn_tag()
    talk.start(48_000)
    talk.end(64_000)
    talk.heard("second")
    assert talk.started() == []
    talk.heard("first", first)
    assert talk.prompt("resp_1") == (SYSTEM, user("first"), user("second"))


def test_livekit_agents_4395_a_late_transcript_interrupts_nobody() -> None:
    talk = Talk()
    talk.start()
    talk.end()
    late = talk.turn_tag()
    talk.do(talk.core.create_response(ResponseSpec(messages=(("user", "greet the caller"),)), talk.now_ns))
    talk.reply("resp_1", "good morning")
    effects = talk.heard("hello", late)
    assert told(effects, CallerText) != []
    assert of(effects, EndEpoch) == []
    assert talk.active == "resp_1"


def test_a_turn_that_was_understood_while_we_spoke_is_answered_once_we_are_done() -> None:
    talk = Talk(without_interruption())
    talk.say("tell me a story")
    talk.reply("resp_1", "once upon a time")
    talk.say("a short one")
    assert of(talk.effects, EndEpoch) == []
    assert talk.active == "resp_1"
    talk.send()
    assert talk.finished("resp_1").status == "completed"
    assert talk.active == "resp_2"
    # What was said over the reply stands after it.
    assert talk.texts == [("user", "tell me a story"), ("assistant", "once upon a time"), ("user", "a short one")]
    assert talk.prompt("resp_2")[1:] == (user("tell me a story"), assistant("once upon a time"), user("a short one"))
    assert talk.core.epoch == EPOCH


# ---- turns of which nothing is known --------------------------------------------------------------


def test_a_cough_leaves_no_trace() -> None:
    talk = Talk()
    effects = talk.say("")
    assert told(effects, ItemDeleted) == [ItemDeleted("item_1")]
    assert of(effects, SaveDeletion) == [SaveDeletion("item_1")]
    assert talk.texts == []
    assert talk.started() == []


def test_livekit_agents_1229_a_cough_over_a_pending_reply_has_it_given_again() -> None:
    talk = Talk()
    talk.say("hello")
    talk.open("resp_1")
    talk.start(48_000)
    assert talk.finished("resp_1").reason == "turn_detected"
    talk.end(52_000)
    talk.heard("")
    assert talk.started() == ["resp_1", "resp_2"]
    assert talk.prompt("resp_2") == (SYSTEM, user("hello"))


def test_a_cough_over_a_reply_of_which_only_half_a_word_was_heard_has_it_given_again() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "good morning")
    talk.send(3)
    talk.say("")
    assert talk.prompt("resp_2") == (SYSTEM, user("hello"))
    assert talk.core.items[1] == replace(
        talk.core.items[1], role="assistant", text="", status="incomplete", audio_samples=3 * 480, cut=True
    )


def test_a_cough_over_a_reply_that_was_partly_heard_is_no_question() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "good morning")
    talk.send(10)
    talk.say("")
    assert talk.started() == ["resp_1"]


def test_a_lost_transcript_has_the_reply_that_it_cut_short_given_again() -> None:
    talk = Talk()
    talk.say("hello")
    talk.start(48_000)
    talk.end(64_000)
    failed = talk.do(talk.core.closed(talk.turn_tag(), "encoder", {}, ("oom", "no memory"), talk.now_ns))
    assert told(failed, CallerTextFailed) == [CallerTextFailed("item_3", "oom", "no memory")]
    assert talk.started() == ["resp_1", "resp_2"]
    assert talk.prompt("resp_2") == (SYSTEM, user("hello"))


@pytest.mark.parametrize("way", ["closed", "refused", "timeout"])
def test_the_turn_before_a_lost_one_is_answered(way: str) -> None:
    talk = Talk()
    talk.start()
    talk.end()
    first = talk.turn_tag()
    talk.start(48_000)
    talk.heard("what time is it", first)
    talk.end(64_000)
    core, lost = talk.core, talk.turn_tag()
    match way:
        case "closed":
            talk.do(core.closed(lost, "encoder", {}, ("oom", ""), talk.now_ns))
        case "refused":
            talk.do(core.refused(lost, "encoder", "capacity", "", talk.now_ns))
        case _:
            assert core.next_deadline_ns() == talk.now_ns + TRANSCRIPT_NS_MAX
            talk.do(core.tick(talk.now_ns + TRANSCRIPT_NS_MAX, 0))
    assert talk.started() == ["resp_1"]
    assert talk.prompt("resp_1") == (SYSTEM, user("what time is it"))


def test_a_lost_turn_of_which_no_answer_is_wanted_is_not_answered_for() -> None:
    talk = Talk(SILENT)
    talk.say("hello")
    talk.start(48_000)
    talk.end(64_000)
    talk.do(talk.core.refused(talk.turn_tag(), "encoder", "capacity", "", talk.now_ns))
    assert talk.started() == []


def test_a_turn_that_is_lost_while_it_is_spoken_still_begins_and_ends() -> None:
    talk = Talk()
    talk.start()
    lost = talk.turn_tag()
    assert told(talk.do(talk.core.closed(lost, "encoder", {}, ("oom", ""), talk.now_ns)), CallerTextFailed) == []
    assert talk.core.hearing.current is not None
    effects = talk.end()
    assert kinds([effect for effect in effects if isinstance(effect, Tell)]) == [
        "SpeechStopped",
        "InputCommitted",
        "ItemAdded",
        "CallerTextFailed",
    ]
    talk.say("can you hear me")
    assert talk.prompt("resp_1") == (SYSTEM, user("can you hear me"))


def test_a_stream_that_has_closed_by_itself_is_still_awaited() -> None:
    talk = Talk()
    talk.start()
    talk.end()
    assert talk.core.closed(talk.turn_tag(), "encoder", {}, None, talk.now_ns) == []  # its last text is on its way
    talk.heard("hello")
    assert talk.started() == ["resp_1"]


# ---- input that the client ends -------------------------------------------------------------------


def test_a_commit_without_turn_detection_is_a_turn_that_nobody_answers_by_itself() -> None:
    talk = Talk(MANUAL)
    effects = talk.do(talk.core.commit_input(8_000, 24_000, talk.now_ns))
    assert kinds(effects) == [
        "OpenStream",
        "HearFrom",
        "ResetGate",
        "StopHearing",
        "FeedStream",
        "InputCommitted",
        "ItemAdded",
        "SaveItem",
    ]
    assert of(effects, HearFrom)[0].sample == 8_000
    assert of(effects, FeedStream)[0].item == EndOfTurn(24_000)
    assert told(effects, InputCommitted) == [InputCommitted("item_1", None)]
    talk.heard("push to talk")
    assert talk.started() == []


def test_a_response_that_is_asked_for_right_after_a_commit_answers_what_was_committed() -> None:
    talk = Talk(MANUAL)
    talk.commit()
    effects = talk.do(talk.core.create_response(ResponseSpec(instructions="Be brief."), talk.now_ns))
    assert told(effects, MessageStarted)[0].previous == "item_1"
    assert of(effects, OpenStream) == []  # nothing to answer yet
    talk.heard("push to talk")
    talk.reply("resp_1", "I hear you")
    talk.send()
    assert talk.prompt("resp_1") == (Message("system", "Be brief."), user("push to talk"))
    assert talk.texts == [("user", "push to talk"), ("assistant", "I hear you")]


@pytest.mark.parametrize("modality", ["audio", "text"])
def test_settings_that_change_while_a_response_waits_are_for_the_next_one(modality: Modality) -> None:
    before = SessionSettings(turn_detection=None, instructions="Be a pirate.", voice="joe", modalities=(modality,))
    talk = Talk(before)
    talk.commit()
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    talk.update(SessionSettings(modalities=("text",) if modality == "audio" else ("audio",)))
    talk.heard("push to talk")
    assert talk.prompt("resp_1") == (Message("system", "Be a pirate."), user("push to talk"))
    assert talk.options("resp_1").get("talker") == (TalkerOptions("joe") if modality == "audio" else None)


def test_a_response_that_waits_is_made_even_if_the_words_are_lost() -> None:
    talk = Talk(MANUAL)
    talk.do(talk.core.create_item(Item("typed", "user", "hello", spoken=False), None))
    talk.commit()
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    talk.do(talk.core.refused(talk.turn_tag(), "encoder", "capacity", "", talk.now_ns))
    assert talk.prompt("resp_1") == (SYSTEM, user("hello"))


def test_a_response_that_waits_can_be_cancelled_and_interrupted() -> None:
    for interrupt in (False, True):
        talk = Talk()
        talk.commit()
        talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
        if interrupt:
            talk.start(48_000)
            talk.end(64_000)
        else:
            talk.do(talk.core.cancel_response(None, talk.now_ns))
        assert talk.finished("resp_1").status == "cancelled"
        assert of(talk.events, ResponseDrained)[0].response == "resp_1"
        assert talk.opened_at("talker") == []


def test_a_response_with_input_of_its_own_waits_for_nobody() -> None:
    talk = Talk(MANUAL)
    talk.commit()
    spec = ResponseSpec(messages=(("user", "say hi"),), in_conversation=False)
    talk.do(talk.core.create_response(spec, talk.now_ns))
    talk.open("resp_1")
    assert talk.prompt("resp_1") == (SYSTEM, user("say hi"))


def test_speech_that_is_committed_before_it_has_ended_ends() -> None:
    talk = Talk()
    talk.start()
    effects = talk.do(talk.core.commit_input(0, 24_000, talk.now_ns))
    assert told(effects, SpeechStopped) == [SpeechStopped("item_1", 1_500)]
    assert of(effects, FeedStream)[0].item == EndOfTurn(24_000)
    talk.heard("half a sen")
    assert talk.started() == []  # the client has taken the turn into its own hands


def test_turns_can_be_committed_faster_than_they_are_heard() -> None:
    talk = Talk(MANUAL)
    for number in range(12):
        talk.commit(number * 1_600, (number + 1) * 1_600)
    lost = [event.item for event in of(talk.events, CallerTextFailed)]
    assert lost == ["item_1", "item_2", "item_3", "item_4"]
    assert len(talk.core.items) == 12
