"""What the Thinker is asked: prompts and options, and what of them is read while the caller still speaks."""

from __future__ import annotations

import pytest

from sessions.effects import CancelStream, FeedStream, OpenStream
from sessions.items import Item
from sessions.prompt import PROMPT_CHARACTERS_MAX
from sessions.settings import ResponseSpec, SessionSettings
from stages.contracts import Message, PrefillOptions, Prompt, TalkerOptions, ThinkerOptions, VocoderOptions
from tests.sessions.talk import SYSTEM, WORD_SAMPLES, Talk, assistant, kinds, of, user

MANUAL = SessionSettings(turn_detection=None)


# ---- prompts --------------------------------------------------------------------------------------


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
    talk.commit()
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
        "vocoder": VocoderOptions(voice="joe"),
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


# ---- prefill --------------------------------------------------------------------------------------


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
    assert kinds(talk.heard("", final=False)) == ["Overheard"]


def test_a_prefill_stops_before_a_response_opens() -> None:
    talk = Talk()
    talk.say("hello")
    prefill = talk.opened_at("thinker")[0].tag
    effects = [e for e in talk.effects if isinstance(e, OpenStream | CancelStream)]
    stop = effects.index(CancelStream("thinker", prefill))
    assert stop < min(effects.index(e) for e in effects if e.tag.response == "resp_1")
    assert of(talk.heard("more", final=False), FeedStream) == []  # nothing is prefilled any more


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


@pytest.mark.parametrize("way", ["refused", "lost", "closed"])
def test_a_prefill_that_is_gone_is_fed_and_stopped_no_more(way: str) -> None:
    talk = Talk()
    talk.start()
    prefill = talk.opened_at("thinker")[-1].tag
    match way:
        case "refused":
            talk.do(talk.core.refused(prefill, "thinker", "busy", "", talk.now_ns))
        case "lost":
            assert talk.do(talk.core.lost(prefill, "thinker", talk.now_ns)) == []
        case _:
            talk.do(talk.core.closed(prefill, "thinker", {}, ("context", "full"), talk.now_ns))
    assert of(talk.heard("what", final=False), FeedStream) == []
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
    assert of(talk.heard("what", final=False), FeedStream) != []


def test_what_the_next_prompt_begins_with_is_read_while_the_reply_is_said() -> None:
    talk = Talk()
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", "Hi there.")
    effects = talk.text_done("resp_1")
    assert kinds(effects) == ["OpenStream", "FeedStream"]
    assert talk.prefilled()[-1] == Prompt((SYSTEM, user("hello"), Message("assistant", "Hi there.")))
