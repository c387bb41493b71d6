"""The page that one talks on: static files, with headers that allow them nothing but this service.

Rules
* No script, style, font or request of another origin; the microphone for this page alone; never inside a frame.
"""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import FileResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER = Path(__file__).resolve().parents[1] / "web"

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class _Guarded:
    """`app` with the headers above on each of its answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        await self._app(scope, receive, send_with_headers)


def page_routes(folder: Path = FOLDER) -> list[BaseRoute]:
    """`/` and everything under `/web`; none where the page is not installed."""
    index = folder / "index.html"
    if not index.is_file():
        return []
    return [
        Route("/", _Guarded(FileResponse(index)), methods=["GET"]),
        # An application of its own, so that its refusals carry the headers too.
        Mount("/web", Starlette(routes=[Mount("/", StaticFiles(directory=folder))], middleware=[Middleware(_Guarded)])),
    ]
