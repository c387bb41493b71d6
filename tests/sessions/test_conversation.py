"""An exchange from the caller's first sound to the empty ledger: turns, transcripts, answers, history, prompts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sessions.conversation import PROMPT_CHARACTERS_MAX, StageNames
from sessions.effects import (
    CancelStream,
    EndEpoch,
    FeedStream,
    HearFrom,
    OpenStream,
    SaveDeletion,
    SaveEpoch,
    SaveItem,
    Tell,
)
from sessions.events import (
    CallerText,
    CallerTextFailed,
    InputCommitted,
    ItemAdded,
    ItemDeleted,
    ReplyAudio,
    ReplyText,
    ResponseDrained,
    ResponseStarted,
    SpeechStarted,
    SpeechStopped,
)
from sessions.hearing import TRANSCRIPT_NS_MAX
from sessions.items import Item
from sessions.settings import ResponseSpec, SessionSettings, TurnDetection
from stages.contracts import (
    EncoderOptions,
    EndOfTurn,
    Message,
    Pause,
    PrefillOptions,
    Prompt,
    SpeechResumed,
    TalkerOptions,
    ThinkerOptions,
    VocoderOptions,
)
from tests.sessions.talk import (
    EPOCH,
    INSTRUCTIONS,
    MS,
    SYSTEM,
    WORD_SAMPLES,
    Talk,
    kinds,
    of,
    told,
    without_interruption,
)

SILENT = SessionSettings(turn_detection=TurnDetection(create_response=False))
MANUAL = SessionSettings(turn_detection=None)


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str) -> Message:
    return Message("assistant", text)


# ---- a whole exchange ------------------------------------------------------------------------------


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
        "ReplyText",
        "ResponseFinished",
        "ResponseDrained",
    ]
    assert of(talk.events, SpeechStarted) == [SpeechStarted("item_1", 1_000)]
    assert of(talk.events, SpeechStopped) == [SpeechStopped("item_1", 2_000)]
    assert of(talk.events, CallerText) == [CallerText("item_1", "hello there", final=True)]
    assert of(talk.events, ReplyText) == [ReplyText("resp_1", "item_2", "hi you", spoken=True)]
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
    talk.core.update(MANUAL)  # the gate forgets the speech
    talk.core.update(SessionSettings())
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
    talk = Talk(stages=StageNames("ears", "mind", "tongue", "throat"))
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


# ---- what is answered ------------------------------------------------------------------------------


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


# ---- turns of which nothing is known ---------------------------------------------------------------


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
            talk.do(core.tick(talk.now_ns + TRANSCRIPT_NS_MAX))
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


# ---- input that the client ends --------------------------------------------------------------------


def commit(talk: Talk, start: int = 0, end: int = 16_000) -> list[object]:
    return list(talk.do(talk.core.commit_input(start, end, talk.now_ns)))


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
    commit(talk)
    effects = talk.do(talk.core.create_response(ResponseSpec(instructions="Be brief."), talk.now_ns))
    assert told(effects, ResponseStarted)[0].previous_item == "item_1"
    assert of(effects, OpenStream) == []  # nothing to answer yet
    talk.heard("push to talk")
    talk.reply("resp_1", "I hear you")
    talk.send()
    assert talk.prompt("resp_1") == (Message("system", "Be brief."), user("push to talk"))
    assert talk.texts == [("user", "push to talk"), ("assistant", "I hear you")]


def test_a_response_that_waits_is_made_even_if_the_words_are_lost() -> None:
    talk = Talk(MANUAL)
    talk.do(talk.core.create_item(Item("typed", "user", "hello", spoken=False), None))
    commit(talk)
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    talk.do(talk.core.refused(talk.turn_tag(), "encoder", "capacity", "", talk.now_ns))
    assert talk.prompt("resp_1") == (SYSTEM, user("hello"))


def test_a_response_that_waits_can_be_cancelled_and_interrupted() -> None:
    for interrupt in (False, True):
        talk = Talk()
        commit(talk)
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
    commit(talk)
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
        commit(talk, number * 1_600, (number + 1) * 1_600)
    lost = [event.item for event in of(talk.events, CallerTextFailed)]
    assert lost == ["item_1", "item_2", "item_3", "item_4"]
    assert len(talk.core.items) == 12


# ---- prompts ---------------------------------------------------------------------------------------


def test_a_prompt_is_instructions_examples_and_all_that_was_said() -> None:
    examples = (user("what is two and two"), assistant("four"))
    talk = Talk(items=(Item("old", "user", "before", spoken=False),), examples=examples)
    talk.answered("hello", "hi you")
    talk.say("and now")
    assert talk.prompt("resp_2") == (
        SYSTEM,
        *examples,
        user("before"),
        user("hello"),
        assistant("hi you"),
        user("and now"),
    )


def test_what_was_not_understood_yet_is_not_in_the_prompt() -> None:
    talk = Talk(MANUAL)
    talk.do(talk.core.create_item(Item("typed", "user", "hello", spoken=False), None))
    commit(talk)
    talk.do(talk.core.warm_up())
    assert talk.prefilled()[-1].messages == (SYSTEM, user("hello"))


def test_the_session_and_the_response_may_ask_for_another_voice_length_and_heat() -> None:
    settings = SessionSettings(
        instructions="Be a pirate.", voice="joe", speed=1.2, max_output_tokens=50, temperature=0.7, turn_detection=None
    )
    talk = Talk(settings)
    pirate = Message("system", "Be a pirate.")
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    talk.open("resp_1")
    assert talk.options("resp_1") == {
        "thinker": ThinkerOptions((pirate,), 50, 0.7),
        "talker": TalkerOptions("joe", 1.2),
        "vocoder": VocoderOptions(),
    }
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    spec = ResponseSpec(max_output_tokens=5, temperature=0.0, messages=(), modalities=("text",))
    talk.do(talk.core.create_response(spec, talk.now_ns))
    assert talk.options("resp_2") == {"thinker": ThinkerOptions((pirate,), 5, 0.0)}


def test_a_text_only_reply_enters_the_history_as_text() -> None:
    talk = Talk(SessionSettings(modalities=("text",)))
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", "good ")
    talk.text("resp_1", "morning")
    talk.text_done("resp_1")
    talk.let_go("resp_1", ("thinker",))
    assert talk.finished("resp_1").text == "good morning"
    assert talk.core.items[-1] == Item("item_2", "assistant", "good morning", spoken=False)
    assert talk.core.speaking.undrained == 0


def test_a_text_that_overtakes_the_news_that_its_stage_is_open_is_an_answer() -> None:
    talk = Talk(SessionSettings(modalities=("text",)))
    talk.say("hello")
    talk.text("resp_1", "hi")
    talk.text_done("resp_1")
    assert talk.finished("resp_1").status == "completed"


def test_a_reply_that_reached_its_limit_is_incomplete_everywhere() -> None:
    talk = Talk(SessionSettings(max_output_tokens=2))
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", "as far")
    talk.text_done("resp_1", "max_output_tokens")
    talk.words("resp_1", "as far")
    talk.audio("resp_1", 2 * WORD_SAMPLES, final=True)
    talk.send()
    view = talk.finished("resp_1")
    assert (view.status, view.reason, view.text) == ("incomplete", "max_output_tokens", "as far")
    item = talk.core.items[-1]
    assert (item.text, item.status, item.cut) == ("as far", "incomplete", False)


def test_a_prompt_brings_along_the_newest_of_a_long_history() -> None:
    old = Item("old", "user", "o" * 20_000, spoken=False)
    empty = Item("cut", "assistant", "", spoken=True, status="incomplete", cut=True)
    talk = Talk(items=(old, empty))
    talk.say("n" * 12_000)
    assert [len(m.content) for m in talk.prompt("resp_1")[1:]] == [20_000, 12_000]
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    talk.say("!")
    assert [len(m.content) for m in talk.prompt("resp_2")[1:]] == [12_000, 1]


def test_a_turn_that_is_too_long_by_itself_loses_its_head() -> None:
    talk = Talk()
    talk.say("hello")
    talk.say("x" * PROMPT_CHARACTERS_MAX + "?")
    assert talk.prompt("resp_2")[1:] == (user("x" * (PROMPT_CHARACTERS_MAX - 1) + "?"),)


# ---- prefill ---------------------------------------------------------------------------------------


def test_the_prompt_is_read_before_anybody_speaks() -> None:
    talk = Talk(items=(Item("old", "user", "before", spoken=False),))
    effects = talk.do(talk.core.warm_up())
    assert kinds(effects) == ["OpenStream", "FeedStream"]
    assert talk.opened_at("thinker")[0].options == PrefillOptions()
    assert talk.prefilled() == [Prompt((SYSTEM, user("before")))]


def test_what_is_heard_so_far_is_read_while_the_caller_speaks() -> None:
    talk = Talk()
    talk.start()
    talk.heard("what", final=False, settled=False)
    talk.do(talk.core.speech_paused(30_000))
    talk.heard("what time", final=False)
    assert talk.prefilled() == [
        Prompt((SYSTEM,)),
        Prompt((SYSTEM, user("what"))),
        Prompt((SYSTEM, user("what time")), complete=True),
    ]


def test_a_prompt_is_complete_only_while_the_caller_is_silent() -> None:
    talk = Talk()
    talk.start()
    talk.do(talk.core.speech_paused(30_000))
    talk.do(talk.core.speech_resumed(talk.now_ns))
    talk.heard("what time", final=False)  # it was settled before the caller went on
    assert talk.prefilled()[-1] == Prompt((SYSTEM, user("what time")), complete=False)


def test_nothing_heard_is_nothing_to_read() -> None:
    talk = Talk()
    talk.start()
    assert talk.heard("", final=False) == []


def test_a_prefill_stops_before_a_response_opens() -> None:
    talk = Talk()
    talk.say("hello")
    prefill = talk.opened_at("thinker")[0].tag
    effects = [e for e in talk.effects if isinstance(e, OpenStream | CancelStream)]
    stop = effects.index(CancelStream("thinker", prefill))
    assert stop < min(effects.index(e) for e in effects if e.tag.response == "resp_1")
    assert talk.heard("more", final=False) == []  # nothing is prefilled any more


def test_each_prefill_has_a_name_of_its_own() -> None:
    talk = Talk(prepare=True)
    talk.do(talk.core.warm_up())
    talk.start()
    for _ in range(3):
        talk.do(talk.core.speech_paused(30_000))
        talk.heard("what time", final=False)
        talk.do(talk.core.speech_resumed(talk.now_ns))
    prefills = [e.tag for e in talk.opened_at("thinker") if not e.tag.response]
    assert len({tag.key for tag in prefills}) == len(prefills) == 5
    # The news that an earlier one is gone says nothing of the one that runs.
    for tag in prefills[:-1]:
        talk.do(talk.core.closed(tag, "thinker", {}, None, talk.now_ns))
    assert of(talk.do(talk.core.clear_input(talk.now_ns)), CancelStream)[-1].tag == prefills[-1]


@pytest.mark.parametrize("way", ["refused", "closed", "lost"])
def test_a_prefill_that_is_gone_is_fed_and_stopped_no_more(way: str) -> None:
    talk = Talk()
    talk.start()
    prefill = talk.opened_at("thinker")[-1].tag
    match way:
        case "refused":
            talk.do(talk.core.refused(prefill, "thinker", "busy", "", talk.now_ns))
        case "closed":
            talk.do(talk.core.closed(prefill, "thinker", {}, ("context", "full"), talk.now_ns))
        case _:
            talk.do(talk.core.stage_lost("thinker", talk.now_ns))
    assert talk.heard("what", final=False) == []
    talk.end()
    talk.heard("what time is it")
    assert prefill not in [effect.tag for effect in of(talk.effects, CancelStream)]
    assert talk.started() == ["resp_1"]


def test_the_news_of_an_old_prefill_changes_nothing() -> None:
    talk = Talk()
    talk.do(talk.core.warm_up())
    old = talk.opened_at("thinker")[-1].tag
    talk.start()
    talk.do(talk.core.closed(old, "thinker", {}, None, talk.now_ns))
    assert talk.heard("what", final=False) != []


# ---- stages that go and come back ------------------------------------------------------------------


def test_an_encoder_that_was_lost_amid_an_utterance_hears_it_again() -> None:
    talk = Talk()
    talk.start()
    tag = talk.turn_tag()
    assert talk.do(talk.core.stage_lost("encoder", talk.now_ns)) == []
    effects = talk.do(talk.core.stage_back("encoder", reborn=True, now_ns=talk.now_ns))
    assert effects == [OpenStream("encoder", tag, EncoderOptions()), HearFrom(tag, 11_200)]
    talk.end()
    talk.heard("every word of it")
    assert talk.prompt("resp_1") == (SYSTEM, user("every word of it"))


def test_an_encoder_that_was_lost_before_its_transcript_hears_the_turn_again_to_its_end() -> None:
    talk = Talk()
    talk.start()
    talk.end()
    tag = talk.turn_tag()
    talk.do(talk.core.stage_lost("encoder", talk.now_ns))
    effects = talk.do(talk.core.stage_back("encoder", reborn=True, now_ns=talk.now_ns))
    assert of(effects, HearFrom) == [HearFrom(tag, 11_200, 32_000)]
    assert of(effects, FeedStream)[0].item == EndOfTurn(32_000)
    talk.heard("every word of it")
    assert talk.started() == ["resp_1"]


@pytest.mark.parametrize("stage", ["thinker", "talker", "vocoder"])
def test_a_response_whose_stage_is_lost_fails_and_the_next_turn_is_answered(stage: str) -> None:
    talk = Talk()
    talk.say("hello")
    talk.open("resp_1")
    talk.do(talk.core.stage_lost(stage, talk.now_ns))
    assert (talk.finished("resp_1").status, talk.finished("resp_1").code) == ("failed", "stage_lost")
    assert of(talk.effects, EndEpoch) == []
    talk.let_go("resp_1", [other for other in ("thinker", "talker", "vocoder") if other != stage])
    assert talk.core.speaking.undrained == 1
    talk.do(talk.core.stage_back(stage, reborn=True, now_ns=talk.now_ns))
    assert talk.core.speaking.undrained == 0
    talk.say("hello again")
    assert talk.active == "resp_2"
    assert talk.prompt("resp_2") == (SYSTEM, user("hello"), user("hello again"))


def test_a_response_that_a_stage_refuses_fails_by_the_name_of_the_reason() -> None:
    talk = Talk()
    talk.say("hello")
    talk.do(talk.core.refused(talk.tag("resp_1"), "vocoder", "capacity", "256 streams are open", talk.now_ns))
    view = talk.finished("resp_1")
    assert (view.status, view.code, view.message) == ("failed", "capacity", "256 streams are open")
    talk.let_go("resp_1", ("talker",))
    assert talk.core.speaking.undrained == 0


def test_a_stage_that_comes_back_without_having_died_may_still_hold_what_it_had() -> None:
    talk = Talk()
    talk.say("hello")
    talk.open("resp_1")
    talk.do(talk.core.stage_lost("thinker", talk.now_ns))
    talk.let_go("resp_1", ("talker", "vocoder"))
    talk.do(talk.core.stage_back("thinker", reborn=False, now_ns=talk.now_ns))
    assert talk.core.speaking.undrained == 1


def test_livekit_livekit_4484_a_response_whose_stages_say_nothing_ends_at_its_deadline() -> None:
    talk = Talk()
    talk.say("hello")
    due_ns = talk.core.next_deadline_ns()
    assert due_ns is not None
    talk.now_ns = due_ns
    talk.do(talk.core.tick(talk.now_ns))
    assert talk.finished("resp_1").code == "deadline_exceeded"
    talk.say("are you there")
    assert talk.active == "resp_2"


def test_nothing_is_due_where_nothing_happens() -> None:
    talk = Talk()
    assert talk.core.next_deadline_ns() is None
    assert talk.core.tick(talk.now_ns) == []
    assert talk.core.take_due(talk.now_ns) == []
    assert talk.core.settings == SessionSettings()


def test_openai_agents_python_3776_no_time_is_taken_from_a_clock_on_the_wall() -> None:
    talk = Talk()
    talk.now_ns = 5 * MS  # a machine that has just been started
    talk.answered("hello", "hi you")
    assert talk.core.items[-1].audio_samples == 2 * WORD_SAMPLES


def test_the_instructions_of_the_service_open_every_prompt_where_nobody_says_otherwise() -> None:
    talk = Talk()
    talk.say("hello")
    assert talk.prompt("resp_1")[0] == Message("system", INSTRUCTIONS)
    assert of(talk.effects, SaveEpoch) == []
    assert told(talk.effects, ItemAdded)[0] == ItemAdded(Item("item_1", "user", "", spoken=True), None)
