"""What is stored comes back as it was."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.checkpoints import compacted, decode_settings, encode_settings, item_of, item_record
from sessions.items import Item
from sessions.records import SessionRecord, decode_entry, encode_entry, replay, token_digest
from sessions.settings import SessionSettings, TurnDetection

MS = 24  # output samples

ITEMS = st.builds(
    Item,
    id=st.uuids().map(str),
    role=st.sampled_from(["system", "user", "assistant"]),
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    spoken=st.booleans(),
    status=st.sampled_from(["completed", "incomplete"]),
    audio_samples=st.integers(0, 600_000).map(lambda ms: ms * MS),
    cut=st.booleans(),
)
SETTINGS = st.builds(
    SessionSettings,
    model=st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    instructions=st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    speed=st.floats(0.25, 1.5),
    modalities=st.sampled_from([("audio",), ("text",)]),
    turn_detection=st.none()
    | st.builds(
        TurnDetection,
        kind=st.sampled_from(["server_vad", "semantic_vad"]),
        threshold=st.floats(0, 1),
        eagerness=st.sampled_from(["low", "medium", "high", "auto"]),
        create_response=st.booleans(),
    ),
    transcription=st.booleans(),
    max_output_tokens=st.none() | st.integers(1, 4_096),
    temperature=st.none() | st.floats(0, 2),
)


@given(ITEMS, st.none() | st.text("abc", max_size=5))
def test_items(item: Item, previous: str | None) -> None:
    record = item_record(item, previous)
    assert item_of(record) == item
    assert record.previous == previous


@pytest.mark.parametrize(
    ("item", "status", "total", "cut"),
    [
        (Item("i", "assistant", "Yes.", True, audio_samples=1_000 * MS), "completed", 1_000, 0),
        (Item("i", "assistant", "Ye", True, "incomplete", 500 * MS, cut=True), "incomplete", 500, 500),
        (Item("i", "user", "", True, "in_progress"), "incomplete", 0, 0),
    ],
)
def test_a_record_says_where_history_ends(item: Item, status: str, total: int, cut: int) -> None:
    record = item_record(item, None)
    assert (record.status, record.audio_ms_total, record.audio_ms_cut) == (status, total, cut)
    assert record.truncated == item.cut


def test_parts_of_a_millisecond_are_lost_downwards() -> None:
    assert item_of(item_record(Item("i", "assistant", "", True, audio_samples=25), None)).audio_samples == 24


@given(SETTINGS)
def test_settings(settings: SessionSettings) -> None:
    assert decode_settings(encode_settings(settings)) == settings


def test_settings_of_another_release_are_not_guessed_at() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_settings(b'{"modalities": ["smell"]}')


@given(st.lists(ITEMS, max_size=6, unique_by=lambda item: item.id), SETTINGS, st.integers(1 << 20, 1 << 30))
def test_a_compacted_conversation_is_the_conversation(items: list[Item], settings: SessionSettings, epoch: int) -> None:
    record = SessionRecord("sess_1", "default", 0, b"{}", token_digest("x"))
    entry = decode_entry(encode_entry(compacted(tuple(items), settings, epoch)))
    stored = replay(record, [entry])
    assert [item_of(one) for one in stored.items] == items
    assert (decode_settings(stored.config), stored.epoch) == (settings, epoch)
