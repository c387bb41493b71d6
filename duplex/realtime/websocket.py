"""The WebSocket endpoint of the Realtime API: admission, handshake, the connection's life, and its close code.

Close codes: 1000 the call ended as asked; 1001 shutdown (clients reconnect on it); 1008 a limit or a rule;
1011 a fault of the service; 1013 the store is away or full, try again later; 4001 another connection took the session;
4002 an operator ended the call; 4003 the session was deleted; 4004 the permission to call was revoked.

Rule
* Whoever waits for the client, be it to speak or only to take what is sent, stops waiting when the call ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from duplex.admission import RefusedError
from duplex.auth import Authority, Refusal, UnauthorizedError
from duplex.call import INTERNAL_ERROR, Call
from duplex.client_secrets import Grant, TransportName
from duplex.gateway import Admitted, Gateway, new_id
from duplex.realtime import client_events as ask
from duplex.realtime.client_events import ClientEventError
from duplex.realtime.connection import (
    Limits,
    Outbox,
    RealtimeConnection,
    SocketClosedError,
    created_message,
    resumed_message,
    write_next,
)
from duplex.realtime.dialect import Message, RealtimeDialect, error_message, item_dict
from duplex.realtime.session_config import NAME_CHARACTERS_MAX, apply_patch
from duplex.tenancies import Tenancy
from media.heard_estimate import Probe
from sessions.settings import SessionSettings, TurnDetection

SUBPROTOCOL = "realtime"
TRANSPORT: TransportName = "websocket"
PROBE_EXTENSION = "duplex.probe"  # of the ASGI scope: what the server's pings show of the path
NS_PER_S = 1_000_000_000
MINUTE_NS = 60 * NS_PER_S
CLOSE_S_MAX = 5  # for a client that does not even read its close frame

_CLOSE_CODES = {
    "client_closed": 1000,
    "service_shutdown": 1001,
    "slow_client": 1008,
    "call_too_long": 1008,
    "idle": 1008,
    "session_replaced": 4001,
    "ended_by_operator": 4002,
    "session_deleted": 4003,
    "permission_revoked": 4004,
    "quota_exceeded": 1008,
    "store_unavailable": 1013,
    "store_full": 1013,
    "refused": 1008,
}
CLOSE_FAULT = 1011

_log = structlog.get_logger("duplex.realtime")


class _StarletteSocket:
    """`Socket` over Starlette."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> str | bytes:
        try:
            message = await self._websocket.receive()
        except (WebSocketDisconnect, RuntimeError) as error:
            raise SocketClosedError from error
        if message["type"] == "websocket.disconnect":
            raise SocketClosedError
        content: str | bytes = message["text"] if message.get("text") is not None else message["bytes"]
        return content

    async def send(self, text: str) -> None:
        try:
            await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise SocketClosedError from error


class RealtimeEndpoint:
    def __init__(self, gateway: Gateway, authority: Authority) -> None:
        self._gateway = gateway
        self._authority = authority

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one connection from handshake to close."""
        try:
            permission = await self._authority.permit(websocket.headers, TRANSPORT)
            async with self._gateway.place(permission) as tenancy:
                grant = await self._authority.spend(websocket.headers, TRANSPORT)
                tenancy.session = grant.bounds.session
                offered = websocket.scope.get("subprotocols", [])
                await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
                await _Visit(self._gateway, websocket, grant, tenancy).serve()
        except RefusedError as error:
            await _deny(websocket, error.status, error.code, str(error), error.retry_after_s)
        except UnauthorizedError as error:
            await _refuse(websocket, error.refusal)


class _Visit:
    """One accepted connection: which session it serves, and how it ends."""

    def __init__(self, gateway: Gateway, websocket: WebSocket, grant: Grant, tenancy: Tenancy) -> None:
        self._gateway = gateway
        self._grant = grant
        self._tenancy = tenancy
        self._websocket = websocket
        self._socket = _StarletteSocket(websocket)
        self._dialect = RealtimeDialect(new_id, extensions=websocket.query_params.get("extensions") == "1")
        config = gateway.config
        probe: Callable[[], Probe] = websocket.scope.get("extensions", {}).get(PROBE_EXTENSION, Probe)
        self._outbox = Outbox(self._dialect, config.client_stall_s * NS_PER_S, probe)
        self._limits = Limits(
            config.input_bytes_per_second_max,
            config.call_minutes_max * MINUTE_NS,
            config.idle_minutes_max * MINUTE_NS,
        )

    async def serve(self) -> None:
        try:
            await self._serve()
        except RefusedError as error:
            kind = "server_error" if error.retry_after_s else "invalid_request_error"
            reason = error.code if error.code in _CLOSE_CODES else "refused"
            self._outbox.post(error_message(error.code, str(error), kind=kind, event_id=self._dialect.answered))
            await self._close(reason)
        except ClientEventError as error:  # what came with its secret is not what the service can do by now
            self._outbox.post(error_message(error.code, str(error), param=error.param))
            await self._close("refused")
        except SocketClosedError:
            pass
        except TimeoutError:
            await self._close("idle")
        except Exception as error:  # noqa: BLE001 - or the client would be left without a word of why
            _log.error("connection_failed", exc_info=error)
            await self._close(INTERNAL_ERROR)

    async def _serve(self) -> None:
        config = self._gateway.config
        settings = SessionSettings(
            model=self._websocket.query_params.get("model", "")[:NAME_CHARACTERS_MAX],
            turn_detection=TurnDetection(silence_duration_ms=config.silence_ms),
        )
        if self._grant.session is not None:
            settings = apply_patch(settings, self._grant.session, self._gateway.tools.tools)
        async with self._gateway.new_call(settings, tenancy=self._tenancy) as admitted:
            created = created_message(admitted.call, settings, admitted.resume_token, self._dialect)
            first = await self._first_command(admitted.call, created)
            if not isinstance(first, ask.SessionResume):
                self._tenancy.check_session(None)
                await self._converse(admitted, first)
                return
        await self._gateway.forget(admitted.call.session)
        self._dialect.answered = first.event_id
        async with self._gateway.resumed_call(
            first.token, tenancy=self._tenancy, responses=first.responses, epoch=first.epoch
        ) as admitted:
            self._dialect.answered = None
            self._dialect.transcription = admitted.call.conversation.settings.transcription
            items = [item_dict(item) for item in admitted.call.conversation.items]
            lost = admitted.history_lost
            self._outbox.post(resumed_message(admitted.call, admitted.resume_token, items, history_lost=lost))
            await self._converse(admitted, None)

    async def _first_command(self, call: Call, created: Message) -> ask.Command | None:
        """What answers `created` and is a command, or None where `call` ended before that came. Raises TimeoutError."""
        reading = asyncio.create_task(self._read_first(call, created))
        ending = asyncio.create_task(call.ended.wait())
        try:
            async with asyncio.timeout(self._limits.idle_ns_max / 1e9):
                await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            for task in (reading, ending):
                task.cancel()
            await asyncio.gather(reading, ending, return_exceptions=True)

    async def _read_first(self, call: Call, created: Message) -> ask.Command:
        """What is no command is answered and passed over."""
        await self._send_now(created)
        while True:
            text = await self._socket.receive()
            try:
                return ask.parse(text)
            except ClientEventError as error:
                call.client_failed(error.code)
                refusal = error_message(error.code, str(error), param=error.param, event_id=error.event_id)
                await self._send_now(refusal)

    async def _converse(self, admitted: Admitted, first: ask.Command | None) -> None:
        connection = RealtimeConnection(self._socket, admitted.call, self._outbox, self._dialect, self._limits)
        reason = await connection.serve(first)
        admitted.call.end(reason)
        await self._close(reason)

    async def _send_now(self, message: Message) -> None:
        self._outbox.post(message)
        await write_next(self._outbox, self._socket)

    async def _say_last_words(self, reason: str) -> None:
        """What is still queued, and where the session went."""
        if reason == "session_replaced" and self._dialect.extensions:
            self._outbox.post({"type": "session.replaced"})
        while self._outbox.waiting:
            await self._socket.send(await self._outbox.next())

    async def _close(self, reason: str) -> None:
        """Say why, unless the client is gone."""
        states = {self._websocket.client_state, self._websocket.application_state}
        if states == {WebSocketState.CONNECTED}:
            with suppress(RuntimeError, WebSocketDisconnect, TimeoutError, SocketClosedError):
                async with asyncio.timeout(CLOSE_S_MAX):
                    await self._say_last_words(reason)
                    await self._websocket.close(_CLOSE_CODES.get(reason, CLOSE_FAULT), reason)


async def _refuse(websocket: WebSocket, refusal: Refusal) -> None:
    await _deny(websocket, refusal.status, refusal.code, refusal.message, refusal.retry_after_s)


async def _deny(websocket: WebSocket, status: int, code: str, message: str, retry_after_s: int | None = None) -> None:
    """Refuse the handshake with an HTTP answer that says why."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s else {}
    body = {"error": {"type": kind, "code": code, "message": message, "retry_after_s": retry_after_s}}
    await websocket.send_denial_response(JSONResponse(body, status, headers=headers))
