"""What the history takes, of what it says that it has gone, and what it says of a reply that was only written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from duplex.realtime.dialect import RealtimeDialect, item_dict
from sessions.effects import SaveItem
from sessions.events import CallStarted, CommandRefused, ItemAdded, ItemRetrieved, ResponseFinished
from sessions.items import ROOT, Item
from sessions.prompt import INTERRUPTED
from sessions.settings import ResponseSpec, SessionSettings
from sessions.tool_calls import call_item
from stages.contracts import CALLS_MAX, CallDone
from tests.sessions.talk import CITY, Talk, assistant, of, told, user, with_tools

Scene = Callable[[], tuple[Talk, str]]


def typed(name: str, text: str = "typed") -> Item:
    return Item(name, "user", text, spoken=False)


def create(talk: Talk, item: Item, previous: str | None = None) -> CommandRefused | None:
    """Why `item` cannot be created; None where it was."""
    effects = talk.do(talk.core.create_item(item, previous))
    refusals = told(effects, CommandRefused)
    assert bool(refusals) != bool(told(effects, ItemAdded))
    assert bool(refusals) != bool(of(effects, SaveItem))
    return refusals[0] if refusals else None


# ---- ids that are taken ------------------------------------------------------------------------------


def a_reply() -> tuple[Talk, str]:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "hi you")
    return talk, "item_2"


def a_reply_out_of_band() -> tuple[Talk, str]:
    talk = Talk()
    talk.do(talk.core.create_response(ResponseSpec(in_conversation=False), talk.now_ns))
    return talk, "item_1"


def a_turn_that_is_spoken() -> tuple[Talk, str]:
    talk = Talk()
    talk.start()
    return talk, "item_1"


def a_turn_that_is_buffered() -> tuple[Talk, str]:
    talk = Talk(SessionSettings(turn_detection=None))
    talk.do(talk.core.buffered(0, 16_000))
    return talk, "item_1"


def a_turn_that_was_deleted() -> tuple[Talk, str]:
    """Its words are not known yet."""
    talk, turn = a_turn_that_is_spoken()
    talk.end()
    talk.do(talk.core.delete_item(turn))
    return talk, turn


def a_call_that_is_written() -> tuple[Talk, str]:
    talk = Talk(with_tools())
    talk.say("hello")
    talk.open("resp_1")
    talk.calling("resp_1", '{"ci')
    return talk, "item_2_call_0"


def a_call_that_may_come() -> tuple[Talk, str]:
    talk, _ = a_call_that_is_written()
    return talk, f"item_2_call_{CALLS_MAX - 1}"


SCENES: tuple[Scene, ...] = (
    a_reply,
    a_reply_out_of_band,
    a_turn_that_is_spoken,
    a_turn_that_is_buffered,
    a_turn_that_was_deleted,
    a_call_that_is_written,
    a_call_that_may_come,
)


@pytest.mark.parametrize("scene", SCENES)
def test_what_the_service_has_named_names_nothing_that_a_client_brings(scene: Scene) -> None:
    talk, name = scene()
    for item in (typed(name), call_item(name, "mine", "look", "{}")):
        refused = create(talk, item)
        assert refused is not None
        assert (refused.code, refused.param) == ("item_exists", "item.id")
    assert create(talk, typed("another")) is None


def test_what_came_of_a_call_takes_no_such_name_either() -> None:
    talk, name = a_call_that_is_written()
    talk.publish("resp_1", CallDone(0, CITY))
    output = Item(name, "system", "sunny", spoken=False, kind="function_call_output", call_id="call_0_resp_1")
    (refused,) = told(talk.do(talk.core.answer_call(output, talk.now_ns)), CommandRefused)
    assert refused.code == "item_exists"
    assert told(talk.answer("call_0_resp_1", "sunny"), ItemAdded)


def test_who_was_refused_is_answered_all_the_same() -> None:
    talk, name = a_reply()
    create(talk, typed(name))
    talk.send()
    assert talk.texts == [("user", "hello"), ("assistant", "hi you")]
    talk, name = a_turn_that_is_spoken()
    create(talk, typed(name))
    talk.end()
    talk.heard("hello")
    assert talk.texts == [("user", "hello")]
    assert talk.active == "resp_1"


def test_a_calls_own_id_is_taken_while_it_is_written_and_after() -> None:
    talk, _ = a_call_that_is_written()
    (begun,) = of(talk.events, CallStarted)
    for call_id in (begun.item.call_id, f"call_{CALLS_MAX - 1}_resp_1"):
        refused = create(talk, call_item("mine", call_id, "get_weather", "{}"))
        assert refused is not None
        assert (refused.code, refused.param) == ("tool_call_id_exists", "item.call_id")
    talk.publish("resp_1", CallDone(0, CITY))
    assert create(talk, call_item("mine", begun.item.call_id, "get_weather", "{}")) is not None
    assert [item.kind for item in talk.core.items] == ["message", "function_call"]


def test_an_id_is_free_again_once_nothing_may_become_of_it() -> None:
    talk, name = a_turn_that_was_deleted()
    talk.heard("hello")
    assert create(talk, typed(name)) is None
    assert talk.texts == [("user", "typed")]


# ---- where it is to stand ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scene", "code"),
    [
        (a_reply, "item_in_progress"),
        (a_call_that_is_written, "item_in_progress"),
        (a_call_that_may_come, "item_not_found"),
        (a_turn_that_is_spoken, "item_not_found"),
        (a_reply_out_of_band, "item_not_found"),
        (a_turn_that_was_deleted, "item_not_found"),
    ],
)
def test_nothing_stands_behind_what_is_not_history_yet(scene: Scene, code: str) -> None:
    talk, name = scene()
    refused = create(talk, typed("another"), name)
    assert refused is not None
    assert (refused.code, refused.param) == (code, "previous_item_id")
    assert create(talk, typed("another"), ROOT) is None


# ---- what left no trace ------------------------------------------------------------------------------


def wire(talk: Talk) -> list[tuple[str, str]]:
    """The messages about items of the conversation, and the ends of responses."""
    dialect = RealtimeDialect(lambda prefix: f"{prefix}_x")
    messages = [message for event in talk.events for message in dialect.encode(event)]
    named = ((one["type"], one.get("item_id") or one.get("item", {}).get("id", "")) for one in messages)
    return [(kind, name) for kind, name in named if kind.startswith("conversation.item") or kind == "response.done"]


def test_a_reply_that_was_stopped_before_its_first_sample_is_deleted_behind_its_end() -> None:
    talk, reply = a_reply()
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    assert [message for message in wire(talk) if message[1] in (reply, "")] == [
        ("conversation.item.added", reply),
        ("conversation.item.done", reply),
        ("response.done", ""),
        ("conversation.item.deleted", reply),
    ]
    assert talk.texts == [("user", "hello")]


def test_one_of_which_something_was_heard_stays() -> None:
    talk, reply = a_reply()
    talk.send(frames=1)
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    assert ("conversation.item.deleted", reply) not in wire(talk)
    assert talk.core.items[-1].id == reply


def test_one_that_never_began_is_deleted_too() -> None:
    talk = Talk()
    talk.start()
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    (end,) = of(talk.events, ResponseFinished)
    assert wire(talk)[-1] == ("conversation.item.deleted", end.response.item)


def test_what_was_never_added_to_the_conversation_is_not_deleted_from_it() -> None:
    talk, _ = a_reply_out_of_band()
    talk.do(talk.core.cancel_response("resp_1", talk.now_ns))
    assert wire(talk) == [("response.done", "")]
    talk = Talk(with_tools())  # who may call has no message before there are words
    talk.say("hello")
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    assert wire(talk)[-1] == ("response.done", "")


def test_words_that_were_told_and_not_heard_are_deleted_and_the_call_behind_them_stays() -> None:
    talk = Talk(with_tools())
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", "Let me look.")
    talk.called("resp_1")
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    assert wire(talk)[-2:] == [("response.done", ""), ("conversation.item.deleted", "item_2")]
    assert [item.id for item in talk.core.items] == ["item_1", "item_2_call_0"]


# ---- a reply that is written -------------------------------------------------------------------------


def written_and_cancelled() -> Talk:
    talk = Talk(SessionSettings(modalities=("text",)), items=(typed("a", "hello"),))
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    talk.open("resp_1")
    talk.text("resp_1", "one two three")
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    return talk


def test_of_a_reply_that_is_written_what_came_counts_as_read_wherever_it_is_told() -> None:
    talk = written_and_cancelled()
    item = talk.core.items[-1]
    dialect = RealtimeDialect(lambda prefix: f"{prefix}_x")
    (end,) = of(talk.events, ResponseFinished)
    done = dialect.encode(end)[-1]["response"]["output"]
    (retrieved,) = told(talk.core.retrieve_item(item.id), ItemRetrieved)
    shown = {
        "id": item.id,
        "object": "realtime.item",
        "type": "message",
        "status": "incomplete",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "one two three"}],
    }
    assert done == [shown]
    assert [message["item"] for message in dialect.encode(retrieved)] == [shown]
    assert item_dict(item) == shown, "as a connection that resumes is told"


def test_the_model_reads_that_it_was_interrupted() -> None:
    talk = written_and_cancelled()
    talk.do(talk.core.create_item(typed("b", "go on"), None))
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    assert talk.prompt("resp_2")[1:] == (user("hello"), assistant("one two three —"), INTERRUPTED, user("go on"))


def test_one_that_was_written_to_its_end_was_interrupted_by_nobody() -> None:
    talk = Talk(SessionSettings(modalities=("text",)), items=(typed("a", "hello"),))
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    talk.open("resp_1")
    talk.text("resp_1", "one two three")
    talk.text_done("resp_1")
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    assert talk.prompt("resp_2")[1:] == (user("hello"), assistant("one two three"))
