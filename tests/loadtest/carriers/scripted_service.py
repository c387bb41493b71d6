"""A service at the other end of a carrier: it answers what is loud, and stops when it is interrupted."""

from __future__ import annotations

import json
import socket
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request
from websockets.typing import Subprotocol

from media.audio_format import FORMATS
from tests.loadtest.fake_realtime_server import LOUD

FRAME_MS = 20
PHONE = FORMATS["audio/pcmu"]
Message = str | bytes
Kind = Literal["twilio", "telnyx", "asterisk"]


@dataclass(frozen=True)
class Script:
    """`replies_ms`: one for each thing that the caller says. `mistake`: sent once, as it is, with the first reply."""

    replies_ms: tuple[int, ...] = (300,) * 8
    greeting_ms: int = 0
    mistake: Message | None = None
    hangs_up: bool = False
    stops_when_interrupted: bool = True


class Agent:
    """Decides: what is said, and when it is silent. Frames are PCM16 of 20 ms."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._loud = self._quiet = 0
        self._speaking_frames = 0
        self.replies = 0

    def hear(self, pcm: bytes) -> tuple[bool, int]:
        """Whether to fall silent, and how long a reply to begin."""
        loud = bool(np.abs(np.frombuffer(pcm, "<i2")).max(initial=0) > 500)
        self._speaking_frames = max(0, self._speaking_frames - 1)
        self._loud, self._quiet = (self._loud + 1, 0) if loud else (self._loud, self._quiet + 1)
        if loud and self._loud == 3 and self._speaking_frames and self._script.stops_when_interrupted:
            self._speaking_frames = 0
            return True, 0
        if self._loud >= 3 and self._quiet >= 4:
            self._loud = 0
            self.replies += 1
            return False, self.begin(self._script.replies_ms[(self.replies - 1) % len(self._script.replies_ms)])
        return False, 0

    def begin(self, ms: int) -> int:
        self._speaking_frames = ms // FRAME_MS
        return ms


class Conversation:
    """One call, in the language of a carrier."""

    def __init__(self, script: Script, kind: Kind) -> None:
        self._script = script
        self._kind = kind
        self._agent = Agent(script)
        self._stream = ""
        self._is_spoilt = script.mistake is None
        self.received: list[dict[str, Any]] = []
        self.frames = 0
        self.marks: list[str] = []
        self.hung_up = False

    def on_message(self, message: Message) -> list[Message]:
        if isinstance(message, bytes):
            return self._hear(message)
        event = json.loads(message)
        self.received.append(event)
        match event["event"]:
            case "start":
                self._stream = event.get("streamSid") or event["stream_id"]
                return self._say(self._agent.begin(self._script.greeting_ms))
            case "MEDIA_START":
                return self._say(self._agent.begin(self._script.greeting_ms))
            case "media":
                return self._hear(b64decode(event["media"]["payload"]))
            case "mark":
                self.marks.append(event["mark"]["name"])
            case "MEDIA_MARK_PROCESSED":
                self.marks.append(event["correlation_id"])
        return []

    def _hear(self, coded: bytes) -> list[Message]:
        self.frames += 1
        silent, ms = self._agent.hear(PHONE.decode(coded))
        messages = self._clear() if silent else []
        if ms and not self._is_spoilt and self._script.mistake is not None:
            self._is_spoilt = True
            messages.append(self._script.mistake)
        self.hung_up = self._script.hangs_up and self._agent.replies > 0
        return messages + self._say(ms)

    def _say(self, ms: int) -> list[Message]:
        if not ms:
            return []
        coded = PHONE.encode(LOUD * 8 * ms)
        name = f"{self._agent.replies}:{8 * ms}"
        if self._kind == "asterisk":
            return [coded, json.dumps({"command": "MARK_MEDIA", "correlation_id": name})]
        return [
            self._command("media", media={"payload": b64encode(coded).decode()}),
            self._command("mark", mark={"name": name}),
        ]

    def _clear(self) -> list[Message]:
        return ['{"command":"FLUSH_MEDIA"}'] if self._kind == "asterisk" else [self._command("clear")]

    def _command(self, event: str, **fields: Any) -> str:
        return json.dumps({"event": event} | ({"streamSid": self._stream} if self._kind == "twilio" else {}) | fields)


@dataclass
class ScriptedService:
    """The shell, and what it has seen."""

    script: Script = field(default_factory=Script)
    kind: Kind = "twilio"
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    conversations: list[Conversation] = field(default_factory=list)
    events_sent: int = 0

    @property
    def frames_handled(self) -> int:
        return sum(conversation.frames for conversation in self.conversations)

    async def converse(self, connection: ServerConnection) -> None:
        conversation = Conversation(self.script, self.kind)
        self.conversations.append(conversation)
        try:
            async for message in connection:
                for answer in conversation.on_message(message):
                    self.events_sent += 1
                    await connection.send(answer)
                if conversation.hung_up:
                    await connection.close(1000, "goodbye")
        except ConnectionClosed:
            pass  # the carrier is gone, whatever there was to say

    def listen(self) -> socket.socket:
        """A free loopback port, whose address is in `url` from here on; nobody answers there before `serving`."""
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{listening.getsockname()[1]}"
        return listening


@asynccontextmanager
async def serving(service: ScriptedService, listening: socket.socket | None = None) -> AsyncIterator[ScriptedService]:
    """Serve at `listening`, or on a port of its own, until the block ends."""

    def note(_connection: ServerConnection, request: Request) -> None:
        service.requests.append(request)

    subprotocols = [Subprotocol("media")] if service.kind == "asterisk" else None
    async with serve(
        service.converse,
        sock=listening or service.listen(),
        process_request=note,
        subprotocols=subprotocols,
        compression=None,
    ):
        yield service
