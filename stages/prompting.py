"""Fitting a conversation into the Thinker's context.

Theory of operation
    The engine keeps the KV of the last prompt and reuses the part that the next one has in common with it, so a prompt
    must grow at its end and stay as it is before. Dropping one old turn each time would change every prompt near its
    start. So when a conversation outgrows the budget it is cut down to three quarters at once, and then grows again.
    Nothing is remembered for that: `fit` goes through the conversation as it grew and cuts where it would have cut
    then, so that each prompt of a conversation agrees with the one before.

Rules
* System messages at the start are always kept.
* The rest is dropped oldest first, in whole exchanges: a user message with what follows it up to the next one.
* The last exchange is always kept. If it is too long by itself, its last user message loses its head.
* Tokens are counted by the caller's function, per message, plus `MESSAGE_TOKENS` for the marks around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from stages.contracts import Message

TokenCounter = Callable[[str], int]

MESSAGE_TOKENS = 6  # role and marks around a message: five in ChatML, Llama 3 and Gemma
CALL_TOKENS = 24  # the marks around name and arguments, in the forms of today's models
KEEP_PART = 0.75  # what is kept when the budget is exceeded
LAST_TOKENS_MIN = 16  # a last message cut below this cannot be answered

_TOKEN_LIKE = re.compile(r"[A-Za-z]+|\s(?=\d)|[^\S ]|\S")
_LETTERS_PER_TOKEN = 5


class PromptTooLargeError(ValueError):
    """The system messages leave no room for the last message: the configuration must change."""


def estimate_tokens(text: str) -> int:
    """About how many tokens a byte-pair vocabulary makes of `text`; for ordinary prose rather too many.

    A word costs one token per five letters begun; a digit, a mark or a line's end one; any other character as many as
    it has UTF-8 bytes, less one. Strings of random letters cost more than this says, so an engine's own count, where
    it reports one, has the last word.
    """
    return sum(_cost(part) for part in _TOKEN_LIKE.findall(text))


def _cost(part: str) -> int:
    if part.isascii():
        return -(-len(part) // _LETTERS_PER_TOKEN)
    return max(1, len(part.encode("utf-8", "replace")) - 1)


def fit(messages: Sequence[Message], budget_tokens: int, count: TokenCounter = estimate_tokens) -> tuple[Message, ...]:
    """The messages that fit `budget_tokens`, by the rules above. Raises `PromptTooLargeError`."""
    head = _system_head(messages)
    exchanges = _exchanges(messages[len(head) :])
    room = budget_tokens - cost_of(head, count)
    room_after_cut = room - int(budget_tokens * (1 - KEEP_PART))
    costs = [_exchange_cost(exchange, count) for exchange in exchanges]
    first = _first_kept(costs, room, room_after_cut)
    kept = [message for exchange in exchanges[first:] for message in exchange]
    if sum(asked + answered for asked, answered in costs[first:]) <= room:
        return (*head, *kept)
    return (*head, *_shortened(kept, room, count))


def _system_head(messages: Sequence[Message]) -> list[Message]:
    end = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
    return list(messages[:end])


def _exchanges(messages: Sequence[Message]) -> list[list[Message]]:
    """Whole exchanges in order; what precedes the first user message, a greeting, is one of its own."""
    starts = [at for at, message in enumerate(messages) if message.role == "user" or at == 0]
    return [list(messages[start:end]) for start, end in pairwise([*starts, len(messages)])]


def cost_of(messages: Sequence[Message], count: TokenCounter = estimate_tokens) -> int:
    """What `messages` cost of a budget."""
    return sum(_cost_of_one(message, count) for message in messages)


def _cost_of_one(message: Message, count: TokenCounter) -> int:
    calls = sum(count(call.name) + count(call.arguments) + CALL_TOKENS for call in message.calls)
    return count(message.content) + calls + MESSAGE_TOKENS


def _exchange_cost(exchange: Sequence[Message], count: TokenCounter) -> tuple[int, int]:
    """Of the question, which ends the prompt when it is asked, and of what came to follow it."""
    asked = 1 if exchange[0].role == "user" else 0
    return cost_of(exchange[:asked], count), cost_of(exchange[asked:], count)


def _first_kept(costs: Sequence[tuple[int, int]], room: int, room_after_cut: int) -> int:
    """Index of the oldest exchange kept, after going through the conversation as it grew, prompt by prompt."""
    first, kept = 0, 0
    for newest, (asked, answered) in enumerate(costs):
        kept += asked + (answered if newest == len(costs) - 1 else 0)
        is_over = kept > room
        while is_over and kept > room_after_cut and first < newest:
            kept -= sum(costs[first])
            first += 1
        kept += answered
    return first


def _shortened(last: Sequence[Message], room: int, count: TokenCounter) -> list[Message]:
    """The last exchange with its user message cut to fit `room`."""
    left = room - cost_of(last[1:], count) - MESSAGE_TOKENS
    if not last or last[0].role != "user" or left < LAST_TOKENS_MIN:
        raise PromptTooLargeError("the budget does not hold the system messages and a last message")
    return [Message("user", _tail(last[0].content, left, count)), *last[1:]]


def _tail(text: str, room: int, count: TokenCounter) -> str:
    """The longest end of `text`, from a word's start where there is one, that costs at most `room`."""
    low, high = 0, len(text)  # cutting `high` characters is enough; costs fall as more is cut
    while low < high:
        middle = (low + high) // 2
        if count(text[middle:]) <= room:
            high = middle
        else:
            low = middle + 1
    cut = text[low:]
    is_inside_word = low > 0 and not text[low - 1].isspace() and not cut[:1].isspace()
    from_word = cut.split(maxsplit=1)
    return from_word[1] if is_inside_word and len(from_word) > 1 else cut.lstrip()
