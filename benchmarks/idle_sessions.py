"""What a session costs the gateway while nobody talks in it: with a caller who stays silent, and without any.

Theory of operation
    Callers connect, learn their session, and say nothing; what the gateway's memory and its CPU have grown by, a caller
    each, is told. Then many more come and go, some at once, so that as many sessions wait in the store for their
    callers to come back: what the gateway keeps of each of those. What the store itself keeps is told by
    `benchmarks checkpoints`.

Rules
* One gateway, which may have at most `CALLERS` calls (`calls_max`); engines that compute nothing.
* Memory is what belongs to the process alone, counted when as many have come and gone before as fill its caches.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import httpx2
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.processes import cpu_ns
from benchmarks.service import Service, running_service
from benchmarks.turns import Say

CALLERS = 400
LEFT = 10_000
WARM = 1_000
AT_ONCE = 20
WATCH_S = 10
LEFT_BYTES_MAX = 1_024  # of the gateway, for each session that waits for its caller
OPEN_S_MAX = 60
FREE_S_MAX, LOOK_S = 60, 0.2
QUEUE_MESSAGES_MAX = 4


@dataclass(frozen=True, slots=True)
class _Use:
    """Of the gateway's process: memory of its own in bytes, and CPU so far in ns."""

    memory: int
    cpu_ns: int


async def idle_sessions(say: Say, *, left: int, callers: int = CALLERS) -> bool:
    """Good where a session without a caller costs the gateway next to nothing."""
    async with running_service("synthetic", calls_max=str(callers), idle_minutes_max="60") as service:
        await _come_and_go(service, WARM)
        await _silent_callers(say, service, callers)
        before = _use(service)
        await _come_and_go(service, left)
        await _until_free(service)
        each = (_use(service).memory - before.memory) / left
        say(f"{left:,} sessions whose callers have left: {each:,.0f} bytes of the gateway's memory each")
        return each <= LEFT_BYTES_MAX


async def _silent_callers(say: Say, service: Service, callers: int) -> None:
    before = _use(service)
    connections = [connection for _ in range(0, callers, AT_ONCE) for connection in await _some(service)]
    begun = _use(service)
    await asyncio.sleep(WATCH_S)
    watched = _use(service)
    await asyncio.gather(*(one.close() for one in connections))
    await _until_free(service)
    each = (begun.memory - before.memory) / len(connections)
    busy = (watched.cpu_ns - begun.cpu_ns) / 1e9 / WATCH_S
    say(f"{callers:,} silent callers: {each:,.0f} bytes of the gateway's memory each")
    say(f"their calls take {busy:.1%} of a core, {busy / callers * 1e6:.0f} us a second each")
    kept = _use(service).memory - before.memory
    say(f"when they have hung up, {kept / callers:,.0f} bytes each are left for the next callers")


async def _some(service: Service) -> list[ClientConnection]:
    return await asyncio.gather(*(_connected(service) for _ in range(AT_ONCE)))


async def _connected(service: Service) -> ClientConnection:
    url = service.url.replace("http", "ws", 1).rstrip("/") + "/v1/realtime"
    connection = await connect(
        url, open_timeout=OPEN_S_MAX, max_queue=QUEUE_MESSAGES_MAX, ping_interval=None, compression=None, proxy=None
    )
    created = json.loads(await connection.recv())
    if created["type"] != "session.created":
        raise RuntimeError(f"a session was to be created, but the service said {created}")
    return connection


async def _come_and_go(service: Service, sessions: int) -> None:
    async def some(share: Iterable[int]) -> None:
        for _ in share:
            await (await _connected(service)).close()

    numbers = iter(range(sessions))
    await asyncio.gather(*(some(numbers) for _ in range(AT_ONCE)))


async def _until_free(service: Service) -> None:
    """Return once no place is taken any more."""
    async with asyncio.timeout(FREE_S_MAX), httpx2.AsyncClient(base_url=service.url) as client:
        while (await client.get("/readyz")).json()["calls"]:  # noqa: ASYNC110 - another process, which tells nobody
            await asyncio.sleep(LOOK_S)


def _use(service: Service) -> _Use:
    pid = service.children()["gateway"]
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    private = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
    return _Use(private * 1024, cpu_ns(pid))
