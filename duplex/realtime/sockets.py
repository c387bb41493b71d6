"""A WebSocket of the Realtime API: how it is refused, served to a connection, and closed.

Close codes: 1000 the call ended as asked; 1001 shutdown (clients reconnect on it); 1008 a limit or a rule;
1011 a fault of the service; 1013 the store is away or full, or a ping has no answer, try again later;
4001 another connection took the session; 4002 an operator ended the call; 4003 the session was deleted;
4004 the permission to call was revoked.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from duplex.auth import Refusal
from duplex.config import Config
from duplex.realtime.connection import Limits, Outbox, SocketClosedError

SUBPROTOCOL = "realtime"
MINUTE_NS = 60_000_000_000
CLOSE_S_MAX = 5  # for a client that does not even read its close frame

CLOSE_CODES = {
    "client_closed": 1000,
    "answering_machine": 1000,
    "caller_silent": 1000,
    "service_shutdown": 1001,
    "message_too_large": 1009,
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
    "client_gone": 1013,  # or so it seemed
    "refused": 1008,
}
CLOSE_FAULT = 1011


class StarletteSocket:
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


def limits_of(config: Config) -> Limits:
    """Those of a connection."""
    return Limits(
        config.input_bytes_per_second_max,
        config.call_minutes_max * MINUTE_NS,
        config.idle_minutes_max * MINUTE_NS,
    )


def subprotocol_of(websocket: WebSocket) -> str | None:
    """The one to agree on, where the client has offered it."""
    return SUBPROTOCOL if SUBPROTOCOL in websocket.scope.get("subprotocols", []) else None


async def say_goodbye(websocket: WebSocket, outbox: Outbox, reason: str) -> None:
    """Send what is still queued, and close with what `reason` means, unless the client is gone."""
    socket = StarletteSocket(websocket)
    with suppress(SocketClosedError, TimeoutError):
        async with asyncio.timeout(CLOSE_S_MAX):
            while outbox.waiting and is_open(websocket):
                await socket.send(await outbox.next())
            await close(websocket, CLOSE_CODES.get(reason, CLOSE_FAULT), reason)


async def close(websocket: WebSocket, code: int, reason: str) -> None:
    """Close it with these, unless it is closed, or its client takes nothing more."""
    if is_open(websocket):
        with suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await websocket.close(code, reason)


def is_open(websocket: WebSocket) -> bool:
    """Whether either side may still say something."""
    return {websocket.client_state, websocket.application_state} == {WebSocketState.CONNECTED}


async def refuse(websocket: WebSocket, refusal: Refusal) -> None:
    """Refuse the handshake of who may not ask."""
    await deny(websocket, refusal.status, refusal.code, refusal.message, refusal.retry_after_s)


async def deny(websocket: WebSocket, status: int, code: str, message: str, retry_after_s: int | None = None) -> None:
    """Refuse the handshake with an HTTP answer that says why."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s else {}
    body = {"error": {"type": kind, "code": code, "message": message, "retry_after_s": retry_after_s}}
    await websocket.send_denial_response(JSONResponse(body, status, headers=headers))
