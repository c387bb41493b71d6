"""Whether the store takes writes, asked all the time: no call is taken that could not be kept.

Rules
* All decisions are in `duplex.store_standing`.
* A probe is refused as a write would be: a store that is full, or a replica, still answers everything else.
"""

from __future__ import annotations

import asyncio

import structlog

from duplex.store_standing import StoreStanding
from sessions.durability import Durability, mend, promise_of, shortfall
from sessions.store import SessionStore, StoreError

PROBE_INTERVAL_S = 1.0

_log = structlog.get_logger("duplex.store_watch")


class StoreWatch:
    """Watches `store` while `run` runs. `durability`: what it is to give."""

    def __init__(self, store: SessionStore, durability: Durability = "process-crash-safe") -> None:
        self._store = store
        self._durability = durability
        self._is_durable: bool | None = None
        self._standing = StoreStanding()

    @property
    def trouble(self) -> str | None:
        """Why no session can be kept now, or None where one can."""
        return self._standing.trouble

    @property
    def is_durable(self) -> bool:
        """Whether the store gives the durability that is asked for; not where it has not been asked yet."""
        return bool(self._is_durable)

    async def look_at_persistence(self) -> None:
        """Say, once it answers, what the store makes of the promise. It is not refused for making less of it."""
        try:
            server = await self._store.persistence()
        except StoreError:
            return
        lack = shortfall(self._durability, server)
        self._is_durable = lack is None
        say = _log.info if lack is None else _log.error
        say(
            "store_durability",
            asked=self._durability,
            given=promise_of(server) or "unknown",
            lack=lack,
            mend=mend(self._durability) if lack else None,
        )

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.probe()
            if self._is_durable is None:
                await self.look_at_persistence()
            await asyncio.sleep(PROBE_INTERVAL_S)

    async def probe(self) -> None:
        """Ask once."""
        before = self._standing.trouble
        try:
            await self._store.ping()
        except StoreError as error:
            self._standing.failed(error)
        else:
            self._standing.answered()
        if self._standing.trouble != before:
            _log.warning("store_standing", trouble=self._standing.trouble)
