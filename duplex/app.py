"""The HTTP application: routes, and nothing else."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from duplex.admission import RETRY_AFTER_S
from duplex.auth import Authority
from duplex.client_secrets import ClientSecrets
from duplex.events_endpoint import EventsEndpoint
from duplex.gateway import Gateway, is_session_id
from duplex.loopback_guard import LoopbackGuard
from duplex.neighbours import Neighbours
from duplex.operations import Operations
from duplex.pages import page_routes
from duplex.realtime.sideband import SidebandEndpoint
from duplex.realtime.websocket import RealtimeEndpoint
from duplex.sessions_endpoint import SessionsEndpoint
from duplex.telephony.routes import PROVEN_PATHS, phone_routes
from duplex.webrtc.endpoint import CallsEndpoint, refusal_response
from duplex.webrtc.secrets_endpoint import SecretsEndpoint

HEALTH_PATH = "/healthz"


def build_app(gateway: Gateway, neighbours: Neighbours | None = None) -> Starlette:
    """Routes over `gateway`. Metrics and events are for whoever may call where there is one tenant, else for operators;
    sessions for these, and for the tenant that they are of. `neighbours`: the gateways beside this one."""
    client_secrets = ClientSecrets(gateway.store)
    authority = Authority(gateway.config, client_secrets, gateway.directory)
    realtime = RealtimeEndpoint(gateway, authority)
    calls = CallsEndpoint(gateway, authority)
    sidebands = SidebandEndpoint(gateway, authority, calls.call_of, neighbours)
    events = EventsEndpoint(gateway.event_reader, authority, neighbours)
    sessions = SessionsEndpoint(Operations(gateway), authority)
    end_call = sessions.hang_up()
    minting = SecretsEndpoint(authority, client_secrets, gateway.tools.tools)

    async def health(_request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(_request: Request) -> Response:
        reason = gateway.not_ready()
        if reason is not None:
            body = {"status": "not_ready", "reason": reason, "gateway": gateway.replica}
            return JSONResponse(body, 503, headers={"Retry-After": str(RETRY_AFTER_S)})
        places = {"calls": gateway.calls, "calls_max": gateway.config.calls_max}
        return JSONResponse({"status": "ready", **places, "gateway": gateway.replica})

    async def converse(websocket: WebSocket) -> None:
        serves = sidebands if "call_id" in websocket.query_params else realtime
        await serves.serve(websocket)

    async def hang_up(request: Request) -> Response:
        is_session = is_session_id(request.path_params["call_id"])
        return await (end_call(request) if is_session else calls.hang_up(request))

    async def capabilities(request: Request) -> Response:
        refusal = await authority.call_refusal(request.headers)
        if refusal is not None:
            return refusal_response(refusal)
        return JSONResponse({"object": "capabilities", "voices": gateway.voices})

    async def metrics(request: Request) -> Response:
        refusal = authority.overview_refusal(request.headers)
        if refusal is not None:
            return JSONResponse({"error": {"code": refusal.code, "message": refusal.message}}, refusal.status)
        await gateway.measure()
        return PlainTextResponse(gateway.render_metrics(), media_type="text/plain; version=0.0.4")

    return Starlette(
        routes=[
            Route(HEALTH_PATH, health),
            Route("/readyz", ready),
            Route("/metrics", metrics),
            Route("/v1/capabilities", capabilities),
            Route("/v1/events", events.read),
            *sessions.routes(),
            WebSocketRoute("/v1/realtime", converse),
            Route("/v1/realtime/client_secrets", minting.mint, methods=["POST"]),
            Route("/v1/realtime/join_tokens", minting.mint_join_token, methods=["POST"]),
            Route("/v1/realtime/calls", calls.begin, methods=["POST"]),
            Route("/v1/realtime/calls/{call_id}", calls.hang_up, methods=["DELETE"]),
            Route("/v1/realtime/calls/{call_id}/hangup", hang_up, methods=["POST"]),
            *phone_routes(gateway, authority, client_secrets),
            *page_routes(),
        ],
        middleware=[*_loopback_guard(gateway), _cross_origin(authority)],
    )


class _CrossOrigin(CORSMiddleware):
    """Pages that may connect may read what they are answered."""

    def __init__(self, app: ASGIApp, authority: Authority) -> None:
        super().__init__(
            app,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Location", "Retry-After"],
        )
        self._authority = authority

    def is_allowed_origin(self, origin: str) -> bool:
        return self._authority.names_origin(origin)


def _cross_origin(authority: Authority) -> Middleware:
    return Middleware(_CrossOrigin, authority=authority)


def _loopback_guard(gateway: Gateway) -> list[Middleware]:
    """Where anybody may call who can reach the service."""
    if not gateway.config.is_private:
        return []
    return [Middleware(LoopbackGuard, open_paths=PROVEN_PATHS | {HEALTH_PATH})]
