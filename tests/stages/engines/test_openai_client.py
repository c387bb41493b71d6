"""What comes over HTTP becomes pieces, an end, or a failure with a stable code; every wait ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stages.contracts import Message
from stages.engines.openai_client import (
    EVENT_BYTES_MAX,
    PIECES_QUEUED_MAX,
    ApiKey,
    CallPiece,
    ChatClient,
    ChatEnd,
    ChatRequest,
    Exchange,
    ServerSettings,
)
from stages.stream import StageFailure
from tests.stages.engines.chat_server import CHUNKED, DONE, HEAD, Action, ChatServer, event, status

REQUEST = ChatRequest((Message("user", "Hi"),), 20, 0.5)
TAKE_S = 5.0


@contextmanager
def asked(server: ChatServer, **limits: float) -> Iterator[Exchange]:
    settings = ServerSettings(server.url, "tiny", ApiKey("sk-secret"), 2, **limits)
    client = ChatClient(settings)
    try:
        yield client.start(REQUEST)
    finally:
        client.close()


def read_all(exchange: Exchange) -> list[str | CallPiece | ChatEnd]:
    pieces: list[str | CallPiece | ChatEnd] = []
    while not (pieces and isinstance(pieces[-1], ChatEnd)):
        piece = exchange.take(TAKE_S)
        assert piece is not None, "the server kept silent"
        pieces.append(piece)
    return pieces


def wait_for_failure(exchange: Exchange) -> None:
    for _ in range(500):
        exchange.take(0.01)


def failure_of(*script: Action, lingers: bool = False, **limits: float) -> StageFailure:
    with ChatServer(script, lingers=lingers) as server, asked(server, **limits) as exchange:
        with pytest.raises(StageFailure) as failure:
            read_all(exchange)
        assert "secret" not in str(failure.value)
        return failure.value


def test_text_comes_piece_by_piece_and_usage_at_the_end() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    script = [HEAD, event(), event("Hel"), b": keep alive\n\n", event("lo"), event(reason="length")]
    script += [b'data: {"choices": [], "usage": null}\n\n', event(usage=usage), DONE]
    with ChatServer(script) as server, asked(server) as exchange:
        assert read_all(exchange) == ["Hel", "lo", ChatEnd("max_output_tokens", 9, 4, 2)]
        head, body = server.requests[0]
    assert head.startswith("POST /v1/chat/completions HTTP/1.1")
    assert "authorization: bearer sk-secret" in head.lower()
    assert body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 20,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("tail", "end"),
    [
        ([event(reason="stop")], ChatEnd("stop")),
        ([DONE], ChatEnd("stop")),
        ([event(reason="content_filter"), DONE], ChatEnd("content_filter")),
        ([event(reason="tool_calls"), DONE], ChatEnd("stop")),
        ([event(reason="stop", usage={"prompt_tokens": 3, "prompt_tokens_details": {}})], ChatEnd("stop", 3)),
    ],
)
def test_servers_end_in_several_ways(tail: list[bytes], end: ChatEnd) -> None:
    with ChatServer([HEAD, event("Hi"), *tail]) as server, asked(server) as exchange:
        assert read_all(exchange) == ["Hi", end]


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (401, "auth"),
        (403, "auth"),
        (429, "rate_limited"),
        (500, "unavailable"),
        (503, "unavailable"),
        (404, "refused"),
        (302, "refused"),
    ],
)
def test_a_status_has_its_code(code: int, failure: str) -> None:
    assert failure_of(status(code)).code == failure


@pytest.mark.parametrize(
    "script",
    [
        [HEAD, b"data: {broken\n\n"],
        [HEAD, b'data: {"choices": 5}\n\n'],
        [HEAD, b'data: {"unknown": ' + b"[" * 5_000 + b"\n\n"],
        [HEAD, b"data: " + b"x" * (EVENT_BYTES_MAX + 10)],
        [b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\n<p/>"],
        [b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\r\nno gzip"],
    ],
)
def test_what_is_no_stream_of_completions_is_a_bad_reply(script: list[bytes]) -> None:
    assert failure_of(*script).code == "bad_reply"


@pytest.mark.slow
def test_a_reply_without_end_is_a_bad_reply() -> None:
    filler = event(padding="x" * (EVENT_BYTES_MAX - 200))
    assert failure_of(HEAD, event("Hi"), *([filler] * 140)).code == "bad_reply"


@pytest.mark.parametrize(
    "script",
    [
        [HEAD, event("Hi")],
        [CHUNKED, b"40\r\n" + event("Hi")[:20]],
        [b""],
        [HEAD, b'data: {"error": {"message": "secret trouble"}}\n\n'],
    ],
)
def test_a_connection_that_breaks_is_unavailable(script: list[bytes]) -> None:
    assert failure_of(*script).code == "unavailable"


def test_nobody_listening_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = ChatClient(ServerSettings(f"http://127.0.0.1:{port}", "tiny", ApiKey("")))
    with pytest.raises(StageFailure) as failure:
        read_all(client.start(REQUEST))
    client.close()
    assert failure.value.code == "unavailable"


@pytest.mark.parametrize("script", [[], [HEAD], [HEAD, event()]])
def test_a_first_token_has_its_limit(script: list[bytes]) -> None:
    assert failure_of(*script, lingers=True, first_token_s_max=0.05).code == "timeout"


def test_so_has_the_next_one() -> None:
    assert failure_of(HEAD, event("Hi"), event(), lingers=True, between_tokens_s_max=0.05).code == "timeout"


def test_taking_waits_only_as_long_as_it_is_told() -> None:
    go_on = threading.Event()
    with ChatServer([HEAD, go_on, event("Hi"), DONE]) as server, asked(server) as exchange:
        assert exchange.take(0.01) is None
        go_on.set()
        assert exchange.take(TAKE_S) == "Hi"


def test_a_cancel_closes_the_connection() -> None:
    with ChatServer([HEAD, event("Hi")], lingers=True) as server, asked(server) as exchange:
        assert exchange.take(TAKE_S) == "Hi"
        exchange.cancel()
        assert server.client_left.wait(TAKE_S)


def test_closing_the_client_ends_what_is_under_way() -> None:
    with ChatServer([HEAD, event("Hi")], lingers=True) as server:
        with asked(server) as exchange:
            assert exchange.take(TAKE_S) == "Hi"
        assert server.client_left.wait(TAKE_S)


def test_a_reader_ahead_of_its_taker_waits() -> None:
    script = [HEAD, *(event(str(n)) for n in range(3 * PIECES_QUEUED_MAX)), DONE]
    with ChatServer(script) as server, asked(server, between_tokens_s_max=0.2) as exchange:
        first = exchange.take(TAKE_S)
        assert exchange._pieces.qsize() <= PIECES_QUEUED_MAX
        assert [first, *read_all(exchange)] == [*(str(n) for n in range(3 * PIECES_QUEUED_MAX)), ChatEnd("stop")]


def test_a_fault_of_our_own_is_not_silence() -> None:
    client = ChatClient(ServerSettings("http://127.0.0.1:1", "tiny", ApiKey("")))
    exchange = client.start(ChatRequest((Message("user", "Hi"),), 20, float("nan")))
    with pytest.raises(ValueError, match="JSON"):
        wait_for_failure(exchange)
    client.close()


def test_a_key_does_not_show() -> None:
    settings = ServerSettings("https://api.example/v1/", "tiny", ApiKey("sk-secret"))
    assert "sk-secret" not in repr(settings)
    with pytest.raises(ValueError, match="base_url"):
        ServerSettings("ftp://example", "tiny", ApiKey(""))
