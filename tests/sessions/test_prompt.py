"""The window of the history that prompts are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.items import Item, Role
from sessions.prompt import INTERRUPTED, PENDING, PROMPT_CHARACTERS_MAX, PromptWindow
from sessions.tool_calls import call_item, output_item
from stages.contracts import Message, ToolCall


def said(*lengths: int) -> tuple[Item, ...]:
    """Exchanges of texts of these lengths: user, assistant, user, …"""
    roles: tuple[Role, Role] = ("user", "assistant")
    return tuple(Item(f"i{n}", roles[n % 2], "x" * length, spoken=False) for n, length in enumerate(lengths))


def lengths(window: PromptWindow, items: tuple[Item, ...]) -> list[int]:
    return [len(message.content) for message in window.messages(items)]


def test_a_short_history_is_brought_along_whole() -> None:
    window, items = PromptWindow(100), said(10, 20, 30, 40)
    assert not window.trim(items)
    assert lengths(window, items) == [10, 20, 30, 40]


def test_a_long_one_loses_whole_exchanges_until_half_is_left() -> None:
    window, items = PromptWindow(100), said(10, 20, 30, 20, 10, 11)
    assert window.trim(items)
    assert lengths(window, items) == [10, 11]


def test_the_start_stays_put_until_the_window_is_full_again() -> None:
    window, items = PromptWindow(100), said(40, 40, 20, 10)
    window.trim(items)
    longer = said(40, 40, 20, 10, 30, 30)
    assert not window.trim(longer)
    assert lengths(window, longer) == [20, 10, 30, 30]


def test_the_newest_exchange_is_never_left_behind() -> None:
    window, items = PromptWindow(100), said(10, 10, 300, 50)
    assert window.trim(items)
    assert not window.trim(items)
    assert lengths(window, items) == [300, 50]


def test_without_anything_said_by_the_caller_all_stays() -> None:
    window = PromptWindow(10)
    greeting = (Item("g", "assistant", "x" * 40, spoken=True),)
    assert not window.trim(greeting)
    assert lengths(window, greeting) == [40]


def test_a_window_whose_first_item_was_deleted_begins_at_the_beginning() -> None:
    window, items = PromptWindow(100), said(40, 40, 20, 10)
    window.trim(items)
    assert lengths(window, (*items[:2], items[3])) == [40, 40, 10]


def test_items_without_words_are_left_out() -> None:
    assert lengths(PromptWindow(100), said(10, 0, 20)) == [10, 20]


def test_no_prompt_exceeds_what_a_frame_carries() -> None:
    window = PromptWindow(10**9)
    assert lengths(window, said(20_000, 20_000, 5)) == [20_000, 5]
    assert lengths(window, said(5, PROMPT_CHARACTERS_MAX + 9)) == [PROMPT_CHARACTERS_MAX]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(20, 200))
def test_a_prompt_is_a_tail_of_the_history_and_its_start_never_goes_back(sizes: list[int], limit: int) -> None:
    window, items, first = PromptWindow(limit), said(*sizes), 0
    for count in range(1, len(items) + 1):
        window.trim(items[:count])
        texts = [message.content for message in window.messages(items[:count])]
        spoken = [item.text for item in items[:count] if item.text]
        assert texts == spoken[len(spoken) - len(texts) :]
        start = len(spoken) - len(texts)
        assert start >= first
        first = start
        newest = next((n for n in range(count - 1, -1, -1) if items[n].role == "user"), 0)
        assert sum(map(len, texts)) <= max(limit, sum(sizes[newest:count]))


# ---- calls ------------------------------------------------------------------------------------------


def word(role: Role, text: str, **more: Any) -> Item:
    return Item(f"{role}_{text}", role, text, spoken=False, **more)


def call(name: str, **more: Any) -> Item:
    return replace(call_item(f"item_{name}", name, "look", "{}"), **more)


def made(*names: str, text: str = "") -> Message:
    return Message("assistant", text, calls=tuple(ToolCall(name, "look", "{}") for name in names))


def result(name: str, text: str = "it") -> Message:
    return Message("tool", text, call_id=name)


HELLO, WELL = word("user", "hello"), word("assistant", "well")
FOUND = {name: output_item(f"output_{name}", name, "it") for name in "cde"}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([call("c"), FOUND["c"]], [made("c"), result("c")]),
        ([call("c")], [made("c"), result("c", PENDING)]),
        ([HELLO, WELL, call("c")], [Message("user", "hello"), made("c", text="well"), result("c", PENDING)]),
        ([call("c"), call("d"), FOUND["d"]], [made("c", "d"), result("c", PENDING), result("d")]),
        (
            [call("c"), FOUND["c"], call("d"), FOUND["d"]],
            [made("c"), result("c"), made("d"), result("d")],
        ),
        ([call("c"), HELLO, FOUND["c"]], [made("c"), result("c"), Message("user", "hello")]),
        ([FOUND["c"], HELLO], [Message("user", "hello")]),
        ([HELLO, call("c", status="incomplete")], [Message("user", "hello")]),
        (
            [call("c"), call("d", status="incomplete"), call("e"), FOUND["e"]],
            [made("c", "e"), result("c", PENDING), result("e")],
        ),
        (
            [word("assistant", "well", cut=True), call("c")],
            [Message("assistant", "well —"), INTERRUPTED, made("c"), result("c", PENDING)],
        ),
        (
            [WELL, call("c"), FOUND["c"], word("assistant", "so"), call("d")],
            [made("c", text="well"), result("c"), made("d", text="so"), result("d", PENDING)],
        ),
    ],
)
def test_each_call_is_followed_by_its_result(items: list[Item], messages: list[Message]) -> None:
    assert PromptWindow(1_000).messages(tuple(items)) == tuple(messages)


def test_results_may_be_known_from_elsewhere() -> None:
    assert PromptWindow(1_000).messages((call("c"),), {"c": "it"}) == (made("c"), result("c"))


def test_a_call_that_is_left_behind_takes_its_result_with_it() -> None:
    long = output_item("output_c", "c", "x" * (PROMPT_CHARACTERS_MAX - 10))
    assert PromptWindow(10**6).messages((call("c"), long, HELLO)) == (Message("user", "hello"),)


def test_the_window_counts_calls() -> None:
    window = PromptWindow(40)
    items = (HELLO, call("c", text="x" * 40), word("user", "again"), WELL)
    assert window.trim(items)
    assert [message.content for message in window.messages(items)] == ["again", "well"]
