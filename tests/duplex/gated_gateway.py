"""A gateway without stages whose store can be held up at each operation, for tests of calls that are just beginning."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from duplex.config import Config
from duplex.gateway import Gateway
from duplex.pipeline import graph_of
from duplex.stage_pool import StagePool
from sessions.memory_store import MemorySessionStore
from sessions.planner import ReplyDefaults
from sessions.records import SessionRecord
from sessions.store import Ownership, Snapshot
from tests.duplex.test_gateway import Deaf


class Gate:
    """Open unless it was shut. `reached`: somebody stands before it, or has passed."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.reached = asyncio.Event()

    def shut(self) -> None:
        self.open.clear()
        self.reached.clear()

    async def passage(self) -> None:
        self.reached.set()
        await self.open.wait()


class GatedStore(MemorySessionStore):
    """Waits at the gate that has the operation's name; at `acquired` with the answer of that."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.gates: defaultdict[str, Gate] = defaultdict(Gate)

    async def create(
        self, record: SessionRecord, owner: str, lease_ttl_ms: int, *, retention_ms: int | None = None
    ) -> Ownership:
        await self.gates["create"].passage()
        return await super().create(record, owner, lease_ttl_ms, retention_ms=retention_ms)

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
        await self.gates["acquire"].passage()
        acquired = await super().acquire(
            session, owner, token_digest, lease_ttl_ms, seen_fence=seen_fence, retention_ms=retention_ms
        )
        await self.gates["acquired"].passage()
        return acquired


class GatedGateway:
    """`calls_max` places; its stages count as connected, and take everything."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, calls_max: int = 2, **settings: Any) -> None:
        monkeypatch.setattr(StagePool, "ready", property(lambda _pool: True))
        self.store = GatedStore()
        config = Config(engine="scripted", data_dir=folder, calls_max=calls_max, **settings)
        self.gateway = Gateway(config, graph_of(config), self.store, Deaf(), ReplyDefaults("Hi.", 10))

    def assert_nothing_is_left(self) -> None:
        """No place, no session, no task but the caller's own."""
        assert self.gateway.calls == 0
        assert not self.gateway._calls
        assert not self.gateway._claims
        assert asyncio.all_tasks() == {asyncio.current_task()}
