"""A caller at an emulated carrier who knows which words reached its ear, with a second connection that commands.

Theory of operation
    The telephone lives on the event loop (`tests.live.phone`); `CodedPhoneLine` is it as a thread sees it, which joins
    the call by a second connection to the service: over a telephone nothing is told of responses and items. What has
    left the carrier's queue is recorded on the call's own clock.

Rules
* A deed begins with the first sample that interrupts, which was spoken 20 ms before its frame was sent; with a key that
  is pressed; or with a command that is sent.
* What was said before it has stopped when the last sound that is no silence has left the queue before it was emptied,
  or was paused.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from loadtest.carriers.asterisk_channel import AsteriskChannel
from loadtest.carriers.effects import Cleared, Effect
from loadtest.playout_model import Heard
from loadtest.recording import Recording
from media.coded_tones import EAR_RATE
from tests.live.caller import Caller, Message
from tests.live.phone import FRAME_NS, Connection, Core, Phone, speaking
from tests.live.service import EVENT_S_MAX

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
RECORDING_S_MAX = 120
SPEAK_MS_MAX = 1_500
SLICE_MS = 20
FOREVER_MS = 1 << 40
BESIDE_NS = 300 * NS_PER_MS  # of a deed, or of what came of it
BETWEEN_NS_MIN = 150 * NS_PER_MS  # no reply follows another sooner
DRY_NS_MIN = 2 * NS_PER_MS
TAKEN_S_MAX = 2  # a key has been acted on by then, or there was nothing to be ended
COMMANDS = ("response.cancel", "output_audio_buffer.clear")

_VOICE = speaking((0, FOREVER_MS))


@dataclass(frozen=True, slots=True)
class Stop:
    """What came of a deed. `after_ms`: until the last sound of before had left; `cleared_sample`: where the queue was
    emptied then, on the recording at `EAR_RATE`. None: it was not. `late_ms`: by how much the telephone itself was late
    meanwhile; `dry`: how often the queue had run dry amid the reply."""

    after_ms: float | None = None
    cleared_sample: int | None = None
    late_ms: float = 0
    dry: int = 0


@dataclass
class CodedPhone(Phone):
    """`talks`: whether the caller speaks now."""

    talks: bool = False
    spoke_ns: int = 0  # since when
    late_ns: list[tuple[int, int]] = field(default_factory=list)  # when each frame was sent, and by how much too late
    began_ns: int = field(default_factory=time.monotonic_ns)
    sounds: list[tuple[int, int]] = field(default_factory=list)  # from when to when what is no silence left
    cleared_ns: list[int] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.say = self._said
        self._first_ns = 0
        self.recording = Recording(self.core.sound.sample_rate, RECORDING_S_MAX, self.began_ns)

    def _said(self, at: int, samples: int, rate: int) -> bytes:
        now_ns = time.monotonic_ns()
        if not at:
            self._first_ns = now_ns
        self.late_ns.append((now_ns, now_ns - self._first_ns - at * NS_PER_S // rate))
        if not self.talks:
            self.spoke_ns = 0
            return bytes(2 * samples)
        self.spoke_ns = self.spoke_ns or now_ns - FRAME_NS
        return _VOICE(at, samples, rate)

    async def _do(self, socket: Connection, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Heard):
                self._note(effect)
            elif isinstance(effect, Cleared):
                self.cleared_ns.append(time.monotonic_ns())
        await super()._do(socket, effects)

    def _note(self, heard: Heard) -> None:
        self.recording.add(heard)
        if any(heard.pcm):
            samples = len(heard.pcm) // 2
            end_ns = heard.start_ns + samples * NS_PER_S // self.core.sound.sample_rate
            self.sounds.append((heard.start_ns, end_ns))

    async def press(self, socket: Connection, digit: str) -> None:
        await self._do(socket, self.core.press(digit))

    @property
    def queued_ms(self) -> int:
        """What has come that has not left."""
        if isinstance(self.core, AsteriskChannel):
            return FRAME_NS // NS_PER_MS * self.core.queued_frames
        return self.core.queued_samples * 1_000 // self.core.sound.sample_rate

    def stop(self, deed_ns: int, until_ns: int) -> Stop:
        """What came of a deed by `until_ns`."""
        cleared_ns = next((one for one in self.cleared_ns if deed_ns <= one < until_ns), None)
        end_ns = (cleared_ns or deed_ns) + BESIDE_NS
        late_ms = max((late for at, late in self.late_ns if deed_ns - BESIDE_NS <= at <= end_ns), default=0) / NS_PER_MS
        dry = self._dry(deed_ns)
        if cleared_ns is None:
            return Stop(late_ms=late_ms, dry=dry)
        last_ns = max((end_ns for start_ns, end_ns in self.sounds if start_ns <= cleared_ns), default=0)
        after_ms = (last_ns - deed_ns) / NS_PER_MS if last_ns > deed_ns else None
        return Stop(after_ms, (cleared_ns - self.began_ns) * EAR_RATE // NS_PER_S, late_ms, dry)

    def _dry(self, deed_ns: int) -> int:
        """Of the reply that sounded last before the deed."""
        ends = [end_ns for _, end_ns in self.sounds]
        gaps = [(start_ns - end_ns, end_ns) for (start_ns, _), end_ns in zip(self.sounds[1:], ends, strict=False)]
        before = [gap_ns for gap_ns, at in gaps if at < deed_ns]
        since = max((number for number, gap_ns in enumerate(before, 1) if gap_ns >= BETWEEN_NS_MIN), default=0)
        return sum(gap_ns >= DRY_NS_MIN for gap_ns in before[since:])


@dataclass(frozen=True, slots=True)
class Talk:
    """A telephone, with the task in which it talks over `socket`."""

    phone: CodedPhone
    socket: Connection
    task: asyncio.Task[None]


class CodedPhoneLine:
    """The telephone, for a thread other than its `loop`'s. `side` commands."""

    def __init__(self, talk: Talk, side: Caller, loop: asyncio.AbstractEventLoop) -> None:
        self.rate = talk.phone.core.sound.sample_rate
        self.events: list[Message] = side.events
        self.deeds_ns: list[int] = []
        self._phone, self._talk, self._side, self._loop = talk.phone, talk, side, loop

    def send(self, kind: str, **fields: Any) -> None:
        if kind in COMMANDS:
            self.deeds_ns.append(time.monotonic_ns())
        self._side.send(kind, **fields)

    def type_text(self, text: str, **fields: Any) -> None:
        self._side.type_text(text, **fields)

    def press(self, digit: str) -> None:
        """Nothing tells that a key has been acted on but the queue that is emptied."""
        now_ns = time.monotonic_ns()
        self.deeds_ns.append(now_ns)
        asyncio.run_coroutine_threadsafe(self._phone.press(self._talk.socket, digit), self._loop).result()
        until_ns = now_ns + TAKEN_S_MAX * NS_PER_S
        while time.monotonic_ns() < until_ns and (self._phone.cleared_ns or [0])[-1] < now_ns:
            self.listen_for(SLICE_MS)

    def listen_for(self, ms: int) -> None:
        self.hear_until(lambda: False, ms)

    def hear_until(self, wanted: Callable[[], bool], ms_max: int) -> bool:
        until_ns = time.monotonic_ns() + ms_max * NS_PER_MS
        while not wanted():
            try:
                remaining_s = max(0, until_ns - time.monotonic_ns()) / NS_PER_S
                message: Message = json.loads(self._side.socket.recv(timeout=remaining_s))
            except TimeoutError:
                return wanted()
            self.events.append(message)
        return True

    @property
    def unplayed_ms(self) -> int:
        return self._phone.queued_ms

    def flush(self) -> None:
        """Nobody can take anything out of a carrier's queue but the service."""

    def speak(self, until: Callable[[], bool]) -> None:
        """Speak until it is so, and be silent then."""
        self._phone.talks = True
        self.hear_until(until, SPEAK_MS_MAX)
        self.deeds_ns.append(self._phone.spoke_ns)
        self._phone.talks = False

    def hang_up(self) -> bytes:
        self.deeds_ns.append(time.monotonic_ns())
        self._loop.call_soon_threadsafe(self._phone.over.set)
        asyncio.run_coroutine_threadsafe(asyncio.wait_for(self._talk.task, EVENT_S_MAX), self._loop).result()
        assert not self._phone.recording.truncated
        return self._phone.recording.pcm

    def stale_samples(self, response: str) -> int:
        """A carrier does not know whose sound it plays: what came too late is heard behind its clear."""
        return 0

    def stop(self, number: int) -> Stop:
        """What came of deed `number`; hanging up is the last."""
        deed_ns, until_ns = (*self.deeds_ns, time.monotonic_ns(), time.monotonic_ns())[number : number + 2]
        return self._phone.stop(deed_ns, until_ns)


@asynccontextmanager
async def talking(address: str, path: str, core: Core) -> AsyncIterator[Talk]:
    """A call by the carrier `core`, until its `over` is set or it is left."""
    offered = [Subprotocol("media")] if isinstance(core, AsteriskChannel) else None
    async with connect(f"ws://{address}{path}", subprotocols=offered, compression=None, proxy=None) as socket:
        phone = CodedPhone(core, lambda *_: b"")
        task = asyncio.create_task(phone.talk(socket, phone.over.is_set, s_max=RECORDING_S_MAX))
        try:
            yield Talk(phone, socket, task)
        finally:
            phone.over.set()
            await asyncio.gather(task, return_exceptions=True)
