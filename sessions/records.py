"""What is stored of a session, its encoding, and of what its log is made.

Theory of operation
    A session is one `SessionRecord`, written once, and a log of entries in the order of their making. `log.replay`
    is a pure function from both to a `Conversation`. A log that has grown long is replaced by one `Compacted`
    entry, which replays to the same conversation.

    An item of a reply is written when the reply is over. Until then the log has what is being said of it, clause by
    clause (`ReplySpeaking`), and how much of it was heard (`ReplyHeard`); the item stands in their place. Where none
    came, since the gateway died, `replay` makes one of them: the words that were heard, and as `unsure` all others.

    A call that the service itself carries out is written before it is begun (`CallBegun`), and once it is answered,
    together with the item that holds the answer (`CallSettled`). One that lacks the second may have been carried out.

    The input of a session has places too: samples of 16 kHz from its beginning on, through all connections. An item of
    the caller's words says where they stand, and `InputTaken` that up to there none are missing. Both together tell a
    new owner from where on the caller has to be heard again: that one item and its place are one entry makes it exact.

Rules
* Everything is stored as the msgpack array `[schema version, body]`. Versions that are not `READABLE` are refused,
  never guessed at. Version 1 has no replies under way, 2 no calls that the service carries out, and no fillers, 3 no
  places in the input, 4 does not tell whose a call is, nor which replies broke off; else they are the same.
* A log that contradicts itself (an item twice, a change of an absent item, an epoch that falls) is refused:
  a conversation that cannot be trusted is not shown to a model.
* The resume token is never stored, only its SHA-256 digest.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeVar

import msgspec

from media.playout import Basis
from stages.contracts import EPOCHS_PER_FENCE

SCHEMA_VERSION = 5
READABLE = frozenset({1, 2, 3, 4, SCHEMA_VERSION})

# The fence of a session's first owner; 0 stays free for "no owner yet".
FIRST_FENCE = 1

Role = Literal["user", "assistant", "system"]
ItemKind = Literal["message", "function_call", "function_call_output"]
ItemStatus = Literal["completed", "incomplete"]
Outcome = Literal["succeeded", "failed", "cancelled", "unknown"]

# The `name` of a message that was spoken; one that was typed has none.
SPOKEN = "spoken"


class StoredDataError(Exception):
    """What the store holds cannot be used. Nothing was changed; an operator has to look."""


class UnsupportedSchema(StoredDataError):
    """Written by another version of this service: `found` is none of those that this one reads."""

    def __init__(self, found: int) -> None:
        known = ", ".join(map(str, sorted(READABLE)))
        super().__init__(f"stored schema version {found}; this release reads versions {known}")
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


class WordRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A word of a reply, and where it stands in its sound: samples from its start, at its rate."""

    text: str
    start: int
    end: int


class UnsureRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was being said when a gateway died, as `response`: `words`, of which those that end by sample `heard` were
    heard and all others may have been, as may the `rest` of the text, of which it is not known where it stands."""

    response: str
    sample_rate: int
    heard: int
    words: tuple[WordRecord, ...]
    rest: str = ""


class ItemRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One item of the conversation.

    `content` is the text of a message, the arguments of a call or the output of one; `call_id` joins the latter two and
    `name` is the function's; `by_service`: a reply made the call, for the service to carry out. `audio_ms_total` is all
    the audio that was made, `audio_ms_cut` where history ends in it, `truncated` whether it was cut, `heard_basis` how
    that is known, `heard_error_ms` how far off the truth may be, and `cut_word` the word that it fell into.
    `broke_off`: its call ended amid it. `unsure`: what may have been heard beyond that. `filler`: words at its
    beginning that bridged a wait. `span`: from which sample of the input to which a turn was said; while it has no
    `content`, its words are not known. `previous` is the item before it, None for the first.
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
    broke_off: bool = False
    previous: str | None = None
    unsure: UnsureRecord | None = None
    filler: str = ""
    span: tuple[int, int] | None = None
    by_service: bool = False


class SpokenRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is known of a reply that is being said: what its item will be placed after, what of it may be heard by now,
    and how much was for certain (samples)."""

    item: str
    response: str
    epoch: int
    previous: str | None
    sample_rate: int
    words: tuple[WordRecord, ...] = ()
    rest: str = ""
    heard: int = 0
    heard_basis: Basis = "estimated"
    heard_error: int = 0


class CallRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call that the service carries out: its id, which is the idempotency key, its item, its tool, SHA-256 of its
    arguments, and whether to repeat it does no harm."""

    id: str
    item: str
    name: str
    digest: bytes
    safe: bool


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


class ReplySpeaking(Entry, frozen=True, omit_defaults=True):
    """Before anybody hears it: what is said next in a reply that is not over. `words` take the place of all that were
    told from word number `first` on, and `rest` that of the former one: text that has no times yet.

    `part` counts these entries of an item from 1 on.
    """

    item: str
    response: str
    epoch: int
    previous: str | None
    sample_rate: int
    part: int
    first: int
    words: tuple[WordRecord, ...] = ()
    rest: str = ""


class ReplyHeard(Entry, frozen=True):
    """So many `samples` of a reply that is not over were heard, and no more than `error_samples` beyond."""

    item: str
    samples: int
    basis: Basis
    error_samples: int


class CallBegun(Entry, frozen=True):
    """Before anything of it is done: the service carries out `call`."""

    call: CallRecord


class CallSettled(Entry, frozen=True, omit_defaults=True):
    """What came of the call `id`; `output`: the item that says so, where there is still one."""

    id: str
    outcome: Outcome
    output: ItemRecord | None = None


class InputTaken(Entry, frozen=True):
    """Of the input before sample `until`, all words are known that ever will be."""

    until: int


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
    speaking: tuple[SpokenRecord, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    input_taken: int = 0


TurnRecord = (
    ItemAppended
    | ItemChanged
    | ItemDeleted
    | ReplySpeaking
    | ReplyHeard
    | CallBegun
    | CallSettled
    | InputTaken
    | EpochAdvanced
    | ConfigChanged
    | Compacted
)


class Conversation(msgspec.Struct, frozen=True):
    """What a log amounts to: items in order, the configuration (encoded JSON), the epoch now in force, the replies that
    are being said, the calls that are being carried out, and up to which sample of the input the words are known."""

    items: tuple[ItemRecord, ...]
    config: bytes
    epoch: int
    speaking: tuple[SpokenRecord, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    input_taken: int = 0


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
        if envelope.schema not in READABLE:
            raise UnsupportedSchema(envelope.schema)
        return decoder.decode(envelope.body)
    except msgspec.MsgspecError as error:
        raise CorruptRecord("stored bytes are not of this schema") from error
