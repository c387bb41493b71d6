"""A caller who says nothing after a reply is prompted, once the time that the client has set is over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sessions.effects import Effect, EndCall, EndEpoch, OpenStream, SaveItem
from sessions.events import CallerIdle, InputCommitted, ItemAdded, ResponseFinished, ResponseStarted
from sessions.idle import IN_A_ROW_MAX, OBJECTION_NS
from sessions.items import Item
from sessions.prompt import GOODBYE, IDLE
from sessions.settings import INPUT_RATE, ResponseSpec, SessionSettings, TurnDetection
from tests.sessions.talk import MS, SYSTEM, WORD_SAMPLES, Talk, assistant, kinds, of, told, user

TIMEOUT_MS = 6_000
SETTINGS = SessionSettings(turn_detection=TurnDetection(idle_timeout_ms=TIMEOUT_MS))
PLAYED_MS = 200 * 2  # of a reply of two words


def tick(talk: Talk) -> list[Effect]:
    """The deadlines are looked at. The microphone has been open since the clock began."""
    return talk.do(talk.core.tick(talk.now_ns, talk.now_ns * INPUT_RATE // 1_000_000_000))


def replied(settings: SessionSettings = SETTINGS, *, recalls: bool = False) -> Talk:
    """A reply has been sent just now, and is now being played."""
    talk = Talk(settings, recalls=recalls)
    talk.answered("hello", "hi you")
    return talk


def answer(talk: Talk) -> None:
    """What is being asked for is said, and heard."""
    response = talk.active
    talk.reply(response, "hi you")
    talk.send()
    talk.let_go(response)
    talk.later(PLAYED_MS)


def test_after_a_reply_was_played_a_silent_caller_is_prompted() -> None:
    talk = replied()
    ended_ns = talk.now_ns
    assert talk.core.next_deadline_ns() == ended_ns + (PLAYED_MS + TIMEOUT_MS) * MS
    talk.later(PLAYED_MS + TIMEOUT_MS - 1)
    assert tick(talk) == []
    talk.later(1)
    effects = tick(talk)
    told_first = ["CallerIdle", "InputCommitted", "ItemAdded", "SaveItem", "CancelStream", "ResponseStarted"]
    assert kinds(effects)[:6] == told_first
    now_ms = talk.now_ns // MS
    assert told(effects, CallerIdle) == [CallerIdle("item_3", now_ms - TIMEOUT_MS, now_ms)]
    assert told(effects, InputCommitted) == [InputCommitted("item_3", "item_2")]
    silence = Item("item_3", "user", "", spoken=True)
    assert told(effects, ItemAdded) == [ItemAdded(silence, "item_2")]
    assert of(effects, SaveItem) == [SaveItem(silence, "item_2")]
    assert of(effects, EndEpoch) == []
    assert [effect.stage for effect in of(effects, OpenStream)] == ["talker", "vocoder"], "nobody listens to silence"
    assert talk.prompt("resp_2") == (SYSTEM, user("hello"), assistant("hi you"), IDLE)
    answer(talk)
    assert talk.texts == [("user", "hello"), ("assistant", "hi you"), ("user", ""), ("assistant", "hi you")]
    talk.say("yes")
    assert IDLE not in talk.prompt("resp_3"), "it was said once"


def test_the_silence_has_a_turn_of_its_own() -> None:
    talk = replied()
    talk.later(PLAYED_MS + TIMEOUT_MS)
    tick(talk)
    assert talk.started() == ["resp_1", "resp_2"]
    talk.open("resp_2")
    assert talk.tag("resp_2").turn > talk.turn_tag().turn
    assert talk.tag("resp_2").epoch == talk.core.epoch


def test_a_microphone_that_was_opened_late_has_no_sound_before_its_first() -> None:
    talk = replied()
    talk.later(PLAYED_MS + TIMEOUT_MS)
    effects = talk.do(talk.core.tick(talk.now_ns, 3 * INPUT_RATE))
    assert told(effects, CallerIdle) == [CallerIdle("item_3", 0, 3_000)]


@pytest.mark.parametrize("detection", [TurnDetection(), None], ids=["not set", "push-to-talk"])
def test_nobody_is_prompted_where_that_is_not_asked_for(detection: TurnDetection | None) -> None:
    talk = replied()
    talk.update(SessionSettings(turn_detection=detection))
    assert talk.core.next_deadline_ns() is None
    talk.later(60_000)
    assert tick(talk) == []


def test_nobody_is_prompted_before_the_first_reply() -> None:
    talk = Talk(SETTINGS, items=(Item("old", "assistant", "hi", spoken=True),))
    talk.do(talk.core.warm_up())
    assert tick(talk) == []
    talk.later(60_000)
    assert told(tick(talk), CallerIdle) == []


def test_only_so_many_prompts_follow_each_other_and_a_word_lets_them_begin_anew() -> None:
    talk = replied()
    talk.later(PLAYED_MS)
    for _ in range(IN_A_ROW_MAX):
        talk.later(TIMEOUT_MS)
        assert told(tick(talk), CallerIdle) != []
        answer(talk)
    talk.later(60_000)
    assert talk.core.next_deadline_ns() is None
    assert tick(talk) == []
    talk.say("I am here")
    answer(talk)
    talk.later(TIMEOUT_MS)
    assert told(tick(talk), CallerIdle) != []


def told_goodbye() -> Talk:
    """By a call that is left; nobody has answered any of the prompts."""
    talk = Talk(SETTINGS, leaves=True)
    talk.answered("hello", "hi you")
    talk.later(PLAYED_MS)
    for _ in range(IN_A_ROW_MAX + 1):
        talk.later(TIMEOUT_MS)
        assert told(tick(talk), CallerIdle) != []
        last = talk.prompt(talk.active)[-1]
        answer(talk)
    assert last == GOODBYE
    return talk


def test_who_answers_no_prompt_is_told_goodbye_and_left() -> None:
    talk = told_goodbye()
    assert talk.core.next_deadline_ns() == talk.now_ns + OBJECTION_NS
    talk.later(OBJECTION_NS // MS - 1)
    assert tick(talk) == []
    talk.later(1)
    assert tick(talk) == [EndCall("caller_silent", talk.now_ns)]
    assert tick(talk) == [], "it was said once"


def test_who_objects_to_a_goodbye_is_not_left() -> None:
    talk = told_goodbye()
    talk.later(OBJECTION_NS // MS - 1)
    talk.say("I am here")
    answer(talk)
    talk.later(TIMEOUT_MS)
    effects = tick(talk)
    assert told(effects, CallerIdle) != []
    assert of(effects, EndCall) == []
    assert talk.prompt(talk.active)[-1] == IDLE


def test_who_was_never_spoken_to_is_left_as_well() -> None:
    talk = Talk(SETTINGS, leaves=True)
    talk.do(talk.core.recover(talk.now_ns))
    assert talk.core.next_deadline_ns() == talk.now_ns + (IN_A_ROW_MAX + 1) * TIMEOUT_MS * MS


def test_nobody_is_left_where_no_prompts_are_asked_for() -> None:
    talk = Talk(leaves=True)
    talk.answered("hello", "hi you")
    talk.later(3_600_000)
    assert tick(talk) == []


def test_a_cough_lets_the_silence_begin_anew_and_the_prompts_go_on() -> None:
    talk = replied()
    talk.later(PLAYED_MS)
    for _ in range(IN_A_ROW_MAX):
        talk.later(TIMEOUT_MS - 1)
        talk.say("")
        assert talk.core.next_deadline_ns() == talk.now_ns + TIMEOUT_MS * MS
        talk.later(TIMEOUT_MS)
        assert told(tick(talk), CallerIdle) != []
        answer(talk)
    talk.say("")
    talk.later(60_000)
    assert tick(talk) == []


def speaks(talk: Talk) -> None:
    talk.start(48_000)


def is_understood(talk: Talk) -> None:
    talk.start(48_000)
    talk.end(64_000)


def types(talk: Talk) -> None:
    talk.do(talk.core.create_item(Item("typed", "user", "wait", spoken=False), None))


def is_answered(talk: Talk) -> None:
    talk.say("and you")


def is_told_something_else(talk: Talk) -> None:
    talk.do(talk.core.create_response(ResponseSpec(in_conversation=False), talk.now_ns))


def has_hung_up(talk: Talk) -> None:
    talk.do(talk.core.close(talk.now_ns))


@pytest.mark.parametrize("deed", [speaks, is_understood, types, is_answered, is_told_something_else, has_hung_up])
def test_nobody_is_prompted_while_anything_goes_on(deed: Callable[[Talk], None]) -> None:
    talk = replied()
    talk.later(PLAYED_MS + TIMEOUT_MS - 1)
    deed(talk)
    talk.later(1)
    before = talk.started()
    assert told(tick(talk), CallerIdle) == []
    talk.later(TIMEOUT_MS)
    assert told(tick(talk), CallerIdle) == []
    assert talk.started() == before


def test_nobody_is_prompted_while_a_reply_is_held() -> None:
    talk = Talk(SETTINGS, lead_ms=200, recalls=True)
    talk.say("hello")
    talk.reply("resp_1", "hi you")
    talk.send()
    talk.do(talk.core.held(48_000, talk.now_ns))
    talk.later(TIMEOUT_MS)
    assert told(tick(talk), CallerIdle) == []


def test_speech_that_was_none_lets_the_silence_begin_anew() -> None:
    talk = replied(recalls=True)
    talk.do(talk.core.held(48_000, talk.now_ns))
    talk.later(PLAYED_MS + 800)
    talk.do(talk.core.resumed("short"))
    talk.do(talk.core.dropped(talk.now_ns))
    assert talk.core.next_deadline_ns() == talk.now_ns + TIMEOUT_MS * MS


def test_input_that_is_thrown_away_lets_the_silence_begin_anew() -> None:
    talk = replied()
    talk.later(PLAYED_MS + 3_000)
    talk.start(48_000)
    talk.later(1_000)
    talk.do(talk.core.clear_input(talk.now_ns))
    assert talk.core.next_deadline_ns() == talk.now_ns + TIMEOUT_MS * MS


def test_who_reports_that_they_still_hear_a_reply_is_not_silent_yet() -> None:
    talk = replied(recalls=True)
    talk.later(1_000)
    talk.do(talk.core.heard("resp_1", WORD_SAMPLES, talk.now_ns - 700 * MS))
    assert talk.core.next_deadline_ns() == talk.now_ns + (TIMEOUT_MS - 600) * MS, "it was taken to end there"
    late = Talk(SETTINGS, recalls=True)
    late.answered("hello", "hi you")
    late.do(late.core.heard("resp_1", 0, late.now_ns))
    late.later(700)
    late.do(late.core.heard("resp_1", WORD_SAMPLES, late.now_ns))
    assert late.core.next_deadline_ns() == late.now_ns + TIMEOUT_MS * MS


@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_after_a_reply_that_was_stopped_the_caller_is_prompted_and_after_one_that_failed_not(status: str) -> None:
    talk = Talk(SETTINGS)
    talk.say("hello")
    talk.reply("resp_1", "hi you")
    talk.send(12)
    if status == "cancelled":
        talk.do(talk.core.cancel_response(None, talk.now_ns))
    else:
        talk.do(talk.core.closed(talk.tag("resp_1"), "vocoder", {}, ("broken", "it broke"), talk.now_ns))
    assert told(talk.effects, ResponseFinished)[0].response.status == status
    talk.let_go("resp_1")
    talk.later(60_000)
    assert bool(told(tick(talk), CallerIdle)) == (status == "cancelled")


def test_a_prompt_is_interrupted_as_any_reply() -> None:
    talk = replied()
    talk.later(PLAYED_MS + TIMEOUT_MS)
    tick(talk)
    talk.say("I was thinking")
    assert talk.finished("resp_2").reason == "turn_detected"
    assert told(talk.effects, ResponseStarted)[-1].response.id == "resp_3"
    assert talk.prompt("resp_3") == (SYSTEM, user("hello"), assistant("hi you"), user("I was thinking"))
