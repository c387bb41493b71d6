"""Whom a tenant's key lets in, and the tokens that it makes: bound, short, spent once, and told to nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message
from structlog.testing import capture_logs

from duplex.auth import Authority, UnauthorizedError
from duplex.client_secrets import PREFIX, Bounds, ClientSecrets, Grant, TooManySecretsError
from duplex.config import Config
from duplex.tenant_directory import TenantDirectory
from duplex.tenants import DEFAULT_TENANT, Permission, key_digest
from duplex.webrtc import secrets_endpoint
from duplex.webrtc.secrets_endpoint import SecretsEndpoint
from sessions.memory_store import MemorySessionStore
from tests.duplex.test_tenants import KEY, OTHER_KEY, TWO, replace

PAGE = "https://acme.example"
ACME = Permission("acme", key_digest(KEY))
OPERATOR = "of-an-operator"


class Bench:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "tenants.toml"
        replace(self.path, TWO)
        self.now_ms = 1_000_000
        self.store = MemorySessionStore(lambda: self.now_ms)
        self.directory = TenantDirectory(self.path)
        self.secrets = ClientSecrets(self.store)
        config = Config(tenants_file=self.path, operator_token=SecretStr(OPERATOR))
        self.authority = Authority(config, self.secrets, self.directory)
        self.endpoint = SecretsEndpoint(self.authority, self.secrets)

    def rewrite(self, text: str) -> None:
        replace(self.path, text)
        self.directory.look()

    async def mint(self, key: str = KEY, **wanted: Any) -> dict[str, Any]:
        body = json.dumps({"transport": "websocket"} | wanted).encode()
        answer = await self.endpoint.mint_join_token(_request(key, body))
        return body_of(answer) | {"status": answer.status_code}

    async def code(self, headers: dict[str, str], transport: Any = "websocket") -> str | None:
        refusal = await self.authority.call_refusal(headers, transport)
        return refusal.code if refusal else None


def _request(key: str, body: bytes) -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    headers = [(b"authorization", f"Bearer {key}".encode())]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


def body_of(answer: Response) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(bytes(answer.body))
    return body


def bearer(token: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", "host": "service.example", **more}


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[Bench], Coroutine[None, None, None]]], None]:
    return lambda scenario: asyncio.run(scenario(Bench(tmp_path)))


Play = Callable[[Callable[[Bench], Coroutine[None, None, None]]], None]


def test_a_key_opens_calls_of_its_tenant(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        assert await bench.authority.permit(bearer(KEY)) == ACME
        assert (await bench.authority.spend(bearer(OTHER_KEY))).permission.tenant == "other"
        subprotocol = {"sec-websocket-protocol": f"realtime, openai-insecure-api-key.{KEY}"}
        assert await bench.authority.permit(subprotocol) == ACME
        assert await bench.code({}) == "missing_token"
        assert await bench.code(bearer("dk_guess")) == "invalid_token"
        assert await bench.code(bearer(key_digest(KEY))) == "invalid_token"

    play(scenario)


def test_pages_are_their_tenants(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        assert await bench.code(bearer(KEY, origin=PAGE)) is None
        assert await bench.code(bearer(OTHER_KEY, origin=PAGE)) == "origin_not_allowed"
        assert await bench.code(bearer(KEY, origin="https://evil.example")) == "origin_not_allowed"
        assert await bench.code({"origin": PAGE, "host": "service.example"}) == "missing_token"
        assert bench.authority.names_origin(PAGE)
        assert not bench.authority.names_origin("https://evil.example")

    play(scenario)


def test_while_permissions_are_unknown_nobody_is_let_in(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        token = (await bench.mint())["value"]
        bench.rewrite("[[")
        assert await bench.code(bearer(KEY)) == await bench.code(bearer(token)) == "permissions_unavailable"
        bench.rewrite(TWO)
        assert await bench.code(bearer(KEY)) == await bench.code(bearer(token)) == None  # noqa: E711

    play(scenario)


def test_what_all_have_in_common_is_for_operators(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        refusal = bench.authority.overview_refusal(bearer(KEY))
        assert refusal is not None
        assert refusal.code == "invalid_token"
        assert bench.authority.overview_refusal(bearer(OPERATOR)) is None
        assert bench.authority.scope(bearer(OPERATOR)) is None
        assert bench.authority.scope(bearer(KEY)) == "acme"
        with pytest.raises(UnauthorizedError):
            bench.authority.scope(bearer("dk_guess"))
        alone = Authority(Config(token=SecretStr("t"), operator_token=SecretStr(OPERATOR)))
        assert alone.overview_refusal(bearer("t")) is None
        with pytest.raises(UnauthorizedError):
            alone.scope(bearer("t"))

    play(scenario)


def test_a_join_token_is_spent_by_one_call(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        made = await bench.mint(session={"instructions": "Be brief."})
        assert (made["status"], made["transport"], made["value"][: len(PREFIX)]) == (200, "websocket", PREFIX)
        headers = bearer(made["value"])
        assert await bench.authority.permit(headers, "websocket") == ACME
        spent = await asyncio.gather(
            *(bench.authority.spend(headers, "websocket") for _ in range(3)), return_exceptions=True
        )
        granted = [one for one in spent if isinstance(one, Grant)]
        assert len(granted) == 1
        assert granted[0].permission == ACME
        assert granted[0].session is not None
        assert await bench.code(headers) == "invalid_token"

    play(scenario)


def test_it_is_worth_nothing_otherwise_than_it_was_made_for(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        token = (await bench.mint(transport="webrtc", origin=PAGE))["value"]
        assert await bench.code(bearer(token, origin=PAGE), "websocket") == "transport_not_allowed"
        assert await bench.code(bearer(token), "webrtc") == "origin_not_allowed"
        assert await bench.code(bearer(token, origin="https://service.example"), "webrtc") == "origin_not_allowed"
        assert await bench.code(bearer(token, origin=PAGE), "webrtc") is None, "no refusal has spent it"
        assert bench.authority.refusal(bearer(token)) is not None, "it makes no other, and shows nothing"
        assert (await bench.mint(token))["status"] == 401
        one = (await bench.mint(resume="sess_1"))["value"]
        assert (await bench.authority.spend(bearer(one), "websocket")).bounds == Bounds("websocket", None, "sess_1")

    play(scenario)


def test_it_lasts_a_minute_at_most(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        assert (await bench.mint(seconds=61))["status"] == 400
        token = (await bench.mint())["value"]
        bench.now_ms += 59_999
        assert await bench.code(bearer(token)) is None
        bench.now_ms += 1
        assert await bench.code(bearer(token)) == "invalid_token"

    play(scenario)


def test_it_is_worth_nothing_once_its_key_was_revoked(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        token = (await bench.mint())["value"]
        bench.rewrite(TWO.replace(key_digest(KEY), key_digest("dk_next")))
        assert await bench.code(bearer(token)) == "invalid_token"

    play(scenario)


def test_no_tenant_uses_up_anothers_room(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        monkeypatch.setattr("duplex.client_secrets.SECRETS_MAX", 2)
        for _ in range(2):
            await bench.secrets.mint(60, Grant(None, ACME))
        with pytest.raises(TooManySecretsError):
            await bench.secrets.mint(60, Grant(None, ACME))
        await bench.secrets.mint(60, Grant(None, Permission("other")))
        await bench.secrets.mint(60, Grant(None, Permission(DEFAULT_TENANT)))

    play(scenario)


def test_what_cannot_be_read_makes_no_token(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        assert (await bench.mint(transport="pigeon"))["status"] == 400
        assert (await bench.mint(unknown=1))["status"] == 400
        assert secrets_endpoint.ORIGIN_CHARACTERS_MAX < 1_000
        assert (await bench.mint(origin="x" * 1_000))["status"] == 400

    play(scenario)


def test_neither_keys_nor_tokens_are_logged_or_kept(play: Play) -> None:
    async def scenario(bench: Bench) -> None:
        with capture_logs() as logs:
            token = (await bench.mint())["value"]
            for headers in (bearer(KEY), bearer(token), bearer("dk_guess-of-a-key")):
                await bench.code(headers)
            await bench.authority.spend(bearer(token), "websocket")
            bench.rewrite("[[" + KEY)
            bench.rewrite(TWO)
        kept = repr(bench.store._secrets) + repr(vars(bench.directory.tenants)) + json.dumps(logs, default=repr)
        for secret in (KEY, token, "dk_guess-of-a-key"):
            assert secret not in kept

    play(scenario)
