"""Secrets for one call: how long, how often, how many; and the door that they open."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from duplex.auth import Authority
from duplex.client_secrets import PREFIX, SECRETS_MAX, ClientSecrets, TooManySecretsError
from duplex.config import Config
from duplex.realtime.client_events import SessionPatch

S = 1_000_000_000
TOKEN = "a-token-of-ours"
PATCH = SessionPatch(instructions="Be brief.")


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_a_secret_is_spent_once_and_brings_its_settings() -> None:
    client_secrets = ClientSecrets(Clock())
    secret = client_secrets.mint(10, PATCH)
    assert secret.startswith(PREFIX)
    found, spent = client_secrets.find(secret), client_secrets.spend(secret)
    assert found == spent
    assert spent is not None
    assert spent.session == PATCH
    assert client_secrets.find(secret) is None
    assert client_secrets.spend(secret) is None


def test_no_two_are_alike_and_others_are_worth_nothing() -> None:
    client_secrets = ClientSecrets(Clock())
    assert client_secrets.mint(10, None) != client_secrets.mint(10, None)
    assert client_secrets.find(PREFIX + "guess") is None


def test_a_secret_expires() -> None:
    clock = Clock()
    client_secrets = ClientSecrets(clock)
    secret = client_secrets.mint(10, None)
    clock.ns = 10 * S - 1
    assert client_secrets.find(secret) is not None
    clock.ns = 10 * S
    assert client_secrets.find(secret) is None
    assert client_secrets.spend(secret) is None


def test_only_so_many_are_valid_at_a_time() -> None:
    clock = Clock()
    client_secrets = ClientSecrets(clock)
    for _ in range(SECRETS_MAX):
        client_secrets.mint(10, None)
    with pytest.raises(TooManySecretsError):
        client_secrets.mint(10, None)
    clock.ns = 10 * S
    client_secrets.mint(10, None)


def test_a_secret_opens_a_call_and_nothing_else() -> None:
    client_secrets = ClientSecrets()
    authority = Authority(Config(token=SecretStr(TOKEN)), client_secrets)
    headers = bearer(client_secrets.mint(600, PATCH))
    refusal = authority.refusal(headers)
    assert refusal is not None
    assert refusal.code == "invalid_token"
    assert authority.call_refusal(headers) is None
    assert authority.call_refusal(headers) is None, "to ask spends nothing"
    grant = authority.spend(headers)
    assert grant is not None
    assert grant.session == PATCH
    spent = authority.call_refusal(headers)
    assert spent is not None
    assert spent.status == 401


def test_the_token_still_opens_everything() -> None:
    authority = Authority(Config(token=SecretStr(TOKEN)), ClientSecrets())
    assert authority.call_refusal(bearer(TOKEN)) is None
    assert authority.spend(bearer(TOKEN)) is None
    missing = authority.call_refusal({})
    assert missing is not None
    assert missing.code == "missing_token"
    assert authority.spend({}) is None


def test_without_a_token_a_secret_is_welcome_too() -> None:
    client_secrets = ClientSecrets()
    authority = Authority(Config(), client_secrets)
    headers = bearer(client_secrets.mint(600, PATCH))
    assert authority.call_refusal(headers) is None
    assert authority.spend(headers) is not None


def test_a_secret_does_not_excuse_the_origin() -> None:
    client_secrets = ClientSecrets()
    authority = Authority(Config(token=SecretStr(TOKEN)), client_secrets)
    headers = bearer(client_secrets.mint(600, None)) | {"origin": "https://evil.example", "host": "127.0.0.1"}
    refusal = authority.call_refusal(headers)
    assert refusal is not None
    assert refusal.code == "origin_not_allowed"
