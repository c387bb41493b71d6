"""A client that puts each item behind the one that it is told has the order of the history, whatever comes when.

Any order of events: `test_conversation_machine`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.realtime.dialect import RealtimeDialect
from sessions.effects import Effect, OpenStream, Tell
from sessions.events import CallStarted, CommandRefused, ItemAdded, MessageStarted, ResponseFinished, ResponseView
from sessions.items import ROOT, Item
from sessions.settings import ResponseSpec, SessionSettings
from stages.contracts import CallDone
from tests.sessions.client_order import ClientOrder
from tests.sessions.talk import CITY, WORD_SAMPLES, Talk, of, told, with_tools, without_interruption


class Client(Talk):
    """A talk and its client, which is compared with the history whenever something was told."""

    def __init__(self, settings: SessionSettings) -> None:
        super().__init__(settings)
        self.dialect = RealtimeDialect(lambda prefix: prefix)
        self.order = ClientOrder()
        self.spoken: set[str] = set()
        self.calling_now: set[str] = set()

    def do(self, effects: list[Effect]) -> list[Effect]:
        super().do(effects)
        for effect in of(effects, Tell):
            for message in self.dialect.encode(effect.event):
                self.order.take(message)
        assert self.order.history == [item.id for item in self.core.items]
        return effects

    def type(self, name: str, previous: str | None = None) -> None:
        self.do(self.core.create_item(Item(name, "user", name, spoken=False), previous))


def amid_a_reply(settings: SessionSettings | None = None, words: str = "one two three") -> Client:
    """Of which some was sent."""
    talk = Client(settings or without_interruption())
    talk.say("hello")
    talk.reply("resp_1", words)
    talk.send(10)
    return talk


def speech(talk: Client) -> None:
    talk.start(48_000)
    talk.end(64_000)


MEANWHILE: list[Callable[[Client], object]] = [
    speech,
    Client.commit,
    lambda talk: talk.type("new"),
]


@pytest.mark.parametrize("comes", MEANWHILE)
def test_what_comes_amid_a_reply_stands_behind_it(comes: Callable[[Client], object]) -> None:
    talk = amid_a_reply()
    comes(talk)
    assert talk.order.items[:2] == ["item_1", "item_2"]
    assert of(talk.events, ItemAdded)[-1].previous == "item_2"
    talk.send()
    assert of(talk.events, ResponseFinished)[-1].previous == "item_1"
    assert talk.order.history == talk.order.items


@pytest.mark.parametrize("comes", MEANWHILE)
def test_what_stood_behind_a_reply_that_left_nothing_stands_where_that_stood(
    comes: Callable[[Client], object],
) -> None:
    talk = Client(without_interruption())
    talk.say("hello")
    comes(talk)
    assert of(talk.events, ItemAdded)[-1].previous == "item_2"
    talk.do(talk.core.cancel_response("resp_1", talk.now_ns))
    assert talk.order.items == ["item_1", of(talk.events, ItemAdded)[-1].item.id]


def test_what_is_put_behind_the_item_before_a_reply_stands_between_them() -> None:
    talk = amid_a_reply()
    talk.type("between", "item_1")
    talk.type("first", ROOT)
    assert talk.order.items == ["first", "item_1", "between", "item_2"]
    talk.send()
    assert of(talk.events, ResponseFinished)[-1].previous == "between"


def test_nothing_stands_behind_a_message_that_may_never_come() -> None:
    talk = Client(with_tools())
    talk.say("hello")
    talk.type("new")
    assert of(talk.events, ItemAdded)[-1].previous == "item_1"
    talk.do(talk.core.delete_item("item_1"))
    talk.reply("resp_1", "hi you")
    assert of(talk.events, MessageStarted)[-1].previous is None
    assert talk.order.items == ["item_2", "new"]
    talk.send()


def test_a_call_stands_behind_its_words_and_its_result_behind_it() -> None:
    talk = Client(with_tools())
    talk.say("hello")
    talk.open("resp_1")
    talk.called("resp_1")
    talk.calling("resp_1", "{", index=1)
    talk.type("new")
    talk.answer("call_0_resp_1", "sunny")
    talk.text("resp_1", "Well.")
    calls = ["item_2_call_0", "item_2_call_1"]
    assert talk.order.items == ["item_1", "item_2", *calls, "output_call_0_resp_1", "new"]
    assert talk.order.history == ["item_1", calls[0], "output_call_0_resp_1", "new"]


def test_what_is_out_of_band_stands_nowhere() -> None:
    talk = amid_a_reply()
    talk.do(talk.core.create_response(ResponseSpec(in_conversation=False), talk.now_ns))
    talk.reply("resp_2", "aside")
    talk.type("new")
    talk.send()
    assert talk.order.items == ["item_1", "item_2", "new"]


def test_a_call_that_is_being_written_takes_no_result() -> None:
    talk = Client(with_tools())
    talk.say("hello")
    talk.open("resp_1")
    talk.calling("resp_1", "{")
    (refused,) = told(talk.answer("call_0_resp_1", "sunny"), CommandRefused)
    assert (refused.code, refused.param) == ("invalid_tool_call_id", "item.call_id")


# ---- in any order --------------------------------------------------------------------------------------

Deed = Callable[[Client, int], object]


def being_made(talk: Client) -> ResponseView | None:
    """The active response, once its stages were asked for it."""
    view = talk.core.speaking.active
    return view if view and any(stream.tag.response == view.id for stream in of(talk.effects, OpenStream)) else None


def write(talk: Client, choice: int) -> None:
    """The active response says a word, in text and in sound; one in two of these is sent."""
    view = being_made(talk)
    if view is None or view.id in talk.spoken:
        return
    talk.open(view.id)
    talk.text(view.id, "well")
    if choice % 2:
        talk.spoken.add(view.id)
        talk.words(view.id, "well")
        talk.audio(view.id, WORD_SAMPLES)
        talk.send()


def call(talk: Client, choice: int) -> None:
    view = being_made(talk)
    if view is None or view.id in talk.calling_now:
        return
    talk.open(view.id)
    talk.calling_now.add(view.id)
    talk.calling(view.id, CITY)
    if choice % 2:
        talk.publish(view.id, CallDone(0, CITY))


def ask(talk: Client, choice: int) -> None:
    spec = ResponseSpec(in_conversation=bool(choice % 3), modalities=("text",) if choice % 4 == 1 else None)
    talk.do(talk.core.create_response(spec, talk.now_ns))


def put(talk: Client, choice: int) -> None:
    places = [None, ROOT, *talk.order.items]
    talk.type(f"typed_{len(talk.events)}", places[choice % len(places)])


def delete(talk: Client, choice: int) -> None:
    names = ["nowhere", *talk.order.items]
    talk.do(talk.core.delete_item(names[choice % len(names)]))


def truncate(talk: Client, choice: int) -> None:
    names = ["nowhere", *talk.order.items]
    talk.truncate(names[choice % len(names)], 100)


def answer(talk: Client, choice: int) -> None:
    calls = [event.item.call_id for event in of(talk.events, CallStarted)] or ["nowhere"]
    talk.answer(calls[choice % len(calls)], "sunny")


def understood(talk: Client, choice: int) -> None:
    if talk.core.hearing.is_awaited:
        talk.heard("go on" if choice % 2 else "")


DEEDS: list[Deed] = [
    write,
    call,
    ask,
    put,
    delete,
    truncate,
    answer,
    understood,
    lambda talk, _: talk.commit(),
    lambda talk, _: speech(talk),
    lambda talk, _: talk.do(talk.core.cancel_response(None, talk.now_ns)),
]


@given(st.booleans(), st.lists(st.tuples(st.sampled_from(DEEDS), st.integers(0, 11)), max_size=30))
def test_the_order_that_is_told_is_that_of_the_history(has_tools: bool, deeds: list[tuple[Deed, int]]) -> None:
    """It is compared after each deed."""
    talk = Client(with_tools(interrupt_response=False) if has_tools else without_interruption())
    talk.say("hello")
    for deed, choice in deeds:
        deed(talk, choice)
    talk.do(talk.core.close(talk.now_ns))
    assert talk.order.items == talk.order.history
