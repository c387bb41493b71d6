"""Callers whose call was cut off: who calls again from the same number, soon enough, goes on where they were.

Theory of operation
    The store keeps the token of the session under a digest of the tenant and the caller's number: while the call lives,
    renewed every `RENEW_S`, as its gateway may be killed at any moment; and for a while after it was cut off. The first
    call that asks for it takes it, at whichever gateway, and goes on unless the caller of that session is still there.

Rules
* Numbers are not kept, and those of a tenant find no session of another.
* Who withholds their number has none.
* Of two calls of one number at once the later one is kept, until one of them is cut off.
* A store that does not answer costs the caller a new conversation, and no call.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from duplex.tasks import stop_task
from sessions.store import SessionStore, StoreError

CALLERS_MAX = 4_096  # of a tenant, at a time
RENEW_S = 10  # so much later than of other calls the time of one is over whose gateway was killed
_NUMBER = re.compile(r"\+?[0-9]{2,15}")
# Twilio, "Phone numbers of callers who are anonymous": ANONYMOUS, RESTRICTED, BLOCKED, UNKNOWN, UNAVAILABLE.
_NOBODY = frozenset({"+266696687", "+7378742833", "+2562533", "+8656696", "+86282452253"})


class CallBack:
    """What is kept of one call: the `token` of its session, under the caller's `digest`. `seconds` 0: nothing is."""

    def __init__(self, store: SessionStore, holder: str, digest: bytes, token: bytes, seconds: int) -> None:
        self._store = store
        self._holder = holder
        self._digest = digest
        self._token = token
        self._seconds = seconds

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Keep it while the call lives."""
        holding = asyncio.create_task(self._hold())
        try:
            yield
        finally:
            await stop_task(holding)

    async def cut_off(self) -> None:
        """The call was: from now on it is kept for so many seconds."""
        await self._keep(self._seconds)

    async def over(self) -> None:
        """The call has ended as it should, and nobody goes on with it."""
        with suppress(StoreError):
            if await self._is_kept():
                await self._store.spend_secret(self._holder, self._digest)

    async def _hold(self) -> None:
        await self._keep(self._seconds + RENEW_S)
        while self._seconds:
            await asyncio.sleep(RENEW_S)
            with suppress(StoreError):
                if await self._is_kept():
                    await self._keep(self._seconds + RENEW_S)

    async def _is_kept(self) -> bool:
        """Nobody has taken it, and no other call of the caller's is kept instead."""
        return self._seconds > 0 and await self._store.find_secret(self._holder, self._digest) == self._token

    async def _keep(self, seconds: int) -> None:
        if not self._seconds:
            return
        with suppress(StoreError):
            await self._store.keep_secret(self._holder, self._digest, self._token, seconds * 1_000, CALLERS_MAX)


class CallBacks:
    """`seconds`: for how long; 0: never."""

    def __init__(self, store: SessionStore, seconds: int) -> None:
        self._store = store
        self._seconds = seconds

    def of(self, tenant: str, caller: str, resume_token: str) -> CallBack:
        """That of a call of `caller`, in the session of this token."""
        seconds = self._seconds if self._knows(caller) else 0
        return CallBack(self._store, _holder(tenant), _digest(tenant, caller), resume_token.encode(), seconds)

    async def take(self, tenant: str, caller: str) -> str | None:
        """The token of the session that `caller` goes on with, once; None where there is none."""
        if not self._knows(caller):
            return None
        try:
            token = await self._store.spend_secret(_holder(tenant), _digest(tenant, caller))
        except StoreError:
            return None
        return None if token is None else token.decode()

    def _knows(self, caller: str) -> bool:
        return self._seconds > 0 and _NUMBER.fullmatch(caller) is not None and caller not in _NOBODY


def _holder(tenant: str) -> str:
    return f"callers-{hashlib.sha256(tenant.encode()).hexdigest()[:16]}"


def _digest(tenant: str, caller: str) -> bytes:
    return hashlib.sha256(f"{tenant}\0{caller}".encode()).digest()
