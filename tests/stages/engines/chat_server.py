"""A chat completions server on the loopback that does what it is told, byte by byte."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Sequence
from types import TracebackType

WAIT_S_MAX = 5.0
BODY_BYTES_MAX = 1 << 20

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

Action = bytes | threading.Event


def status(code: int) -> bytes:
    return f"HTTP/1.1 {code} Whatever\r\ncontent-length: 6\r\n\r\nsecret".encode()


def call(index: int, arguments: str | None, name: str | None = None) -> bytes:
    """An event with more of a call."""
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    piece = {"index": index, "function": function, **({"id": "theirs", "type": "function"} if name else {})}
    choice = {"index": 0, "delta": {"content": None, "tool_calls": [piece]}, "finish_reason": None}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


def event(content: str | None = None, *, reason: str | None = None, **more: object) -> bytes:
    """One event of a stream, in the server's JSON."""
    choice = {"index": 0, "delta": {} if content is None else {"content": content}, "finish_reason": reason}
    return f"data: {json.dumps({'choices': [choice], **more})}\n\n".encode()


DONE = b"data: [DONE]\n\n"


class ChatServer:
    """Answers each connection with `script`: bytes are sent, an event is waited for. Then it waits for the client to
    leave if `lingers`, and closes."""

    def __init__(self, script: Sequence[Action], *, lingers: bool = False) -> None:
        self._script = script
        self._lingers = lingers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.requests: list[tuple[str, dict[str, object]]] = []
        self.client_left = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def __enter__(self) -> ChatServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(WAIT_S_MAX)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(WAIT_S_MAX)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        self.requests.append(_read_request(connection))
        for action in self._script:
            if isinstance(action, threading.Event):
                action.wait(WAIT_S_MAX)
            elif not _is_sent(connection, action):
                return
        if self._lingers and _is_left(connection):
            self.client_left.set()


def _is_sent(connection: socket.socket, data: bytes) -> bool:
    try:
        connection.sendall(data)
    except ConnectionError:
        return False
    return True


def _is_left(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def _read_request(connection: socket.socket) -> tuple[str, dict[str, object]]:
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += connection.recv(BODY_BYTES_MAX)
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length"))
    while len(body) < min(length, BODY_BYTES_MAX):
        body += connection.recv(BODY_BYTES_MAX)
    return head.decode(), json.loads(body)
