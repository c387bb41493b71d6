"""The HTTP application: routes, and nothing else."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute

from duplex.auth import Authority
from duplex.gateway import RETRY_AFTER_S, Gateway
from duplex.realtime.websocket import RealtimeEndpoint


def build_app(gateway: Gateway) -> Starlette:
    """Routes over `gateway`. Metrics are for whoever may call."""
    authority = Authority(gateway.config)
    realtime = RealtimeEndpoint(gateway, authority)

    async def health(_request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(_request: Request) -> Response:
        reason = gateway.not_ready()
        if reason is not None:
            body = {"status": "not_ready", "reason": reason}
            return JSONResponse(body, 503, headers={"Retry-After": str(RETRY_AFTER_S)})
        return JSONResponse({"status": "ready", "calls": gateway.calls, "calls_max": gateway.config.calls_max})

    async def metrics(request: Request) -> Response:
        refusal = authority.refusal(request.headers)
        if refusal is not None:
            return JSONResponse({"error": {"code": refusal.code, "message": refusal.message}}, refusal.status)
        return PlainTextResponse(gateway.render_metrics(), media_type="text/plain; version=0.0.4")

    return Starlette(
        routes=[
            Route("/healthz", health),
            Route("/readyz", ready),
            Route("/metrics", metrics),
            WebSocketRoute("/v1/realtime", realtime.serve),
        ]
    )
