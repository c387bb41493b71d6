"""Callers whose call was cut off: who calls again from the same number, soon enough, goes on where they were.

Theory of operation
    The store keeps the token of the session, for a while, under a digest of the tenant and the caller's number. It is
    taken by the first call that asks for it, at whichever gateway.

Rules
* Numbers are not kept, and those of a tenant find no session of another.
* Who withholds their number has none.
* A store that does not answer costs the caller a new conversation, and no call.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress

from sessions.store import SessionStore, StoreError

CALLERS_MAX = 4_096  # of a tenant, at a time
_NUMBER = re.compile(r"\+?[0-9]{2,15}")
# Twilio, "Phone numbers of callers who are anonymous": ANONYMOUS, RESTRICTED, BLOCKED, UNKNOWN, UNAVAILABLE.
_NOBODY = frozenset({"+266696687", "+7378742833", "+2562533", "+8656696", "+86282452253"})


class CallBacks:
    """`seconds`: for how long; 0: never."""

    def __init__(self, store: SessionStore, seconds: int) -> None:
        self._store = store
        self._seconds = seconds

    async def expect(self, tenant: str, caller: str, resume_token: str) -> None:
        """The call of `caller` was cut off, in the session of this token."""
        if self._knows(caller):
            with suppress(StoreError):
                await self._store.keep_secret(
                    _holder(tenant), _digest(tenant, caller), resume_token.encode(), self._seconds * 1_000, CALLERS_MAX
                )

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
