"""Secrets for one call: how long, how often, how many, at which gateway; and the door that they open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import msgspec
import pytest
from pydantic import SecretStr

from duplex.auth import Authority, UnauthorizedError
from duplex.client_secrets import PREFIX, SECRETS_MAX, ClientSecrets, Grant, TooManySecretsError
from duplex.config import Config
from duplex.realtime.client_events import SessionPatch
from sessions.memory_store import Fault, MemorySessionStore
from sessions.store import StoreError

TOKEN = "a-token-of-ours"
PATCH = SessionPatch(instructions="Be brief.")


class Bench:
    """Two gateways over one store, whose clock stands, and which fails with `fault`."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.fault: Fault | None = None
        store = MemorySessionStore(lambda: self.now_ms, faults=lambda _operation: self.fault)
        self.one, self.other = ClientSecrets(store), ClientSecrets(store)
        config = Config(token=SecretStr(TOKEN))
        self.authority, self.other_authority = Authority(config, self.one), Authority(config, self.other)


def play(scenario: Callable[[Bench], Coroutine[None, None, None]]) -> None:
    asyncio.run(scenario(Bench()))


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_a_secret_is_spent_once_at_whichever_gateway_and_brings_its_settings() -> None:
    async def scenario(bench: Bench) -> None:
        secret = await bench.one.mint(10, Grant(PATCH))
        assert secret.startswith(PREFIX)
        found, spent = await bench.one.find(secret), await bench.other.spend(secret)
        assert found == spent
        assert spent is not None
        assert spent.session == PATCH
        assert spent.session.tools is msgspec.UNSET, "what was not set is not set by it"
        assert await bench.one.find(secret) is None
        assert await bench.one.spend(secret) is None

    play(scenario)


def test_no_two_are_alike_and_others_are_worth_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        assert await bench.one.mint(10, Grant(None)) != await bench.one.mint(10, Grant(None))
        assert await bench.one.find(PREFIX + "guess") is None
        bench.fault = Fault.UNAVAILABLE
        for other in ("guess", "ek_guess", "guess.guess"):
            assert await bench.one.find(other) is None, "for what is no secret the store is not asked"

    play(scenario)


def test_a_secret_expires() -> None:
    async def scenario(bench: Bench) -> None:
        secret = await bench.one.mint(10, Grant(None))
        bench.now_ms += 9_999
        assert await bench.one.find(secret) is not None
        bench.now_ms += 1
        assert await bench.one.find(secret) is None
        assert await bench.one.spend(secret) is None

    play(scenario)


def test_only_so_many_are_valid_at_a_time() -> None:
    async def scenario(bench: Bench) -> None:
        for _ in range(SECRETS_MAX // 2):
            await bench.one.mint(10, Grant(None))
            spent = await bench.other.mint(10, Grant(None))
        with pytest.raises(TooManySecretsError):
            await bench.one.mint(10, Grant(None))
        await bench.one.spend(spent)
        await bench.one.mint(10, Grant(None))
        bench.now_ms += 10_000
        await bench.one.mint(10, Grant(None))

    play(scenario)


def test_a_secret_opens_a_call_and_nothing_else() -> None:
    async def scenario(bench: Bench) -> None:
        headers = bearer(await bench.one.mint(600, Grant(PATCH)))
        refusal = bench.authority.refusal(headers)
        assert refusal is not None
        assert refusal.code == "invalid_token"
        assert await bench.authority.call_refusal(headers) is None
        assert await bench.other_authority.call_refusal(headers) is None, "to ask spends nothing"
        grant = await bench.other_authority.spend(headers)
        assert grant.session == PATCH
        spent = await bench.authority.call_refusal(headers)
        assert spent is not None
        assert spent.status == 401

    play(scenario)


def test_of_two_calls_that_are_let_in_with_one_secret_one_begins() -> None:
    async def scenario(bench: Bench) -> None:
        headers = bearer(await bench.one.mint(600, Grant(PATCH)))
        assert await bench.authority.call_refusal(headers) is None
        assert await bench.other_authority.call_refusal(headers) is None
        assert await bench.authority.spend(headers) == Grant(PATCH)
        with pytest.raises(UnauthorizedError) as late:
            await bench.other_authority.spend(headers)
        assert (late.value.refusal.status, late.value.refusal.code) == (401, "invalid_token")

    play(scenario)


def test_while_the_store_is_away_no_secret_is_good_and_the_token_is() -> None:
    async def scenario(bench: Bench) -> None:
        headers = bearer(await bench.one.mint(600, Grant(None)))
        bench.fault = Fault.UNAVAILABLE
        refusal = await bench.authority.call_refusal(headers)
        assert refusal is not None
        assert (refusal.status, refusal.code, refusal.retry_after_s) == (503, "store_unavailable", 1)
        with pytest.raises(UnauthorizedError) as away:
            await bench.authority.spend(headers)
        assert away.value.refusal == refusal
        assert await bench.authority.call_refusal(bearer(TOKEN)) is None
        assert await bench.authority.spend(bearer(TOKEN)) == Grant(None)
        with pytest.raises(StoreError):
            await bench.one.mint(10, Grant(None))

    play(scenario)


def test_the_token_still_opens_everything() -> None:
    async def scenario(bench: Bench) -> None:
        assert await bench.authority.call_refusal(bearer(TOKEN)) is None
        assert await bench.authority.spend(bearer(TOKEN)) == Grant(None)
        missing = await bench.authority.call_refusal({})
        assert missing is not None
        assert missing.code == "missing_token"

    play(scenario)


def test_without_a_token_a_secret_is_welcome_too() -> None:
    async def scenario(bench: Bench) -> None:
        authority = Authority(Config(), bench.one)
        headers = bearer(await bench.one.mint(600, Grant(PATCH)))
        assert await authority.call_refusal(headers) is None
        assert await authority.spend(headers) == Grant(PATCH)
        assert await authority.spend(headers) == Grant(None), "it is not needed there"
        assert await authority.spend({}) == Grant(None)

    play(scenario)


def test_where_nobody_keeps_secrets_none_is_good() -> None:
    async def scenario(_bench: Bench) -> None:
        authority = Authority(Config(token=SecretStr(TOKEN)))
        refusal = await authority.call_refusal(bearer(PREFIX + "x"))
        assert refusal is not None
        assert refusal.code == "invalid_token"
        with pytest.raises(UnauthorizedError):
            await authority.spend(bearer(PREFIX + "x"))

    play(scenario)


def test_a_secret_does_not_excuse_the_origin() -> None:
    async def scenario(bench: Bench) -> None:
        secret = bearer(await bench.one.mint(600, Grant(None)))
        headers = secret | {"origin": "https://evil.example", "host": "127.0.0.1"}
        refusal = await bench.authority.call_refusal(headers)
        assert refusal is not None
        assert refusal.code == "origin_not_allowed"

    play(scenario)
