"""The conversation's memory: its items, what of them a prompt brings along, and what changes them.

Rules
* Every change is saved with the effect that makes it.
* Of a reply that was cut the history holds the words that were heard, and says in which word it was cut; what is known
  later corrects it. The prompt says that the caller interrupted.
* A client that truncates moves the cut, either way, within what was sent; of a reply that is not over yet, once it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from media.chunk import ms_to_samples
from sessions.effects import Effect, SaveDeletion, SaveItem, Tell
from sessions.events import CommandRefused, ItemAdded, ItemDeleted, ItemRefined, ItemRetrieved, ItemTruncated
from sessions.heard import Cut, shortened
from sessions.items import ITEM_EXISTS, ROOT, History, Item, ItemError
from sessions.plan import Ended
from sessions.prompt import PromptWindow
from sessions.response import Phase
from sessions.speaking import Speaking
from stages.contracts import Message


class Remembered:
    """`speaking` knows how much was heard of the last replies."""

    def __init__(self, items: tuple[Item, ...], characters_max: int, speaking: Speaking) -> None:
        self._history = History(items)
        self._speaking = speaking
        self._window = PromptWindow(characters_max)
        self._window.trim(items)

    @property
    def items(self) -> tuple[Item, ...]:
        return self._history.items

    @property
    def last_id(self) -> str | None:
        return self._history.last_id

    def has(self, item_id: str) -> bool:
        return self._history.has(item_id)

    @property
    def is_unanswered(self) -> bool:
        """The last words of the conversation are the caller's."""
        last = next((item for item in reversed(self._history.items) if item.role != "system" and item.text), None)
        return last is not None and last.role == "user"

    # ---- prompts -----------------------------------------------------------------------------------

    def messages(self) -> tuple[Message, ...]:
        """What a prompt brings along."""
        return self._window.messages(self._history.items)

    def messages_until(self, item_id: str | None) -> tuple[Message, ...]:
        """What the prompt of a response brings along that follows `item_id`; None: it follows nothing."""
        items = self._history.items
        ends = next((place for place, item in enumerate(items, 1) if item.id == item_id), 0)
        return self._window.messages(items[:ends])

    def trim(self, item_id: str, text: str) -> bool:
        """Leave behind what is too much once the reply `text` is history. True where that is something."""
        return self._window.trim((*self._history.items, Item(item_id, "assistant", text, spoken=True)))

    # ---- what the caller said ----------------------------------------------------------------------

    def add_turn(self, item: Item) -> list[Effect]:
        return self._added(item, None)

    def understand(self, item_id: str, text: str) -> list[Effect]:
        """A turn's words are known; one without any leaves no trace."""
        if text:
            return self._replaced(replace(self._history.find(item_id), text=text))
        self._delete(item_id)
        return [SaveDeletion(item_id), Tell(ItemDeleted(item_id))]

    # ---- what the client wants ---------------------------------------------------------------------

    def create(self, item: Item, previous: str | None) -> list[Effect]:
        try:
            return self._added(item, previous)
        except ItemError as error:
            param = "item.id" if error.code == ITEM_EXISTS else "previous_item_id"
            return [Tell(CommandRefused(error.code, str(error), param))]

    def _added(self, item: Item, previous: str | None) -> list[Effect]:
        """Raises `ItemError` where it cannot stand there."""
        left = self._history.add(item, previous)
        return [Tell(ItemAdded(item, self._history.previous_of(item.id))), *self._saved(item, left)]

    def delete(self, item_id: str) -> list[Effect]:
        try:
            self._delete(item_id)
        except ItemError as error:
            return [Tell(CommandRefused(error.code, str(error), "item_id"))]
        return [Tell(ItemDeleted(item_id)), SaveDeletion(item_id)]

    def _delete(self, item_id: str) -> None:
        """Raises `ItemError` where there is no such item."""
        before = self._history.previous_of(item_id)
        self._history.delete(item_id)
        self._speaking.item_left(item_id, before)

    def retrieve(self, item_id: str) -> list[Effect]:
        try:
            return [Tell(ItemRetrieved(self._history.find(item_id)))]
        except ItemError as error:
            return [Tell(CommandRefused(error.code, str(error), "item_id"))]

    def truncate(self, item_id: str, audio_end_ms: int) -> list[Effect]:
        """The client says how much of a reply it played: history ends there. More than was sent means all of that."""
        if not self._history.has(item_id) and self._speaking.want_cut(item_id, audio_end_ms):
            return [Tell(ItemTruncated(item_id, audio_end_ms))]
        try:
            item = self._history.find(item_id)
        except ItemError as error:
            return [Tell(CommandRefused(error.code, str(error), "item_id"))]
        if item.role != "assistant" or not item.spoken:
            return [Tell(CommandRefused("invalid_item", "only spoken assistant items can be truncated", "item_id"))]
        samples = ms_to_samples(audio_end_ms, item.sample_rate)
        cut = self._speaking.truncate(item_id, samples) or shortened(item, min(samples, item.audio_samples))
        if cut.samples >= item.audio_samples and not item.cut:
            return [Tell(ItemTruncated(item_id, cut.ms))]
        return [*self._replaced(cut.applied_to(item)), Tell(ItemTruncated(item_id, cut.ms, cut))]

    # ---- what was said -----------------------------------------------------------------------------

    def remember(self, ended: Ended) -> list[Effect]:
        """Enter a response of the conversation that has ended."""
        succeeded = ended.phase is Phase.SUCCEEDED
        if not (succeeded or ended.text or ended.sent_samples):
            return []  # nothing of it was said
        item = Item(
            ended.plan.item,
            "assistant",
            ended.text,
            spoken=ended.plan.with_audio,
            status="completed" if ended.whole else "incomplete",
            audio_samples=ended.sent_samples,
            cut=not succeeded,
            sample_rate=ended.plan.sample_rate,
        )
        if ended.cut is not None:
            item = ended.cut.applied_to(item)
        # What the caller said meanwhile comes after the reply that they spoke over.
        # Where the item before it is gone, it was among the oldest that had to leave, and all before it with it.
        before = ended.plan.previous_item
        left = self._history.add(item, before if before and self._history.has(before) else ROOT)
        return self._saved(item, left)

    def refine(self) -> list[Effect]:
        """Correct what the history says of replies that were cut."""
        effects: list[Effect] = []
        for item_id in self._speaking.take_refined():
            cut = self._speaking.cut_of(item_id)
            if cut is not None and self._history.has(item_id):
                saved = self._replaced(cut.applied_to(self._history.find(item_id)))
                effects += [*saved, Tell(ItemRefined(item_id, cut))] if saved else []
        return effects

    def cut_off(self, cuts: Iterable[tuple[str, Cut]]) -> list[Effect]:
        """Items of replies that the caller has interrupted after their end, before that of their sound."""
        effects: list[Effect] = []
        for item_id, cut in cuts:
            if self._history.has(item_id):
                effects += self._replaced(cut.applied_to(self._history.find(item_id)))
                effects.append(Tell(ItemTruncated(item_id, cut.ms, cut)))
        return effects

    def _replaced(self, item: Item) -> list[Effect]:
        if self._history.find(item.id) == item:
            return []
        self._history.replace(item)
        return [SaveItem(item, self._history.previous_of(item.id))]

    def _saved(self, item: Item, left: tuple[str, ...]) -> list[Effect]:
        return [SaveItem(item, self._history.previous_of(item.id)), *(SaveDeletion(old) for old in left)]
