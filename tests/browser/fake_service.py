"""A service that says what a test tells it to: the page's files, the call endpoint, events and a tone.

Theory of operation
    Starlette under uvicorn in a thread of its own; aiortc answers offers on loopback. Tests are synchronous: they wait
    for what the page has sent, and hand over what it shall receive. The tone is gapless; a gate makes it audible.

Rules
* Every wait is for an event and has a limit.

What it cannot represent: turn-taking, real speech, loss on the network.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import aioice.ice
import numpy as np
import uvicorn
from aiortc import AudioStreamTrack, RTCConfiguration, RTCDataChannel, RTCPeerConnection, RTCSessionDescription
from av import AudioFrame
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from duplex.pages import page_routes

Message = dict[str, Any]

WAIT_S_MAX = 10.0
RATE = 48_000
FRAME_SAMPLES = 960
TONE_HZ = 440

OUTPUT_RATE = 24_000
WORD_SAMPLES = 6_000

VOICES = ("joe", "amy")


class GatedTone(AudioStreamTrack):
    """A tone while `audible`, silence otherwise, in real time; nothing at all once `frozen`."""

    def __init__(self) -> None:
        super().__init__()
        self.audible = False
        self.frozen = False
        self._sent = 0
        self._began_s: float | None = None

    def begin(self) -> None:
        self.audible = True

    def end(self) -> None:
        self.audible = False

    async def recv(self) -> AudioFrame:
        loop = asyncio.get_running_loop()
        if self._began_s is None:
            self._began_s = loop.time()
        if self.frozen:
            await asyncio.Event().wait()
        await asyncio.sleep(self._began_s + self._sent / RATE - loop.time())
        clock = (self._sent + np.arange(FRAME_SAMPLES)) / RATE
        wave = np.sin(2 * np.pi * TONE_HZ * clock) * (6_000 if self.audible else 0)
        frame = AudioFrame.from_ndarray(wave.astype(np.int16)[np.newaxis, :], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self._sent, Fraction(1, RATE)
        self._sent += FRAME_SAMPLES
        return frame


class FakeCall:
    """One connection of a page. `received` is all that came over its data channel.

    What is put in is confirmed as the service does, unless it is `deaf`: then it is lost, as on a connection that dies.
    """

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        self.peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.tone = GatedTone()
        self.received: list[Message] = []
        self.deaf = False
        self.hung_up = False
        self._channel: RTCDataChannel | None = None
        self._loop = loop
        self.changed = threading.Condition()
        self.peer.on("datachannel", self._opened)

    def _opened(self, channel: RTCDataChannel) -> None:
        self._channel = channel
        channel.on("message", self._message)
        self._say("session.created", session={"id": "sess", "resume_token": f"sess.{self.number}"})

    def _message(self, text: str) -> None:
        message = json.loads(text)
        with self.changed:
            self.received.append(message)
            self.changed.notify_all()
        if not self.deaf:
            self._confirm(message)

    def _confirm(self, message: Message) -> None:
        if message["type"] == "session.update":
            self._say("session.updated", session=message["session"])
        elif message["type"] == "conversation.item.create":
            for kind in ("added", "done"):
                self._say(f"conversation.item.{kind}", item=message["item"], previous_item_id=None)

    def _say(self, kind: str, **fields: Any) -> None:
        assert self._channel is not None
        self._channel.send(json.dumps({"type": kind, **fields}))

    def say(self, kind: str, **fields: Any) -> None:
        """Send one event to the page."""
        self._loop.call_soon_threadsafe(lambda: self._say(kind, **fields))

    def wait(self, wanted: Callable[[], bool], what: str) -> None:
        with self.changed:
            assert self.changed.wait_for(wanted, WAIT_S_MAX), f"{what} did not come; received {self.types()}"

    def next(self, kind: str, number: int = 1) -> Message:
        """The `number`th event of this type, once it has come."""
        found: list[Message] = []

        def come() -> bool:
            found[:] = [message for message in self.received if message["type"] == kind]
            return len(found) >= number

        self.wait(come, kind)
        return found[number - 1]

    def types(self) -> list[str]:
        return [str(message["type"]) for message in self.received]

    def resume(self, *items: Message) -> None:
        """The conversation goes on with what had been said."""
        self.say("session.resumed", session={"id": "sess"}, items=list(items), input_samples_received=0, epoch=1)

    def drop(self) -> None:
        """The connection breaks."""
        asyncio.run_coroutine_threadsafe(self.peer.close(), self._loop).result(WAIT_S_MAX)

    # ---- turns -------------------------------------------------------------------------------------

    def hear(self, item: str, text: str) -> None:
        """The caller is heard saying `text`."""
        self.say("input_audio_buffer.speech_started", item_id=item, audio_start_ms=0)
        self.say("input_audio_buffer.speech_stopped", item_id=item, audio_end_ms=100)
        self.say("input_audio_buffer.committed", item_id=item, previous_item_id=None)
        self.say("conversation.item.input_audio_transcription.completed", item_id=item, transcript=text)

    def begin_reply(self, response: str, *words: str) -> None:
        """A reply begins, with text and sound."""
        item = {"id": f"item_{response}", "type": "message", "role": "assistant", "content": []}
        self.say("response.created", response={"id": response, "status": "in_progress", "output_modalities": ["audio"]})
        self.say("conversation.item.added", item=item, previous_item_id=None)
        for word in words:
            self.say("response.output_audio_transcript.delta", item_id=item["id"], response_id=response, delta=word)
        self.say("output_audio_buffer.started", response_id=response)
        self._loop.call_soon_threadsafe(self.tone.begin)  # not before what was said of it

    def time_words(self, response: str, *words: str) -> None:
        """Each of `words` has `WORD_SAMPLES` of the reply, one after the other from its start."""
        place = {"response_id": response, "item_id": f"item_{response}", "samples": WORD_SAMPLES}
        for number, word in enumerate(words):
            start = number * WORD_SAMPLES
            self.say("response.audio_timestamp.delta", **place, text=word, start_sample=start, sample_rate=OUTPUT_RATE)

    def acknowledge(self, response: str, played: int, until: int | None = None) -> None:
        """The ear has come to sample `played`, and what was sent goes on without a gap until `until`."""
        place = {"played_samples": played, "until_sample": played if until is None else until}
        self.say("playback.acknowledged", response_id=response, **place, sample_rate=OUTPUT_RATE)

    def end_reply(
        self, response: str, text: str, *, reason: str | None = None, lag_ms: float = 41.7, cut_word: str = ""
    ) -> None:
        """It ends, complete or cancelled for `reason`; its resources follow."""
        self._loop.call_soon_threadsafe(self.tone.end)
        content = [{"type": "output_audio", "transcript": text}]
        item: Message = {"id": f"item_{response}", "type": "message", "role": "assistant", "content": content}
        body: Message = {"id": response, "status": "completed", "status_details": None, "output": [item]}
        if reason is not None:
            item |= {"cut": True, "cut_word": cut_word, "heard_ms": 0, "heard_basis": "acked"}
            body |= {"status": "cancelled", "status_details": {"type": "cancelled", "reason": reason}}
        self.say("conversation.item.done", item=item)
        self.say("response.done", response=body | {"output_modalities": ["audio"]})
        ended = "output_audio_buffer.stopped" if reason is None else "output_audio_buffer.cleared"
        self.say(ended, response_id=response)
        self.say("response.drained", response_id=response, status="complete", lag_ms=lag_ms, released={})


class _Server(uvicorn.Server):
    """uvicorn that says when it listens."""

    def __init__(self, config: uvicorn.Config, listening: threading.Event) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening.set()


class FakeService:
    """`refusal`: (status, code, retry_after_s) with which calls are refused while it is set."""

    def __init__(self) -> None:
        self.refusal: tuple[int, str, int | None] | None = None
        self.token: str | None = None
        self.calls: list[FakeCall] = []
        self.requests: list[dict[str, str]] = []
        self._changed = threading.Condition()
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        config = uvicorn.Config(self._app(), port=0, log_config=None, access_log=False, ws="none", lifespan="off")
        self._server = _Server(config, self._started)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/realtime/calls", self._call, methods=["POST"]),
                Route("/v1/capabilities", self._capabilities),
                Route("/v1/realtime/client_secrets", self._secret, methods=["POST"]),
                Route("/v1/realtime/calls/{number:int}/hangup", self._hangup, methods=["POST"]),
                *page_routes(),
            ]
        )

    async def _secret(self, _request: Request) -> Response:
        return JSONResponse({"value": "ek_secret", "expires_at": 0})

    async def _capabilities(self, _request: Request) -> Response:
        return JSONResponse({"voices": list(VOICES)})

    async def _call(self, request: Request) -> Response:
        self.requests.append({**request.headers, "query": request.url.query})
        if self.refusal is not None:
            status, code, retry_after_s = self.refusal
            error = {"type": "server_error", "code": code, "message": "refused", "retry_after_s": retry_after_s}
            return JSONResponse({"error": error}, status)
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            given = "invalid_token" if "authorization" in request.headers else "missing_token"
            return JSONResponse({"error": {"code": given, "message": "send the token"}}, 401)
        call = FakeCall(len(self.calls) + 1, self._loop)
        call.peer.addTrack(call.tone)
        offer = RTCSessionDescription((await request.body()).decode(), "offer")
        await call.peer.setRemoteDescription(offer)
        await call.peer.setLocalDescription(await call.peer.createAnswer())
        with self._changed:
            self.calls.append(call)
            self._changed.notify_all()
        headers = {"Location": f"/v1/realtime/calls/{call.number}"}
        return PlainTextResponse(call.peer.localDescription.sdp, 201, headers, media_type="application/sdp")

    async def _hangup(self, request: Request) -> Response:
        call = self.calls[request.path_params["number"] - 1]
        with call.changed:
            call.hung_up = True
            call.changed.notify_all()
        return Response(status_code=204)

    def call(self, number: int = 1) -> FakeCall:
        """The `number`th connection, once it is there."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= number, WAIT_S_MAX), "no call came"
            return self.calls[number - 1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def reset(self) -> None:
        """Hang up, and be as new."""
        for call in self.calls:
            call.drop()
        self.calls.clear()
        self.requests.clear()
        self.refusal = self.token = None

    # ---- its thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        await self._server.serve()

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(WAIT_S_MAX), "the fake service did not start"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(WAIT_S_MAX)
        assert not self._thread.is_alive(), "the fake service did not end"


def _loopback_only(use_ipv4: bool, use_ipv6: bool) -> list[str]:
    return ["127.0.0.1"]


@contextmanager
def fake_service() -> Iterator[FakeService]:
    """A running fake; aiortc uses loopback while it lives."""
    before = aioice.ice.get_host_addresses
    aioice.ice.get_host_addresses = _loopback_only
    service = FakeService()
    service.start()
    try:
        yield service
    finally:
        service.stop()
        aioice.ice.get_host_addresses = before
