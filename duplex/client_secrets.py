"""Client secrets: a page may make one call with one, and never sees the service's token.

Theory of operation
    Whoever may call asks for a secret and hands it to a page. It is random, valid for a time, and spent by the first
    call that is admitted with it. It may carry settings, with which that call begins. Kept in this process only: a
    page whose secret did not survive a restart asks for another one.

Rules
* Only digests are kept. At most `SECRETS_MAX` are valid at a time.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from duplex.realtime.client_events import SessionPatch

PREFIX = "ek_"
SECONDS_MIN, SECONDS_MAX, SECONDS_DEFAULT = 10, 7_200, 600  # as in the Realtime API
SECRETS_MAX = 1_024
SECRET_BYTES = 24


class TooManySecretsError(RuntimeError):
    """As many secrets are valid as may be; the oldest ones expire by themselves."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What comes with a secret. `session` None: nothing was set."""

    session: SessionPatch | None
    expires_ns: int


class ClientSecrets:
    """`now_ns` is a monotonic clock."""

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._grants: dict[bytes, Grant] = {}

    def mint(self, seconds: int, session: SessionPatch | None) -> str:
        """A new secret, valid for `seconds`; raises `TooManySecretsError`."""
        assert SECONDS_MIN <= seconds <= SECONDS_MAX
        now_ns = self._now_ns()
        self._grants = {digest: grant for digest, grant in self._grants.items() if grant.expires_ns > now_ns}
        if len(self._grants) >= SECRETS_MAX:
            raise TooManySecretsError(f"{SECRETS_MAX} client secrets are valid, which is all that there may be")
        secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        self._grants[_digest(secret)] = Grant(session, now_ns + seconds * 1_000_000_000)
        return secret

    def find(self, secret: str) -> Grant | None:
        """What `secret` grants, where it is valid."""
        grant = self._grants.get(_digest(secret))
        return grant if grant is not None and grant.expires_ns > self._now_ns() else None

    def spend(self, secret: str) -> Grant | None:
        """The same, for the last time."""
        grant = self.find(secret)
        self._grants.pop(_digest(secret), None)
        return grant


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
