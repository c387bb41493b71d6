"""What an operator does with sessions: lists and reads them, ends their calls, deletes them.

Theory of operation
    A session that runs here is ended as any call is: its client is told why, all that runs for it is given back, and
    what was said is written. One that runs at another gateway is ended there, and that one's word is waited for. A
    deletion removes the session from the store at once, after which nobody can write to it, and ends its calls, here
    directly and elsewhere by the store's notice.

Rules
* Whoever asks waits at most `END_S_MAX` for the end of a call; it ends all the same.
* Whoever acts for a `tenant` finds that one's sessions alone; None: all.
* A deletion tells of success only once the store has confirmed it. It may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import structlog

from duplex.call import Call
from duplex.errands import Outcome, What
from duplex.gateway import Gateway
from duplex.session_views import LocalCall, SessionView, contents, session_view
from duplex.session_watch import ENDED_BY_OPERATOR, SESSION_DELETED
from sessions.store import Notice, NoticeKind, SessionUnknown, StoredSession

# Its client's last words, the flush, the drain and the stages' letting go: each has its own limit, which seldom is
# reached, and hardly all of them by one call.
END_S_MAX = 10
ANSWER_S_MAX = 1  # on top of that, another gateway's

_log = structlog.get_logger("duplex.operations")


@dataclass(frozen=True, slots=True)
class Page:
    """`cursor` None: there is no other page."""

    sessions: tuple[SessionView, ...]
    cursor: str | None


class Operations:
    """On the sessions of `gateway` and of its store. Beside what each method names, all raise `StoreError`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._store = gateway.store
        gateway.errands.offer(What.END, self._end_here)
        gateway.errands.offer(What.DRAIN, self._drain_here)

    async def page(self, cursor: str, count: int, tenant: str | None = None) -> Page:
        """About `count` sessions of the store, wherever they run; of a tenant's, as many as are among these."""
        listing = await self._store.listing(cursor, count)
        return Page(self._views(listing.sessions, tenant), listing.cursor)

    async def here(self, tenant: str | None = None) -> Page:
        """All sessions that have a call at this gateway."""
        return Page(self._views(await self._store.describe(self._gateway.sessions), tenant), None)

    def _views(self, sessions: Sequence[StoredSession], tenant: str | None) -> tuple[SessionView, ...]:
        return tuple(self._view(stored) for stored in sessions if tenant in (None, stored.tenant))

    async def _look_whose(self, session: str, tenant: str | None) -> None:
        """Raises `SessionUnknown` where it is not one of `tenant`."""
        if tenant is not None and (await self._described(session)).tenant != tenant:
            raise SessionUnknown(session)

    async def show(self, session: str, tenant: str | None = None) -> SessionView:
        """With its contents. Raises `StoredDataError` or `msgspec.DecodeError` where these cannot be used."""
        await self._look_whose(session, tenant)
        stored, snapshot = await self._store.read(session)
        with_words = self._gateway.config.operator_reads_words
        call, limits = self._local(session), self._store.limits
        shown = contents(stored, snapshot, call, limits, with_words=with_words)
        return msgspec.structs.replace(self._view(stored), contents=shown)

    async def end(self, session: str, tenant: str | None = None) -> SessionView:
        """End the session's call, if it has one; how it stands then. What was said stays."""
        await self._look_whose(session, tenant)
        calls = self._gateway.calls_of(session)
        await self._end_here(session)
        stored = await self._described(session)
        if not calls and stored.lease_ms:
            await self._end_there(stored)
            stored = await self._described(session)
        _log.info("session_ended_by_operator", session=session, calls=len(calls))
        return self._view(stored)

    async def _end_here(self, session: str, _proof: bytes = b"") -> bool:
        """Whether there was a call, and nothing of it is held any more."""
        calls = self._gateway.calls_of(session)
        for call in calls:
            call.end(ENDED_BY_OPERATOR)
        return bool(calls) and await _until_over(calls)

    async def _end_there(self, stored: StoredSession) -> None:
        outcome = await self._have_done(stored, What.END)
        if outcome is not Outcome.DONE:  # whoever has it by now hears it too
            await self._store.notify(Notice(NoticeKind.END, stored.session))

    async def _have_done(self, stored: StoredSession, what: What) -> Outcome:
        return await self._gateway.errands.ask(stored.owner, what, stored.session, s_max=END_S_MAX + ANSWER_S_MAX)

    async def _described(self, session: str) -> StoredSession:
        (stored,) = await self._store.describe([session]) or (None,)
        if stored is None:
            raise SessionUnknown(session)
        return stored

    async def delete(self, session: str, tenant: str | None = None) -> bool:
        """Remove all of the session; whether nothing of it is held any more, by the gateway that had it. Raises
        `SessionUnknown`."""
        await self._look_whose(session, tenant)
        calls = self._gateway.calls_of(session)
        elsewhere = [held for held in await self._store.describe([session]) if self._is_elsewhere(held)]
        for call in calls:
            call.end(SESSION_DELETED)
        was_stored = await self._store.delete(session)
        if not was_stored and not calls:
            raise SessionUnknown(session)
        _log.info("session_deleted_by_operator", session=session, calls=len(calls))
        return await _until_over(calls) and all([await self._has_drained(held) for held in elsewhere])

    def _is_elsewhere(self, held: StoredSession) -> bool:
        return held.lease_ms > 0 and held.owner != self._gateway.name

    async def _has_drained(self, held: StoredSession) -> bool:
        """With a gateway that is no more, all that it held has gone."""
        return await self._have_done(held, What.DRAIN) in (Outcome.DONE, Outcome.NOBODY)

    async def _drain_here(self, session: str, _proof: bytes) -> bool:
        return await _until_over(self._gateway.calls_of(session))

    def _view(self, stored: StoredSession) -> SessionView:
        return session_view(stored, self._local(stored.session))

    def _local(self, session: str) -> LocalCall | None:
        calls = self._gateway.calls_of(session)
        if not calls:
            return None
        return LocalCall(calls[-1].journal.waiting, calls[-1].journal.errors, calls[-1].end_reason)


async def _until_over(calls: Sequence[Call]) -> bool:
    """Wait, for a bounded time, until nothing of `calls` is held any more."""
    try:
        async with asyncio.timeout(END_S_MAX):
            for call in calls:
                await call.over.wait()
    except TimeoutError:
        return False
    return True
