"""Tools of the service's own, in the conversation: what is kept, what follows, what is said meanwhile."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from duplex.checkpoints import Recorder, encode_settings, item_of, item_record
from media.turn_events import Saying
from sessions.effects import (
    CancelTool,
    Effect,
    FeedStream,
    FollowTool,
    Measured,
    RequestTool,
    Save,
    SaveCallBegun,
    SaveCallSettled,
    SaveItem,
)
from sessions.events import (
    CallFinished,
    CallStarted,
    CallUnknown,
    CommandRefused,
    ItemAdded,
    ReplyText,
    ResponseFinished,
)
from sessions.filler import FILLER_AFTER_NS
from sessions.log import replay
from sessions.records import SessionRecord
from sessions.service_calls import PENDING_MAX, STORE_NS_MAX, Failure, Result, ServiceTool
from sessions.serving import FOLLOW_UPS_MAX
from sessions.settings import ResponseSpec, SessionSettings, TurnDetection
from sessions.tool_calls import BegunCall, call_item
from stages.contracts import Clause, Message, TalkerOptions, ThinkerOptions, Tool, ToolCall, ToolChoice
from tests.sessions.talk import CITY, LINE, MS, SYSTEM, WEATHER, Talk, assistant, of, told, user

CALL = "call_0_resp_1"
MADE = (ToolCall(CALL, "get_weather", CITY),)
OTHER = Tool("look")


def talking(settings: SessionSettings | None = None, *, safe: bool = True, prepare: bool = False) -> Talk:
    return Talk(settings, prepare=prepare, service_tools=(ServiceTool(WEATHER, safe, "Just a second."),))


def asked(settings: SessionSettings | None = None, *, safe: bool = True) -> Talk:
    """Somebody has asked, and the call that answers them runs."""
    talk = talking(settings, safe=safe)
    talk.say("hello")
    talk.only_calls("resp_1")
    talk.let_go("resp_1")
    return talk


def answer(talk: Talk, text: str = "sunny", call: str = CALL) -> list[Effect]:
    return talk.do(talk.core.call_answered(call, Result(text), talk.now_ns))


def tick(talk: Talk, ms: float) -> list[Effect]:
    talk.later(ms)
    return talk.do(talk.core.tick(talk.now_ns, 0))


def choice(talk: Talk, response: str) -> tuple[tuple[Tool, ...], ToolChoice]:
    talk.open(response)
    options = talk.options(response)["thinker"]
    assert isinstance(options, ThinkerOptions)
    return options.tools, options.tool_choice


def outputs(talk: Talk) -> list[str]:
    return [item.text for item in talk.core.items if item.kind == "function_call_output"]


# ---- called and answered ---------------------------------------------------------------------------------


def test_a_call_is_written_down_and_then_carried_out() -> None:
    talk = talking()
    talk.is_stored = False
    talk.say("hello")
    talk.only_calls("resp_1")
    order = [type(e).__name__ for e in talk.effects if isinstance(e, SaveItem | SaveCallBegun | RequestTool)]
    assert order[-2:] == ["SaveItem", "SaveCallBegun"], "the call itself, then that it is about to be carried out"
    assert talk.do(talk.core.call_stored(CALL, talk.now_ns)) == [RequestTool(CALL, "get_weather", CITY)]
    assert talk.core.is_serving


def test_its_client_is_shown_the_call_and_nothing_to_carry_out() -> None:
    talk = asked()
    assert of(talk.events, CallStarted) == []
    assert of(talk.events, CallFinished) == []
    added = [event for event in of(talk.events, ItemAdded) if event.item.kind == "function_call"]
    assert [(event.item.text, event.previous) for event in added] == [(CITY, "item_1")]
    end = talk.finished("resp_1")
    assert (end.calls, end.leaves_nothing, end.status) == ((), True, "completed")


def test_what_has_come_of_it_is_kept_and_said() -> None:
    talk = asked()
    effects = answer(talk)
    (added,) = told(effects, ItemAdded)
    (saved,) = of(effects, SaveCallSettled)
    assert (saved.outcome, saved.output, saved.previous) == ("succeeded", added.item, "item_2_call_0")
    assert added.item.id == "item_2_call_0_output"
    assert Measured("service_calls", 1, "succeeded") in effects
    assert talk.started() == ["resp_1", "resp_2"], "nobody has to ask for it"
    assert talk.prompt("resp_2") == (
        SYSTEM,
        user("hello"),
        Message("assistant", "", calls=MADE),
        Message("tool", "sunny", call_id=CALL),
    )


def test_a_response_follows_when_all_has_come() -> None:
    talk = talking()
    talk.say("hello")
    talk.only_calls("resp_1", calls=2)
    answer(talk)
    assert talk.started() == ["resp_1"]
    answer(talk, "windy", "call_1_resp_1")
    assert talk.started() == ["resp_1", "resp_2"]


def test_a_call_that_was_broken_off_is_not_carried_out() -> None:
    talk = talking()
    talk.say("hello")
    talk.open("resp_1")
    talk.calling("resp_1", "{")
    talk.text_done("resp_1", "max_output_tokens")
    talk.audio("resp_1", 0, final=True)
    talk.send()
    assert of(talk.effects, SaveCallBegun) == []
    assert talk.core.items[-1].status == "incomplete"


def test_of_a_call_that_is_prepared_nothing_is_done_before_the_turn_has_ended() -> None:
    talk = talking(prepare=True)
    talk.start()
    talk.do(talk.core.speech_paused(24_000))
    talk.heard("hello", final=False)
    talk.open("resp_1")
    talk.called("resp_1")
    assert of(talk.effects, SaveCallBegun) == []
    talk.end()
    talk.heard("hello")
    assert len(of(talk.effects, RequestTool)) == 1


def test_a_call_that_was_deleted_is_followed_by_nothing() -> None:
    talk = asked()
    talk.do(talk.core.delete_item("item_2_call_0"))
    effects = answer(talk)
    assert [(saved.outcome, saved.output) for saved in of(effects, SaveCallSettled)] == [("succeeded", None)]
    assert (talk.started(), outputs(talk)) == (["resp_1"], [])


def test_what_nobody_waits_for_is_counted() -> None:
    talk = asked()
    assert answer(talk, call="call_never") == [Measured("answers_dropped", 1)]


def test_more_calls_than_can_be_pending_are_answered_at_once() -> None:
    talk = talking()
    talk.is_stored = False
    for number in range(1, PENDING_MAX // 16 + 2):
        talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
        talk.only_calls(f"resp_{number}", calls=16)
        talk.let_go(f"resp_{number}")
    assert [json.loads(text)["error"] for text in outputs(talk)] == ["busy"] * 16
    assert of(talk.effects, SaveCallSettled) == [], "they were not written down"
    assert sum(save.item.kind == "function_call_output" for save in of(talk.effects, SaveItem)) == 16


# ---- whose tools there are ---------------------------------------------------------------------------------


def test_tools_of_both_are_told_to_the_model_in_every_prompt() -> None:
    talk = talking(replace(SessionSettings(), tools=(OTHER, replace_name(WEATHER))))
    talk.say("hello")
    assert choice(talk, "resp_1") == ((WEATHER, OTHER, replace_name(WEATHER)), ToolChoice())
    assert {prompt.tools for prompt in talk.prefilled()} == {(WEATHER, OTHER, replace_name(WEATHER))}


def replace_name(tool: Tool) -> Tool:
    return Tool(f"my_{tool.name}", tool.description, tool.parameters)


def test_a_name_that_both_have_by_now_is_the_services() -> None:
    talk = talking(replace(SessionSettings(), tools=(Tool("get_weather", "Another."),)))
    talk.say("hello")
    assert choice(talk, "resp_1")[0] == (WEATHER,)


def test_out_of_band_nothing_can_be_carried_out() -> None:
    talk = talking(replace(SessionSettings(), tool_choice=ToolChoice("required", "get_weather")))
    talk.do(talk.core.create_response(ResponseSpec(in_conversation=False), talk.now_ns))
    assert choice(talk, "resp_1") == ((), ToolChoice())


def test_calls_of_the_client_are_its_own_and_what_follows_too() -> None:
    talk = talking(with_tools_of_client())
    talk.say("hello")
    talk.open("resp_1")
    talk.called("resp_1")
    talk.publish_call("resp_1", OTHER.name, 1)
    talk.text_done("resp_1")
    talk.audio("resp_1", 0, final=True)
    talk.send()
    assert [event.item.name for event in of(talk.events, CallFinished)] == ["look"]
    assert [call.name for call in talk.finished("resp_1").calls] == ["look"]
    answer(talk)
    assert talk.started() == ["resp_1"], "its client has yet to answer"
    talk.answer("call_1_resp_1", "seen")
    assert talk.started() == ["resp_1"], "and asks for the response"


def with_tools_of_client() -> SessionSettings:
    return replace(SessionSettings(), tools=(OTHER,))


def test_no_client_answers_for_the_service() -> None:
    talk = asked()
    (refused,) = told(talk.answer(CALL, "rainy"), CommandRefused)
    assert (refused.code, refused.param) == ("tool_call_of_service", "item.call_id")
    answer(talk)
    assert outputs(talk) == ["sunny"]


# ---- what follows --------------------------------------------------------------------------------------------


def test_no_client_takes_the_place_of_a_call_that_is_carried_out() -> None:
    talk = asked()
    talk.do(talk.core.delete_item("item_2_call_0"))
    effects = talk.do(talk.core.create_item(call_item("item_c", CALL, "get_weather", '{"city": "Rome"}'), None))
    (refused,) = told(effects, CommandRefused)
    assert (refused.code, refused.param) == ("tool_call_id_exists", "item.call_id")
    assert talk.core.items[-1].id != "item_c"


def test_what_follows_is_what_the_first_was_to_be_but_calls_if_it_wants() -> None:
    talk = talking()
    spec = ResponseSpec("Be quick.", ("text",), tool_choice=ToolChoice("required"), messages=(("user", "weather?"),))
    talk.do(talk.core.create_response(spec, talk.now_ns))
    talk.open("resp_1")
    talk.called("resp_1")
    talk.text_done("resp_1")
    answer(talk)
    assert choice(talk, "resp_2")[1] == ToolChoice()
    assert talk.prompt("resp_2")[0] == Message("system", "Be quick.")
    assert talk.prompt("resp_2")[-1] == Message("tool", "sunny", call_id=CALL)
    assert list(talk.options("resp_2")) == ["thinker"], "in writing"


def test_calls_do_not_follow_each_other_for_ever() -> None:
    talk = asked()
    for number in range(1, FOLLOW_UPS_MAX):
        answer(talk, call=f"call_0_resp_{number}")
        assert choice(talk, f"resp_{number + 1}")[1] == ToolChoice()
        talk.only_calls(f"resp_{number + 1}")
        talk.let_go(f"resp_{number + 1}")
    answer(talk, call=f"call_0_resp_{FOLLOW_UPS_MAX}")
    last = f"resp_{FOLLOW_UPS_MAX + 1}"
    assert choice(talk, last)[1] == ToolChoice("none")
    talk.reply(last, "well")
    talk.send()
    talk.let_go(last)
    talk.say("go on")
    talk.only_calls(talk.active)
    answer(talk, call=f"call_0_resp_{FOLLOW_UPS_MAX + 2}")
    assert choice(talk, talk.active)[1] == ToolChoice()


def test_it_begins_behind_the_words_before_the_call() -> None:
    talk = talking()
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", "let me look")
    talk.called("resp_1")
    talk.text_done("resp_1")
    answer(talk)
    assert talk.started() == ["resp_1"]
    talk.words("resp_1", "let me look")
    talk.audio("resp_1", 14_400, final=True)
    talk.send()
    assert talk.started() == ["resp_1", "resp_2"]


def test_a_client_that_asks_before_that_is_not_refused() -> None:
    talk = talking()
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", "let me look")
    talk.called("resp_1")
    answer(talk)
    talk.do(talk.core.create_response(ResponseSpec(instructions="Be kind!"), talk.now_ns))
    assert of(talk.events, CommandRefused) == []
    talk.text_done("resp_1")
    talk.audio("resp_1", 0, final=True)
    talk.send()
    assert talk.started() == ["resp_1", "resp_2"]
    assert talk.prompt("resp_2")[0].content == "Be kind!"


# ---- the caller waits ------------------------------------------------------------------------------------------


def filled(talk: Talk) -> list[Effect]:
    """The caller has waited long enough; what is begun for them is open."""
    effects = tick(talk, FILLER_AFTER_NS / MS)
    if talk.core.speaking.active:
        talk.open(talk.active)
        talk.open(talk.active)
    return effects


def test_who_is_kept_waiting_is_told_so_once() -> None:
    talk = asked()
    assert talk.core.next_deadline_ns() == talk.now_ns + FILLER_AFTER_NS
    assert tick(talk, FILLER_AFTER_NS / MS - 1) == []
    filled(talk)
    assert talk.started() == ["resp_1", "resp_2"]
    assert talk.options("resp_2").keys() == {"talker", "vocoder"}, "nobody thinks about it"
    assert isinstance(talk.options("resp_2")["talker"], TalkerOptions)
    fed = [effect.item for effect in of(talk.effects, FeedStream) if effect.stage == "talker"]
    assert fed == [Clause(0, "Just a second.", final=True)]
    talk.words("resp_2", "Just a second.")
    talk.audio("resp_2", 14_400, final=True)
    talk.send()
    end = talk.finished("resp_2")
    assert (end.status, end.text) == ("completed", "Just a second.")
    assert [event.delta for event in of(talk.events, ReplyText)] == ["Just a second."]
    talk.let_go("resp_2", ("talker", "vocoder"))
    assert tick(talk, 10_000) == []


def test_what_was_said_meanwhile_stands_before_the_call() -> None:
    talk = asked()
    filled(talk)
    talk.words("resp_2", "Just a second.")
    talk.audio("resp_2", 14_400, final=True)
    answer(talk)
    assert talk.started() == ["resp_1", "resp_2"], "it is said to its end"
    talk.send()
    assert [item.id for item in talk.core.items] == ["item_1", "item_3", "item_2_call_0", "item_2_call_0_output"]
    assert talk.prompt("resp_3") == (
        SYSTEM,
        user("hello"),
        Message("assistant", "Just a second.", calls=MADE),
        Message("tool", "sunny", call_id=CALL),
    )


def test_a_voice_that_dies_before_it_has_begun_says_it_anew() -> None:
    talk = asked()
    filled(talk)
    talk.do(talk.core.lost(talk.tag("resp_2"), "talker", talk.now_ns))
    talk.do(talk.core.opened(talk.tag("resp_2"), "vocoder", talk.now_ns))
    fed = [effect.tag.attempt for effect in of(talk.effects, FeedStream) if effect.stage == "talker"]
    assert fed == [0, 1]


def test_what_the_client_corrects_does_not_disturb_it() -> None:
    talk = asked()
    filled(talk)
    talk.do(talk.core.retrieve_item("item_1"))
    answer(talk)
    assert talk.core.speaking.active is not None
    assert talk.tag("resp_2").attempt == 0


@pytest.mark.parametrize("tool", [ServiceTool(WEATHER, filler=""), ServiceTool(WEATHER)])
def test_nothing_is_said_where_nothing_is_to_be(tool: ServiceTool) -> None:
    is_written = bool(tool.filler)
    settings = replace(SessionSettings(), modalities=("text",)) if is_written else None
    talk = Talk(settings, service_tools=(tool,))
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    talk.open("resp_1")
    talk.called("resp_1")
    talk.text_done("resp_1")
    if not is_written:
        talk.audio("resp_1", 0, final=True)
        talk.send()
    talk.let_go("resp_1", ("thinker",) if is_written else LINE)
    tick(talk, 5_000)
    assert talk.started() == ["resp_1"]
    assert tick(talk, 5_000) == []


def test_nobody_is_talked_over() -> None:
    talk = asked()
    talk.start(48_000)
    assert tick(talk, 5_000) == []
    talk.do(talk.core.clear_input(talk.now_ns))
    tick(talk, 5_000)
    assert talk.started() == ["resp_1", "resp_2"], "they wait again"


# ---- interruptions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("safe", [True, False])
def test_who_interrupts_cancels_what_is_safe(safe: bool) -> None:
    talk = asked(safe=safe)
    filled(talk)
    talk.words("resp_2", "Just a second.")
    talk.audio("resp_2", 14_400)
    effects = talk.start(48_000)
    assert talk.finished("resp_2").status == "cancelled"
    assert (CancelTool(CALL) in effects) == safe
    if safe:
        assert json.loads(outputs(talk)[0])["error"] == "cancelled"
        assert of(effects, SaveCallSettled)[0].outcome == "cancelled"
    else:
        answer(talk)
        assert outputs(talk) == ["sunny"]
    assert talk.started() == ["resp_1", "resp_2"], "what has come asks for nothing: the caller speaks"
    talk.end(64_000)
    talk.heard("and tomorrow?")
    assert talk.started() == ["resp_1", "resp_2", "resp_3"]
    assert talk.prompt("resp_3")[-1] == user("and tomorrow?")


def test_who_goes_on_is_answered_while_what_is_not_safe_goes_on() -> None:
    talk = asked(safe=False)
    talk.say("and tomorrow?")
    assert talk.started() == ["resp_1", "resp_2"]
    answer(talk)
    assert talk.prompt("resp_2")[-2:] == (Message("tool", "sunny", call_id=CALL), user("and tomorrow?"))
    talk.reply("resp_2", "well")
    talk.send()
    assert talk.started() == ["resp_1", "resp_2"]


def test_a_cough_cancels_nothing() -> None:
    talk = asked()
    talk.say("")
    assert of(talk.effects, CancelTool) == []
    answer(talk)
    assert talk.started() == ["resp_1", "resp_2"]


def test_where_speech_interrupts_nothing_it_cancels_nothing() -> None:
    talk = asked(SessionSettings(turn_detection=TurnDetection(interrupt_response=False)))
    talk.say("go on")
    assert of(talk.effects, CancelTool) == []


def test_a_client_that_has_enough_says_so() -> None:
    talk = asked()
    effects = talk.do(talk.core.cancel_response(None, talk.now_ns))
    assert CancelTool(CALL) in effects
    assert of(talk.events, CommandRefused) == []
    assert talk.started() == ["resp_1"]


# ---- ends and beginnings ----------------------------------------------------------------------------------------


def test_what_cannot_be_written_down_is_said_to_be_not_done() -> None:
    talk = talking()
    talk.is_stored = False
    talk.say("hello")
    talk.only_calls("resp_1")
    tick(talk, STORE_NS_MAX / MS)
    assert json.loads(outputs(talk)[0])["error"] == "not_begun"
    assert of(talk.effects, RequestTool) == []


def test_what_comes_after_the_call_has_ended_is_kept() -> None:
    talk = asked(safe=False)
    talk.do(talk.core.close(talk.now_ns))
    assert talk.core.is_serving
    assert of(answer(talk), SaveCallSettled)[0].outcome == "succeeded"
    assert (talk.started(), talk.core.is_serving) == (["resp_1"], False)


def left(*, safe: bool) -> Talk:
    """A conversation whose gateway died while a call was being carried out."""
    items = (*asked().core.items[:1], call_item("item_2_call_0", CALL, "get_weather", CITY))
    begun = BegunCall(CALL, "item_2_call_0", "get_weather", hashlib.sha256(CITY.encode()).digest(), safe)
    talk = Talk(items=items, calls=(begun,), service_tools=(ServiceTool(WEATHER, safe),), ids_from=50)
    assert talk.core.begun_calls == (begun,)
    return talk


def test_what_is_safe_is_done_again_and_said() -> None:
    talk = left(safe=True)
    assert talk.do(talk.core.recover(talk.now_ns)) == [RequestTool(CALL, "get_weather", CITY)]
    answer(talk)
    assert talk.started() == ["resp_50"]


def test_of_anything_else_nobody_knows_whether_it_was_done() -> None:
    talk = left(safe=False)
    assert talk.do(talk.core.recover(talk.now_ns)) == [FollowTool(CALL)]
    effects = talk.do(talk.core.call_answered(CALL, Failure("lost"), talk.now_ns))
    assert told(effects, CallUnknown) == [CallUnknown(CALL, "get_weather")]
    assert of(effects, SaveCallSettled)[0].outcome == "unknown"
    assert talk.started() == ["resp_50"]
    assert "not known" in talk.prompt("resp_50")[-1].content
    assert of(talk.effects, RequestTool) == []


@pytest.mark.parametrize("safe", [True, False])
def test_whoever_comes_next_goes_on_with_what_a_reply_called_and_not_with_what_a_client_did(safe: bool) -> None:
    """Nothing of either was written down but the items."""
    before = asked(safe=safe)
    before.do(before.core.create_item(call_item("item_c", "call_of_client", "get_weather", '{"city": "Rome"}'), None))
    items = tuple(item_of(item_record(item, None)) for item in before.core.items)
    talk = Talk(items=items, service_tools=(ServiceTool(WEATHER, safe),), ids_from=50)
    effects = talk.do(talk.core.recover(talk.now_ns))
    assert [effect.call.id for effect in of(effects, SaveCallBegun)] == ([CALL] if safe else [])
    assert [event.call_id for event in told(effects, CallUnknown)] == ([] if safe else [CALL])


@pytest.mark.parametrize("safe", [True, False])
def test_a_call_whose_answer_its_client_has_deleted_is_not_taken_up_again(safe: bool) -> None:
    before = asked(safe=safe)
    answer(before)
    recorder = Recorder((), SessionSettings(), before.core.epoch)
    before.do(before.core.delete_item("item_2_call_0_output"))
    saves = [effect for effect in before.effects if isinstance(effect, Save)]
    entries = [recorder.saved(effect) for effect in saves]
    stored = replay(SessionRecord("sess", "", 0, encode_settings(SessionSettings()), b""), entries)
    items = tuple(map(item_of, stored.items))
    assert [item.kind for item in items] == ["message", "function_call"]
    talk = Talk(items=items, service_tools=(ServiceTool(WEATHER, safe),), ids_from=50)
    assert talk.do(talk.core.recover(talk.now_ns)) == []


def test_what_still_runs_here_is_followed() -> None:
    talk = left(safe=False)
    talk.do(talk.core.recover(talk.now_ns))
    answer(talk)
    assert outputs(talk) == ["sunny"]


def test_nobody_is_prompted_while_they_wait() -> None:
    detection = TurnDetection(idle_timeout_ms=5_000)
    talk = asked(SessionSettings(turn_detection=detection))
    filled(talk)
    talk.words("resp_2", "Just a second.")
    talk.audio("resp_2", 14_400, final=True)
    talk.send()
    talk.let_go("resp_2", ("talker", "vocoder"))
    assert tick(talk, 20_000) == []
    assert talk.core.saying(talk.now_ns) == Saying(False, True, "")
    assert len(of(talk.events, ResponseFinished)) == 2


def test_the_words_of_a_filler_are_history_as_far_as_they_were_heard() -> None:
    talk = Talk(service_tools=(ServiceTool(WEATHER, safe=False),), recalls=True, lead_ms=200)
    talk.say("hello")
    talk.only_calls("resp_1")
    talk.let_go("resp_1")
    filled(talk)
    talk.words("resp_2", "One moment, please.")
    talk.audio("resp_2", 14_400, final=True)
    talk.send()
    talk.later(250)
    talk.send()
    talk.start(48_000)
    filler = talk.core.items[1]
    assert (filler.role, filler.cut, filler.text) == ("assistant", True, "One")
    assert talk.texts[:2] == [("user", "hello"), ("assistant", "One")]
    assert assistant("One —") in talk.core._remembered.messages()
