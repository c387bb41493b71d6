"""A client comes back to a turn without an answer, or to a reply that broke off: what is said by itself, and when."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from sessions.effects import Effect
from sessions.items import Item
from sessions.prompt import CUT_OFF, GO_ON, INTERRUPTED, LINE_BROKE, broke_off
from sessions.reply import SpokenWord, Unsure
from sessions.return_policy import AfterResume, ReturnPolicy
from sessions.returning import PAUSE_NS
from sessions.service_calls import Result, ServiceTool
from sessions.settings import ResponseSpec, SessionSettings, TurnDetection
from sessions.tool_calls import BegunCall, call_item, output_item
from tests.sessions.talk import CITY, MS, SYSTEM, WEATHER, WORD_SAMPLES, Talk, assistant, user

PAUSE_MS = PAUSE_NS // MS
ASKED = Item("a", "user", "hello", spoken=True)
REPLIED = Item("b", "assistant", "One two.", spoken=True)
BROKEN = replace(REPLIED, text="One", status="incomplete", cut=True, broke_off=True)
INTERRUPTED_BY_CALLER = replace(BROKEN, broke_off=False)
QUESTION = "Are you there again?"


def back(
    *items: Item,
    then: AfterResume = "answer",
    settings: SessionSettings | None = None,
    calls: tuple[BegunCall, ...] = (),
    tools: tuple[ServiceTool, ...] = (),
) -> Talk:
    """A session is resumed, and its client is there."""
    policy = ReturnPolicy(then, QUESTION)
    talk = Talk(settings, items=items, ids_from=10, returns=policy, calls=calls, service_tools=tools)
    talk.do(talk.core.warm_up())
    talk.do(talk.core.recover(talk.now_ns))
    return talk


def tick(talk: Talk, ms: float = PAUSE_MS) -> list[Effect]:
    talk.later(ms)
    return talk.do(talk.core.tick(talk.now_ns, 0))


# ---- what is said ----------------------------------------------------------------------------------------


def test_a_turn_that_nobody_answered_is_answered() -> None:
    talk = back(ASKED)
    assert talk.core.next_deadline_ns() == talk.now_ns + PAUSE_NS
    assert tick(talk, PAUSE_MS - 1) == []
    tick(talk, 1)
    assert talk.started() == ["resp_10"]
    assert talk.prompt("resp_10") == (SYSTEM, user("hello"))
    talk.reply("resp_10", "Well yes")
    talk.send()
    talk.let_go("resp_10")
    assert talk.texts == [("user", "hello"), ("assistant", "Well yes")]
    assert tick(talk, 60_000) == [], "it is done once"


def test_what_came_of_a_call_is_said() -> None:
    call = call_item("c", "call_1", "get_weather", CITY)
    talk = back(ASKED, call, output_item("d", "call_1", "sunny"))
    tick(talk)
    assert talk.started() == ["resp_10"]


def test_a_reply_that_broke_off_is_gone_on_with() -> None:
    talk = back(ASKED, BROKEN)
    tick(talk)
    assert talk.prompt("resp_10") == (SYSTEM, user("hello"), assistant(f"One{CUT_OFF}"), LINE_BROKE, GO_ON)
    talk.reply("resp_10", "two")
    talk.send()
    talk.let_go("resp_10")
    talk.say("thanks")
    assert GO_ON not in talk.prompt("resp_11"), "that was for once"


def test_of_words_that_may_have_been_heard_the_prompt_says_so() -> None:
    words = (SpokenWord("One", 0, WORD_SAMPLES), SpokenWord("two.", WORD_SAMPLES, 2 * WORD_SAMPLES))
    unsure = replace(BROKEN, heard_samples=WORD_SAMPLES, unsure=Unsure("resp_1", words, ""))
    talk = back(ASKED, unsure)
    tick(talk)
    assert talk.prompt("resp_10")[2:] == (assistant(f"One two.{CUT_OFF}"), broke_off("two."), GO_ON)


def test_a_reply_that_the_caller_has_interrupted_says_so() -> None:
    talk = Talk(items=(ASKED, INTERRUPTED_BY_CALLER))
    talk.say("go on")
    assert talk.prompt("resp_1")[3] == INTERRUPTED


@pytest.mark.parametrize("items", [(ASKED,), (ASKED, BROKEN)], ids=["not answered", "broke off"])
def test_or_the_caller_is_asked(items: tuple[Item, ...]) -> None:
    talk = back(*items, then="ask")
    tick(talk)
    talk.open("resp_10")
    assert "thinker" not in talk.options("resp_10")
    talk.audio("resp_10", 4 * WORD_SAMPLES, final=True)
    talk.send()
    assert talk.texts[-1] == ("assistant", QUESTION)


# ---- where nothing is said -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "items",
    [(), (ASKED, REPLIED), (ASKED, INTERRUPTED_BY_CALLER), (ASKED, call_item("c", "call_1", "look", "{}"))],
    ids=["new", "answered", "interrupted", "call of the client"],
)
@pytest.mark.parametrize("then", ["ask", "answer"])
def test_what_is_finished_is_left(items: tuple[Item, ...], then: AfterResume) -> None:
    talk = back(*items, then=then)
    assert tick(talk) == []
    talk.do(talk.core.create_item(Item("new", "user", "hi", spoken=False), None))
    tick(talk)
    assert talk.started() == [], "what the client brings it has answered itself"


def test_by_default_the_caller_is_waited_for() -> None:
    talk = back(ASKED, then="wait")
    assert tick(talk, 60_000) == []


PUSH_TO_TALK = SessionSettings(turn_detection=None)
ASKED_FOR = SessionSettings(turn_detection=TurnDetection(create_response=False))
TEXT = SessionSettings(modalities=("text",))


@pytest.mark.parametrize("settings", [PUSH_TO_TALK, ASKED_FOR], ids=["push to talk", "asked for"])
def test_a_client_that_asks_for_each_response_asks_for_this_one(settings: SessionSettings) -> None:
    talk = back(ASKED, settings=settings)
    assert tick(talk) == []
    assert tick(talk, 60_000) == []


@pytest.mark.parametrize(("then", "started"), [("ask", []), ("answer", ["resp_10"])])
def test_nobody_is_asked_in_writing(then: AfterResume, started: list[str]) -> None:
    talk = back(ASKED, then=then, settings=TEXT)
    tick(talk)
    assert talk.started() == started


# ---- what comes before -----------------------------------------------------------------------------------


def test_a_client_that_asks_for_a_response_has_that_one() -> None:
    talk = back(ASKED)
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    tick(talk)
    assert talk.started() == ["resp_10"]
    talk.reply("resp_10", "Well yes")
    talk.send()
    tick(talk, 60_000)
    assert talk.started() == ["resp_10"]


def test_a_client_that_brings_something_says_what_becomes_of_it() -> None:
    talk = back(ASKED)
    talk.do(talk.core.create_item(Item("new", "user", "hi", spoken=False), None))
    tick(talk, 1)
    tick(talk)
    assert talk.started() == []


def test_a_caller_who_speaks_is_answered_as_ever() -> None:
    talk = back(ASKED, BROKEN)
    talk.say("what")
    tick(talk)
    assert talk.started() == ["resp_10"]
    assert GO_ON not in talk.prompt("resp_10")


def test_a_cough_puts_it_off() -> None:
    talk = back(ASKED, BROKEN)
    talk.start()
    assert tick(talk) == []
    talk.end()
    talk.heard("")
    assert talk.started() == []
    assert tick(talk, PAUSE_MS - 1) == []
    tick(talk, 1)
    assert GO_ON in talk.prompt("resp_10")


def test_a_call_of_the_services_own_goes_first_and_is_answered() -> None:
    call = call_item("c", "call_1", "get_weather", CITY)
    begun = BegunCall("call_1", "c", "get_weather", hashlib.sha256(CITY.encode()).digest(), True)
    talk = back(ASKED, call, calls=(begun,), tools=(ServiceTool(WEATHER, safe=True, filler=""),))
    assert tick(talk) == []
    talk.do(talk.core.call_answered("call_1", Result("sunny"), talk.now_ns))
    assert talk.started() == ["resp_10"]
    tick(talk)
    assert talk.started() == ["resp_10"]


def test_a_call_that_runs_behind_the_turn_puts_it_off() -> None:
    call = call_item("c", "call_1", "get_weather", CITY)
    begun = BegunCall("call_1", "c", "get_weather", hashlib.sha256(CITY.encode()).digest(), True)
    talk = back(call, ASKED, calls=(begun,), tools=(ServiceTool(WEATHER, safe=True, filler=""),))
    tick(talk)
    assert talk.started() == []
    talk.do(talk.core.call_answered("call_1", Result("sunny"), talk.now_ns))
    tick(talk)
    assert talk.started() == ["resp_10"]


def test_where_the_call_is_over_nothing_follows() -> None:
    talk = back(ASKED)
    talk.do(talk.core.close(talk.now_ns))
    assert tick(talk) == []


# ---- what broke off --------------------------------------------------------------------------------------


def one_word_heard() -> Talk:
    """Amid a reply of four words."""
    talk = Talk(recalls=True, lead_ms=200)
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", "one two three four")
    talk.words("resp_1", "one two three four")
    talk.audio("resp_1", 4 * WORD_SAMPLES)
    talk.send()
    talk.later(200)
    talk.do(talk.core.heard("resp_1", WORD_SAMPLES, talk.now_ns))
    return talk


def test_a_reply_whose_call_ends_has_broken_off() -> None:
    talk = one_word_heard()
    talk.do(talk.core.close(talk.now_ns))
    last = talk.core.items[-1]
    assert (last.role, last.text, last.broke_off) == ("assistant", "one", True)
    again = back(*talk.core.items)
    tick(again)
    assert again.prompt("resp_10")[-2:] == (LINE_BROKE, GO_ON)


def test_one_that_its_client_has_cancelled_has_not() -> None:
    talk = one_word_heard()
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    talk.do(talk.core.close(talk.now_ns))
    assert [item.broke_off for item in talk.core.items] == [False, False]
