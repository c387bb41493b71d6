"""A conversation is cut by whole exchanges, rarely and by much, and so that prompts agree with those before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contracts import Message, ToolCall
from stages.prompting import CALL_TOKENS, MESSAGE_TOKENS, PromptTooLargeError, cost_of, estimate_tokens, fit


def count_letters(text: str) -> int:
    return len(text)


def message(role: str, tokens: int) -> Message:
    """A message that costs `tokens`, its marks included."""
    return Message(role, "x" * (tokens - MESSAGE_TOKENS))


def cost(messages: tuple[Message, ...]) -> int:
    return sum(len(m.content) + MESSAGE_TOKENS for m in messages)


SYSTEM = message("system", 20)


def talk(*tokens: int) -> list[Message]:
    """User and assistant in turn, after the system message."""
    return [SYSTEM, *(message(("user", "assistant")[at % 2], cost) for at, cost in enumerate(tokens))]


def test_what_fits_stays() -> None:
    messages = talk(10, 20, 10)
    assert fit(messages, 60, count_letters) == tuple(messages)


def test_oldest_exchanges_go_first_and_whole_down_to_three_quarters() -> None:
    messages = talk(10, 20, 10, 20, 10, 20, 10)
    assert fit(messages, 110, count_letters) == (SYSTEM, *messages[5:])


def test_a_greeting_is_an_exchange_of_its_own() -> None:
    greeting = message("assistant", 30)
    messages = [SYSTEM, greeting, message("user", 10), message("assistant", 20), message("user", 20)]
    assert fit(messages, 99, count_letters) == (SYSTEM, *messages[2:])


def test_the_system_messages_alone_are_a_prompt() -> None:
    assert fit([SYSTEM, SYSTEM], 40, count_letters) == (SYSTEM, SYSTEM)
    assert fit([], 40, count_letters) == ()


def test_a_last_message_too_long_loses_its_head_at_a_word() -> None:
    last = Message("user", " ".join(["word"] * 50))
    *_, cut = fit([SYSTEM, message("user", 10), last], 82, count_letters)
    assert cut == Message("user", " ".join(["word"] * 11))


def test_a_last_message_without_words_is_cut_anywhere() -> None:
    assert fit([SYSTEM, Message("user", "x" * 100)], 80, count_letters)[-1].content == "x" * 54


def test_a_cut_between_words_keeps_both() -> None:
    text = "a" * 30 + " " + "b" * 30
    assert fit([SYSTEM, Message("user", text)], 57, count_letters)[-1].content == "b" * 30


def test_what_follows_the_last_question_stays_with_it() -> None:
    messages = [SYSTEM, message("user", 60), message("assistant", 20)]
    fitted = fit(messages, 80, count_letters)
    assert fitted[2] == messages[2]
    assert cost(fitted) <= 80


@pytest.mark.parametrize(
    "messages",
    [[message("system", 90)], [message("system", 70), message("user", 40)], [SYSTEM, message("assistant", 90)]],
)
def test_no_room_is_an_error(messages: list[Message]) -> None:
    with pytest.raises(PromptTooLargeError):
        fit(messages, 80, count_letters)


CONVERSATION = st.lists(st.tuples(st.integers(7, 30), st.integers(7, 60)), min_size=1, max_size=30)


@given(CONVERSATION)
def test_prompts_fit_and_keep_system_and_question(exchanges: list[tuple[int, int]]) -> None:
    messages = talk(*(tokens for exchange in exchanges for tokens in exchange))[:-1]
    fitted = fit(messages, 150, count_letters)
    assert cost(fitted) <= 150
    assert fitted[0] == SYSTEM
    assert fitted[-1] == messages[-1]
    assert list(fitted[1:]) == messages[len(messages) - len(fitted) + 1 :]
    assert [m.role for m in fitted[1::2]] == ["user"] * (len(fitted) // 2)


@given(CONVERSATION)
def test_each_prompt_continues_the_last_or_drops_a_quarter(exchanges: list[tuple[int, int]]) -> None:
    messages = talk(*(tokens for exchange in exchanges for tokens in exchange))
    dropped_before = 0
    for end in range(2, len(messages), 2):
        fitted = fit(messages[:end], 200, count_letters)
        dropped = end - len(fitted)
        assert dropped >= dropped_before
        if dropped > dropped_before:
            assert cost(fitted) <= 150
            assert cost(tuple(messages[:1] + messages[1 + dropped_before : end])) > 200
        dropped_before = dropped


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("Hello, can you hear me?", 7), ("at 10:30", 7), ("é", 1), ("你好", 4), ("😀", 3), ("a\nb", 3)],
)
def test_estimate(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


def test_calls_cost_what_they_say_and_the_marks_around_it() -> None:
    call = ToolCall("call_1", "look", '{"at": "stars"}')
    assert cost_of([Message("assistant", "hm", calls=(call, call))], count_letters) == (
        count_letters("hm") + MESSAGE_TOKENS + 2 * (count_letters("look") + count_letters(call.arguments) + CALL_TOKENS)
    )
