"""The conversation's memory: its items, what of them a prompt brings along, and what changes them.

Rules
* Every change is saved with the effect that makes it. What has to leave, as there is too much, is told.
* Of a reply that was cut the history holds the words that were heard, and says in which word it was cut; what is known
  later corrects it. The prompt says that the caller interrupted.
* Calls of tools and their outputs are items (`sessions.tool_calls`). A reply that is cut takes no call with it.
* Whatever the service has named, or will, is no name for what a client brings: turns and replies that are not history
  yet will be, and of those that were deleted something may still become known.
* A client that truncates moves the cut, either way, within what was sent; of a reply that is not over yet, once it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from media.chunk import ms_to_samples
from sessions.effects import Effect, Measured, SaveCallSettled, SaveDeletion, SaveItem, Tell
from sessions.events import (
    CommandRefused,
    HistoryTrimmed,
    ItemAdded,
    ItemDeleted,
    ItemRefined,
    ItemRetrieved,
    ItemTruncated,
)
from sessions.heard import Cut, shortened
from sessions.hearing import Hearing
from sessions.items import ITEM_EXISTS, ITEM_IN_PROGRESS, ITEM_NOT_FOUND, History, Item, ItemError
from sessions.plan import Ended, Plan
from sessions.prompt import PromptWindow
from sessions.response import Phase
from sessions.service_calls import Settled
from sessions.speaking import Speaking
from sessions.tool_calls import Called, check_call, output_item, outputs, place_of
from stages.contracts import Message

_PARAMS = {ITEM_EXISTS: "item.id", ITEM_NOT_FOUND: "previous_item_id"}  # of all others, item.call_id


class Remembered:
    """`hearing` and `speaking` know what is not history yet, and `speaking` how much was heard of the last replies, and
    what is being made; their places are in the same `history`."""

    def __init__(self, history: History, characters_max: int, hearing: Hearing, speaking: Speaking) -> None:
        self._history = history
        self._hearing = hearing
        self._speaking = speaking
        self._window = PromptWindow(characters_max)
        self._window.trim(history.items)

    @property
    def items(self) -> tuple[Item, ...]:
        return self._history.items

    @property
    def last_id(self) -> str | None:
        return self._history.last_id

    @property
    def last_told(self) -> str | None:
        """What its client has last, whether or not that is over."""
        return self._history.last_told

    def has(self, item_id: str) -> bool:
        return self._history.has(item_id)

    @property
    def is_unanswered(self) -> bool:
        """The conversation ends with what the caller said, or with what came of a call: there is something to say."""
        last = self._last
        return last is not None and (last.role == "user" or last.kind == "function_call_output")

    @property
    def unfinished(self) -> Item | None:
        """The last item, where nobody has answered it or it broke off."""
        last = self._last
        return last if self.is_unanswered or (last is not None and last.broke_off) else None

    @property
    def is_waited_for(self) -> bool:
        """The conversation ends with what the caller said, or with a call: they wait for what we have to say."""
        last = self._last
        return last is not None and (last.role == "user" or last.kind == "function_call")

    @property
    def _last(self) -> Item | None:
        """The last item that was said, called or came of a call."""
        counts = (
            item
            for item in reversed(self._history.items)
            if item.kind == "function_call_output" or (item.role != "system" and item.words)
        )
        return next((item for item in counts if item.kind == "message" or item.status == "completed"), None)

    def take_over(self) -> list[Effect]:
        """Enter what was being said when another gateway died; what its client reports of that is heeded. Where it died
        between an item and the leaving of others for that, these leave now."""
        left = self._history.trim()
        broken = [item for item in self._history.items if item.unsure]
        for item in broken:
            self._speaking.broke_off(item)
        return [*self._left(left), *(SaveItem(item, self._history.previous_of(item.id)) for item in broken)]

    # ---- prompts -----------------------------------------------------------------------------------

    def messages(self) -> tuple[Message, ...]:
        """What a prompt brings along."""
        return self._window.messages(self._history.items)

    def messages_until(self, item_id: str) -> tuple[Message, ...]:
        """What the prompt of a response brings along whose message, which is being made, is `item_id`: what stands
        before that. Results of calls are read as soon as they are there."""
        return self._window.messages(self._history.until(item_id), outputs(self._history.items))

    def read_ahead(self, plan: Plan, text: str) -> tuple[Message, ...]:
        """What a prompt will bring along once the reply `text` of `plan` is history. What is too much then is left
        behind."""
        foreseen = self._history
        if text:
            foreseen = foreseen.foreseen(Item(plan.item, "assistant", text, spoken=True))
        self._window.trim(foreseen.items)
        return self._window.messages(foreseen.items)

    # ---- what the caller said ----------------------------------------------------------------------

    def add_turn(self, item: Item) -> list[Effect]:
        return self._added(item, None)

    def understand(self, item_id: str, text: str) -> list[Effect]:
        """A turn's words are known; one without any leaves no trace."""
        if text:
            return self._replaced(replace(self._history.find(item_id), text=text))
        self._delete(item_id)
        return [SaveDeletion(item_id), Tell(ItemDeleted(item_id))]

    def hear_again(self, since: int) -> list[Effect]:
        """What was said from sample `since` on is heard once more, and makes turns of its own: those of before leave
        whose words never became known."""
        unknown = [item.id for item in self.items if item.span and not item.text and item.span.start >= since]
        return [effect for item_id in unknown for effect in self.delete(item_id)]

    # ---- what the client wants ---------------------------------------------------------------------

    def create(self, item: Item, previous: str | None) -> list[Effect]:
        """Add what the client brings; the output of a call stands behind that, whatever `previous` says."""
        try:
            self._check_name(item.id)
            if item.kind == "function_call_output":
                left = self._add_output(item)
                return [self._told(item), *self._saved(item, left)]
            if item.kind == "function_call":
                check_call(item, self._history.items, is_taken=self._speaking.takes(item.call_id))
            return self._added(item, previous)
        except ItemError as error:
            return self._refused(error, previous, _PARAMS.get(error.code, "item.call_id"))

    def _check_name(self, item_id: str) -> None:
        """Raises `ItemError` where the service has named something so that is not, or was, history."""
        if self._hearing.has_item(item_id) or self._speaking.takes(item_id):
            raise ItemError(ITEM_EXISTS, f"item {item_id!r} is one of the service")

    def _added(self, item: Item, previous: str | None) -> list[Effect]:
        """Raises `ItemError` where it cannot stand there."""
        left = self._history.add(item, previous)
        return [self._told(item), *self._saved(item, left)]

    def _told(self, item: Item) -> Effect:
        return Tell(ItemAdded(item, self._history.told_before(item.id)))

    def delete(self, item_id: str) -> list[Effect]:
        try:
            answered = self._answered_by(self._history.find(item_id))
            self._delete(item_id)
        except ItemError as error:
            return self._refused(error, item_id)
        # A call whose answer is gone is not one that was never answered.
        over = [effect for call in answered for effect in self._replaced(replace(call, by_service=False))]
        return [Tell(ItemDeleted(item_id)), *over, SaveDeletion(item_id)]

    def _answered_by(self, output: Item) -> list[Item]:
        """The call that the service has carried out and of which `output` came."""
        if output.kind != "function_call_output":
            return []
        return [item for item in self.items if item.by_service and item.call_id == output.call_id]

    def _delete(self, item_id: str) -> None:
        """Raises `ItemError` where there is no such item."""
        self._history.delete(item_id)
        self._speaking.item_left(item_id)

    def retrieve(self, item_id: str) -> list[Effect]:
        try:
            return [Tell(ItemRetrieved(self._history.find(item_id)))]
        except ItemError as error:
            return self._refused(error, item_id)

    def _refused(self, error: ItemError, named: str | None, param: str = "item_id") -> list[Effect]:
        """There is no item `named`, or not yet: one of a reply enters the history when it is over."""
        if error.code == ITEM_NOT_FOUND and named is not None and self._speaking.is_making(named):
            return [Tell(CommandRefused(ITEM_IN_PROGRESS, f"item {named!r} is not over yet", param))]
        return [Tell(CommandRefused(error.code, str(error), param))]

    def truncate(self, item_id: str, audio_end_ms: int, now_ns: int) -> list[Effect]:
        """The client says how much of a reply it played: history ends there. More than was sent means all of that."""
        try:
            item = self._history.standing(item_id)
        except ItemError as error:
            return self._refused(error, item_id)
        if item.role != "assistant" or not item.spoken:
            return [Tell(CommandRefused("invalid_item", "only spoken assistant items can be truncated", "item_id"))]
        if not self._history.has(item_id):
            return [Tell(ItemTruncated(item_id, self._speaking.want_cut(item_id, audio_end_ms, now_ns)))]
        samples = ms_to_samples(audio_end_ms, item.sample_rate)
        known = self._speaking.truncate(item_id, samples, now_ns)
        cut = known or shortened(item, samples)
        if cut.samples >= item.audio_samples and not item.cut:
            return [Tell(ItemTruncated(item_id, cut.ms))]
        return [*self._replaced(cut.applied_to(item)), Tell(ItemTruncated(item_id, cut.ms, cut))]

    # ---- what was said -----------------------------------------------------------------------------

    def remember(self, ended: Ended) -> list[Effect]:
        """Enter a response of the conversation that has ended."""
        succeeded = ended.phase is Phase.SUCCEEDED
        if ended.leaves_nothing:
            return [SaveDeletion(ended.plan.item)] if ended.is_stored else []
        item = Item(
            ended.plan.item,
            "assistant",
            ended.text,
            spoken=ended.plan.with_audio,
            status="completed" if ended.whole else "incomplete",
            audio_samples=ended.sent_samples,
            cut=not succeeded,
            sample_rate=ended.plan.sample_rate,
            filler=ended.filler,
            broke_off=ended.broke_off,
        )
        if ended.cut is not None:
            item = ended.cut.applied_to(item)
        return self._saved(item, self._history.enter(item))

    def remember_call(self, called: Called) -> list[Effect]:
        """Enter a call that has ended, whole or not. The client has been told of its own."""
        item = called.item
        saved = self._saved(item, self._history.enter(item))
        return [self._told(item), *saved] if item.by_service else saved

    def settle(self, settled: Settled) -> list[Effect]:
        """Enter what came of a call that the service has carried out. Where the call is gone, nobody asks any more."""
        call = settled.call
        output = output_item(f"{call.item}_output", call.id, settled.text)
        try:
            left = self._add_output(output)
        except ItemError:
            return [SaveCallSettled(call.id, settled.outcome, None, None)] if settled.is_begun else []
        if not settled.is_begun:
            return [self._told(output), *self._saved(output, left)]
        saved = SaveCallSettled(call.id, settled.outcome, output, self._history.previous_of(output.id))
        return [self._told(output), saved, *self._left(left)]

    def _add_output(self, output: Item) -> tuple[str, ...]:
        """Gives the ids that had to leave. Raises `ItemError` where no call waits for it."""
        return self._history.add_behind(output, place_of(output, self._history.order))

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
        return [SaveItem(item, self._history.previous_of(item.id)), *self._left(left)]

    def _left(self, items: tuple[str, ...]) -> list[Effect]:
        """These had to leave."""
        if not items:
            return []
        return [*map(SaveDeletion, items), Tell(HistoryTrimmed(items)), Measured("items_trimmed", len(items))]
