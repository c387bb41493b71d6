"""What a log of entries amounts to: a pure function from entries to a conversation.

Rules
* A log that contradicts itself (an item twice, a change of an absent item, an epoch that falls, a clause of a reply
  that is over, a call that is begun twice or settled and not begun) is refused.
* Whose item has come is no reply under way any more. A reply of which nothing was heard leaves no item: its deletion
  ends it.
* What is left of a reply stands where its item would: behind the one that it was to follow, first where that is gone.
* Where the last reply was cut, and nobody has put right since what was taken for heard, its client may have played on
  before it knew: the words behind the cut that were sent are unsure, as long as the log is not compacted.
* The input counts as taken up to the first turn whose words are awaited; `InputTaken` gives up those that end before.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from media.chunk import ms_to_samples, samples_to_ms, samples_to_ms_above
from sessions.records import (
    SPOKEN,
    CallBegun,
    CallRecord,
    CallSettled,
    Compacted,
    ConfigChanged,
    Conversation,
    CorruptLog,
    EpochAdvanced,
    InputTaken,
    ItemAppended,
    ItemChanged,
    ItemDeleted,
    ItemRecord,
    ReplyHeard,
    ReplySpeaking,
    SessionRecord,
    SpokenRecord,
    TurnRecord,
    UnsureRecord,
)
from stages.contracts import EPOCHS_PER_FENCE


def replay(record: SessionRecord, entries: Iterable[TurnRecord]) -> Conversation:
    """The conversation that `entries`, oldest first, amount to for who takes it over: what was being said is over.

    Its epoch is at least the first of `record.fence`, so that a takeover outdates whatever was under way.
    Raises `CorruptLog`.
    """
    log = Log(Conversation((), record.config, record.epoch))
    for entry in entries:
        log.apply(entry)
    log.break_off()
    told = log.conversation()
    return msgspec.structs.replace(told, epoch=max(told.epoch, record.fence * EPOCHS_PER_FENCE))


def compact(conversation: Conversation) -> Compacted:
    """One entry that replays to `conversation`."""
    return Compacted(
        conversation.items,
        conversation.config,
        conversation.epoch,
        conversation.speaking,
        conversation.calls,
        conversation.input_taken,
    )


class Log:
    """What a log amounts to, entry by entry, from where it `begins`."""

    def __init__(self, begins: Conversation) -> None:
        self._config, self._epoch = begins.config, begins.epoch
        self._order: list[str] = []
        self._items: dict[str, ItemRecord] = {}
        self._speaking: dict[str, SpokenRecord] = {}
        self._cut: SpokenRecord | None = None  # the last reply, where it was cut and its client may yet say where
        self._calls: dict[str, CallRecord] = {}
        self._taken = self._understood = 0  # up to where no words are missing, and where the last known ones end
        self._reset(compact(begins))

    def apply(self, entry: TurnRecord) -> None:
        """Raises `CorruptLog` where `entry` contradicts what came before."""
        match entry:
            case ItemAppended(item=item):
                self._append(item)
            case ItemChanged(item=item):
                self._change(item)
            case ItemDeleted(id=deleted):
                self._delete(deleted)
            case ReplySpeaking():
                self._speak(entry)
            case ReplyHeard():
                self._hear(entry)
            case CallBegun(call=call):
                self._begin_call(call)
            case CallSettled(id=settled, output=output):
                self._settle_call(settled, output)
            case InputTaken(until=until):
                self._taken = max(self._taken, until)
            case EpochAdvanced(epoch=epoch):
                if epoch <= self._epoch:
                    raise CorruptLog(f"epoch {epoch} follows {self._epoch}")
                self._epoch = epoch
            case ConfigChanged(config=config):
                self._config = config
            case _:
                self._reset(entry)

    def conversation(self) -> Conversation:
        """Items in order, each naming the one that now stands before it."""
        before = [None, *self._order]
        items = tuple(
            msgspec.structs.replace(self._items[name], previous=previous)
            for name, previous in zip(self._order, before, strict=False)
        )
        speaking, calls = tuple(self._speaking.values()), tuple(self._calls.values())
        return Conversation(items, self._config, self._epoch, speaking, calls, self._input_taken())

    def break_off(self) -> None:
        """Nobody says any more what was being said: items are made of it."""
        if self._cut is not None:
            self._items[self._cut.item] = _with_unsure(self._items[self._cut.item], self._cut)
        for spoken in list(self._speaking.values()):
            left = _left_of(spoken)
            self._append(left if left.previous in self._items else msgspec.structs.replace(left, previous=None))

    # ---- items -------------------------------------------------------------------------------------

    def _append(self, item: ItemRecord) -> None:
        if item.id in self._items:
            raise CorruptLog(f"item {item.id} is appended twice")
        place = 0
        if item.previous is not None:
            self._known(item.previous)
            # Nearly always the last: searched from the end.
            place = len(self._order) - self._order[::-1].index(item.previous)
        spoken = self._speaking.pop(item.id, None)
        if spoken is not None:
            self._cut = spoken if item.truncated else None
        self._order.insert(place, item.id)
        self._items[item.id] = item
        self._understand(item)

    def _change(self, item: ItemRecord) -> None:
        if item.id in self._speaking:  # its owner died, and the next one says what is left of it
            self._append(item)
            return
        self._known(item.id)
        self._settle_cut(item.id)
        self._items[item.id] = item
        self._understand(item)

    def _settle_cut(self, name: str) -> None:
        """More is known of the item."""
        if self._cut is not None and self._cut.item == name:
            self._cut = None

    def _delete(self, name: str) -> None:
        if self._speaking.pop(name, None) is not None:
            return
        self._known(name)
        self._settle_cut(name)
        place = self._order.index(name)
        before = self._order[place - 1] if place else None
        del self._order[place]
        left = self._items.pop(name)
        self._understood = max(self._understood, left.span[1] if left.span else 0)
        for spoken in self._speaking.values():
            if spoken.previous == name:
                self._speaking[spoken.item] = msgspec.structs.replace(spoken, previous=before)

    def _understand(self, item: ItemRecord) -> None:
        if item.span is not None and item.content:
            self._understood = max(self._understood, item.span[1])

    def _input_taken(self) -> int:
        spans = (item.span for item in self._items.values() if item.span is not None and not item.content)
        awaited = (start for start, end in spans if end > self._taken)
        return min(awaited, default=max(self._taken, self._understood))

    def _known(self, name: str) -> None:
        if name not in self._items:
            raise CorruptLog(f"item {name} is not there")

    # ---- replies under way -------------------------------------------------------------------------

    def _speak(self, entry: ReplySpeaking) -> None:
        if entry.item in self._items:
            raise CorruptLog(f"the reply of item {entry.item} is over")
        spoken = self._speaking.get(entry.item) or SpokenRecord(
            entry.item, entry.response, entry.epoch, entry.previous, entry.sample_rate
        )
        if entry.first > len(spoken.words):
            raise CorruptLog(f"words of the reply of item {entry.item} are missing")
        self._cut = None
        words = (*spoken.words[: entry.first], *entry.words)
        self._speaking[entry.item] = msgspec.structs.replace(spoken, words=words, rest=entry.rest)

    def _hear(self, entry: ReplyHeard) -> None:
        spoken = self._speaking.get(entry.item)
        if spoken is None:
            raise CorruptLog(f"no reply of item {entry.item} is being said")
        self._speaking[entry.item] = msgspec.structs.replace(
            spoken, heard=entry.samples, heard_basis=entry.basis, heard_error=entry.error_samples
        )

    # ---- calls that the service carries out ----------------------------------------------------------

    def _begin_call(self, call: CallRecord) -> None:
        if call.id in self._calls:
            raise CorruptLog(f"call {call.id} is begun twice")
        self._calls[call.id] = call

    def _settle_call(self, call_id: str, output: ItemRecord | None) -> None:
        if self._calls.pop(call_id, None) is None:
            raise CorruptLog(f"call {call_id} was not begun")
        if output is not None:
            self._append(output)

    def _reset(self, entry: Compacted) -> None:
        self._config = entry.config
        self._epoch = entry.epoch
        self._order = [item.id for item in entry.items]
        self._items = {item.id: item for item in entry.items}
        self._speaking, self._cut = {spoken.item: spoken for spoken in entry.speaking}, None
        self._calls = {call.id: call for call in entry.calls}
        self._taken, self._understood = entry.input_taken, 0
        names = len(self._order) + len(entry.speaking)
        if len(self._items.keys() | self._speaking.keys()) != names:
            raise CorruptLog("a compacted entry holds an item twice")


def _with_unsure(item: ItemRecord, spoken: SpokenRecord) -> ItemRecord:
    """`item` of a reply that was cut, of which as much may have been heard as was sent."""
    rate = spoken.sample_rate
    sent = tuple(word for word in spoken.words if samples_to_ms(word.end, rate) <= item.audio_ms_total)
    if not sent or samples_to_ms(sent[-1].end, rate) <= item.audio_ms_cut or not item.heard_error_ms:
        return item
    unsure = UnsureRecord(spoken.response, rate, ms_to_samples(item.audio_ms_cut, rate), sent)
    return msgspec.structs.replace(item, unsure=unsure, cut_word="")


def _left_of(spoken: SpokenRecord) -> ItemRecord:
    """The item of a reply that nobody goes on with."""
    heard = [word.text for word in spoken.words if word.end <= spoken.heard]
    end = max(spoken.heard, spoken.words[-1].end if spoken.words else 0)
    unsure = UnsureRecord(spoken.response, spoken.sample_rate, spoken.heard, spoken.words, spoken.rest)
    return ItemRecord(
        spoken.item,
        "assistant",
        content=" ".join(heard),
        status="incomplete",
        name=SPOKEN,
        audio_ms_total=samples_to_ms(end, spoken.sample_rate),
        audio_ms_cut=samples_to_ms(spoken.heard, spoken.sample_rate),
        truncated=True,
        broke_off=True,
        heard_basis=spoken.heard_basis,
        heard_error_ms=samples_to_ms_above(max(spoken.heard_error, end - spoken.heard), spoken.sample_rate),
        previous=spoken.previous,
        unsure=unsure if len(heard) < len(spoken.words) or spoken.rest else None,
    )
