"""One connection of the Realtime API: reads commands, writes messages, and ends when its call does.

Theory of operation
    A reader takes one message at a time, acts on it before it takes the next, and waits for a journal that is behind:
    a client that floods us, or the store, waits in its own socket. A writer sends what is queued. Audio in the queue
    counts as room taken: the pacer hands over a frame only while fewer than `AUDIO_WAITING_MAX` wait, so that a stop
    has little left to catch up with.

    Over a WebSocket sound travels in the messages. Elsewhere a `Medium` carries it beside them.

Rules
* Bad input gets an `error` event and the call goes on; only a dead socket, a full queue or a limit ends it.
* Whatever goes wrong here by a fault of ours ends the call, as it does where other calls are served as well.
* The first command may be `session.resume`; the session that was made for the connection is then dropped.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import structlog

from duplex.call import Call
from duplex.realtime import client_events as ask
from duplex.realtime.client_events import ClientEventError
from duplex.realtime.dialect import AUDIO_DELTA, Message, RealtimeDialect, acknowledged_message, error_message
from duplex.realtime.replay import SentEvents
from duplex.realtime.session_config import apply_patch, check_line, check_medium, item_of, response_spec, session_dict
from duplex.transport import Client
from media.heard_estimate import WEBSOCKET_LATENCY, Path, Probe, path_of
from media.input_offsets import InputGapError, Placed
from media.rtp_map import Position
from sessions.effects import Effect
from sessions.events import Event, ReplyAudio
from sessions.settings import OUTPUT_RATE, SessionSettings
from stages.contracts import OUT_OF_BAND

AUDIO_WAITING_MAX = 2
MESSAGES_WAITING_MAX = 1_024  # a reply has a few hundred; a client that lags further no longer reads
_json = msgspec.json.Encoder()
_log = structlog.get_logger("duplex.realtime")


class SocketClosedError(Exception):
    """The client is gone."""


class SocketTakenError(Exception):
    """The client wants something else of its socket than this call: who serves that goes on there."""


class Socket(Protocol):
    """A WebSocket or a data channel. What is sent is text; what comes may be anything."""

    async def receive(self) -> str | bytes:
        """The next message; raises `SocketClosedError`, or `SocketTakenError`, which `serve` passes on."""
        ...

    async def send(self, text: str) -> None:
        """Hand a message to the kernel; raises `SocketClosedError`. Where this is cancelled, it was not."""
        ...


class Medium(Protocol):
    """Sound that travels beside the messages."""

    @property
    def client(self) -> Client:
        """Takes the events, and sends their sound."""
        ...

    @property
    def last_input_ns(self) -> int:
        """When sound came last."""
        ...

    async def run(self, call: Call) -> str:
        """Let `call` hear what comes, until nothing will come any more; gives the reason."""
        ...

    def locate(self, rtp_timestamp: int, age_ms: float, output_latency_ms: float) -> tuple[Position, ...]:
        """What of which responses had been heard by a report of the client."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """`bytes_per_second_max` bounds input with a second of burst; beyond it the reader pauses.

    `message_bytes_max`: where the socket itself does not refuse larger ones.
    """

    bytes_per_second_max: int
    call_ns_max: int
    idle_ns_max: int
    message_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A message, not yet stamped; `sound` is the audio that it carries."""

    message: Message
    sound: ReplyAudio | None

    @property
    def belongs_to_epoch(self) -> bool:
        return self.sound is not None and self.sound.epoch != OUT_OF_BAND


class Outbox:
    """What waits to be written. `Client` of the call.

    `overflowed` is set where too much waits, or where for `stall_ns_max` nothing of it was taken. `probe` tells what is
    seen of the way to the client.
    """

    def __init__(
        self, dialect: RealtimeDialect, stall_ns_max: int | None = None, probe: Callable[[], Probe] = Probe
    ) -> None:
        self._dialect = dialect
        self._probe = probe
        self._stall_ns_max = stall_ns_max
        self._moves = False
        self._still_since_ns: int | None = None
        self._waiting: deque[_Waiting] = deque()
        self._unsent: str | None = None
        self._sent: SentEvents | None = None
        self._audio = 0
        self._wake = asyncio.Event()
        self.overflowed = asyncio.Event()

    def pace(self, now_ns: int) -> None:
        """See whether the client still takes what it is sent. Frames go whenever there is room."""
        if self._moves or not self._waiting or self._still_since_ns is None:
            self._moves, self._still_since_ns = False, now_ns
        elif self._stall_ns_max is not None and now_ns - self._still_since_ns >= self._stall_ns_max:
            self.overflowed.set()

    def next_frame_ns(self, now_ns: int) -> int | None:
        return now_ns if self._audio < AUDIO_WAITING_MAX else None

    def path(self, now_ns: int) -> Path:
        return path_of(WEBSOCKET_LATENCY, self._probe(), now_ns)

    def pad(self) -> bool:
        return False

    @property
    def waiting(self) -> int:
        return len(self._waiting) + (self._unsent is not None)

    def tell(self, event: Event) -> None:
        sound = event if isinstance(event, ReplyAudio) else None
        for message in self._dialect.encode(event):
            self._put(message, sound if message["type"] == AUDIO_DELTA else None)

    def post(self, message: Message) -> None:
        """Queue a message that is no event of the conversation."""
        self._put(message, None)

    def post_first(self, message: Message) -> None:
        """Queue a message ahead of all that is not numbered yet, though there be too much of that."""
        self._waiting.appendleft(_Waiting(message, None))
        self._wake.set()

    def _put(self, message: Message, sound: ReplyAudio | None) -> None:
        if len(self._waiting) >= MESSAGES_WAITING_MAX:
            self.overflowed.set()
            return
        self._waiting.append(_Waiting(message, sound))
        self._audio += sound is not None
        self._wake.set()

    def drop_audio(self) -> Position | None:
        """Forget the audio of the epoch that has ended; an out-of-band response has none. Gives what is left of the
        last response of which some was forgotten; None where there was none."""
        frames = [entry.sound.frame for entry in self._waiting if entry.sound and entry.belongs_to_epoch]
        self._waiting = deque(entry for entry in self._waiting if not entry.belongs_to_epoch)
        self._audio = sum(entry.sound is not None for entry in self._waiting)
        if not frames:
            return None
        response = frames[-1].response
        left = min(frame.start_sample for frame in frames if frame.response == response)
        return Position(response, left, left)

    def clear(self) -> None:
        """Forget everything that waits."""
        self._waiting.clear()
        self._unsent = None
        self._audio = 0

    async def next(self) -> str:
        """The next message to write; its place is free at once, as the socket itself holds it then.

        It is numbered only now: what is dropped before leaves no gap.
        """
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            return unsent
        while not self._waiting:
            self._wake.clear()
            await self._wake.wait()
        entry = self._waiting.popleft()
        self._moves = True
        self._audio -= entry.sound is not None
        return self._numbered(entry.message)

    def _numbered(self, message: Message) -> str:
        if "server_event_seq" in message:  # it was numbered by the connection before
            return _json.encode(message).decode()
        message = self._dialect.stamp(message)
        encoded = _json.encode(message)
        if self._sent is not None:
            self._sent.keep(message, encoded)
        return encoded.decode()

    def keep_sent(self) -> None:
        """From now on, what is sent can be handed over to the next connection of the session."""
        if self._sent is None:
            self._sent = SentEvents(self._dialect.seq)

    def hand_over(self) -> SentEvents | None:
        """What was sent, and all that waits, numbered; nothing of that is sent here any more. None where some was
        dropped, or nothing was kept."""
        while self._waiting:
            entry = self._waiting.popleft()
            if entry.sound is None:
                self._numbered(entry.message)
        self.clear()
        sent, self._sent = self._sent, None
        return None if self.overflowed.is_set() else sent

    def go_on_from(self, sent: SentEvents, missed: Sequence[Message]) -> None:
        """Send what was `missed` of the connection before, as that had `sent` it, and count on from there."""
        self._dialect.seq, self._sent = sent.last, sent
        for message in missed:
            self.post(message)

    def put_back(self, text: str) -> None:
        """`text` was not handed over after all: it is the next again."""
        self._unsent = text


async def write_next(outbox: Outbox, socket: Socket) -> int:
    """Write the next message, whole or, where this is cancelled, not at all; raises `SocketClosedError`. Gives how many
    bytes it had."""
    text = await outbox.next()
    try:
        await socket.send(text)
    except asyncio.CancelledError:
        outbox.put_back(text)
        raise
    return wire_bytes(text)


def wire_bytes(message: str | bytes) -> int:
    """How much of the wire a message took: text travels as UTF-8."""
    return len(message) if isinstance(message, bytes) or message.isascii() else len(message.encode())


class RealtimeConnection:
    """Serves `call` over `socket` until one of them ends. `medium` None: sound travels in the messages."""

    def __init__(
        self,
        socket: Socket,
        call: Call,
        outbox: Outbox,
        dialect: RealtimeDialect,
        limits: Limits,
        *,
        medium: Medium | None = None,
    ) -> None:
        self._socket = socket
        self._call = call
        self._outbox = outbox
        self._dialect = dialect
        self._limits = limits
        self._medium = medium
        self._allowance = Allowance(limits.bytes_per_second_max)
        self._last_input_ns = time.monotonic_ns()

    async def serve(self, first: ask.Command | None) -> str:
        """Serve, beginning with a command that was already read; gives the reason of the end."""
        self._attach()
        tasks = [
            asyncio.create_task(self._read(first)),
            asyncio.create_task(self._write()),
            asyncio.create_task(self._call.ended.wait()),
            asyncio.create_task(self._outbox.overflowed.wait()),
            asyncio.create_task(self._watch_limits()),
        ]
        if self._medium is not None:
            tasks.append(asyncio.create_task(self._medium.run(self._call)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return self._reason(tasks, done)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _attach(self) -> None:
        self._call.attach(self._medium.client if self._medium else self._outbox)

    def _reason(self, tasks: list[asyncio.Task[Any]], done: set[asyncio.Task[Any]]) -> str:
        for task in done:
            error = task.exception()
            if isinstance(error, SocketTakenError):
                raise error
            if error is not None and not isinstance(error, SocketClosedError):
                self._call.spoil(error)
        if self._call.end_reason is not None:
            return self._call.end_reason
        if tasks[3] in done:
            return "slow_client"
        for task in tasks[4:]:
            if task in done:
                reason: str = task.result()
                return reason
        return "client_closed"

    async def _write(self) -> None:
        while True:
            self._call.message_passed(await write_next(self._outbox, self._socket))

    async def _watch_limits(self) -> str:
        deadline_ns = time.monotonic_ns() + self._limits.call_ns_max
        while True:
            now_ns = time.monotonic_ns()
            if now_ns >= deadline_ns:
                return "call_too_long"
            last_input_ns = max(self._last_input_ns, self._medium.last_input_ns if self._medium else 0)
            if now_ns - last_input_ns >= self._limits.idle_ns_max:
                return "idle"
            next_ns = min(deadline_ns, last_input_ns + self._limits.idle_ns_max)
            await asyncio.sleep((next_ns - now_ns) / 1e9)

    # ---- commands ----------------------------------------------------------------------------------

    async def _read(self, first: ask.Command | None) -> None:
        if first is not None:
            await self._follow_safely(first)
        while True:
            text = await self._socket.receive()
            self._last_input_ns = time.monotonic_ns()
            self._call.message_passed(wire_bytes(text))
            await self._take(text)
            # Also where there is nothing to wait for: a socket that has much to read gives it without waiting, and
            # other calls have their turn in between. A stop has been obeyed by then.
            await asyncio.sleep(self._allowance.spend(wire_bytes(text), self._last_input_ns) / 1e9)
            await self._call.journal.until_room()

    async def _take(self, text: str | bytes) -> None:
        try:
            command = self._parse(text)
        except ClientEventError as error:
            self._refuse(error, error.event_id)
        else:
            await self._follow_safely(command)

    def _parse(self, text: str | bytes) -> ask.Command:
        limit = self._limits.message_bytes_max
        if limit is not None and wire_bytes(text) > limit:
            raise ClientEventError("message_too_large", f"a message has at most {limit} bytes here")
        return ask.parse(text)

    async def _follow_safely(self, command: ask.Command) -> None:
        self._dialect.answered = command.event_id
        try:
            await self._follow(command)
        except ClientEventError as error:
            self._refuse(error, command.event_id)
        finally:
            self._dialect.answered = None

    def _refuse(self, error: ClientEventError, event_id: str | None) -> None:
        self._call.client_failed(error.code)
        self._outbox.post(error_message(error.code, str(error), param=error.param, event_id=event_id))

    async def _follow(self, command: ask.Command) -> None:
        call, now_ns = self._call, time.monotonic_ns()
        match command:
            case ask.InputAppend() | ask.InputCommit() | ask.InputClear():
                await self._follow_input(command)
            case ask.ItemCreate() | ask.ItemDelete() | ask.ItemRetrieve() | ask.ItemTruncate():
                self._follow_item(command)
            case ask.SessionUpdate():
                self._update(command)
            case ask.ResponseCreate():
                spec = response_spec(command.response, call.conversation.settings, call.tools.tools)
                call.carry_out(call.conversation.create_response(spec, now_ns))
            case ask.ResponseCancel():
                call.carry_out(call.conversation.cancel_response(command.response_id, now_ns))
            case ask.OutputClear():
                call.carry_out(call.conversation.stop_speaking("client_cancelled", now_ns))
            case ask.PlaybackAck():
                self._heard(command)
            case ask.TurnHold():
                self._hold()
            case ask.Bye():
                call.end("client_closed")
            case ask.SessionResume():
                raise ClientEventError("resume_too_late", "session.resume must be the first event of a connection")

    async def _follow_input(self, command: ask.InputAppend | ask.InputCommit | ask.InputClear) -> None:
        call = self._call
        match command:
            case ask.InputAppend() if self._medium is not None:
                raise ClientEventError("unsupported_event", "sound comes by the audio track of this connection")
            case ask.InputAppend():
                await self._hear(command)
            case ask.InputCommit():
                call.commit_input()
            case ask.InputClear():
                call.carry_out(call.conversation.clear_input(time.monotonic_ns()))

    async def _hear(self, command: ask.InputAppend) -> None:
        try:
            placed = await self._call.listening.hear(_audio_of(command), command.start_sample)
        except InputGapError as error:
            raise ClientEventError("input_gap_too_large", str(error), "start_sample") from error
        self._call.input_misplaced(placed)
        if placed.gap and self._dialect.extensions:
            self._outbox.post(gap_message(placed))

    def _follow_item(self, command: ask.ItemCreate | ask.ItemDelete | ask.ItemRetrieve | ask.ItemTruncate) -> None:
        call, talk = self._call, self._call.conversation
        match command:
            case ask.ItemCreate():
                call.carry_out(self._created(command))
            case ask.ItemDelete():
                call.carry_out(talk.delete_item(command.item_id))
            case ask.ItemRetrieve():
                call.carry_out(talk.retrieve_item(command.item_id))
            case ask.ItemTruncate():
                end_ms = _whole_ms(command.audio_end_ms)
                call.carry_out(talk.truncate_item(command.item_id, end_ms, time.monotonic_ns()))

    def _hold(self) -> None:
        if self._call.conversation.settings.turn_detection is None:
            raise ClientEventError("turn_detection_off", "turn_detection is null: nobody could confirm that hold")
        self._call.listening.alert()

    def _created(self, command: ask.ItemCreate) -> list[Effect]:
        talk, item = self._call.conversation, item_of(command.item, self._dialect.new_id("item"))
        if item.kind == "function_call_output":
            return talk.answer_call(item, time.monotonic_ns())
        return talk.create_item(item, command.previous_item_id)

    def _heard(self, report: ask.PlaybackAck) -> None:
        places = self._places_of(report)
        for place in places:
            self._call.heard(place.response, place.samples)
        if places and self._dialect.extensions:
            self._outbox.post(acknowledged_message(self._furthest(places[0]), self._rate_of(places[0].response)))

    def _furthest(self, place: Position) -> Position:
        """A report that falls behind an earlier one does not lead back."""
        reported = self._call.conversation.speaking.reported_of(place.response)
        samples = max(place.samples, reported)
        return replace(place, samples=samples, until=max(place.until, samples))

    def _rate_of(self, response: str) -> int:
        """Samples per second of a response that a report was about."""
        return OUTPUT_RATE if self._medium is not None else self._call.conversation.speaking.rate_of(response)

    def _places_of(self, report: ask.PlaybackAck) -> tuple[Position, ...]:
        """Where the ear is by `report`, within what was sent, and that it is not in what comes behind it; empty where
        nothing is known of that."""
        if report.rtp_timestamp is not None and self._medium is not None:
            return self._medium.locate(report.rtp_timestamp, report.age_ms, report.output_latency_ms)
        if report.response_id is None or report.played_samples is None:
            needed = "response_id and played_samples" if self._medium is None else "rtp_timestamp"
            missing = "response_id" if report.response_id is None else "played_samples"
            param = missing if self._medium is None else needed
            raise ClientEventError("invalid_value", f"a report on this transport needs {needed}", param)
        sent = self._call.conversation.speaking.sent_of(report.response_id, time.monotonic_ns())
        return () if sent is None else (Position(report.response_id, min(report.played_samples, sent), sent),)

    def _update(self, command: ask.SessionUpdate) -> None:
        served = self._call.tools.tools
        settings = apply_patch(self._call.conversation.settings, command.session, served)
        if self._medium is not None:
            check_medium(settings)
        elif self._call.listening.has_own_format:
            check_line(self._call.conversation.settings, settings)
        if command.session.extensions is not msgspec.UNSET:
            self._dialect.extensions = command.session.extensions
        self._call.update(settings)


class Allowance:
    """Input bytes per second, with one second's worth of burst. Who sends more is read more slowly."""

    def __init__(self, bytes_per_second_max: int) -> None:
        self._rate = bytes_per_second_max
        self._spent_until_ns = 0

    def spend(self, count: int, now_ns: int) -> int:
        """Take `count` bytes; gives how long to wait before the next are read, in ns."""
        self._spent_until_ns = max(self._spent_until_ns, now_ns) + count * 1_000_000_000 // self._rate
        return max(0, self._spent_until_ns - now_ns - 1_000_000_000)


def _audio_of(command: ask.InputAppend) -> bytes:
    try:
        return base64.b64decode(command.audio, validate=True)
    except ValueError as error:  # binascii.Error, or what is not even ASCII
        raise ClientEventError("invalid_audio", f"not base64: {error}", "audio") from error


def _whole_ms(asked: float) -> int:
    if asked < 0:
        raise ClientEventError("invalid_value", "audio_end_ms must not be negative", "audio_end_ms")
    return int(asked)


def gap_message(placed: Placed) -> Message:
    """`input_audio_buffer.gap`: what the client has left out before what it sent."""
    return {
        "type": "input_audio_buffer.gap",
        "start_sample": placed.start - placed.gap,
        "samples": placed.gap,
    }


def created_message(call: Call, settings: SessionSettings, resume_token: str, dialect: RealtimeDialect) -> Message:
    """`session.created`, with what a client needs to come back where it opted in."""
    body = session_dict(call.session, settings, call.tools.tools)
    if dialect.extensions:
        body["resume_token"] = resume_token
    return {"type": "session.created", "session": body}


def resumed_message(
    call: Call, resume_token: str, items: list[Message], *, history_lost: bool = False, resync: bool | None = None
) -> Message:
    """`session.resumed`: the session as it stands, its items, and what was received of the input.

    `history_lost`: the store has lost the last of them. `resync`: what the client has missed is not told again; None:
    it has not asked for that.
    """
    body = session_dict(call.session, call.conversation.settings, call.tools.tools) | {"resume_token": resume_token}
    received = {
        "input_samples_received": call.listening.received_samples,
        "input_sample_rate": call.listening.client_rate,
        "epoch": call.conversation.epoch,
    }
    lost = {"history_lost": True} if history_lost else {}
    told = {} if resync is None else {"resync": resync}
    return {"type": "session.resumed", "session": body, "items": items, **received, **lost, **told}
