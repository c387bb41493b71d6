"""Whether the store takes writes, asked all the time: no call is taken that could not be kept.

Rules
* All decisions are in `duplex.store_standing`.
* A probe is refused as a write would be: a store that is full, or a replica, still answers everything else.
"""

from __future__ import annotations

import asyncio

import structlog

from duplex.store_standing import StoreStanding
from sessions.store import SessionStore, StoreError

PROBE_INTERVAL_S = 1.0

_log = structlog.get_logger("duplex.store_watch")


class StoreWatch:
    """Watches `store` while `run` runs."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._standing = StoreStanding()

    @property
    def trouble(self) -> str | None:
        """Why no session can be kept now, or None where one can."""
        return self._standing.trouble

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.probe()
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
