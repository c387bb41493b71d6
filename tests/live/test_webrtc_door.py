"""A service with a token and its own certificate: secrets for one call, HTTPS, and a farewell at its end."""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.caller import calling
from tests.live.rtc_caller import SDP, offer_of_nobody, post, rtc_calling, until_free
from tests.live.service import HTTP_S_MAX, Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

TOKEN = "a-token-of-ours"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("webrtc-door"), {"token": TOKEN}) as running:
        yield running


async def secret_of(service: Service) -> dict[str, str]:
    answer = await post(service, "/v1/realtime/client_secrets", b"", **BEARER)
    assert answer.status == 200
    return {"Authorization": f"Bearer {answer.json['value']}"}


def test_a_secret_is_for_those_with_the_token_and_for_one_call(service: Service) -> None:
    async def run() -> None:
        secret = await secret_of(service)
        for headers in ({}, secret, {"Authorization": "Bearer ek_guess"}):
            answer = await post(service, "/v1/realtime/client_secrets", b"", **headers)
            assert answer.status == 401
        async with rtc_calling(service, **secret) as caller:
            offer = caller.peer.localDescription.sdp.encode()
            again = await post(service, "/v1/realtime/calls", offer, **SDP, **secret)
            assert (again.status, again.json["error"]["code"]) == (401, "invalid_token")
            assert (await post(service, "/v1/realtime/calls", offer, **SDP)).json["error"]["code"] == "missing_token"

    asyncio.run(run())


def test_a_secret_opens_a_websocket_too(service: Service) -> None:
    secret = asyncio.run(secret_of(service))
    with calling(service, headers=secret) as caller:
        assert caller.events[0]["type"] == "session.created"
    assert service.get("/metrics", **secret).status == 401


def test_neither_token_nor_secret_is_logged(service: Service) -> None:
    secret = asyncio.run(secret_of(service))
    with calling(service, headers=secret):
        pass
    text = "\n".join(service.lines)
    assert TOKEN not in text
    assert secret["Authorization"].removeprefix("Bearer ") not in text


def test_a_service_that_ends_says_so_and_the_session_can_be_resumed(tmp_path: Path) -> None:
    async def until_told(service: Service) -> str:
        async with rtc_calling(service) as caller:
            await caller.hear_frames(3)
            stopping = asyncio.create_task(asyncio.to_thread(service.stop))
            error = await caller.until("error")
            await stopping
            assert error["error"]["code"] == "service_shutdown"
            return str(caller.events[0]["session"]["resume_token"])

    async def resume(service: Service, token: str) -> None:
        async with rtc_calling(service) as caller:
            caller.send("session.resume", token=token)
            resumed = await caller.until("session.resumed")
            assert token.startswith(resumed["session"]["id"])

    with serving(tmp_path, {}) as service:
        token = asyncio.run(until_told(service))
    with serving(tmp_path, {}) as service:
        asyncio.run(resume(service, token))


def test_a_certificate_for_development_serves_https(tmp_path: Path) -> None:
    with serving(tmp_path, {"tls_dev": "true"}) as service:
        ready = next(line for line in service.lines if line.startswith("Ready:"))
        assert ready.startswith("Ready: https://127.0.0.1:")
        service.wait_for_line(lambda line: "a browser will warn" in line)
        service.wait_for_line(lambda line: f"--cacert {tmp_path / 'tls' / 'certificate.pem'}" in line)
        trusted = ssl.create_default_context(cafile=tmp_path / "tls" / "certificate.pem")
        address = ready.removeprefix("Ready: ").replace("127.0.0.1", "localhost")
        with urllib.request.urlopen(f"{address}/healthz", timeout=HTTP_S_MAX, context=trusted) as answer:
            assert answer.status == 200


def test_an_offer_that_nobody_follows_up_gives_its_place_back(service: Service) -> None:
    async def run() -> None:
        answer = await post(service, "/v1/realtime/calls", await offer_of_nobody(), **SDP, **BEARER)
        assert answer.status == 201
        await until_free(service)

    asyncio.run(run())
