"""Encoding, what earlier releases wrote, and refusal of what cannot be trusted."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from msgspec import structs

from sessions.records import (
    SCHEMA_VERSION,
    CallBegun,
    CallRecord,
    CallSettled,
    Compacted,
    ConfigChanged,
    CorruptRecord,
    EpochAdvanced,
    ItemAppended,
    ItemChanged,
    ItemDeleted,
    ItemRecord,
    ReplyHeard,
    ReplySpeaking,
    SessionRecord,
    SpokenRecord,
    TurnRecord,
    UnsupportedSchema,
    UnsureRecord,
    WordRecord,
    decode_entry,
    decode_record,
    encode_entry,
    encode_record,
    token_digest,
)
from stages.contracts import EPOCHS_PER_FENCE

RECORD = SessionRecord("sess_1", "acme", 1_700_000_000_000, b'{"voice":"joe"}', token_digest("secret"))
FIRST_EPOCH = EPOCHS_PER_FENCE


def item(name: str, previous: str | None = None, content: str = "") -> ItemRecord:
    return ItemRecord(name, "user", content=content, previous=previous)


A, B = item("a"), item("b", "a")

CUT = ItemRecord(
    "item_2",
    "assistant",
    content="It is",
    status="incomplete",
    name="spoken",
    audio_ms_total=1_200,
    audio_ms_cut=640,
    truncated=True,
    heard_basis="acked",
    heard_error_ms=20,
    cut_word="ten",
    previous="item_1",
)
WORDS = (WordRecord("Well,", 0, 4_800), WordRecord("yes.", 4_800, 9_600))
SPOKEN = SpokenRecord("i", "resp_1", FIRST_EPOCH, "a", 24_000, WORDS, "and", 480, "acked", 24)

CALL = CallRecord("call_1", "f", "book", b"digest", False)

ENTRIES: list[TurnRecord] = [
    ItemAppended(ItemRecord("a", "assistant", content="hello", audio_ms_total=900, audio_ms_cut=450, truncated=True)),
    ItemChanged(ItemRecord("f", "assistant", "function_call", "{}", "incomplete", call_id="call_1", name="weather")),
    ItemDeleted("a"),
    EpochAdvanced(FIRST_EPOCH + 1),
    ConfigChanged(b"{}"),
    Compacted((A, B), b"{}", FIRST_EPOCH),
    Compacted((A,), b"{}", FIRST_EPOCH, (SPOKEN,)),
    ItemAppended(structs.replace(A, unsure=UnsureRecord("resp_1", 24_000, 480, WORDS, "and more"))),
    ReplySpeaking("i", "resp_1", FIRST_EPOCH, "a", 8_000, 2, 1, WORDS, "and more"),
    ReplyHeard("i", 4_800, "acked", 960),
    CallBegun(CALL),
    CallSettled("call_1", "unknown", B),
    CallSettled("call_1", "cancelled"),
    Compacted((A,), b"{}", FIRST_EPOCH, (), (CALL,)),
]

# As version 1 stored a session and its log.
RECORD_1 = (
    "920187a773657373696f6ea6736573735f31a674656e616e74a764656661756c74aa637265617465645f6d73cf0000018bcfe56800a6636f6e66"
    "6967c40f7b22766f696365223a226a6f65227dac746f6b656e5f646967657374c4202bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6"
    "a25fe97bf527a25ba566656e636501a565706f6368ce00100000"
)
LOG_1: list[tuple[TurnRecord, str]] = [
    (
        ItemAppended(ItemRecord("item_1", "user", content="What is the time?", name="spoken")),
        "920182a474797065ac4974656d417070656e646564a46974656d84a26964a66974656d5f31a4726f6c65a475736572a7636f"
        "6e74656e74b157686174206973207468652074696d653fa46e616d65a673706f6b656e",
    ),
    (
        ItemChanged(ItemRecord("item_1", "user", content="What is the time now?", name="spoken")),
        "920182a474797065ab4974656d4368616e676564a46974656d84a26964a66974656d5f31a4726f6c65a475736572a7636f6e"
        "74656e74b557686174206973207468652074696d65206e6f773fa46e616d65a673706f6b656e",
    ),
    (
        ItemAppended(CUT),
        "920182a474797065ac4974656d417070656e646564a46974656d8ca26964a66974656d5f32a4726f6c65a961737369737461"
        "6e74a7636f6e74656e74a54974206973a6737461747573aa696e636f6d706c657465a46e616d65a673706f6b656eae617564"
        "696f5f6d735f746f74616ccd04b0ac617564696f5f6d735f637574cd0280a97472756e6361746564c3ab68656172645f6261"
        "736973a561636b6564ae68656172645f6572726f725f6d7314a86375745f776f7264a374656ea870726576696f7573a66974"
        "656d5f31",
    ),
    (
        ItemDeleted("item_3"),
        "920182a474797065ab4974656d44656c65746564a26964a66974656d5f33",
    ),
    (
        EpochAdvanced(FIRST_EPOCH + 1),
        "920182a474797065ad45706f6368416476616e636564a565706f6368ce00100001",
    ),
    (
        ConfigChanged(b'{"voice":"amy"}'),
        "920182a474797065ad436f6e6669674368616e676564a6636f6e666967c40f7b22766f696365223a22616d79227d",
    ),
    (
        Compacted(
            (ItemRecord("item_1", "user", content="What is the time now?", name="spoken"),),
            b'{"voice":"amy"}',
            FIRST_EPOCH + 1,
        ),
        "920184a474797065a9436f6d706163746564a56974656d739184a26964a66974656d5f31a4726f6c65a475736572a7636f6e"
        "74656e74b557686174206973207468652074696d65206e6f773fa46e616d65a673706f6b656ea6636f6e666967c40f7b2276"
        "6f696365223a22616d79227da565706f6368ce00100001",
    ),
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_comes_back_as_it_went(entry: TurnRecord) -> None:
    assert decode_entry(encode_entry(entry)) == entry


def test_a_record_comes_back_as_it_went() -> None:
    assert decode_record(encode_record(RECORD)) == RECORD
    assert (RECORD.fence, RECORD.epoch) == (1, FIRST_EPOCH)


def test_only_the_digest_of_a_token_is_stored() -> None:
    assert token_digest("secret") == hashlib.sha256(b"secret").digest()
    assert b"secret" not in encode_record(RECORD)


@pytest.mark.parametrize(("entry", "stored"), LOG_1)
def test_what_version_1_stored_is_read(entry: TurnRecord, stored: str) -> None:
    assert decode_entry(bytes.fromhex(stored)) == entry
    assert decode_entry(encode_entry(entry)) == entry, "and comes back as this version writes it"


def test_a_record_of_version_1_is_read() -> None:
    created_ms = 1_700_000_000_000
    wanted = SessionRecord("sess_1", "default", created_ms, b'{"voice":"joe"}', token_digest("secret"))
    assert decode_record(bytes.fromhex(RECORD_1)) == wanted


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("entry", [ENTRIES[0], ReplySpeaking("i", "r", 1, None, 8_000, 1, 0), Compacted((A,), b"", 1)])
def test_what_versions_2_to_4_stored_is_read(version: int, entry: TurnRecord) -> None:
    """They differ by what they do not have."""
    assert decode_entry(msgspec.msgpack.encode((version, entry))) == entry


def test_what_is_written_is_of_version_5() -> None:
    assert msgspec.msgpack.decode(encode_entry(ItemDeleted("a")))[0] == SCHEMA_VERSION == 5


def test_a_refusal_names_the_version_and_those_that_are_read() -> None:
    with pytest.raises(UnsupportedSchema, match="stored schema version 6; this release reads versions 1, 2, 3, 4, 5"):
        decode_entry(msgspec.msgpack.encode((6, {})))


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1])
def test_another_schema_version_is_refused_whatever_its_body(version: int) -> None:
    stored = msgspec.msgpack.encode((version, {"new": "shape"}))
    for decode in (decode_entry, decode_record):
        with pytest.raises(UnsupportedSchema) as refusal:
            decode(stored)
        assert refusal.value.found == version


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode("text"),
        msgspec.msgpack.encode([SCHEMA_VERSION]),
        msgspec.msgpack.encode((SCHEMA_VERSION, {"type": "Unheard"})),
        msgspec.msgpack.encode((SCHEMA_VERSION, {"type": "ItemDeleted", "id": "a", "extra": 1})),
        msgspec.msgpack.encode((SCHEMA_VERSION, {"type": "ItemDeleted", "id": 7})),
        encode_entry(ItemDeleted("a"))[:-1],
        encode_entry(ItemDeleted("a")) + b"x",
    ],
)
def test_bytes_of_another_shape_are_refused(stored: bytes) -> None:
    for decode in (decode_entry, decode_record):
        with pytest.raises(CorruptRecord):
            decode(stored)
