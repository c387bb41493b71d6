"""One telephone call: from the carrier's first words to the end of its socket.

Theory of operation
    The carrier says what it has (`opening`), and then the call begins: what the carrier sends is read, put in order and
    heard; what the line has to say is written. A key that is pressed ends what is being said, and keys become a number,
    which the conversation takes as words of the caller's.

Rules
* Nothing is heard, and nothing said, before the carrier has started and whoever is behind it may call.
* What the carrier says wrong is passed over (`CarrierFaults`); a fault of ours ends this call.
* Whatever happens, the socket is closed, and the telephone call ended, in bounded time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from duplex.call import Call
from duplex.gateway import new_id
from duplex.realtime.connection import Allowance, Limits, SocketClosedError, wire_bytes
from duplex.realtime.sockets import CLOSE_CODES, CLOSE_FAULT
from duplex.telephony.carrier import Carrier, CarrierError, Closed, Dtmf, Event, Fault, Message, SoundIn, Started
from duplex.telephony.carrier_faults import CarrierFaults
from duplex.telephony.control import CarrierControl, ControlError
from duplex.telephony.digits import Digits
from duplex.telephony.inbound import Inbound, InboundCounts
from duplex.telephony.line import LinePorts, PhoneLine
from duplex.telephony.outbound import Outbound
from duplex.telephony.phone_tools import TRANSFERRED, PhoneActions
from duplex.telephony.sockets import PhoneSocket
from duplex.transport import Transport
from media.audio_format import FORMATS, AudioFormat, FormatName
from media.heard_estimate import Probe
from sessions.items import Item
from sessions.service_calls import ServiceTool
from sessions.settings import ResponseSpec

START_S_MAX = 5
CLOSE_S_MAX = 5
HEARD_NS_MAX = 15_000_000_000  # a long goodbye
_CALLER_LEFT = "client_closed"

_log = structlog.get_logger("duplex.telephony")


@dataclass(frozen=True, slots=True)
class Opened:
    """A carrier that has started, and what it has said since."""

    started: Started
    events: tuple[Event, ...]


async def opening(socket: PhoneSocket, carrier: Carrier, faults: CarrierFaults) -> Opened:
    """Wait for the carrier to start. Raises `CarrierError`, `SocketClosedError`, or TimeoutError."""
    async with asyncio.timeout(START_S_MAX):
        while True:
            message = await socket.receive()
            match _parsed(carrier, message, faults):
                case [Started() as started, *events]:
                    return Opened(started, tuple(events))
                case [Fault(code, why)]:
                    faults.note(f"carrier_{code}", why)


def _parsed(carrier: Carrier, message: Message, faults: CarrierFaults) -> list[Event]:
    """What it says; nothing where that cannot be understood. Raises `CarrierError` where that can be no call."""
    try:
        return carrier.receive(message)
    except CarrierError as error:
        if error.fatal:
            raise
        faults.note(error.code, str(error))
        return []


def transport_of(carrier: Carrier, line: AudioFormat, tools: tuple[ServiceTool, ...] = ()) -> Transport:
    """How sound travels over `line`. Replies have its rate where that is a telephone's, else the usual one. `tools`:
    of the call."""
    output: FormatName = "audio/pcm"
    if line.sample_rate == FORMATS["audio/pcmu"].sample_rate:
        output = "audio/pcma" if line.name == "audio/pcma" else "audio/pcmu"
    return Transport(
        carrier.capabilities.lead_ms, line, recalls=True, output_format=output, reports="mark", tools=tools, leaves=True
    )


@dataclass(frozen=True, slots=True)
class Line:
    """How a carrier is reached: its `socket`, and what else it can be asked; None: nothing. `probe`: what is seen of
    the way to it."""

    socket: PhoneSocket
    carrier: Carrier
    control: CarrierControl | None = None
    probe: Callable[[], Probe] = Probe


class PhoneCall:
    """Serves `call` over `line`. `stall_ns_max`: a carrier that takes nothing for so long is let go. `sound_mended` is
    told what was wrong with the caller's sound."""

    def __init__(
        self,
        line: Line,
        opened: Opened,
        call: Call,
        limits: Limits,
        *,
        stall_ns_max: int,
        sound_mended: Callable[[InboundCounts], None] = lambda _found: None,
    ) -> None:
        self._socket = line.socket
        self._carrier = carrier = line.carrier
        self._control = line.control
        self._opened = opened
        self._call = call
        self._limits = limits
        self._outbound = Outbound(stall_ns_max)
        sound = opened.started.format
        reply_rate = FORMATS[transport_of(carrier, sound).output_format].sample_rate
        self._moved = asyncio.Event()  # the line has
        ports = LinePorts(call.heard, lambda: call.conversation.settings.speech_interrupts, line.probe, self._moved.set)
        self._line = PhoneLine(carrier, sound, reply_rate, self._outbound, ports)
        self._inbound = Inbound(sound, is_ordered=carrier.capabilities.is_ordered)
        self._sound_mended = sound_mended
        self._digits = Digits()
        self._keyed = asyncio.Event()  # a key was pressed
        self._allowance = Allowance(limits.bytes_per_second_max)
        self._faults = CarrierFaults(carrier.name, call.client_failed, {"session": call.session})
        self._last_input_ns = time.monotonic_ns()
        self._close_code = CLOSE_FAULT

    async def serve(self, greeting: str = "") -> str:
        """Serve until it is over; gives the reason. `greeting`: said first."""
        self._call.attach(self._line)
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._read()),
            asyncio.create_task(self._watch()),
            asyncio.create_task(self._write()),
            asyncio.create_task(self._call.ended.wait()),
            asyncio.create_task(self._outbound.overflowed.wait()),
        ]
        try:
            for message in self._carrier.answer():
                self._outbound.put(message)
            if greeting:
                self._say(ResponseSpec(words=greeting))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return self._reason(tasks, done)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _reason(self, tasks: Sequence[asyncio.Task[Any]], done: set[asyncio.Task[Any]]) -> str:
        errors = [error for task in done if (error := task.exception()) is not None]
        for error in errors:
            if isinstance(error, CarrierError):
                self._call.client_failed(error.code)
                self._call.end(error.code)
                self._close_code = CLOSE_CODES["refused"]
            elif not isinstance(error, SocketClosedError):
                self._call.spoil(error)
        if self._call.end_reason is not None:
            return self._call.end_reason
        if self._outbound.overflowed.is_set():
            return "slow_client"
        reasons = [task.result() for task in tasks[:2] if task in done and task.exception() is None]
        return str(reasons[0]) if reasons else _CALLER_LEFT

    async def finish(self, reason: str) -> None:
        """The call is over: say so to the carrier, and close. Bounded."""
        self._moved.set()  # for who waits there: it moves no more
        with suppress(SocketClosedError, TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                if reason not in (_CALLER_LEFT, TRANSFERRED):
                    await self._hang_up()
                await self._socket.close(CLOSE_CODES.get(reason, self._close_code), reason)

    async def _hang_up(self) -> None:
        for message in self._carrier.hang_up():
            await self._socket.send(message)
        if self._control is not None and not self._carrier.capabilities.hangup_on_close:
            try:
                await self._control.hang_up(self._opened.started)
            except ControlError as error:
                _log.error("not_hung_up", session=self._call.session, carrier=self._carrier.name, why=str(error))

    # ---- what the model can do -------------------------------------------------------------------------

    def offer(self, tools: tuple[ServiceTool, ...]) -> None:
        """Let the model do with the call what these are for."""
        actions = PhoneActions(self._opened.started, self._control, self._until_heard, self._end)
        self._call.tools.offer(*actions.own_tools(tools))

    def _end(self, reason: str) -> None:
        self._close_code = CLOSE_CODES["client_closed"]
        self._call.end(reason)

    async def _until_heard(self) -> bool:
        talk, until_ns = self._call.conversation, time.monotonic_ns() + HEARD_NS_MAX
        epoch = talk.epoch
        while (now_ns := time.monotonic_ns()) < until_ns and self._call.end_reason is None:
            if talk.epoch != epoch or talk.hearing.current is not None:
                return False
            played_out_ns = talk.speaking.played_out_ns
            if not talk.speaking.running and not self._line.is_playing and played_out_ns <= now_ns:
                break
            # What the line does not tell is that time has gone by.
            await _until_set(self._moved, min(until_ns, played_out_ns) if played_out_ns > now_ns else until_ns)
        return True

    # ---- from the carrier ------------------------------------------------------------------------------

    async def _read(self) -> str:
        for event in self._opened.events:
            await self._take(event)
        while True:
            try:
                message = await self._socket.receive()
            except CarrierError as error:
                self._faults.note(error.code, str(error))
                return error.code
            now_ns = self._last_input_ns = time.monotonic_ns()
            self._call.message_passed(wire_bytes(message))
            for event in _parsed(self._carrier, message, self._faults):
                if isinstance(event, Closed):
                    return _CALLER_LEFT
                await self._take(event)
            # Also where there is nothing to wait for: other calls have their turn in between.
            await asyncio.sleep(self._allowance.spend(wire_bytes(message), now_ns) / 1e9)
            await self._call.journal.until_room()

    async def _take(self, event: Event) -> None:
        match event:
            case SoundIn():
                before = self._inbound.counts
                for coded in self._inbound.take(event):
                    await self._call.listening.hear(coded)
                if self._inbound.counts is not before:
                    self._sound_mended(self._inbound.counts.since(before))
            case Dtmf(digit):
                self._press(digit)
            case Fault():
                self._faults.note(f"carrier_{event.code}", event.message)
            case _:
                self._line.told(event, time.monotonic_ns())

    # ---- keys ------------------------------------------------------------------------------------------

    def _press(self, digit: str) -> None:
        now_ns = time.monotonic_ns()
        self._call.carry_out(self._call.conversation.stop_speaking("dtmf", now_ns))
        self._pressed(self._digits.press(digit, now_ns))
        self._keyed.set()

    def _pressed(self, digits: str) -> None:
        """A number is complete: it is what the caller says."""
        if digits:
            words = f"[keys pressed on the telephone: {' '.join(digits)}]"
            item = Item(new_id("item"), "user", words, spoken=False)
            self._call.carry_out(self._call.conversation.create_item(item, None))
            self._say(ResponseSpec())

    def _say(self, spec: ResponseSpec) -> None:
        self._call.carry_out(self._call.conversation.create_response(spec, time.monotonic_ns()))

    # ---- limits, and to the carrier ----------------------------------------------------------------------

    async def _watch(self) -> str:
        deadline_ns = time.monotonic_ns() + self._limits.call_ns_max
        while (now_ns := time.monotonic_ns()) < deadline_ns:
            idle_ns = self._last_input_ns + self._limits.idle_ns_max
            if now_ns >= idle_ns:
                return "idle"
            self._pressed(self._digits.tick(now_ns))
            await _until_set(self._keyed, min(deadline_ns, idle_ns, self._digits.due_ns or deadline_ns))
        return "call_too_long"

    async def _write(self) -> None:
        while True:
            message = await self._outbound.next()
            await self._socket.send(message)
            self._call.message_passed(wire_bytes(message))


async def _until_set(event: asyncio.Event, by_ns: int) -> None:
    """Wait until `event` is set from now on, no longer than until `by_ns`."""
    event.clear()
    with suppress(TimeoutError):
        async with asyncio.timeout((by_ns - time.monotonic_ns()) / 1e9):
            await event.wait()
