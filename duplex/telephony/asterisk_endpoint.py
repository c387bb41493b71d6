"""Asterisk: the WebSocket that a channel opens to us, and the one that we open to a channel that waits for it.

Theory of operation
    A PBX that dials `WebSocket/…` connects to us, with a name and a password (HTTP Basic) or a ticket, in the query or
    among the channel's variables; the caller's number is looked for in both as well. Where the PBX is to be called
    instead, whoever has a key names the address of the waiting channel, `ws://pbx:8088/media/<id>`; only addresses of
    the PBXs that are configured are called.

Rules
* Asterisk offers the subprotocol `media`, and is answered with it.
* Who asks us to connect has a key of the service, is told once the PBX has answered, and has no part in the call.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Mapping
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidURI
from websockets.typing import Subprotocol

from duplex.auth import Authority, Refusal, UnauthorizedError
from duplex.client_secrets import Grant
from duplex.config import Config, secret_in
from duplex.realtime.sockets import refuse
from duplex.telephony.asterisk import SUBPROTOCOL, Asterisk
from duplex.telephony.carrier import Started
from duplex.telephony.control import PbxControl
from duplex.telephony.entrance import TELEPHONY, Entrance, from_number, probe_of
from duplex.telephony.phone_call import Line
from duplex.telephony.sockets import MESSAGE_BYTES_MAX, CarriersSocket, OwnSocket
from duplex.webrtc.endpoint import body_of, error_response, refusal_response
from duplex.webrtc.rtp import OfferError

STREAM_PATH = "/v1/telephony/asterisk"
CALLS_PATH = f"{STREAM_PATH}/calls"
BODY_BYTES_MAX = 4_096
CONNECT_S_MAX = 5

_log = structlog.get_logger("duplex.telephony")


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`url`: of the channel that waits."""

    url: str


_wanted = msgspec.json.Decoder(_Wanted)


class AsteriskEndpoint:
    """Raises `ConfigError` where the file of its secret cannot be used."""

    def __init__(self, config: Config, entrance: Entrance, authority: Authority) -> None:
        self._entrance = entrance
        self._authority = authority
        password = secret_in("asterisk_password_file", config.asterisk_password_file)
        login = None if password is None or config.asterisk_user is None else (config.asterisk_user, password)
        self._login = None if login is None else ":".join(login).encode()
        url = config.asterisk_control_url
        self._control = None if url is None else PbxControl(url, login)
        self._urls = frozenset(url.lower() for url in config.asterisk_urls)
        self._calls: set[asyncio.Task[None]] = set()

    # ---- Asterisk connects to us ---------------------------------------------------------------------

    async def stream(self, websocket: WebSocket) -> None:
        """Serve a call."""
        try:
            is_known = self._is_known(websocket.headers)
        except UnauthorizedError as error:
            await refuse(websocket, error.refusal)
            return
        offered = websocket.scope.get("subprotocols", [])
        await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
        query = websocket.query_params  # what a dial string's v() has set
        needed = self._login is not None or not self._entrance.is_from_here(websocket.headers)

        async def admit(started: Started) -> Grant:
            if is_known:
                caller = query.get("caller") or started.parameters.get("caller", "")
                return from_number(Grant(None, self._entrance.permission), caller)
            ticket = query.get("ticket") or started.parameters.get("ticket", "")
            return await self._entrance.grant(ticket, needed=needed)

        line = Line(CarriersSocket(websocket), Asterisk(), self._control, probe_of(websocket))
        await self._entrance.receive(line, admit, is_known=is_known)

    def _is_known(self, headers: Mapping[str, str]) -> bool:
        """The name and the password are right; False where there are none. Raises `UnauthorizedError`."""
        scheme, _, coded = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic" or self._login is None:
            return False
        try:
            given = base64.b64decode(coded.strip(), validate=True)
        except ValueError:
            given = b""
        if not secrets.compare_digest(given, self._login):
            raise UnauthorizedError(Refusal(401, "invalid_login", "asterisk_user or its password is another one"))
        return True

    # ---- we connect to Asterisk ----------------------------------------------------------------------

    async def begin(self, request: Request) -> Response:
        """Connect to a channel that waits, and serve its call."""
        try:
            await self._authority.permit(request.headers, TELEPHONY)
            url = self._checked(_wanted.decode(await body_of(request, BODY_BYTES_MAX)).url)
            async with AsyncExitStack() as until_granted:
                connection = await self._connected(url)
                until_granted.push_async_exit(connection)
                grant = await self._authority.spend(request.headers, TELEPHONY)
                until_granted.pop_all()
        except UnauthorizedError as error:
            return refusal_response(error.refusal)
        except OfferError as error:
            return error_response(error.status, error.code, str(error))
        except (msgspec.DecodeError, RecursionError) as error:
            return error_response(400, "invalid_value", str(error)[:200])
        serving = asyncio.create_task(self._serve(connection, grant))
        self._calls.add(serving)
        serving.add_done_callback(self._served)
        return JSONResponse({"status": "connected"}, 201)

    def _checked(self, url: str) -> str:
        """Raises `OfferError` where nobody has allowed that it is called."""
        try:
            parts = urlsplit(url)
            place = f"{parts.scheme}://{parts.netloc}".lower()
            is_channel = parts.path.startswith("/media/") and not parts.query and not parts.fragment
        except ValueError as error:
            raise OfferError("invalid_url", "url: no address", status=400) from error
        if place not in self._urls:
            raise OfferError("url_not_allowed", "url: that PBX is not among asterisk_urls", status=403)
        if not is_channel:
            raise OfferError("invalid_url", "url: /media/ and the channel's MEDIA_WEBSOCKET_CONNECTION_ID", status=400)
        return url

    async def _connected(self, url: str) -> ClientConnection:
        """Raises `OfferError` where the PBX does not answer."""
        headers = {}
        if self._login is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(self._login).decode()}"
        try:
            return await connect(
                url,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                additional_headers=headers,
                compression=None,
                max_size=MESSAGE_BYTES_MAX,
                open_timeout=CONNECT_S_MAX,
                close_timeout=CONNECT_S_MAX,
                proxy=None,
            )
        except (OSError, InvalidHandshake, InvalidURI, EOFError) as error:
            message = f"the PBX has not taken the connection ({type(error).__name__})"
            raise OfferError("pbx_unreachable", message, status=502) from error

    async def _serve(self, connection: ClientConnection, grant: Grant) -> None:
        async def admit(started: Started) -> Grant:
            return from_number(grant, started.parameters.get("caller", ""))

        async with connection:
            line = Line(OwnSocket(connection), Asterisk(), self._control)
            await self._entrance.receive(line, admit, is_known=True)

    def _served(self, serving: asyncio.Task[None]) -> None:
        self._calls.discard(serving)
        error = None if serving.cancelled() else serving.exception()
        if error is not None:
            _log.error("call_failed", exc_info=error)
