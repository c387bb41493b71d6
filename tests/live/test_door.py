"""Who may call, how many, and what those are told who may not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from websockets.exceptions import InvalidStatus

from tests.live.caller import calling
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

TOKEN = "a-token-of-ours"
PAGE = "https://pages.example"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"token": TOKEN, "calls_max": "2", "allowed_origins": f"{PAGE}|https://other.example"}
    with serving(tmp_path_factory.mktemp("door"), settings) as running:
        yield running


BEARER = {"Authorization": f"Bearer {TOKEN}"}


def refused(service: Service, **how: object) -> InvalidStatus:
    with pytest.raises(InvalidStatus) as raised, calling(service, **how):  # type: ignore[arg-type]
        pass
    return raised.value


def body_of(refusal: InvalidStatus) -> dict[str, object]:
    error: dict[str, object] = json.loads(refusal.response.body)["error"]
    return error


def test_the_right_token_opens_the_door(service: Service) -> None:
    with calling(service, headers=BEARER) as caller:
        assert caller.events[0]["type"] == "session.created"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_token"),
        ({"Authorization": "Bearer wrong"}, "invalid_token"),
        ({"Authorization": f"Basic {TOKEN}"}, "missing_token"),
        ({"Authorization": "Bearer "}, "missing_token"),
        ({"Authorization": f"Bearer {TOKEN}x"}, "invalid_token"),
    ],
)
def test_no_other_token_does(service: Service, headers: dict[str, str], code: str) -> None:
    refusal = refused(service, headers=headers)
    assert refusal.response.status_code == 401
    assert body_of(refusal)["code"] == code
    assert TOKEN not in str(body_of(refusal))


def test_the_token_is_never_taken_from_the_address(service: Service) -> None:
    assert refused(service, query=f"?token={TOKEN}&api_key={TOKEN}").response.status_code == 401


def test_browsers_give_the_token_as_a_subprotocol_and_get_ours_back(service: Service) -> None:
    offered = ["realtime", f"openai-insecure-api-key.{TOKEN}"]
    with calling(service, subprotocols=offered) as caller:
        assert caller.socket.subprotocol == "realtime"
    wrong = refused(service, subprotocols=["realtime", "openai-insecure-api-key.wrong"])
    assert wrong.response.status_code == 401


def test_pages_call_only_where_they_are_allowed(service: Service) -> None:
    for origin in (PAGE, f"http://{service.address}"):
        with calling(service, headers=BEARER, origin=origin):
            pass
    for origin in ("https://evil.example", "null", "http://[", f"{PAGE}.evil.example"):
        refusal = refused(service, headers=BEARER, origin=origin)
        assert (refusal.response.status_code, body_of(refusal)["code"]) == (403, "origin_not_allowed")


def test_figures_are_for_those_who_may_call(service: Service) -> None:
    assert service.get("/metrics").status == 401
    assert service.get("/metrics", **BEARER).status == 200
    assert service.get("/healthz").status == 200


def test_so_is_what_the_service_can_do(service: Service) -> None:
    assert service.get("/v1/capabilities").status == 401
    assert service.get("/v1/capabilities", **BEARER).json == {"object": "capabilities", "voices": []}


def test_the_call_over_the_limit_is_told_when_to_come_back(service: Service) -> None:
    with ExitStack() as calls:
        for _ in range(2):
            calls.enter_context(calling(service, headers=BEARER))
        refusal = refused(service, headers=BEARER)
        metrics = service.get("/metrics", **BEARER).body.decode()
    assert refusal.response.status_code == 503
    assert refusal.response.headers["Retry-After"] == "15"
    error = body_of(refusal)
    assert (error["type"], error["code"], error["retry_after_s"]) == ("server_error", "capacity_exceeded", 15)
    assert "2 lines" in str(error["message"])
    assert 'duplex_calls_refused_total{reason="capacity"} 1.0' in metrics


def test_a_call_that_ended_makes_room_at_once(service: Service) -> None:
    for _ in range(5):
        with calling(service, headers=BEARER), calling(service, headers=BEARER):
            pass
        service.wait_for_calls(0)


def test_the_token_is_in_no_log(service: Service) -> None:
    with calling(service, headers=BEARER):
        refused(service, headers={"Authorization": f"Bearer {TOKEN}x"})
    assert TOKEN not in "\n".join(service.lines)
