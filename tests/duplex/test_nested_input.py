"""JSON that is nested without end is bad input like any other, wherever it comes from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from starlette.requests import Request
from starlette.types import Message

from duplex.auth import Authority
from duplex.client_secrets import ClientSecrets
from duplex.config import Config
from duplex.realtime import client_events as ask
from duplex.realtime.client_events import ClientEventError, ItemBody
from duplex.realtime.session_config import item_of
from duplex.webrtc.endpoint import SESSION_BYTES_MAX, _patch_of
from duplex.webrtc.rtp import OfferError
from duplex.webrtc.secrets_endpoint import SecretsEndpoint

NESTED = "[" * (SESSION_BYTES_MAX // 4)


def an_event() -> None:
    ask.parse('{"type": "session.update", "unknown": ' + NESTED)


def arguments_of_a_call() -> None:
    item_of(ItemBody("function_call", call_id="call_1", name="look", arguments='{"a": ' + NESTED[:5_000]), "item_1")


def a_session_beside_an_offer() -> None:
    _patch_of('{"unknown": ' + NESTED)


@pytest.mark.parametrize("read", [an_event, arguments_of_a_call, a_session_beside_an_offer])
def test_it_is_refused(read: Callable[[], None]) -> None:
    with pytest.raises((ClientEventError, OfferError)):
        read()


def test_it_makes_no_client_secret() -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b'{"unknown": ' + NESTED.encode()}

    endpoint = SecretsEndpoint(Authority(Config()), ClientSecrets())
    answer = asyncio.run(endpoint.mint(Request({"type": "http", "method": "POST", "headers": []}, receive)))
    assert (answer.status_code, json.loads(bytes(answer.body))["error"]["code"]) == (400, "invalid_value")
