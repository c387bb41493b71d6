"""A conversation that has as much as it may: the oldest leaves, and that is told."""

from __future__ import annotations

from sessions.effects import Measured, SaveDeletion
from sessions.events import HistoryTrimmed, ItemAdded
from sessions.items import ITEMS_MAX, ROOT, Item
from tests.sessions.talk import Talk, of, told


def typed(name: str) -> Item:
    return Item(name, "user", "typed", spoken=False)


def test_an_item_can_be_put_first_into_a_full_history() -> None:
    talk = Talk(items=tuple(typed(str(number)) for number in range(ITEMS_MAX)))
    effects = talk.do(talk.core.create_item(typed("new"), ROOT))
    assert told(effects, ItemAdded) == [ItemAdded(typed("new"), None)]
    assert of(effects, SaveDeletion) == [SaveDeletion("0")]
    assert told(effects, HistoryTrimmed) == [HistoryTrimmed(("0",))]
    assert of(effects, Measured) == [Measured("items_trimmed", 1)]


def test_a_reply_whose_place_has_left_a_full_history_is_the_oldest() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "hi you")
    for number in range(ITEMS_MAX):
        talk.do(talk.core.create_item(typed(str(number)), None))
    effects = talk.send()
    assert talk.core.items[0].text == "hi you"
    assert of(effects, SaveDeletion) == [SaveDeletion("0")]


def test_who_takes_over_amid_the_leaving_of_the_oldest_ends_it() -> None:
    """The owner before died when the store had the newest item, and not yet that the oldest had left for it."""
    talk = Talk(items=tuple(typed(str(number)) for number in range(ITEMS_MAX + 2)))
    effects = talk.do(talk.core.warm_up())
    assert of(effects, SaveDeletion) == [SaveDeletion("0"), SaveDeletion("1")]
    assert told(effects, HistoryTrimmed) == [HistoryTrimmed(("0", "1"))]
    assert [len(talk.core.items), talk.core.items[0].id] == [ITEMS_MAX, "2"]


def test_who_takes_over_what_is_not_too_much_leaves_it_as_it_is() -> None:
    talk = Talk(items=tuple(typed(str(number)) for number in range(ITEMS_MAX)))
    assert of(talk.do(talk.core.warm_up()), SaveDeletion) == []
