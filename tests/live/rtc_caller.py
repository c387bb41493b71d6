"""A browser's side of a call, by aiortc, for tests: speaks or is silent, keeps what it hears and what it is told.

Theory of operation
    The microphone gives a frame every 20 ms, of a tone while `talk` says so. What comes back is kept as sound, and as
    the loudness of each frame with the moment of its arrival. Events are kept as they come; `until` waits for one.

Rules
* Every wait has a limit. Nothing but real time paces a call, so these tests are slow.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av.audio.frame import AudioFrame

from duplex.webrtc.loopback import offer_loopback
from tests.live.caller import LOUD, Message
from tests.live.service import EVENT_S_MAX, Answer, Reached

RATE = 48_000
FRAME_SAMPLES = RATE // 50
AUDIBLE = 0.02  # rms; the scripted voice's tone is far above, Opus's silence far below
SDP = {"Content-Type": "application/sdp"}


@dataclass(frozen=True, slots=True)
class Heard:
    """A frame of the service's sound."""

    at_ns: int
    pts: int
    rms: float


class Microphone(MediaStreamTrack):
    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.talking = False
        self.muted = asyncio.Event()
        self._began_s: float | None = None
        self._frames = 0

    async def recv(self) -> AudioFrame:
        now_s = time.monotonic()
        self._began_s = self._began_s if self._began_s is not None else now_s
        await asyncio.sleep(max(0.0, self._began_s + self._frames * 0.02 - now_s))
        if self.muted.is_set():
            await asyncio.Event().wait()
        clock = (np.arange(FRAME_SAMPLES) + self._frames * FRAME_SAMPLES) / RATE
        sound = np.sin(2 * np.pi * 300 * clock) * (LOUD * 32767 if self.talking else 0.0)
        frame = AudioFrame.from_ndarray(sound.astype(np.int16)[None, :], format="s16", layout="mono")
        frame.sample_rate, frame.time_base = RATE, Fraction(1, RATE)
        frame.pts = self._frames * FRAME_SAMPLES
        self._frames += 1
        return frame


class RtcCaller:
    def __init__(self) -> None:
        self.microphone = Microphone()
        self.peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.channel = self.peer.createDataChannel("oai-events")
        self.events: list[Message] = []
        self.heard: list[Heard] = []
        self._sound = bytearray()
        self.location = ""
        self._changed = asyncio.Condition()
        self._draining: asyncio.Task[None] | None = None
        self._notes: set[asyncio.Task[None]] = set()
        self.peer.addTrack(self.microphone)
        self.peer.on("track", self._track)
        self.opened = asyncio.Event()
        self.channel.on("message", self._message)
        self.channel.on("open", self.opened.set)

    # ---- connecting --------------------------------------------------------------------------------

    async def offer(self) -> str:
        await self.peer.setLocalDescription(await self.peer.createOffer())
        return str(self.peer.localDescription.sdp)

    async def accept(self, answer: Answer) -> None:
        assert answer.status == 201, answer.body
        self.location = answer.headers["location"]
        await self.peer.setRemoteDescription(RTCSessionDescription(answer.body.decode(), "answer"))

    async def close(self) -> None:
        await self.peer.close()
        if self._draining is not None:
            await self._draining

    # ---- what comes --------------------------------------------------------------------------------

    def _track(self, track: MediaStreamTrack) -> None:
        self._draining = asyncio.create_task(self._drain(track))

    async def _drain(self, track: MediaStreamTrack) -> None:
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            assert isinstance(frame, AudioFrame)
            self._frame(frame)
            await self._note()

    def _frame(self, frame: AudioFrame) -> None:
        assert frame.pts is not None
        sound = frame.to_ndarray().astype(np.float64) / 32768
        self._sound += frame.to_ndarray().reshape(-1, len(frame.layout.channels))[:, 0].astype("<i2").tobytes()
        self.heard.append(Heard(time.monotonic_ns(), frame.pts, float(np.sqrt(np.mean(sound**2)))))

    def _message(self, message: str) -> None:
        self.events.append(json.loads(message))
        self._noted()

    def _noted(self) -> None:
        noting = asyncio.create_task(self._note())
        self._notes.add(noting)
        noting.add_done_callback(self._notes.discard)

    async def _note(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def wait_for(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(EVENT_S_MAX), self._changed:
            await self._changed.wait_for(what)

    async def until(self, kind: str, *, since: int = 0) -> Message:
        """The first event of this type from number `since` on."""

        def found() -> Message | None:
            return next((event for event in self.events[since:] if event["type"] == kind), None)

        await self.wait_for(lambda: found() is not None)
        event = found()
        assert event is not None
        return event

    def forget(self) -> None:
        """What was heard so far: for whoever looks at memory."""
        self.heard.clear()
        self._sound.clear()

    def sound(self) -> bytes:
        """All that has come, the left channel as PCM16 at `RATE`."""
        return bytes(self._sound)

    def is_audible(self) -> bool:
        return bool(self.heard) and self.heard[-1].rms > AUDIBLE

    # ---- what goes ---------------------------------------------------------------------------------

    def send(self, kind: str, **fields: Any) -> None:
        self.channel.send(json.dumps({"type": kind, **fields}))

    async def hear_frames(self, count: int) -> None:
        """Let so many more frames come: the clock of these tests."""
        wanted = len(self.heard) + count
        await self.wait_for(lambda: len(self.heard) >= wanted)

    async def say_something(self) -> None:
        """Half a second of what is heard as speech, and the silence that ends the turn."""
        self.microphone.talking = True
        await self.hear_frames(25)
        self.microphone.talking = False

    async def ask(self, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        self.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
        self.send("response.create")


async def offer_of_nobody() -> bytes:
    """An offer whose caller is gone already."""
    offer_loopback()
    caller = RtcCaller()
    offer = await caller.offer()
    await caller.close()
    return offer.encode()


async def until_free(service: Reached, calls: int = 0) -> None:
    """Ask until so many places are taken."""
    async with asyncio.timeout(EVENT_S_MAX):
        while (await asyncio.to_thread(service.get, "/readyz")).json["calls"] != calls:
            pass


async def post(service: Reached, path: str, body: bytes, **headers: str) -> Answer:
    return await asyncio.to_thread(service.send, "POST", path, body, headers)


@asynccontextmanager
async def rtc_calling(service: Reached, *, query: str = "?extensions=1", **headers: str) -> AsyncIterator[RtcCaller]:
    """A call, from `session.created` to its end without a word: only the caller's side is closed."""
    caller = RtcCaller()
    async with connected(service, caller, query, headers):
        yield caller


@asynccontextmanager
async def connected(
    service: Reached, caller: RtcCaller, query: str = "?extensions=1", headers: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    """The call of this caller."""
    offer_loopback()
    try:
        offer = (await caller.offer()).encode()
        await caller.accept(await post(service, f"/v1/realtime/calls{query}", offer, **SDP, **(headers or {})))
        await caller.until("session.created")
        yield
    finally:
        await caller.close()
