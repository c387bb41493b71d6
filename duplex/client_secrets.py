"""Client secrets: a page may make one call with one, and never sees the key that made it.

Theory of operation
    Whoever may call asks for a secret and hands it to a page. It is random, valid for a time, and spent by the first
    call that begins with it, at whichever gateway of whichever host: the store keeps it. It may carry settings, with
    which that call begins. A *join token* is a secret that lasts a minute at most and is bound to how it may be used:
    over which transport, from which page, perhaps for one session alone.

Rules
* Only digests are kept. At most `SECRETS_MAX` of a tenant are valid at a time.
* A secret begins with the name under which the store keeps those of its tenant, a digest of the tenant's id: no tenant
  can use up another's room.
* A secret permits no more than the key that made it: it is worth nothing once that was revoked.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Literal

import msgspec

from duplex.realtime.client_events import SessionPatch
from duplex.tenants import DEFAULT_TENANT, Permission
from sessions.store import SessionStore

PREFIX = "ek_"
SECONDS_MIN, SECONDS_MAX, SECONDS_DEFAULT = 10, 7_200, 600  # as in the Realtime API
JOIN_SECONDS_MAX = 60
SECRETS_MAX = 1_024
SECRET_BYTES = 24
HOLDER_DIGITS = 16

TransportName = Literal["websocket", "webrtc", "telephony"]


class TooManySecretsError(RuntimeError):
    """As many secrets are valid as may be; the oldest ones expire by themselves."""


class Bounds(msgspec.Struct, frozen=True):
    """How a secret may be used; None: in any way. `session`: the only one that may be served. `caller`: the number of
    the telephone that it was made for; `call`: its carrier's id of that call, as the carrier itself has told."""

    transport: TransportName | None = None
    origin: str | None = None
    session: str | None = None
    caller: str | None = None
    call: str | None = None


ANYHOW = Bounds()


class Grant(msgspec.Struct, frozen=True):
    """What a call begins with. `session` None: nothing was set."""

    session: SessionPatch | None
    permission: Permission = Permission(DEFAULT_TENANT)
    bounds: Bounds = ANYHOW


_grants = msgspec.msgpack.Decoder(Grant)


class ClientSecrets:
    """Those in `store`. All methods raise `StoreError` where that cannot be asked."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    async def mint(self, seconds: int, grant: Grant) -> str:
        """A new secret, valid for `seconds`; raises `TooManySecretsError`."""
        assert 0 < seconds <= SECONDS_MAX
        holder = _holder_of(grant.permission.tenant)
        secret = f"{PREFIX}{holder}.{secrets.token_urlsafe(SECRET_BYTES)}"
        stored = msgspec.msgpack.encode(grant)
        if not await self._store.keep_secret(holder, _digest(secret), stored, seconds * 1_000, SECRETS_MAX):
            raise TooManySecretsError(f"{SECRETS_MAX} client secrets are valid, which is all that there may be")
        return secret

    async def find(self, secret: str) -> Grant | None:
        """What `secret` grants, where it is valid."""
        holder = _named_holder(secret)
        return _grant_of(await self._store.find_secret(holder, _digest(secret))) if holder else None

    async def spend(self, secret: str) -> Grant | None:
        """The same, for the last time."""
        holder = _named_holder(secret)
        return _grant_of(await self._store.spend_secret(holder, _digest(secret))) if holder else None


def _grant_of(stored: bytes | None) -> Grant | None:
    return None if stored is None else _grants.decode(stored)


def _holder_of(tenant: str) -> str:
    return hashlib.sha256(tenant.encode()).hexdigest()[:HOLDER_DIGITS]


def _named_holder(secret: str) -> str:
    """Empty for what is no secret."""
    holder, dot, _ = secret.removeprefix(PREFIX).partition(".")
    is_secret = secret.startswith(PREFIX) and dot and len(holder) == HOLDER_DIGITS
    return holder if is_secret else ""


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
