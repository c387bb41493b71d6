"""What only a real server shows: keys and their ends, lost scripts, deadlines, refusals, and the model's truth."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from sessions import redis_store
from sessions.memory_store import MemorySessionStore
from sessions.records import CorruptRecord
from sessions.redis_store import PROBE_KEY, RedisSessionStore, check_server, session_keys
from sessions.store import (
    Appended,
    LeaseHeld,
    LogLimits,
    Notice,
    NoticeKind,
    Ownership,
    SessionStore,
    SessionUnknown,
    Snapshot,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
    StoreUnsuitable,
)
from tests.sessions.store_backends import (
    HOUR_MS,
    SMALL,
    TOKEN,
    WRONG_TOKEN,
    Backend,
    Clock,
    new_record,
)

pytestmark = pytest.mark.live

RETENTION_MS = 50_000
MOMENTS_MAX = 300  # turns of the loop that a call may take


def test_every_write_moves_the_end_of_both_keys_together(server: Backend) -> None:
    record = new_record()
    keys = session_keys(record.session)

    async def scenario(_: SessionStore) -> None:
        store = RedisSessionStore(server.url, retention_ms=RETENTION_MS)
        async with Redis.from_url(server.url) as client:

            async def ends_after(write: Awaitable[Any]) -> Any:
                for key in keys:
                    await client.persist(key)
                outcome = await write
                ends = [await client.pexpiretime(key) for key in keys]
                seconds, micros = await client.time()
                now_ms = seconds * 1000 + micros // 1000
                assert ends[0] == ends[1]
                assert now_ms < ends[0] <= now_ms + RETENTION_MS
                return outcome

            await ends_after(store.create(record, "a", HOUR_MS))
            await ends_after(store.create(record, "a", HOUR_MS))
            owner, _snapshot = await ends_after(store.acquire(record.session, "b", TOKEN, HOUR_MS))
            await ends_after(store.append(owner, 1, b"x"))
            await ends_after(store.compact(owner, 2, b"x"))
            await ends_after(store.renew(owner))
        await store.close()

    server.run(scenario)


def test_delete_leaves_no_key(server: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        await store.append(owner, 1, b"x")
        async with Redis.from_url(server.url) as client:
            pattern = f"*{{{record.session}}}*"
            assert {key.decode() async for key in client.scan_iter(pattern)} == set(session_keys(record.session))
            await store.delete(record.session)
            assert [key async for key in client.scan_iter(pattern)] == []

    server.run(scenario)


def test_appends_that_race_with_a_deletion_leave_no_key(server: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)

        async def append_all() -> int:
            for seq in itertools.count(1):
                await store.append(owner, seq, b"x")
                appended.set()
            raise AssertionError

        appended = asyncio.Event()
        appending = asyncio.create_task(append_all())
        await appended.wait()
        assert await store.delete(record.session) is True
        with pytest.raises(SessionUnknown):
            await appending
        async with Redis.from_url(server.url) as client:
            assert [key async for key in client.scan_iter() if record.session.encode() in key] == []

    server.run(scenario, LogLimits())


def test_keys_of_others_are_not_listed(server: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        await store.create(record, "a", HOUR_MS)
        others = {name: f"duplex:session:{{{name}}}" for name in ("a b", "sess_text", "sess_empty")}
        async with Redis.from_url(server.url) as client:
            await client.hset(others["a b"], "record", "x")
            await client.set(others["sess_text"], "x")
            await client.hset(others["sess_empty"], "something", "else")
            try:
                found, cursor = set[str](), ""
                while True:
                    listing = await store.listing(cursor, 100)
                    found |= {one.session for one in listing.sessions}
                    if listing.cursor is None:
                        break
                    cursor = listing.cursor
                assert record.session in found
                assert not found & set(others)
            finally:
                await client.delete(*others.values())

    server.run(scenario)


def test_of_a_damaged_record_the_rest_is_told(server: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        await store.create(record, "a", HOUR_MS)
        key, _log = session_keys(record.session)
        async with Redis.from_url(server.url) as client:
            await client.hdel(key, "active_ms")  # nor did an earlier release write that
            (old,) = await store.describe([record.session])
            assert old.active_ms == record.created_ms
            await client.hset(key, "record", "?")
        (one,) = await store.describe([record.session])
        assert (one.session, one.tenant, one.created_ms, one.owner) == (record.session, "", 0, "a")
        with pytest.raises(CorruptRecord):
            await store.read(record.session)
        await store.delete(record.session)

    server.run(scenario)


def test_a_lost_connection_ends_the_notices(server: Backend) -> None:
    async def scenario(store: SessionStore) -> None:
        async with store.notices() as notices, Redis.from_url(server.url) as client:
            await client.client_kill_filter(_type="pubsub")
            with pytest.raises(StoreUnavailable):
                await anext(notices)

    server.run(scenario)


def test_whoever_hears_no_notice_makes_sure_that_the_server_is_there(
    server: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "NOTICE_WAIT_S", 0.1)  # also the time that a busy server has
    notice = Notice(NoticeKind.END, new_record().session)

    async def scenario(store: SessionStore) -> None:
        async with store.notices() as notices, Redis.from_url(server.url) as client:
            hearing = asyncio.ensure_future(anext(notices))
            await asyncio.wait([hearing], timeout=0.25)
            await client.publish(redis_store.CHANNEL, "later something-new")
            await store.notify(notice)
            assert await hearing == notice
            await client.client_pause(400, all=True)
            with pytest.raises(StoreTimeout):
                await anext(notices)

    server.run(scenario)


def test_takeovers_leave_one_claim_each_in_turn(server: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        await store.create(record, "a", HOUR_MS)
        for _ in range(20):
            await store.acquire(record.session, "b", TOKEN, HOUR_MS)
        async with Redis.from_url(server.url) as client:
            _hash, log = session_keys(record.session)
            assert await client.xrange(log) == [(b"21-0", {b"claim": b"b"})]

    server.run(scenario)


def test_the_stream_itself_refuses_an_earlier_owner(server: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        await store.append(owner, 1, b"x")
        await store.acquire(record.session, "b", TOKEN, HOUR_MS)
        async with Redis.from_url(server.url) as client:
            _hash, log = session_keys(record.session)
            with pytest.raises(ResponseError):
                await client.xadd(log, {"entry": "late"}, id="1-2")

    server.run(scenario)


def test_a_server_that_forgot_the_scripts_is_told_again(server: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        async with Redis.from_url(server.url) as client:
            await client.script_flush()
        assert await store.append(owner, 1, b"x") is Appended.OK

    server.run(scenario)


def test_an_append_past_its_deadline_may_be_repeated(server: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        hasty = RedisSessionStore(server.url, call_timeout_ms=30)
        async with Redis.from_url(server.url) as client:
            await client.client_pause(60_000, all=False)
            try:
                with pytest.raises(StoreTimeout):
                    await hasty.append(owner, 1, b"x")
            finally:
                await client.client_unpause()
        await hasty.close()
        assert await store.append(owner, 1, b"x") in set(Appended)
        _, snapshot = await store.acquire(record.session, "b", TOKEN, HOUR_MS)
        assert snapshot.entries == (b"x",)

    server.run(scenario)


def test_the_wait_for_a_connection_counts_towards_the_deadline(tmp_path: Path) -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def scenario() -> None:
        path = tmp_path / "silent.sock"
        async with await asyncio.start_unix_server(hold, path):
            store = RedisSessionStore(f"unix://{path}", call_timeout_ms=20, connections_max=1)
            outcomes = await asyncio.gather(store.ping(), store.ping(), return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [StoreTimeout, StoreTimeout]
            await store.close()

    asyncio.run(scenario())


def test_a_call_that_is_cancelled_at_any_moment_is_cancelled(server: Backend) -> None:
    async def scenario(store: SessionStore) -> None:
        outcomes = list[bool]()
        for moment in range(MOMENTS_MAX):
            call = asyncio.create_task(store.renew(await store.create(new_record(), "a", HOUR_MS)))
            for _ in range(moment):
                await asyncio.sleep(0)
            if not call.cancel():
                break
            await asyncio.wait({call})
            outcomes.append(call.cancelled())
        assert len(outcomes) > 1
        assert all(outcomes), outcomes

    server.run(scenario)


def test_a_full_server_takes_no_write_but_still_deletes(server: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        owner = await store.create(record, "a", HOUR_MS)
        async with Redis.from_url(server.url) as client:
            await client.config_set("maxmemory", "1")
            try:
                for call in (
                    store.create(new_record(), "a", HOUR_MS),
                    store.append(owner, 1, b"x"),
                    store.acquire(record.session, "b", TOKEN, HOUR_MS),
                ):
                    with pytest.raises(StoreFull):
                        await call
                assert await store.delete(record.session) is True
            finally:
                await client.config_set("maxmemory", "0")

    server.run(scenario)


def test_an_unexpected_refusal_is_the_operators(server: Backend) -> None:
    record = new_record()

    async def scenario(store: SessionStore) -> None:
        async with Redis.from_url(server.url) as client:
            await client.set(session_keys(record.session)[0], "not a hash")
        with pytest.raises(StoreRefused):
            await store.create(record, "a", HOUR_MS)
        await store.delete(record.session)

    server.run(scenario)


def test_a_probe_leaves_nothing(server: Backend) -> None:
    async def scenario(store: SessionStore) -> None:
        await store.ping()
        async with Redis.from_url(server.url) as client:
            assert await client.exists(PROBE_KEY) == 0

    server.run(scenario)


def test_no_server_is_unavailable() -> None:
    async def scenario() -> None:
        store = RedisSessionStore("unix:///nonexistent/valkey.sock")
        with pytest.raises(StoreUnavailable):
            await store.ping()
        await store.close()

    asyncio.run(scenario())


def test_both_servers_are_suitable_and_one_that_evicts_is_not(server: Backend) -> None:
    async def scenario(store: SessionStore) -> None:
        assert isinstance(store, RedisSessionStore)
        async with Redis.from_url(server.url) as client:
            await client.config_set("maxmemory-policy", "noeviction")
            await store.verify()
            await client.config_set("maxmemory-policy", "allkeys-lru")
            await client.config_set("maxmemory", "1gb")
            try:
                with pytest.raises(StoreUnsuitable, match="allkeys-lru"):
                    await store.verify()
            finally:
                await client.config_set("maxmemory", "0")
                await client.config_set("maxmemory-policy", "noeviction")

    server.run(scenario)


@pytest.mark.parametrize(
    ("versions", "suitable"),
    [
        ({"redis_version": "6.2.14"}, False),
        ({"redis_version": "7.0.0"}, True),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.6"}, False),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.0"}, True),
    ],
)
def test_a_server_must_be_recent_enough(versions: dict[str, str], suitable: bool) -> None:
    facts = {**versions, "maxmemory": 0, "maxmemory_policy": "noeviction"}
    if suitable:
        check_server(facts)
    else:
        with pytest.raises(StoreUnsuitable):
            check_server(facts)


# ---- the model in memory and the server give the same answers ---------------------------------------

OWNERS = st.sampled_from(["a", "b"])
TOKENS = st.sampled_from([TOKEN, WRONG_TOKEN, None])
TTLS = st.sampled_from([0, HOUR_MS])
ENTRIES = st.sampled_from([b"", b"x", b"yy", b"z" * 20, b"w" * 30])

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), OWNERS, TTLS),
        st.tuples(st.just("acquire"), OWNERS, TOKENS, TTLS),
        st.tuples(st.sampled_from(["append", "append", "compact"]), st.integers(0, 3), st.integers(-2, 2), ENTRIES),
        st.tuples(st.just("renew"), st.integers(0, 3)),
        st.tuples(st.just("delete")),
        st.tuples(st.just("read")),
    ),
    max_size=25,
)


class Driver:
    """Runs steps against one store; `owners` are all that it ever was given, so that late writers are tried too."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store
        self.record = new_record()
        self.owners: list[Ownership] = []
        self.next_seq = 1

    async def outcome(self, step: tuple[Any, ...]) -> object:
        try:
            return await self._run(step)
        except LeaseHeld as refusal:
            return (LeaseHeld, refusal.owner)
        except StoreError as refusal:
            facts = {name: value for name, value in vars(refusal).items() if name != "session"}
            return (type(refusal), facts)

    async def _run(self, step: tuple[Any, ...]) -> object:
        match step:
            case ("create", owner, ttl):
                return self._owned(await self.store.create(self.record, owner, ttl))
            case ("acquire", owner, token, ttl):
                ownership, snapshot = await self.store.acquire(self.record.session, owner, token, ttl)
                return self._owned(ownership), self._plain(snapshot)
            case ("delete",):
                return await self.store.delete(self.record.session)
            case ("read",):
                return await self._read()
            case (operation, which, *rest) if self.owners:
                owner = self.owners[-1 - which % len(self.owners)]
                return await (self._write(operation, owner, *rest) if rest else self.store.renew(owner))
        return None

    async def _read(self) -> object:
        one, snapshot = await self.store.read(self.record.session)
        sizes = (one.entries, one.log_bytes, one.record_bytes)
        return one.owner, one.fence, one.lease_ms > 0, sizes, self._plain(snapshot)

    async def _write(self, operation: str, owner: Ownership, shift: int, entry: bytes) -> Appended:
        write = self.store.append if operation == "append" else self.store.compact
        outcome = await write(owner, self.next_seq + shift, entry)
        if outcome is Appended.OK:
            self.next_seq += shift + 1
        return outcome

    def _owned(self, ownership: Ownership) -> tuple[str, int, int]:
        self.owners.append(ownership)
        self.next_seq = 1
        return ownership.owner, ownership.fence, ownership.lease_ttl_ms

    @staticmethod
    def _plain(snapshot: Snapshot) -> tuple[int, tuple[bytes, ...]]:
        return snapshot.record.fence, snapshot.entries


async def assert_alike(store: SessionStore, steps: list[tuple[Any, ...]]) -> None:
    real, model = Driver(store), Driver(MemorySessionStore(Clock(), limits=SMALL))
    for step in steps:
        assert await real.outcome(step) == await model.outcome(step), step


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_the_model_and_the_server_agree(server: Backend, steps: list[tuple[Any, ...]]) -> None:
    server.run(lambda store: assert_alike(store, steps))
