"""Who may call by telephone, at a service that has carriers: by signatures, tickets, tokens and passwords."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import Iterator, Mapping
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as connect_sync
from websockets.typing import Subprotocol

from duplex.telephony.twiml import signature
from loadtest.carriers.asterisk_channel import AsteriskChannel, ChannelCall
from loadtest.carriers.media_stream import MediaStream
from loadtest.carriers.stream_dialects import TELNYX, TWILIO, StreamCall
from tests.live.phone import Phone, call, speaking
from tests.live.service import EVENT_S_MAX, Answer, Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

AUTH_TOKEN, TELNYX_TOKEN, PASSWORD = "twilios-secret", "telnyxs-secret", "asterisks-secret"
VOICE, STATUS = "/v1/telephony/twilio/voice", "/v1/telephony/twilio/status"
FORM = {"CallSid": "CA01", "From": "+15550100", "To": "+15550199"}
QUESTION = (300, 1_000)
ANSWERED_MS = 400


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def pbx_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, pbx_port: int) -> Iterator[Service]:
    folder, port = tmp_path_factory.mktemp("doors"), free_port()
    secrets = {"twilio_auth_token": AUTH_TOKEN, "telnyx_token": TELNYX_TOKEN, "asterisk_password": PASSWORD}
    for name, secret in secrets.items():
        (folder / name).write_text(f"{secret}\n", encoding="utf-8")
    settings = {f"{name}_file": str(folder / name) for name in secrets}
    settings |= {"public_url": f"http://127.0.0.1:{port}", "asterisk_user": "duplex"}
    settings |= {"asterisk_urls": f"ws://127.0.0.1:{pbx_port}", "phone_greeting": "Hello, who is there?"}
    with serving(folder / "data", settings, port=port, engine="synthetic") as running:
        yield running


def post(service: Service, path: str, form: Mapping[str, str], *, token: str = AUTH_TOKEN) -> Answer:
    signed = signature(token, f"http://{service.address}{path}", {name: [value] for name, value in form.items()})
    headers = {"Content-Type": "application/x-www-form-urlencoded", "X-Twilio-Signature": signed}
    return service.send("POST", path, urlencode(form).encode(), headers)


def stream_of(answer: Answer) -> tuple[str, dict[str, str]]:
    stream = ElementTree.fromstring(answer.body).find("Connect/Stream")
    assert stream is not None
    return stream.attrib["url"], {each.attrib["name"]: each.attrib["value"] for each in stream.findall("Parameter")}


def is_answered(url: str, phone: Phone, headers: Mapping[str, str] | None = None) -> None:
    """The caller says nothing, and hears the greeting."""
    call(url, phone, lambda: phone.loud_ms > ANSWERED_MS, headers=headers)
    assert phone.loud_ms > ANSWERED_MS
    assert not phone.complaints


def refused_code(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refused, connect_sync(url, additional_headers=headers, proxy=None):
        pass
    response = refused.value.response
    code: str = json.loads(response.body or b"{}")["error"]["code"]
    return response.status_code, code


def test_a_call_that_twilio_announces_is_greeted_and_answered(service: Service) -> None:
    answer = post(service, VOICE, FORM)
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, "text/xml")
    url, parameters = stream_of(answer)
    assert url == f"ws://{service.address}/v1/telephony/twilio"
    signed = {"X-Twilio-Signature": signature(AUTH_TOKEN, url, {})}
    phone = Phone(MediaStream(StreamCall(parameters=parameters), TWILIO), speaking())
    is_answered(url, phone, signed)
    again = Phone(MediaStream(StreamCall(parameters=parameters), TWILIO), speaking())
    call(url, again, lambda: False)
    assert again.closed == (1008, "invalid_ticket"), "a ticket is good for one call"
    assert parameters["ticket"] not in "\n".join(service.lines)


@pytest.mark.parametrize("parameters", [{}, {"ticket": "ek_0123456789abcdef.guess"}, {"ticket": "x"}])
def test_a_stream_without_a_good_ticket_is_closed(service: Service, parameters: dict[str, str]) -> None:
    phone = Phone(MediaStream(StreamCall(parameters=parameters), TWILIO), speaking(QUESTION))
    call(f"ws://{service.address}/v1/telephony/twilio", phone, lambda: False)
    assert phone.closed == (1008, "invalid_ticket" if parameters else "missing_ticket")
    assert not phone.heard


def test_twilio_agent_connect_16_both_gates_want_twilios_signature(service: Service) -> None:
    forged = post(service, VOICE, FORM, token="another")
    assert (forged.status, forged.json["error"]["code"]) == (403, "invalid_signature")
    url = f"ws://{service.address}/v1/telephony/twilio"
    assert refused_code(url, {"X-Twilio-Signature": "forged"}) == (403, "invalid_signature")


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b"{}", 415),
        ("application/x-www-form-urlencoded", b"\xff", 400),
        ("application/x-www-form-urlencoded", b"&".join(b"a=1" for _ in range(300)), 400),
        ("application/x-www-form-urlencoded", b"a" * 70_000, 413),
    ],
)
def test_what_is_no_form_is_refused(service: Service, kind: str, body: bytes, status: int) -> None:
    assert service.send("POST", VOICE, body, {"Content-Type": kind}).status == status


def test_what_twilio_says_of_a_stream_is_written_down(service: Service) -> None:
    since = len(service.lines)
    assert post(service, STATUS, {"StreamEvent": "stream-error", "StreamError": "31920"}).status == 204
    assert service.wait_for_event("twilio_stream", since=since)["why"] == "31920"
    assert post(service, STATUS, {"StreamEvent": "else"}).status == 204
    assert post(service, STATUS, {"StreamEvent": "stream-error"}, token="another").status == 403


def test_who_does_not_start_is_let_go(service: Service) -> None:
    with connect_sync(f"ws://{service.address}/v1/telephony/twilio", proxy=None) as silent:
        silent.send('{"event":"connected"}')
        with pytest.raises(ConnectionClosed) as closed:
            silent.recv(timeout=EVENT_S_MAX)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.reason == "no_start"


def test_a_stranger_s_message_is_not_even_read_where_it_is_far_too_large(service: Service) -> None:
    with connect_sync(f"ws://{service.address}/v1/telephony/twilio", proxy=None) as stranger:
        stranger.send("x" * 400_000)
        with pytest.raises(ConnectionClosed) as closed:
            stranger.recv(timeout=EVENT_S_MAX)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009
    assert closed.value.rcvd.reason != "message_too_large", "that is for what was read"


def test_telnyx_comes_in_with_its_token(service: Service) -> None:
    url = f"ws://{service.address}/v1/telephony/telnyx"
    assert refused_code(url) == (401, "missing_ticket")
    assert refused_code(url, {"x-telnyx-streaming-auth-token": "another"}) == (401, "invalid_ticket")
    phone = Phone(MediaStream(StreamCall(), TELNYX), speaking())
    headers = {"x-telnyx-streaming-auth-token": TELNYX_TOKEN}
    is_answered(url, phone, headers)


def basic(password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'duplex:{password}'.encode()).decode()}"}


def test_asterisk_comes_in_with_its_password_or_a_ticket(service: Service) -> None:
    url = f"ws://{service.address}/v1/telephony/asterisk"
    assert refused_code(url, basic("another")) == (401, "invalid_login")
    assert refused_code(url, {"Authorization": "Basic ?"}) == (401, "invalid_login")
    phone = Phone(AsteriskChannel(ChannelCall()), speaking())
    is_answered(url, phone, basic(PASSWORD))
    ticket = stream_of(post(service, VOICE, FORM))[1]["ticket"]
    by_variable = Phone(AsteriskChannel(ChannelCall(variables={"ticket": ticket})), speaking())
    is_answered(url, by_variable)
    stranger = Phone(AsteriskChannel(ChannelCall()), speaking())
    call(f"{url}?ticket={ticket}", stranger, lambda: False)
    assert stranger.closed == (1008, "invalid_ticket")


def test_a_channel_that_waits_is_called_where_that_is_allowed(service: Service, pbx_port: int) -> None:
    phone = Phone(AsteriskChannel(ChannelCall(format_name="slin16")), speaking())
    asked: list[str | None] = []
    over = asyncio.Event()

    async def switch(connection: ServerConnection) -> None:
        assert connection.request is not None
        asked.extend([connection.request.path, connection.request.headers.get("Authorization"), connection.subprotocol])
        await phone.talk(connection, lambda: phone.loud_ms > ANSWERED_MS)
        over.set()

    async def run() -> Answer:
        offered = [Subprotocol("media")]
        async with asyncio.timeout(EVENT_S_MAX), serve(switch, "127.0.0.1", pbx_port, subprotocols=offered):
            answer = await asyncio.to_thread(begin, service, f"ws://127.0.0.1:{pbx_port}/media/conn1")
            await over.wait()
            return answer

    assert asyncio.run(run()).status == 201
    assert phone.loud_ms > ANSWERED_MS
    assert asked == ["/media/conn1", basic(PASSWORD)["Authorization"], "media"]
    service.wait_for_calls(0)


def begin(service: Service, url: str) -> Answer:
    body = json.dumps({"url": url}).encode()
    return service.send("POST", "/v1/telephony/asterisk/calls", body, {"Content-Type": "application/json"})


def test_no_other_address_is_called(service: Service, pbx_port: int) -> None:
    here = f"ws://127.0.0.1:{pbx_port}"
    wanted = {
        "ws://127.0.0.1:1/media/x": (403, "url_not_allowed"),
        f"{here.replace('ws', 'wss')}/media/x": (403, "url_not_allowed"),
        f"ws://x@127.0.0.1:{pbx_port}/media/x": (403, "url_not_allowed"),
        f"{here}/other": (400, "invalid_url"),
        f"{here}/media/x?y=z": (400, "invalid_url"),
        "ws://[": (400, "invalid_url"),
        f"{here}/media/x": (502, "pbx_unreachable"),
    }
    assert {
        url: (got := begin(service, url)).status and (got.status, got.json["error"]["code"]) for url in wanted
    } == wanted
    answer = service.send("POST", "/v1/telephony/asterisk/calls", b"{}", {})
    assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_value")


BAD = (b"\x00", "{", "[]", '{"event":"media","media":{"payload":"?"}}', '{"event":"start"}')


@pytest.mark.parametrize(("messages", "reason"), [(BAD, None), (("x" * 70_000,), "message_too_large")])
def test_bad_messages_end_no_call_and_too_large_ones_this_one(
    service: Service, messages: tuple[str | bytes, ...], reason: str | None
) -> None:
    phone = Phone(MediaStream(StreamCall(), TELNYX), speaking())
    since = len(service.lines)

    async def run() -> None:
        url, headers = f"ws://{service.address}/v1/telephony/telnyx", {"x-telnyx-streaming-auth-token": TELNYX_TOKEN}
        async with connect(url, additional_headers=headers, proxy=None) as line:
            await asyncio.gather(phone.talk(line, lambda: phone.said_ms > 3_000), _disturb(line, phone, messages))

    asyncio.run(run())
    assert (phone.closed[1] == reason) is (reason is not None)
    assert (phone.loud_ms > ANSWERED_MS) is (reason is None)
    assert service.wait_for_event("carrier_fault" if reason is None else "call_ended", since=since)
    service.wait_for_calls(0)


async def _disturb(line: ClientConnection, phone: Phone, messages: tuple[str | bytes, ...]) -> None:
    async with asyncio.timeout(EVENT_S_MAX):
        await phone.sounding.wait()
    for message in messages:
        await line.send(message)
