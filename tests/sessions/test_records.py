"""Encoding, refusal of what cannot be trusted, and replay."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from sessions.log import compact, replay
from sessions.records import (
    SCHEMA_VERSION,
    Compacted,
    ConfigChanged,
    Conversation,
    CorruptLog,
    CorruptRecord,
    EpochAdvanced,
    ItemAppended,
    ItemChanged,
    ItemDeleted,
    ItemRecord,
    SessionRecord,
    TurnRecord,
    UnsupportedSchema,
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


A, B, C = item("a"), item("b", "a"), item("c", "b")
ABC = [ItemAppended(A), ItemAppended(B), ItemAppended(C)]

ENTRIES: list[TurnRecord] = [
    ItemAppended(ItemRecord("a", "assistant", content="hello", audio_ms_total=900, audio_ms_cut=450, truncated=True)),
    ItemChanged(ItemRecord("f", "assistant", "function_call", "{}", "incomplete", call_id="call_1", name="weather")),
    ItemDeleted("a"),
    EpochAdvanced(FIRST_EPOCH + 1),
    ConfigChanged(b"{}"),
    Compacted((A, B), b"{}", FIRST_EPOCH),
]


def names(entries: list[TurnRecord]) -> list[str]:
    return [kept.id for kept in replay(RECORD, entries).items]


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_comes_back_as_it_went(entry: TurnRecord) -> None:
    assert decode_entry(encode_entry(entry)) == entry


def test_a_record_comes_back_as_it_went() -> None:
    assert decode_record(encode_record(RECORD)) == RECORD
    assert (RECORD.fence, RECORD.epoch) == (1, FIRST_EPOCH)


def test_only_the_digest_of_a_token_is_stored() -> None:
    assert token_digest("secret") == hashlib.sha256(b"secret").digest()
    assert b"secret" not in encode_record(RECORD)


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


def test_an_empty_log_is_the_session_as_it_was_made() -> None:
    assert replay(RECORD, []) == Conversation((), RECORD.config, FIRST_EPOCH)


def test_items_stand_where_they_were_put() -> None:
    assert names([*ABC, ItemAppended(item("first")), ItemAppended(item("middle", "a"))]) == [
        "first",
        "a",
        "middle",
        "b",
        "c",
    ]


def test_each_item_names_the_one_that_now_stands_before_it() -> None:
    kept = replay(RECORD, [*ABC, ItemDeleted("b"), ItemAppended(item("z"))]).items
    assert [(each.id, each.previous) for each in kept] == [("z", None), ("a", "z"), ("c", "a")]


def test_a_change_keeps_the_place() -> None:
    changed = ItemRecord("b", "assistant", content="now", status="incomplete", truncated=True)
    kept = replay(RECORD, [*ABC, ItemChanged(changed)]).items
    assert kept[1] == structs.replace(changed, previous="a")
    assert [each.id for each in kept] == ["a", "b", "c"]


def test_the_last_configuration_holds() -> None:
    assert replay(RECORD, [ConfigChanged(b"1"), ConfigChanged(b"2")]).config == b"2"


def test_the_epoch_is_the_last_or_the_first_of_a_new_fence() -> None:
    log: list[TurnRecord] = [EpochAdvanced(FIRST_EPOCH + 7)]
    assert replay(RECORD, log).epoch == FIRST_EPOCH + 7
    assert replay(structs.replace(RECORD, fence=2), log).epoch == 2 * EPOCHS_PER_FENCE


def test_a_compacted_entry_forgets_what_came_before() -> None:
    log: list[TurnRecord] = [*ABC, Compacted((item("x"), item("y", "x")), b"c", FIRST_EPOCH + 3)]
    assert replay(RECORD, log) == Conversation((item("x"), item("y", "x")), b"c", FIRST_EPOCH + 3)


@pytest.mark.parametrize(
    "entries",
    [
        [ItemAppended(A), ItemAppended(A)],
        [ItemAppended(B)],
        [ItemChanged(A)],
        [ItemDeleted("a")],
        [ItemAppended(A), ItemDeleted("a"), ItemDeleted("a")],
        [EpochAdvanced(FIRST_EPOCH)],
        [EpochAdvanced(FIRST_EPOCH + 2), EpochAdvanced(FIRST_EPOCH + 1)],
        [Compacted((A, A), b"", FIRST_EPOCH)],
    ],
)
def test_a_log_that_contradicts_itself_is_refused(entries: list[TurnRecord]) -> None:
    with pytest.raises(CorruptLog):
        replay(RECORD, entries)


@dataclass(slots=True)
class LogBuilder:
    """Draws logs that an owner could have written."""

    entries: list[TurnRecord] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    made: int = 0
    epoch: int = FIRST_EPOCH

    def add(self, choice: int, pick: int) -> None:
        self.made += 1
        chosen = self.present[pick % len(self.present)] if self.present else None
        if choice == 0 or chosen is None:
            name = f"i{self.made}"
            self.entries.append(ItemAppended(item(name, chosen if pick % 3 else None)))
            self.present.append(name)
        elif choice == 1:
            self.entries.append(ItemChanged(item(chosen, content=str(self.made))))
        elif choice == 2:
            self.entries.append(ItemDeleted(chosen))
            self.present.remove(chosen)
        elif choice == 3:
            self.epoch += 1 + pick
            self.entries.append(EpochAdvanced(self.epoch))
        else:
            self.entries.append(ConfigChanged(b"%d" % self.made))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=30), st.integers(0, 30))
def test_compaction_anywhere_changes_nothing(choices: list[tuple[int, int]], cut: int) -> None:
    log = LogBuilder()
    for choice, pick in choices:
        log.add(choice, pick)
    before, after = log.entries[:cut], log.entries[cut:]
    compacted = decode_entry(encode_entry(compact(replay(RECORD, before))))
    assert replay(RECORD, [compacted, *after]) == replay(RECORD, log.entries)
