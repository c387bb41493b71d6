"""The session store in Redis ≥ 7.0 or Valkey ≥ 8, through `redis.asyncio`.

Theory of operation
    Each operation is one script (`redis_scripts`), called by its SHA-1; a server that does not know it yet is sent
    the source. Both keys of a session share the hash tag `{id}`, so they live on one shard. Deletion is a single
    command, which a server that is out of memory still takes.

    A listing is a SCAN: no index is kept beside the sessions, so nothing has to be taken out of one when they expire or
    are deleted. Notices are published on one channel, letters on one for each owner, and leave nothing behind.

Rules
* Every call has one deadline that covers the wait for a connection, the way there and back. Past it the outcome is
  unknown, the connection is dropped, and nothing is repeated here: the caller repeats the call as it was.
* What the server says is read by type and status word (the first of an error reply), never by its text.
* A server that is no primary any more has its connections dropped: the next one may lead to the one that is.
* Neither keys nor contents are logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, cast

import msgspec
from packaging.version import Version
from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sessions import quota_scripts, redis_scripts
from sessions.durability import Persistence
from sessions.quotas import KINDS, QUOTA_NAMES, Account, Amounts, Kind, OverQuota, Quotas
from sessions.records import SessionRecord, decode_record, encode_record
from sessions.redis_scripts import Script
from sessions.store import (
    RETENTION_MS,
    Appended,
    CursorRefused,
    LeaseHeld,
    Listing,
    LogFull,
    LogLimits,
    Notice,
    NoticeKind,
    Ownership,
    SequenceGap,
    SessionExists,
    SessionUnknown,
    Snapshot,
    StoredSession,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
    StoreUnsuitable,
    TokenRefused,
    check_entry_size,
    check_fence,
    check_new_record,
    describe_record,
    valid_session_id,
)

# An append takes well under a millisecond on one host. A second is long enough for a fork or a slow disk of the
# server, and short enough that a call in progress notices before its caller does.
CALL_TIMEOUT_MS = 1000

# Shared by all sessions, each of which writes one entry at a time. The server answers within tens of microseconds, but
# an answer is taken only at the next turn of our loop, which with many calls takes milliseconds: with fewer connections
# than calls, writes would wait for turns, and in the end for their deadline.
CONNECTIONS_MAX = 128

# Of one listing: it looks at about so many times as many keys as it is to give, where most are not sessions.
SCANS_MAX = 20
SCAN_KEYS_MIN = 10
# Their answers are parsed in one go, in about a millisecond, and then calls have their turn on the loop.
DESCRIBED_AT_ONCE = 10

CURSOR_DIGITS_MAX = 20  # of 64 bits

CHANNEL = "duplex:notices"
# After so long without a notice, the server is asked whether the connection still stands.
NOTICE_WAIT_S = 10.0

VALKEY_MIN = Version("8")
REDIS_MIN = Version("7.0")

# A probe sets it only where it exists, which it never does: the server refuses that as any write, and keeps nothing.
PROBE_KEY = "duplex:probe"

_PASSING = frozenset({"LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS"})
_NO_PRIMARY = frozenset({"READONLY", "MASTERDOWN"})
_FULL = frozenset({"OOM", "MISCONF"})  # MISCONF: the disk does not take what it must

_FIELDS = ("record", "owner", "fence", "lease_until_ms", "active_ms", "entries", "bytes")

Reply = list[Any]
Arguments = tuple[bytes | str | int, ...]


class RedisSessionStore:
    """`url` as redis-py reads it: `redis://`, `rediss://` or `unix://`. Belongs to the loop that first uses it."""

    def __init__(
        self,
        url: str,
        *,
        limits: LogLimits | None = None,
        retention_ms: int = RETENTION_MS,
        call_timeout_ms: int = CALL_TIMEOUT_MS,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self.limits = limits or LogLimits()
        self._retention_ms = retention_ms
        self._call_timeout_s = call_timeout_ms / 1000
        self._redis = _client(url, connections_max, self._call_timeout_s)
        # Probes have a connection of their own: they wait for no session's, and take none.
        self._probing = _client(url, 1, self._call_timeout_s)
        self._closed = False

    async def create(
        self, record: SessionRecord, owner: str, lease_ttl_ms: int, *, retention_ms: int | None = None
    ) -> Ownership:
        check_new_record(record)
        ownership = Ownership(record.session, owner, record.fence, lease_ttl_ms, retention_ms)
        made = (encode_record(record), record.token_digest, owner, record.fence)
        reply = await self._run(redis_scripts.CREATE, record.session, *made, *self._kept(ownership))
        if reply[0] == b"EXISTS":
            raise SessionExists(record.session)
        return ownership

    async def acquire(
        self,
        session: str,
        owner: str,
        token_digest: bytes | None,
        lease_ttl_ms: int,
        *,
        seen_fence: int = 0,
        retention_ms: int | None = None,
    ) -> tuple[Ownership, Snapshot]:
        claim = (owner, int(token_digest is not None), token_digest or b"")
        kept = self._kept(Ownership(session, owner, 0, lease_ttl_ms, retention_ms))
        reply = await self._run(redis_scripts.ACQUIRE, session, *claim, *kept, seen_fence)
        match reply[0]:
            case b"TOKEN":
                raise TokenRefused(session)
            case b"HELD":
                raise LeaseHeld(session, reply[1].decode(), int(reply[2]))
        _, fence, stored, entries, before = reply
        record = msgspec.structs.replace(decode_record(stored), fence=fence)
        snapshot = Snapshot(record, tuple(entries), went_back=before < seen_fence)
        return Ownership(session, owner, fence, lease_ttl_ms, retention_ms), snapshot

    def _kept(self, ownership: Ownership) -> tuple[int, int]:
        """How long the lease lasts, and how long all of the session is kept."""
        retention_ms = ownership.retention_ms
        return ownership.lease_ttl_ms, self._retention_ms if retention_ms is None else retention_ms

    async def append(self, ownership: Ownership, seq: int, entry: bytes) -> Appended:
        check_entry_size(ownership.session, entry, self.limits.entry_bytes_max)
        return await self._write(redis_scripts.APPEND, ownership, seq, entry)

    async def compact(self, ownership: Ownership, seq: int, snapshot: bytes) -> Appended:
        check_entry_size(ownership.session, snapshot, self.limits.snapshot_bytes_max)
        return await self._write(redis_scripts.COMPACT, ownership, seq, snapshot)

    async def renew(self, ownership: Ownership) -> None:
        arguments = (ownership.fence, ownership.owner, *self._kept(ownership))
        reply = await self._run(redis_scripts.RENEW, ownership.session, *arguments)
        if reply[0] == b"STALE":
            check_fence(ownership, int(reply[1]))

    async def delete(self, session: str) -> bool:
        if not valid_session_id(session):
            return False
        async with self._call("delete"), self._redis.pipeline(transaction=False) as pipe:
            pipe.delete(*session_keys(session))
            pipe.publish(CHANNEL, _told(Notice(NoticeKind.DELETED, session)))
            removed, _listeners = await pipe.execute()
        return bool(removed)

    async def listing(self, cursor: str, count: int) -> Listing:
        position, keys = _position(cursor), dict[bytes, None]()
        async with self._call("listing"):
            for _ in range(SCANS_MAX):
                wanted = max(count - len(keys), SCAN_KEYS_MIN)
                position, found = await self._redis.scan(position, session_keys("*")[0], wanted, "HASH")
                keys |= dict.fromkeys(cast(list[bytes], found))
                if not position or len(keys) >= count:
                    break
            sessions = await self._described(name for name in map(_session_of, keys) if valid_session_id(name))
        return Listing(sessions, str(position) if position else None)

    async def describe(self, sessions: Sequence[str]) -> tuple[StoredSession, ...]:
        async with self._call("describe"):
            return await self._described(filter(valid_session_id, sessions))

    async def _described(self, sessions: Iterable[str]) -> tuple[StoredSession, ...]:
        names, found = tuple(sessions), list[StoredSession]()
        for first in range(0, len(names), DESCRIBED_AT_ONCE):
            found += await self._describe_some(names[first : first + DESCRIBED_AT_ONCE])
        return tuple(found)

    async def _describe_some(self, names: Sequence[str]) -> list[StoredSession]:
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.time()
            for name in names:
                pipe.hmget(session_keys(name)[0], _FIELDS)
            clock, *found = await pipe.execute()
        return [_stored(name, clock, held) for name, held in zip(names, found, strict=True) if held[0] is not None]

    async def read(self, session: str) -> tuple[StoredSession, Snapshot]:
        if not valid_session_id(session):
            raise SessionUnknown(session)
        hash_key, log_key = session_keys(session)
        async with self._call("read"), self._redis.pipeline(transaction=True) as pipe:
            pipe.time()
            pipe.hmget(hash_key, _FIELDS)
            pipe.xrange(log_key)
            clock, held, log = await pipe.execute()
        if held[0] is None:
            raise SessionUnknown(session)
        stored = _stored(session, clock, held)
        record = msgspec.structs.replace(decode_record(held[0]), fence=stored.fence)
        return stored, Snapshot(record, tuple(entry[b"entry"] for _, entry in log if b"entry" in entry))

    async def notify(self, notice: Notice) -> None:
        async with self._call("notify"):
            await self._redis.publish(CHANNEL, _told(notice))

    @asynccontextmanager
    async def notices(self) -> AsyncIterator[AsyncIterator[Notice]]:
        async with self._messages(CHANNEL) as messages:
            yield _noticed(messages)

    async def send(self, owner: str, letter: bytes) -> bool:
        async with self._call("send"):
            return bool(await self._redis.publish(letters_channel(owner), letter))

    def letters(self, owner: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._messages(letters_channel(owner))

    @asynccontextmanager
    async def _messages(self, channel: str) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._redis.pubsub() as pubsub:
            async with self._call("subscribe"):
                await pubsub.subscribe(channel)
                await pubsub.get_message(timeout=self._call_timeout_s)  # the server's word that it has
            yield self._heard(pubsub)

    async def _heard(self, pubsub: PubSub) -> AsyncIterator[bytes]:
        is_asked = False
        while True:
            async with self._call("notices", NOTICE_WAIT_S + self._call_timeout_s):
                message = await pubsub.get_message(timeout=NOTICE_WAIT_S)
                if message is None and not is_asked:
                    await pubsub.ping()
            if message is None and is_asked:
                raise StoreTimeout(f"notices: the server has not answered for {NOTICE_WAIT_S} s")
            is_asked = message is None
            if message and message["type"] == "message":
                yield message["data"]

    async def keep_secret(self, holder: str, digest: bytes, grant: bytes, ttl_ms: int, secrets_max: int) -> bool:
        keys = secret_keys(holder)
        async with self._call("secret"):
            reply = await self._evaluate(redis_scripts.KEEP_SECRET, keys, (digest, grant, ttl_ms, secrets_max))
        return bool(reply[0] == b"OK")

    async def find_secret(self, holder: str, digest: bytes) -> bytes | None:
        return await self._secret(holder, digest, spends=False)

    async def spend_secret(self, holder: str, digest: bytes) -> bytes | None:
        return await self._secret(holder, digest, spends=True)

    async def _secret(self, holder: str, digest: bytes, *, spends: bool) -> bytes | None:
        if not valid_session_id(holder):
            return None
        async with self._call("secret"):
            reply = await self._evaluate(redis_scripts.FIND_SECRET, secret_keys(holder), (digest, int(spends)))
        return reply[1] if reply[0] == b"OK" else None

    async def open_account(
        self, tenant: str, lease: str, ttl_ms: int, quotas: Quotas, wanted: Amounts
    ) -> Account | OverQuota:
        asked: Arguments = (lease, ttl_ms, *_limits(quotas, wanted))
        async with self._call("account"):
            reply = await self._evaluate(quota_scripts.OPEN_ACCOUNT, account_keys(tenant), asked)
        if reply[0] == b"OVER":
            name = reply[1].decode()
            return OverQuota(QUOTA_NAMES.get(cast(Kind, name), name), int(reply[2]))
        return _account(reply, wanted)

    async def draw(self, tenant: str, lease: str, ttl_ms: int, quotas: Quotas, wanted: Amounts) -> Account | None:
        asked: Arguments = (lease, ttl_ms, *_limits(quotas, wanted))
        async with self._call("draw"):
            reply = await self._evaluate(quota_scripts.DRAW, account_keys(tenant), asked)
        return None if reply[0] == b"LOST" else _account(reply, wanted)

    async def close_account(self, tenant: str, lease: str, day: int, unspent: Amounts) -> None:
        back: Arguments = (lease, day, *(unspent.get(kind, 0) for kind in KINDS))
        async with self._call("account"):
            await self._evaluate(quota_scripts.CLOSE_ACCOUNT, account_keys(tenant), back)

    async def ping(self) -> None:
        async with self._call("ping"):
            await self._probing.set(PROBE_KEY, "", xx=True)

    async def verify(self) -> None:
        """Check once, at start, that the server is recent enough and evicts nothing. Raises `StoreUnsuitable`."""
        async with self._call("info"):
            facts = await self._redis.info()
        check_server(facts)

    async def persistence(self) -> Persistence:
        """As the server's configuration has it; where that may not be read, as far as INFO tells."""
        async with self._call("config"):
            try:
                config = await self._redis.config_get("appendonly", "appendfsync")
            except exceptions.ResponseError:  # no rights, or a service that hides it
                return Persistence(_is_aof_on(await self._redis.info("persistence")))
        return Persistence(config["appendonly"] == "yes", str(config["appendfsync"]))

    async def close(self) -> None:
        self._closed = True
        for client in (self._redis, self._probing):
            await client.aclose(close_connection_pool=True)

    async def _write(self, script: Script, ownership: Ownership, seq: int, entry: bytes) -> Appended:
        limits = (self.limits.entries_max, self.limits.bytes_max)
        arguments = (ownership.fence, ownership.owner, seq, entry, *self._kept(ownership))
        reply = await self._run(script, ownership.session, *arguments, *limits)
        match reply[0]:
            case b"STALE":
                check_fence(ownership, int(reply[1]))
            case b"GAP":
                raise SequenceGap(ownership.session, int(reply[1]))
            case b"FULL":
                raise LogFull(ownership.session)
            case b"DUPLICATE":
                return Appended.DUPLICATE
        return Appended.OK

    async def _run(self, script: Script, session: str, *arguments: bytes | str | int) -> Reply:
        if not valid_session_id(session):
            raise SessionUnknown(session)
        async with self._call("script"):
            reply = await self._evaluate(script, session_keys(session), arguments)
        if reply[0] == b"UNKNOWN":
            raise SessionUnknown(session)
        return reply

    async def _evaluate(self, script: Script, keys: tuple[str, ...], arguments: Arguments) -> Reply:
        try:
            return cast(Reply, await self._redis.evalsha(script.sha, len(keys), *keys, *arguments))
        except exceptions.NoScriptError:
            return cast(Reply, await self._redis.eval(script.source, len(keys), *keys, *arguments))

    @asynccontextmanager
    async def _call(self, what: str, timeout_s: float | None = None) -> AsyncIterator[None]:
        """One deadline around a call, and its failures by who must act. `timeout_s` None: that of all calls."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        timeout_s = timeout_s or self._call_timeout_s
        deadline = asyncio.timeout(timeout_s)
        task = asyncio.current_task()
        assert task is not None, "whoever awaits is a task"
        cancellations = task.cancelling()
        try:
            async with deadline:
                yield
        except (TimeoutError, exceptions.TimeoutError) as error:
            raise StoreTimeout(f"{what}: no answer within {timeout_s} s") from error
        except exceptions.RedisError as error:
            if deadline.expired():
                raise StoreTimeout(f"{what}: no answer within {timeout_s} s") from error
            if _status(error) in _NO_PRIMARY:
                await self._forget_connections()
            raise _failure(what, error) from error
        finally:
            # The client sends by `asyncio.wait_for`, which loses a cancellation that comes as it is done (Python 3.11,
            # bpo-37658): whoever cancelled us would wait for ever.
            if task.cancelling() > cancellations:
                raise asyncio.CancelledError

    async def _forget_connections(self) -> None:
        for client in (self._redis, self._probing):
            with suppress(exceptions.RedisError):  # one that takes its time to close is closed all the same
                await client.connection_pool.disconnect(inuse_connections=False)


def _client(url: str, connections_max: int, timeout_s: float) -> Redis:
    """It waits for a free connection as long as its caller does. Its own time limits stand behind `_call`'s, for where
    it swallows the cancellation."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=connections_max,
        timeout=None,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
    )
    return Redis.from_pool(pool)


def session_keys(session: str) -> tuple[str, str]:
    """The hash and the stream of a session."""
    return f"duplex:session:{{{session}}}", f"duplex:session:{{{session}}}:log"


def secret_keys(holder: str) -> tuple[str, ...]:
    """Of the secrets of `holder`: their ends, and what they grant."""
    return f"duplex:secrets:{{{holder}}}:ends", f"duplex:secrets:{{{holder}}}:grants"


def account_keys(tenant: str) -> tuple[str, ...]:
    """Of a tenant: leases, starts, what the day has used, and returns."""
    return tuple(f"duplex:tenant:{{{tenant}}}:{name}" for name in ("leases", "starts", "used", "returns"))


def _limits(quotas: Quotas, wanted: Amounts) -> tuple[int, ...]:
    """As the scripts of `quota_scripts` are told them."""
    days = ((quotas.of_day(kind), wanted.get(kind, 0)) for kind in KINDS)
    ends = (quotas.sessions, quotas.starts_per_minute)
    return tuple(-1 if one is None else one for one in (*ends, *(each for pair in days for each in pair)))


def _account(reply: Reply, wanted: Amounts) -> Account:
    given = dict(zip(KINDS, map(int, reply[2]), strict=True))
    return Account(int(reply[1]), {kind: given[kind] for kind in wanted})


def _status(error: exceptions.RedisError) -> str:
    """The status word of what the server replied; for what it did not say, the client's own first word."""
    return error.status_code or str(error).partition(" ")[0]


def _failure(what: str, error: exceptions.RedisError) -> StoreError:
    """By who must act. Raises what is none of the store's."""
    status = _status(error)
    if status in _FULL:
        return StoreFull(f"{what}: the server takes no more ({status})")
    if status in _PASSING:
        return StoreUnavailable(f"{what}: the server cannot take it now ({status})")
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError | exceptions.ResponseError):
        return StoreRefused(f"{what}: {type(error).__name__}")
    if isinstance(error, exceptions.ConnectionError | exceptions.InvalidResponse):
        return StoreUnavailable(f"{what}: {type(error).__name__}")
    raise error


def _session_of(key: bytes) -> str:
    """The id in the name of a session's hash."""
    return key.decode(errors="replace").partition("{")[2].removesuffix("}")


def _position(cursor: str) -> int:
    """Where a SCAN goes on; raises `CursorRefused`."""
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= CURSOR_DIGITS_MAX):
        raise CursorRefused
    position = int(cursor or "0")
    if position >= 1 << 64:
        raise CursorRefused
    return position


def _stored(session: str, clock: tuple[int, int], held: Sequence[bytes | None]) -> StoredSession:
    """What the hash of a session says, at the server's `clock` (seconds, microseconds)."""
    record, owner, *numbers = held
    assert record is not None
    assert owner is not None
    fence, lease_until_ms, active_ms, entries, log_bytes = (int(number or 0) for number in numbers)
    tenant, created_ms = describe_record(record)
    lease_ms = max(0, lease_until_ms - (clock[0] * 1000 + clock[1] // 1000))
    return StoredSession(
        session,
        tenant,
        owner.decode(),
        fence,
        created_ms,
        active_ms or created_ms,  # one that was stored by an earlier release does not say
        lease_ms,
        entries,
        log_bytes,
        len(record),
    )


def _told(notice: Notice) -> str:
    return f"{notice.kind} {notice.session}"


def letters_channel(owner: str) -> str:
    """Where letters to `owner` are published."""
    return f"duplex:letters:{owner}"


async def _noticed(messages: AsyncIterator[bytes]) -> AsyncIterator[Notice]:
    async for message in messages:
        notice = _notice_of(message)
        if notice is not None:
            yield notice


def _notice_of(message: bytes) -> Notice | None:
    """None for what another release may say."""
    kind, _, session = message.decode(errors="replace").partition(" ")
    known = kind in set(NoticeKind) and valid_session_id(session)
    return Notice(NoticeKind(kind), session) if known else None


def _is_aof_on(facts: Mapping[str, Any]) -> bool | None:
    told = facts.get("aof_enabled")
    return None if told is None else bool(told)


def check_server(facts: Mapping[str, Any]) -> None:
    """Raises `StoreUnsuitable` unless INFO's `facts` are those of a server that can keep sessions."""
    # Valkey calls itself a Redis 7.2 as well, for old clients.
    engine, least = ("valkey_version", VALKEY_MIN) if "valkey_version" in facts else ("redis_version", REDIS_MIN)
    if Version(str(facts[engine])) < least:
        raise StoreUnsuitable(f"{engine} is {facts[engine]}; {least} is the oldest that is supported")
    policy = facts["maxmemory_policy"]
    if facts["maxmemory"] and policy != "noeviction":
        raise StoreUnsuitable(f"maxmemory-policy is {policy}; sessions would vanish: set noeviction")
