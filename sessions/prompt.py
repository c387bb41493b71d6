"""Which part of the history a prompt brings along, so that it stays small and its beginning stays put.

Theory of operation
    A Thinker keeps the prompt it has read in its KV; what follows an unchanged beginning costs nothing to read again.
    So the window's start moves seldom and far: when what lies behind it has outgrown `characters_max`, whole exchanges
    are left behind until half of that remains. It moves when a reply's text is complete: the caller then still has the
    reply to hear, and the Thinker the time to read the shorter prompt.

Rules
* Of a reply that was cut the prompt has the words that were heard, and says that the user interrupted.
* An exchange begins with what the caller said. The newest one is never left behind.
* No prompt exceeds `PROMPT_CHARACTERS_MAX`, whatever the window says; the newest item loses its head rather than be
  left out.
"""

from __future__ import annotations

from collections import deque

from sessions.items import Item
from stages.contracts import Message

# A prompt crosses a link as one frame of 256 KiB, a character has up to four bytes, and the instructions take their
# part; no context of a Thinker holds as much.
PROMPT_CHARACTERS_MAX = 32_000

# What a model reads of a reply that was cut: the words that were heard, broken off, and why.
CUT_OFF = " —"
INTERRUPTED = Message("system", "The user interrupted here and did not hear the rest.")
# What a model is asked when nobody has said anything for too long.
IDLE = Message("system", "The user has been silent for a while. In one short sentence, help them to go on.")


class PromptWindow:
    """The part of a conversation's history that its prompts are made of."""

    def __init__(self, characters_max: int) -> None:
        self._characters_max = characters_max
        self._first: str | None = None

    def trim(self, items: tuple[Item, ...]) -> bool:
        """Move the window's start if what lies behind it is too long. True where it has moved."""
        behind = self._behind(items)
        if _characters(behind) <= self._characters_max:
            return False
        starts = [index for index, item in enumerate(behind) if item.role == "user"]
        short = (index for index in starts if 2 * _characters(behind[index:]) <= self._characters_max)
        start = next(short, starts[-1] if starts else 0)
        self._first = behind[start].id
        return start > 0

    def messages(self, items: tuple[Item, ...]) -> tuple[Message, ...]:
        """The window's items as messages, oldest first; items without words are left out."""
        left, messages = PROMPT_CHARACTERS_MAX, deque[Message]()
        for item in reversed(self._behind(items)):
            left -= len(item.text)
            if left < 0 and messages:
                break
            if item.text and item.cut:
                messages.appendleft(INTERRUPTED)
            if item.text:
                text = item.text[-PROMPT_CHARACTERS_MAX:]
                messages.appendleft(Message(item.role, f"{text}{CUT_OFF}" if item.cut else text))
        return tuple(messages)

    def _behind(self, items: tuple[Item, ...]) -> tuple[Item, ...]:
        """The items from the window's start on; all of them where it has never moved or its item is gone."""
        start = next((index for index, item in enumerate(items) if item.id == self._first), 0)
        return items[start:]


def _characters(items: tuple[Item, ...]) -> int:
    return sum(len(item.text) for item in items)
