"""Who may call: a key of a tenant, or a bearer token where one is configured; and from which pages.

Rules
* Tokens are compared in constant time and never logged. They come in the `Authorization` header, or, from browsers that
  cannot set it, as a subprotocol `openai-insecure-api-key.<token>` (the OpenAI SDK's form); never in the URL.
* A browser sends `Origin`, and cross-site pages could otherwise use a caller's reach: without an allow-list only pages
  of this very host may connect; and without a token only those of a loopback name, as any other name may have been made
  to point here by the page's own author (DNS rebinding).
* Where tenants are named, each call is of the one whose key came with it. Without them there is one tenant, `default`,
  whose key is the token.
* A client secret stands for the key that made it once, for a call and for nothing else.
* What all tenants have in common (metrics, events) is for whoever may call where there is one, else for operators.
* An operator's rights need the operator's token, in the header, whoever may call; without one configured nobody has
  them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from duplex.client_secrets import ClientSecrets, Grant, TransportName
from duplex.config import LOOPBACK_HOSTS, Config
from duplex.tenant_directory import TenantDirectory
from duplex.tenants import DEFAULT_TENANT, Permission
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
    """`client_secrets`: what else than a key opens a call; None: nothing does. `directory`: the tenants."""

    def __init__(
        self, config: Config, client_secrets: ClientSecrets | None = None, directory: TenantDirectory | None = None
    ) -> None:
        self._client_secrets = client_secrets
        self._directory = directory or TenantDirectory()
        self._token = config.token.get_secret_value() if config.token else None
        self._operator_token = config.operator_token.get_secret_value() if config.operator_token else None
        self._origins = frozenset(config.allowed_origins)

    # ---- keys --------------------------------------------------------------------------------------

    def permission(self, headers: Mapping[str, str]) -> Permission:
        """What the key in these (lower-case) headers permits. Raises `UnauthorizedError`."""
        if self._directory.is_file:
            return self._tenant_s(headers)
        refusal = self.origin_refusal(headers)
        if refusal is not None:
            raise UnauthorizedError(refusal)
        if self._token is not None:
            given = _token_of(headers)
            if given is None:
                message = "send the service's token as 'Authorization: Bearer …'"
                raise UnauthorizedError(Refusal(401, "missing_token", message))
            if not secrets.compare_digest(given.encode(), self._token.encode()):
                raise UnauthorizedError(Refusal(401, "invalid_token", "the token is not that of this service"))
        return Permission(DEFAULT_TENANT)

    def _tenant_s(self, headers: Mapping[str, str]) -> Permission:
        tenants = self._directory.tenants
        if tenants is None:
            raise UnauthorizedError(_PERMISSIONS_AWAY)
        given = _token_of(headers)
        permission = None if given is None else tenants.permission_of(given)
        refusal = self._origin_refusal(headers, permission)
        if refusal is None and given is None:
            refusal = Refusal(401, "missing_token", "send a key of yours as 'Authorization: Bearer …'")
        if refusal is not None:
            raise UnauthorizedError(refusal)
        if permission is None:
            raise UnauthorizedError(Refusal(401, "invalid_token", "this is no key, or it was revoked"))
        return permission

    def refusal(self, headers: Mapping[str, str]) -> Refusal | None:
        """Why a request with these (lower-case) headers is refused, or None."""
        return _refusal_by(lambda: self.permission(headers))

    def overview_refusal(self, headers: Mapping[str, str]) -> Refusal | None:
        """Why who sends these headers may not see what there is of all tenants, or None."""
        return self.operator_refusal(headers) if self._directory.is_file else self.refusal(headers)

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

    def scope(self, headers: Mapping[str, str]) -> str | None:
        """Whose sessions who sends these headers may see and end: a tenant's; None: everybody's.

        Raises `UnauthorizedError`.
        """
        refusal = self.operator_refusal(headers)
        if refusal is None:
            return None
        if self._directory.is_file:
            return self.permission(headers).tenant
        raise UnauthorizedError(refusal)

    # ---- calls -------------------------------------------------------------------------------------

    async def permit(self, headers: Mapping[str, str], transport: TransportName | None = None) -> Permission:
        """What a call with these headers is permitted, by a key or a client secret, which is not spent by this.

        Raises `UnauthorizedError`.
        """
        grant = await self._granted(headers, transport, spends=False)
        return grant.permission if grant else self.permission(headers)

    async def call_refusal(self, headers: Mapping[str, str], transport: TransportName | None = None) -> Refusal | None:
        """Why a call with these headers is refused, or None."""
        try:
            await self.permit(headers, transport)
        except UnauthorizedError as error:
            return error.refusal
        return None

    async def spend(self, headers: Mapping[str, str], transport: TransportName | None = None) -> Grant:
        """A call is about to begin with these headers: the client secret among them is of no more use; what is granted.

        Raises `UnauthorizedError` where the call needs it and somebody else has just spent it.
        """
        grant = await self._granted(headers, transport, spends=True)
        return grant or Grant(None, self.permission(headers))

    async def spend_ticket(self, ticket: str, transport: TransportName) -> Grant:
        """The same where what permits the call came in another way than in the headers: a client secret, or a key.

        Raises `UnauthorizedError`, also where anybody may call and `ticket` is not good.
        """
        headers = {"authorization": f"Bearer {ticket}"}
        grant = await self._granted(headers, transport, spends=True)
        if grant is None and self._token is None and not self._directory.is_file:
            raise UnauthorizedError(Refusal(401, "invalid_ticket", "the ticket is not good, or was used before"))
        return grant or Grant(None, self.permission(headers))

    async def _granted(
        self, headers: Mapping[str, str], transport: TransportName | None, *, spends: bool
    ) -> Grant | None:
        """What the client secret among the headers grants; None where there is none that is good."""
        given, issued = _token_of(headers), self._client_secrets
        if given is None or issued is None:
            return None
        try:
            grant = await (issued.spend(given) if spends else issued.find(given))
        except StoreError as error:
            raise UnauthorizedError(_SECRETS_AWAY) from error
        if grant is None:
            return None
        self._check(grant, headers, transport)
        return grant

    def _check(self, grant: Grant, headers: Mapping[str, str], transport: TransportName | None) -> None:
        """Raises `UnauthorizedError` where the secret is used otherwise than it was made for."""
        tenants, bounds = self._directory.tenants, grant.bounds
        if tenants is None:
            raise UnauthorizedError(_PERMISSIONS_AWAY)
        if not tenants.permits(grant.permission):
            raise UnauthorizedError(Refusal(401, "invalid_token", "the key that made this token was revoked"))
        refusal = self._origin_refusal(headers, grant.permission)
        if bounds.origin is not None and headers.get("origin") != bounds.origin:
            refusal = Refusal(403, "origin_not_allowed", "this token was made for another page")
        if bounds.transport is not None and transport not in (None, bounds.transport):
            refusal = Refusal(403, "transport_not_allowed", f"this token was made for {bounds.transport}")
        if refusal is not None:
            raise UnauthorizedError(refusal)

    # ---- origins -----------------------------------------------------------------------------------

    def names_origin(self, origin: str) -> bool:
        """Pages of `origin` were named, by the service or by any tenant."""
        tenants = self._directory.tenants
        return origin in self._origins or (tenants is not None and origin in tenants.origins_of(None))

    def origin_refusal(self, headers: Mapping[str, str]) -> Refusal | None:
        """Why a page that sends these headers may not even ask, or None."""
        return self._origin_refusal(headers, None)

    def _origin_refusal(self, headers: Mapping[str, str], permission: Permission | None) -> Refusal | None:
        """`permission`: what the page shows that it has, which brings along the origins of its tenant; None: those of
        all tenants count."""
        tenants = self._directory.tenants
        if self._is_origin_allowed(headers, tenants.origins_of(permission) if tenants else frozenset()):
            return None
        return Refusal(403, "origin_not_allowed", "this origin may not connect; add it to allowed_origins")

    def _is_origin_allowed(self, headers: Mapping[str, str], also: frozenset[str]) -> bool:
        origin = headers.get("origin")
        if origin is None or origin in self._origins or origin in also:
            return True
        try:
            page = urlsplit(origin)
        except ValueError:
            return False
        if page.netloc != headers.get("host"):
            return False
        return self._token is not None or self._directory.is_file or page.hostname in LOOPBACK_HOSTS


def _refusal_by(ask: Callable[[], object]) -> Refusal | None:
    try:
        ask()
    except UnauthorizedError as error:
        return error.refusal
    return None


_PERMISSIONS_AWAY = Refusal(503, "permissions_unavailable", "who may call cannot be told now", RETRY_AFTER_S)
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
