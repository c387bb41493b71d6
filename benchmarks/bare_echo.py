"""`python -m benchmarks.bare_echo`: a WebSocket server that sends each message back, on the library of the service's
own and with its settings. Prints its port, and runs until it is interrupted."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import suppress
from typing import Any

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application."""
    assert scope["type"] == "websocket"
    await receive()
    await send({"type": "websocket.accept", "subprotocol": next(iter(scope["subprotocols"]), None)})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message.get("text"), "bytes": message.get("bytes")})


async def _serve() -> None:
    config = uvicorn.Config(
        echo,
        ws=WebSocketsSansIOProtocol,
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        lifespan="off",
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        await uvicorn.Server(config).serve([listening])


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve())
