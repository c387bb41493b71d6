"""What a service without token and tenants serves: programs of this machine, and nobody whom a proxy or tunnel brings.

Theory of operation
    Such a service listens on a loopback address, where nobody else can come by themselves. A proxy or a tunnel on this
    machine opens it to the world all the same. That shows in the name that was asked for, which is none of a loopback
    address, or in what such programs add to a request.

Rules
* Where nothing is configured, a request that is not from here is refused before anything looks at it; but for paths
  that ask for a proof of their own, and for those that say nothing.
* A proxy that changes the name and adds nothing cannot be told from a program of this machine: only a token helps.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from duplex.auth import Refusal
from duplex.config import LOOPBACK_HOSTS
from duplex.realtime.sockets import refuse
from duplex.webrtc.endpoint import refusal_response

_ADDED_ON_THE_WAY = ("forwarded", "via", "x-real-ip", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto")
NOT_FROM_HERE = Refusal(
    403,
    "not_from_here",
    "this service has no token, and so is for programs of this machine alone, and for nobody who comes through a proxy "
    "or a tunnel: set DUPLEX_TOKEN, or DUPLEX_TENANTS_FILE, and start it again",
)


def is_from_here(headers: Mapping[str, str]) -> bool:
    """Whether a request with these (lower-case) headers was sent by a program of this machine, as far as that shows."""
    try:
        name = urlsplit(f"//{headers.get('host', '')}").hostname
    except ValueError:
        return False
    return name in LOOPBACK_HOSTS and not any(header in headers for header in _ADDED_ON_THE_WAY)


class LoopbackGuard:
    """`app`, for requests from here alone. `open_paths`: for anybody's."""

    def __init__(self, app: ASGIApp, open_paths: frozenset[str]) -> None:
        self._app = app
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in self._open_paths or is_from_here(Headers(scope=scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await refuse(WebSocket(scope, receive, send), NOT_FROM_HERE)
        else:
            await refusal_response(NOT_FROM_HERE)(scope, receive, send)
