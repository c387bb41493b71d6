"""Client secrets: a page may make one call with one, and never sees the service's token.

Theory of operation
    Whoever may call asks for a secret and hands it to a page. It is random, valid for a time, and spent by the first
    call that begins with it, at whichever gateway of whichever host: the store keeps it. It may carry settings, with
    which that call begins.

Rules
* Only digests are kept. At most `SECRETS_MAX` are valid at a time.
"""

from __future__ import annotations

import hashlib
import secrets

import msgspec

from duplex.realtime.client_events import SessionPatch
from sessions.store import SessionStore

PREFIX = "ek_"
SECONDS_MIN, SECONDS_MAX, SECONDS_DEFAULT = 10, 7_200, 600  # as in the Realtime API
SECRETS_MAX = 1_024
SECRET_BYTES = 24


class TooManySecretsError(RuntimeError):
    """As many secrets are valid as may be; the oldest ones expire by themselves."""


class Grant(msgspec.Struct, frozen=True):
    """What comes with a secret. `session` None: nothing was set."""

    session: SessionPatch | None


_grants = msgspec.json.Decoder(Grant)


class ClientSecrets:
    """Those in `store`. All methods raise `StoreError` where that cannot be asked."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    async def mint(self, seconds: int, session: SessionPatch | None) -> str:
        """A new secret, valid for `seconds`; raises `TooManySecretsError`."""
        assert SECONDS_MIN <= seconds <= SECONDS_MAX
        secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        grant = msgspec.json.encode(Grant(session))
        if not await self._store.keep_secret(_digest(secret), grant, seconds * 1_000, SECRETS_MAX):
            raise TooManySecretsError(f"{SECRETS_MAX} client secrets are valid, which is all that there may be")
        return secret

    async def find(self, secret: str) -> Grant | None:
        """What `secret` grants, where it is valid."""
        return _grant_of(await self._store.find_secret(_digest(secret))) if secret.startswith(PREFIX) else None

    async def spend(self, secret: str) -> Grant | None:
        """The same, for the last time."""
        return _grant_of(await self._store.spend_secret(_digest(secret))) if secret.startswith(PREFIX) else None


def _grant_of(stored: bytes | None) -> Grant | None:
    return None if stored is None else _grants.decode(stored)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
