"""A client that puts each item behind the one that it is told has the order of the history, whatever comes when.

Any order of events: `test_conversation_machine`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from duplex.realtime.dialect import RealtimeDialect
from sessions.effects import Effect, Tell
from sessions.events import ItemAdded, MessageStarted, ResponseFinished
from sessions.items import ROOT, Item
from sessions.settings import ResponseSpec, SessionSettings
from tests.sessions.client_order import ClientOrder
from tests.sessions.talk import Talk, of, with_tools, without_interruption


class Client(Talk):
    """A talk and its client, which is compared with the history whenever something was told."""

    def __init__(self, settings: SessionSettings) -> None:
        super().__init__(settings)
        self.dialect = RealtimeDialect(lambda prefix: prefix)
        self.order = ClientOrder()

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
