"""What moves between stages and the gateway: identity, stream options, items, published events.

Rules
* One `Tag` on everything that moves. Staleness is one comparison: `epoch` is `fence * 2**20 + n`.
* Types are frozen and closed, encoded as msgpack by msgspec; an unknown type or field is refused.
* Offsets are integers in the unit that the name says; PCM is signed 16-bit little-endian mono.
* Engines and the gateway always see the bytes of a payload. On a link, a large one may be left out of its item and lie
  in the producer's arena instead; the link puts it back. `PAYLOAD_FIELDS` says which field that is.
* An *item* is fed to a stage, an *event* is published by a stage to the gateway.
"""

from __future__ import annotations

from typing import Literal

import msgspec

EPOCHS_PER_FENCE = 1 << 20
OUT_OF_BAND = -1  # the epoch of responses outside the conversation: they end only by their own id
DEADLINE_EXCEEDED = "deadline_exceeded"  # the code of what has ended because its time was over


class Wire(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of everything that crosses a link."""


class Tag(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Whose work this is. `response` is empty for input work, which belongs to its turn.

    `attempt` counts the retries of the same work, which keep all ids: what an earlier one makes is stale.
    """

    session: str
    epoch: int
    turn: int
    response: str = ""
    attempt: int = 0

    @property
    def key(self) -> str:
        """The name of the stream at a stage: a response's id, or session, epoch and turn for input work.

        Each owner of a session counts its turns anew, and its epochs on.
        """
        name = self.response or f"{self.session}/{self.epoch}/{self.turn}"
        return f"{name}#{self.attempt}" if self.attempt else name

    def is_output_before(self, epoch: int) -> bool:
        """This is conversation output, and older than `epoch`."""
        return bool(self.response) and OUT_OF_BAND < self.epoch < epoch


class DataRef(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where `length` bytes lie now: a block of the arena of one life of a worker. It says nothing about what they are.

    `generation` rises at each use of the block; a block of another generation holds somebody else's bytes.
    """

    worker: str
    incarnation: int
    block: int
    generation: int
    length: int


# ---- stream options, given when a stage is opened ----------------------------------------------

# Of all arguments of one call: tens of times what a caller could ask for, and a frame holds it twice.
CALL_CHARACTERS_MAX = 16_384
CALLS_MAX = 16  # of one reply


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model may have called. `parameters`: the JSON schema of its arguments, as JSON text."""

    name: str
    description: str = ""
    parameters: str = "{}"


class ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a tool is to be called. `name`: the one that must be, where `mode` is required."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str = ""


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call that was made. `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of the conversation as the Thinker sees it; role is system, user, assistant or tool.

    `audio_turn`: the turn in which this was said aloud. A Thinker that keeps the embeddings of that turn's sound
    listens to them; any other reads `content`. `calls`: those that an assistant made after its words; messages of the
    role tool follow at once, one for each, and say by `call_id` whose result their content is.
    """

    role: str
    content: str
    audio_turn: int | None = None
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""


class EncoderOptions(Wire, frozen=True):
    """Hear one utterance. Audio comes at 16 kHz; `prompt` biases nothing yet and must stay empty."""

    partials: bool = True


class PrefillOptions(Wire, frozen=True):
    """Thinker, input work: keep the session's KV in step with a growing prompt, and with the turn's sound where the
    encoder gives embeddings; produces nothing."""


class ThinkerOptions(Wire, frozen=True):
    """Answer `messages`. `spare` asks for the slot of out-of-band responses.

    `temperature` 0 is greedy; `max_output_tokens` counts sampled tokens. `tools` are told to the model, `tool_choice`
    says what becomes of them.
    """

    messages: tuple[Message, ...]
    max_output_tokens: int
    temperature: float = 0.0
    spare: bool = False
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()


class TalkerOptions(Wire, frozen=True):
    """Speak clauses. `speed` 1.0 is natural, larger is faster; `seed` fixes the noise."""

    voice: str = ""
    speed: float = 1.0
    seed: int = 0


class VocoderOptions(Wire, frozen=True):
    """Make PCM16 at `sample_rate`, resampled once, continuously over the response. `voice`: that of the latents."""

    sample_rate: int = 24_000
    voice: str = ""


class ObserverOptions(Wire, frozen=True):
    """Look at what others make; a side branch publishes and hands nothing on."""


Options = EncoderOptions | PrefillOptions | ThinkerOptions | TalkerOptions | VocoderOptions | ObserverOptions


# ---- items: fed to a stage ------------------------------------------------------------------------


class AudioIn(Wire, frozen=True):
    """16 kHz PCM that starts at `start_sample` of the session's input, at 16 kHz."""

    start_sample: int
    pcm: bytes


class Pause(Wire, frozen=True):
    """The caller fell silent at `sample` (16 kHz): a place to commit, and to start the final early."""

    sample: int


class SpeechResumed(Wire, frozen=True):
    """Speech went on after `Pause`: a final under way is void."""


class EndOfTurn(Wire, frozen=True):
    """The utterance ends at `sample` (16 kHz); the final transcript is wanted now."""

    sample: int


class Prompt(Wire, frozen=True):
    """The prompt as it stands. `complete`: ends with the caller's whole turn, ready to be answered."""

    messages: tuple[Message, ...]
    complete: bool = False
    tools: tuple[Tool, ...] = ()


class Filler(Wire, frozen=True):
    """Say `text` before the reply's first word, if that has not come yet: reading the prompt takes long."""

    text: str


class Clause(Wire, frozen=True):
    """A unit of speech, up to a comma, stop or limit. The final one may be empty."""

    index: int
    text: str
    final: bool = False


class Latents(Wire, frozen=True):
    """`frames` latent frames, row-major `(frame, channel)` float32, from `start_frame` of the response.

    `clause_end` marks the last of a clause: the vocoder's context must not cross it. The last item
    of the response is `final` and may hold no frames.
    """

    start_frame: int
    frames: int
    data: bytes
    clause_end: bool = False
    final: bool = False


# audio: what the encoder made of sound. prefill: layer-0 embeddings of text in the prompt. hidden: hidden states of
# sound in the prompt, of the layer that the Talker accepts. step: the layer-0 embedding of one token of the reply.
EmbeddingRole = Literal["audio", "prefill", "hidden", "step"]


class Embeddings(Wire, frozen=True):
    """`count` vectors of `dim` float32, little-endian, row-major `(position, channel)`; the first is number `start`
    of the stream.

    The last item of the stream is `final` and may hold none.
    """

    start: int
    count: int
    dim: int
    data: bytes
    role: EmbeddingRole
    final: bool = False


class CodecFrames(Wire, frozen=True):
    """`frames` codec frames from `start_frame` of the response: int64, little-endian, codebook-major
    `(codebook, frame)`.

    The last item of the response is `final` and may hold no frames.
    """

    start_frame: int
    frames: int
    codes: bytes
    final: bool = False


# ---- events: published by a stage to the gateway ---------------------------------------------------


class Transcript(Wire, frozen=True):
    """What was heard up to `through_sample` (16 kHz). `settled`: computed over the whole pause, not a
    guess amid speech. `final`: the turn's transcript, once."""

    text: str
    through_sample: int
    settled: bool = False
    final: bool = False


class Reading(Wire, frozen=True):
    """So many `tokens` of the prompt, by estimate, have to be read before the first word, which is expected to take
    `predicted_ns` (0: unknown). A Thinker that says so takes a `Filler`."""

    tokens: int
    predicted_ns: int


class TextDelta(Wire, frozen=True):
    """More of the reply's text. `filler`: it is the words of a `Filler`, and no part of what the model wrote."""

    text: str
    filler: bool = False


class CallDelta(Wire, frozen=True):
    """More of the arguments of call number `index` (0, 1, …) of the reply; the first of a number begins it.

    All words of a reply come before its calls, and calls one after the other.
    """

    index: int
    name: str
    arguments: str = ""


class CallDone(Wire, frozen=True):
    """Call number `index` is whole: `arguments` is a JSON object. One that nothing says this of was never made."""

    index: int
    arguments: str


class TextDone(Wire, frozen=True):
    """The reply is written: its text, without a filler, and its calls.

    `reason`: stop, max_output_tokens or content_filter.
    """

    text: str
    reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Word(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A spoken word, `start` and `end` in samples of `WordTimes.sample_rate` from the response's start."""

    text: str
    start: int
    end: int


# How word times are known: by the Talker's durations, by progress in codec frames, or by a look at the finished sound.
WordBasis = Literal["durations", "estimated", "aligned"]


class WordTimes(Wire, frozen=True):
    """Words of one clause, in order. Joined by blanks, the words of all clauses give the spoken text.

    `aligned` ones come once, are of the whole response (clause 0), and stand in place of all others.
    """

    clause: int
    sample_rate: int
    words: tuple[Word, ...]
    basis: WordBasis = "durations"


class AudioOut(Wire, frozen=True):
    """The chunk contract of `media.chunk` on a link: an event to the gateway, an item to another stage."""

    seq: int
    sample_rate: int
    start_sample: int
    pcm: bytes
    final: bool = False


Event = Transcript | Reading | TextDelta | CallDelta | CallDone | TextDone | WordTimes | AudioOut
Item = (
    AudioIn
    | Pause
    | SpeechResumed
    | EndOfTurn
    | Prompt
    | Filler
    | Clause
    | Latents
    | Embeddings
    | CodecFrames
    | AudioOut
)

# ---- payloads: what edges carry ----------------------------------------------------------------------

Payload = Literal["clauses", "latents", "embeddings", "codec", "audio"]

_PAYLOADS: dict[type, Payload] = {
    Clause: "clauses",
    Latents: "latents",
    Embeddings: "embeddings",
    CodecFrames: "codec",
    AudioOut: "audio",
}


def payload_of(piece: Item | Event) -> Payload | None:
    """What kind of edge carries `piece`; None for what only goes between a stage and the gateway."""
    return _PAYLOADS.get(type(piece))


_LABELS: dict[type, str] = {
    **_PAYLOADS,
    Transcript: "transcript",
    Reading: "reading",
    TextDelta: "text",
    CallDelta: "call",
    CallDone: "call_done",
    TextDone: "text_done",
    WordTimes: "word_times",
}


def label_of(made: Item | Event) -> str:
    """What a stage has made, in a word: its payload, or the kind of event."""
    return _LABELS[type(made)]


def is_final(piece: Item | Event) -> bool:
    """Whether `piece` is the last of its payload."""
    return isinstance(piece, Clause | Latents | Embeddings | CodecFrames | AudioOut) and piece.final


# The field of each kind of item or event that may be large.
PAYLOAD_FIELDS: dict[type[Wire], str] = {
    AudioIn: "pcm",
    Latents: "data",
    Embeddings: "data",
    CodecFrames: "codes",
    AudioOut: "pcm",
}
