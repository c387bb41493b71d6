"""A scripted Realtime server: a core that talks in microphone frames, and a loopback WebSocket around it.

Theory of operation
    The only clock is the microphone: each `input_audio_buffer.append` is a tick of 20 ms. A loud frame begins the
    caller's speech (two while the server itself speaks), `TURN_END_FRAMES` silent ones end it. A reply comes in
    40 ms chunks at the pace of the ticks, `lead_chunks` ahead. Faults are injected by `ReplyScript`.

It cannot represent: hold and resume, several items per turn, overlapping responses, or any real timing.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from loadtest.loudness import audible_span
from media.audio_format import FORMATS, PCM_RATE, AudioFormat
from media.chunk import rescale

CHUNK_SAMPLES = 960  # of PCM; of a telephone's sound as much time
CHUNK_TICKS = 2
TURN_END_FRAMES = 5
BARGE_IN_FRAMES = 2
LOUD = (9_000).to_bytes(2, "little")

Event = dict[str, Any]


@dataclass(frozen=True)
class ReplyScript:
    """How one turn is answered. Chunk numbers count from 0; -1 means never."""

    chunks: int = 10
    silent_chunks: int = 0
    delay_ticks: int = 3
    lead_chunks: int = 2
    skip_chunk: int = -1
    repeat_chunk: int = -1
    stale_chunks: int = 0
    vanish_at_chunk: int = -1
    stall_at_chunk: int = -1
    error_code: str = ""
    nonsense: bool = False
    replaced: bool = False
    mute: bool = False
    status: str = "completed"
    drains: bool = True


@dataclass(frozen=True)
class Script:
    """The whole call. The last reply is used for all further turns; `resume_token` None is a stock server."""

    replies: tuple[ReplyScript, ...] = (ReplyScript(),)
    resume_token: str | None = "r-token"
    greeting: ReplyScript | None = None
    refuse_settings: Event | None = None
    resumed: Event = field(default_factory=dict)


class Vanish(Exception):
    """The script says that the server dies here. What it still said is in `events`."""

    def __init__(self, events: list[Event]) -> None:
        super().__init__()
        self.events = events


@dataclass
class _Active:
    """The reply being given."""

    response_id: str
    script: ReplyScript
    epoch: int
    started_tick: int
    sent_chunks: int = 0
    created: bool = False


@dataclass
class FakeConversation:
    """The core: one session. `received` are the client's messages other than audio; the first of them names the format
    of both ways."""

    script: Script = field(default_factory=Script)
    format: AudioFormat = FORMATS["audio/pcm"]
    received: list[Event] = field(default_factory=list)
    ticks: int = 0
    turns: int = 0
    epoch: int = 1
    _seq: int = 0
    _responses: int = 0
    _loud_frames: int = 0
    _silent_frames: int = 0
    _hearing: bool = False
    _active: _Active | None = None

    def greet(self) -> list[Event]:
        session = {"id": "sess_1", "type": "realtime"}
        if self.script.resume_token is not None:
            session["resume_token"] = self.script.resume_token
        return self._number([{"type": "session.created", "session": session}, {"type": "conversation.created"}])

    def on_message(self, message: Event) -> list[Event]:
        """Take one client message; the events that it causes. Raises `Vanish`."""
        if message["type"] == "input_audio_buffer.append":
            try:
                return self._number(self._on_frame(base64.b64decode(message["audio"])))
            except Vanish as vanish:
                raise Vanish(self._number(vanish.events)) from None
        self.received.append(message)
        if message["type"] == "session.update":
            sound = message.get("session", {}).get("audio", {}).get("output", {}).get("format")
            self.format = FORMATS[sound["type"]] if sound else self.format
            return self._number(self._on_settings())
        if message["type"] == "session.resume":
            self._seq = 1_000
            return self._number([{"type": "session.resumed"} | self.script.resumed])
        if message["type"] == "response.cancel":
            return self._number(self._end("cancelled", "client_cancelled"))
        return []

    def _on_settings(self) -> list[Event]:
        if self.script.refuse_settings is not None:
            return [{"type": "error", "error": self.script.refuse_settings}]
        if self.script.greeting is not None:
            self._open(self.script.greeting)
        return [{"type": "session.updated", "session": {}}]

    def _on_frame(self, coded: bytes) -> list[Event]:
        self.ticks += 1
        events = self._listen(audible_span(self.format.decode(coded), self.format.sample_rate) is not None)
        return events + self._speak()

    def _listen(self, loud: bool) -> list[Event]:
        self._loud_frames = self._loud_frames + 1 if loud else 0
        self._silent_frames = 0 if loud else self._silent_frames + 1
        item_id = f"item_{self.turns + 1}"
        if not self._hearing and self._loud_frames >= (1 if self._active is None else BARGE_IN_FRAMES):
            self._hearing = True
            started = [{"type": "input_audio_buffer.speech_started", "item_id": item_id, "audio_start_ms": 0}]
            return started + self._end("cancelled", "turn_detected")
        if not self._hearing or self._silent_frames < TURN_END_FRAMES:
            return []
        self._hearing = False
        replies = self.script.replies
        self._open(replies[min(self.turns, len(replies) - 1)])
        self.turns += 1
        transcribed = "conversation.item.input_audio_transcription.completed"
        return [
            {"type": "input_audio_buffer.speech_stopped", "item_id": item_id, "audio_end_ms": 0},
            {"type": "input_audio_buffer.committed", "item_id": item_id},
            {"type": transcribed, "item_id": item_id, "transcript": f" question {self.turns}"},
        ]

    def _open(self, script: ReplyScript) -> None:
        if script.mute:
            return
        self._responses += 1
        self._active = _Active(f"resp_{self._responses}", script, self.epoch, self.ticks + script.delay_ticks)

    def _speak(self) -> list[Event]:
        active = self._active
        if active is None or self.ticks < active.started_tick:
            return []
        if active.script.error_code:
            self._active = None
            return [
                {"type": "error", "error": {"type": "server_error", "code": active.script.error_code, "message": "no"}}
            ]
        if active.script.replaced:
            return [{"type": "session.replaced"}]
        if active.script.nonsense:
            return [{"type": "response.done"}]
        events: list[Event] = []
        if not active.created:
            active.created = True
            events.append({"type": "response.created", "response": {"id": active.response_id}})
        due = active.script.lead_chunks + 1 + (self.ticks - active.started_tick) // CHUNK_TICKS
        while active.sent_chunks < min(due, active.script.chunks):
            if active.sent_chunks == active.script.stall_at_chunk:
                return events
            if active.sent_chunks == active.script.vanish_at_chunk:
                raise Vanish(events)
            events += self._chunk(active)
        if active.sent_chunks == active.script.chunks:
            events += self._end(active.script.status, None)
        return events

    def _chunk(self, active: _Active) -> list[Event]:
        index = active.sent_chunks
        active.sent_chunks += 1
        if index == active.script.skip_chunk:
            return []
        audio = self._delta(active, index)
        text = {
            "type": "response.output_audio_transcript.delta",
            "response_id": active.response_id,
            "item_id": f"item_{active.response_id}",
            "delta": f"{index} ",
        }
        return [audio, audio, text] if index == active.script.repeat_chunk else [audio, text]

    def _delta(self, active: _Active, index: int) -> Event:
        sample = b"\0\0" if index < active.script.silent_chunks else LOUD
        samples = rescale(CHUNK_SAMPLES, PCM_RATE, self.format.sample_rate)
        event: Event = {
            "type": "response.output_audio.delta",
            "response_id": active.response_id,
            "item_id": f"item_{active.response_id}",
            "delta": base64.b64encode(self.format.encode(sample * samples)).decode(),
        }
        if self.script.resume_token is not None:
            rate = self.format.sample_rate
            offsets = {"start_sample": index * samples, "samples": samples, "sample_rate": rate}
            event |= offsets | {"epoch": active.epoch, "watermark": 0}
        return event

    def _end(self, status: str, reason: str | None) -> list[Event]:
        active, self._active = self._active, None
        if active is None:
            return []
        if status == "cancelled":
            self.epoch += 1
        response: Event = {"id": active.response_id, "status": status}
        if reason is not None:
            response["status_details"] = {"type": status, "reason": reason}
        events: list[Event] = [] if active.created else [{"type": "response.created", "response": response}]
        events.append({"type": "response.done", "response": response, "timings": {"thinker": 12.5}})
        if status == "cancelled":
            events += [self._delta(active, active.sent_chunks + n) for n in range(active.script.stale_chunks)]
        if self.script.resume_token is not None and active.script.drains:
            drained = {"response_id": active.response_id, "status": "complete", "lag_ms": 7, "released": {"kv": 3}}
            events.append({"type": "response.drained"} | drained)
        return events

    def _number(self, events: list[Event]) -> list[Event]:
        numbered = []
        for event in events:
            self._seq += 1
            numbered.append(dict(event) | {"event_id": f"event_{self._seq}", "server_event_seq": self._seq})
        return numbered


@dataclass(frozen=True)
class Refusal:
    """An HTTP answer instead of the handshake."""

    status: HTTPStatus
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Farewell:
    """What is said instead of `session.created`, and how the socket is closed."""

    events: tuple[Event, ...]
    close_code: int


@dataclass
class FakeRealtimeServer:
    """The shell, and what it has seen. Use `serving`."""

    script: Script = field(default_factory=Script)
    refusal: Refusal | None = None
    farewell: Farewell | None = None
    tls: ssl.SSLContext | None = None
    url: str = ""
    paths: list[str] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    conversations: list[FakeConversation] = field(default_factory=list)
    events_sent: int = 0

    @property
    def frames_handled(self) -> int:
        return sum(conversation.ticks for conversation in self.conversations)

    def answer_handshake(self, _connection: ServerConnection, request: Request) -> Response | None:
        self.paths.append(request.path)
        self.authorizations.append(request.headers.get("Authorization"))
        if self.refusal is None:
            return None
        headers = Headers(self.refusal.headers | {"Content-Length": str(len(self.refusal.body)), "Connection": "close"})
        return Response(self.refusal.status, self.refusal.status.phrase, headers, self.refusal.body.encode())

    async def converse(self, connection: ServerConnection) -> None:
        if self.farewell is not None:
            await self._send(connection, list(self.farewell.events))
            await connection.close(self.farewell.close_code)
            return
        conversation = FakeConversation(self.script)
        self.conversations.append(conversation)
        await self._send(connection, conversation.greet())
        async for text in connection:
            try:
                events = conversation.on_message(json.loads(text))
            except Vanish as vanish:
                await self._send(connection, vanish.events)
                connection.transport.abort()
                return
            await self._send(connection, events)

    async def _send(self, connection: ServerConnection, events: list[Event]) -> None:
        for event in events:
            self.events_sent += 1
            await connection.send(json.dumps(event))

    def listen(self) -> socket.socket:
        """A free loopback port, whose address is in `url` from here on; nobody answers there before `serving`."""
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'wss' if self.tls else 'ws'}://127.0.0.1:{listening.getsockname()[1]}"
        return listening


@asynccontextmanager
async def serving(
    server: FakeRealtimeServer, listening: socket.socket | None = None
) -> AsyncIterator[FakeRealtimeServer]:
    """Serve at `listening`, or on a port of its own, until the block ends."""
    async with serve(
        server.converse,
        sock=listening or server.listen(),
        ssl=server.tls,
        process_request=server.answer_handshake,
        compression=None,
    ):
        yield server
