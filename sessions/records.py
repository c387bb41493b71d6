"""What is stored of a session, its encoding, and how a log of entries becomes a conversation again.

Theory of operation
    A session is one `SessionRecord`, written once, and a log of entries in the order of their making. `replay`
    is a pure function from both to a `Conversation`. A log that has grown long is replaced by one `Compacted`
    entry, which replays to the same conversation.

Rules
* Everything is stored as the msgpack array `[schema version, body]`. Another version is refused, never guessed at.
* A log that contradicts itself (an item twice, a change of an absent item, an epoch that falls) is refused:
  a conversation that cannot be trusted is not shown to a model.
* The resume token is never stored, only its SHA-256 digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal, TypeVar

import msgspec

from media.playout import Basis
from stages.contracts import EPOCHS_PER_FENCE

SCHEMA_VERSION = 1

# The fence of a session's first owner; 0 stays free for "no owner yet".
FIRST_FENCE = 1

Role = Literal["user", "assistant", "system"]
ItemKind = Literal["message", "function_call", "function_call_output"]
ItemStatus = Literal["completed", "incomplete"]


class StoredDataError(Exception):
    """What the store holds cannot be used. Nothing was changed; an operator has to look."""


class UnsupportedSchema(StoredDataError):
    """Written by another version of this service: `found` is not the version that this one reads."""

    def __init__(self, found: int) -> None:
        super().__init__(f"stored schema version {found}; this release reads version {SCHEMA_VERSION}")
        self.found = found


class CorruptRecord(StoredDataError):
    """Bytes that are not a record or an entry of this schema."""


class CorruptLog(StoredDataError):
    """Each entry is well formed, but together they contradict themselves."""


class SessionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A session as it was made.

    `created_ms` is Unix time in milliseconds, `config` is encoded JSON and opaque here, `token_digest` comes from
    `token_digest()`. `fence` counts owners, and `epoch` is the first of the conversation (`fence * 2**20 + n`).
    """

    session: str
    tenant: str
    created_ms: int
    config: bytes
    token_digest: bytes
    fence: int = FIRST_FENCE
    epoch: int = FIRST_FENCE * EPOCHS_PER_FENCE


class ItemRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One item of the conversation.

    `content` is the text of a message, the arguments of a call or the output of one; `call_id` joins the latter two
    and `name` is the function's. `audio_ms_total` is all the audio that was made, `audio_ms_cut` where history ends
    in it, `truncated` whether it was cut, `heard_basis` how that is known, `heard_error_ms` how far off the
    truth may be, and `cut_word` the word that it fell into.
    `previous` is the item before it, None for the first.
    """

    id: str
    role: Role
    kind: ItemKind = "message"
    content: str = ""
    status: ItemStatus = "completed"
    call_id: str = ""
    name: str = ""
    audio_ms_total: int = 0
    audio_ms_cut: int = 0
    truncated: bool = False
    heard_basis: Basis = "estimated"
    heard_error_ms: int = 0
    cut_word: str = ""
    previous: str | None = None


class Entry(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of what a log is made of."""


class ItemAppended(Entry, frozen=True):
    """A new item, placed after `item.previous`."""

    item: ItemRecord


class ItemChanged(Entry, frozen=True):
    """The item with this id is now so; it keeps its place."""

    item: ItemRecord


class ItemDeleted(Entry, frozen=True):
    """The item is no longer part of the conversation."""

    id: str


class EpochAdvanced(Entry, frozen=True):
    """Output of every lesser epoch is void."""

    epoch: int


class ConfigChanged(Entry, frozen=True):
    """The whole configuration from now on, as encoded JSON."""

    config: bytes


class Compacted(Entry, frozen=True):
    """All that earlier entries amounted to; `items` stand in their order."""

    items: tuple[ItemRecord, ...]
    config: bytes
    epoch: int


TurnRecord = ItemAppended | ItemChanged | ItemDeleted | EpochAdvanced | ConfigChanged | Compacted


class Conversation(msgspec.Struct, frozen=True):
    """What a log amounts to: items in order, the configuration (encoded JSON), the epoch now in force."""

    items: tuple[ItemRecord, ...]
    config: bytes
    epoch: int


class _Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    schema: int
    body: msgspec.Raw


_Body = TypeVar("_Body")
_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(_Envelope)
_records = msgspec.msgpack.Decoder(SessionRecord)
_entries: msgspec.msgpack.Decoder[TurnRecord] = msgspec.msgpack.Decoder(TurnRecord)


def token_digest(token: str) -> bytes:
    """The 32 bytes of SHA-256 under which a resume token is known to the store."""
    return hashlib.sha256(token.encode()).digest()


def encode_record(record: SessionRecord) -> bytes:
    return _encoder.encode((SCHEMA_VERSION, record))


def encode_entry(entry: TurnRecord) -> bytes:
    return _encoder.encode((SCHEMA_VERSION, entry))


def decode_record(stored: bytes) -> SessionRecord:
    """Raises `UnsupportedSchema` or `CorruptRecord`."""
    return _decode(_records, stored)


def decode_entry(stored: bytes) -> TurnRecord:
    """Raises `UnsupportedSchema` or `CorruptRecord`."""
    return _decode(_entries, stored)


def _decode(decoder: msgspec.msgpack.Decoder[_Body], stored: bytes) -> _Body:
    try:
        envelope = _envelopes.decode(stored)
        if envelope.schema != SCHEMA_VERSION:
            raise UnsupportedSchema(envelope.schema)
        return decoder.decode(envelope.body)
    except msgspec.MsgspecError as error:
        raise CorruptRecord("stored bytes are not of this schema") from error


def replay(record: SessionRecord, entries: Iterable[TurnRecord]) -> Conversation:
    """The conversation that `entries`, oldest first, amount to.

    Its epoch is at least the first of `record.fence`, so that a takeover outdates whatever was under way.
    Raises `CorruptLog`.
    """
    log = Log(Conversation((), record.config, record.epoch))
    for entry in entries:
        log.apply(entry)
    told = log.conversation()
    return msgspec.structs.replace(told, epoch=max(told.epoch, record.fence * EPOCHS_PER_FENCE))


def compact(conversation: Conversation) -> Compacted:
    """One entry that replays to `conversation`."""
    return Compacted(conversation.items, conversation.config, conversation.epoch)


class Log:
    """What a log amounts to, entry by entry, from where it `begins`."""

    def __init__(self, begins: Conversation) -> None:
        self._config = begins.config
        self._epoch = begins.epoch
        self._items = {item.id: item for item in begins.items}
        self._order = [item.id for item in begins.items]

    def apply(self, entry: TurnRecord) -> None:
        """Raises `CorruptLog` where `entry` contradicts what came before."""
        match entry:
            case ItemAppended(item=item):
                self._append(item)
            case ItemChanged(item=item):
                self._known(item.id)
                self._items[item.id] = item
            case ItemDeleted(id=deleted):
                self._known(deleted)
                del self._items[deleted]
                self._order.remove(deleted)
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
        return Conversation(items, self._config, self._epoch)

    def _append(self, item: ItemRecord) -> None:
        if item.id in self._items:
            raise CorruptLog(f"item {item.id} is appended twice")
        place = 0
        if item.previous is not None:
            self._known(item.previous)
            # Nearly always the last: searched from the end.
            place = len(self._order) - self._order[::-1].index(item.previous)
        self._order.insert(place, item.id)
        self._items[item.id] = item

    def _known(self, name: str) -> None:
        if name not in self._items:
            raise CorruptLog(f"item {name} is not there")

    def _reset(self, entry: Compacted) -> None:
        self._config = entry.config
        self._epoch = entry.epoch
        self._order = [item.id for item in entry.items]
        self._items = {item.id: item for item in entry.items}
        if len(self._items) != len(self._order):
            raise CorruptLog("a compacted entry holds an item twice")
