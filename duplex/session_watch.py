"""What befalls this gateway's sessions elsewhere: hears it from the store, and keeps their leases.

Theory of operation
    A session can be deleted, or its call be ended, by whoever operates another gateway, and be taken over by its client
    there. The store carries notices of that, which end the call here within moments. A notice may be lost: while nobody
    listens, none is kept. So all calls ask the store once whoever listens is back, and each of them once in `RENEWAL_S`
    anyway, by renewing its lease.

Rules
* Only a call's own journal asks the store about its session, between two writes.
* The renewals of many calls are spread over the time, or they would come all at once. What waits meanwhile are names: a
  call that has ended is held by nobody here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from sessions.store import Notice, NoticeKind, SessionStore, StoreError

RENEWAL_S = 10.0  # a third of a lease: two may fail
AWAY_S = 1.0  # a store that is away is tried so often
ENDED_BY_OPERATOR = "ended_by_operator"
SESSION_DELETED = "session_deleted"
SESSION_REPLACED = "session_replaced"

_END_REASONS = {NoticeKind.END: ENDED_BY_OPERATOR, NoticeKind.DELETED: SESSION_DELETED}

_log = structlog.get_logger("duplex.session_watch")


class Watched(Protocol):
    """A call."""

    def end(self, reason: str) -> None: ...
    def look_after_session(self) -> None: ...


class SessionWatch:
    """`calls_of` gives those of a session, the present one last; `sessions` those that have any. Those in `deleted` are
    told of each session that is."""

    def __init__(
        self,
        store: SessionStore,
        calls_of: Callable[[str], Sequence[Watched]],
        sessions: Callable[[], Sequence[str]],
        deleted: Sequence[Callable[[str], object]] = (),
    ) -> None:
        self._store = store
        self._calls_of = calls_of
        self._sessions = sessions
        self._deleted = deleted
        self._is_deaf = False

    async def listen(self) -> None:
        """End the calls of which a notice says so, until cancelled."""
        while True:
            try:
                async with self._store.notices() as notices:
                    self._is_deaf = False
                    for session in self._sessions():
                        self._look_after(session)
                    async for notice in notices:
                        self._take(notice)
            except StoreError as error:
                if not self._is_deaf:
                    _log.warning("notices_lost", error=type(error).__name__)
                self._is_deaf = True
            await asyncio.sleep(AWAY_S)

    def _take(self, notice: Notice) -> None:
        if notice.kind is NoticeKind.TAKEN:
            self._look_after(notice.session)  # by the call that may have taken it itself
            return
        for call in self._calls_of(notice.session):
            call.end(_END_REASONS[notice.kind])
        if notice.kind is NoticeKind.DELETED:
            for forget in self._deleted:
                forget(notice.session)

    def _look_after(self, session: str) -> None:
        for present in self._calls_of(session)[-1:]:
            present.look_after_session()

    async def renew(self) -> None:
        """Renew the leases of all calls, each in its turn, until cancelled."""
        while True:
            sessions = self._sessions()
            for session in sessions:
                self._look_after(session)
                await asyncio.sleep(RENEWAL_S / len(sessions))
            if not sessions:
                await asyncio.sleep(RENEWAL_S)
