"""A second connection to a call: it sees what happens there, and commands it, and no sound goes by it.

Theory of operation
    `GET /v1/realtime?call_id=…`, with the id of a WebRTC call or of a session, joins a call that another connection
    has. Each event of the conversation is told to both, in a dialect of its own to each; what answers one command, a
    refusal say, goes to whoever gave it. A call at another gateway of the host is joined there, and messages are passed
    on both ways; whoever is slow slows nobody but itself.

Rules
* A key of the call's own tenant is needed; a client secret, which is good for one call, joins none.
* It sends no sound, resumes nothing and reports nothing heard: these are refused, and the rest is obeyed as ever.
* A call has a few of them (`OBSERVERS_MAX`); a gateway `SIDEBANDS_MAX`, with those that it passes on, and half as many
  of one tenant. One that does not read in time is closed; the call goes on.
* It ends with the call, for the same reason, or once its key is no longer named; its own end ends nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import structlog
from starlette.websockets import WebSocket, WebSocketState
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.frames import CloseCode

from duplex.admission import RefusedError
from duplex.audience import TooManyObserversError
from duplex.auth import Authority, Refusal, UnauthorizedError
from duplex.call import INTERNAL_ERROR, Call
from duplex.gateway import Gateway, new_id
from duplex.neighbours import Neighbour, Neighbours, is_passed_on, passed_on
from duplex.permissions import PERMISSION_REVOKED
from duplex.realtime import client_events as ask
from duplex.realtime.client_events import ClientEventError
from duplex.realtime.connection import Limits, Outbox, RealtimeConnection, SocketClosedError
from duplex.realtime.dialect import RealtimeDialect
from duplex.realtime.session_config import session_dict
from duplex.realtime.sockets import (
    CLOSE_CODES,
    CLOSE_FAULT,
    StarletteSocket,
    close,
    deny,
    limits_of,
    refuse,
    say_goodbye,
    subprotocol_of,
)
from duplex.tasks import stop_task
from duplex.tenants import Permission
from duplex.webrtc.visit import gateway_of
from sessions.store import StoreError, valid_session_id

SIDEBANDS_MAX = 256  # at a gateway: each has a descriptor, two where it is passed on, and calls need some as well
OF_TENANT_MAX = SIDEBANDS_MAX // 2
CONNECT_S_MAX = 2.0  # a neighbour that takes longer stands still
MESSAGES_AHEAD_MAX = 16  # of one side, which the other has not taken yet
BUSY_RETRY_S = 5

# Codes of ends that nobody has sent, nor may send: RFC 6455, section 7.4.1.
_NEVER_SENT = (CloseCode.NO_STATUS_RCVD, CloseCode.ABNORMAL_CLOSURE, CloseCode.TLS_HANDSHAKE)

_INPUT = (ask.InputAppend, ask.InputCommit, ask.InputClear)
_NOT_HERE = (*_INPUT, ask.PlaybackAck, ask.TurnHold, ask.SessionResume, ask.Bye)
_REVOKED = Refusal(401, PERMISSION_REVOKED, "the key was revoked")
_NOT_FOUND = RefusedError("call_not_found", "there is no such call, or it is over", None, status=404)

_log = structlog.get_logger("duplex.realtime")


class _Refusal(msgspec.Struct, frozen=True):
    code: str
    message: str
    retry_after_s: int | None = None


class _RefusalBody(msgspec.Struct, frozen=True):
    error: _Refusal


_refusals = msgspec.json.Decoder(_RefusalBody)


class SidebandConnection(RealtimeConnection):
    """Serves one sideband of `call` until one of them ends."""

    async def serve(self, first: ask.Command | None) -> str:
        """Gives the reason of the end. Raises `TooManyObserversError`."""
        self._call.audience.join(self._outbox)
        try:
            return await super().serve(first)
        finally:
            self._call.audience.leave(self._outbox)

    def _attach(self) -> None:
        """The call has its client."""

    async def _follow(self, command: ask.Command) -> None:
        if isinstance(command, _NOT_HERE):
            raise ClientEventError("unsupported_event", "that belongs to the connection that carries the call")
        with self._call.audience.asked_by(self._outbox):
            await super()._follow(command)


class Seats:
    """How many sidebands each tenant has at one gateway."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, tenant: str) -> Iterator[None]:
        """One more of `tenant`. Raises `RefusedError` where there may be none."""
        if self._taken[tenant] >= OF_TENANT_MAX:
            message = f"this tenant has {OF_TENANT_MAX} second connections here, which is all that it may have"
            raise RefusedError("too_many_sidebands", message, BUSY_RETRY_S, status=429)
        if self._taken.total() >= SIDEBANDS_MAX:
            message = f"there are {SIDEBANDS_MAX} second connections here, which is all that there may be"
            raise RefusedError("too_many_sidebands", message, BUSY_RETRY_S)
        self._taken[tenant] += 1
        try:
            yield
        finally:
            self._taken[tenant] -= 1
            self._taken += Counter()  # whoever has none is forgotten


class SidebandEndpoint:
    """`rtc_call` gives the call of a WebRTC connection here, by its id."""

    def __init__(
        self,
        gateway: Gateway,
        authority: Authority,
        rtc_call: Callable[[str], Call | None],
        neighbours: Neighbours | None,
    ) -> None:
        self._gateway = gateway
        self._authority = authority
        self._rtc_call = rtc_call
        self._neighbours = neighbours
        self._seats = Seats()

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one connection from handshake to close."""
        try:
            permission = self._authority.permission(websocket.headers)
            with self._seats.taken(permission.tenant):
                await self._serve_while_permitted(websocket, permission)
        except UnauthorizedError as error:
            await refuse(websocket, error.refusal)
        except RefusedError as error:
            await deny(websocket, error.status, error.code, str(error), error.retry_after_s)

    async def _serve_while_permitted(self, websocket: WebSocket, permission: Permission) -> None:
        serving = asyncio.create_task(self._serve(websocket, permission.tenant))
        try:
            with self._gateway.tenancies.permissions.in_use(permission, serving.cancel):
                await asyncio.wait({serving})
        finally:
            await stop_task(serving)
        if serving.cancelled():
            await _dismiss(websocket)

    async def _serve(self, websocket: WebSocket, tenant: str) -> None:
        call_id = websocket.query_params["call_id"]
        call = self._call_here(call_id)
        if call is None:
            await self._pass_on(websocket, await self._owner_of(websocket, call_id))
        elif call.conversation.tenant != tenant:
            raise _NOT_FOUND
        else:
            await self._join(websocket, call)

    # ---- here ----------------------------------------------------------------------------------------

    def _call_here(self, call_id: str) -> Call | None:
        call = self._rtc_call(call_id) or self._gateway.call_of(call_id)
        return call if call is not None and call.end_reason is None else None

    async def _join(self, websocket: WebSocket, call: Call) -> None:
        if call.audience.is_full:
            raise RefusedError("too_many_sidebands", "as many look at this call as may", BUSY_RETRY_S, status=429)
        await websocket.accept(subprotocol=subprotocol_of(websocket))
        extensions = websocket.query_params.get("extensions") == "1"
        dialect = RealtimeDialect(new_id, extensions=extensions, sound_in_messages=False)
        settings = call.conversation.settings
        dialect.transcription = settings.transcription
        outbox = Outbox(dialect)  # one that is not read is full in the end, and nobody waits for it
        outbox.post({"type": "session.created", "session": session_dict(call.session, settings, call.tools.tools)})
        limits = _patient(limits_of(self._gateway.config))
        try:
            reason = await SidebandConnection(StarletteSocket(websocket), call, outbox, dialect, limits).serve(None)
        except TooManyObserversError:
            reason = "refused"
        await say_goodbye(websocket, outbox, reason)

    # ---- elsewhere -----------------------------------------------------------------------------------

    async def _owner_of(self, websocket: WebSocket, call_id: str) -> Neighbour:
        """Raises `RefusedError`."""
        if is_passed_on(websocket.headers):
            raise _NOT_FOUND
        owner = gateway_of(call_id) or await self._owner_of_session(call_id)
        if owner in ("", self._gateway.name):
            raise _NOT_FOUND
        neighbour = self._neighbours.owner(owner) if self._neighbours else None
        if neighbour is None:
            message = "no gateway of this host has that call: it is over, or at another host, which has to be asked"
            raise RefusedError("call_elsewhere", message, None, status=404)
        return neighbour

    async def _owner_of_session(self, session: str) -> str:
        if not valid_session_id(session):
            return ""
        try:
            held = await self._gateway.store.describe([session])
        except StoreError as error:
            raise RefusedError("store_unavailable", "where that call is cannot be told now", BUSY_RETRY_S) from error
        return next((one.owner for one in held if one.lease_ms), "")

    async def _pass_on(self, websocket: WebSocket, owner: Neighbour) -> None:
        """Raises `RefusedError` with what the owner says, or where it says nothing."""
        address = f"ws://localhost/v1/realtime?{websocket.url.query}"
        try:
            far = await unix_connect(
                str(owner.socket),
                uri=address,
                additional_headers=passed_on(websocket.headers),
                compression=None,
                max_size=None,
                max_queue=MESSAGES_AHEAD_MAX,
                open_timeout=CONNECT_S_MAX,
                close_timeout=CONNECT_S_MAX,
            )
        except InvalidStatus as refused:
            raise _refusal_of(refused) from refused
        except (OSError, InvalidHandshake, EOFError) as error:
            message = "the gateway that has the call does not answer; ask again"
            raise RefusedError("call_unreachable", message, BUSY_RETRY_S) from error
        async with far:
            await websocket.accept(subprotocol=subprotocol_of(websocket))
            await _pipe(websocket, far)


async def _dismiss(websocket: WebSocket) -> None:
    """Raises `UnauthorizedError` where it has not been accepted yet."""
    if websocket.application_state is WebSocketState.CONNECTING:
        raise UnauthorizedError(_REVOKED)
    await close(websocket, CLOSE_CODES[PERMISSION_REVOKED], PERMISSION_REVOKED)


def _patient(limits: Limits) -> Limits:
    """Who only looks on says nothing for as long as a call may last."""
    return replace(limits, idle_ns_max=limits.call_ns_max)


def _refusal_of(refused: InvalidStatus) -> RefusedError:
    status = refused.response.status_code
    try:
        told = _refusals.decode(refused.response.body or b"").error
    except msgspec.DecodeError:
        told = _Refusal("call_unreachable", "the gateway that has the call refuses", BUSY_RETRY_S)
    return RefusedError(told.code, told.message, told.retry_after_s, status=status)


async def _pipe(websocket: WebSocket, far: ClientConnection) -> None:
    """Pass on what either side says until one of them has closed, which closes the other."""
    near = StarletteSocket(websocket)
    tasks = [asyncio.create_task(_there(near, far)), asyncio.create_task(_back(near, far))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            _log.error("sideband_failed", exc_info=end)
    await close(websocket, *_end_of(far))


def _end_of(far: ClientConnection) -> tuple[int, str]:
    """Code and reason, a fault of the service where it has ended without a word."""
    if far.close_code is None or far.close_code in _NEVER_SENT:
        return CLOSE_FAULT, INTERNAL_ERROR
    return far.close_code, far.close_reason or ""


async def _there(near: StarletteSocket, far: ClientConnection) -> None:
    try:
        while True:
            await far.send(await near.receive())
    except (SocketClosedError, ConnectionClosed):
        return


async def _back(near: StarletteSocket, far: ClientConnection) -> None:
    try:
        async for text in far:
            await near.send(text if isinstance(text, str) else text.decode())
    except (SocketClosedError, ConnectionClosed):
        return
