"""`/v1/sessions`: which sessions there are, one of them, its end, its deletion. For operators, and for tenants.

Rules
* It needs the operator's token, or a tenant's key; that one is answered as if there were no sessions but its own.
* Keys are looked at, and places taken, once the request has come whole: one that comes slowly cannot outlast its key.
* A parameter that is unknown or cannot be used is refused by name. At most `UNDER_WAY_MAX` requests are served at once.
* An id that was never a session's and one of a session that is gone are answered alike: 404.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from duplex.admission import RETRY_AFTER_S
from duplex.auth import Authority, UnauthorizedError
from duplex.operations import Operations
from duplex.webrtc.endpoint import body_of, error_response, refusal_response
from duplex.webrtc.rtp import OfferError
from sessions.records import StoredDataError
from sessions.store import CursorRefused, SessionUnknown, StoreError

SESSIONS_USUAL, SESSIONS_MAX = 50, 200  # of a page
UNDER_WAY_MAX = 8
BUSY_RETRY_S = 1
BODY_BYTES_MAX = 1_024  # nothing is read of it
PARAMETERS = ("cursor", "limit", "here")

_Served = Callable[[Request, str | None], Awaitable[Response]]
_Scope = Callable[[Mapping[str, str]], str | None]  # of these headers: a tenant; None: all of them


class _BadParameterError(ValueError):
    """The client must ask otherwise."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


class SessionsEndpoint:
    def __init__(self, operations: Operations, authority: Authority) -> None:
        self._operations = operations
        self._authority = authority
        self._under_way = 0

    def routes(self) -> list[Route]:
        """Those of this endpoint."""
        one = "/v1/sessions/{session}"
        return [
            Route("/v1/sessions", self._guarded(self._list), methods=["GET"]),
            Route(one, self._guarded(self._show), methods=["GET"]),
            Route(one, self._guarded(self._delete), methods=["DELETE"]),
            Route(f"{one}/end", self._guarded(self._end), methods=["POST"]),
        ]

    def hang_up(self) -> Callable[[Request], Awaitable[Response]]:
        """Ends a session's call for whoever has a key of its tenant: the id of a session is no secret."""
        return self._guarded(self._end, lambda headers: self._authority.permission(headers).tenant)

    def _guarded(self, serve: _Served, scope: _Scope | None = None) -> Callable[[Request], Awaitable[Response]]:
        scope = scope or self._authority.scope

        async def guarded(request: Request) -> Response:
            try:
                await body_of(request, BODY_BYTES_MAX)
                tenant = scope(request.headers)
            except OfferError as error:
                return error_response(error.status, error.code, str(error))
            except UnauthorizedError as error:
                return refusal_response(error.refusal)
            if self._under_way >= UNDER_WAY_MAX:
                message = f"{UNDER_WAY_MAX} requests of operators are under way"
                return error_response(503, "busy", message, retry_after_s=BUSY_RETRY_S)
            self._under_way += 1
            try:
                return await _answered(serve, request, tenant)
            finally:
                self._under_way -= 1

        return guarded

    async def _list(self, request: Request, tenant: str | None) -> Response:
        cursor, count, is_here = parse_query(request.query_params)
        try:
            page = await (self._operations.here(tenant) if is_here else self._operations.page(cursor, count, tenant))
        except CursorRefused as error:
            raise _BadParameterError("cursor", "not one that a listing gave") from error
        return _json({"object": "list", "data": page.sessions, "next": page.cursor})

    async def _show(self, request: Request, tenant: str | None) -> Response:
        return _json(await self._operations.show(_session_of(request), tenant))

    async def _end(self, request: Request, tenant: str | None) -> Response:
        view = await self._operations.end(_session_of(request), tenant)
        return _json(view, 200 if view.state == "stored" else 202)

    async def _delete(self, request: Request, tenant: str | None) -> Response:
        session = _session_of(request)
        drained = await self._operations.delete(session, tenant)
        return JSONResponse({"object": "session.deleted", "id": session, "deleted": True, "drained": drained})


def _session_of(request: Request) -> str:
    named: dict[str, str] = request.path_params
    return named.get("session") or named["call_id"]


async def _answered(serve: _Served, request: Request, tenant: str | None) -> Response:
    """What `serve` answers, or the error that it ends with."""
    try:
        return await serve(request, tenant)
    except _BadParameterError as error:
        return error_response(400, "invalid_value", str(error), param=error.param)
    except SessionUnknown:
        return error_response(404, "session_not_found", "there is no such session, or it is gone")
    except StoreError as error:
        message = f"the store could not be asked ({type(error).__name__}); ask again"
        return error_response(503, "store_unavailable", message, retry_after_s=RETRY_AFTER_S)
    except (StoredDataError, msgspec.DecodeError) as error:
        return error_response(500, "session_unreadable", f"what is stored is damaged ({type(error).__name__})")


def _json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def parse_query(query: Mapping[str, str]) -> tuple[str, int, bool]:
    """Cursor, number of sessions, and whether only those here are asked for. Raises `_BadParameterError`."""
    for name in query:
        if name not in PARAMETERS:
            raise _BadParameterError(name, f"there is no such parameter; there are {', '.join(PARAMETERS)}")
    limit = query.get("limit", str(SESSIONS_USUAL))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 10 and 1 <= int(limit) <= SESSIONS_MAX):
        raise _BadParameterError("limit", f"a number from 1 to {SESSIONS_MAX}")
    here = query.get("here", "0")
    if here not in ("0", "1"):
        raise _BadParameterError("here", "0 or 1")
    return query.get("cursor", ""), int(limit), here == "1"
