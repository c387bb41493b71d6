"""Prompts: which positions a conversation has, which of them are spoken, and that a growing one keeps its start."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contracts import Message
from stages.engines.torch_omni.prompt import Sound, Vocabulary, common_length, render, sound_place

VOCABULARY = Vocabulary(
    size=1_000,
    first_byte=32,
    im_start=1,
    im_end=2,
    audio_start=13,
    roles={"system": 6, "user": 7, "assistant": 8},
)
NEWLINE = 32 + ord("\n")
ANSWER = [1, 8, NEWLINE]


def bytes_of(text: str) -> list[int]:
    return [32 + byte for byte in text.encode()]


def test_text_is_read_byte_by_byte() -> None:
    assert VOCABULARY.read("aé") == [32 + 0x61, 32 + 0xC3, 32 + 0xA9]


def test_what_was_written_is_read_as_the_same_token() -> None:
    assert VOCABULARY.read("<700>a<32>") == [700, 32 + ord("a"), 32]


@pytest.mark.parametrize("text", ["<2>", "<31>", "<1000>", "<0700>", "<>", "<7", "<7000000>"])
def test_a_number_that_is_no_ordinary_token_is_text(text: str) -> None:
    assert VOCABULARY.read(text) == bytes_of(text)


@given(st.lists(st.integers(32, 999)))
def test_a_reply_that_returns_as_history_has_the_same_tokens(tokens: list[int]) -> None:
    assert VOCABULARY.read("".join(VOCABULARY.write(token) for token in tokens)) == tokens


def test_a_conversation_ends_in_the_header_of_the_answer() -> None:
    messages = [Message("system", "s"), Message("user", "u"), Message("assistant", "a"), Message("user", "v")]
    rendered = render(messages, {}, VOCABULARY, answer=True)
    said = ((6, "s"), (7, "u"), (8, "a"), (7, "v"))
    keys = [key for role, text in said for key in (1, role, NEWLINE, *bytes_of(text), 2, NEWLINE)]
    assert rendered.keys == [*keys, *ANSWER]
    assert rendered.spoken == [False] * 6 + [True] * 6 + [False] * 6 + [True] * 9


def test_a_message_said_aloud_is_its_sound() -> None:
    sound = Sound(4, ["x", "y"], complete=True)
    rendered = render([Message("user", "transcript", audio_turn=9)], {9: sound}, VOCABULARY, answer=True)
    assert rendered.keys == [1, 7, NEWLINE, 13, sound.key(0), sound.key(1), 14, 2, NEWLINE, *ANSWER]
    assert all(rendered.spoken)
    assert [sound_place(key) for key in rendered.keys if key < 0] == [(4, 0), (4, 1)]


def test_a_sound_that_is_not_here_is_read_from_its_text() -> None:
    spoken = render([Message("user", "hm", audio_turn=9)], {}, VOCABULARY, answer=True)
    assert spoken == render([Message("user", "hm")], {}, VOCABULARY, answer=True)


def test_keys_of_different_sounds_never_meet() -> None:
    keys = [Sound(number).key(index) for number in (0, 1, 7) for index in (0, 1, 2**20 - 1)]
    assert len(set(keys)) == len(keys)
    assert max(keys) < 0


def test_a_growing_prompt_keeps_its_start_up_to_the_answer() -> None:
    sound = Sound(0)
    grown: list[list[int]] = []
    messages = [Message("system", "s"), Message("user", "", audio_turn=1)]
    for _ in range(3):
        grown.append(render(messages, {1: sound}, VOCABULARY, answer=False).keys)
        sound.rows.append("row")
    sound.complete = True
    grown.append(render(messages, {1: sound}, VOCABULARY, answer=False).keys)
    grown.append(render(messages, {1: sound}, VOCABULARY, answer=True).keys)
    for one, more in pairwise(grown):
        assert len(one) < len(more)
        assert more[: len(one)] == one


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_the_common_start_is_common_and_ends_where_they_differ(one: list[int], other: list[int]) -> None:
    length = common_length(one, other)
    assert one[:length] == other[:length]
    assert length in (len(one), len(other)) or one[length] != other[length]
