"""A session passes to another owner amid a reply, on each kind of store."""

from __future__ import annotations

import pytest
from msgspec import structs

from sessions.log import replay
from sessions.records import ReplyHeard, ReplySpeaking, UnsureRecord, WordRecord, decode_entry, encode_entry
from sessions.store import LogLimits, SessionStore, StaleOwner
from tests.sessions.store_backends import HOUR_MS, TOKEN, Backend, new_record


def behind(said: ReplySpeaking) -> ReplySpeaking:
    """The clause behind it."""
    return structs.replace(said, part=2, first=2, words=(WordRecord("No.", 9_600, 14_400),))


def test_who_takes_over_amid_a_reply_finds_all_of_it_that_was_acknowledged(backend: Backend) -> None:
    record = new_record()
    words = (WordRecord("Well,", 0, 4_800), WordRecord("yes.", 4_800, 9_600))
    said = ReplySpeaking("item", "resp", record.epoch, None, 24_000, 1, 0, words)
    heard, late = ReplyHeard("item", 4_800, "acked", 0), behind(said)

    async def scenario(store: SessionStore) -> None:
        first = await store.create(record, "a", HOUR_MS)
        await store.append(first, 1, encode_entry(said))
        await store.append(first, 2, encode_entry(heard))
        _, snapshot = await store.acquire(record.session, "b", TOKEN, HOUR_MS)
        with pytest.raises(StaleOwner):
            await store.append(first, 3, encode_entry(late))
        (left,) = replay(snapshot.record, [decode_entry(entry) for entry in snapshot.entries]).items
        assert (left.content, left.unsure) == ("Well,", UnsureRecord("resp", 24_000, 4_800, words))

    backend.run(scenario, LogLimits())
