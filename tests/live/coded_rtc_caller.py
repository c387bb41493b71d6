"""A browser's side of a call that knows which words reached its ear, over a network of its own, for tests.

Theory of operation
    Frames of the track and messages of the channel take as much longer as the `Network` says, and none overtakes
    another of its kind. What has come out of the track is played at once. `RtcLine` is such a caller as a thread sees
    it, while the peer lives on the event loop.

Rules
* Where the caller reports, it does so ten times a second, as a page does.
* After `hang_up` nothing is heard any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from av.audio.frame import AudioFrame

from tests.live.caller import Message
from tests.live.coded_caller import Delay, Network
from tests.live.rtc_caller import RATE, RtcCaller, connected
from tests.live.service import Service

REPORT_S = 0.1
FRAME_MS = 20
SPEAK_S_MAX = 1.5
TICK_S = 1e-6  # timers of the same moment have no order


class _Way:
    """One direction of the network."""

    def __init__(self, delay_ms: Delay) -> None:
        self._delay_ms = delay_ms
        self._last_s = 0.0
        self.waiting = 0

    def carry(self, act: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._last_s = max(loop.time() + self._delay_ms() / 1_000, self._last_s + TICK_S)
        self.waiting += 1
        loop.call_at(self._last_s, self._arrive, act)

    def _arrive(self, act: Callable[[], None]) -> None:
        self.waiting -= 1
        act()

    async def until_empty(self) -> None:
        """Return once all that is under way by now has arrived."""
        arrived = asyncio.Event()
        self.carry(arrived.set)
        await arrived.wait()


class CodedRtcCaller(RtcCaller):
    def __init__(self, network: Network, *, reports: bool) -> None:
        super().__init__()
        self._sound_way, self._message_way = _Way(network.down_ms), _Way(network.down_ms)
        self._way_out = _Way(network.up_ms)
        self._reports = reports
        self._reporting: asyncio.Task[None] | None = None
        self._hears = True

    def _frame(self, frame: AudioFrame) -> None:
        self._sound_way.carry(lambda: self._play(frame))

    def _play(self, frame: AudioFrame) -> None:
        if self._hears:
            super()._frame(frame)
            self._noted()

    def _message(self, message: str) -> None:
        self._message_way.carry(lambda: super(CodedRtcCaller, self)._message(message))

    def send(self, kind: str, **fields: Any) -> None:
        self._way_out.carry(lambda: super(CodedRtcCaller, self).send(kind, **fields))

    @property
    def unplayed_frames(self) -> int:
        return self._sound_way.waiting

    def begin_reports(self) -> None:
        if self._reports:
            self._reporting = asyncio.create_task(self._report())

    async def _report(self) -> None:
        while self._hears:
            await asyncio.sleep(REPORT_S)
            if self.heard:
                last = self.heard[-1]
                # Once the last frame is over, nothing more is played before the next.
                age_ms = min(FRAME_MS, (time.monotonic_ns() - last.at_ns) / 1e6)
                timestamp = (self._rtp_origin() + last.pts) % (1 << 32)
                self.send("playback.ack", rtp_timestamp=timestamp, age_ms=age_ms, output_latency_ms=0)

    def _rtp_origin(self) -> int:
        """aiortc counts from the first frame; a browser tells the packet's own timestamp."""
        (transceiver,) = self.peer.getTransceivers()
        receiver: Any = transceiver.receiver
        origin: int = receiver._RTCRtpReceiver__timestamp_mapper._origin
        return origin

    async def speak(self, until: Callable[[], bool]) -> None:
        """Speak until it is so."""
        self.microphone.talking = True
        try:
            async with asyncio.timeout(SPEAK_S_MAX):
                await self.wait_for(until)
        except TimeoutError:
            pass
        finally:
            self.microphone.talking = False

    async def hang_up(self) -> bytes:
        """Play no more, and see to it that what was sent before has arrived; the sound of this call."""
        self._hears = False
        if self._reporting is not None:
            self._reporting.cancel()
        await self._way_out.until_empty()
        return self.sound()


class RtcLine:
    """The caller, for a thread other than its loop's."""

    rate = RATE

    def __init__(self, caller: CodedRtcCaller, loop: asyncio.AbstractEventLoop) -> None:
        self._caller = caller
        self._loop = loop
        self.events: list[Message] = caller.events

    def send(self, kind: str, **fields: Any) -> None:
        self._loop.call_soon_threadsafe(lambda: self._caller.send(kind, **fields))

    def type_text(self, text: str, **fields: Any) -> None:
        content = [{"type": "input_text", "text": text}]
        self.send("conversation.item.create", item={"type": "message", "role": "user", "content": content, **fields})

    def listen_for(self, ms: int) -> None:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(ms / 1_000), self._loop).result()

    def hear_until(self, wanted: Callable[[], bool], ms_max: int) -> bool:
        return asyncio.run_coroutine_threadsafe(self._wait(wanted, ms_max), self._loop).result()

    async def _wait(self, wanted: Callable[[], bool], ms_max: int) -> bool:
        try:
            async with asyncio.timeout(ms_max / 1_000):
                await self._caller.wait_for(wanted)
        except TimeoutError:
            return wanted()
        return True

    @property
    def unplayed_ms(self) -> int:
        return FRAME_MS * self._caller.unplayed_frames

    def flush(self) -> None:
        """Nothing can be taken out of a track."""

    def speak(self, until: Callable[[], bool]) -> None:
        asyncio.run_coroutine_threadsafe(self._caller.speak(until), self._loop).result()

    def hang_up(self) -> bytes:
        return asyncio.run_coroutine_threadsafe(self._caller.hang_up(), self._loop).result()

    def stale_samples(self, response: str) -> int:
        """Over WebRTC a sample does not tell whose it is: what came too late is heard beyond what history has."""
        return 0


@asynccontextmanager
async def coded_rtc_calling(service: Service, network: Network, *, reports: bool) -> AsyncIterator[CodedRtcCaller]:
    """A call, from `session.created` to the caller's end."""
    caller = CodedRtcCaller(network, reports=reports)
    async with connected(service, caller):
        caller.begin_reports()
        yield caller
