"""What a call writes down of its conversation."""

from __future__ import annotations

import time

from sessions.effects import Measured
from sessions.events import DurabilityRestored, DurabilitySuspended, ReplyAudio
from sessions.items import Item as ConversationItem
from sessions.records import (
    Compacted,
    ConfigChanged,
    EpochAdvanced,
    ItemAppended,
    ItemDeleted,
    ReplySpeaking,
)
from sessions.saving import SAVE_NS_MAX
from sessions.settings import SessionSettings, TurnDetection
from sessions.store import LogLimits
from tests.duplex.test_call import EPOCH, NS_PER_S, S_MAX, Bench, play, silence, tone


def message(number: int) -> ConversationItem:
    return ConversationItem(f"item_{number}", "user", f"Line {number}.", spoken=False)


def test_what_changes_is_written_down() -> None:
    async def scenario(one: Bench) -> None:
        talk = one.call.conversation
        for number in (101, 102):
            one.call.carry_out(talk.create_item(message(number), None))
        one.call.carry_out(talk.delete_item("item_101"))
        one.call.update(SessionSettings(temperature=0.5))
        one.start_reply()
        one.call.carry_out(talk.cancel_response(None, 1))
        entries = await one.stored()
        kinds = [type(entry) for entry in entries]
        assert kinds[:4] == [ItemAppended, ItemAppended, ItemDeleted, ConfigChanged]
        assert EpochAdvanced(EPOCH + 1) in entries

    play(scenario)


def test_a_long_log_is_compacted_whatever_makes_it_long() -> None:
    async def scenario(one: Bench) -> None:
        one.call.carry_out(one.call.conversation.create_item(message(1), None))
        for number in range(20):
            one.call.update(SessionSettings(temperature=number / 20))
            assert await one.journal.flush(S_MAX * NS_PER_S)
        entries = await one.stored()
        assert not one.journal.failed.done()
        assert isinstance(entries[0], Compacted)
        assert [item.id for item in entries[0].items] == ["item_1"]
        assert len(entries) <= 5

    play(scenario, limits=LogLimits(compact_entries=4, entries_max=8))


def test_an_item_that_was_there_is_changed_and_not_added_again() -> None:
    async def scenario(one: Bench) -> None:
        await one.call.listening.hear(silence(300) + tone(400) + silence(800))
        kinds = [type(entry).__name__ for entry in await one.stored()]
        assert kinds == ["ItemAppended"]

    play(scenario, SessionSettings(turn_detection=TurnDetection(create_response=False)))


def test_sound_goes_as_soon_as_its_words_are_stored() -> None:
    async def scenario(one: Bench) -> None:
        one.start_reply()
        assert one.told(ReplyAudio) == []
        await one.written()
        assert sum(event.frame.samples for event in one.told(ReplyAudio)) == 24_000, "and waits for no pacer"
        (said,) = [entry for entry in await one.stored() if isinstance(entry, ReplySpeaking)]
        assert (said.part, said.words, said.rest) == (1, (), "Well")

    play(scenario)


def test_a_store_that_is_too_slow_is_told_and_mutes_nobody() -> None:
    async def scenario(one: Bench) -> None:
        one.start_reply(time.monotonic_ns())
        one.call.pace(time.monotonic_ns() + SAVE_NS_MAX)
        assert one.told(DurabilitySuspended) == [DurabilitySuspended()]
        assert sum(event.frame.samples for event in one.told(ReplyAudio)) == 24_000
        await one.written()
        assert one.told(DurabilityRestored) == [DurabilityRestored()]

    play(scenario)


def test_items_that_had_to_leave_are_counted() -> None:
    async def scenario(one: Bench) -> None:
        one.call.carry_out([Measured("items_trimmed", 2)])
        assert one.metric("duplex_items_trimmed_total") == 2

    play(scenario)
