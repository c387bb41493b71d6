"""A tool's server for tests: real HTTP on a port of its own, which keeps what it was asked and answers as it is told.

Rules
* It verifies what it is sent, as a tool's server should; what is not signed is refused with 401.
* What must be waited for is waited for by events, with a limit.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

S_MAX = 20.0
KEY = b"0123456789abcdef0123456789abcdef"
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
Answer = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that has come in."""

    path: str
    key: str
    body: dict[str, Any]
    headers: dict[str, str]


class ToolServer:
    """`answer` gives status and body; what it does first, such as to wait, is done in a thread of the request's own."""

    def __init__(self) -> None:
        self.answer: Callable[[Asked], Answer] = lambda asked: (200, b"sunny")
        self.headers: dict[str, str] = {}
        self.asked: list[Asked] = []
        self.ports: list[int] = []  # from which it was asked
        self.done: Counter[str] = Counter()  # how often each key was carried out
        self._changed = threading.Condition()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.ports.append(self.client_address[1])
                status, answer = server.take(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                try:
                    self.send_response(status)
                    for name, value in server.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:
                    self.close_connection = True  # whoever asked has gone

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.http.server_address[1]}"

    def take(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        wanted = "v1," + base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
        if headers["webhook-signature"] != wanted:
            return 401, b""
        asked = Asked(path, headers["idempotency-key"], json.loads(body), headers)
        with self._changed:
            self.asked.append(asked)
            self._changed.notify_all()
        answer = self.answer(asked)
        with self._changed:
            self.done[asked.key] += 1
            self._changed.notify_all()
        return answer

    def until(self, wanted: Callable[[], bool]) -> None:
        """Wait until what has come in is as `wanted`."""
        with self._changed:
            assert self._changed.wait_for(wanted, S_MAX), f"{len(self.asked)} requests, {self.done}"

    def until_asked(self, count: int = 1) -> None:
        self.until(lambda: len(self.asked) >= count)


@contextmanager
def tool_server() -> Iterator[ToolServer]:
    server = ToolServer()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        thread.join(S_MAX)


@dataclass(slots=True)
class Gate:
    """Holds an answer back until it is opened."""

    event: threading.Event

    def then(self, text: bytes) -> Callable[[Asked], Answer]:
        def answer(_asked: Asked) -> Answer:
            assert self.event.wait(S_MAX), "the gate stayed shut"
            return 200, text

        return answer

    def open(self) -> None:
        self.event.set()


def gate() -> Gate:
    return Gate(threading.Event())
