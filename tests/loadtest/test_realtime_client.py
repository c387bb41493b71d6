"""Opening a session over loopback, and every way in which that is refused."""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus

import pytest

from loadtest import realtime_client as module
from loadtest import realtime_wire as wire
from loadtest.errors import (
    CallError,
    CapacityRefused,
    ConnectionLost,
    ServerViolation,
    SessionRefused,
    TargetError,
    Unauthorised,
    Unreachable,
)
from loadtest.realtime_client import ResumeTicket, SessionOpened, Target, connect, open_session, websocket_url
from tests.loadtest.fake_realtime_server import FakeRealtimeServer, Farewell, Refusal, Script, serving

FULL = '{"error": {"type": "server_error", "code": "capacity_full", "message": "all 40 calls are taken"}}'


def open_against(
    server: FakeRealtimeServer, token: str | None = None, resume: ResumeTicket | None = None, path: str = ""
) -> SessionOpened:
    async def attempt() -> SessionOpened:
        async with serving(server), connect(Target.parse(server.url + path, token, resume)) as connection:
            return await open_session(connection, wire.settings(None, None), resume)

    return asyncio.run(attempt())


def refused(server: FakeRealtimeServer) -> CallError:
    with pytest.raises(CallError) as caught:
        open_against(server)
    return caught.value


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://host:80", "ws://host:80/v1/realtime?extensions=1"),
        ("https://host/", "wss://host/v1/realtime?extensions=1"),
        ("ws://[::1]:8080/other/path?model=m", "ws://[::1]:8080/other/path?model=m&extensions=1"),
        ("wss://host/v1/realtime?extensions=0#part", "wss://host/v1/realtime?extensions=1"),
    ],
)
def test_urls_are_taken_as_people_write_them(given: str, expected: str) -> None:
    assert websocket_url(given) == expected


@pytest.mark.parametrize(
    "given", ["host:8080", "ftp://host", "ws://", "ws://user:pass@host", "ws://host:99999", "ws://["]
)
def test_other_urls_are_refused(given: str) -> None:
    with pytest.raises(TargetError):
        websocket_url(given)


def test_a_resume_ticket_may_hold_colons_and_must_be_whole() -> None:
    assert ResumeTicket.parse("sess_1:a:b") == ResumeTicket("sess_1", "a:b")
    for text in ("", "sess_1", ":token", "sess_1:"):
        with pytest.raises(TargetError):
            ResumeTicket.parse(text)


def test_secrets_do_not_show() -> None:
    target = Target("ws://host", "sekrit", ResumeTicket("sess_1", "sekrit"))
    assert "sekrit" not in repr(target)


def test_a_session_opens_and_the_token_travels_in_the_header_alone() -> None:
    server = FakeRealtimeServer()
    opened = open_against(server, token="sekrit")

    assert (opened.session_id, opened.resume_token) == ("sess_1", "r-token")
    assert [event.server_event_seq for event in opened.events] == [1, 2, 3]
    assert server.authorizations == ["Bearer sekrit"]
    assert server.paths == ["/v1/realtime?extensions=1"]
    assert server.conversations[0].received[0]["type"] == "session.update"


def test_without_a_token_there_is_no_header() -> None:
    server = FakeRealtimeServer(script=Script(resume_token=None))
    opened = open_against(server, path="/elsewhere")

    assert opened.resume_token is None
    assert server.authorizations == [None]
    assert server.paths == ["/elsewhere?extensions=1"]


def test_a_session_is_taken_up_again() -> None:
    server = FakeRealtimeServer()
    opened = open_against(server, resume=ResumeTicket("sess_0", "ticket"))

    assert (opened.session_id, opened.resume_token) == ("sess_0", "ticket")
    assert server.conversations[0].received[0] == {
        "type": "session.resume",
        "session_id": "sess_0",
        "token": "ticket",
    }
    assert server.paths == ["/v1/realtime?extensions=1&resume=sess_0"]


def test_a_session_taken_up_again_may_have_a_new_token() -> None:
    resumed = {"session": {"id": "sess_0", "resume_token": "next"}}
    server = FakeRealtimeServer(Script(resumed=resumed))
    opened = open_against(server, resume=ResumeTicket("sess_0", "ticket"))

    assert (opened.session_id, opened.resume_token) == ("sess_0", "next")


def test_a_full_server_says_when_to_call_again() -> None:
    refusal = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, FULL, {"Retry-After": "7"})
    fault = refused(FakeRealtimeServer(refusal=refusal))

    assert isinstance(fault, CapacityRefused)
    assert (fault.code, fault.retry_after_s) == ("capacity_full", 7.0)
    assert str(fault) == "the server takes no more calls (capacity_full): all 40 calls are taken; retry in 7 s"
    assert "in 7 s" in fault.advice


def test_too_many_requests_without_a_time() -> None:
    fault = refused(FakeRealtimeServer(refusal=Refusal(HTTPStatus.TOO_MANY_REQUESTS, "", {"Retry-After": "tomorrow"})))

    assert isinstance(fault, CapacityRefused)
    assert (fault.code, fault.retry_after_s) == ("429", None)


@pytest.mark.parametrize("status", [HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN])
def test_a_token_that_is_not_accepted(status: HTTPStatus) -> None:
    fault = refused(FakeRealtimeServer(refusal=Refusal(status)))

    assert isinstance(fault, Unauthorised)
    assert fault.status == status
    assert "DUPLEX_TOKEN" in fault.advice


def test_a_redirect_is_a_refusal() -> None:
    fault = refused(FakeRealtimeServer(refusal=Refusal(HTTPStatus.FOUND, "", {"Location": "ws://127.0.0.1:9/"})))

    assert isinstance(fault, SessionRefused)
    assert fault.code == "302"


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        port = closing.getsockname()[1]

    async def attempt() -> None:
        async with connect(Target.parse(f"ws://127.0.0.1:{port}")):
            pass

    with pytest.raises(Unreachable) as caught:
        asyncio.run(attempt())
    assert "server runs" in caught.value.advice


@pytest.mark.parametrize("answer", [b"SSH-2.0-server\r\n", b""])
def test_something_else_listens(answer: bytes) -> None:
    async def other_protocol(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    async def attempt() -> None:
        listening = await asyncio.start_server(other_protocol, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with listening, connect(Target.parse(f"ws://127.0.0.1:{port}")):
            pass

    with pytest.raises(Unreachable):
        asyncio.run(attempt())


ERROR = {"type": "error", "error": {"type": "server_error", "code": "busy", "message": "full", "retry_after_s": 3}}


def test_an_error_and_a_close_mean_what_the_close_code_says() -> None:
    full = refused(FakeRealtimeServer(farewell=Farewell((ERROR,), 1013)))
    assert isinstance(full, CapacityRefused)
    assert (full.code, full.retry_after_s) == ("busy", 3)

    for close_code, status in ((3000, 401), (3003, 403)):
        unauthorised = refused(FakeRealtimeServer(farewell=Farewell((ERROR,), close_code)))
        assert isinstance(unauthorised, Unauthorised)
        assert unauthorised.status == status

    other = refused(FakeRealtimeServer(farewell=Farewell((ERROR,), 1008)))
    assert isinstance(other, SessionRefused)
    assert other.code == "busy"


def test_a_close_without_a_word() -> None:
    fault = refused(FakeRealtimeServer(farewell=Farewell((), 1013)))

    assert isinstance(fault, CapacityRefused)
    assert fault.code == "1013"


def test_a_server_that_closes_before_it_is_asked() -> None:
    created = {"type": "session.created", "session": {"id": "s"}}
    fault = refused(FakeRealtimeServer(farewell=Farewell((created,), 1001)))

    assert isinstance(fault, SessionRefused)
    assert fault.code == "1001"


def test_settings_that_the_server_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.0)
    script = Script(refuse_settings={"type": "invalid_request_error", "code": "bad_value", "message": "no such voice"})
    fault = refused(FakeRealtimeServer(script=script))

    assert isinstance(fault, SessionRefused)
    assert str(fault) == "the server refused the session (bad_value): no such voice"


def test_a_session_that_does_not_begin_with_its_creation() -> None:
    created = {"type": "session.created", "session": {"id": "s"}}
    server = FakeRealtimeServer(farewell=Farewell(({"type": "conversation.created"}, created), 1000))

    assert isinstance(refused(server), ServerViolation)


def test_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSION_STEP_TIMEOUT_S", 0.0)

    assert isinstance(refused(FakeRealtimeServer()), ServerViolation)


def test_a_server_that_talks_on_after_its_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EARLY_EVENTS_MAX", 3)
    fault = refused(FakeRealtimeServer(farewell=Farewell((ERROR, *({"type": "noise"},) * 4), 1013)))

    assert isinstance(fault, SessionRefused)


def test_a_server_that_says_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EARLY_EVENTS_MAX", 3)
    server = FakeRealtimeServer(farewell=Farewell(({"type": "noise"},) * 4, 1000))

    assert isinstance(refused(server), ServerViolation)


def test_a_connection_that_ends_says_how() -> None:
    async def attempt(close_code: int) -> ConnectionLost:
        server = FakeRealtimeServer(farewell=Farewell((), close_code))
        async with serving(server), connect(Target.parse(server.url)) as connection:
            with pytest.raises(ConnectionLost) as caught:
                await connection.receive()
            with pytest.raises(ConnectionLost):
                await connection.send(wire.CancelResponse("r"))
        return caught.value

    assert asyncio.run(attempt(1012)).close_code == 1012
