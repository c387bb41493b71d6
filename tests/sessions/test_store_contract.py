"""One contract, three stores: in memory, on the embedded Valkey, on Debian's Redis 7.0."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from sessions.records import EpochAdvanced, decode_entry, encode_entry, encode_record
from sessions.store import (
    Appended,
    CursorRefused,
    EntryTooLarge,
    LeaseHeld,
    Listing,
    LogFull,
    LogLimits,
    Notice,
    NoticeKind,
    Ownership,
    SequenceGap,
    SessionExists,
    SessionStore,
    SessionUnknown,
    StaleOwner,
    StoreUnavailable,
    TokenRefused,
)
from tests.sessions.store_backends import (
    HOUR_MS,
    START_MS,
    TOKEN,
    WRONG_TOKEN,
    Backend,
    debian_server,
    new_record,
)

S_MAX = 10
# A server gives whole buckets of its table of keys.
LISTED_TOO_MANY_MAX = 20


async def pages_of(store: SessionStore, count: int) -> list[Listing]:
    """The whole listing, from its beginning."""
    pages = [await store.listing("", count)]
    while pages[-1].cursor is not None:
        pages.append(await store.listing(pages[-1].cursor, count))
    return pages


async def entries_of(store: SessionStore, session: str) -> tuple[bytes, ...]:
    _, snapshot = await store.acquire(session, "reader", TOKEN, 0)
    return snapshot.entries


def test_what_was_appended_comes_back_in_order_to_the_next_owner(backend: Backend) -> None:
    record = new_record(b'{"voice":"joe"}')

    async def scenario(store: SessionStore) -> None:
        first = await store.create(record, "a", HOUR_MS)
        assert first == Ownership(record.session, "a", 1, HOUR_MS)
        assert [await store.append(first, seq, b"a%d" % seq) for seq in (1, 2)] == [Appended.OK] * 2
        second, snapshot = await store.acquire(record.session, "b", TOKEN, HOUR_MS)
        assert second.fence == snapshot.record.fence == 2
        assert snapshot.record == structs.replace(record, fence=2)
        assert snapshot.entries == (b"a1", b"a2")
        assert await store.append(second, 1, b"b1") is Appended.OK
        assert await entries_of(store, record.session) == (b"a1", b"a2", b"b1")

    backend.run(scenario)


def test_any_bytes_survive(backend: Backend) -> None:
    record = new_record(bytes(range(256)))
    entry = encode_entry(EpochAdvanced(1 << 40))

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        await store.append(owner, 1, b"\x00\xff\r\n{}")
        await store.append(owner, 2, b"")
        await store.append(owner, 3, entry)
        _, snapshot = await store.acquire(record.session, "b", TOKEN, 0)
        assert snapshot.record.config == bytes(range(256))
        assert snapshot.entries == (b"\x00\xff\r\n{}", b"", entry)
        assert decode_entry(snapshot.entries[2]) == EpochAdvanced(1 << 40)

    backend.run(scenario, LogLimits())


def test_a_session_is_made_once(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        made = await store.create(record, "a", HOUR_MS)
        assert await store.create(record, "a", HOUR_MS) == made, "the same call again is no other session"
        with pytest.raises(SessionExists):
            await store.create(record, "b", HOUR_MS)
        await store.append(made, 1, b"x")
        with pytest.raises(SessionExists):
            await store.create(record, "a", HOUR_MS)

    backend.run(scenario)


def test_a_new_owner_is_above_whatever_fence_was_seen(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        first = await store.create(record, "a", HOUR_MS)
        await store.append(first, 1, b"one")
        fences = []
        for seen in (0, 1, 2, 3, 9, 7, 1 << 33, 0):
            owner, snapshot = await store.acquire(record.session, "b", TOKEN, HOUR_MS, seen_fence=seen)
            assert snapshot.record.fence == owner.fence
            fences.append((owner.fence, snapshot.went_back))
            assert await store.append(owner, 1, b"next") is Appended.OK
        top = (1 << 33) + 1
        assert fences[:6] == [(2, False), (3, False), (4, False), (5, False), (10, True), (11, False)]
        assert fences[6:] == [(top, True), (top + 1, False)]
        assert await entries_of(store, record.session) == (b"one",) + (b"next",) * 8

    backend.run(scenario, LogLimits())


def test_a_retried_creation_after_a_takeover_is_refused(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        await store.create(record, "a", HOUR_MS)
        await store.acquire(record.session, "a", TOKEN, HOUR_MS)
        with pytest.raises(SessionExists):
            await store.create(record, "a", HOUR_MS)

    backend.run(scenario)


@pytest.mark.parametrize("session", ["", "a}b", "ä", "a" * 129, "a b"])
def test_an_id_outside_the_alphabet_is_never_a_session(backend: Backend, session: str) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        with pytest.raises(ValueError, match="id of a session"):
            await store.create(structs.replace(record, session=session), "a", HOUR_MS)
        with pytest.raises(SessionUnknown):
            await store.acquire(session, "a", TOKEN, HOUR_MS)
        assert await store.delete(session) is False

    backend.run(scenario)


def test_an_absent_session_takes_nothing(backend: Backend) -> None:
    owner = Ownership(new_record().session, "a", 1, HOUR_MS)

    async def scenario(store: SessionStore) -> None:
        for call in (
            store.acquire(owner.session, "a", TOKEN, HOUR_MS),
            store.acquire(owner.session, "a", None, HOUR_MS),
            store.append(owner, 1, b"x"),
            store.compact(owner, 1, b"x"),
            store.renew(owner),
        ):
            with pytest.raises(SessionUnknown):
                await call
        assert await store.delete(owner.session) is False

    backend.run(scenario)


def test_the_right_token_takes_over_at_once_and_the_old_owner_is_shut_out(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        old = await store.create(record, "a", HOUR_MS)
        new, _ = await store.acquire(record.session, "b", TOKEN, HOUR_MS)
        for call in (store.append(old, 1, b"late"), store.compact(old, 1, b"late"), store.renew(old)):
            with pytest.raises(StaleOwner) as refusal:
                await call
            assert refusal.value.fence == 2
        assert await store.append(new, 1, b"new") is Appended.OK
        assert await entries_of(store, record.session) == (b"new",)

    backend.run(scenario)


def test_a_wrong_token_takes_nothing_even_when_the_lease_has_run_out(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", 0)
        for wrong in (WRONG_TOKEN, b""):
            with pytest.raises(TokenRefused):
                await store.acquire(record.session, "b", wrong, HOUR_MS)
        await store.renew(owner)

    backend.run(scenario)


def test_without_a_token_the_lease_must_have_run_out(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        with pytest.raises(LeaseHeld) as refusal:
            await store.acquire(record.session, "b", None, HOUR_MS)
        assert refusal.value.owner == "a"
        assert HOUR_MS - 60_000 < refusal.value.remaining_ms <= HOUR_MS
        await store.renew(replace(owner, lease_ttl_ms=0))
        taken, _ = await store.acquire(record.session, "b", None, HOUR_MS)
        assert taken.fence == 2

    backend.run(scenario)


def test_each_write_renews_the_lease(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        idle = await store.create(record, "a", 0)
        for seq, write in ((1, store.append), (2, store.compact)):
            await write(replace(idle, lease_ttl_ms=HOUR_MS), seq, b"x")
            with pytest.raises(LeaseHeld):
                await store.acquire(record.session, "b", None, HOUR_MS)
            await store.renew(idle)

    backend.run(scenario)


def test_an_owner_may_claim_its_own_session_again(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        old = await store.create(record, "a", HOUR_MS)
        again, _ = await store.acquire(record.session, "a", None, HOUR_MS)
        assert again.fence == 2
        with pytest.raises(StaleOwner):
            await store.renew(old)

    backend.run(scenario)


def test_a_repeated_append_counts_once(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        for seq, entry in ((1, b"one"), (2, b"two")):
            assert await store.append(owner, seq, entry) is Appended.OK
        assert await store.append(owner, 1, b"one") is Appended.DUPLICATE
        assert await store.append(owner, 2, b"two") is Appended.DUPLICATE
        assert await entries_of(store, record.session) == (b"one", b"two")

    backend.run(scenario)


@pytest.mark.parametrize(("seq", "entry"), [(4, b"x"), (2, b"other"), (1, b"other"), (0, b"x"), (-1, b"x")])
def test_what_is_neither_next_nor_a_repetition_is_a_gap(backend: Backend, seq: int, entry: bytes) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        await store.append(owner, 1, b"one")
        await store.append(owner, 2, b"two")
        for write in (store.append, store.compact):
            with pytest.raises(SequenceGap) as refusal:
                await write(owner, seq, entry)
            assert refusal.value.expected == 3
        assert await entries_of(store, record.session) == (b"one", b"two")

    backend.run(scenario)


def test_a_new_owner_counts_from_one_again(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        first = await store.create(record, "a", HOUR_MS)
        await store.append(first, 1, b"same")
        second, _ = await store.acquire(record.session, "b", TOKEN, HOUR_MS)
        assert await store.append(second, 1, b"same") is Appended.OK, "an entry of another fence is another entry"
        assert await entries_of(store, record.session) == (b"same", b"same")

    backend.run(scenario)


def test_a_compaction_replaces_all_before_it(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        for seq in (1, 2):
            await store.append(owner, seq, b"old")
        assert await store.compact(owner, 3, b"all") is Appended.OK
        assert await store.compact(owner, 3, b"all") is Appended.DUPLICATE
        assert await store.append(owner, 2, b"old") is Appended.DUPLICATE, "covered by the compaction"
        assert await store.append(owner, 4, b"more") is Appended.OK
        assert await entries_of(store, record.session) == (b"all", b"more")

    backend.run(scenario)


def test_a_repeated_compaction_with_other_contents_is_a_gap(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        await store.compact(owner, 1, b"all")
        with pytest.raises(SequenceGap):
            await store.compact(owner, 1, b"other")

    backend.run(scenario)


def test_a_full_log_takes_nothing_until_it_is_compacted(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        limits = store.limits
        for seq in range(1, limits.entries_max + 1):
            await store.append(owner, seq, b"x")
        with pytest.raises(LogFull):
            await store.append(owner, limits.entries_max + 1, b"x")
        assert await store.append(owner, 1, b"x") is Appended.DUPLICATE
        assert await store.compact(owner, limits.entries_max + 1, b"all") is Appended.OK
        assert await store.append(owner, limits.entries_max + 2, b"x") is Appended.OK

    backend.run(scenario)


def test_the_bytes_of_a_log_are_bounded_over_all_owners(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        for seq in (1, 2, 3):
            await store.append(owner, seq, b"x" * 20)
        owner, _ = await store.acquire(record.session, "b", TOKEN, HOUR_MS)
        with pytest.raises(LogFull):
            await store.append(owner, 1, b"x")
        await store.compact(owner, 1, b"x" * 30)
        assert await store.append(owner, 2, b"x" * 20) is Appended.OK
        with pytest.raises(LogFull):
            await store.append(owner, 3, b"x" * 11)

    backend.run(scenario)


def test_an_entry_has_a_greatest_size(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        with pytest.raises(EntryTooLarge) as refusal:
            await store.append(owner, 1, b"x" * 21)
        assert (refusal.value.size, refusal.value.size_max) == (21, 20)
        with pytest.raises(EntryTooLarge):
            await store.compact(owner, 1, b"x" * 31)
        assert await entries_of(store, record.session) == ()

    backend.run(scenario)


def test_a_late_writer_does_not_bring_a_deleted_session_back(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        await store.append(owner, 1, b"x")
        assert await store.delete(record.session) is True
        for call in (store.append(owner, 2, b"late"), store.compact(owner, 2, b"late"), store.renew(owner)):
            with pytest.raises(SessionUnknown):
                await call
        with pytest.raises(SessionUnknown):
            await store.acquire(record.session, "b", TOKEN, HOUR_MS)
        assert await store.delete(record.session) is False

    backend.run(scenario)


def test_of_two_takeovers_at_once_exactly_one_ends_up_current(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        await store.create(record, "a", HOUR_MS)
        claims = [store.acquire(record.session, owner, TOKEN, HOUR_MS) for owner in ("b", "c")]
        owners = sorted([owner for owner, _ in await asyncio.gather(*claims)], key=lambda owner: owner.fence)
        assert [owner.fence for owner in owners] == [2, 3]
        with pytest.raises(StaleOwner):
            await store.append(owners[0], 1, b"x")
        assert await store.append(owners[1], 1, b"x") is Appended.OK

    backend.run(scenario)


def test_of_two_unattended_takeovers_at_once_one_finds_the_lease_held(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        await store.create(record, "a", 0)
        claims = [store.acquire(record.session, owner, None, HOUR_MS) for owner in ("b", "c")]
        outcomes = await asyncio.gather(*claims, return_exceptions=True)
        assert sorted(isinstance(outcome, LeaseHeld) for outcome in outcomes) == [False, True]

    backend.run(scenario)


@pytest.mark.parametrize("second", [b"one", b"two"])
def test_of_two_appends_at_once_with_one_number_one_is_stored(backend: Backend, second: bytes) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        calls = (store.append(owner, 1, b"one"), store.append(owner, 1, second))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert Appended.OK in outcomes
        if second == b"one":
            assert Appended.DUPLICATE in outcomes
        else:
            assert any(isinstance(outcome, SequenceGap) for outcome in outcomes)
        assert len(await entries_of(store, record.session)) == 1

    backend.run(scenario)


def test_a_session_is_described_without_being_touched(backend: Backend) -> None:
    record = new_record(b"{}")

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        await store.append(owner, 1, b"abc")
        await store.append(owner, 2, b"de")
        (one,) = await store.describe([record.session])
        assert (one.session, one.tenant, one.owner, one.fence) == (record.session, "tenant", "a", 1)
        assert (one.entries, one.log_bytes, one.record_bytes) == (2, 5, len(encode_record(record)))
        assert (one.created_ms, 0 < one.lease_ms <= HOUR_MS) == (record.created_ms, True)
        assert one.active_ms >= START_MS
        same, snapshot = await store.read(record.session)
        assert replace(same, lease_ms=one.lease_ms) == one
        assert (snapshot.record, snapshot.entries) == (record, (b"abc", b"de"))
        assert await store.append(owner, 3, b"f") is Appended.OK, "it is still its owner's"

    backend.run(scenario)


def test_of_a_session_that_was_taken_over_the_present_owner_is_told(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        first = await store.create(record, "a", HOUR_MS)
        await store.append(first, 1, b"x")
        await store.acquire(record.session, "b", TOKEN, HOUR_MS)
        one, snapshot = await store.read(record.session)
        assert (one.owner, one.fence, snapshot.record.fence, snapshot.entries) == ("b", 2, 2, (b"x",))

    backend.run(scenario)


def test_a_lease_that_is_given_back_is_nobodys_and_no_activity(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        (held,) = await store.describe([record.session])
        await store.renew(replace(owner, lease_ttl_ms=0))
        (free,) = await store.describe([record.session])
        assert (free.lease_ms, free.active_ms) == (0, held.active_ms)

    backend.run(scenario)


def test_what_is_not_there_is_not_described(backend: Backend) -> None:
    record, absent = new_record(), new_record().session

    async def scenario(store: SessionStore) -> None:
        await store.create(record, "a", HOUR_MS)
        found = await store.describe([absent, "a}b", record.session])
        assert [one.session for one in found] == [record.session]
        for session in (absent, "a}b"):
            with pytest.raises(SessionUnknown):
                await store.read(session)

    backend.run(scenario)


@pytest.mark.parametrize("count", [1, 7, 1_000])
def test_all_pages_of_a_listing_together_name_each_session(backend: Backend, count: int) -> None:
    records = [new_record() for _ in range(30)]
    kept, gone = records[:25], records[25:]

    async def scenario(store: SessionStore) -> None:
        for record in records:
            await store.create(record, "a", HOUR_MS)
        for record in gone:
            await store.delete(record.session)
        pages = await pages_of(store, count)
        listed = [one.session for page in pages for one in page.sessions]
        assert {record.session for record in kept} <= set(listed)
        assert not {record.session for record in gone} & set(listed)
        assert max(len(page.sessions) for page in pages) <= count + LISTED_TOO_MANY_MAX
        for record in kept:
            await store.delete(record.session)

    backend.run(scenario)


def test_sessions_that_come_and_go_meanwhile_hide_no_other(backend: Backend) -> None:
    kept = [new_record() for _ in range(20)]

    async def scenario(store: SessionStore) -> None:
        for record in kept:
            await store.create(record, "a", HOUR_MS)
        page, listed, comers = await store.listing("", 3), set[str](), 60
        while True:
            listed |= {one.session for one in page.sessions}
            if page.cursor is None:
                break
            passing = [new_record() for _ in range(min(10, comers))]  # with comers for ever, it may never end
            comers -= len(passing)
            for record in passing:
                await store.create(record, "a", HOUR_MS)
            page = await store.listing(page.cursor, 3)
            for record in passing:
                await store.delete(record.session)
        assert {record.session for record in kept} <= listed
        for record in kept:
            await store.delete(record.session)

    backend.run(scenario)


@pytest.mark.parametrize("cursor", ["not a cursor", "ä", "9" * 200])
def test_a_cursor_that_no_listing_gave_is_refused(backend: Backend, cursor: str) -> None:
    async def scenario(store: SessionStore) -> None:
        with pytest.raises(CursorRefused):
            await store.listing(cursor, 10)

    backend.run(scenario)


def test_a_deletion_is_told_to_all_who_listen(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        await store.create(record, "a", HOUR_MS)
        async with asyncio.timeout(S_MAX), store.notices() as one, store.notices() as other:
            other_gateway = backend.open(LogLimits()) if backend.url else store
            await store.notify(Notice(NoticeKind.END, record.session))
            await other_gateway.delete(record.session)
            told = [Notice(NoticeKind.END, record.session), Notice(NoticeKind.DELETED, record.session)]
            for heard in (one, other):
                assert [await anext(heard), await anext(heard)] == told
            if other_gateway is not store:
                await other_gateway.close()

    backend.run(scenario)


def test_a_closed_store_says_so(backend: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        await store.ping()
        await store.close()
        with pytest.raises(StoreUnavailable):
            await store.ping()
        with pytest.raises(StoreUnavailable):
            await store.create(record, "a", HOUR_MS)

    backend.run(scenario)


def test_a_missing_server_is_a_failure_that_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AssertionError, match="apt-get install -y redis-server"), debian_server(tmp_path):
        pass


def test_a_tenants_sessions_are_kept_for_as_long_as_it_wants(backend: Backend) -> None:
    if not backend.url:
        return  # its clock stands
    gone, kept = new_record(), new_record()

    async def scenario(store: SessionStore) -> None:
        await store.create(gone, "a", 0, retention_ms=1)
        owner = await store.create(kept, "a", 0, retention_ms=HOUR_MS)
        await store.append(owner, 1, b"one")
        async with asyncio.timeout(S_MAX):
            while await store.describe([gone.session]):  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0)
        assert (await store.acquire(kept.session, "b", TOKEN, 0, retention_ms=HOUR_MS))[0].retention_ms == HOUR_MS

    backend.run(scenario)
