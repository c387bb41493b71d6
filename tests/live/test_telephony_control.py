"""What a model does with its telephone call, and callers who call again, through real processes."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode

import pytest

from duplex.telephony.twiml import signature
from loadtest.carriers.asterisk_channel import AsteriskChannel, ChannelCall
from loadtest.carriers.media_stream import MediaStream
from loadtest.carriers.stream_dialects import TELNYX, TWILIO, StreamCall
from tests.live.phone import Core, Phone, call, items_of, speaking
from tests.live.service import Service, serving
from tests.live.test_telephony_doors import free_port, stream_of

pytestmark = [pytest.mark.live, pytest.mark.slow]

QUESTION = (300, 1_000)
TOKEN = "twilios-secret"
NUMBER = "+15550199"
LOGIN = {"Authorization": f"Basic {base64.b64encode(b'pbx:secret').decode()}"}


class Asked(NamedTuple):
    path: str
    authorization: str
    body: str


class Api:
    """A carrier's REST API, which answers everything with `status`."""

    def __init__(self) -> None:
        self.status = 200
        self.asked: list[Asked] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                api.asked.append(Asked(self.path, self.headers.get("Authorization", ""), body))
                self.send_response(api.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def serving(self) -> Iterator[Api]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


@pytest.fixture
def api() -> Iterator[Api]:
    with Api().serving() as running:
        yield running


@contextmanager
def answering(folder: Path, reply: str, **settings: str) -> Iterator[Service]:
    with serving(folder / "data", {"scripted_replies": reply, **settings}) as running:
        yield running


def talked(
    service: Service, name: str, core: Core, said_ms: int = 8_000, headers: Mapping[str, str] | None = None
) -> Phone:
    phone, url = Phone(core, speaking(QUESTION)), f"ws://{service.address}/v1/telephony/{name}"
    return call(url, phone, lambda: phone.said_ms >= said_ms, headers=headers)


@pytest.mark.parametrize("name", ["twilio", "asterisk"])
def test_a_model_says_goodbye_and_hangs_up(tmp_path: Path, name: str) -> None:
    core: Core = MediaStream(StreamCall(), TWILIO) if name == "twilio" else AsteriskChannel(ChannelCall())
    with answering(tmp_path, "Goodbye then, and thank you. @hang_up {}") as service:
        phone = talked(service, name, core)
        assert phone.said_ms < 8_000
        assert service.wait_for_event("call_ended")["reason"] == "hung_up"
        session = service.wait_for_event("phone_call_began")["session"]
        goodbye, made, done = items_of(service, session)[-3:]
    assert not goodbye.truncated, "the caller has heard it"
    assert phone.loud_ms >= goodbye.audio_ms_total - 40
    assert (made.kind, made.name, done.content) == ("function_call", "hang_up", "The call has ended.")
    assert phone.closed[1] in ("hung_up", "") if name == "twilio" else phone.core.is_over


def test_telnyx_is_told_by_its_api_to_hang_up(tmp_path: Path, api: Api) -> None:
    (tmp_path / "key").write_text("telnyxs-key")
    (tmp_path / "token").write_text(TOKEN)
    settings = {"telnyx_api_key_file": str(tmp_path / "key"), "telnyx_token_file": str(tmp_path / "token")}
    with answering(tmp_path, "Goodbye then. @hang_up {}", telnyx_api_url=api.url, **settings) as service:
        shown = {"x-telnyx-streaming-auth-token": TOKEN}
        talked(service, "telnyx", MediaStream(StreamCall(call_id="v3:1/2"), TELNYX), headers=shown)
        service.wait_for_calls(0)
    assert api.asked == [("/v2/calls/v3%3A1%2F2/actions/hangup", "Bearer telnyxs-key", "{}")]


def twilio_settings(folder: Path, api: Api, port: int) -> dict[str, str]:
    (folder / "token").write_text(TOKEN)
    return {
        "twilio_auth_token_file": str(folder / "token"),
        "twilio_api_url": api.url,
        "public_url": f"http://127.0.0.1:{port}",
        "phone_transfer_to": NUMBER,
    }


def announced(service: Service, caller: str) -> tuple[str, StreamCall]:
    form, path = {"From": caller, "CallSid": StreamCall().call_id}, "/v1/telephony/twilio/voice"
    signed = signature(TOKEN, f"http://{service.address}{path}", {name: [value] for name, value in form.items()})
    headers = {"Content-Type": "application/x-www-form-urlencoded", "X-Twilio-Signature": signed}
    url, parameters = stream_of(service.send("POST", path, urlencode(form).encode(), headers))
    return url, StreamCall(parameters=parameters)


@pytest.mark.parametrize("status", [200, 400])
def test_a_call_is_passed_on_by_twilios_api(tmp_path: Path, api: Api, status: int) -> None:
    api.status, port = status, free_port()
    reply = f'I connect you now. @transfer_call {{"to": "{NUMBER}"}}|It cannot be done.'
    settings = {"scripted_replies": reply, **twilio_settings(tmp_path, api, port)}
    with serving(tmp_path / "data", settings, port=port) as service:
        url, stream_call = announced(service, "+15550100")
        phone = Phone(MediaStream(stream_call, TWILIO), speaking(QUESTION))
        call(url, phone, lambda: phone.said_ms >= 7_000)
        reason = service.wait_for_event("call_ended")["reason"]
        items = items_of(service, service.wait_for_event("phone_call_began")["session"])
    (asked,) = api.asked
    assert asked.path == f"/2010-04-01/Accounts/{stream_call.account_id}/Calls/{stream_call.call_id}.json"
    assert base64.b64decode(asked.authorization.partition(" ")[2]).decode() == f"{stream_call.account_id}:{TOKEN}"
    assert f"<Dial>{NUMBER}</Dial>" in parse_qs(asked.body)["Twiml"][0]
    output = next(item.content for item in items if item.kind == "function_call_output")
    if status == 200:
        assert (reason, output) == ("transferred", "The call goes on there.")
    else:
        assert reason == "client_closed"
        assert "was not done" in output
        assert items[-1].content == "It cannot be done."


def test_a_pbx_is_asked_by_its_owners_own_address(tmp_path: Path, api: Api) -> None:
    (tmp_path / "password").write_text("secret")
    settings = {"asterisk_control_url": f"{api.url}/pbx", "phone_transfer_to": "sip:desk@pbx"}
    settings |= {"asterisk_user": "pbx", "asterisk_password_file": str(tmp_path / "password")}
    reply = 'I connect you. @transfer_call {"to": "sip:desk@pbx"}'
    with answering(tmp_path, reply, **settings) as service:
        talked(service, "asterisk", AsteriskChannel(ChannelCall("conn7", "pbx-7")), headers=LOGIN)
        assert service.wait_for_event("call_ended")["reason"] == "transferred"
    body = '{"action":"transfer","channel_id":"pbx-7","connection_id":"conn7","to":"sip:desk@pbx"}'
    assert api.asked == [("/pbx", LOGIN["Authorization"], body)]


def is_answered(phone: Phone) -> bool:
    return phone.loud_ms > 200


@pytest.mark.parametrize(("again", "is_same"), [("+15550100", True), ("+15550101", False), ("anonymous", False)])
def test_who_calls_again_goes_on_where_the_call_was_cut_off(
    tmp_path: Path, api: Api, again: str, is_same: bool
) -> None:
    port = free_port()
    settings = twilio_settings(tmp_path, api, port) | {"phone_resume_s": "60"}
    with serving(tmp_path / "data", settings, port=port) as service:
        sessions = []
        for caller in ("+15550100" if again != "anonymous" else again, again):
            since = len(service.lines)
            url, stream_call = announced(service, caller)
            phone = Phone(MediaStream(stream_call, TWILIO), speaking(QUESTION))
            call(url, phone, partial(is_answered, phone))
            sessions.append(service.wait_for_event("phone_call_began", since=since)["session"])
            service.wait_for_calls(0)
        items = items_of(service, sessions[-1])
    assert (sessions[0] == sessions[1]) is is_same
    assert sum(item.role == "user" for item in items) == (2 if is_same else 1)


def test_a_caller_who_says_nothing_is_greeted_and_spoken_to_again(tmp_path: Path) -> None:
    settings = {"phone_greeting": "Hello, who is there?", "phone_idle_s": "5"}
    with answering(tmp_path, "Are you still there?", **settings) as service:
        phone = Phone(MediaStream(StreamCall(), TWILIO), speaking())
        call(f"ws://{service.address}/v1/telephony/twilio", phone, lambda: phone.said_ms >= 9_500)
        items = items_of(service, service.wait_for_event("phone_call_began")["session"])
    assert [item.content for item in items] == ["Hello, who is there?", "", "Are you still there?"]


@pytest.mark.parametrize("greeting", ["Hello, who is there?", ""])
def test_a_phone_that_was_left_off_the_hook_is_told_goodbye_and_hung_up(tmp_path: Path, greeting: str) -> None:
    settings = {"phone_greeting": greeting, "phone_idle_s": "5"}
    with answering(tmp_path, "Is anybody there?", **settings) as service:
        phone = Phone(AsteriskChannel(ChannelCall()), speaking())
        call(f"ws://{service.address}/v1/telephony/asterisk", phone, lambda: False, s_max=60)
        assert service.wait_for_event("call_ended")["reason"] == "caller_silent"
        items = items_of(service, service.wait_for_event("phone_call_began")["session"])
    prompts_and_goodbye = 4 if greeting else 1
    asked = ["", "Is anybody there?"] * prompts_and_goodbye
    assert [item.content for item in items] == [greeting, *asked] if greeting else asked
    assert phone.core.is_over


@contextmanager
def of_a_pbx(folder: Path, **settings: str) -> Iterator[tuple[Service, dict[str, str]]]:
    """A service that believes a PBX what it says of its callers, and what that has to show."""
    (folder / "password").write_text("secret")
    login = {"asterisk_user": "pbx", "asterisk_password_file": str(folder / "password")}
    with answering(folder, "Hello, how can I help you today?", phone_resume_s="60", **login, **settings) as service:
        yield service, LOGIN


def called(service: Service, caller: str, headers: dict[str, str], phone: Phone, until: Callable[[], bool]) -> str:
    """The session of such a call, once that is over."""
    since = len(service.lines)
    call(f"ws://{service.address}/v1/telephony/asterisk?caller={caller}", phone, until, headers=headers)
    session: str = service.wait_for_event("phone_call_began", since=since)["session"]
    return session


def test_a_pbx_says_in_its_dial_string_who_calls_again(tmp_path: Path) -> None:
    with of_a_pbx(tmp_path) as (service, headers):
        sessions = []
        for caller in ("100", "100", "101"):
            phone = Phone(AsteriskChannel(ChannelCall()), speaking(QUESTION))
            sessions.append(called(service, caller, headers, phone, partial(is_answered, phone)))
            service.wait_for_calls(0)
    assert sessions[0] == sessions[1] != sessions[2]


def test_who_calls_again_after_the_gateway_was_killed_goes_on_and_is_not_greeted_again(tmp_path: Path) -> None:
    with of_a_pbx(tmp_path, phone_greeting="Who is there?") as (service, headers):
        sessions = []
        for is_killed in (True, False):
            phone, since = Phone(AsteriskChannel(ChannelCall()), speaking((2_500, 3_200))), len(service.lines)
            is_talked = partial(has_talked, phone, 5_500)
            strike = partial(service.kill, "gateway") if is_killed else None
            sessions.append(called(service, "100", headers, phone, partial(then, is_talked, strike)))
            if is_killed:
                service.wait_for_event("child_restarted", since=since, child="gateway")
        items = items_of(service, sessions[0])
    assert sessions[0] == sessions[1]
    assert [item.role for item in items] == ["assistant", "user", "assistant", "user", "assistant"]
    assert items[0].content == "Who is there?"


def has_talked(phone: Phone, ms: int) -> bool:
    return phone.said_ms >= ms and is_answered(phone)


def then(is_so: Callable[[], bool], strike: Callable[[], None] | None) -> bool:
    """Whether it is so; struck as soon as it is."""
    if not is_so():
        return False
    if strike is not None:
        strike()
    return True


def test_a_second_call_of_a_number_leaves_the_first_alone(tmp_path: Path) -> None:
    over = threading.Event()
    with of_a_pbx(tmp_path) as (service, headers):
        first = Phone(AsteriskChannel(ChannelCall()), speaking(QUESTION))
        address = f"ws://{service.address}/v1/telephony/asterisk?caller=100"
        line = threading.Thread(target=call, args=(address, first, over.is_set), kwargs={"headers": headers})
        line.start()
        try:
            session = service.wait_for_event("phone_call_began")["session"]
            service.wait_for_event("response_ended", session=session)
            second = Phone(AsteriskChannel(ChannelCall("conn2")), speaking(QUESTION))
            assert called(service, "100", headers, second, partial(is_answered, second)) != session
            assert not first.core.is_over
        finally:
            over.set()
            line.join()
        assert service.wait_for_event("call_ended", session=session)["reason"] == "client_closed"
