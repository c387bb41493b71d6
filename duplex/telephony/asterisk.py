"""Asterisk's WebSocket channel (`chan_websocket`): JSON commands and events as text, raw sound as binary messages.

Theory of operation
    Asterisk says `MEDIA_START` with the codec and the size of its frames. It takes one frame of what it is sent every
    20 ms and can be paused, asked for the length of its queue, and told to throw that away. So an interruption is
    PAUSE_MEDIA, GET_STATUS, FLUSH_MEDIA, CONTINUE_MEDIA: what was not played is then known to the frame.

Sources
* Asterisk, channels/chan_websocket.c at f0c1c1a7 and its WebSocket documentation, read in November 2026.

Rules
* Sound is sent in exact multiples of `optimal_frame_size`: of anything else the rest is dropped there.
* FLUSH_MEDIA drops marks without a word, and does not undo a pause, whatever the documentation says.
* A STATUS that says that the queue is not full is an XON: that may be lost, as may any event.
* Sound may come before MEDIA_START (asterisk#1712): it is kept, up to `EARLY_BYTES_MAX`.
* A command has at most `COMMAND_BYTES_MAX` bytes; longer ones would be passed over without an error.
* Events in the older plain-text form are understood; commands are JSON.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from duplex.telephony.carrier import (
    A_LAW_LINE,
    FRAME_MS,
    MU_LAW_LINE,
    Capabilities,
    CarrierError,
    Event,
    Fault,
    Flushed,
    Message,
    Played,
    SoundIn,
    Started,
    Xoff,
    Xon,
    beginning,
    digit_of,
    linear_line,
    mark_name,
    parse_mark,
)
from duplex.telephony.marks import Marks
from duplex.telephony.wire_values import Fields, number, object_of, text, texts, words
from media.audio_format import AudioFormat

SUBPROTOCOL = "media"
COMMAND_BYTES_MAX = 128  # MAX_TEXT_MESSAGE_LEN
EARLY_BYTES_MAX = 48_000  # a second of the widest format
STATUSES_MAX = 64  # questions without an answer; one is asked at each hold and each interruption
LEAD_MS = 80
FRAME_MS_MIN, FRAME_MS_MAX = 10, 60  # and whole tens of them: what telephones have; 20 is usual

_FORMATS: Mapping[str, AudioFormat] = {
    "ulaw": MU_LAW_LINE,
    "alaw": A_LAW_LINE,
    "slin": linear_line(8_000),
    "slin16": linear_line(16_000),
    "slin24": linear_line(24_000),
}
_json = msgspec.json.Encoder()


class Asterisk:
    """`Carrier` of one channel."""

    name = "asterisk"

    def __init__(self) -> None:
        self._format: AudioFormat | None = None
        self._frame_bytes = 0
        self._early: list[SoundIn] = []
        self._early_bytes = 0
        self._marks = Marks()
        self._is_paused = False
        # What was sent when each status was asked for, and whether a flush followed; None: one of nothing.
        self._asked: deque[tuple[int, int, bool | None]] = deque(maxlen=STATUSES_MAX)
        self._flushed = 0
        self._readers: Mapping[str, Callable[[Fields], list[Event]]] = {
            "MEDIA_START": self._start,
            "MEDIA_MARK_PROCESSED": self._mark,
            "STATUS": self._status,
            "MEDIA_XOFF": lambda _fields: [Xoff()],
            "MEDIA_XON": lambda _fields: [Xon()],
            "DTMF_END": lambda fields: [digit_of(text(fields, "digit", needed=True))],
            "ERROR": lambda fields: [Fault("error", words(fields, "error_text"))],
        }

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            marks_on_clear="dropped",
            exact_queue=True,
            can_pause=True,
            frame_bytes=self._frame_bytes,
            lead_ms=LEAD_MS,
            hangup_on_close=True,
        )

    # ---- from the carrier ----------------------------------------------------------------------------

    def receive(self, message: Message, /) -> list[Event]:
        if isinstance(message, bytes):
            return self._sound(SoundIn(message))
        fields = object_of(message) if message.lstrip().startswith("{") else _plain(message)
        reader = self._readers.get(text(fields, "event", needed=True))
        return reader(fields) if reader else []

    def _sound(self, sound: SoundIn) -> list[Event]:
        if self._format is not None:
            return [sound]
        self._early_bytes += len(sound.coded)
        if self._early_bytes <= EARLY_BYTES_MAX:
            self._early.append(sound)
        return []

    def _start(self, fields: Fields) -> list[Event]:
        if self._format is not None:
            raise CarrierError("out_of_order", "MEDIA_START came twice")
        with beginning():
            started = self._started(fields)
        early, self._early = self._early, []
        return [started, *early]

    def _started(self, fields: Fields) -> Started:
        line = _FORMATS.get(text(fields, "format", needed=True))
        if line is None:
            wanted = ", ".join(_FORMATS)
            raise CarrierError("unsupported_format", f"the channel's codec is none of {wanted}: set c()")
        for mode, option in (("passthrough", "p"), ("unbuffered", "u")):
            if fields.get(mode) in (True, "true"):
                raise CarrierError("unsupported_mode", f"the channel is {mode}: leave option {option} out")
        frame_bytes = number(fields, "optimal_frame_size")
        sizes = [_bytes_of(ms, line) for ms in range(FRAME_MS_MIN, FRAME_MS_MAX + 1, 10)]
        if frame_bytes is None or frame_bytes not in sizes:
            usual = _bytes_of(FRAME_MS, line)
            raise CarrierError("invalid_frame_size", f"optimal_frame_size: none of {sizes}; {usual} is usual")
        started = Started(
            text(fields, "connection_id"), text(fields, "channel_id"), line, parameters=_variables(fields)
        )
        self._format, self._frame_bytes = line, frame_bytes
        return started

    def _mark(self, fields: Fields) -> list[Event]:
        return [self._marks.came_back(*parse_mark(text(fields, "correlation_id", needed=True)))]

    def _status(self, fields: Fields) -> list[Event]:
        frames = number(fields, "queue_length")
        if frames is None or self._format is None or not self._asked:
            raise CarrierError("unexpected_status", "a STATUS that nobody has asked for, or without queue_length")
        epoch, offset, is_flush = self._asked.popleft()
        has_room: list[Event] = [Xon()] if fields.get("queue_full") in (False, "false") else []
        if is_flush is None:
            return [Flushed(epoch, offset, None), *has_room]
        unplayed = min(offset, frames * (self._frame_bytes // _sample_bytes(self._format)))
        return [Flushed(epoch, offset, unplayed) if is_flush else Played(epoch, offset - unplayed), *has_room]

    # ---- to the carrier --------------------------------------------------------------------------------

    def answer(self) -> list[Message]:
        return [_command("ANSWER")]

    def audio(self, _epoch: int, _offset: int, coded: bytes, /) -> Message:
        assert self._frame_bytes, "nothing is sent before MEDIA_START"
        assert len(coded) % self._frame_bytes == 0, "of anything else the rest would be dropped"
        return coded

    def mark(self, epoch: int, offset: int, /) -> list[Message]:
        self._marks.sent(epoch, offset)
        return [_command("MARK_MEDIA", correlation_id=mark_name(epoch, offset))]

    def flush(self, epoch: int, offset: int, /) -> list[Message]:
        stop = [] if self._is_paused else [_command("PAUSE_MEDIA")]
        # What had not left by now never will, and no question that is under way is about it.
        self._asked = deque(((one, min(at, offset), of) for one, at, of in self._asked), STATUSES_MAX)
        # Of what was thrown away before it says nothing, though it all lies before it.
        self._asked.append((epoch, offset, True if offset > self._flushed else None))
        self._flushed = offset
        self._marks.flushed(offset)
        self._is_paused = False
        return [*stop, _command("GET_STATUS"), _command("FLUSH_MEDIA"), _command("CONTINUE_MEDIA")]

    def pause(self, epoch: int, offset: int, /) -> list[Message]:
        if self._is_paused:
            return []
        self._is_paused = True
        self._asked.append((epoch, offset, False))
        return [_command("PAUSE_MEDIA"), _command("GET_STATUS")]

    def resume(self) -> list[Message]:
        if not self._is_paused:
            return []
        self._is_paused = False
        return [_command("CONTINUE_MEDIA")]

    def hang_up(self) -> list[Message]:
        return [_command("HANGUP")]


def _command(name: str, **more: str) -> Message:
    command = _json.encode({"command": name, **more})
    assert len(command) <= COMMAND_BYTES_MAX, "it would be passed over"
    return command.decode()


def _sample_bytes(line: AudioFormat) -> int:
    return 2 if line.law is None else 1


def _bytes_of(ms: int, line: AudioFormat) -> int:
    return line.sample_rate * ms // 1_000 * _sample_bytes(line)


def _variables(fields: Fields) -> dict[str, str]:
    """The channel's; in plain text there are none."""
    return texts(fields, "channel_variables") if isinstance(fields.get("channel_variables"), dict) else {}


def _plain(message: str) -> Fields:
    """`NAME key:value key:value`, as older releases say it; values have no blanks."""
    kind, *rest = message.split() or [""]
    fields = dict(word.partition(":")[::2] for word in rest)
    return {**fields, "event": kind}
