"""uvicorn's HTTP protocol with an end to everything that it waits for, and to how many wait.

Theory of operation
    uvicorn closes a connection that is idle between two requests, and no other: one on which nothing is asked, or half
    a request, or whose client does not read the answer, it keeps for as long as the client likes. Each takes a
    descriptor, of which calls need some as well.

Rules
* A request comes whole within `REQUEST_S_MAX`, and its answer has been read within `ANSWER_S_MAX`; else the connection
  is dropped. WebSockets have limits of their own, from their first byte on.
* At most `CONNECTIONS_MAX` carry requests; one beyond that is told so, and closed. Calls are counted elsewhere.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S_MAX = 10
ANSWER_S_MAX = 60  # the largest is the page's script, of a few hundred KiB
CONNECTIONS_MAX = 512

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


# What is waited for: a request, the end of its answer, or nothing by us.
_Phase = Literal["asking", "answering", "idle"]
_LASTS_S_MAX: dict[_Phase, float] = {"asking": REQUEST_S_MAX, "answering": ANSWER_S_MAX}


class HttpProtocol(H11Protocol):
    _phase: _Phase = "idle"
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if sum(isinstance(connection, HttpProtocol) for connection in self.connections) > CONNECTIONS_MAX:
            transport.write(_FULL)
            transport.close()
        self._enter("asking")

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter("idle")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._phase == "idle":
            self._enter("asking")
        super().data_received(data)
        if self._phase == "asking" and self._is_request_whole:
            self._enter("answering")

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._enter("idle")
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        self._enter("idle")
        super().on_response_complete()
        if self._is_request_whole:  # the next was sent ahead, or there is to be none
            self._enter("answering")

    @property
    def _is_request_whole(self) -> bool:
        return self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)

    def _enter(self, phase: _Phase) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        lasts_s_max = _LASTS_S_MAX.get(phase)
        self._phase = phase
        self._deadline = None if lasts_s_max is None else self.loop.call_later(lasts_s_max, self.transport.abort)
