"""A channel of Asterisk's `chan_websocket`: the core, on the switch's own clock.

Theory of operation
    Sound travels in binary messages, as it is; commands and events are JSON in text messages. `begin` tells of the
    call, then the shell calls `frame` each `FRAME_MS`, with what the caller says: in that tick one frame is taken from
    the queue for the caller's ear. Everything that the service sends is taken in by `receive`, in order.

        NEW -> RINGING -> UP -> DOWN

Rules
* A message of sound is cut into frames. What is left over is dropped, and so is a message shorter than a frame, except
  while buffering, when it waits for more.
* Ticks count: one comes 20 ms after the other, however late the shell is with them.
* Commands longer than `TEXT_BYTES_MAX`, malformed and unknown ones are ignored without a word.
* Marks and completions are reported in the tick that takes the next frame; a flush drops them silently, and ends
  buffering, but not a pause. A pause keeps marks, XON and the report of an empty queue back as well.

Sources: channels/chan_websocket.c and docs/WebSocket.md of Asterisk, August 2026: of the last, that buffering which has
begun cannot begin again, and that only such can end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from loadtest.carriers.effects import Accepted, Cleared, Complaint, Effect, HungUp, Send
from loadtest.carriers.frame_queue import XOFF_LEVEL, XON_LEVEL, FrameQueue, Notice
from loadtest.carriers.unruly_line import OVERSIZED_BYTES, Fault
from loadtest.playout_model import Heard
from media.audio_format import FORMATS, AudioFormat
from media.chunk import BYTES_PER_SAMPLE, ms_to_samples

FRAME_MS = 20
FRAME_NS = FRAME_MS * 1_000_000
TEXT_BYTES_MAX = 128
MESSAGE_BYTES_MAX = 65_500
# What waits to be read by a service that does not read is dropped here; no limit of the source.
BACKLOG_MAX = 250

SOUNDS: dict[str, AudioFormat] = {
    "ulaw": FORMATS["audio/pcmu"],
    "alaw": FORMATS["audio/pcma"],
    "slin": AudioFormat("audio/pcm", 8_000),
    "slin16": AudioFormat("audio/pcm", 16_000),
}


class Phase(StrEnum):
    """Where the channel stands."""

    NEW = "new"
    RINGING = "ringing"
    UP = "up"
    DOWN = "down"


class Step(StrEnum):
    """What moves it."""

    RING = "ring"
    ANSWER = "answer"
    HANG_UP = "hang_up"


TRANSITIONS = {
    (Phase.NEW, Step.RING): Phase.RINGING,
    (Phase.RINGING, Step.ANSWER): Phase.UP,
    (Phase.UP, Step.ANSWER): Phase.UP,
    (Phase.NEW, Step.HANG_UP): Phase.DOWN,
    (Phase.RINGING, Step.HANG_UP): Phase.DOWN,
    (Phase.UP, Step.HANG_UP): Phase.DOWN,
}


class Direction(StrEnum):
    """Of sound, as the service sees it."""

    BOTH = "both"
    IN = "in"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class ChannelCall:
    """A call, as the switch knows it. `answers`: whether the switch answers by itself; otherwise the service must."""

    connection_id: str = "conn1"
    channel_id: str = "pbx-17.4"
    format_name: str = "ulaw"
    variables: dict[str, str] = field(default_factory=dict, repr=False)
    answers: bool = True


class _Command(msgspec.Struct, frozen=True):
    command: str
    correlation_id: str = ""
    direction: str = ""


class AsteriskChannel:
    """One channel. `ignored` counts what was dropped without a word, by the reason."""

    def __init__(self, call: ChannelCall) -> None:
        self.sound = SOUNDS[call.format_name]
        self.ignored: Counter[str] = Counter()
        self._call = call
        self._phase = Phase.NEW
        self._queue = FrameQueue()
        self._paused = False
        self._partial: bytes | None = None  # while buffering
        self._reports_drained = False
        self._tick_ns: int | None = None
        self._direction = Direction.BOTH

    @property
    def call_id(self) -> str:
        """By which the carrier knows the call."""
        return self._call.channel_id

    @property
    def frame_samples(self) -> int:
        return ms_to_samples(FRAME_MS, self.sound.sample_rate)

    @property
    def frame_bytes(self) -> int:
        """`optimal_frame_size`: of one frame of sound, as it travels."""
        return self.frame_samples * self._sample_bytes

    @property
    def _sample_bytes(self) -> int:
        return BYTES_PER_SAMPLE if self.sound.law is None else 1

    @property
    def is_over(self) -> bool:
        return self._phase is Phase.DOWN

    @property
    def queued_frames(self) -> int:
        return self._queue.frames

    # ---- the call --------------------------------------------------------------------------------

    def begin(self) -> list[Effect]:
        """The connection is there."""
        self._step(Step.RING)
        if self._call.answers:
            self._step(Step.ANSWER)
        told = {
            "connection_id": self._call.connection_id,
            "channel": f"WebSocket/{self._call.connection_id}",
            "format": self._call.format_name,
            "optimal_frame_size": self.frame_bytes,
            "ptime": FRAME_MS,
            "channel_variables": self._call.variables,
        }
        return [self._event("MEDIA_START", **told)]

    def frame(self, coded: bytes, now_ns: int, backlog: int = 0) -> list[Effect]:
        """A tick. `coded`: what the caller says in the frame that ends now, which nobody hears before the call is
        answered. `backlog`: messages that the service has not read yet."""
        if self.is_over:
            return []
        self._tick_ns = now_ns if self._tick_ns is None else self._tick_ns + FRAME_NS
        effects = [] if self._paused else self._play(self._tick_ns)
        if self._phase is not Phase.UP or self._direction is Direction.OUT:
            return effects
        if backlog >= BACKLOG_MAX:
            return [*effects, *self._ignore("sound for a service that does not read")]
        return [*effects, Send(coded, is_sound=True)]

    def press(self, digit: str) -> list[Effect]:
        """The caller has pressed a key."""
        return [] if self._phase is not Phase.UP else [self._event("DTMF_END", digit=digit)]

    def hang_up(self, _now_ns: int) -> list[Effect]:
        """The caller ends the call; what is queued will not be heard."""
        return [] if self.is_over else self._go_down("the caller hung up")

    def _go_down(self, reason: str) -> list[Effect]:
        self._step(Step.HANG_UP)
        return [*self._thrown_away(), HungUp(reason)]

    def _play(self, tick_ns: int) -> list[Effect]:
        taken = self._queue.take()
        effects: list[Effect] = [
            self._event(notice.event, correlation_id=notice.correlation_id) for notice in taken.notices
        ]
        if taken.frame is not None:
            effects.append(Heard(tick_ns, self.sound.decode(taken.frame)))
        if taken.turned_on:
            effects.append(self._event("MEDIA_XON"))
        if taken.ran_dry and self._reports_drained:
            self._reports_drained = False
            effects.append(self._event("QUEUE_DRAINED"))
        return effects

    # ---- sound of the service --------------------------------------------------------------------

    def receive(self, message: str | bytes, _now_ns: int) -> list[Effect]:
        """Take in what the service has sent."""
        if self.is_over:
            return []  # it was on its way when the call ended
        if self._phase is Phase.NEW:
            return self._ignore("a message before the call")
        if len(message) > MESSAGE_BYTES_MAX:
            complaint = Complaint("", f"a message of more than {MESSAGE_BYTES_MAX} bytes")
            return [complaint, *self._go_down("a message was too long")]
        return self._listen(message) if isinstance(message, bytes) else self._obey(message)

    def _listen(self, sound: bytes) -> list[Effect]:
        if self._direction is Direction.IN:
            return self._ignore("sound of a service that only listens")
        if not self._queue.takes_more:
            return self._ignore("sound for a full queue")
        sound = (self._partial or b"") + sound
        whole = len(sound) - len(sound) % self.frame_bytes
        effects = self._put([sound[at : at + self.frame_bytes] for at in range(0, whole, self.frame_bytes)])
        if self._partial is not None:
            self._partial = sound[whole:]
        elif whole < len(sound):
            return [*effects, *self._ignore("the rest of a message that is no frame")]
        return effects

    def _put(self, frames: list[bytes]) -> list[Effect]:
        turned_off = [self._queue.put(frame) for frame in frames]
        effects: list[Effect] = [Accepted(self.sound.decode(b"".join(frames)))] if frames else []
        return [*effects, self._event("MEDIA_XOFF")] if any(turned_off) else effects

    # ---- commands --------------------------------------------------------------------------------

    def _obey(self, text: str) -> list[Effect]:
        if len(text.encode(errors="replace")) > TEXT_BYTES_MAX:
            return self._ignore("a command that is too long")
        try:
            command = msgspec.json.decode(text, type=_Command)
        except (msgspec.DecodeError, UnicodeError):
            return self._ignore("a command that cannot be read")
        if command.command not in COMMANDS:
            return self._ignore("an unknown command")
        if self._direction is Direction.IN and command.command in SPEAKERS_COMMANDS:
            return self._refuse(f"{command.command} not supported while media direction is 'in'")
        return COMMANDS[command.command](self, command)

    def _answer(self, _command: _Command) -> list[Effect]:
        self._step(Step.ANSWER)
        return []

    def _end(self, _command: _Command) -> list[Effect]:
        return self._go_down("the service hung up")

    def _start_buffering(self, _command: _Command) -> list[Effect]:
        if self._partial is not None:
            return self._refuse("START_MEDIA_BUFFERING: media buffering is on already")
        self._partial = b""
        return []

    def _stop_buffering(self, command: _Command) -> list[Effect]:
        """The rest is a frame as well, shorter than others."""
        if self._partial is None:
            return self._refuse("STOP_MEDIA_BUFFERING: media buffering is not on")
        rest, self._partial = self._partial, None
        rest = rest[: len(rest) - len(rest) % self._sample_bytes]
        completed = Notice("MEDIA_BUFFERING_COMPLETED", command.correlation_id)
        return [*(self._put([rest]) if rest else []), *self._note(completed)]

    def _mark(self, command: _Command) -> list[Effect]:
        return self._note(Notice("MEDIA_MARK_PROCESSED", command.correlation_id))

    def _pause(self, command: _Command) -> list[Effect]:
        self._paused = command.command == "PAUSE_MEDIA"
        return []

    def _report_drained(self, _command: _Command) -> list[Effect]:
        self._reports_drained = True
        return []

    def _turn(self, command: _Command) -> list[Effect]:
        if command.direction not in tuple(Direction):
            return self._refuse(f"SET_MEDIA_DIRECTION: unknown direction {command.direction!r}")
        self._direction = Direction(command.direction)
        return []

    def _flush(self, _command: _Command) -> list[Effect]:
        self._partial = None
        return self._thrown_away()

    def _status(self, _command: _Command) -> list[Effect]:
        status = self._event(
            "STATUS",
            queue_length=self._queue.frames,
            xon_level=XON_LEVEL,
            xoff_level=XOFF_LEVEL,
            queue_full=self._queue.is_full,
            bulk_media=self._partial is not None,
            media_paused=self._paused,
        )
        return [status]

    def _note(self, notice: Notice) -> list[Effect]:
        return [] if self._queue.note(notice) else self._ignore("more marks than can be queued")

    def _thrown_away(self) -> list[Effect]:
        frames, notices = self._queue.flush()
        samples = len(self.sound.decode(b"".join(frames))) // BYTES_PER_SAMPLE
        return [Cleared(samples, tuple(notice.correlation_id for notice in notices))]

    # ---- answers ---------------------------------------------------------------------------------

    @property
    def forgeries(self) -> dict[Fault, str | bytes]:
        """Messages that a switch should not send."""
        return {Fault.MALFORMED: '{"event":', Fault.OVERSIZED: bytes(OVERSIZED_BYTES)}

    def _refuse(self, text: str) -> list[Effect]:
        return [self._event("ERROR", error_text=text), Complaint("", text)]

    def _ignore(self, reason: str) -> list[Effect]:
        """The first time for each reason it is told to the record, never to the service."""
        self.ignored[reason] += 1
        return [Complaint("", reason)] if self.ignored[reason] == 1 else []

    def _event(self, event: str, **fields: object) -> Send:
        return Send(msgspec.json.encode({"event": event, "channel_id": self._call.channel_id} | fields).decode())

    def _step(self, step: Step) -> None:
        assert (self._phase, step) in TRANSITIONS, f"{step} in {self._phase}"
        self._phase = TRANSITIONS[self._phase, step]


# What the service may command.
COMMANDS: dict[str, Callable[[AsteriskChannel, _Command], list[Effect]]] = {
    "ANSWER": AsteriskChannel._answer,
    "HANGUP": AsteriskChannel._end,
    "START_MEDIA_BUFFERING": AsteriskChannel._start_buffering,
    "STOP_MEDIA_BUFFERING": AsteriskChannel._stop_buffering,
    "MARK_MEDIA": AsteriskChannel._mark,
    "FLUSH_MEDIA": AsteriskChannel._flush,
    "PAUSE_MEDIA": AsteriskChannel._pause,
    "CONTINUE_MEDIA": AsteriskChannel._pause,
    "GET_STATUS": AsteriskChannel._status,
    "REPORT_QUEUE_DRAINED": AsteriskChannel._report_drained,
    "SET_MEDIA_DIRECTION": AsteriskChannel._turn,
}
# What is refused where the service only listens.
SPEAKERS_COMMANDS = frozenset(
    {"START_MEDIA_BUFFERING", "STOP_MEDIA_BUFFERING", "MARK_MEDIA", "PAUSE_MEDIA", "CONTINUE_MEDIA"}
)
