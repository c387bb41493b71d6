"""`POST /v1/realtime/client_secrets` and `…/join_tokens`: a secret for one call of a page, and one that is bound to how
it may be used.

Rule
* Both are for whoever has a key; a secret makes no other secret.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from duplex.admission import RETRY_AFTER_S
from duplex.auth import Authority, UnauthorizedError
from duplex.client_secrets import (
    JOIN_SECONDS_MAX,
    SECONDS_DEFAULT,
    SECONDS_MAX,
    SECONDS_MIN,
    Bounds,
    ClientSecrets,
    Grant,
    TooManySecretsError,
    TransportName,
)
from duplex.realtime.client_events import ClientEventError, SessionPatch
from duplex.realtime.session_config import NAME_CHARACTERS_MAX, apply_patch, session_dict
from duplex.tenants import Permission
from duplex.webrtc.endpoint import SESSION_BYTES_MAX, body_of, error_response, refusal_response
from duplex.webrtc.rtp import OfferError
from sessions.settings import SessionSettings
from sessions.store import StoreError
from stages.contracts import Tool

ORIGIN_CHARACTERS_MAX = 300

_Mint = Callable[[bytes, Permission], Awaitable[Response]]


class _ExpiresAfter(msgspec.Struct, frozen=True):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, msgspec.Meta(ge=SECONDS_MIN, le=SECONDS_MAX)] = SECONDS_DEFAULT


class _Wanted(msgspec.Struct, frozen=True):
    expires_after: _ExpiresAfter = _ExpiresAfter()
    session: SessionPatch | None = None


class _WantedJoin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`origin`: of the page that is to use it. `resume`: the id of the one session that it is for."""

    transport: TransportName
    origin: Annotated[str, msgspec.Meta(max_length=ORIGIN_CHARACTERS_MAX)] | None = None
    resume: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)] | None = None
    seconds: Annotated[int, msgspec.Meta(ge=SECONDS_MIN, le=JOIN_SECONDS_MAX)] = JOIN_SECONDS_MAX
    session: SessionPatch | None = None


_wanted = msgspec.json.Decoder(_Wanted)
_wanted_join = msgspec.json.Decoder(_WantedJoin)


class SecretsEndpoint:
    """`served`: the tools of the service."""

    def __init__(self, authority: Authority, client_secrets: ClientSecrets, served: Sequence[Tool] = ()) -> None:
        self._authority = authority
        self._client_secrets = client_secrets
        self._served = served

    async def mint(self, request: Request) -> Response:
        """A client secret."""
        return await self._answered(request, self._mint)

    async def mint_join_token(self, request: Request) -> Response:
        """A join token."""
        return await self._answered(request, self._mint_join_token)

    async def _mint(self, body: bytes, permission: Permission) -> Response:
        wanted = _wanted.decode(body or b"{}")
        settings = apply_patch(SessionSettings(), wanted.session or SessionPatch(), self._served)
        seconds = wanted.expires_after.seconds
        secret = await self._client_secrets.mint(seconds, Grant(wanted.session, permission))
        made = {"value": secret, "expires_at": _now_s() + seconds}
        return JSONResponse({**made, "session": session_dict("", settings, self._served)})

    async def _mint_join_token(self, body: bytes, permission: Permission) -> Response:
        wanted = _wanted_join.decode(body)
        apply_patch(SessionSettings(), wanted.session or SessionPatch(), self._served)
        bounds = Bounds(wanted.transport, wanted.origin, wanted.resume)
        token = await self._client_secrets.mint(wanted.seconds, Grant(wanted.session, permission, bounds))
        bound = {"transport": wanted.transport, "origin": wanted.origin, "resume": wanted.resume}
        return JSONResponse({"value": token, "expires_at": _now_s() + wanted.seconds, **bound})

    async def _answered(self, request: Request, mint: _Mint) -> Response:
        try:
            permission = self._authority.permission(request.headers)
            return await mint(await body_of(request, SESSION_BYTES_MAX), permission)
        except UnauthorizedError as error:
            return refusal_response(error.refusal)
        except OfferError as error:
            return error_response(error.status, error.code, str(error))
        except (msgspec.DecodeError, RecursionError) as error:
            return error_response(400, "invalid_value", str(error)[:200])
        except ClientEventError as error:
            return error_response(400, error.code, str(error), param=error.param)
        except (TooManySecretsError, StoreError) as error:
            is_full = isinstance(error, TooManySecretsError)
            code = "too_many_secrets" if is_full else "store_unavailable"
            message = str(error) if is_full else f"the secret could not be kept ({type(error).__name__}); ask again"
            return error_response(503, code, message, retry_after_s=RETRY_AFTER_S)


def _now_s() -> int:
    return int(datetime.now(UTC).timestamp())
