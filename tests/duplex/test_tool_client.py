"""Requests to a tool's server: what is sent, what counts as an answer, and every way in which there is none."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from duplex import tool_client
from duplex.metrics import Metrics
from duplex.service_tools import HttpTool
from duplex.tasks import stop_task
from duplex.tool_client import ANSWER_BYTES_MAX, ANSWER_CHARACTERS_MAX, ToolClient, ToolRequest
from duplex.webhook_signature import SigningSecret
from sessions.service_calls import Failure, Result, ServiceTool
from stages.contracts import Tool
from tests.duplex.tool_server import S_MAX, SECRET, Answer, Asked, Gate, ToolServer, gate, tool_server

REQUEST = ToolRequest("sess_1", "call_1", "look", '{"city": "Paris"}')


@dataclass(slots=True)
class Bench:
    client: ToolClient
    metrics: Metrics
    told: list[tuple[str, Result | Failure]] = field(default_factory=list)
    has_come: asyncio.Event = field(default_factory=asyncio.Event)

    def deliver(self, call_id: str, answer: Result | Failure) -> None:
        self.told.append((call_id, answer))
        self.has_come.set()

    async def answer(self, request: ToolRequest = REQUEST) -> Result | Failure:
        """What comes of `request`."""
        self.client.request(request, self.deliver)
        await self.has_come.wait()
        ((call_id, answer),) = self.told
        assert call_id == request.call_id
        assert self.client.under_way == 0
        return answer


def tool(url: str, time_limit_s: float = S_MAX) -> HttpTool:
    return HttpTool(ServiceTool(Tool("look"), safe=True), url, SigningSecret.of(SECRET), time_limit_s)


Scenario = Callable[[Bench], Coroutine[None, None, None]]
Held = Callable[[Bench, ToolServer, Gate], Coroutine[None, None, None]]


def play(scenario: Scenario, *tools: HttpTool) -> None:
    async def run() -> None:
        metrics = Metrics()
        bench = Bench(ToolClient(tools, metrics), metrics)
        running = asyncio.create_task(bench.client.run())
        try:
            async with asyncio.timeout(S_MAX):
                await scenario(bench)
        finally:
            with suppress(asyncio.CancelledError):
                await stop_task(running)

    asyncio.run(run())


def answered(server: ToolServer, *, time_limit_s: float = S_MAX, path: str = "/look") -> Result | Failure:
    """What comes of a request to `server`."""
    answers: list[Result | Failure] = []

    async def scenario(bench: Bench) -> None:
        answers.append(await bench.answer())

    play(scenario, tool(f"http://{server.host}{path}", time_limit_s))
    return answers[0]


def answered_by(serve: Callable[[socket.socket], object], *, time_limit_s: float = S_MAX) -> Result | Failure:
    """What comes of a request to a server that does this with its connection, and then closes it."""
    answers: list[Result | Failure] = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve_one() -> None:
            connection, _ = listener.accept()
            with connection, suppress(ConnectionError):
                serve(connection)

        thread = threading.Thread(target=serve_one, daemon=True)
        thread.start()

        async def scenario(bench: Bench) -> None:
            answers.append(await bench.answer())

        play(scenario, tool(f"http://127.0.0.1:{listener.getsockname()[1]}/", time_limit_s))
        thread.join(S_MAX)
    return answers[0]


# ---- what is sent -------------------------------------------------------------------------------------


def test_arguments_are_posted_under_their_key_and_signed() -> None:
    with tool_server() as server:
        assert answered(server) == Result("sunny"), "its server has verified the signature"
        (asked,) = server.asked
    assert asked.body == {"session": "sess_1", "call_id": "call_1", "tool": "look", "arguments": {"city": "Paris"}}
    assert (asked.path, asked.key, asked.headers["webhook-id"]) == ("/look", "call_1", "call_1")
    assert (asked.headers["content-type"], asked.headers["accept-encoding"]) == ("application/json", "identity")


def test_what_is_signed_with_another_secret_is_refused() -> None:
    async def scenario(bench: Bench) -> None:
        assert await bench.answer() == Failure("refused")

    with tool_server() as server:
        other = replace(tool(f"http://{server.host}/"), secret=SigningSecret(b"x" * 32))
        play(scenario, other)
        assert server.asked == []


# ---- what comes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ((200, b'{"sky": "blue"}'), Result('{"sky": "blue"}')),
        ((201, b""), Result("")),
        ((200, "é".encode() * ANSWER_CHARACTERS_MAX), Result("é" * ANSWER_CHARACTERS_MAX)),
        ((200, b"x" * (ANSWER_CHARACTERS_MAX + 1)), Failure("answer_too_large")),
        ((200, b"x" * (ANSWER_BYTES_MAX + 1)), Failure("answer_too_large")),
        ((200, b"\xff"), Failure("bad_answer")),
        ((404, b"no"), Failure("refused")),
        ((503, b"no"), Failure("server_error")),
    ],
)
def test_answers(answer: Answer, outcome: Result | Failure) -> None:
    with tool_server() as server:
        server.answer = lambda _: answer
        assert answered(server) == outcome


def test_no_redirect_is_followed() -> None:
    with tool_server() as server, tool_server() as other:
        server.answer = lambda _: (307, b"")
        server.headers = {"Location": f"http://{other.host}/"}
        assert answered(server) == Failure("redirected")
        assert other.asked == []


def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with tool_server() as server, tool_server() as proxy:
        for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://{proxy.host}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        assert answered(server) == Result("sunny")
        assert (len(server.asked), proxy.asked) == (1, [])


def test_no_connection_is_used_twice() -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(2):
            bench.told.clear()
            bench.has_come.clear()
            assert await bench.answer(replace(REQUEST, call_id=f"call_{number}")) == Result("sunny")

    with tool_server() as server:
        play(scenario, tool(f"http://{server.host}/"))
        assert len(set(server.ports)) == 2


def test_of_an_answer_that_has_no_end_no_more_is_read_than_counts() -> None:
    def go_on_until_hung_up(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + bytes(ANSWER_BYTES_MAX + 1))
        while connection.recv(4_096):
            pass

    assert answered_by(go_on_until_hung_up, time_limit_s=5.0) == Failure("answer_too_large")


def test_what_is_packed_is_not_unpacked() -> None:
    with tool_server() as server:
        server.answer = lambda _: (200, gzip.compress(bytes(1 << 20)))
        server.headers = {"Content-Encoding": "gzip"}
        assert answered(server) == Failure("bad_answer")


def test_a_server_that_takes_too_long() -> None:
    held = gate()
    with tool_server() as server:
        server.answer = held.then(b"late")
        assert answered(server, time_limit_s=0.1) == Failure("timeout")
        held.open()


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen

        async def scenario(bench: Bench) -> None:
            assert await bench.answer() == Failure("unavailable")

        play(scenario, tool(f"http://127.0.0.1:{taken.getsockname()[1]}/"))


def test_a_connection_that_breaks_leaves_the_outcome_open() -> None:
    assert answered_by(lambda connection: connection.recv(1)) == Failure("broken")


def test_what_comes_is_measured_by_tool_and_outcome() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.answer()
        line = 'duplex_tool_request_seconds_count{outcome="succeeded",tool="look"} 1.0'
        assert line in bench.metrics.render().decode()

    with tool_server() as server:
        play(scenario, tool(f"http://{server.host}/"))


# ---- who is told ----------------------------------------------------------------------------------------


def held(scenario: Held) -> None:
    """Play it with a server that answers when `scenario` has it do so. There are a patient tool and one that is not."""
    with tool_server() as server:
        door = gate()
        server.answer = door.then(b"sunny")

        async def run(bench: Bench) -> None:
            await scenario(bench, server, door)
            door.open()

        url = f"http://{server.host}/"
        play(run, tool(url), replace(tool(url, 0.1), served=ServiceTool(Tool("hasty"))))


def asked(server: ToolServer) -> Coroutine[None, None, None]:
    return asyncio.to_thread(server.until_asked)


def test_what_is_under_way_is_found_by_whoever_comes_next() -> None:
    async def scenario(bench: Bench, server: ToolServer, door: Gate) -> None:
        first: list[object] = []
        bench.client.request(REQUEST, lambda *answer: first.append(answer))
        await asked(server)
        assert bench.client.follow("call_1", bench.deliver)
        assert not bench.client.follow("call_2", bench.deliver)
        bench.client.request(REQUEST, bench.deliver)
        door.open()
        await bench.has_come.wait()
        assert (bench.told, first) == ([("call_1", Result("sunny"))], [])
        assert len(server.asked) == 1, "and asked for once"

    held(scenario)


def test_of_what_is_cancelled_nobody_is_told() -> None:
    async def scenario(bench: Bench, server: ToolServer, door: Gate) -> None:
        bench.client.request(REQUEST, bench.deliver)
        await asked(server)
        bench.client.cancel("call_1")
        bench.client.cancel("call_1")
        assert bench.client.under_way == 0
        bench.client.request(replace(REQUEST, call_id="call_2"), bench.deliver)
        door.open()
        await bench.has_come.wait()
        assert bench.told == [("call_2", Result("sunny"))]

    held(scenario)


def test_an_answer_that_came_as_its_call_was_cancelled_is_none_to_the_next_under_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(bench: Bench) -> None:
        loop, answers = asyncio.get_running_loop(), [Result("late"), Result("sunny")]

        def begin_again() -> None:
            bench.client.cancel("call_1")
            bench.client.request(REQUEST, bench.deliver)

        async def carry_out(*_: object) -> Result:
            if len(answers) == 2:
                loop.call_soon(begin_again)  # once this has ended, and before anybody is told of that
            return answers.pop(0)

        monkeypatch.setattr(bench.client, "_carry_out", carry_out)
        assert await bench.answer() == Result("sunny")

    play(scenario, tool("http://127.0.0.1/"))


def test_the_end_leaves_nothing_behind() -> None:
    async def scenario(bench: Bench, server: ToolServer, _: Gate) -> None:
        running = asyncio.create_task(bench.client.run())
        await asyncio.sleep(0)
        bench.client.request(REQUEST, bench.deliver)
        await asked(server)
        before = asyncio.all_tasks()
        with suppress(asyncio.CancelledError):
            await stop_task(running)
        assert (bench.client.under_way, bench.told) == (0, [])
        assert len(asyncio.all_tasks()) == len(before) - 2, "neither the request nor the client"

    held(scenario)


def test_what_finds_no_room_in_time_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_client, "REQUESTS_MAX", 1)

    async def scenario(bench: Bench, server: ToolServer, door: Gate) -> None:
        bench.client.request(replace(REQUEST, call_id="call_0"), lambda *_: None)
        await asked(server)
        assert bench.client.under_way == 1
        bench.client.request(replace(REQUEST, name="hasty"), bench.deliver)
        await bench.has_come.wait()
        assert bench.told == [("call_1", Failure("busy"))]
        assert len(server.asked) == 1

    held(scenario)


def test_a_fault_of_ours_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> dict[str, str]:
        raise LookupError("a bug")

    monkeypatch.setattr(tool_client, "_headers", broken)
    with tool_server() as server:
        assert answered(server) == Failure("broken")


def test_neither_arguments_nor_answers_show_in_logs(capsys: pytest.CaptureFixture[str]) -> None:
    with tool_server() as server:
        server.answer = lambda one: (200, b"secret answer")
        answered(server)
        assert isinstance(server.asked[0], Asked)
    written = capsys.readouterr()
    assert "secret answer" not in written.out + written.err
    assert "Paris" not in written.out + written.err
