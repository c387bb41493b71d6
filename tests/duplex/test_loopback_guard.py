"""Who is from here, and that a service without a token answers nobody else, at whichever address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse

from duplex.app import HEALTH_PATH, build_app
from duplex.config import Config
from duplex.gateway import Gateway
from duplex.loopback_guard import is_from_here
from duplex.pipeline import graph_of
from duplex.telephony.routes import PROVEN_PATHS
from sessions.memory_store import MemorySessionStore
from sessions.planner import ReplyDefaults
from tests.duplex.test_gateway import Deaf

HERE = "127.0.0.1:8080"
THERE: list[dict[str, str]] = [
    {"host": "voice.example.com"},
    {"host": HERE, "x-forwarded-for": "192.0.2.1"},
    {"host": HERE, "x-forwarded-host": "voice.example.com"},
    {"host": HERE, "x-forwarded-proto": "https"},
    {"host": HERE, "x-real-ip": "192.0.2.1"},
    {"host": HERE, "forwarded": "for=192.0.2.1"},
    {"host": HERE, "via": "1.1 tunnel"},
]


def app(folder: Path, **settings: Any) -> Starlette:
    config = Config(engine="scripted", data_dir=folder, **settings)
    store = MemorySessionStore(lambda: 0)
    return build_app(Gateway(config, graph_of(config), store, Deaf(), ReplyDefaults("Hi.", 10)))


def client(of: Starlette) -> TestClient:
    return TestClient(of, base_url=f"http://{HERE}")


@pytest.mark.parametrize("host", [HERE, "localhost", "LocalHost:80", "[::1]:8080"])
def test_a_program_of_this_machine_is_from_here(host: str) -> None:
    assert is_from_here({"host": host})


@pytest.mark.parametrize("headers", [*THERE, {}, {"host": ""}, {"host": "[::1"}, {"host": "127.0.0.1.example.com"}])
def test_whom_a_proxy_or_a_tunnel_brings_is_not(headers: dict[str, str]) -> None:
    assert not is_from_here(headers)


def leaves(routes: list[BaseRoute]) -> list[Route | WebSocketRoute]:
    """All of them; of what is mounted, one address."""
    found: list[Route | WebSocketRoute] = []
    for route in routes:
        assert isinstance(route, Route | WebSocketRoute | Mount)
        found.append(Route(f"{route.path}/x", route.app) if isinstance(route, Mount) else route)
    return found


@pytest.mark.parametrize("headers", THERE)
def test_without_a_token_nobody_else_is_answered_at_any_address(tmp_path: Path, headers: dict[str, str]) -> None:
    of = app(tmp_path)
    guarded = [route for route in leaves(of.routes) if route.path not in PROVEN_PATHS | {HEALTH_PATH}]
    assert len(guarded) > 10
    for route in guarded:
        path = route.path.replace("{call_id}", "x")
        if isinstance(route, WebSocketRoute):
            with pytest.raises(WebSocketDenialResponse) as refused, client(of).websocket_connect(path, headers=headers):
                pass
            answer: Any = refused.value
        else:
            answer = client(of).request(min(route.methods or {"GET"}), path, headers=headers)
        assert answer.status_code == 403, path
        error = answer.json()["error"]
        assert error["code"] == "not_from_here", path
        assert "DUPLEX_TOKEN" in error["message"]


@pytest.mark.parametrize("headers", THERE)
def test_what_says_nothing_or_asks_for_a_proof_is_for_anybody(tmp_path: Path, headers: dict[str, str]) -> None:
    one = client(app(tmp_path))
    assert one.get(HEALTH_PATH, headers=headers).json() == {"status": "alive"}
    webhook = one.post("/v1/telephony/twilio/voice", headers=headers)
    assert webhook.json()["error"]["code"] == "telephony_off"
    with pytest.raises(WebSocketDenialResponse) as refused:
        one.websocket_connect("/v1/telephony/telnyx", headers=headers).__enter__()
    assert refused.value.json()["error"]["code"] == "missing_ticket"


def test_programs_of_this_machine_are_answered(tmp_path: Path) -> None:
    one = client(app(tmp_path))
    assert one.get("/metrics").status_code == 200
    assert one.get("/v1/capabilities").status_code == 200


def test_where_there_is_a_token_that_is_what_counts(tmp_path: Path) -> None:
    one = client(app(tmp_path, token="right"))
    headers = THERE[0] | THERE[1]
    assert one.get("/v1/capabilities", headers=headers).status_code == 401
    assert one.get("/v1/capabilities", headers=headers | {"authorization": "Bearer right"}).status_code == 200
