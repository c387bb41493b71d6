"""What a response is to be, how far it has come on its way to the ear, and what is left of it."""

from __future__ import annotations

from dataclasses import dataclass

from media.audio_format import FORMATS, FormatName
from sessions.events import ResponseView
from sessions.heard import Cut
from sessions.response import Phase
from sessions.route import Leg
from sessions.settings import ResponseSpec
from stages.contracts import Options, Tag, ThinkerOptions


@dataclass(frozen=True, slots=True)
class Plan:
    """What a response is made of: the legs of its way, head first, with their options. `spec` is what was asked for,
    `output_format` what its sound travels in, `served` the tools whose calls the service carries out itself.
    `is_continued`: its prompt has replies that were made before."""

    spec: ResponseSpec
    tag: Tag
    item: str
    previous_item: str | None
    stages: tuple[tuple[Leg, Options], ...]
    with_audio: bool
    view: ResponseView
    output_format: FormatName = "audio/pcm"
    served: frozenset[str] = frozenset()
    is_continued: bool = False

    @property
    def sample_rate(self) -> int:
        """Of its sound, and of all positions in it."""
        return FORMATS[self.output_format].sample_rate

    @property
    def tokens_max(self) -> int:
        """How many its Thinker may sample."""
        return sum(options.max_output_tokens for _, options in self.stages if isinstance(options, ThinkerOptions))

    @property
    def finals(self) -> dict[str, str]:
        """The finals of the response, and the stages that owe them."""
        return {final: leg.stage for leg, _ in self.stages for final in leg.finals}


@dataclass(slots=True)
class Marks:
    """Moments on the way to the first reply frame, monotonic ns; 0 where there was none."""

    speech_end_ns: int = 0
    turn_end_ns: int = 0
    understood_ns: int = 0
    first_text_ns: int = 0
    first_words_ns: int = 0
    first_audio_ns: int = 0
    first_sent_ns: int = 0

    def parts(self) -> tuple[tuple[str, float], ...]:
        """The parts of the critical path in ms; they sum to `total`. Empty where it was not gone to the end."""
        # What was prepared during the pause lies before the end of the turn: it took no time on the path.
        path = (
            ("end_of_turn_wait", self.turn_end_ns),
            ("encoder", self.understood_ns),
            ("thinker", self.first_text_ns),
            ("talker", self.first_words_ns),
            ("vocoder", self.first_audio_ns),
            ("playout", self.first_sent_ns),
        )
        if not all(at for _, at in path) or not self.speech_end_ns:
            return ()
        parts, before = [], self.speech_end_ns
        for name, at in path:
            # Words that came behind the sound that they describe were not waited for.
            reached = max(before, min(at, self.first_sent_ns))
            parts.append((name, round((reached - before) / 1e6, 1)))
            before = reached
        return (*parts, ("total", round((self.first_sent_ns - self.speech_end_ns) / 1e6, 1)))


@dataclass(frozen=True, slots=True)
class Ended:
    """A response has reached its terminal: what is left of it. `whole`: all that it had to say was said.

    `sent_samples` of its audio went out; `cut`: where history ends in it, unless it was said to its end.
    `leaves_nothing`: no words of it are history. `is_stored`: something of it was, while it was said. `filler`: the
    words that it began with to bridge a wait. `broke_off`: its call has ended amid it.
    """

    plan: Plan
    phase: Phase
    whole: bool
    text: str
    sent_samples: int
    cut: Cut | None = None
    leaves_nothing: bool = False
    is_stored: bool = False
    filler: str = ""
    broke_off: bool = False
