"""Whose a session is by now, of which a call does not know: its process stood still, or a stage has heard of another
owner, and it may have gone over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from duplex.session_watch import SESSION_DELETED, SESSION_REPLACED
from sessions.store import SessionStore, StoredSession, StoreError

_log = structlog.get_logger("duplex.doubts")


class Doubtful(Protocol):
    """A call. `fence`: under which it has its session."""

    @property
    def session(self) -> str: ...
    @property
    def fence(self) -> int: ...
    def trust(self) -> None: ...
    def end(self, reason: str) -> None: ...


def reason_to_end(stored: Sequence[StoredSession], owner: str, fence: int) -> str | None:
    """Why a call of `owner` is over, by what the store says of its session; None: it is not. A store that has gone back
    knows of no fence so high as ours."""
    if not stored:
        return SESSION_DELETED
    is_ours = stored[0].owner == owner and stored[0].fence <= fence
    return None if is_ours else SESSION_REPLACED


class Doubts:
    """Those of the calls of gateway `owner`, as the store names it."""

    def __init__(self, store: SessionStore, owner: str) -> None:
        self._store = store
        self._owner = owner
        self.asking: set[asyncio.Task[None]] = set()

    def ask(self, call: Doubtful, refusal: str = "") -> None:
        """Have the store asked, which ends `call` or lets it go on. `refusal`: why it cannot go on, though its session
        be ours."""
        asking = asyncio.create_task(self._ask(call, refusal))
        self.asking.add(asking)
        asking.add_done_callback(self.asking.discard)

    async def _ask(self, call: Doubtful, refusal: str) -> None:
        """End `call` where its session has gone. While the store is away it goes on, as calls do then."""
        try:
            reason = reason_to_end(await self._store.describe([call.session]), self._owner, call.fence)
        except StoreError:
            reason = None
        if reason is not None:
            call.end(reason)
        elif refusal:
            _log.error("session_refused_by_stage", session=call.session, refusal=refusal)
            call.end(refusal)
        else:
            call.trust()
