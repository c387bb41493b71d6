"""A thin asyncio client of the Realtime API over WebSocket: bytes and errors, no decisions.

Theory of operation
    `Target` holds where to call and with what secrets. `connect` opens the WebSocket and turns every way in which
    that can fail into a `ConnectError`. `open_session` waits for `session.created`, takes up an earlier session
    where a ticket is given, and sends the settings. From then on `receive` and `send` carry typed messages.

Rules
* The token travels in `Authorization: Bearer` and nowhere else, so redirects are not followed.
* No compression and no proxy: both would be part of what is measured.
* Events that arrive while the session is being opened are handed over, not lost.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websocket_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from loadtest import realtime_wire as wire
from loadtest.errors import (
    CapacityRefused,
    ConnectError,
    ConnectionLost,
    ServerViolation,
    SessionRefused,
    TargetError,
    Unauthorised,
    Unreachable,
    Untrusted,
)

DEFAULT_PATH = "/v1/realtime"
SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}

# Longest server message: the API's own bound on one audio event (16 MiB of JSON around 15 MiB of base64).
MESSAGE_BYTES_MAX = 16 << 20
# From the first packet to the end of the handshake: the default of the websockets library.
OPEN_TIMEOUT_S = 10.0
# Stock clients wait 5 s for `session.updated` (OpenAI Agents SDK); the same for each step of opening.
SESSION_STEP_TIMEOUT_S = 5.0
# A peer that does not answer the close frame is not waited for longer: all that counts has been received.
CLOSE_TIMEOUT_S = 2.0
# Events before the session is open; a greeting of 4 s in 20 ms pieces fits.
EARLY_EVENTS_MAX = 256
# A refused handshake carries a short JSON body; more of it is not looked at.
REFUSAL_BODY_BYTES_MAX = 4096

# RFC 6455 section 7.1.5: no close frame came. IANA's registry of close codes: try again later; unauthorised and
# forbidden, with the HTTP status that each stands for.
CLOSE_ABNORMAL = 1006
CLOSE_TRY_AGAIN = 1013
CLOSE_UNAUTHORISED = {3000: 401, 3003: 403}
STATUS_UNAUTHORISED = frozenset({401, 403})
STATUS_FULL = frozenset({429, 503})

Answer = TypeVar("Answer", wire.SessionCreated, wire.SessionUpdated, wire.SessionResumed)


@dataclass(frozen=True, slots=True)
class ResumeTicket:
    """What `session.created` gave out: enough to take the session up again. `responses` and `epoch`: what was left of
    it."""

    session_id: str
    token: str = field(repr=False)
    responses: tuple[str, ...] = ()
    epoch: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `SESSION_ID:TOKEN`. Raises `TargetError`."""
        session_id, colon, token = text.partition(":")
        if not (session_id and colon and token):
            raise TargetError("a resume ticket has the form SESSION_ID:TOKEN")
        return cls(session_id, token)


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to call: a WebSocket URL, the secrets for it, and the certificates to trust (None: the system's)."""

    url: str
    token: str | None = field(default=None, repr=False)
    resume: ResumeTicket | None = None
    certificates: Path | None = None

    @classmethod
    def parse(
        cls,
        url: str,
        token: str | None = None,
        resume: ResumeTicket | None = None,
        *,
        certificates: Path | None = None,
    ) -> Self:
        """From a URL as a person writes it. Raises `TargetError`."""
        return cls(websocket_url(url), token, resume, certificates)

    @property
    def address(self) -> str:
        """The URL, with the session that is to be taken up: a server that is full has room for it."""
        if self.resume is None:
            return self.url
        parts = urlsplit(self.url)
        query = [*parse_qsl(parts.query), ("resume", self.resume.session_id)]
        return urlunsplit(parts._replace(query=urlencode(query)))

    def tls(self) -> ssl.SSLContext | None:
        """How the other side proves who it is; None without TLS. Raises `TargetError`."""
        return tls_of(self.url, self.certificates)


def tls_of(url: str, certificates: Path | None) -> ssl.SSLContext | None:
    """How who answers at `url` proves who it is; None without TLS. Raises `TargetError`."""
    if urlsplit(url).scheme not in ("wss", "https"):
        return None
    try:
        return ssl.create_default_context(cafile=certificates)
    except OSError as fault:  # ssl.SSLError among them
        raise TargetError(f"{certificates} holds no certificates: {fault}") from fault


def websocket_url(url: str) -> str:
    """`url` with a WebSocket scheme, the default path where it has none, and our extensions asked for.

    Raises `TargetError` for another scheme, a missing host, or a user name or password.
    """
    parts = address(url, DEFAULT_PATH)
    query = dict(parse_qsl(parts.query)) | {"extensions": "1"}
    return urlunsplit(parts._replace(scheme=SCHEMES[parts.scheme], query=urlencode(query), fragment=""))


def address(url: str, path: str) -> SplitResult:
    """A URL as a person writes it, with `path` where it has none. Raises `TargetError` as above."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in SCHEMES and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError as fault:
        raise TargetError(f"not a URL: {fault}") from fault
    if not usable:
        raise TargetError("the URL needs a scheme (http, https, ws or wss) and a host")
    if parts.username is not None:
        raise TargetError("the URL must hold no user name or password")
    return parts if parts.path.strip("/") else parts._replace(path=path)


class _DirectConnect(websocket_connect):
    """`connect` that treats a redirect as a refusal: following it would carry the token to another host."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class RealtimeConnection:
    """An open WebSocket that speaks typed messages. Use it through `connect`."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def receive(self) -> wire.ServerEvent:
        """The next event. Raises `ConnectionLost`, `ServerViolation`."""
        try:
            text = await self._socket.recv(decode=False)
        except ConnectionClosed as closed:
            raise lost(closed) from closed
        return wire.decode(text)

    async def send(self, message: wire.ClientMessage) -> None:
        """Hand `message` to the kernel; waits while the server does not read (keep-alive ends that after 40 s).

        Raises `ConnectionLost`.
        """
        try:
            await self._socket.send(wire.encode(message))
        except ConnectionClosed as closed:
            raise lost(closed) from closed


def lost(closed: ConnectionClosed) -> ConnectionLost:
    """What the end of a connection means for a call."""
    if closed.rcvd is None:
        return ConnectionLost(CLOSE_ABNORMAL, "the server said nothing")
    return ConnectionLost(closed.rcvd.code, closed.rcvd.reason)


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[RealtimeConnection]:
    """A connection, closed on leaving. Raises `ConnectError` when the handshake fails."""
    headers = {} if target.token is None else {"Authorization": f"Bearer {target.token}"}
    async with open_socket(target.address, target.tls(), headers) as socket:
        yield RealtimeConnection(socket)


@asynccontextmanager
async def open_socket(
    url: str,
    tls: ssl.SSLContext | None,
    headers: Mapping[str, str],
    subprotocols: Sequence[Subprotocol] | None = None,
) -> AsyncIterator[ClientConnection]:
    """A WebSocket, closed on leaving. Raises `ConnectError` when the handshake fails."""
    attempt = _DirectConnect(
        url,
        ssl=tls,
        subprotocols=subprotocols,
        additional_headers=headers,
        compression=None,
        proxy=None,
        max_size=MESSAGE_BYTES_MAX,
        open_timeout=OPEN_TIMEOUT_S,
        close_timeout=CLOSE_TIMEOUT_S,
    )
    try:
        socket = await attempt
    except InvalidStatus as refused:
        headers_got, body = refused.response.headers, refused.response.body or b""
        raise refusal(refused.response.status_code, headers_got.get("Retry-After"), body) from refused
    except ssl.SSLCertVerificationError as failure:
        raise Untrusted(f"the certificate of {url} is not trusted: {failure.verify_message}") from failure
    except (OSError, InvalidHandshake, EOFError) as failure:
        raise Unreachable(f"no WebSocket server at {url}: {failure}") from failure
    try:
        yield socket
    finally:
        await socket.close()


def refusal(status: int, retry_after: str | None, body: bytes) -> ConnectError:
    """What a refused handshake means. `retry_after` is the header, understood where it is whole seconds."""
    told = wire.decode_refusal(body[:REFUSAL_BODY_BYTES_MAX])
    reason = told.message or f"HTTP {status}"
    if status in STATUS_UNAUTHORISED:
        return Unauthorised(status, reason)
    if status in STATUS_FULL:
        seconds = float(retry_after) if retry_after is not None and retry_after.isdecimal() else told.retry_after_s
        return CapacityRefused(told.code or str(status), reason, seconds)
    return SessionRefused(told.code or str(status), reason)


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session ready for audio. `resume_token` is given by servers that speak our extensions; `events` are all
    that have arrived up to here. `input_received`: up to which sample the server has understood what was said."""

    session_id: str
    resume_token: str | None
    events: tuple[wire.ServerEvent, ...]
    input_received: int = 0


async def open_session(
    connection: RealtimeConnection, settings: wire.SessionSettings, resume: ResumeTicket | None
) -> SessionOpened:
    """Bring a fresh connection to where audio may flow. Raises `ConnectError`, `ServerViolation`."""
    opening = _Opening(connection)
    session = (await opening.ask(None, wire.SessionCreated)).session
    if len(opening.events) > 1:
        raise ServerViolation("the first event must be session.created")
    received = 0
    if resume is not None:
        question = wire.ResumeSession(resume.session_id, resume.token, resume.responses, resume.epoch)
        resumed = await opening.ask(question, wire.SessionResumed)
        session = resumed.session or wire.Session(resume.session_id, resume.token)
        received = resumed.input_samples_received
    await opening.ask(wire.UpdateSession(settings), wire.SessionUpdated)
    return SessionOpened(session.id, session.resume_token, tuple(opening.events), received)


class _Opening:
    """Waits for the answers of the opening dialogue and keeps all that arrives."""

    def __init__(self, connection: RealtimeConnection) -> None:
        self._connection = connection
        self.events: list[wire.ServerEvent] = []

    async def ask(self, question: wire.ClientMessage | None, kind: type[Answer]) -> Answer:
        try:
            async with asyncio.timeout(SESSION_STEP_TIMEOUT_S):
                if question is not None:
                    await self._connection.send(question)
                return await self._next(kind)
        except TimeoutError:
            raise ServerViolation(f"no {kind.__name__} within {SESSION_STEP_TIMEOUT_S:g} s") from None
        except ConnectionLost as lost:
            raise refusal_by_close(wire.ErrorBody(message=str(lost)), lost.close_code) from lost

    async def _next(self, kind: type[Answer]) -> Answer:
        for _ in range(EARLY_EVENTS_MAX):
            event = await self._connection.receive()
            self.events.append(event)
            if isinstance(event, kind):
                return event
            if isinstance(event, wire.ErrorEvent):
                raise refusal_by_close(event.error, await self._close_code())
        raise ServerViolation(f"{EARLY_EVENTS_MAX} events and no {kind.__name__}")

    async def _close_code(self) -> int | None:
        """How the server closes after an error; None where it stays."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                for _ in range(EARLY_EVENTS_MAX):
                    await self._connection.receive()
        except ConnectionLost as lost:
            return lost.close_code
        except TimeoutError:
            pass
        return None


def refusal_by_close(error: wire.ErrorBody, close_code: int | None) -> ConnectError:
    """What an error (or nothing) followed by a close means, before the session is open."""
    reason = error.message or error.type
    if close_code == CLOSE_TRY_AGAIN:
        return CapacityRefused(error.code or error.type or str(close_code), reason, error.retry_after_s)
    if close_code in CLOSE_UNAUTHORISED:
        return Unauthorised(CLOSE_UNAUTHORISED[close_code], reason)
    return SessionRefused(error.code or error.type or str(close_code), reason)
