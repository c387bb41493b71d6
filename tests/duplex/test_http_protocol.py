"""Ends of HTTP connections: what is not asked, not asked whole, or not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
import uvicorn
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope
from uvicorn.server import ServerState

from duplex import http_protocol
from duplex.http_protocol import ANSWER_S_MAX, REQUEST_S_MAX, HttpProtocol

HEAD = b"POST /v1/calls HTTP/1.1\r\nhost: here\r\ncontent-length: 4\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nhost: here\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
KEEP_ALIVE_S = 5


class Client(asyncio.Transport):
    """The other end: what it was sent, and how it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.read = b""
        self.closed = ""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.read += bytes(data)

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = "aborted"

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Clock:
    """Time, which stands still, and tasks that run."""

    def __init__(self) -> None:
        self.waits: list[tuple[float, asyncio.TimerHandle]] = []

    def call_later(self, delay_s: float, call: Callable[..., object]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(delay_s, call, (), asyncio.get_running_loop())
        self.waits.append((delay_s, handle))
        return handle

    def create_task(self, run: Coroutine[Any, Any, None], **kwargs: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(run, **kwargs)

    @property
    def left_s(self) -> list[float]:
        """What is waited for, and how long."""
        return [delay_s for delay_s, handle in self.waits if not handle.cancelled()]

    def pass_by(self) -> None:
        """Whatever is waited for does not come in time."""
        for _, handle in self.waits:
            if not handle.cancelled():
                handle._run()


class Upgraded(asyncio.Protocol):
    """Stands for a call's protocol."""

    def __init__(self, **_: object) -> None:
        pass


class Bench:
    """A server whose only answer is "ok", once it is let go."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.answered = asyncio.Event()
        self.state = ServerState()
        self.config = uvicorn.Config(
            self._answer, interface="asgi3", ws=cast("Any", Upgraded), timeout_keep_alive=KEEP_ALIVE_S
        )
        self.config.load()

    async def _answer(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await self.go_on.wait()
        self.go_on.clear()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})
        self.answered.set()

    def connect(self) -> tuple[HttpProtocol, Client, Clock]:
        clock, client = Clock(), Client()
        protocol = HttpProtocol(self.config, self.state, {}, _loop=cast("asyncio.AbstractEventLoop", clock))
        protocol.connection_made(client)
        return protocol, client, clock

    async def answer(self) -> None:
        self.answered.clear()
        self.go_on.set()
        await self.answered.wait()


def play(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


@pytest.mark.parametrize("sent", [b"", HEAD[:20], HEAD, HEAD + b"..."], ids=["nothing", "half a head", "head", "less"])
def test_a_request_that_does_not_come_whole_is_not_waited_for(sent: bytes) -> None:
    async def scenario() -> None:
        protocol, client, clock = Bench().connect()
        for at in range(len(sent)):
            protocol.data_received(sent[at : at + 1])
        assert clock.left_s == [REQUEST_S_MAX], "a byte now and then gains no time"
        clock.pass_by()
        assert (client.closed, client.read) == ("aborted", b"")
        protocol.connection_lost(None)

    play(scenario)


def test_an_answer_has_its_own_time_and_then_the_next_request() -> None:
    async def scenario() -> None:
        bench = Bench()
        protocol, client, clock = bench.connect()
        protocol.data_received(HEAD + b"body")
        assert clock.left_s == [ANSWER_S_MAX]
        await bench.answer()
        assert client.read.endswith(b"\r\n\r\nok")
        assert clock.left_s == [KEEP_ALIVE_S], "between two requests uvicorn waits"
        protocol.data_received(HEAD[:9])
        assert clock.left_s == [REQUEST_S_MAX]
        protocol.connection_lost(None)
        assert clock.left_s == []

    play(scenario)


def test_an_answer_that_is_not_read_ends() -> None:
    async def scenario() -> None:
        bench = Bench()
        protocol, client, clock = bench.connect()
        protocol.data_received(HEAD + b"body")
        protocol.pause_writing()
        clock.pass_by()
        assert client.closed == "aborted"
        protocol.connection_lost(None)
        bench.go_on.set()

    play(scenario)


def test_a_request_that_was_sent_ahead_is_answered_in_its_own_time() -> None:
    async def scenario() -> None:
        bench = Bench()
        protocol, client, clock = bench.connect()
        protocol.data_received((HEAD + b"body") * 2)
        first = list(clock.waits)
        await bench.answer()
        assert first[-1][1].cancelled()
        assert clock.left_s == [ANSWER_S_MAX]
        await bench.answer()
        assert client.read.count(b"ok") == 2
        protocol.connection_lost(None)

    play(scenario)


def test_a_call_has_limits_of_its_own() -> None:
    async def scenario() -> None:
        protocol, _, clock = Bench().connect()
        protocol.data_received(UPGRADE)
        assert clock.left_s == []

    play(scenario)


def test_no_more_than_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "CONNECTIONS_MAX", 2)

    async def scenario() -> None:
        bench = Bench()
        bench.state.connections.add(cast("Any", Upgraded()))  # a call takes no place here
        kept = [bench.connect() for _ in range(2)]
        protocol, client, clock = bench.connect()
        assert (client.read[:12], client.closed) == (b"HTTP/1.1 503", "closed")
        assert clock.left_s == [REQUEST_S_MAX], "nor does it wait for what is not read"
        protocol.connection_lost(None)
        kept[0][0].connection_lost(None)
        assert bench.connect()[1].closed == ""

    play(scenario)
