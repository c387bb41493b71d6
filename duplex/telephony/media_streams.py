"""Twilio Media Streams and its relatives: JSON with base64 sound, by one codec and a table for each.

Theory of operation
    The carrier connects and says `connected`, then `start` with its ids and what was set up for the call, then `media`
    every 20 ms. It is sent `media`, `mark` and `clear`, and sends each mark back: when what was before it has been
    played, or when a `clear` has thrown that away, which looks the same.

Sources
* Twilio, "Media Streams - WebSocket Messages", and "<Stream>", read in November 2026.
* Telnyx, "Media Streaming over WebSockets", read in November 2026.

Rules
* Numbers may be texts. Fields and events that are not known here are passed over.
* Sound of our own, which some carriers can be asked to send back, is not the caller's.
* What a carrier calls its faults is a label of a metric only where that is known here.
* No event counts before `start`, and none after `stop`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from duplex.telephony.carrier import (
    A_LAW_LINE,
    FRAME_MS,
    MU_LAW_LINE,
    Capabilities,
    CarrierError,
    Closed,
    Event,
    Fault,
    Message,
    SoundIn,
    Started,
    beginning,
    digit_of,
    linear_line,
    mark_name,
    parse_mark,
)
from duplex.telephony.marks import Marks
from duplex.telephony.wire_values import Fields, base64_bytes, number, object_of, part, text, texts, words
from media.audio_format import AudioFormat

_CALLERS_TRACKS = frozenset({"", "inbound", "inbound_track"})
OTHER_FAULT = "other"
_json = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class StreamDialect:
    """How a relative of the family says it. The names are fields; `call`, `account`, `caller` and `called` those of
    `start`, empty where there is none. `linear`: encodings that are PCM16, of the rate that is told beside them.

    `faults`: codes of its `error` events. `names_stream`: what is sent names the stream. `reorders`: sound may come out
    of order. `lead_ms`: DESIGN section 6.
    """

    name: str
    stream: str
    call: str
    account: str
    caller: str
    called: str
    parameters: str
    format: str
    rate: str
    linear: frozenset[str]
    faults: frozenset[str]
    names_stream: bool
    reorders: bool
    lead_ms: int
    hangup_on_close: bool


TWILIO = StreamDialect(
    name="twilio",
    stream="streamSid",
    call="callSid",
    account="accountSid",
    caller="",
    called="",
    parameters="customParameters",
    format="mediaFormat",
    rate="sampleRate",
    linear=frozenset(),
    faults=frozenset(),
    names_stream=True,
    reorders=False,
    lead_ms=250,
    hangup_on_close=True,
)
TELNYX = StreamDialect(
    name="telnyx",
    stream="stream_id",
    call="call_control_id",
    account="user_id",
    caller="from",
    called="to",
    parameters="custom_parameters",
    format="media_format",
    rate="sample_rate",
    linear=frozenset({"L16"}),
    faults=frozenset({"100002", "100003", "100004", "100005"}),
    names_stream=False,
    reorders=True,
    lead_ms=250,
    hangup_on_close=False,
)

_LAWS: Mapping[str, AudioFormat] = {
    "audio/x-mulaw": MU_LAW_LINE,
    "PCMU": MU_LAW_LINE,
    "audio/x-alaw": A_LAW_LINE,
    "PCMA": A_LAW_LINE,
}
_LINEAR_RATES = frozenset({8_000, 16_000, 24_000})


class _State(Enum):
    WAITING = auto()
    RUNNING = auto()
    OVER = auto()


# Which events mean something in which state, and what they lead to. All others are passed over, or out of place.
_NEXT: Mapping[tuple[_State, str], _State] = {
    (_State.WAITING, "connected"): _State.WAITING,
    (_State.WAITING, "error"): _State.WAITING,
    (_State.WAITING, "start"): _State.RUNNING,
    (_State.RUNNING, "media"): _State.RUNNING,
    (_State.RUNNING, "dtmf"): _State.RUNNING,
    (_State.RUNNING, "mark"): _State.RUNNING,
    (_State.RUNNING, "error"): _State.RUNNING,
    (_State.RUNNING, "stop"): _State.OVER,
}
_KNOWN = frozenset(event for _, event in _NEXT)


class MediaStreams:
    """`Carrier` of the relative that `dialect` describes."""

    def __init__(self, dialect: StreamDialect) -> None:
        self.name = dialect.name
        self._dialect = dialect
        self._state = _State.WAITING
        self._stream = ""
        self._marks = Marks()
        self._frame_bytes = 160
        self._readers: Mapping[str, Callable[[Fields], list[Event]]] = {
            "connected": lambda _fields: [],
            "start": self._start,
            "media": self._media,
            "dtmf": lambda fields: [digit_of(text(part(fields, "dtmf"), "digit", needed=True))],
            "mark": self._mark,
            "error": self._error,
            "stop": lambda _fields: [Closed("carrier_hung_up")],
        }

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            marks_on_clear="returned",
            exact_queue=False,
            can_pause=False,
            frame_bytes=self._frame_bytes,
            lead_ms=self._dialect.lead_ms,
            hangup_on_close=self._dialect.hangup_on_close,
            is_ordered=not self._dialect.reorders,
        )

    # ---- from the carrier ----------------------------------------------------------------------------

    def receive(self, message: Message, /) -> list[Event]:
        if isinstance(message, bytes):
            raise CarrierError("binary_message", f"{self.name} sends its messages as text")
        fields = object_of(message)
        kind = text(fields, "event", needed=True)
        if kind not in _KNOWN or self._state is _State.OVER:
            return []
        following = _NEXT.get((self._state, kind))
        if following is None:
            raise CarrierError("out_of_order", f"{kind} out of its place: a stream begins with one start")
        if self._state is _State.RUNNING and text(fields, self._dialect.stream) not in ("", self._stream):
            raise CarrierError("other_stream", f"{kind} is of another stream than the one that has started")
        events = self._readers[kind](fields)
        self._state = following
        return events

    def _start(self, fields: Fields) -> list[Event]:
        with beginning():
            return [self._started(fields)]

    def _started(self, fields: Fields) -> Started:
        dialect, start = self._dialect, part(fields, "start")
        stream = text(fields, dialect.stream) or text(start, dialect.stream)
        if not stream:
            raise CarrierError("no_stream", f"start: no {dialect.stream}")
        line = self._format_of(part(start, dialect.format))
        started = Started(
            stream,
            text(start, dialect.call),
            line,
            text(start, dialect.account),
            text(start, dialect.caller),
            text(start, dialect.called),
            texts(start, dialect.parameters),
        )
        self._stream = stream
        self._frame_bytes = len(line.encode(bytes(2 * (line.sample_rate * FRAME_MS // 1_000))))
        return started

    def _format_of(self, told: Fields) -> AudioFormat:
        encoding, rate = text(told, "encoding", needed=True), number(told, self._dialect.rate)
        if number(told, "channels") not in (None, 1):
            raise CarrierError("unsupported_format", "start: more than one channel")
        line = _LAWS.get(encoding)
        if line is not None and rate in (None, line.sample_rate):
            return line
        if encoding in self._dialect.linear and rate in _LINEAR_RATES:
            return linear_line(rate)
        wanted = ", ".join(sorted([*_LAWS, *self._dialect.linear]))
        raise CarrierError("unsupported_format", f"start: sound that is none of {wanted}")

    def _media(self, fields: Fields) -> list[Event]:
        media = part(fields, "media")
        if text(media, "track") not in _CALLERS_TRACKS:
            return []
        payload = media.get("payload")
        if not isinstance(payload, str):
            raise CarrierError("invalid_payload", "payload: not a text")
        return [SoundIn(base64_bytes(payload), number(media, "timestamp"), number(media, "chunk"))]

    def _error(self, fields: Fields) -> list[Event]:
        told = part(fields, "payload")
        code = str(told.get("code"))
        return [Fault(code if code in self._dialect.faults else OTHER_FAULT, words(told, "title"))]

    def _mark(self, fields: Fields) -> list[Event]:
        return [self._marks.came_back(*parse_mark(text(part(fields, "mark"), "name", needed=True)))]

    # ---- to the carrier --------------------------------------------------------------------------------

    def _message(self, kind: str, **body: Fields) -> Message:
        assert self._state is not _State.WAITING, "nothing is sent before the stream has started"
        stream = {self._dialect.stream: self._stream} if self._dialect.names_stream else {}
        return _json.encode({"event": kind, **stream, **body}).decode()

    def answer(self) -> list[Message]:
        return []

    def audio(self, _epoch: int, _offset: int, coded: bytes, /) -> Message:
        assert len(coded) % self._frame_bytes == 0, "a frame is whole"
        return self._message("media", media={"payload": base64.b64encode(coded).decode()})

    def mark(self, epoch: int, offset: int, /) -> list[Message]:
        self._marks.sent(epoch, offset)
        return [self._message("mark", mark={"name": mark_name(epoch, offset)})]

    def flush(self, _epoch: int, offset: int, /) -> list[Message]:
        self._marks.flushed(offset)
        return [self._message("clear")]

    def pause(self, _epoch: int, _offset: int, /) -> list[Message]:
        return []

    def resume(self) -> list[Message]:
        return []

    def hang_up(self) -> list[Message]:
        return []
