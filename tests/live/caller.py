"""A caller over the public WebSocket, for tests: sends events, keeps all that it gets, waits for what it names."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from loadtest.sent_sound import SentSound
from tests.live.service import EVENT_S_MAX, Reached

RATE = 24_000
LOUD = 0.3  # the scripted engine hears what is louder than 0.05

BROKEN = (1006, "")  # no close frame came (RFC 6455, section 7.1.5)

Message = dict[str, Any]


def tone(ms: int, *, hz: int = 300) -> bytes:
    """Sound that is heard as speech, PCM16 at 24 kHz."""
    clock = np.arange(ms * RATE // 1000) / RATE
    pcm: bytes = (np.sin(2 * np.pi * hz * clock) * LOUD * 32767).astype("<i2").tobytes()
    return pcm


def silence(ms: int) -> bytes:
    return bytes(2 * (ms * RATE // 1000))


def utterance() -> bytes:
    """A spoken turn, with the silence that ends it."""
    return silence(300) + tone(500) + silence(800)


def interruption() -> bytes:
    """A spoken turn that is too long to be a listener's, whatever its words are."""
    return silence(300) + tone(1_000) + silence(800)


class Caller:
    def __init__(self, connection: ClientConnection) -> None:
        self.socket = connection
        self.events: list[Message] = []
        self._sent = SentSound()

    @property
    def session(self) -> str:
        """That of the call, also where it was taken up again."""
        begins = (event for event in reversed(self.events) if event["type"] in ("session.created", "session.resumed"))
        name: str = next(begins)["session"]["id"]
        return name

    def send(self, kind: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def hear(self, pcm: bytes) -> None:
        """Send `pcm`, faster than anybody can speak."""
        self._sent.add(pcm)
        self.send("input_audio_buffer.append", audio=base64.b64encode(pcm).decode())

    @property
    def said_samples(self) -> int:
        """Where what is said next stands in the session's input."""
        return self._sent.end

    def hear_again(self, earlier: Caller, sample: int) -> None:
        """Send once more what was said from `sample` on, on the connection before."""
        self._sent = earlier._sent
        while (piece := self._sent.since(sample)) is not None:
            audio = base64.b64encode(piece.coded).decode()
            self.send("input_audio_buffer.append", audio=audio, start_sample=piece.start)
            sample = piece.end

    def type_text(self, text: str, **fields: Any) -> None:
        content = [{"type": "input_text", "text": text}]
        self.send("conversation.item.create", item={"type": "message", "role": "user", "content": content, **fields})

    def next(self) -> Message:
        message: Message = json.loads(self.socket.recv(timeout=EVENT_S_MAX))
        self.events.append(message)
        return message

    def until(self, wanted: str | Callable[[Message], bool]) -> Message:
        """Read on until an event of this type, or one that is `wanted`."""
        while True:
            message = self.next()
            if message["type"] == wanted if isinstance(wanted, str) else wanted(message):
                return message

    def find(self, wanted: Callable[[Message], bool], *, since: int = 0) -> Message:
        """The first event from number `since` on that is `wanted`, which may have come already."""
        found = next((event for event in self.events[since:] if wanted(event)), None)
        return found if found is not None else self.until(wanted)

    def until_closed(self) -> tuple[int, str]:
        """Read on to the end; the close code and reason that came."""
        try:
            while True:
                self.next()
        except ConnectionClosed as closed:
            return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else BROKEN

    def break_off(self) -> None:
        """Close the connection without a close frame, as the end of a process does."""
        self.socket.socket.shutdown(socket.SHUT_RDWR)

    def settle(self, **session: Any) -> Message:
        """Change the session, and wait for the answer: then all that was asked before has been acted on."""
        self.send("session.update", session={"type": "realtime", **session})
        return self.until("session.updated")

    def types(self, *, since: int = 0) -> list[str]:
        return [event["type"] for event in self.events[since:]]

    def of_type(self, kind: str) -> list[Message]:
        return [event for event in self.events if event["type"] == kind]


def audio_of(events: list[Message], response: str) -> bytes:
    """The sound of one response, in the order of its arrival."""
    kind = "response.output_audio.delta"
    return b"".join(base64.b64decode(e["delta"]) for e in events if e["type"] == kind and e["response_id"] == response)


def slow_reader(service: Reached) -> socket.socket:
    """A socket that takes little before somebody reads it."""
    host, _, port = service.address.partition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.connect((host, int(port)))
    return connection


@contextmanager
def calling(
    service: Reached,
    *,
    query: str = "?extensions=1",
    headers: dict[str, str] | None = None,
    subprotocols: list[str] | None = None,
    origin: str | None = None,
    max_queue: int | None = None,
    sock: socket.socket | None = None,
) -> Iterator[Caller]:
    """A call, from `session.created` to the caller's hanging up. `max_queue`: messages that are read ahead (all)."""
    extra = {**(headers or {}), **({"Origin": origin} if origin else {})}
    with connect(
        f"ws://{service.address}/v1/realtime{query}",
        additional_headers=extra,
        subprotocols=[Subprotocol(name) for name in subprotocols] if subprotocols else None,
        compression=None,
        proxy=None,
        max_size=None,
        max_queue=max_queue,
        sock=sock,
        open_timeout=EVENT_S_MAX,
        close_timeout=EVENT_S_MAX,
    ) as connection:
        caller = Caller(cast("ClientConnection", connection))
        caller.until("session.created")
        yield caller
