"""The conversation's items, in order: what was said, by whom, and how much of it.

Rules
* An item's id is unique in its session and never reused. Order changes only by insertion and deletion.
* `History` alone decides the order: what the prompt, the store and the client have follows from it. An item has its
  place from the moment it begins to be made, so what comes meanwhile stands behind it.
* The history is bounded by `ITEMS_MAX` and `CHARACTERS_MAX`; the oldest leave first, and `add` tells which.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """Items by id, in conversation order, and the places of those that are being made.

    `items` are those of the conversation. One that is being made has its place from its beginning on, and is an item of
    the conversation once it is entered there; until its client was told of it, nothing is said to stand behind it.
    """

    def __init__(self, items: tuple[Item, ...] = ()) -> None:
        self._order: list[Item] = list(items)
        self._making: dict[str, bool] = {}  # by its id, whether the client knows of it

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(item for item in self._order if item.id not in self._making)

    @property
    def order(self) -> tuple[Item, ...]:
        """The items, and in their places those that are being made, as they began."""
        return tuple(self._order)

    @property
    def last_id(self) -> str | None:
        return next((item.id for item in reversed(self._order) if item.id not in self._making), None)

    @property
    def last_told(self) -> str | None:
        """What its client has last."""
        return self._told_up_to(len(self._order))

    def find(self, item_id: str) -> Item:
        """Raises `ItemError` where there is no such item."""
        return self._order[self._index(item_id)]

    def standing(self, item_id: str) -> Item:
        """An item, or what is being made, as it began. Raises `ItemError` where there is no such thing."""
        return self._order[self._place(item_id)]

    def has(self, item_id: str) -> bool:
        return item_id not in self._making and self._stands(item_id)

    def previous_of(self, item_id: str) -> str | None:
        """The item before this one, which may be being made."""
        before = reversed(self.until(item_id))
        return next((item.id for item in before), None)

    def until(self, item_id: str) -> tuple[Item, ...]:
        """The items before this one, which may be being made."""
        return tuple(item for item in self._order[: self._place(item_id)] if item.id not in self._making)

    def told_before(self, item_id: str) -> str | None:
        """What its client has before this one: what it is to be told as `previous_item_id`."""
        return self._told_up_to(self._place(item_id))

    def add(self, item: Item, previous: str | None = None) -> tuple[str, ...]:
        """Insert after item `previous` (None: at the end, `ROOT`: at the start). Gives the ids that had to leave."""
        place = len(self._order) if previous is None else 0 if previous == ROOT else self._index(previous) + 1
        return self._insert(item, place)

    def add_behind(self, item: Item, previous: str) -> tuple[str, ...]:
        """Insert after `previous`, which may be being made. Gives the ids that had to leave."""
        return self._insert(item, self._place(previous) + 1)

    def _insert(self, item: Item, place: int) -> tuple[str, ...]:
        if self._stands(item.id):
            raise ItemError(ITEM_EXISTS, f"item {item.id!r} already exists")
        self._order.insert(place, item)
        return self.trim(item)

    def trim(self, kept: Item | None = None) -> tuple[str, ...]:
        """The oldest leave while there is too much, but for `kept`, wherever it stands. Gives the ids of those."""
        left = []
        while self._is_too_long():
            oldest = next(item.id for item in self.items if item is not kept)
            self.delete(oldest)
            left.append(oldest)
        return tuple(left)

    def _is_too_long(self) -> bool:
        items = self.items
        characters = sum(item.characters for item in items)
        return len(items) > ITEMS_MAX or (characters > CHARACTERS_MAX and len(items) > 1)

    def replace(self, item: Item) -> None:
        self._order[self._index(item.id)] = item

    def delete(self, item_id: str) -> None:
        del self._order[self._index(item_id)]

    # ---- what is being made ------------------------------------------------------------------------

    def begin(self, item: Item, behind: Sequence[str | None]) -> None:
        """`item` is being made, and stands behind the last of these that there is, being made or not; where there is
        none, at the start."""
        assert not self._stands(item.id), "an id is never used again"
        names = [name for name in behind if name is not None and self._stands(name)]
        self._order.insert(self._place(names[-1]) + 1 if names else 0, item)
        self._making[item.id] = False

    def tell(self, item_id: str) -> str | None:
        """Its client is told now of what is being made, or of its end. Gives what it has before that."""
        self._making[item_id] = True
        return self.told_before(item_id)

    def enter(self, item: Item) -> tuple[str, ...]:
        """`item` was made: it is an item of the conversation, in its place. Gives the ids that had to leave."""
        del self._making[item.id]
        self.replace(item)
        return self.trim(item)

    def give_up(self, item_id: str) -> None:
        """What was being made leaves nothing."""
        del self._making[item_id]
        self.delete(item_id)

    def foreseen(self, item: Item) -> History:
        """As it will be once `item` is entered."""
        then = History(self.order)
        then._making = dict(self._making)
        then.enter(item)
        return then

    def _told_up_to(self, place: int) -> str | None:
        before = reversed(self._order[:place])
        return next((item.id for item in before if self._making.get(item.id, True)), None)

    def _stands(self, item_id: str) -> bool:
        return any(item.id == item_id for item in self._order)

    def _index(self, item_id: str) -> int:
        """Of an item of the conversation."""
        if item_id in self._making:
            raise _not_found(item_id)
        return self._place(item_id)

    def _place(self, item_id: str) -> int:
        for place, item in enumerate(self._order):
            if item.id == item_id:
                return place
        raise _not_found(item_id)


def _not_found(item_id: str) -> ItemError:
    return ItemError(ITEM_NOT_FOUND, f"item {item_id!r} is not in the conversation")
