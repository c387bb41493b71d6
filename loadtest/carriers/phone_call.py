"""The shell of a telephone call: a clock, a carrier's core, a socket, three loops.

Theory of operation
    One task ticks: at each absolute deadline the caller's frame goes through the carrier to the service, whatever the
    service does. One takes what the service sends, one writes what waits for the socket. What is said when lies in
    `timeline`, what the carrier makes of it in its core, what happens on the way in `unruly_line`.

Rules
* The clock is given, so tests run a call in virtual time.
* What waits to be written is bounded: the core is told how much it is, and drops the caller's sound; the listener
  takes nothing more while `OUTBOX_MAX` messages wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from random import Random
from typing import Protocol

from websockets.exceptions import ConnectionClosed

from loadtest import realtime_wire as wire
from loadtest.caller import Clock, ignore_progress
from loadtest.carriers.effects import Cleared, Effect, HungUp, Send
from loadtest.carriers.phone_ear import PhoneEar
from loadtest.carriers.skewed_clock import SkewedClock
from loadtest.carriers.unruly_line import ORDERLY, Fault, Habits, UnrulyLine
from loadtest.errors import CallError, ConnectionLost
from loadtest.line import Line
from loadtest.realtime_client import CLOSE_TIMEOUT_S, lost
from loadtest.recording import Recording
from loadtest.timeline import FRAME_MS, CallPlan, CallTimeline
from loadtest.turns import NS_PER_MS, CallOutcome, CallResult, Turn
from media.audio_format import AudioFormat
from media.chunk import BYTES_PER_SAMPLE

# A carrier's own answers are few; this many unread ones mean that the service does not read at all.
OUTBOX_MAX = 1_000
KEY_GAP_MS = 300  # as fast as a person types
CLEARS_MAX = 1_000
CLOSE_NORMAL = 1000  # RFC 6455, section 7.4.1


class Socket(Protocol):
    """An open WebSocket, whichever side has opened it."""

    async def send(self, message: str | bytes, /) -> None: ...

    async def recv(self) -> str | bytes: ...


class Carrier(Protocol):
    """The core of a carrier; see `media_stream` and `asterisk_channel`."""

    @property
    def call_id(self) -> str: ...

    @property
    def sound(self) -> AudioFormat: ...

    @property
    def frame_samples(self) -> int: ...

    @property
    def forgeries(self) -> dict[Fault, str | bytes]: ...

    def begin(self) -> list[Effect]: ...

    def frame(self, coded: bytes, now_ns: int, backlog: int = 0, /) -> list[Effect]: ...

    def receive(self, message: str | bytes, now_ns: int, /) -> list[Effect]: ...

    def press(self, digit: str, /) -> list[Effect]: ...

    def hang_up(self, now_ns: int, /) -> list[Effect]: ...


# Opens a call: a socket to the service, and the carrier that speaks on it. Raises `ConnectError`.
Door = Callable[[], AbstractAsyncContextManager[tuple[Socket, Carrier]]]


@dataclass(frozen=True, slots=True)
class PhonePlan:
    """What the caller is going to do, and on what line. `keys` are pressed from `keys_after_ms` of the call on, and
    after `hang_up_after_ms` the call ends, whatever it was doing."""

    talk: CallPlan
    keys: str = ""
    keys_after_ms: int = 0
    hang_up_after_ms: int | None = None
    habits: Habits = ORDERLY
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Open:
    """What a call has once the connection is there."""

    carrier: Carrier
    timeline: CallTimeline
    ear: PhoneEar
    line: UnrulyLine
    silence: bytes


class PhoneCall:
    """One call through `door` by `plan`. `progress` gets a line for a person whenever something happens."""

    def __init__(
        self, door: Door, plan: PhonePlan, clock: Clock, progress: Callable[[str], None] = ignore_progress
    ) -> None:
        self._door = door
        self._plan = plan
        self._clock = SkewedClock(clock, plan.habits.skew_ppm)
        self._progress = progress
        self._keys = deque(plan.keys)
        self._outbox: deque[str | bytes] = deque()
        self._has_mail = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_written = asyncio.Event()
        self._note_room()
        self._is_lost = False
        self._open: _Open | None = None
        self.clears: deque[tuple[int, Cleared]] = deque(maxlen=CLEARS_MAX)
        """When the service emptied the queue, and what it threw away."""

    @property
    def recording(self) -> Recording:
        """What left the carrier's queue, on the call's timeline."""
        return self._timeline.recording

    @property
    def played(self) -> dict[Fault, int]:
        """What went wrong on the way to the service, and how often."""
        return {} if self._open is None else dict(self._open.line.played)

    @property
    def _timeline(self) -> CallTimeline:
        return CallTimeline(self._plan.talk) if self._open is None else self._open.timeline

    def result(self) -> CallResult:
        """What has been measured so far; whole once `run` has returned."""
        return self._timeline.result()

    async def run(self) -> None:
        """Call, talk, hang up. Raises `ConnectError` where no connection comes about."""
        async with self._door() as (socket, carrier):
            self._open = call = self._prepared(carrier)
            try:
                await self._talk(socket, call)
            except asyncio.CancelledError:
                call.timeline.stop(CallOutcome.INTERRUPTED_BY_USER, "", self._clock.now_ns())
                raise
            finally:
                self._tell(call)

    def _prepared(self, carrier: Carrier) -> _Open:
        ears: list[PhoneEar] = []

        def make_ear(turns: list[Turn], line: Line) -> PhoneEar:
            ears.append(PhoneEar(turns, line))
            return ears[0]

        timeline = CallTimeline(self._plan.talk, Line(carrier.sound), make_ear)
        line = UnrulyLine(self._plan.habits, Random(self._plan.seed), carrier.forgeries)
        silence = carrier.sound.encode(bytes(carrier.frame_samples * BYTES_PER_SAMPLE))
        return _Open(carrier, timeline, ears[0], line, silence)

    async def _talk(self, socket: Socket, call: _Open) -> None:
        now_ns = self._clock.now_ns()
        call.timeline.begin(now_ns, call.carrier.call_id, None)
        self._progress(f"call {call.carrier.call_id} is open")
        call.line.open([effect for effect in call.carrier.begin() if isinstance(effect, Send)], now_ns)
        self._pump(call, now_ns)
        async with asyncio.TaskGroup() as loops:
            others = [loops.create_task(self._listen(socket, call)), loops.create_task(self._write(socket, call))]
            await self._speak(call)
            await self._part(call)
            for other in others:
                other.cancel()

    # ---- the caller ------------------------------------------------------------------------------

    async def _speak(self, call: _Open) -> None:
        index = 0
        while not call.timeline.finished:
            deadline_ns = call.timeline.deadline_ns(index)
            stalled_ns = call.line.next_due_ns
            await self._clock.sleep_until(deadline_ns if stalled_ns is None else min(deadline_ns, stalled_ns))
            now_ns = self._clock.now_ns()
            if now_ns >= deadline_ns:
                self._frame(call, index, now_ns)
                index += 1
            self._pump(call, now_ns)
            self._tell(call)

    def _frame(self, call: _Open, index: int, now_ns: int) -> None:
        for said in call.timeline.frame(index, now_ns):
            assert isinstance(said, wire.AppendAudio), "an ear at a telephone has nothing to say"
            # The first frame is shorter, by what the resampler holds back.
            coded = call.silence[: len(call.silence) - len(said.audio)] + said.audio
            self._perform(call, call.carrier.frame(coded, now_ns, len(self._outbox)), now_ns)
        elapsed_ms = (index + 1) * FRAME_MS
        pressed = len(self._plan.keys) - len(self._keys)
        if self._keys and elapsed_ms >= self._plan.keys_after_ms + pressed * KEY_GAP_MS:
            digit = self._keys.popleft()
            self._progress(f"pressing {digit}")
            self._perform(call, call.carrier.press(digit), now_ns)
        if self._plan.hang_up_after_ms is not None and elapsed_ms >= self._plan.hang_up_after_ms:
            call.timeline.stop(CallOutcome.COMPLETED, "hung up as planned", now_ns)

    async def _part(self, call: _Open) -> None:
        """Hang up, and let what the carrier still says go out."""
        now_ns = self._clock.now_ns()
        self._perform(call, call.carrier.hang_up(now_ns), now_ns)
        self._pump(call, None)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._is_written.wait()

    # ---- the socket ------------------------------------------------------------------------------

    async def _listen(self, socket: Socket, call: _Open) -> None:
        pause_ns = self._plan.habits.read_pause_ms * NS_PER_MS
        try:
            while True:
                message = await socket.recv()
                now_ns = self._clock.now_ns()
                self._perform(call, call.carrier.receive(message, now_ns), now_ns)
                self._pump(call, now_ns)
                await self._has_room.wait()
                if pause_ns:
                    await self._clock.sleep_until(now_ns + pause_ns)
        except ConnectionClosed as closed:
            self._lose(call, lost(closed))
        except CallError as fault:
            self._lose(call, fault)

    async def _write(self, socket: Socket, call: _Open) -> None:
        try:
            while True:
                await self._has_mail.wait()
                await socket.send(self._outbox[0])
                if not self._is_lost:
                    self._outbox.popleft()
                self._note_room()
        except ConnectionClosed as closed:
            self._lose(call, lost(closed))

    def _lose(self, call: _Open, fault: CallError) -> None:
        """Nobody reads what is written from here on."""
        self._is_lost = True
        self._outbox.clear()
        self._note_room()
        call.timeline.fail(fault, self._clock.now_ns())

    def _perform(self, call: _Open, effects: Sequence[Effect], now_ns: int) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                call.line.take(effect, now_ns)
                continue
            call.ear.take(effect, now_ns)
            if isinstance(effect, Cleared):
                self.clears.append((now_ns, effect))
            if isinstance(effect, HungUp):
                call.timeline.fail(ConnectionLost(CLOSE_NORMAL, effect.reason), now_ns)

    def _pump(self, call: _Open, now_ns: int | None) -> None:
        """Have written what has come through the line by now; None: all that is on it."""
        messages = call.line.due(call.line.last_due_ns if now_ns is None else now_ns)
        if not self._is_lost:
            self._outbox += messages
        self._note_room()

    def _note_room(self) -> None:
        for event, holds in (
            (self._has_mail, bool(self._outbox)),
            (self._is_written, not self._outbox),
            (self._has_room, len(self._outbox) < OUTBOX_MAX),
        ):
            event.set() if holds else event.clear()

    def _tell(self, call: _Open) -> None:
        for line in call.timeline.take_notes():
            self._progress(line)
