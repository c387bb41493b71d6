"""Replies of which the word times are not known any more, and that their client truncates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.heard import Cut, shortened
from sessions.items import Item


@pytest.mark.parametrize(
    ("samples", "text", "word"), [(0, "", "one"), (333, "", "one"), (334, "one", "two"), (999, "one two", "three")]
)
def test_of_a_reply_whose_words_are_not_known_any_more_its_share_is_history(samples: int, text: str, word: str) -> None:
    item = Item("i", "assistant", "one two three", spoken=True, audio_samples=1_000)
    assert shortened(item, samples) == Cut(samples, text, word, error_samples=334)


@pytest.mark.parametrize("samples", [1_000, 99_999])
def test_a_reply_that_was_heard_to_its_end_stays_whole(samples: int) -> None:
    item = Item("i", "assistant", "one two three", spoken=True, audio_samples=1_000)
    assert shortened(item, samples) == Cut(1_000, "one two three", whole=True, status="completed")
    assert shortened(replace(item, status="incomplete"), samples).applied_to(item).status == "incomplete"


def test_a_reply_without_sound_has_no_share() -> None:
    item = Item("i", "assistant", "", spoken=True)
    assert shortened(item, 0).applied_to(item) == item
    silent = replace(item, audio_samples=1_000)
    assert shortened(silent, 500) == Cut(500, "")


def test_what_history_has_of_a_reply_is_shortened_and_not_its_whole() -> None:
    item = Item("i", "assistant", "one two three", spoken=True, audio_samples=2_000, cut=True, heard_samples=700)
    item = replace(item, status="incomplete", cut_word="four", heard_basis="acked", heard_error_samples=5)
    assert shortened(item, 700).applied_to(item) == item
    assert shortened(item, 9_999).applied_to(item) == item
    assert shortened(item, 699) == Cut(699, "one two", "three", error_samples=234)
    assert shortened(replace(item, text=""), 699) == Cut(699, "", "four")


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=6))
def test_truncations_that_are_repeated_take_nothing_more(ends: list[int]) -> None:
    item = Item("i", "assistant", "one two three four five", spoken=True, audio_samples=2_400)
    for end in ends:
        item = shortened(item, end).applied_to(item)
        assert shortened(item, end).applied_to(item) == item
    least = min(ends)
    assert item.heard_samples == (least if least < 2_400 else 0)
    assert len(item.text.split()) <= 5 * least // 2_400
