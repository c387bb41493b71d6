"""The two kinds of WebSocket that a carrier is reached by: one that it has opened to us, and one that we open to it.

Rule
* Messages have at most `MESSAGE_BYTES_MAX` bytes; whoever sends a larger one has misunderstood, and is let go.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from duplex.realtime.connection import SocketClosedError, wire_bytes
from duplex.realtime.sockets import StarletteSocket, close
from duplex.telephony.carrier import CarrierError, Message

MESSAGE_BYTES_MAX = 64 << 10


class PhoneSocket(Protocol):
    """A carrier's WebSocket."""

    async def receive(self) -> Message:
        """The next message. Raises `SocketClosedError`, or `CarrierError` where it is too large."""
        ...

    async def send(self, message: Message) -> None:
        """Hand a message to the kernel. Raises `SocketClosedError`."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close it, unless it is closed."""
        ...


def checked(message: Message) -> Message:
    """`message`, which is not too large. Raises `CarrierError`."""
    if wire_bytes(message) > MESSAGE_BYTES_MAX:
        raise CarrierError("message_too_large", f"a message has at most {MESSAGE_BYTES_MAX} bytes here", fatal=True)
    return message


class CarriersSocket:
    """`PhoneSocket` of a carrier that has connected to us."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._socket = StarletteSocket(websocket)

    async def receive(self) -> Message:
        return checked(await self._socket.receive())

    async def send(self, message: Message) -> None:
        if isinstance(message, str):
            await self._socket.send(message)
            return
        try:
            await self._websocket.send_bytes(message)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise SocketClosedError from error

    async def close(self, code: int, reason: str) -> None:
        await close(self._websocket, code, reason)


class OwnSocket:
    """`PhoneSocket` of a carrier to which we have connected."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def receive(self) -> Message:
        try:
            return checked(await self._connection.recv())
        except ConnectionClosed as error:
            raise SocketClosedError from error

    async def send(self, message: Message) -> None:
        try:
            await self._connection.send(message)
        except ConnectionClosed as error:
            raise SocketClosedError from error

    async def close(self, code: int, reason: str) -> None:
        with suppress(ConnectionClosed):
            await self._connection.close(code, reason)
