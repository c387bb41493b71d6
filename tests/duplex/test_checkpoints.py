"""What is stored comes back as it was."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.checkpoints import (
    Recorder,
    Restored,
    decode_settings,
    encode_settings,
    item_of,
    item_record,
    restored,
)
from media.audio_format import FORMATS
from sessions.effects import (
    SaveCallBegun,
    SaveCallSettled,
    SaveDeletion,
    SaveEpoch,
    SaveHeard,
    SaveItem,
    SaveSpeaking,
)
from sessions.items import Item
from sessions.log import replay
from sessions.records import (
    CallRecord,
    CallSettled,
    ConfigChanged,
    EpochAdvanced,
    ItemAppended,
    ItemChanged,
    ItemDeleted,
    ReplyHeard,
    ReplySpeaking,
    SessionRecord,
    SpokenRecord,
    TurnRecord,
    WordRecord,
    decode_entry,
    encode_entry,
    token_digest,
)
from sessions.reply import SpokenWord, Unsure
from sessions.saving import Part
from sessions.settings import OUTPUT_RATE, SessionSettings, TurnDetection
from sessions.store import Snapshot
from sessions.tool_calls import BegunCall, call_item, output_item
from stages.contracts import Tool, ToolChoice

MS = 24  # output samples


def _as_cut(item: Item) -> Item:
    """Only of what was cut it is known how far it was heard."""
    if not item.cut:
        return item
    known = replace(item, heard_basis="acked", heard_error_samples=2 * MS, cut_word="w")
    return replace(known, heard_samples=item.audio_samples)


ITEMS = st.builds(
    Item,
    id=st.uuids().map(str),
    role=st.sampled_from(["system", "user", "assistant"]),
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    spoken=st.booleans(),
    status=st.sampled_from(["completed", "incomplete"]),
    audio_samples=st.integers(0, 600_000).map(lambda ms: ms * MS),
    cut=st.booleans(),
    filler=st.sampled_from(["", "One moment, please."]),
    broke_off=st.booleans(),
    by_service=st.booleans(),
).map(_as_cut)
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
    tools=st.lists(st.builds(Tool, st.text("ab"), st.text("ab"), st.just('{"type":"object"}')), max_size=2).map(tuple),
    tool_choice=st.builds(ToolChoice, st.sampled_from(["auto", "none", "required"]), st.text("ab")),
    input_format=st.sampled_from(list(FORMATS)),
    output_format=st.sampled_from(list(FORMATS)),
)


CALLS = st.builds(
    call_item,
    st.text("abc", min_size=1, max_size=5),
    st.text("abc", min_size=1, max_size=5),
    st.sampled_from(["look", "spoken"]),
    st.text(max_size=10),
    st.sampled_from(["completed", "incomplete"]),
)
OUTPUTS = st.builds(output_item, st.text("abc", min_size=1), st.text("abc", min_size=1), st.text(max_size=10))


@given(CALLS | OUTPUTS)
def test_calls_and_outputs(item: Item) -> None:
    record = decode_entry(encode_entry(ItemAppended(item_record(item, None))))
    assert isinstance(record, ItemAppended)
    assert item_of(record.item) == item
    assert record.item.kind == item.kind


@given(ITEMS, st.none() | st.text("abc", max_size=5))
def test_items(item: Item, previous: str | None) -> None:
    record = item_record(item, previous)
    assert item_of(record) == item
    assert record.previous == previous


@pytest.mark.parametrize(
    ("item", "status", "total", "cut"),
    [
        (Item("i", "assistant", "Yes.", True, audio_samples=1_000 * MS), "completed", 1_000, 0),
        (Item("i", "assistant", "Ye", True, "incomplete", 500 * MS, True, 400 * MS), "incomplete", 500, 400),
        (Item("i", "user", "", True, "in_progress"), "incomplete", 0, 0),
    ],
)
def test_a_record_says_where_history_ends(item: Item, status: str, total: int, cut: int) -> None:
    record = item_record(item, None)
    assert (record.status, record.audio_ms_total, record.audio_ms_cut) == (status, total, cut)
    assert record.truncated == item.cut


def test_a_record_knows_milliseconds_and_no_rate() -> None:
    item = Item("i", "assistant", "Ye", True, "incomplete", audio_samples=8_000, cut=True, heard_samples=4_004)
    back = item_of(item_record(replace(item, heard_error_samples=9, sample_rate=8_000), None))
    assert (back.audio_samples, back.heard_samples, back.heard_error_samples) == (1_000 * MS, 500 * MS, 2 * MS)
    assert back.sample_rate == OUTPUT_RATE


def test_parts_of_a_millisecond_are_lost_downwards() -> None:
    assert item_of(item_record(Item("i", "assistant", "", True, audio_samples=25), None)).audio_samples == 24


@given(SETTINGS)
def test_settings(settings: SessionSettings) -> None:
    assert decode_settings(encode_settings(settings)) == settings


def test_settings_that_were_stored_before_there_were_tools() -> None:
    assert decode_settings(b"{}").tools == ()
    assert decode_settings(b"{}").tool_choice == ToolChoice()


def test_settings_of_another_release_are_not_guessed_at() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_settings(b'{"modalities": ["smell"]}')


@given(st.lists(ITEMS, max_size=6, unique_by=lambda item: item.id), SETTINGS, st.integers(1 << 20, 1 << 30))
def test_a_compacted_conversation_is_the_conversation(items: list[Item], settings: SessionSettings, epoch: int) -> None:
    record = SessionRecord("sess_1", "default", 0, b"{}", token_digest("x"))
    entry = decode_entry(encode_entry(Recorder(items, settings, epoch).compacted()))
    stored = replay(record, [entry])
    assert [item_of(one) for one in stored.items] == items
    assert (decode_settings(stored.config), stored.epoch) == (settings, epoch)


def new_recorder(*items: Item) -> Recorder:
    return Recorder(items, SessionSettings(), 1 << 20)


OLD, NEW = Item("old", "user", "Hi.", spoken=False), Item("new", "user", "", spoken=True)


def test_an_item_is_appended_once_and_changed_after_that() -> None:
    recorder = new_recorder(OLD)
    assert recorder.saved(SaveItem(OLD, None)) == ItemChanged(item_record(OLD, None))
    assert recorder.saved(SaveItem(NEW, "old")) == ItemAppended(item_record(NEW, "old"))
    assert recorder.saved(SaveItem(NEW, "old")) == ItemChanged(item_record(NEW, "old"))
    assert recorder.saved(SaveDeletion("new")) == ItemDeleted("new")
    assert recorder.saved(SaveItem(NEW, "old")) == ItemAppended(item_record(NEW, "old"))
    assert recorder.saved(SaveEpoch(2 << 20)) == EpochAdvanced(2 << 20)


def test_a_compaction_amid_a_step_holds_what_was_saved_of_it_and_no_more() -> None:
    """The conversation has gone on to the end of the step by then."""
    steps: list[SaveItem | SaveDeletion | SaveEpoch] = [SaveEpoch(2 << 20), SaveItem(NEW, "old"), SaveDeletion("old")]
    record = SessionRecord("sess", "default", 0, encode_settings(SessionSettings()), token_digest("x"))
    log: list[TurnRecord] = [ItemAppended(item_record(OLD, None))]
    for place in range(len(steps)):
        recorder = new_recorder(OLD)
        entries = [recorder.saved(step) for step in steps[: place + 1]]
        compacted = recorder.compacted()
        assert replay(record, [compacted]) == replay(record, [*log, *entries])
        entries += [recorder.saved(step) for step in steps[place + 1 :]]
        assert replay(record, [compacted, *entries[place + 1 :]]) == replay(record, [*log, *entries])


def test_settings_are_part_of_what_is_compacted() -> None:
    recorder, settings = new_recorder(), SessionSettings(voice="another")
    assert recorder.settings_changed(settings) == ConfigChanged(encode_settings(settings))
    assert decode_settings(recorder.compacted().config) == settings


def test_a_new_owner_begins_where_the_log_ends() -> None:
    """In an epoch of its own fence, which outdates whatever the owner before had under way."""
    record = SessionRecord("sess", "default", 0, encode_settings(SessionSettings()), token_digest("x"), fence=3)
    item, settings = Item("item", "user", "Hi.", spoken=False), SessionSettings(voice="another")
    entries: list[TurnRecord] = [ItemAppended(item_record(item, None)), ConfigChanged(encode_settings(settings))]
    snapshot = Snapshot(record, tuple(encode_entry(entry) for entry in entries))
    assert restored(snapshot) == Restored((item,), settings, 3 << 20)


def test_a_reply_under_way_is_stored_as_it_is_said_and_kept_by_a_compaction() -> None:
    part = Part(1, 0, (SpokenWord("Well,", 0, 1_600), SpokenWord("yes.", 1_600, 3_200)), "And")
    recorder = Recorder((), SessionSettings(), 1 << 20)
    entries = [
        recorder.saved(SaveSpeaking("item", "resp", 1 << 20, None, 8_000, part)),
        recorder.saved(SaveHeard("item", 1_600, "acked", 80)),
    ]
    words = (WordRecord("Well,", 0, 1_600), WordRecord("yes.", 1_600, 3_200))
    assert entries == [
        ReplySpeaking("item", "resp", 1 << 20, None, 8_000, 1, 0, words, "And"),
        ReplyHeard("item", 1_600, "acked", 80),
    ]
    spoken = SpokenRecord("item", "resp", 1 << 20, None, 8_000, words, "And", 1_600, "acked", 80)
    assert recorder.compacted().speaking == (spoken,)
    recorder.saved(SaveItem(Item("item", "assistant", "Well, yes.", spoken=True), None))
    assert recorder.compacted().speaking == ()


def test_a_call_is_known_to_whoever_comes_next_until_it_is_settled() -> None:
    begun = BegunCall("call_1", "item", "book", b"digest", safe=False)
    call, output = call_item("item", "call_1", "book", "{}"), output_item("out", "call_1", "booked")
    recorder = new_recorder()
    entries = [recorder.saved(SaveItem(call, None)), recorder.saved(SaveCallBegun(begun))]
    record = SessionRecord("sess", "default", 0, encode_settings(SessionSettings()), token_digest("x"))
    assert restored(Snapshot(record, tuple(map(encode_entry, entries)))).calls == (begun,)
    next_one = Recorder((call,), SessionSettings(), 2 << 20, (begun,))
    assert next_one.compacted().calls == (CallRecord("call_1", "item", "book", b"digest", False),)
    settled = next_one.saved(SaveCallSettled("call_1", "succeeded", output, "item"))
    assert settled == CallSettled("call_1", "succeeded", item_record(output, "item"))
    assert next_one.compacted().calls == ()
    assert next_one.saved(SaveItem(output, "item")) == ItemChanged(item_record(output, "item"))


def test_a_call_may_be_settled_without_an_item() -> None:
    begun = BegunCall("call_1", "item", "book", b"digest", safe=False)
    recorder = Recorder((), SessionSettings(), 1 << 20, (begun,))
    assert recorder.saved(SaveCallSettled("call_1", "failed", None, None)) == CallSettled("call_1", "failed")


@pytest.mark.parametrize("rate", [8_000, 24_000])
def test_what_may_have_been_heard_comes_back_to_the_sample_at_its_rate(rate: int) -> None:
    unsure = Unsure("resp", (SpokenWord("Well,", 0, 1_601), SpokenWord("yes.", 1_601, 3_203)), "And")
    item = Item(
        "item",
        "assistant",
        "Well,",
        spoken=True,
        status="incomplete",
        audio_samples=3_203,
        cut=True,
        heard_samples=1_601,
        heard_basis="acked",
        heard_error_samples=rate // 10,
        sample_rate=rate,
        unsure=unsure,
    )
    assert item_of(item_record(item, None)) == item
    only_text = replace(item, audio_samples=0, text="", heard_samples=0, unsure=Unsure("resp", (), "And"))
    assert item_of(item_record(only_text, None)) == only_text
