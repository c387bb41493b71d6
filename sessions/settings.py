"""What a client may set about its session, and about one response. Frozen; a change makes a new value.

Defaults follow the OpenAI Realtime API where it names them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from media.audio_format import FORMATS, PCM_RATE, FormatName
from stages.contracts import Tool, ToolChoice

Modality = Literal["audio", "text"]
Idle = Literal["prompt", "goodbye"]

INPUT_RATE = 16_000  # the rate of everything that hears: VAD and encoder
OUTPUT_RATE = PCM_RATE  # where the client asks for no other


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """When the caller's turn begins and ends. Times in ms, `threshold` a speech probability.

    `idle_timeout_ms`: a caller who has said nothing for so long after a reply is spoken to; None: never.
    """

    kind: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """`max_output_tokens` and `temperature` None: the service's default.

    `input_format`, `output_format`: of sound in messages, each way. Responses keep the format that they began with.
    """

    model: str = ""
    instructions: str = ""
    voice: str = ""
    speed: float = 1.0
    modalities: tuple[Modality, ...] = ("audio",)
    turn_detection: TurnDetection | None = field(default_factory=TurnDetection)
    transcription: bool = True
    max_output_tokens: int | None = None
    temperature: float | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    input_format: FormatName = "audio/pcm"
    output_format: FormatName = "audio/pcm"

    @property
    def speech_is_answered(self) -> bool:
        """A turn of the caller's speech is answered without being asked for."""
        return self.turn_detection is not None and self.turn_detection.create_response

    @property
    def speech_interrupts(self) -> bool:
        """Speech over a reply ends it."""
        return self.turn_detection is not None and self.turn_detection.interrupt_response

    @property
    def output_rate(self) -> int:
        """Samples per second of the responses that begin now."""
        return FORMATS[self.output_format].sample_rate


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """What one response shall be. None: as the session says. `messages` replaces the history as input. `words`: what it
    says, word for word, without asking a model.

    `in_conversation` False is an out-of-band response: outside the epochs, its answer joins no history. `idle`: nobody
    has asked for it, it prompts a caller who says nothing, or tells them goodbye. `goes_on`: with the reply that
    broke off before it.
    """

    instructions: str | None = None
    modalities: tuple[Modality, ...] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    in_conversation: bool = True
    messages: tuple[tuple[str, str], ...] | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    idle: Idle | None = None
    goes_on: bool = False
    tools: tuple[Tool, ...] | None = None
    tool_choice: ToolChoice | None = None
    words: str = ""

    @property
    def reads_history(self) -> bool:
        """What it says depends on what was said before."""
        return self.messages is None and not self.words
