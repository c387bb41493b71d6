"""`/v1/realtime/calls`: a browser's offer becomes an answer, and a call that runs by itself.

Rules
* A call is counted from its admission to the end of its clean-up, as over a WebSocket, and refused in the same words.
* The id of a call is a secret of its page: whoever knows it may hang up. A page that is being closed can send a beacon,
  but no header with it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec
import structlog
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from duplex.admission import RefusedError
from duplex.auth import Authority, Refusal, UnauthorizedError
from duplex.call import Call
from duplex.client_secrets import Grant, TransportName
from duplex.errands import Outcome, What
from duplex.gateway import Gateway
from duplex.realtime.client_events import ClientEventError, SessionPatch
from duplex.realtime.session_config import NAME_CHARACTERS_MAX, apply_patch, check_medium
from duplex.tenants import Permission
from duplex.webrtc.offer import OFFER_BYTES_MAX, checked_offer
from duplex.webrtc.rtp import OfferError
from duplex.webrtc.visit import Asked, RtcVisit, gateway_of
from sessions.settings import SessionSettings, TurnDetection
from stages.contracts import Tool

SESSION_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = OFFER_BYTES_MAX + SESSION_BYTES_MAX + 4_096  # the form around them
BODY_S_MAX = 10
HANG_UP_S_MAX = 2.0  # another gateway does it within milliseconds, or stands still
HANG_UP_RETRY_S = 1
SDP = "application/sdp"
TRANSPORT_NAME: TransportName = "webrtc"

# RFC 2046, section 5.1.1.
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{1,70}")

_log = structlog.get_logger("duplex.webrtc")
_patch = msgspec.json.Decoder(SessionPatch)


@dataclass(frozen=True, slots=True)
class _Body:
    offer: str
    session: SessionPatch | None


def error_response(
    status: int, code: str, message: str, *, param: str | None = None, retry_after_s: int | None = None
) -> Response:
    """An error in the API's form."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"type": kind, "code": code, "message": message, "param": param, "retry_after_s": retry_after_s}
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s else {}
    return JSONResponse({"error": error}, status, headers=headers)


def refusal_response(refusal: Refusal) -> Response:
    """What is answered to who may not call."""
    return error_response(refusal.status, refusal.code, refusal.message, retry_after_s=refusal.retry_after_s)


async def body_of(request: Request, bytes_max: int) -> bytes:
    """The body; raises `OfferError` where it is too large or does not come."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for part in request.stream():
                body += part
                if len(body) > bytes_max:
                    raise OfferError("body_too_large", f"at most {bytes_max} bytes are taken here", status=413)
    except TimeoutError as error:
        raise OfferError("body_timeout", f"the body did not come within {BODY_S_MAX} s", status=408) from error
    return bytes(body)


class CallsEndpoint:
    def __init__(self, gateway: Gateway, authority: Authority) -> None:
        self._gateway = gateway
        self._authority = authority
        gateway.errands.offer(What.HANG_UP, self._hang_up_here)
        self._visits: dict[str, RtcVisit] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # one per place

    async def begin(self, request: Request) -> Response:
        """Answer an offer."""
        try:
            permission = await self._authority.permit(request.headers, TRANSPORT_NAME)
            body = await self._body(request)
            asked = self._asked(request, body)
            visit = await self._admit(request, asked, body, permission)
            answer = await visit.answered
        except UnauthorizedError as error:
            return refusal_response(error.refusal)
        except OfferError as error:
            return error_response(error.status, error.code, str(error))
        except ClientEventError as error:
            return error_response(400, error.code, str(error), param=error.param)
        except RefusedError as error:
            return error_response(error.status, error.code, str(error), retry_after_s=error.retry_after_s)
        location = f"/v1/realtime/calls/{visit.id}"
        return Response(answer, 201, media_type=SDP, headers={"Location": location})

    def call_of(self, call_id: str) -> Call | None:
        """The call of a connection here."""
        visit = self._visits.get(call_id)
        return None if visit is None else visit.call

    async def hang_up(self, request: Request) -> Response:
        """End a call."""
        refusal = self._authority.origin_refusal(request.headers)
        if refusal is not None:
            return refusal_response(refusal)
        call = request.path_params["call_id"]
        outcome = Outcome.DONE if await self._hang_up_here(call) else await self._hang_up_there(call)
        if outcome is Outcome.DONE:
            return JSONResponse({})
        if outcome is Outcome.NO_ANSWER:
            message = "the gateway that has the call does not answer; ask again"
            return error_response(503, "call_unreachable", message, retry_after_s=HANG_UP_RETRY_S)
        return error_response(404, "call_not_found", "there is no such call, or it is over")

    async def _hang_up_here(self, call: str, _proof: bytes = b"") -> bool:
        visit = self._visits.get(call)
        if visit is not None:
            visit.hang_up()
        return visit is not None

    async def _hang_up_there(self, call: str) -> Outcome:
        gateway = gateway_of(call)
        if gateway in ("", self._gateway.name):
            return Outcome.NOBODY
        return await self._gateway.errands.ask(gateway, What.HANG_UP, call, s_max=HANG_UP_S_MAX)

    # ---- the request -------------------------------------------------------------------------------

    async def _body(self, request: Request) -> _Body:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        networks = self._gateway.config.webrtc_networks
        if kind == SDP:
            return _Body(checked_offer(await body_of(request, OFFER_BYTES_MAX), networks), None)
        if kind != "multipart/form-data":
            message = f"send the offer as {SDP}, or as multipart/form-data with sdp and session"
            raise OfferError("unsupported_content_type", message, status=415)
        form = await _form_of(request.headers["content-type"], await body_of(request, BODY_BYTES_MAX))
        session = _patch_of(form["session"]) if "session" in form else None
        return _Body(checked_offer(form.get("sdp", "").encode(), networks), session)

    def _asked(self, request: Request, body: _Body) -> Asked:
        """Raises `ClientEventError` where the settings cannot be used."""
        settings = SessionSettings(
            model=request.query_params.get("model", "")[:NAME_CHARACTERS_MAX],
            turn_detection=TurnDetection(silence_duration_ms=self._gateway.config.silence_ms),
        )
        extensions = request.query_params.get("extensions") == "1"
        if body.session is not None:
            check_medium(apply_patch(settings, body.session, self._gateway.tools.tools))
            extensions = extensions or body.session.extensions is True
        return Asked(body.offer, settings, extensions)

    async def _admit(self, request: Request, asked: Asked, body: _Body, permission: Permission) -> RtcVisit:
        """Take a place and begin; raises `RefusedError` or `UnauthorizedError`."""
        async with AsyncExitStack() as place:
            returning = request.query_params.get("resume")
            tenancy = await place.enter_async_context(self._gateway.place(permission, returning))
            grant = await self._authority.spend(request.headers, TRANSPORT_NAME)
            tenancy.bind(grant.bounds.session)
            settings = _patched(asked.settings, grant, body.session, self._gateway.tools.tools)
            visit = RtcVisit(self._gateway, Asked(asked.offer, settings, asked.extensions), tenancy)
            task = asyncio.create_task(_serve(visit, place.pop_all()))  # from here on its end gives the place back
        self._visits[visit.id] = visit
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._left(visit, done))
        return visit

    def _left(self, visit: RtcVisit, task: asyncio.Task[None]) -> None:
        del self._visits[visit.id]
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("call_failed", exc_info=error)


async def _serve(visit: RtcVisit, place: AsyncExitStack) -> None:
    async with place:
        await visit.run()


def _patched(
    settings: SessionSettings, grant: Grant, session: SessionPatch | None, served: Sequence[Tool]
) -> SessionSettings:
    """What came with the secret, then what the page itself asks for. Both were checked, but a secret knows no
    transport: raises `ClientEventError` where its settings are for another one."""
    for patch in (grant.session, session):
        if patch is not None:
            settings = apply_patch(settings, patch, served)
    check_medium(settings)
    return settings


async def _form_of(content_type: str, body: bytes) -> dict[str, str]:
    """The fields of a form, as UTF-8: decoders that a request names cost time, and give what is no text."""

    async def once() -> AsyncGenerator[bytes, None]:
        yield body

    boundary = parse_options_header(content_type)[1].get(b"boundary", b"").decode("latin-1")
    if not _BOUNDARY.fullmatch(boundary):
        raise OfferError("invalid_form", "the content type names no boundary of the form")
    headers = Headers({"content-type": f'multipart/form-data; boundary="{boundary}"'})
    parser = MultiPartParser(headers, once(), max_files=0, max_fields=2, max_part_size=SESSION_BYTES_MAX)
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, UnicodeDecodeError) as error:
        raise OfferError("invalid_form", "the form cannot be read: two fields, sdp and session") from error
    return {name: value for name, value in form.items() if isinstance(value, str)}


def _patch_of(text: str) -> SessionPatch:
    try:
        return _patch.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise OfferError("invalid_session", f"the session cannot be used: {str(error)[:200]}") from error
