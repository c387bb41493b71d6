"""The stores that one contract is tried on, and what tests of them share."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sessions.embedded_valkey import EmbeddedValkey
from sessions.memory_store import MemorySessionStore
from sessions.records import SessionRecord, token_digest
from sessions.redis_store import RedisSessionStore
from sessions.store import LogLimits, SessionStore

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000
TOKEN = token_digest("right")
WRONG_TOKEN = token_digest("wrong")

# Small enough that a test can fill a log.
SMALL = LogLimits(
    entry_bytes_max=20, snapshot_bytes_max=30, entries_max=6, bytes_max=60, compact_entries=4, compact_bytes=45
)

READY = b"ready to accept connections"
START_LINES_MAX = 200

_T = TypeVar("_T")
_numbers = itertools.count()


class Clock:
    """Milliseconds that move when told to."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


@dataclass(frozen=True, slots=True)
class Backend:
    """One kind of store. Two stores that it opens see the same sessions; `url` is empty for the one in memory."""

    open: Callable[[LogLimits], SessionStore]
    url: str = ""

    def run(self, scenario: Callable[[SessionStore], Awaitable[_T]], limits: LogLimits = SMALL) -> _T:
        """The outcome of `scenario` on a fresh store."""

        async def whole() -> _T:
            store = self.open(limits)
            try:
                return await scenario(store)
            finally:
                await store.close()

        return asyncio.run(whole())


def memory_backend() -> Backend:
    clock = Clock()
    return Backend(lambda limits: MemorySessionStore(clock, limits=limits))


def server_backend(url: str) -> Backend:
    return Backend(lambda limits: RedisSessionStore(url, limits=limits), url)


def new_record(config: bytes = b"{}") -> SessionRecord:
    """A session that no other test uses; all records are of one size."""
    return SessionRecord(f"sess_{next(_numbers):06}", "tenant", START_MS, config, TOKEN)


@contextmanager
def embedded_server(data_dir: Path) -> Iterator[str]:
    with EmbeddedValkey(data_dir) as server:
        yield server.url


@contextmanager
def debian_server(directory: Path) -> Iterator[str]:
    """The `redis-server` on PATH, on a socket in `directory`. Fails if there is none."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise AssertionError("no redis-server on PATH; install it: apt-get install -y redis-server")
    socket_path = directory / "redis.sock"
    options = ("--port", "0", "--unixsocket", str(socket_path), "--save", "", "--dir", str(directory))
    server = subprocess.Popen([binary, *options], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert any(READY in line.lower() for line in itertools.islice(server.stdout, START_LINES_MAX))
        yield f"unix://{socket_path}"
    finally:
        server.terminate()
        server.communicate(timeout=10)
