"""`POST /v1/realtime/client_secrets`: a secret for one call of a page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from duplex.auth import Authority
from duplex.client_secrets import SECONDS_DEFAULT, SECONDS_MAX, SECONDS_MIN, ClientSecrets, TooManySecretsError
from duplex.gateway import RETRY_AFTER_S
from duplex.realtime.client_events import ClientEventError, SessionPatch
from duplex.realtime.session_config import apply_patch, session_dict
from duplex.webrtc.endpoint import SESSION_BYTES_MAX, body_of, error_response, refusal_response
from duplex.webrtc.rtp import OfferError
from sessions.settings import SessionSettings
from sessions.store import StoreError
from stages.contracts import Tool


class _ExpiresAfter(msgspec.Struct, frozen=True):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, msgspec.Meta(ge=SECONDS_MIN, le=SECONDS_MAX)] = SECONDS_DEFAULT


class _Wanted(msgspec.Struct, frozen=True):
    expires_after: _ExpiresAfter = _ExpiresAfter()
    session: SessionPatch | None = None


_wanted = msgspec.json.Decoder(_Wanted)


class SecretsEndpoint:
    """`served`: the tools of the service."""

    def __init__(self, authority: Authority, client_secrets: ClientSecrets, served: Sequence[Tool] = ()) -> None:
        self._authority = authority
        self._client_secrets = client_secrets
        self._served = served

    async def mint(self, request: Request) -> Response:
        """For whoever has the service's token; a secret makes no other secret."""
        refusal = self._authority.refusal(request.headers)
        if refusal is not None:
            return refusal_response(refusal)
        try:
            wanted = _wanted.decode(await body_of(request, SESSION_BYTES_MAX) or b"{}")
            settings = apply_patch(SessionSettings(), wanted.session or SessionPatch(), self._served)
            secret = await self._client_secrets.mint(wanted.expires_after.seconds, wanted.session)
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
        expires_at = int(datetime.now(UTC).timestamp()) + wanted.expires_after.seconds
        return JSONResponse(
            {"value": secret, "expires_at": expires_at, "session": session_dict("", settings, self._served)}
        )
