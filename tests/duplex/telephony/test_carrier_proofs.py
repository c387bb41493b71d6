"""Which carriers have shown who they are by the time their socket is open."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from starlette.requests import Request
from starlette.websockets import WebSocket
from twilio.request_validator import RequestValidator
from websockets.asyncio.server import serve
from websockets.typing import Subprotocol

from duplex.auth import Authority
from duplex.client_secrets import Bounds, ClientSecrets, Grant
from duplex.config import Config
from duplex.gateway import Gateway
from duplex.pipeline import graph_of
from duplex.telephony.asterisk_endpoint import AsteriskEndpoint
from duplex.telephony.carrier import Started
from duplex.telephony.entrance import TELEPHONY, Entrance
from duplex.telephony.phone_call import Line
from duplex.telephony.telnyx_endpoint import TelnyxEndpoint
from duplex.telephony.twilio_endpoint import TwilioEndpoint
from sessions.memory_store import MemorySessionStore
from sessions.planner import ReplyDefaults
from tests.duplex.telephony.test_asterisk_endpoint import S_MAX, Pbx, asking
from tests.duplex.test_gateway import Deaf

SECRET, STREAM = "carriers-own", "ws://127.0.0.1:8080/v1/telephony/twilio"


class Watched(Entrance):
    """Notes who has come, and serves nobody."""

    known: bool | None = None

    async def receive(
        self, line: Line, admit: Callable[[Started], Awaitable[Grant]], *, is_known: bool = False
    ) -> None:
        self.known = is_known


class House:
    """A service with a secret of each carrier's."""

    def __init__(self, folder: Path, **more: Any) -> None:
        secret = folder / "secret"
        secret.write_text(SECRET)
        names = ("twilio_auth_token_file", "telnyx_token_file", "asterisk_password_file")
        settings: dict[str, Any] = dict.fromkeys(names, secret)
        url = "http://127.0.0.1:8080"
        self.config = config = Config(data_dir=folder, public_url=url, asterisk_user="pbx", **settings, **more)
        store = MemorySessionStore(lambda: 0)
        self.secrets = ClientSecrets(store)
        authority = Authority(config, self.secrets)
        gateway = Gateway(config, graph_of(config), store, Deaf(), ReplyDefaults("Hi.", 10))
        self.entrance = Watched(gateway, authority)
        self.doors: dict[str, TwilioEndpoint | TelnyxEndpoint | AsteriskEndpoint] = {
            "twilio": TwilioEndpoint(config, self.entrance, self.secrets),
            "telnyx": TelnyxEndpoint(config, self.entrance),
            "asterisk": AsteriskEndpoint(config, self.entrance, authority),
        }

    async def knows(self, carrier: str, headers: Mapping[str, str]) -> bool | None:
        """Whether it knows who comes with these headers; None: they were refused."""

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(_message: Any) -> None:
            pass

        scope: dict[str, Any] = {
            "type": "websocket",
            "path": "/",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "extensions": {"websocket.http.response": {}},
        }
        await self.doors[carrier].stream(WebSocket(scope, receive, send))
        return self.entrance.known


SIGNED = {"x-twilio-signature": RequestValidator(SECRET).compute_signature(STREAM, {})}
LOGIN = {"authorization": f"Basic {base64.b64encode(f'pbx:{SECRET}'.encode()).decode()}"}


@pytest.mark.parametrize(
    ("carrier", "headers", "known"),
    [
        ("twilio", SIGNED, True),
        ("twilio", {}, False),
        ("twilio", {"x-twilio-signature": "forged"}, None),
        ("telnyx", {"x-telnyx-streaming-auth-token": SECRET}, True),
        ("telnyx", {"x-telnyx-streaming-auth-token": "forged"}, None),
        ("asterisk", LOGIN, True),
        ("asterisk", {}, False),
        ("asterisk", {"authorization": "Basic Zm9yZ2Vk"}, None),
    ],
)
def test_who_has_shown_a_secret_of_the_carriers_is_known(
    tmp_path: Path, carrier: str, headers: dict[str, str], known: bool | None
) -> None:
    assert asyncio.run(House(tmp_path).knows(carrier, headers)) is known


def test_who_has_a_ticket_alone_is_let_in_and_not_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        ticket = await house.secrets.mint(60, Grant(None, bounds=Bounds(TELEPHONY)))
        assert await house.knows("telnyx", {"x-telnyx-streaming-auth-token": ticket}) is False

    asyncio.run(scenario())


def test_a_channel_that_the_service_has_connected_to_is_known(tmp_path: Path) -> None:
    async def nothing() -> None:
        pass

    async def scenario() -> None:
        pbx = Pbx(nothing)
        async with asyncio.timeout(S_MAX), serve(pbx.stay, "127.0.0.1", 0, subprotocols=[Subprotocol("media")]) as one:
            url = f"ws://127.0.0.1:{next(iter(one.sockets)).getsockname()[1]}"
            house = House(tmp_path, asterisk_urls=(url,))
            asterisk = house.doors["asterisk"]
            assert isinstance(asterisk, AsteriskEndpoint)
            assert (await asterisk.begin(asking(f"{url}/media/x", "none"))).status_code == 201
            await pbx.left.wait()
        assert house.entrance.known is True

    asyncio.run(scenario())


def announcing(form: Mapping[str, str]) -> Request:
    path, body = "/v1/telephony/twilio/voice", urlencode(form).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    signed = RequestValidator(SECRET).compute_signature(f"http://127.0.0.1:8080{path}", form)
    headers = {"content-type": "application/x-www-form-urlencoded", "x-twilio-signature": signed}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "server": ("127.0.0.1", 8080),
    }
    return Request(scope, receive)


@pytest.mark.parametrize(
    ("form", "bounds"),
    [
        ({"From": "+15550100", "CallSid": "CA01"}, Bounds(TELEPHONY, caller="+15550100", call="CA01")),
        ({"CallSid": ""}, Bounds(TELEPHONY)),
    ],
)
def test_a_ticket_of_the_webhook_is_for_the_call_that_twilio_announces(
    tmp_path: Path, form: dict[str, str], bounds: Bounds
) -> None:
    async def scenario() -> None:
        house = House(tmp_path)
        twilio = house.doors["twilio"]
        assert isinstance(twilio, TwilioEndpoint)
        answer = await twilio.voice(announcing(form))
        parameter = ElementTree.fromstring(bytes(answer.body)).find("Connect/Stream/Parameter")
        assert parameter is not None
        grant = await house.secrets.spend(parameter.attrib["value"])
        assert grant is not None
        assert grant.bounds == bounds

    asyncio.run(scenario())
