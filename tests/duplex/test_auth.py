"""Who is let in: by token, and by the page that asks."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.auth import Authority, UnauthorizedError
from duplex.client_secrets import Bounds, ClientSecrets, Grant
from duplex.config import load
from duplex.tenant_directory import TenantDirectory
from sessions.memory_store import MemorySessionStore
from tests.duplex.test_tenants import KEY, TWO, replace

HOST = "127.0.0.1:8080"


def authority(**settings: str) -> Authority:
    return Authority(load({f"DUPLEX_{name.upper()}": value for name, value in settings.items()}))


def code(of: Authority, **headers: str) -> str | None:
    refusal = of.refusal({"host": HOST} | {name.replace("_", "-"): value for name, value in headers.items()})
    return refusal.code if refusal else None


GUARDED = authority(token="right")
OPEN = authority()


@pytest.mark.parametrize("header", ["Bearer right", "bearer right", "BEARER  right "])
def test_the_right_token(header: str) -> None:
    assert code(GUARDED, authorization=header) is None


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("", "missing_token"),
        ("right", "missing_token"),
        ("Bearer", "missing_token"),
        ("Bearer ", "missing_token"),
        ("Basic right", "missing_token"),
        ("Bearer wrong", "invalid_token"),
        ("Bearer righ", "invalid_token"),
        ("Bearer right right", "invalid_token"),
        ("Bearer ríght", "invalid_token"),
        ("Bearer   ", "invalid_token"),
    ],
)
def test_any_other(header: str, why: str) -> None:
    refusal = GUARDED.refusal({"host": HOST, "authorization": header})
    assert refusal is not None
    assert (refusal.status, refusal.code) == (401, why)
    assert "right" not in refusal.message


@given(st.text(alphabet=st.characters(max_codepoint=255)))
def test_no_other_text_is_the_token(text: str) -> None:
    given_token = text.strip()
    assert (code(GUARDED, authorization=f"Bearer {text}") is None) == (given_token == "right")


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(given_token: bytes, wanted: bytes) -> bool:
        compared.append((given_token, wanted))
        return given_token == wanted

    monkeypatch.setattr(secrets, "compare_digest", compare)
    code(GUARDED, authorization="Bearer wrong")
    code(GUARDED, authorization="Bearer right")
    assert compared == [(b"wrong", b"right"), (b"right", b"right")]


def test_browsers_give_it_as_a_subprotocol() -> None:
    assert code(GUARDED, sec_websocket_protocol="realtime, openai-insecure-api-key.right") is None
    assert code(GUARDED, sec_websocket_protocol="realtime, openai-insecure-api-key.wrong") == "invalid_token"
    assert code(GUARDED, sec_websocket_protocol="realtime") == "missing_token"


def test_the_header_goes_first() -> None:
    both = {"authorization": "Bearer wrong", "sec_websocket_protocol": "openai-insecure-api-key.right"}
    assert code(GUARDED, **both) == "invalid_token"


def test_without_a_token_everybody_here_may_call() -> None:
    assert code(OPEN) is None
    assert code(OPEN, authorization="Bearer anything") is None


@pytest.mark.parametrize("origin", [f"http://{HOST}", f"https://{HOST}"])
def test_pages_of_this_host_may_call(origin: str) -> None:
    assert code(OPEN, origin=origin) is None


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://127.0.0.1:9090",
        "http://127.0.0.1",
        "null",
        "",
        "http://[",
        f"http://user@{HOST}",
        f"{HOST}",
    ],
)
def test_pages_of_others_may_not(origin: str) -> None:
    refusal = OPEN.refusal({"host": HOST, "origin": origin})
    assert refusal is not None
    assert (refusal.status, refusal.code) == (403, "origin_not_allowed")


def test_a_page_without_a_host_to_compare_may_not() -> None:
    assert OPEN.refusal({"origin": "null"}) is not None


def test_a_name_that_was_made_to_point_here_is_not_this_host() -> None:
    rebound = {"host": "evil.example:8080", "origin": "http://evil.example:8080"}
    assert code(OPEN, **rebound) == "origin_not_allowed"
    assert code(GUARDED, **rebound, authorization="Bearer right") is None, "the token tells them apart"
    assert code(OPEN, host="localhost:8080", origin="http://localhost:8080") is None
    assert code(OPEN, host="[::1]:8080", origin="http://[::1]:8080") is None


def test_an_allowed_page_may_call_exactly_as_it_was_named() -> None:
    some = authority(allowed_origins="https://a.example|https://b.example:444")
    assert code(some, origin="https://a.example") is None
    assert code(some, origin="https://b.example:444") is None
    for other in ("http://a.example", "https://a.example:444", "https://b.example", "https://A.example", ""):
        assert code(some, origin=other) == "origin_not_allowed"


def test_the_page_is_judged_before_the_token() -> None:
    assert code(GUARDED, origin="https://evil.example", authorization="Bearer right") == "origin_not_allowed"


OPERATED = authority(token="right", operator_token="op")


def operator_code(of: Authority, **headers: str) -> str | None:
    refusal = of.operator_refusal({"host": HOST} | {name.replace("_", "-"): value for name, value in headers.items()})
    return refusal.code if refusal else None


def test_an_operator_has_a_token_of_their_own() -> None:
    assert operator_code(OPERATED, authorization="Bearer op") is None
    assert operator_code(OPERATED, authorization="Bearer right") == "invalid_token"
    assert operator_code(OPERATED) == "missing_token"
    assert code(OPERATED, authorization="Bearer op") == "invalid_token", "which makes no calls"


@pytest.mark.parametrize("of", [OPEN, GUARDED])
def test_without_a_token_of_their_own_nobody_is_an_operator(of: Authority) -> None:
    assert [operator_code(of, authorization=f"Bearer {given}") for given in ("right", "op", "None")] == [
        "operations_off"
    ] * 3
    assert operator_code(of) == "operations_off"


def test_an_operators_token_counts_in_its_header_and_from_allowed_pages_alone() -> None:
    assert operator_code(OPERATED, sec_websocket_protocol="openai-insecure-api-key.op") == "missing_token"
    evil = {"authorization": "Bearer op", "origin": "https://evil.example"}
    assert operator_code(OPERATED, **evil) == "origin_not_allowed"


def test_a_client_secret_makes_no_operator() -> None:
    issued = ClientSecrets(MemorySessionStore(lambda: 0))
    of = Authority(load({"DUPLEX_TOKEN": "right", "DUPLEX_OPERATOR_TOKEN": "op"}), issued)
    secret = asyncio.run(issued.mint(60, Grant(None)))
    assert operator_code(of, authorization=f"Bearer {secret}") == "invalid_token"
    assert asyncio.run(issued.find(secret)) is not None


@pytest.mark.parametrize("settings", [{}, {"token": "right"}])
def test_a_ticket_is_a_client_secret_or_a_key_and_nothing_else(settings: dict[str, str]) -> None:
    async def scenario() -> None:
        issued = ClientSecrets(MemorySessionStore(lambda: 0))
        config = load({f"DUPLEX_{name.upper()}": value for name, value in settings.items()})
        of = Authority(config, issued)
        ticket = await issued.mint(60, Grant(None, bounds=Bounds("telephony")))
        assert (await of.spend_ticket(ticket, "telephony")).bounds.transport == "telephony"
        for used in (ticket, "guess", ""):
            with pytest.raises(UnauthorizedError):
                await of.spend_ticket(used, "telephony")
        other = await issued.mint(60, Grant(None, bounds=Bounds("webrtc")))
        with pytest.raises(UnauthorizedError) as refused:
            await of.spend_ticket(other, "telephony")
        assert refused.value.refusal.code == "transport_not_allowed"
        if settings:
            assert (await of.spend_ticket("right", "telephony")).session is None

    asyncio.run(scenario())


def test_with_tenants_a_page_that_may_not_ask_is_told_that_and_nothing_of_keys(tmp_path: Path) -> None:
    replace(tmp_path / "tenants.toml", TWO)
    guarded = Authority(load({}), None, TenantDirectory(tmp_path / "tenants.toml"))
    assert code(guarded, authorization=f"Bearer {KEY}") is None
    assert code(guarded) == "missing_token"
    assert code(guarded, authorization="Bearer dk_x") == "invalid_token"
    for key in ("", "Bearer dk_x", f"Bearer {KEY}"):
        assert code(guarded, authorization=key, origin="https://evil.example") == "origin_not_allowed"
