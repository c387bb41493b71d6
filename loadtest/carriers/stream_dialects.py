"""Media Streams as Twilio speaks it and as its relative Telnyx does: one protocol, a table for each.

Theory of operation
    Messages are JSON in text frames. Both carriers have the same events; they differ in how fields are called, where
    the id of the stream stands, and how they tell of mistakes. Sources, as of November 2026:
    twilio.com/docs/voice/media-streams, Twilio's error pages, developers.telnyx.com/api-reference/websockets.

Rules
* Numbers in messages are strings, save those of the format.
* Twilio writes mistakes down, each kind once for a stream; Telnyx sends an event back each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from media.audio_format import FORMATS, AudioFormat

Fields = dict[str, object]

PHONE = FORMATS["audio/pcmu"]
WIDE = AudioFormat("audio/pcm", 16_000)  # what Telnyx calls L16, little-endian


class Mistake(StrEnum):
    """What a service can do wrong, and the reading of its sound too slowly."""

    NOT_TEXT = "a binary message"
    NOT_JSON = "text that is no JSON"
    SCHEMA = "a message without the fields of its event"
    EVENT = "an unknown event"
    STREAM = "a message for another stream"
    PAYLOAD = "a payload that is no sound"
    TOO_EARLY = "a message before the start of the stream"
    TOO_MUCH = "more sound or marks than can be queued"
    CONGESTED = "too slow a reader: sound of the caller was dropped"


@dataclass(frozen=True, slots=True)
class StreamCall:
    """A call, as the carrier knows it. `parameters`: what the service asked to be told at the start."""

    stream_id: str = "MZ00000000000000000000000000000001"
    call_id: str = "CA00000000000000000000000000000001"
    account_id: str = "AC00000000000000000000000000000001"
    caller: str = "+15550100"
    called: str = "+15550199"
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a carrier speaks. `codes`: by which each mistake is known; `stream_in_commands`: whether the service names
    the stream in what it sends; `payload_ms`: how long the sound of a message may be."""

    sequence: str
    stream: str
    sound: AudioFormat
    codes: Mapping[Mistake, str]
    stream_in_commands: bool
    sends_errors: bool
    payload_ms: tuple[int, int] | None
    connected: Fields
    start: Callable[[StreamCall, AudioFormat], Fields]
    stop: Callable[[StreamCall], Fields]
    digit: Callable[[str], Fields]


def _twilio_start(call: StreamCall, sound: AudioFormat) -> Fields:
    return {
        "streamSid": call.stream_id,
        "accountSid": call.account_id,
        "callSid": call.call_id,
        "tracks": ["inbound"],
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": sound.sample_rate, "channels": 1},
        "customParameters": dict(call.parameters),
    }


def _telnyx_start(call: StreamCall, sound: AudioFormat) -> Fields:
    encoding = "L16" if sound.law is None else "PCMU"
    return {
        "user_id": call.account_id,
        "call_control_id": call.call_id,
        "call_session_id": call.call_id,
        "from": call.caller,
        "to": call.called,
        "tags": [],
        "client_state": "",
        "custom_parameters": dict(call.parameters),
        "media_format": {"encoding": encoding, "sample_rate": sound.sample_rate, "channels": 1},
    }


TWILIO = Dialect(
    sequence="sequenceNumber",
    stream="streamSid",
    sound=PHONE,
    codes={
        Mistake.NOT_TEXT: "31950",
        Mistake.NOT_JSON: "31950",
        Mistake.SCHEMA: "31951",
        Mistake.EVENT: "31924",
        Mistake.STREAM: "31951",
        Mistake.PAYLOAD: "31951",
        Mistake.TOO_EARLY: "31951",
        Mistake.CONGESTED: "31930",
    },
    stream_in_commands=True,
    sends_errors=False,
    payload_ms=None,
    connected={"event": "connected", "protocol": "Call", "version": "1.0.0"},
    start=_twilio_start,
    stop=lambda call: {"accountSid": call.account_id, "callSid": call.call_id},
    digit=lambda digit: {"track": "inbound_track", "digit": digit},
)

TELNYX = Dialect(
    sequence="sequence_number",
    stream="stream_id",
    sound=PHONE,
    codes={
        Mistake.NOT_TEXT: "100003",
        Mistake.NOT_JSON: "100003",
        Mistake.SCHEMA: "100003",
        Mistake.EVENT: "100002",
        Mistake.PAYLOAD: "100004",
        Mistake.TOO_EARLY: "100003",
        Mistake.TOO_MUCH: "100005",
    },
    stream_in_commands=False,
    sends_errors=True,
    payload_ms=(20, 30_000),
    connected={"event": "connected", "version": "1.0.0"},
    start=_telnyx_start,
    stop=lambda call: {"user_id": call.account_id, "call_control_id": call.call_id},
    digit=lambda digit: {"digit": digit},
)


def to_text(message: Fields) -> str:
    return msgspec.json.encode(message).decode()
