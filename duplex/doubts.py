"""Whose a session is by now, of which a call does not know: its process stood still, and it may have gone over."""

from __future__ import annotations

import asyncio
from typing import Protocol

from sessions.store import SessionStore, StoreError


class Doubtful(Protocol):
    """A call."""

    @property
    def session(self) -> str: ...
    def trust(self) -> None: ...
    def end(self, reason: str) -> None: ...


class Doubts:
    """Those of the calls of gateway `owner`, as the store names it."""

    def __init__(self, store: SessionStore, owner: str) -> None:
        self._store = store
        self._owner = owner
        self.asking: set[asyncio.Task[None]] = set()

    def ask(self, call: Doubtful) -> None:
        """Have the store asked, which ends `call` or lets it go on."""
        asking = asyncio.create_task(self._ask(call))
        self.asking.add(asking)
        asking.add_done_callback(self.asking.discard)

    async def _ask(self, call: Doubtful) -> None:
        """End `call` where its session has gone. While the store is away it goes on, as calls do then."""
        try:
            stored = await self._store.describe([call.session])
        except StoreError:
            call.trust()
            return
        if any(held.owner == self._owner for held in stored):
            call.trust()
        else:
            call.end("session_replaced" if stored else "session_deleted")
