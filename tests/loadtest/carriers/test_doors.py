"""How carriers come to a service, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from loadtest.carriers import doors as module
from loadtest.carriers.asterisk_channel import ChannelCall
from loadtest.carriers.doors import AsteriskDoor, AsteriskSwitch, TelnyxDoor, TwilioDoor, new_channel_call
from loadtest.carriers.effects import Send
from loadtest.carriers.media_stream import MediaStream
from loadtest.carriers.stream_dialects import WIDE
from loadtest.carriers.twiml import signature
from loadtest.errors import ConnectError, ServerViolation, TargetError, Unauthorised, Unreachable
from tests.loadtest.carriers.scripted_service import Kind, ScriptedService, serving

TOKEN = "secret-token"


async def open_and_look(door: Any) -> tuple[Any, Any]:
    async with door() as (socket, carrier):
        return socket, carrier


def through(kind: Kind, make: Callable[[str], Any]) -> tuple[ScriptedService, Any]:
    """What the service saw, and the carrier."""

    async def go() -> tuple[ScriptedService, Any]:
        async with serving(ScriptedService(kind=kind)) as service:
            _socket, carrier = await open_and_look(make(service.url))
            return service, carrier

    return asyncio.run(go())


def webhook(answer: str, status: HTTPStatus = HTTPStatus.OK) -> tuple[Callable[[], Awaitable[Any]], list[bytes]]:
    """Serves one request."""
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        seen.extend((head, await reader.readexactly(length)))
        body = answer.encode()
        writer.write(f"HTTP/1.1 {status.value} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())
        writer.write(body)
        writer.close()
        await writer.wait_closed()

    async def listen() -> asyncio.Server:
        return await asyncio.start_server(handle, "127.0.0.1", 0)

    return listen, seen


def place(server: asyncio.Server) -> str:
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_twilio_asks_the_webhook_and_connects_where_the_twiml_says() -> None:
    async def go() -> tuple[ScriptedService, list[bytes], str, MediaStream]:
        async with serving(ScriptedService()) as service:
            twiml = (
                f'<Response><Connect><Stream url="{service.url}/stream">'
                '<Parameter name="ticket" value="t-1"/></Stream></Connect></Response>'
            )
            listen, seen = webhook(twiml)
            server = await listen()
            async with server:
                _socket, carrier = await open_and_look(TwilioDoor(place(server), TOKEN))
            return service, seen, place_of(seen), carrier

    def place_of(seen: list[bytes]) -> str:
        host = next(line[6:] for line in seen[0].split(b"\r\n") if line.lower().startswith(b"host:"))
        return f"http://{host.decode()}/v1/telephony/twilio/voice"

    service, seen, url, carrier = asyncio.run(go())
    fields = {name: values[0] for name, values in parse_qs(seen[1].decode()).items()}
    assert set(fields) >= {"CallSid", "AccountSid", "From", "To"}
    assert f"x-twilio-signature: {signature(TOKEN, url, fields)}".lower() in seen[0].decode().lower()
    (request,) = service.requests
    assert request.path == "/stream"
    assert request.headers["X-Twilio-Signature"] == signature(TOKEN, f"{service.url}/stream")
    start = carrier.begin()[1]
    assert isinstance(start, Send)
    assert '"customParameters":{"ticket":"t-1"}' in str(start.message)
    assert fields["CallSid"] in str(start.message)


@pytest.mark.parametrize(
    ("answer", "status", "error", "text"),
    [
        ("<Response/>", HTTPStatus.OK, ServerViolation, "no <Connect><Stream>"),
        ('{"error": {"message": "no"}}', HTTPStatus.FORBIDDEN, Unauthorised, "403"),
        ("", HTTPStatus.SERVICE_UNAVAILABLE, ConnectError, "takes no more calls"),
    ],
)
def test_a_webhook_that_opens_no_stream(answer: str, status: HTTPStatus, error: type[Exception], text: str) -> None:
    async def go() -> None:
        listen, _seen = webhook(answer, status)
        async with await listen() as server:
            await open_and_look(TwilioDoor(place(server)))

    with pytest.raises(error, match=text):
        asyncio.run(go())


def test_no_webhook() -> None:
    with pytest.raises(Unreachable, match="no webhook"):
        asyncio.run(open_and_look(TwilioDoor("http://127.0.0.1:1")))


def test_the_stream_itself_needs_no_webhook() -> None:
    service, carrier = through("twilio", lambda url: TwilioDoor(f"{url}/x", TOKEN))
    assert service.requests[0].path == "/x"
    assert service.requests[0].headers["X-Twilio-Signature"] == signature(TOKEN, f"{service.url}/x")
    assert carrier.frame_samples == 160
    service, _carrier = through("twilio", TwilioDoor)
    assert service.requests[0].path == "/v1/telephony/twilio"
    assert "X-Twilio-Signature" not in service.requests[0].headers


def test_telnyx_is_known_by_its_token() -> None:
    service, carrier = through("telnyx", lambda url: TelnyxDoor(url, TOKEN, sound=WIDE))
    assert service.requests[0].path == "/v1/telephony/telnyx"
    assert service.requests[0].headers["x-telnyx-streaming-auth-token"] == TOKEN
    assert carrier.frame_samples == 320
    assert "x-telnyx-streaming-auth-token" not in through("telnyx", TelnyxDoor)[0].requests[0].headers


def test_asterisk_is_known_by_name_and_password_and_offers_its_subprotocol() -> None:
    service, _carrier = through("asterisk", lambda url: AsteriskDoor(f"{url}/a?ticket=t", "pbx:word"))
    (request,) = service.requests
    assert request.path == "/a?ticket=t"
    assert request.headers["Authorization"] == "Basic cGJ4OndvcmQ="
    assert request.headers["Sec-WebSocket-Protocol"] == "media"
    assert "Authorization" not in through("asterisk", AsteriskDoor)[0].requests[0].headers


def test_asterisk_wants_its_subprotocol_taken_up() -> None:
    with pytest.raises(ServerViolation, match="subprotocol 'media'"):
        through("twilio", AsteriskDoor)


@pytest.mark.parametrize("door", [TwilioDoor, TelnyxDoor, AsteriskDoor])
def test_addresses_that_cannot_be_used_are_found_at_once(door: Any, tmp_path: Any) -> None:
    with pytest.raises(TargetError, match="scheme"):
        door("ftp://a")
    with pytest.raises(TargetError, match="user name or password"):
        door("ws://me:word@a")
    with pytest.raises(TargetError, match="holds no certificates"):
        door("wss://a", certificates=tmp_path / "none")
    assert TOKEN not in repr(door("ws://a", TOKEN))


CALL = ChannelCall("conn1")


def test_a_channel_waits_for_the_service_to_connect_once() -> None:
    async def go() -> None:
        async with AsteriskSwitch("pbx:word") as switch:
            headers = {"Authorization": "Basic cGJ4OndvcmQ="}

            async def serve_call() -> None:
                async with switch.door(CALL) as (socket, carrier):
                    (start,) = carrier.begin()
                    assert isinstance(start, Send)
                    await socket.send(start.message)
                    assert await socket.recv() == "hello"

            call = asyncio.create_task(serve_call())
            await asyncio.sleep(0)
            url, subprotocols = f"{switch.url}/media/conn1", [Subprotocol("media")]
            async with connect(url, subprotocols=subprotocols, additional_headers=headers, proxy=None) as socket:
                assert socket.subprotocol == "media"
                assert '"connection_id":"conn1"' in str(await socket.recv())
                assert await refused(url, headers) == HTTPStatus.CONFLICT
                assert await refused(f"{switch.url}/media/conn2", headers) == HTTPStatus.NOT_FOUND
                assert await refused(url, {}) == HTTPStatus.UNAUTHORIZED
                await socket.send("hello")
                await call
            assert await refused(url, headers) == HTTPStatus.NOT_FOUND

    asyncio.run(go())


async def refused(url: str, headers: dict[str, str]) -> int:
    with pytest.raises(InvalidStatus) as caught:
        await connect(url, subprotocols=[Subprotocol("media")], additional_headers=headers, proxy=None)
    return caught.value.response.status_code


def test_a_channel_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_TIMEOUT_S", 0)

    async def go() -> None:
        async with AsteriskSwitch() as switch, switch.door(CALL):
            pass

    with pytest.raises(Unreachable, match="nobody has connected to /media/conn1"):
        asyncio.run(go())


def test_calls_have_ids_of_their_own() -> None:
    assert new_channel_call().connection_id != new_channel_call().connection_id
    assert TwilioDoor("ws://a").call.stream_id != TwilioDoor("ws://a").call.stream_id
