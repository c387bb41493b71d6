"""`python -m benchmarks.bare_echo`: a WebSocket server that sends each message back, on the library and with the settings
of the service's own. Prints its port, and runs until it is interrupted."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Any

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

PORT_S_POLL = 0.02


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
        port=0,
        ws=WebSocketsSansIOProtocol,
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        lifespan="off",
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(PORT_S_POLL)
    sys.stdout.write(f"{server.servers[0].sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await serving


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve())
