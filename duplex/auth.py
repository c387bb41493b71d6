"""Who may call: a bearer token where one is configured, and origins where a browser names one.

Rules
* Tokens are compared in constant time and never logged. They come in the `Authorization` header, or, from browsers that
  cannot set it, as a subprotocol `openai-insecure-api-key.<token>` (the OpenAI SDK's form); never in the URL.
* A browser sends `Origin`, and cross-site pages could otherwise use a caller's reach: without an allow-list only pages
  of this very host may connect; and without a token only those of a loopback name, as any other name may have been made
  to point here by the page's own author (DNS rebinding).
* A client secret stands for the token once, for a call and for nothing else.
* An operator's rights need the operator's token, in the header, whoever may call; without one configured nobody has
  them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from duplex.client_secrets import ClientSecrets, Grant
from duplex.config import LOOPBACK_HOSTS, Config
from sessions.store import StoreError

_SUBPROTOCOL_TOKEN = "openai-insecure-api-key."
RETRY_AFTER_S = 1  # a store that is away


@dataclass(frozen=True, slots=True)
class Refusal:
    """`status` is HTTP's: 401 who are you, 403 not from there, 503 that cannot be told now."""

    status: int
    code: str
    message: str
    retry_after_s: int | None = None


class UnauthorizedError(Exception):
    """A call was not for whoever asked for it, which showed only when it was to begin."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Authority:
    """`client_secrets`: what else than the token opens a call; None: nothing does."""

    def __init__(self, config: Config, client_secrets: ClientSecrets | None = None) -> None:
        self._client_secrets = client_secrets
        self._token = config.token.get_secret_value() if config.token else None
        self._operator_token = config.operator_token.get_secret_value() if config.operator_token else None
        self._origins = frozenset(config.allowed_origins)

    def refusal(self, headers: Mapping[str, str]) -> Refusal | None:
        """Why a request with these (lower-case) headers is refused, or None."""
        refusal = self.origin_refusal(headers)
        if refusal is not None or self._token is None:
            return refusal
        given = _token_of(headers)
        if given is None:
            return Refusal(401, "missing_token", "send the service's token as 'Authorization: Bearer …'")
        if not secrets.compare_digest(given.encode(), self._token.encode()):
            return Refusal(401, "invalid_token", "the token is not that of this service")
        return None

    def operator_refusal(self, headers: Mapping[str, str]) -> Refusal | None:
        """Why who sends these headers may not do as an operator does, or None."""
        refusal = self.origin_refusal(headers)
        if refusal is not None:
            return refusal
        if self._operator_token is None:
            return Refusal(403, "operations_off", "nobody may do that here: operator_token is not set")
        given = _bearer_of(headers)
        if given is None:
            return Refusal(401, "missing_token", "send the operator's token as 'Authorization: Bearer …'")
        if not secrets.compare_digest(given.encode(), self._operator_token.encode()):
            return Refusal(401, "invalid_token", "the token is not that of an operator of this service")
        return None

    async def call_refusal(self, headers: Mapping[str, str]) -> Refusal | None:
        """The same as `refusal` for a call, which a client secret opens too. It is not spent by this."""
        refusal = self.refusal(headers)
        if refusal is None or refusal.code != "invalid_token":
            return refusal
        given = _token_of(headers)
        try:
            is_good = given is not None and self._client_secrets and await self._client_secrets.find(given)
        except StoreError:
            return _SECRETS_AWAY
        return None if is_good else refusal

    async def spend(self, headers: Mapping[str, str]) -> Grant | None:
        """A call is about to begin with these headers: the client secret among them is of no more use; what it grants.

        Raises `UnauthorizedError` where the call needs it and somebody else has just spent it.
        """
        refusal, given = self.refusal(headers), _token_of(headers)
        try:
            grant = await self._client_secrets.spend(given) if given and self._client_secrets else None
        except StoreError as error:
            raise UnauthorizedError(_SECRETS_AWAY) from error
        if grant is None and refusal is not None:
            raise UnauthorizedError(refusal)
        return grant

    def origin_refusal(self, headers: Mapping[str, str]) -> Refusal | None:
        """Why a page that sends these headers may not even ask, or None."""
        if self._is_origin_allowed(headers):
            return None
        return Refusal(403, "origin_not_allowed", "this origin may not connect; add it to allowed_origins")

    def _is_origin_allowed(self, headers: Mapping[str, str]) -> bool:
        origin = headers.get("origin")
        if origin is None or origin in self._origins:
            return True
        try:
            page = urlsplit(origin)
        except ValueError:
            return False
        if page.netloc != headers.get("host"):
            return False
        return self._token is not None or page.hostname in LOOPBACK_HOSTS


_SECRETS_AWAY = Refusal(503, "store_unavailable", "whether that secret is good cannot be told now", RETRY_AFTER_S)


def _bearer_of(headers: Mapping[str, str]) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token else None


def _token_of(headers: Mapping[str, str]) -> str | None:
    bearer = _bearer_of(headers)
    if bearer is not None:
        return bearer
    for protocol in headers.get("sec-websocket-protocol", "").split(","):
        if protocol.strip().startswith(_SUBPROTOCOL_TOKEN):
            return protocol.strip().removeprefix(_SUBPROTOCOL_TOKEN)
    return None
