"""The conversation's items, in order: what was said, by whom, and how much of it.

Rules
* An item's id is unique in its session and never reused. Order changes only by insertion and deletion.
* The history is bounded by `ITEMS_MAX` and `CHARACTERS_MAX`; the oldest leave first, and `add` tells which.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from media.playout import Basis
from sessions.reply import Unsure
from sessions.settings import OUTPUT_RATE

Role = Literal["system", "user", "assistant"]
ItemKind = Literal["message", "function_call", "function_call_output"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]

# Far beyond any prompt's context. At up to four bytes a character the whole history fits the store's snapshot of 2 MiB.
ITEMS_MAX = 512
CHARACTERS_MAX = 256_000
ROOT = "root"  # `previous_item_id` that means: before everything
ITEM_EXISTS = "item_exists"
ITEM_NOT_FOUND = "item_not_found"
ITEM_IN_PROGRESS = "item_in_progress"


@dataclass(frozen=True, slots=True)
class InputSpan:
    """Where a turn stands in its session's input: from `start` up to `end`, samples of 16 kHz."""

    start: int
    end: int


class ItemError(ValueError):
    """The client named an item or a call that is not there, or used an id twice."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Item:
    """`text` is the transcript of spoken items. `spoken` tells audio from typed text.

    A call of the function `name` is an item of the assistant, with its arguments for `text`; the output of one is an
    item of nobody (`system`), with the call's `call_id`. `by_service`: a reply of ours made the call, for the service
    to carry out; no call that a client brings is so, nor one whose output it has deleted.

    `cut` says of a reply that it was ended before it was all said; of one that was written, what there is of it counts
    as read. `audio_samples` counts samples, at `sample_rate`, of a spoken one that were sent. Where that was cut,
    `heard_samples` of them are history, by `heard_basis` and within `heard_error_samples`, and it fell into `cut_word`.
    `broke_off`: its call ended amid it. `unsure`: it did so with its gateway, and more of it may have been heard.
    `filler`: the words at its beginning that bridged a wait, and that no model wrote. `span`: where a turn of the
    caller was said, which makes no other item of it.
    """

    id: str
    role: Role
    text: str
    spoken: bool
    status: ItemStatus = "completed"
    audio_samples: int = 0
    cut: bool = False
    heard_samples: int = 0
    heard_basis: Basis = "estimated"
    cut_word: str = ""
    heard_error_samples: int = 0
    kind: ItemKind = "message"
    call_id: str = ""
    name: str = ""
    by_service: bool = False
    sample_rate: int = OUTPUT_RATE
    broke_off: bool = False
    unsure: Unsure | None = None
    filler: str = ""
    span: InputSpan | None = field(default=None, compare=False)

    @property
    def possibly_heard(self) -> str:
        """The words of which it is not known whether they were heard; they follow `text`."""
        return self.unsure.beyond(self.heard_samples) if self.unsure else ""

    @property
    def words(self) -> str:
        """All that it says, heard for certain or not."""
        return f"{self.text} {self.possibly_heard}".strip() if self.unsure else self.text

    @property
    def characters(self) -> int:
        """How much of a prompt it takes."""
        return len(self.words) + len(self.name) + len(self.call_id)


class History:
    """Items by id, in conversation order."""

    def __init__(self, items: tuple[Item, ...] = ()) -> None:
        self._items: list[Item] = list(items)

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(self._items)

    @property
    def last_id(self) -> str | None:
        return self._items[-1].id if self._items else None

    def find(self, item_id: str) -> Item:
        """Raises `ItemError` where there is no such item."""
        return self._items[self._index(item_id)]

    def has(self, item_id: str) -> bool:
        return any(item.id == item_id for item in self._items)

    def previous_of(self, item_id: str) -> str | None:
        index = self._index(item_id)
        return self._items[index - 1].id if index else None

    def add(self, item: Item, previous: str | None = None) -> tuple[str, ...]:
        """Insert after `previous` (None: at the end, `ROOT`: at the start). Gives the ids that had to leave."""
        if self.has(item.id):
            raise ItemError(ITEM_EXISTS, f"item {item.id!r} already exists")
        place = len(self._items) if previous is None else 0 if previous == ROOT else self._index(previous) + 1
        self._items.insert(place, item)
        return self.trim(item)

    def trim(self, kept: Item | None = None) -> tuple[str, ...]:
        """The oldest leave while there is too much, but for `kept`, wherever it stands. Gives the ids of those."""
        left = []
        while self._is_too_long():
            oldest = 1 if self._items[0] is kept else 0
            left.append(self._items.pop(oldest).id)
        return tuple(left)

    def _is_too_long(self) -> bool:
        characters = sum(item.characters for item in self._items)
        return len(self._items) > ITEMS_MAX or (characters > CHARACTERS_MAX and len(self._items) > 1)

    def replace(self, item: Item) -> None:
        self._items[self._index(item.id)] = item

    def delete(self, item_id: str) -> None:
        del self._items[self._index(item_id)]

    def _index(self, item_id: str) -> int:
        for index, item in enumerate(self._items):
            if item.id == item_id:
                return index
        raise ItemError(ITEM_NOT_FOUND, f"item {item_id!r} is not in the conversation")
