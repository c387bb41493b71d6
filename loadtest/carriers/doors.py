"""How a carrier comes to a service: over which address, with which proof of who it is.

Theory of operation
    `TwilioDoor` does what Twilio does when a call comes in: it posts to the webhook, signed, reads the TwiML, and
    connects where that says, signed again. Given a WebSocket's address it connects at once. `TelnyxDoor` and
    `AsteriskDoor` connect with what they are known by; `AsteriskSwitch` waits for the service to connect to a channel.

Rules
* Secrets travel in headers only, and in no text.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from secrets import token_hex
from urllib.parse import urlunsplit

import httpx2
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from loadtest.carriers.asterisk_channel import AsteriskChannel, ChannelCall
from loadtest.carriers.media_stream import MediaStream
from loadtest.carriers.phone_call import Carrier, Socket
from loadtest.carriers.stream_dialects import TELNYX, TWILIO, Dialect, StreamCall
from loadtest.carriers.twiml import TwimlError, signature, stream_order
from loadtest.errors import ServerViolation, Unreachable
from loadtest.realtime_client import (
    CLOSE_TIMEOUT_S,
    MESSAGE_BYTES_MAX,
    OPEN_TIMEOUT_S,
    SCHEMES,
    address,
    open_socket,
    refusal,
    tls_of,
)
from media.audio_format import AudioFormat

TWILIO_PATH = "/v1/telephony/twilio"
VOICE_PATH = f"{TWILIO_PATH}/voice"
TELNYX_PATH = "/v1/telephony/telnyx"
ASTERISK_PATH = "/v1/telephony/asterisk"
MEDIA_PATH = "/media/"  # of Asterisk's own server

SIGNATURE = "X-Twilio-Signature"
TELNYX_TOKEN = "x-telnyx-streaming-auth-token"
SUBPROTOCOL = Subprotocol("media")

Opened = tuple[Socket, Carrier]


def new_stream_call() -> StreamCall:
    """With ids of its own, in the form of Twilio's."""
    return StreamCall(f"MZ{token_hex(16)}", f"CA{token_hex(16)}")


def new_channel_call() -> ChannelCall:
    """With ids of its own."""
    return ChannelCall(token_hex(8), f"pbx-{token_hex(4)}")


def _socket_url(url: str, path: str) -> str:
    parts = address(url, path)
    return urlunsplit(parts._replace(scheme=SCHEMES[parts.scheme], fragment=""))


@dataclass(frozen=True, slots=True)
class TwilioDoor:
    """`url`: the webhook (http, https), or the stream itself (ws, wss). `token`: the account's; None: nothing is
    signed. Raises `TargetError` where the URL cannot be used."""

    url: str
    token: str | None = field(default=None, repr=False)
    certificates: Path | None = None
    call: StreamCall = field(default_factory=new_stream_call)

    def __post_init__(self) -> None:
        address(self.url, VOICE_PATH)
        tls_of(self.url, self.certificates)

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Opened]:
        url, call = _socket_url(self.url, TWILIO_PATH), self.call
        if self.url.startswith("http"):
            url, call = await self._ordered()
        async with open_socket(url, tls_of(url, self.certificates), self._signed(url, {})) as socket:
            yield socket, MediaStream(call, TWILIO)

    async def _ordered(self) -> tuple[str, StreamCall]:
        """Where the stream goes, and the call as its start tells of it."""
        url = urlunsplit(address(self.url, VOICE_PATH))
        call = self.call
        fields = {
            "CallSid": call.call_id,
            "AccountSid": call.account_id,
            "From": call.caller,
            "To": call.called,
            "CallStatus": "ringing",
            "Direction": "inbound",
            "ApiVersion": "2010-04-01",
        }
        verify = tls_of(url, self.certificates) or True
        async with httpx2.AsyncClient(verify=verify, timeout=OPEN_TIMEOUT_S, trust_env=False) as client:
            try:
                answer = await client.post(url, data=fields, headers=self._signed(url, fields))
            except httpx2.TransportError as failure:
                raise Unreachable(f"no webhook at {url}: {failure}") from failure
        if answer.status_code != HTTPStatus.OK:
            raise refusal(answer.status_code, answer.headers.get("Retry-After"), answer.content)
        try:
            order = stream_order(answer.text)
        except TwimlError as fault:
            raise ServerViolation(f"the webhook at {url}: {fault}") from fault
        return order.url, replace(call, parameters=order.parameters)

    def _signed(self, url: str, fields: Mapping[str, str]) -> dict[str, str]:
        return {} if self.token is None else {SIGNATURE: signature(self.token, url, fields)}


@dataclass(frozen=True, slots=True)
class TelnyxDoor:
    """`token`: the `stream_auth_token` of the call. `sound`: None for G.711. Raises `TargetError`."""

    url: str
    token: str | None = field(default=None, repr=False)
    certificates: Path | None = None
    call: StreamCall = field(default_factory=new_stream_call)
    dialect: Dialect = TELNYX
    sound: AudioFormat | None = None

    def __post_init__(self) -> None:
        address(self.url, TELNYX_PATH)
        tls_of(self.url, self.certificates)

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Opened]:
        url = _socket_url(self.url, TELNYX_PATH)
        headers = {} if self.token is None else {TELNYX_TOKEN: self.token}
        async with open_socket(url, tls_of(url, self.certificates), headers) as socket:
            yield socket, MediaStream(self.call, self.dialect, self.sound)


@dataclass(frozen=True, slots=True)
class AsteriskDoor:
    """`login`: `user:password` of `websocket_client.conf`. Variables of the dial string are in the query of `url`.
    Raises `TargetError`."""

    url: str
    login: str | None = field(default=None, repr=False)
    certificates: Path | None = None
    call: ChannelCall = field(default_factory=new_channel_call)

    def __post_init__(self) -> None:
        address(self.url, ASTERISK_PATH)
        tls_of(self.url, self.certificates)

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Opened]:
        url = _socket_url(self.url, ASTERISK_PATH)
        headers = {} if self.login is None else {"Authorization": f"Basic {_basic(self.login)}"}
        async with open_socket(url, tls_of(url, self.certificates), headers, [SUBPROTOCOL]) as socket:
            if socket.subprotocol != SUBPROTOCOL:
                raise ServerViolation(f"the service has not taken up the subprotocol {SUBPROTOCOL!r}")
            yield socket, AsteriskChannel(self.call)


class AsteriskSwitch:
    """A server of Asterisk's, at which channels wait for the service: `async with` it, then go through its `door`."""

    def __init__(self, login: str | None = None, host: str = "127.0.0.1", port: int = 0) -> None:
        self._login = login
        self._host, self._port = host, port
        self._waiting: dict[str, asyncio.Future[ServerConnection]] = {}
        self._server: Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None, "it is running"
        host, port = next(iter(self._server.sockets)).getsockname()[:2]
        return f"ws://{host}:{port}"

    async def __aenter__(self) -> AsteriskSwitch:
        self._server = await serve(
            self._serve,
            self._host,
            self._port,
            process_request=self._judge,
            subprotocols=[SUBPROTOCOL],
            compression=None,
            max_size=MESSAGE_BYTES_MAX,
            close_timeout=CLOSE_TIMEOUT_S,
        )
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    @asynccontextmanager
    async def door(self, call: ChannelCall) -> AsyncIterator[Opened]:
        """A channel that waits until the service connects to it. Raises `Unreachable` where it does not."""
        assert call.connection_id not in self._waiting, "each channel has an id of its own"
        connected = self._waiting[call.connection_id] = asyncio.get_running_loop().create_future()
        try:
            socket = await self._connected(call.connection_id, connected)
            yield socket, AsteriskChannel(call)
            await socket.close()
        finally:
            del self._waiting[call.connection_id]

    async def _connected(self, name: str, connected: asyncio.Future[ServerConnection]) -> ServerConnection:
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                return await connected
        except TimeoutError:
            raise Unreachable(f"nobody has connected to {MEDIA_PATH}{name}") from None

    def _judge(self, connection: ServerConnection, request: Request) -> Response | None:
        if self._login is not None and request.headers.get("Authorization") != f"Basic {_basic(self._login)}":
            return connection.respond(HTTPStatus.UNAUTHORIZED, "another name or password\n")
        waiting = self._waiting.get(request.path.removeprefix(MEDIA_PATH))
        if waiting is None:
            return connection.respond(HTTPStatus.NOT_FOUND, "no channel of that id waits\n")
        if waiting.done():
            return connection.respond(HTTPStatus.CONFLICT, "the channel is connected already\n")
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        waiting = self._waiting.get(connection.request.path.removeprefix(MEDIA_PATH))
        if waiting is None or waiting.done():
            return
        waiting.set_result(connection)
        await connection.wait_closed()


def _basic(login: str) -> str:
    return base64.b64encode(login.encode()).decode()
