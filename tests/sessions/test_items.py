"""The history: order, lookup, insertion, deletion, its bound; and that a refused change changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.items import CHARACTERS_MAX, ITEM_EXISTS, ITEM_NOT_FOUND, ITEMS_MAX, ROOT, History, Item, ItemError


def item(name: str, text: str = "") -> Item:
    return Item(name, "user", text or name, spoken=False)


def history(*names: str) -> History:
    return History(tuple(item(name) for name in names))


def names(of: History) -> list[str]:
    return [each.id for each in of.items]


def test_an_empty_history_has_no_last_item() -> None:
    assert History().last_id is None
    assert History().items == ()


def test_items_stand_in_the_order_in_which_they_were_added() -> None:
    kept = history("a", "b")
    assert kept.add(item("c")) == ()
    assert names(kept) == ["a", "b", "c"]
    assert kept.last_id == "c"


def test_an_item_is_inserted_after_the_one_that_is_named() -> None:
    kept = history("a", "b")
    kept.add(item("c"), "a")
    kept.add(item("d"), ROOT)
    assert names(kept) == ["d", "a", "c", "b"]
    assert [kept.previous_of(name) for name in names(kept)] == [None, "d", "a", "c"]


def test_items_are_found_replaced_and_deleted_by_id() -> None:
    kept = history("a", "b", "c")
    kept.replace(item("b", "other"))
    assert kept.find("b").text == "other"
    kept.delete("b")
    assert not kept.has("b")
    assert names(kept) == ["a", "c"]


def test_what_is_not_there_is_named_in_the_refusal_and_nothing_changes() -> None:
    kept = history("a")
    refused = (
        lambda: kept.find("x"),
        lambda: kept.previous_of("x"),
        lambda: kept.replace(item("x")),
        lambda: kept.delete("x"),
        lambda: kept.add(item("b"), "x"),
    )
    for call in refused:
        with pytest.raises(ItemError, match="'x'") as caught:
            call()
        assert caught.value.code == ITEM_NOT_FOUND
    assert names(kept) == ["a"]


def test_an_id_is_never_used_twice() -> None:
    kept = history("a")
    with pytest.raises(ItemError) as caught:
        kept.add(item("a"))
    assert caught.value.code == ITEM_EXISTS
    assert names(kept) == ["a"]


def test_the_oldest_leaves_a_full_history() -> None:
    kept = history(*(str(number) for number in range(ITEMS_MAX)))
    assert kept.add(item("new")) == ("0",)
    assert len(kept.items) == ITEMS_MAX
    assert kept.last_id == "new"


def test_an_item_put_first_into_a_full_history_is_not_the_one_that_leaves() -> None:
    kept = history(*(str(number) for number in range(ITEMS_MAX)))
    assert kept.add(item("new"), ROOT) == ("0",)
    assert names(kept)[:2] == ["new", "1"]


def test_a_history_that_was_restored_too_long_is_cut_at_the_next_item() -> None:
    kept = history(*(str(number) for number in range(ITEMS_MAX + 2)))
    assert kept.add(item("new")) == ("0", "1", "2")
    assert len(kept.items) == ITEMS_MAX


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(-1, 12)), max_size=30))
def test_a_history_is_a_list_of_distinct_items(changes: list[tuple[int, int]]) -> None:
    kept, model = History(), list[str]()
    for add, after in changes:
        name, previous = f"i{add}", ROOT if after < 0 else f"i{after}"
        if name in model:
            kept.delete(name)
            model.remove(name)
        elif previous == ROOT or previous in model:
            kept.add(item(name), previous)
            model.insert(0 if previous == ROOT else model.index(previous) + 1, name)
    assert names(kept) == model
    assert kept.last_id == (model[-1] if model else None)


def test_the_oldest_leave_where_all_together_are_too_long_for_the_store() -> None:
    kept = History()
    half = CHARACTERS_MAX // 2
    assert kept.add(Item("a", "user", "x" * half, spoken=False)) == ()
    assert kept.add(Item("b", "user", "x" * half, spoken=False)) == ()
    assert kept.add(Item("c", "user", "x", spoken=False)) == ("a",)
    assert [item.id for item in kept.items] == ["b", "c"]


def test_an_item_that_is_too_long_by_itself_stays_alone() -> None:
    kept = History((Item("a", "user", "x", spoken=False),))
    assert kept.add(Item("b", "user", "x" * (CHARACTERS_MAX + 1), spoken=False)) == ("a",)
    assert [item.id for item in kept.items] == ["b"]


# ---- what is being made ------------------------------------------------------------------------------


def order(kept: History) -> list[str]:
    return [item.id for item in kept.order]


def made(name: str, text: str = "") -> Item:
    return Item(name, "assistant", text, spoken=True, status="completed" if text else "in_progress")


def test_what_is_being_made_has_its_place_and_is_no_item_yet() -> None:
    kept = history("a")
    kept.begin(made("reply"), ["a"])
    kept.add(item("b"))
    assert (names(kept), order(kept), kept.last_id) == (["a", "b"], ["a", "reply", "b"], "b")
    assert not kept.has("reply")
    assert kept.standing("reply") == made("reply")
    assert [one.id for one in kept.until("reply")] == ["a"]
    assert kept.previous_of("b") == "a"
    for call in (lambda: kept.find("reply"), lambda: kept.delete("reply"), lambda: kept.add(item("c"), "reply")):
        with pytest.raises(ItemError) as caught:
            call()
        assert caught.value.code == ITEM_NOT_FOUND
    with pytest.raises(ItemError) as caught:
        kept.add(item("reply"))
    assert caught.value.code == ITEM_EXISTS
    kept.enter(made("reply", "hi"))
    assert names(kept) == ["a", "reply", "b"]
    assert kept.find("reply").text == "hi"


def test_nothing_is_told_to_stand_behind_what_its_client_does_not_know() -> None:
    kept = history()
    assert history().last_told is None
    kept.begin(made("reply"), [None])
    kept.add(item("b"))
    assert kept.last_told == "b"
    assert [kept.told_before("b"), kept.tell("reply"), kept.told_before("b")] == [None, None, "reply"]
    kept.give_up("reply")
    assert kept.told_before("b") is None
    assert order(kept) == ["b"]


def test_a_place_is_behind_the_last_of_those_that_there_are() -> None:
    kept = history("a", "b")
    kept.begin(made("reply"), ["a", "gone"])
    kept.begin(made("call"), ["reply", "gone"])
    kept.begin(made("first"), ["gone", None])
    assert order(kept) == ["first", "a", "reply", "call", "b"]
    kept.add_behind(item("output"), "call")
    assert order(kept)[3:] == ["call", "output", "b"]


def test_what_is_being_made_does_not_leave_a_full_history() -> None:
    kept = History()
    kept.begin(made("reply"), [])
    for number in range(ITEMS_MAX):
        assert kept.add(item(str(number))) == ()
    assert kept.enter(made("reply", "hi")) == ("0",)
    assert names(kept)[:2] == ["reply", "1"]


def test_what_is_foreseen_changes_nothing() -> None:
    kept = history("a")
    kept.begin(made("reply"), ["a"])
    assert names(kept.foreseen(made("reply", "hi"))) == ["a", "reply"]
    assert names(kept) == ["a"]
