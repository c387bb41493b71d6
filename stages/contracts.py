"""What moves between stages and the gateway: identity, stream options, items, published events.

Rules
* One `Tag` on everything that moves. Staleness is one comparison: `epoch` is `fence * 2**20 + n`.
* Types are frozen and closed, encoded as msgpack by msgspec; an unknown type or field is refused.
* Offsets are integers in the unit that the name says; PCM is signed 16-bit little-endian mono.
* An *item* is fed to a stage, an *event* is published by a stage to the gateway.
"""

from __future__ import annotations

import msgspec

EPOCHS_PER_FENCE = 1 << 20
OUT_OF_BAND = -1  # the epoch of responses outside the conversation: they end only by their own id


class Wire(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of everything that crosses a link."""


class Tag(msgspec.Struct, frozen=True, array_like=True):
    """Whose work this is. `response` is empty for input work, which belongs to its turn."""

    session: str
    epoch: int
    turn: int
    response: str = ""

    @property
    def key(self) -> str:
        """The name of the stream at a stage: a response's id, or session, epoch and turn for input work.

        Each owner of a session counts its turns anew, and its epochs on.
        """
        return self.response or f"{self.session}/{self.epoch}/{self.turn}"


# ---- stream options, given when a stage is opened ----------------------------------------------


class Message(msgspec.Struct, frozen=True):
    """One turn of the conversation as the Thinker sees it; role is system, user or assistant."""

    role: str
    content: str


class EncoderOptions(Wire, frozen=True):
    """Hear one utterance. Audio comes at 16 kHz; `prompt` biases nothing yet and must stay empty."""

    partials: bool = True


class PrefillOptions(Wire, frozen=True):
    """Thinker, input work: keep the session's KV in step with a growing prompt; produces nothing."""


class ThinkerOptions(Wire, frozen=True):
    """Answer `messages`. `spare` asks for the slot of out-of-band responses.

    `temperature` 0 is greedy; `max_output_tokens` counts sampled tokens.
    """

    messages: tuple[Message, ...]
    max_output_tokens: int
    temperature: float = 0.0
    spare: bool = False


class TalkerOptions(Wire, frozen=True):
    """Speak clauses. `speed` 1.0 is natural, larger is faster; `seed` fixes the noise."""

    voice: str = ""
    speed: float = 1.0
    seed: int = 0


class VocoderOptions(Wire, frozen=True):
    """Make PCM16 at `sample_rate`, resampled once, continuously over the response."""

    sample_rate: int = 24_000


class ObserverOptions(Wire, frozen=True):
    """A side branch that publishes and emits nothing downstream."""


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


Item = AudioIn | Pause | SpeechResumed | EndOfTurn | Prompt | Clause | Latents


# ---- events: published by a stage to the gateway ---------------------------------------------------


class Transcript(Wire, frozen=True):
    """What was heard up to `through_sample` (16 kHz). `settled`: computed over the whole pause, not a
    guess amid speech. `final`: the turn's transcript, once."""

    text: str
    through_sample: int
    settled: bool = False
    final: bool = False


class TextDelta(Wire, frozen=True):
    """More of the reply's text."""

    text: str


class TextDone(Wire, frozen=True):
    """The reply's text is whole. `reason`: stop, max_output_tokens or content_filter."""

    text: str
    reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Word(msgspec.Struct, frozen=True):
    """A spoken word, `start` and `end` in samples of `WordTimes.sample_rate` from the response's start."""

    text: str
    start: int
    end: int


class WordTimes(Wire, frozen=True):
    """Words of one clause, in order. Joined by blanks, the words of all clauses give the spoken text."""

    clause: int
    sample_rate: int
    words: tuple[Word, ...]


class AudioOut(Wire, frozen=True):
    """The chunk contract of `media.chunk` on a link."""

    seq: int
    sample_rate: int
    start_sample: int
    pcm: bytes
    final: bool = False


Event = Transcript | TextDelta | TextDone | WordTimes | AudioOut
