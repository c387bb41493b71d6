"""What of a conversation is stored, and how it comes back: items and settings to records and back again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from media.chunk import ms_to_samples, samples_to_ms, samples_to_ms_above
from sessions.effects import (
    Save,
    SaveCallBegun,
    SaveCallSettled,
    SaveDeletion,
    SaveHeard,
    SaveItem,
    SaveSpeaking,
)
from sessions.items import InputSpan, Item
from sessions.log import Log, compact, replay
from sessions.records import (
    SPOKEN,
    CallBegun,
    CallRecord,
    CallSettled,
    Compacted,
    ConfigChanged,
    Conversation,
    EpochAdvanced,
    InputTaken,
    ItemAppended,
    ItemChanged,
    ItemDeleted,
    ItemRecord,
    ReplyHeard,
    ReplySpeaking,
    TurnRecord,
    UnsureRecord,
    WordRecord,
    decode_entry,
)
from sessions.reply import SpokenWord, Unsure
from sessions.settings import OUTPUT_RATE, SessionSettings
from sessions.store import Snapshot
from sessions.tool_calls import BegunCall

_TYPED = ""


def item_record(item: Item, previous: str | None) -> ItemRecord:
    """`item` as it is stored. The `name` of a message says whether it was spoken; a cut item's audio ends where it was
    cut."""
    rate = item.sample_rate
    return ItemRecord(
        item.id,
        item.role,
        item.kind,
        content=item.text,
        status="completed" if item.status == "completed" else "incomplete",
        call_id=item.call_id,
        name=item.name if item.kind != "message" else SPOKEN if item.spoken else _TYPED,
        audio_ms_total=samples_to_ms(item.audio_samples, rate),
        audio_ms_cut=samples_to_ms(item.heard_samples, rate) if item.cut else 0,
        truncated=item.cut,
        heard_basis=item.heard_basis,
        heard_error_ms=samples_to_ms_above(item.heard_error_samples, rate),
        cut_word=item.cut_word,
        broke_off=item.broke_off,
        previous=previous,
        unsure=_unsure_record(item),
        filler=item.filler,
        span=None if item.span is None else (item.span.start, item.span.end),
        by_service=item.by_service,
    )


def _unsure_record(item: Item) -> UnsureRecord | None:
    unsure = item.unsure
    if unsure is None:
        return None
    return UnsureRecord(unsure.response, item.sample_rate, item.heard_samples, _word_records(unsure.words), unsure.rest)


def _word_records(words: Iterable[SpokenWord]) -> tuple[WordRecord, ...]:
    return tuple(WordRecord(word.text, word.start, word.end) for word in words)


def item_of(record: ItemRecord) -> Item:
    """The item that was stored as `record`. That knows ms alone, and its samples are then of the usual rate; unless
    more of it may have been heard."""
    item = _item_of(record)
    stored = record.unsure
    if stored is None:
        return item
    words = tuple(SpokenWord(word.text, word.start, word.end) for word in stored.words)
    return replace(
        item,
        audio_samples=max(stored.heard, words[-1].end if words else 0),
        heard_samples=stored.heard,
        heard_error_samples=ms_to_samples(record.heard_error_ms, stored.sample_rate),
        sample_rate=stored.sample_rate,
        unsure=Unsure(stored.response, words, stored.rest),
    )


def _item_of(record: ItemRecord) -> Item:
    is_message = record.kind == "message"
    return Item(
        record.id,
        record.role,
        record.content,
        spoken=is_message and record.name == SPOKEN,
        status=record.status,
        audio_samples=ms_to_samples(record.audio_ms_total, OUTPUT_RATE),
        cut=record.truncated,
        heard_samples=ms_to_samples(record.audio_ms_cut, OUTPUT_RATE),
        heard_basis=record.heard_basis,
        cut_word=record.cut_word,
        broke_off=record.broke_off,
        heard_error_samples=ms_to_samples(record.heard_error_ms, OUTPUT_RATE),
        kind=record.kind,
        call_id=record.call_id,
        name="" if is_message else record.name,
        by_service=record.by_service,
        filler=record.filler,
        span=None if record.span is None else InputSpan(*record.span),
    )


def call_record(call: BegunCall) -> CallRecord:
    return CallRecord(call.id, call.item, call.name, call.digest, call.safe)


def encode_settings(settings: SessionSettings) -> bytes:
    """Settings as JSON."""
    return msgspec.json.encode(settings)


def decode_settings(stored: bytes) -> SessionSettings:
    """Raises `msgspec.ValidationError` for what this release would not have written."""
    return msgspec.json.decode(stored, type=SessionSettings)


class Recorder:
    """Makes entries of a log out of what a conversation wants saved, from where it begins.

    It knows what the entries so far amount to. The conversation itself may be ahead of them: what it does in one step
    is saved one entry after the other, and a compaction between two of them must not hold the second.
    """

    def __init__(
        self,
        items: Iterable[Item],
        settings: SessionSettings,
        epoch: int,
        calls: Iterable[BegunCall] = (),
        input_from: int = 0,
    ) -> None:
        records: list[ItemRecord] = []
        for item in items:
            records.append(item_record(item, records[-1].id if records else None))
        self._known = {record.id for record in records}
        begun = tuple(call_record(call) for call in calls)
        stored = encode_settings(settings)
        self._log = Log(Conversation(tuple(records), stored, epoch, calls=begun, input_taken=input_from))

    def saved(self, effect: Save) -> TurnRecord:
        return self._entry(self._entry_of(effect))

    def _entry_of(self, effect: Save) -> TurnRecord:  # noqa: PLR0911 - the table, one line per effect
        match effect:
            case SaveItem(item, previous):
                return self._item(item_record(item, previous))
            case SaveDeletion(item_id):
                self._known.discard(item_id)
                return ItemDeleted(item_id)
            case SaveSpeaking(item_id, response, epoch, previous, rate, part):
                words = _word_records(part.words)
                return ReplySpeaking(
                    item_id, response, epoch, previous, rate, part.number, part.first, words, part.rest
                )
            case SaveHeard(item_id, samples, basis, error):
                return ReplyHeard(item_id, samples, basis, error)
            case SaveCallBegun(call):
                return CallBegun(call_record(call))
            case SaveCallSettled(call_id, outcome, output, previous):
                return CallSettled(call_id, outcome, self._output(output, previous))
            case _:
                return EpochAdvanced(effect.epoch)

    def _output(self, output: Item | None, previous: str | None) -> ItemRecord | None:
        if output is None:
            return None
        self._known.add(output.id)
        return item_record(output, previous)

    def _item(self, record: ItemRecord) -> TurnRecord:
        if record.id in self._known:
            return ItemChanged(record)
        self._known.add(record.id)
        return ItemAppended(record)

    def settings_changed(self, settings: SessionSettings) -> TurnRecord:
        return self._entry(ConfigChanged(encode_settings(settings)))

    def input_taken(self, until: int) -> TurnRecord:
        """Up to sample `until` of the input (16 kHz), no words are missing any more."""
        return self._entry(InputTaken(until))

    def _entry(self, entry: TurnRecord) -> TurnRecord:
        self._log.apply(entry)
        return entry

    def compacted(self) -> Compacted:
        """All entries so far as one."""
        return compact(self._log.conversation())


@dataclass(frozen=True, slots=True)
class Restored:
    """A conversation as it was stored; `epoch` is where its new owner begins. `calls`: those that the owner before was
    to carry out, and has not told the end of. `input_from`: up to there (samples of 16 kHz) the caller's words are
    known."""

    items: tuple[Item, ...]
    settings: SessionSettings
    epoch: int
    calls: tuple[BegunCall, ...] = ()
    input_from: int = 0


def restored(snapshot: Snapshot) -> Restored:
    """Raises `StoredDataError` or `msgspec.DecodeError` where what is stored cannot be used."""
    stored = replay(snapshot.record, [decode_entry(entry) for entry in snapshot.entries])
    items = tuple(item_of(record) for record in stored.items)
    calls = tuple(BegunCall(call.id, call.item, call.name, call.digest, call.safe) for call in stored.calls)
    return Restored(items, decode_settings(stored.config), stored.epoch, calls, stored.input_taken)
