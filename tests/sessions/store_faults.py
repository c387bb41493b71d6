"""Everything that befalls a store, one row each: how it is brought about, and what the store's client makes of it.

`docs/operations.md` has the same rows for people. Each is brought about at a real server where that can be had, and
else by a proxy before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from sessions.redis_store import RedisSessionStore, session_keys
from sessions.store import StoreError, StoreFull, StoreRefused, StoreTimeout, StoreUnavailable
from tests.sessions.fault_proxy import (
    BreaksAfter,
    BreaksBefore,
    Fault,
    FaultProxy,
    Late,
    Says,
    Silence,
    fault_proxy,
)

TIMEOUT_MS = 250  # long enough that no healthy call comes near it, on a busy machine
NOWHERE = ("127.0.0.1", "1")  # a primary that is never reached: TCP port 1 is nobody's
BUSY_MS = 1  # after so long, the server says that a script is too slow


@dataclass(frozen=True, slots=True)
class Faulty:
    """A store behind a proxy; `server` and `other` are clients of the servers themselves, past the proxy."""

    store: RedisSessionStore
    proxy: FaultProxy
    server: Redis
    other: Redis
    other_socket: Path
    scripts: list[asyncio.Task[None]] = field(default_factory=list)

    async def copy(self, session: str, *, to: Redis) -> None:
        """As replication does it: `to` has what the server has of the session."""
        for key in session_keys(session):
            stored = await self.server.dump(key)
            assert stored is not None
            await to.restore(key, 0, stored, replace=True)


Act = Callable[[Faulty, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Row:
    """`strike` brings the fault about for a session, `heal` ends it. `error`: of each write meanwhile; None: there is
    none. `happens`: it is done all the same."""

    name: str
    strike: Act
    heal: Act
    error: type[StoreError] | None
    happens: bool = False


def befall(fault: Fault) -> Act:
    async def strike(faulty: Faulty, _session: str) -> None:
        faulty.proxy.befall(fault)

    return strike


async def healed(faulty: Faulty, _session: str) -> None:
    faulty.proxy.heal()


async def go_away(faulty: Faulty, _session: str) -> None:
    await faulty.proxy.go_away()


async def come_back(faulty: Faulty, _session: str) -> None:
    await faulty.proxy.come()


async def fill(faulty: Faulty, _session: str) -> None:
    await faulty.server.config_set("maxmemory", "1")


async def make_room(faulty: Faulty, _session: str) -> None:
    await faulty.server.config_set("maxmemory", "0")


async def become_replica(faulty: Faulty, _session: str) -> None:
    await faulty.server.replicaof(*NOWHERE)


async def fail_over(faulty: Faulty, session: str) -> None:
    """The other server leads now. Connections that stand still lead to the one that did."""
    await faulty.copy(session, to=faulty.other)
    faulty.proxy.lead_to(faulty.other_socket)


async def flush_scripts(faulty: Faulty, _session: str) -> None:
    await faulty.server.script_flush()


async def nothing(_faulty: Faulty, _session: str) -> None:
    """It is over by itself."""


async def spin(faulty: Faulty, _session: str) -> None:
    """A script of somebody else's takes too long, and the server has noticed."""
    await faulty.server.config_set("busy-reply-threshold", str(BUSY_MS))
    faulty.scripts.append(asyncio.create_task(_never_ends(faulty.server)))
    while await _is_free(faulty.server):
        pass


async def _never_ends(server: Redis) -> None:
    with suppress(ResponseError):  # so it ends when it is killed
        await server.eval("while true do end", 0)


async def _is_free(server: Redis) -> bool:
    try:
        await server.ping()
    except ResponseError:
        return False
    return True


async def stop_spinning(faulty: Faulty, _session: str) -> None:
    await faulty.server.script_kill()
    await faulty.scripts.pop()


ROWS = (
    Row("loading", befall(Says("LOADING server is loading the dataset in memory")), healed, StoreUnavailable),
    Row("failed over", become_replica, fail_over, StoreUnavailable),
    Row(
        "disk full", befall(Says("MISCONF Errors writing to the AOF file: No space left on device")), healed, StoreFull
    ),
    Row("out of memory", fill, make_room, StoreFull),
    Row("scripts forgotten", flush_scripts, nothing, None),
    Row("busy with a script", spin, stop_spinning, StoreUnavailable),
    Row("too few replicas", befall(Says("NOREPLICAS Not enough good replicas to write.")), healed, StoreUnavailable),
    Row("breaks before", befall(BreaksBefore()), healed, StoreUnavailable),
    Row("breaks after", befall(BreaksAfter()), healed, StoreUnavailable, happens=True),
    Row("late", befall(Late()), healed, StoreTimeout, happens=True),
    Row("silent", befall(Silence()), healed, StoreTimeout),
    Row("away", go_away, come_back, StoreUnavailable),
    Row("no rights", befall(Says("NOPERM User default has no permissions")), healed, StoreRefused),
    Row("no password", befall(Says("NOAUTH Authentication required.")), healed, StoreRefused),
)
FAILING = tuple(row for row in ROWS if row.error is not None)


def params(rows: tuple[Row, ...]) -> list[Any]:
    """For `parametrize`; those that wait for deadlines are slow."""
    marks = {row: [pytest.mark.slow] if row.error is StoreTimeout else [] for row in rows}
    return [pytest.param(row, id=row.name, marks=marks[row]) for row in rows]


@asynccontextmanager
async def faulty_store(url: str, other_url: str, folder: Path) -> AsyncIterator[Faulty]:
    """Both servers are as they were, afterwards."""
    server, other = _socket_of(url), _socket_of(other_url)
    async with (
        fault_proxy(server, folder / "proxy.sock") as proxy,
        Redis.from_url(url) as client,
        Redis.from_url(other_url) as other_client,
    ):
        store = RedisSessionStore(proxy.url, call_timeout_ms=TIMEOUT_MS)
        try:
            yield Faulty(store, proxy, client, other_client, other)
        finally:
            await client.replicaof("NO", "ONE")
            await store.close()


def _socket_of(url: str) -> Path:
    return Path(url.removeprefix("unix://"))
