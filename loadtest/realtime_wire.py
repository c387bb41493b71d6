"""The Realtime API as a caller needs it: what it sends, what it reads, as closed types over JSON text.

Theory of operation
    `decode` looks at `type` first and then decodes the whole event into its type, validated. Types that a caller
    has no use for become `OtherEvent`: servers may add events, and unknown ones are no fault. `encode` turns a
    client message into text. Bytes travel as base64, which msgspec does on both ways.

Rules
* Unknown fields are ignored; a known field of a wrong type is a `ServerViolation`.
* Names and fields follow the API as OpenAI's GA clients use it. Extra fields and events are those of this
  service's opt-in extensions; all of them are optional, so any Realtime server can be called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from loadtest.errors import ServerViolation
from media.audio_format import FORMATS, PCM_RATE, FormatName

SAMPLE_RATE = PCM_RATE  # of what callers say, before it goes over a line


# ---- what the server says -----------------------------------------------------------------------


class ServerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all server events. `server_event_seq` counts them within a session (extension)."""

    server_event_seq: int | None = None


class Session(msgspec.Struct, frozen=True):
    id: str
    resume_token: str | None = None


class SessionCreated(ServerMessage, frozen=True, kw_only=True):
    session: Session


class SessionUpdated(ServerMessage, frozen=True, kw_only=True):
    pass


class SessionResumed(ServerMessage, frozen=True, kw_only=True):
    """The earlier session goes on here, with a new token where the old one was good for one use only."""

    session: Session | None = None
    input_samples_received: int = 0


class SessionReplaced(ServerMessage, frozen=True, kw_only=True):
    """Another connection has taken this session over."""


class ErrorBody(msgspec.Struct, frozen=True):
    type: str = ""
    code: str | None = None
    message: str = ""
    retry_after_s: float | None = None


class ErrorEvent(ServerMessage, frozen=True, kw_only=True):
    error: ErrorBody


class SpeechStarted(ServerMessage, frozen=True, kw_only=True):
    item_id: str


class InputCommitted(ServerMessage, frozen=True, kw_only=True):
    item_id: str


class InputTranscribed(ServerMessage, frozen=True, kw_only=True):
    item_id: str
    transcript: str


class CreatedResponse(msgspec.Struct, frozen=True):
    id: str


class ResponseCreated(ServerMessage, frozen=True, kw_only=True):
    response: CreatedResponse


class AudioDelta(ServerMessage, frozen=True, kw_only=True):
    """Mono, in the session's format. The fields after `delta` are extensions; offsets are samples of the response."""

    response_id: str
    item_id: str
    delta: bytes
    epoch: int | None = None
    start_sample: Annotated[int, msgspec.Meta(ge=0)] | None = None
    samples: int | None = None
    sample_rate: int | None = None


class TranscriptDelta(ServerMessage, frozen=True, kw_only=True):
    response_id: str
    delta: str


class TranscriptDone(ServerMessage, frozen=True, kw_only=True):
    """What was said in the end; shorter than the deltas where the reply was cut."""

    response_id: str
    transcript: str


class StatusDetails(msgspec.Struct, frozen=True):
    reason: str | None = None


class FinishedResponse(msgspec.Struct, frozen=True):
    id: str
    status: str
    status_details: StatusDetails | None = None


class ResponseDone(ServerMessage, frozen=True, kw_only=True):
    """The terminal of a response. `timings` (extension): milliseconds by stage; a stage may have none."""

    response: FinishedResponse
    timings: dict[str, float | None] | None = None


class ResponseDrained(ServerMessage, frozen=True, kw_only=True):
    """Everything that the response held has been given back (extension). `released` is passed on as it is."""

    response_id: str
    status: str
    lag_ms: float
    released: object = None


class TurnHeld(ServerMessage, frozen=True, kw_only=True):
    """The reply stands still, until it is known what the caller's sound over it was (extension)."""


class TurnResumed(ServerMessage, frozen=True, kw_only=True):
    """It was nothing: the reply goes on where it stood (extension)."""


class OtherEvent(ServerMessage, frozen=True, kw_only=True):
    """An event of a type that a caller has no use for."""

    type: str


ServerEvent = (
    SessionCreated
    | SessionUpdated
    | SessionResumed
    | SessionReplaced
    | ErrorEvent
    | SpeechStarted
    | InputCommitted
    | InputTranscribed
    | ResponseCreated
    | AudioDelta
    | TranscriptDelta
    | TranscriptDone
    | ResponseDone
    | ResponseDrained
    | TurnHeld
    | TurnResumed
    | OtherEvent
)

_DECODERS: dict[str, Callable[[bytes], ServerEvent]] = {
    "session.created": msgspec.json.Decoder(SessionCreated).decode,
    "session.updated": msgspec.json.Decoder(SessionUpdated).decode,
    "session.resumed": msgspec.json.Decoder(SessionResumed).decode,
    "session.replaced": msgspec.json.Decoder(SessionReplaced).decode,
    "error": msgspec.json.Decoder(ErrorEvent).decode,
    "input_audio_buffer.speech_started": msgspec.json.Decoder(SpeechStarted).decode,
    "input_audio_buffer.committed": msgspec.json.Decoder(InputCommitted).decode,
    "conversation.item.input_audio_transcription.completed": msgspec.json.Decoder(InputTranscribed).decode,
    "response.created": msgspec.json.Decoder(ResponseCreated).decode,
    "response.output_audio.delta": msgspec.json.Decoder(AudioDelta).decode,
    "response.output_audio_transcript.delta": msgspec.json.Decoder(TranscriptDelta).decode,
    "response.output_audio_transcript.done": msgspec.json.Decoder(TranscriptDone).decode,
    "response.done": msgspec.json.Decoder(ResponseDone).decode,
    "response.drained": msgspec.json.Decoder(ResponseDrained).decode,
    "turn.held": msgspec.json.Decoder(TurnHeld).decode,
    "turn.resumed": msgspec.json.Decoder(TurnResumed).decode,
}
_OTHER = msgspec.json.Decoder(OtherEvent)


def decode(text: bytes) -> ServerEvent:
    """One server event. Raises `ServerViolation` for what is no event, or breaks the type of a known one."""
    try:
        header = _OTHER.decode(text)
        decoder = _DECODERS.get(header.type)
        event = header if decoder is None else decoder(text)
    except msgspec.DecodeError as fault:
        raise ServerViolation(f"not a Realtime event: {fault}") from fault
    return event


# ---- what the caller says -----------------------------------------------------------------------


class SoundFormat(msgspec.Struct, frozen=True):
    """A telephone's formats have one rate, which is not named."""

    type: FormatName = "audio/pcm"
    rate: int | UnsetType = SAMPLE_RATE

    @classmethod
    def named(cls, name: FormatName) -> SoundFormat:
        return cls(name, UNSET if FORMATS[name].is_telephone else FORMATS[name].sample_rate)


class Transcription(msgspec.Struct, frozen=True):
    """Without it a stock server sends no transcript of the caller; the name is the API's first and best known."""

    model: str = "whisper-1"


class TurnDetection(msgspec.Struct, frozen=True):
    silence_duration_ms: int | UnsetType = UNSET
    type: str = "server_vad"


class AudioInput(msgspec.Struct, frozen=True):
    format: SoundFormat = SoundFormat()
    transcription: Transcription = Transcription()
    turn_detection: TurnDetection | UnsetType = UNSET


class AudioOutput(msgspec.Struct, frozen=True):
    format: SoundFormat = SoundFormat()


class Audio(msgspec.Struct, frozen=True):
    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()


class SessionSettings(msgspec.Struct, frozen=True):
    """What is left UNSET stays as the server has it."""

    audio: Audio = Audio()
    instructions: str | UnsetType = UNSET
    type: str = "realtime"


class ClientMessageBase(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of all client events."""


class UpdateSession(ClientMessageBase, frozen=True, tag="session.update"):
    session: SessionSettings


class ResumeSession(ClientMessageBase, frozen=True, tag="session.resume", omit_defaults=True):
    """`responses`: those whose end was not seen. `epoch`: the greatest that was."""

    session_id: str
    token: str
    responses: tuple[str, ...] = ()
    epoch: int = 0


class AppendAudio(ClientMessageBase, frozen=True, tag="input_audio_buffer.append"):
    """`start_sample` (extension): where it stands in the session's input; else behind all that was sent."""

    audio: bytes
    start_sample: int | UnsetType = UNSET


class TextPart(msgspec.Struct, frozen=True):
    """`type` is `input_text` for what a user says, `output_text` for an assistant."""

    type: str
    text: str


class TextItem(msgspec.Struct, frozen=True):
    id: str
    role: str
    content: tuple[TextPart]
    type: str = "message"


class CreateItem(ClientMessageBase, frozen=True, tag="conversation.item.create"):
    item: TextItem


class DeleteItem(ClientMessageBase, frozen=True, tag="conversation.item.delete"):
    item_id: str


class CreateResponse(ClientMessageBase, frozen=True, tag="response.create"):
    pass


class CancelResponse(ClientMessageBase, frozen=True, tag="response.cancel"):
    response_id: str


class TruncateItem(ClientMessageBase, frozen=True, tag="conversation.item.truncate"):
    item_id: str
    audio_end_ms: int
    content_index: int = 0


class PlaybackAck(ClientMessageBase, frozen=True, tag="playback.ack"):
    """The caller has heard the response up to `played_samples` (extension)."""

    response_id: str
    item_id: str
    played_samples: int
    sample_rate: int = SAMPLE_RATE


ClientMessage = (
    UpdateSession
    | ResumeSession
    | AppendAudio
    | CreateItem
    | DeleteItem
    | CreateResponse
    | CancelResponse
    | TruncateItem
    | PlaybackAck
)

_ENCODER = msgspec.json.Encoder()


def encode(message: ClientMessage) -> str:
    """The text of one WebSocket message."""
    return _ENCODER.encode(message).decode()


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The JSON body of a refused handshake."""

    error: ErrorBody = ErrorBody()


def decode_refusal(body: bytes) -> ErrorBody:
    """The reason in the body of a refused handshake; an empty one where the body is not of that form."""
    try:
        return msgspec.json.decode(body, type=ErrorAnswer).error
    except msgspec.DecodeError:
        return ErrorBody()


def typed(item_id: str, role: str, text: str) -> CreateItem:
    """What `role`, `user` or `assistant`, is to have said."""
    kind = "input_text" if role == "user" else "output_text"
    return CreateItem(TextItem(item_id, role, (TextPart(kind, text),)))


def settings(
    instructions: str | None, silence_ms: int | None, format_name: FormatName = "audio/pcm"
) -> SessionSettings:
    """That format both ways, with transcripts of the caller, and what the user asked for."""
    detection: TurnDetection | UnsetType = UNSET if silence_ms is None else TurnDetection(silence_ms)
    sound = SoundFormat.named(format_name)
    audio = Audio(AudioInput(sound, turn_detection=detection), AudioOutput(sound))
    return SessionSettings(audio, UNSET if instructions is None else instructions)
