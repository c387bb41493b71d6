"""Which part of the history a prompt brings along, so that it stays small and its beginning stays put.

Theory of operation
    A Thinker keeps the prompt it has read in its KV; what follows an unchanged beginning costs nothing to read again.
    So the window's start moves seldom and far: when what lies behind it has outgrown `characters_max`, whole exchanges
    are left behind until half of that remains. It moves when a reply's text is complete: the caller then still has the
    reply to hear, and the Thinker the time to read the shorter prompt.

Rules
* Of a reply that was cut the prompt has the words that were heard, and says that the user interrupted, or that the line
  broke. Of one that broke off with its gateway it has all words that may have been heard, and says of which that is not
  known. It never has the words that bridged a wait before it.
* An exchange begins with what the caller said. The newest one is never left behind.
* Every call is followed by its result; by `PENDING` while that is not there. Calls that are incomplete, and results
  whose call is left behind or gone, are left out.
* No prompt exceeds `PROMPT_CHARACTERS_MAX`, whatever the window says; the newest item loses its head rather than be
  left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from sessions.filler import without_filler
from sessions.items import Item
from sessions.tool_calls import outputs
from stages.contracts import Message, ToolCall

# A prompt crosses a link as one frame of 256 KiB, a character has up to four bytes, and the instructions take their
# part; no context of a Thinker holds as much.
PROMPT_CHARACTERS_MAX = 32_000

# What a model reads of a reply that was cut: the words that were heard, broken off, and why.
CUT_OFF = " —"
INTERRUPTED = Message("system", "The user interrupted here and did not hear the rest.")
LINE_BROKE = Message("system", "The line broke here. The user did not hear the rest.")
# What a model reads of one that broke off with its gateway: it is to believe neither that these words were heard nor
# that they were not.
BROKE_OFF = "The line broke here. It is not known whether the user heard these last words: "
# What a model reads in place of a result: a template of a chat has no room for a call without one.
PENDING = "There is no result yet: this is still being done."
# What a model is asked when nobody has said anything for too long.
IDLE = Message("system", "The user has been silent for a while. In one short sentence, help them to go on.")
# And when it is not answered, however often.
GOODBYE = Message("system", "The user does not answer, and the call ends now. In one short sentence, say goodbye.")
# What a model is asked when the user is back whose line broke amid a reply.
GO_ON = Message("system", "The user is back on the line. Go on from the words that they heard last.")


def broke_off(words: str) -> Message:
    """What a model reads behind a reply of which `words` may have been heard."""
    return Message("system", f'{BROKE_OFF}"{words[-PROMPT_CHARACTERS_MAX:]}"')


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

    def messages(self, items: tuple[Item, ...], results: Mapping[str, str] | None = None) -> tuple[Message, ...]:
        """The window's items as messages, oldest first; items without words are left out. `results` of calls by their
        ids; None: those that are among `items`."""
        script = _Script(outputs(items) if results is None else results)
        for item in _fitting(self._behind(items)):
            script.add(item)
        return script.whole()

    def _behind(self, items: tuple[Item, ...]) -> tuple[Item, ...]:
        """The items from the window's start on; all of them where it has never moved or its item is gone."""
        start = next((index for index, item in enumerate(items) if item.id == self._first), 0)
        return items[start:]


def _characters(items: tuple[Item, ...]) -> int:
    return sum(item.characters for item in items)


def _fitting(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """The newest of `items`, as many as a prompt may bring along; at least one that has words."""
    left, first = PROMPT_CHARACTERS_MAX, len(items)
    has_words = False
    for place in reversed(range(len(items))):
        left -= items[place].characters
        if left < 0 and has_words:
            break
        first, has_words = place, has_words or bool(items[place].words)
    return items[first:]


class _Script:
    """Messages as they come of items. Calls that follow each other are made together, and then answered."""

    def __init__(self, results: Mapping[str, str]) -> None:
        self._results = results
        self._messages: list[Message] = []
        self._calls: list[ToolCall] = []

    def add(self, item: Item) -> None:
        match item.kind:
            case "function_call" if item.status == "completed":
                self._calls.append(ToolCall(item.call_id, item.name, item.text))
            case "function_call_output":
                self._answer()
            case "message":
                self._answer()
                self._say(item)
            case _:
                pass

    def whole(self) -> tuple[Message, ...]:
        self._answer()
        return tuple(self._messages)

    def _say(self, item: Item) -> None:
        words = without_filler(item.words, item.filler)
        if not words:
            return
        text = words[-PROMPT_CHARACTERS_MAX:]
        self._messages.append(Message(item.role, f"{text}{CUT_OFF}" if item.cut else text))
        if item.cut:
            why = LINE_BROKE if item.broke_off else INTERRUPTED
            self._messages.append(broke_off(item.possibly_heard) if item.possibly_heard else why)

    def _answer(self) -> None:
        if not self._calls:
            return
        calls, self._calls = tuple(self._calls), []
        last = self._messages[-1] if self._messages else None
        if last is not None and last.role == "assistant" and not last.calls:
            self._messages[-1] = structs.replace(last, calls=calls)
        else:
            self._messages.append(Message("assistant", "", calls=calls))
        self._messages += [Message("tool", self._results.get(call.id, PENDING), call_id=call.id) for call in calls]
