"""What a client may send, as typed messages.

Rules
* Known events with wrong values are refused with the path of the fault; fields that we do not know are left unread,
  since real clients send more than any one server uses.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

# Both are repeated in our answers; a fault is shown by its beginning, as it may quote what the client sent.
EventId = Annotated[str, Meta(max_length=512)]
PROBLEM_CHARACTERS_MAX = 200
INPUT_SAMPLE_MAX = 1 << 53  # whole numbers of JSON are exact up to there (RFC 8259, section 6)
OPEN_RESPONSES_MAX = 16  # one of the conversation and one out of band is all that a client can have


class ClientEvent(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    event_id: EventId | None = None


class AudioFormat(msgspec.Struct, frozen=True):
    type: str = "audio/pcm"
    rate: int | None = None


class TurnDetectionPatch(msgspec.Struct, frozen=True):
    type: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: float | None = None
    prefix_padding_ms: int | None = None
    silence_duration_ms: int | None = None
    eagerness: Literal["low", "medium", "high", "auto"] | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: int | UnsetType | None = UNSET


class AudioInputPatch(msgspec.Struct, frozen=True):
    format: AudioFormat | UnsetType = UNSET
    transcription: dict[str, Any] | UnsetType | None = UNSET
    turn_detection: TurnDetectionPatch | UnsetType | None = UNSET


class AudioOutputPatch(msgspec.Struct, frozen=True):
    format: AudioFormat | UnsetType = UNSET
    voice: str | dict[str, Any] | UnsetType = UNSET
    speed: float | UnsetType = UNSET


class AudioPatch(msgspec.Struct, frozen=True):
    input: AudioInputPatch | UnsetType = UNSET
    output: AudioOutputPatch | UnsetType = UNSET


class FunctionBody(msgspec.Struct, frozen=True):
    """A tool. Of other types than `function` nothing else is read, as they are refused."""

    type: str = "function"
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class NamedChoice(msgspec.Struct, frozen=True):
    type: str = "function"
    name: str = ""


class SessionPatch(msgspec.Struct, frozen=True):
    """`session` of `session.update`: absent fields stay as they are, null resets where the API says so."""

    type: Literal["realtime"] | UnsetType = UNSET
    model: str | UnsetType = UNSET
    instructions: str | UnsetType = UNSET
    output_modalities: list[Literal["audio", "text"]] | UnsetType = UNSET
    audio: AudioPatch | UnsetType = UNSET
    max_output_tokens: int | Literal["inf"] | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    tools: list[FunctionBody] | UnsetType = UNSET
    tool_choice: str | NamedChoice | UnsetType = UNSET
    extensions: bool | UnsetType = UNSET


class SessionUpdate(ClientEvent, frozen=True, tag="session.update"):
    session: SessionPatch


# Numbers in JSON are exact up to 2**53 (RFC 8259, section 6), and each takeover adds 2**20.
EPOCH_SEEN_MAX = 1 << 52


class SessionResume(ClientEvent, frozen=True, tag="session.resume"):
    """Extension: go on with an earlier session. Must be the first event of a connection.

    `responses`: those of which the client has seen the beginning and not the end. `epoch`: the greatest that it has
    seen; the session goes on above it, also where the store has forgotten it. `last_event_seq`: the last event that it
    has seen of the connection before; what has followed is told again.
    """

    token: str
    responses: Annotated[list[EventId], Meta(max_length=OPEN_RESPONSES_MAX)] = []
    epoch: Annotated[int, Meta(ge=0, le=EPOCH_SEEN_MAX)] = 0
    last_event_seq: Annotated[int, Meta(ge=0)] | None = None


class InputAppend(ClientEvent, frozen=True, tag="input_audio_buffer.append"):
    """`start_sample` (extension): where its first sample stands in the session's input."""

    audio: str
    start_sample: Annotated[int, Meta(ge=0, le=INPUT_SAMPLE_MAX)] | None = None


class InputCommit(ClientEvent, frozen=True, tag="input_audio_buffer.commit"):
    pass


class InputClear(ClientEvent, frozen=True, tag="input_audio_buffer.clear"):
    pass


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    transcript: str | None = None
    audio: str | None = None


class ItemBody(msgspec.Struct, frozen=True):
    """A message; or a call of a function: `call_id`, `name`, `arguments`; or what came of one: `call_id`, `output`."""

    type: str = "message"
    role: Literal["user", "assistant", "system"] | None = None
    content: list[ContentPart] = []
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None


class ItemCreate(ClientEvent, frozen=True, tag="conversation.item.create"):
    item: ItemBody
    previous_item_id: str | None = None


class ItemDelete(ClientEvent, frozen=True, tag="conversation.item.delete"):
    item_id: str


class ItemRetrieve(ClientEvent, frozen=True, tag="conversation.item.retrieve"):
    item_id: str


class ItemTruncate(ClientEvent, frozen=True, tag="conversation.item.truncate"):
    item_id: str
    audio_end_ms: float
    content_index: Literal[0] = 0  # what was said is the only content of an item


class ResponseBody(msgspec.Struct, frozen=True):
    instructions: str | None = None
    output_modalities: list[Literal["audio", "text"]] | None = None
    conversation: Literal["auto", "none"] = "auto"
    input: list[ItemBody] | None = None
    max_output_tokens: int | Literal["inf"] | None = None
    temperature: float | None = None
    metadata: dict[str, str] | None = None
    tools: list[FunctionBody] | None = None
    tool_choice: str | NamedChoice | None = None


class ResponseCreate(ClientEvent, frozen=True, tag="response.create"):
    response: ResponseBody = ResponseBody()


class ResponseCancel(ClientEvent, frozen=True, tag="response.cancel"):
    response_id: str | None = None


class OutputClear(ClientEvent, frozen=True, tag="output_audio_buffer.clear"):
    """Say no more of what is being said."""


class PlaybackAck(ClientEvent, frozen=True, tag="playback.ack"):
    """Extension: what the caller has heard.

    Over a WebSocket `played_samples` of `response_id`. Over WebRTC the track was at `rtp_timestamp`, `age_ms` before
    this was sent, and what leaves it takes `output_latency_ms` to the speaker.
    """

    response_id: str | None = None
    played_samples: Annotated[int, Meta(ge=0)] | None = None
    rtp_timestamp: int | None = None
    age_ms: float = 0.0
    output_latency_ms: float = 0.0


class TurnHold(ClientEvent, frozen=True, tag="turn.hold"):
    """Extension: the client has noticed that its caller speaks."""


class Bye(ClientEvent, frozen=True, tag="bye"):
    """Extension: the client goes, and would not be heard later."""


Command = (
    SessionUpdate
    | SessionResume
    | InputAppend
    | InputCommit
    | InputClear
    | ItemCreate
    | ItemDelete
    | ItemRetrieve
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
    | OutputClear
    | PlaybackAck
    | TurnHold
    | Bye
)


class ClientEventError(ValueError):
    """The client's message is not one that this service takes. `param` is the faulty field where known."""

    def __init__(self, code: str, message: str, param: str | None = None, event_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.event_id = event_id


class _Envelope(msgspec.Struct, frozen=True):
    type: str
    event_id: EventId | None = None


_envelope = msgspec.json.Decoder(_Envelope)
_commands: dict[str, msgspec.json.Decoder[Any]] = {
    str(message.__struct_config__.tag): msgspec.json.Decoder(message) for message in get_args(Command)
}


def parse(text: str | bytes) -> Command:
    """The command in `text`; raises `ClientEventError`."""
    envelope: _Envelope = _decode(_envelope, text, None)
    decoder = _commands.get(envelope.type)
    if decoder is None:
        message = f"unknown event type {envelope.type[:80]!r}"
        raise ClientEventError("unknown_event", message, "type", envelope.event_id)
    command: Command = _decode(decoder, text, envelope.event_id)
    return command


# The library says which field is faulty, or missing, in its text and nowhere else.
_PLACE = re.compile(r"(?P<problem>.*) - at `\$\.?(?P<path>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>\w+)`")


def _fault_of(said: str) -> tuple[str, str | None]:
    """What is wrong, and the path of the field that it is wrong with, where that is known."""
    place = _PLACE.fullmatch(said)
    problem, path = (place["problem"], place["path"]) if place else (said, "")
    missing = _MISSING.fullmatch(problem)
    names = (path, missing["name"] if missing else "")
    return problem, ".".join(name for name in names if name) or None


def _decode(decoder: msgspec.json.Decoder[Any], text: str | bytes, event_id: str | None) -> Any:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        problem, param = _fault_of(str(error))
        raise ClientEventError("invalid_value", problem[:PROBLEM_CHARACTERS_MAX], param, event_id) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ClientEventError("invalid_json", f"not JSON: {str(error)[:PROBLEM_CHARACTERS_MAX]}") from error
