"""Tools through the conversation: who is told of them, what a call is to the history, to prompts, to silence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sessions.effects import SaveItem
from sessions.events import (
    CallerIdle,
    CallFinished,
    CallStarted,
    CommandRefused,
    ItemAdded,
    ResponseStarted,
)
from sessions.items import Item
from sessions.prompt import PENDING
from sessions.settings import ResponseSpec, SessionSettings, TurnDetection
from sessions.tool_calls import call_item
from stages.contracts import CallDelta, CallDone, Message, Tag, ThinkerOptions, Tool, ToolCall, ToolChoice
from tests.sessions.talk import CITY, SYSTEM, WEATHER, Talk, kinds, of, told, user, with_tools

CALL = "call_0_resp_1"
LOOKED = (ToolCall(CALL, "get_weather", CITY),)


def asked(*, prepare: bool = False) -> Talk:
    talk = Talk(with_tools(), prepare=prepare)
    talk.say("hello")
    return talk


def thinker(talk: Talk, response: str) -> ThinkerOptions:
    talk.open(response)
    options = talk.options(response)["thinker"]
    assert isinstance(options, ThinkerOptions)
    return options


def history(talk: Talk) -> list[str]:
    return [item.id for item in talk.core.items]


# ---- who is told ------------------------------------------------------------------------------------


def test_the_model_is_told_of_tools_and_reads_of_them_ahead() -> None:
    talk = asked()
    assert (thinker(talk, "resp_1").tools, thinker(talk, "resp_1").tool_choice) == ((WEATHER,), ToolChoice())
    assert {prompt.tools for prompt in talk.prefilled()} == {(WEATHER,)}


def test_a_response_says_first_which_tools_there_are() -> None:
    talk = asked()
    talk.only_calls("resp_1")
    other = Tool("look")
    spec = ResponseSpec(tools=(other,), tool_choice=ToolChoice("required", "look"))
    talk.do(talk.core.create_response(spec, talk.now_ns))
    assert (thinker(talk, "resp_2").tools, thinker(talk, "resp_2").tool_choice) == ((other,), spec.tool_choice)


# ---- a reply of a call alone --------------------------------------------------------------------------


def test_a_call_alone_is_a_reply() -> None:
    talk = asked()
    talk.only_calls("resp_1")
    end = talk.finished("resp_1")
    assert (end.status, end.text, [call.text for call in end.calls]) == ("completed", "", [CITY])
    assert history(talk) == ["item_1", "item_2_call_0"], "nothing was said"
    assert talk.texts[-1] == ("assistant", CITY)
    (started,) = of(talk.events, CallStarted)
    assert started.previous == "item_1"
    kept = [save.item.id for save in of(talk.effects, SaveItem)]
    assert kept.count("item_2_call_0") == 1
    told_of = [type(event) for event in talk.events]
    assert told_of.index(CallFinished) > told_of.index(CallStarted)


def test_an_answer_to_several_calls() -> None:
    talk = asked()
    talk.only_calls("resp_1", calls=2)
    talk.answer("call_1_resp_1", "two")
    talk.answer(CALL, "one")
    assert history(talk) == ["item_1", "item_2_call_0", "item_2_call_1", f"output_{CALL}", "output_call_1_resp_1"]
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    assert talk.prompt("resp_2") == (
        SYSTEM,
        user("hello"),
        Message("assistant", "", calls=(*LOOKED, ToolCall("call_1_resp_1", "get_weather", CITY))),
        Message("tool", "one", call_id=CALL),
        Message("tool", "two", call_id="call_1_resp_1"),
    )


def test_words_come_before_their_call_wherever_they_end() -> None:
    talk = asked()
    talk.open("resp_1")
    talk.text("resp_1", "let me look")
    talk.called("resp_1")
    (started,) = of(talk.events, CallStarted)
    assert started.previous == "item_2"
    assert history(talk) == ["item_1", "item_2_call_0"]
    talk.text_done("resp_1")
    assert talk.prefilled()[-1].messages[-2] == Message("assistant", "let me look", calls=LOOKED)
    talk.words("resp_1", "let me look")
    talk.audio("resp_1", 14_400, final=True)
    talk.send()
    assert history(talk) == ["item_1", "item_2", "item_2_call_0"]
    talk.answer(CALL, "sunny")
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    assert talk.prompt("resp_2")[-2:] == (
        Message("assistant", "let me look", calls=LOOKED),
        Message("tool", "sunny", call_id=CALL),
    )


def test_what_the_caller_said_meanwhile_comes_after_the_call() -> None:
    talk = Talk(with_tools(interrupt_response=False))
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", "let me look")
    talk.say("please")
    talk.called("resp_1")
    assert history(talk) == ["item_1", "item_2_call_0", "item_3"]


def test_a_call_whose_question_was_deleted_comes_first() -> None:
    talk = asked()
    talk.open("resp_1")
    talk.do(talk.core.delete_item("item_1"))
    talk.called("resp_1")
    assert history(talk) == ["item_2_call_0"]


def test_a_call_of_a_response_out_of_band_joins_no_history() -> None:
    talk = Talk(with_tools())
    talk.do(talk.core.create_response(ResponseSpec(in_conversation=False), talk.now_ns))
    talk.only_calls("resp_1")
    assert len(talk.finished("resp_1").calls) == 1
    assert talk.core.items == ()
    assert told(talk.answer(CALL, "sunny"), CommandRefused)[0].code == "invalid_tool_call_id"


# ---- faults ------------------------------------------------------------------------------------------


def test_a_stage_that_contradicts_itself_fails_the_response() -> None:
    talk = asked()
    talk.open("resp_1")
    talk.publish("resp_1", CallDone(0, CITY))
    assert (talk.finished("resp_1").status, talk.finished("resp_1").code) == ("failed", "invalid_call")


def test_a_call_that_runs_into_the_limit_was_never_made() -> None:
    talk = asked()
    talk.open("resp_1")
    talk.calling("resp_1", '{"city":')
    talk.text_done("resp_1", "max_output_tokens")
    talk.audio("resp_1", 0, final=True)
    talk.send()
    end = talk.finished("resp_1")
    assert (end.status, [call.status for call in end.calls]) == ("incomplete", ["incomplete"])
    assert talk.core.items[-1].status == "incomplete"


def test_a_reply_whose_call_has_begun_is_not_made_anew() -> None:
    talk = asked()
    talk.open("resp_1")
    talk.calling("resp_1")
    talk.do(talk.core.lost(talk.tag("resp_1"), "thinker", talk.now_ns))
    assert talk.finished("resp_1").code == "stage_lost"


def test_a_call_of_an_attempt_that_was_given_up_is_none() -> None:
    talk = asked()
    talk.open("resp_1")
    talk.do(talk.core.lost(talk.tag("resp_1"), "thinker", talk.now_ns))
    first = Tag("sess", talk.core.epoch, talk.tag("resp_1").turn, "resp_1")
    assert talk.do(talk.core.published(first, CallDelta(0, "get_weather"), talk.now_ns)) == []
    talk.only_calls("resp_1")
    assert talk.finished("resp_1").status == "completed"


# ---- what the client brings ----------------------------------------------------------------------------


def test_an_output_is_told_where_it_stands_and_saved() -> None:
    talk = asked()
    talk.only_calls("resp_1")
    effects = talk.answer(CALL, "sunny")
    assert kinds(effects) == ["ItemAdded", "SaveItem"]
    (added,) = told(effects, ItemAdded)
    assert (added.item.text, added.item.call_id, added.previous) == ("sunny", CALL, "item_2_call_0")


@pytest.mark.parametrize(
    ("call_id", "code"), [("call_never", "invalid_tool_call_id"), (CALL, "tool_call_already_answered")]
)
def test_an_output_that_nothing_waits_for_is_refused(call_id: str, code: str) -> None:
    talk = asked()
    talk.only_calls("resp_1")
    talk.answer(CALL, "sunny")
    before = talk.core.items
    (refused,) = told(talk.answer(call_id, "rainy"), CommandRefused)
    assert (refused.code, refused.param) == (code, "item.call_id")
    assert talk.core.items == before


def test_a_client_may_bring_calls_of_another_conversation() -> None:
    talk = Talk(with_tools())
    old = call_item("old", "call_old", "look", "{}")
    talk.do(talk.core.create_item(old, None))
    (refused,) = told(talk.do(talk.core.create_item(replace(old, id="again"), None)), CommandRefused)
    assert (refused.code, refused.param) == ("tool_call_id_exists", "item.call_id")
    talk.answer("call_old", "it")
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    assert talk.prompt("resp_1")[1:] == (
        Message("assistant", "", calls=(ToolCall("call_old", "look", "{}"),)),
        Message("tool", "it", call_id="call_old"),
    )


def test_a_call_that_was_deleted_is_answered_by_nobody() -> None:
    talk = asked()
    talk.only_calls("resp_1")
    talk.do(talk.core.delete_item("item_2_call_0"))
    assert told(talk.answer(CALL, "sunny"), CommandRefused)[0].code == "invalid_tool_call_id"
    assert talk.core.items[-1].id == "item_1"


def test_what_was_stored_can_be_answered() -> None:
    items = (Item("asked", "user", "hello", True), call_item("old", CALL, "get_weather", CITY))
    talk = Talk(with_tools(), items=items)
    assert told(talk.answer(CALL, "sunny"), CommandRefused) == []
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    assert talk.prompt("resp_1")[-1] == Message("tool", "sunny", call_id=CALL)


# ---- a tool that is quicker than the words before its call ------------------------------------------------


SPEC = ResponseSpec(instructions="Be quick.")


def asked_while_words_are_said(settings: SessionSettings | None = None) -> Talk:
    talk = Talk(settings or with_tools(), recalls=True, lead_ms=200)
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", "let me look")
    talk.called("resp_1")
    talk.text_done("resp_1")
    talk.words("resp_1", "let me look")
    talk.audio("resp_1", 14_400, final=True)
    talk.send()
    assert talk.do(talk.core.create_response(SPEC, talk.now_ns)) == [], "not while it speaks"
    return talk


def said_to_its_end(talk: Talk) -> None:
    while talk.core.speaking.active and talk.active == "resp_1":
        talk.later(20)
        talk.send()


def test_what_is_asked_for_then_begins_when_the_words_are_said() -> None:
    talk = asked_while_words_are_said()
    talk.answer(CALL, "sunny")
    said_to_its_end(talk)
    told_of = [type(event).__name__ for event in talk.events]
    assert told_of.index("ResponseFinished") < len(told_of) - 1 - told_of[::-1].index("ResponseStarted")
    assert talk.started() == ["resp_1", "resp_2"]
    assert talk.prompt("resp_2")[0] == Message("system", "Be quick.")
    assert talk.prompt("resp_2")[-1] == Message("tool", "sunny", call_id=CALL)


def test_it_begins_though_its_result_is_not_there_yet() -> None:
    talk = asked_while_words_are_said()
    said_to_its_end(talk)
    assert talk.prompt("resp_2")[-1] == Message("tool", PENDING, call_id=CALL)


def test_another_is_refused_until_then() -> None:
    talk = asked_while_words_are_said()
    (refused,) = told(talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns)), CommandRefused)
    assert refused.code == "conversation_already_has_active_response"


def test_a_response_without_a_call_takes_no_other_behind_it() -> None:
    talk = asked()
    talk.open("resp_1")
    talk.calling("resp_1")
    (refused,) = told(talk.do(talk.core.create_response(SPEC, talk.now_ns)), CommandRefused)
    assert refused.code == "conversation_already_has_active_response"


@pytest.mark.parametrize(("words", "instructions"), [("and tomorrow?", "Be kind."), ("", "Be quick.")])
def test_who_interrupts_the_words_is_answered_once(words: str, instructions: str) -> None:
    """With the result, if it is there; after a cough, as the client has asked."""
    talk = asked_while_words_are_said()
    talk.start(48_000)
    assert talk.started() == ["resp_1"], "nobody talks over the caller"
    talk.end(64_000)
    talk.heard(words)
    assert talk.started() == ["resp_1", "resp_2"]
    assert talk.prompt("resp_2")[0].content == instructions
    assert (talk.prompt("resp_2")[-1] == user(words)) == bool(words)


def test_who_stops_the_words_wants_no_other_in_their_place() -> None:
    talk = asked_while_words_are_said()
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    assert talk.finished("resp_2").reason == "client_cancelled"
    talk.later(10_000)
    assert told(talk.do(talk.core.tick(talk.now_ns, 0)), ResponseStarted) == []


# ---- prepared replies --------------------------------------------------------------------------------------


def prepared() -> Talk:
    talk = Talk(with_tools(), prepare=True)
    talk.start()
    talk.do(talk.core.speech_paused(24_000))
    talk.heard("hello", final=False)
    talk.open("resp_1")
    talk.called("resp_1")
    return talk


def test_of_a_prepared_call_nobody_knows_until_the_turn_has_ended() -> None:
    talk = prepared()
    assert of(talk.events, CallStarted) == []
    talk.end()
    effects = talk.heard("hello")
    assert kinds(effects)[-6:] == [
        "ResponseStarted",
        "CallStarted",
        "CallArguments",
        "CallFinished",
        "Measured",
        "SaveItem",
    ]
    assert history(talk) == ["item_1", "item_2_call_0"]


def test_a_prepared_call_that_is_withdrawn_was_never_made() -> None:
    talk = prepared()
    talk.do(talk.core.speech_resumed(talk.now_ns))
    assert of(talk.events, CallStarted) == []
    assert of(talk.events, CallFinished) == []
    assert all(item.kind == "message" for item in talk.core.items)


# ---- silence, and coughs --------------------------------------------------------------------------------


def silent_after_a_call() -> Talk:
    settings = replace(with_tools(), turn_detection=TurnDetection(idle_timeout_ms=5_000))
    talk = Talk(settings)
    talk.answered("hello", "yes")
    talk.say("and the weather?")
    talk.only_calls("resp_2")
    talk.let_go("resp_2")
    return talk


def idle(talk: Talk) -> bool:
    talk.later(6_000)
    return bool(told(talk.do(talk.core.tick(talk.now_ns, 0)), CallerIdle))


def test_nobody_is_prompted_while_they_wait_for_a_tool() -> None:
    talk = silent_after_a_call()
    assert not idle(talk)
    talk.answer("call_0_resp_2", "sunny")
    assert idle(talk), "of a result that the client wants no word about, the silence is the caller's"


def test_what_prompts_the_silent_calls_nothing() -> None:
    talk = silent_after_a_call()
    talk.answer("call_0_resp_2", "sunny")
    assert idle(talk)
    (started,) = told(talk.effects[-8:], ResponseStarted)
    options = thinker(talk, started.response.id)
    assert (options.tools, options.tool_choice) == ((WEATHER,), ToolChoice("none"))
    assert not started.response.may_call


def cough(talk: Talk) -> None:
    talk.start(48_000)
    talk.end(50_000)
    talk.heard("")


def test_a_cough_while_a_tool_is_at_work_asks_for_nothing() -> None:
    talk = asked()
    talk.only_calls("resp_1")
    cough(talk)
    assert talk.started() == ["resp_1"]


def test_a_cough_that_stops_the_reply_to_a_result_has_it_made_again() -> None:
    talk = asked()
    talk.only_calls("resp_1")
    talk.answer(CALL, "sunny")
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    talk.open("resp_2")
    cough(talk)
    assert talk.started() == ["resp_1", "resp_2", "resp_3"]
    assert talk.prompt("resp_3")[-1] == Message("tool", "sunny", call_id=CALL)


def test_a_cough_that_stops_a_call_has_it_made_again() -> None:
    talk = asked()
    talk.open("resp_1")
    talk.calling("resp_1", "{")
    cough(talk)
    assert talk.started() == ["resp_1", "resp_2"]
    assert talk.prompt("resp_2") == (SYSTEM, user("hello"))
