"""The Talker stage: what the Thinker has in mind becomes codec frames.

Theory of operation
    The Talker reads the callers' messages and the header of the answer, item by item, as they come. The first token of
    the reply opens its speech; from then on each frame takes one more token in, an end-of-text mark after the last one
    and padding from then on, until the Talker picks its end of speech. A frame is one code of the Talker itself and
    the residual codes of its code predictor, one after the other.

    Frames are handed over in chunks: a small one first, so that sound starts soon, then large ones.

Rules
* A step is one item of the prompt or one frame.
* Where the reply's next token has not come, speech waits: padding in its place would be another reply.
* Nothing to say is a final item without frames. Speech that ends before the text has ended swallows the rest of it.
* Failure codes: wrong_options, wrong_item.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stages.contracts import CodecFrames, Embeddings, Item, Options, Tag, TalkerOptions
from stages.engines.torch_omni.options import TalkerSettings
from stages.engines.torch_omni.rows import RowIntake
from stages.engines.torch_omni.talker_net import TalkerNet, Voice
from stages.stream import Consumed, Emit, Output, StageFailure, StageStream, StepContext


class TalkerModel:
    """The `StageModel` over the Talker of `model`, whose weights are `revision`."""

    concurrency = 1

    def __init__(self, model: Any, revision: str, settings: TalkerSettings) -> None:
        self._net = TalkerNet(model)
        self._revision = revision
        self._settings = settings

    @property
    def revision(self) -> str:
        return self._revision

    def open_session(self, session: str) -> None:
        """Nothing is kept for a session."""

    def close_session(self, session: str) -> None:
        """Nothing was kept for a session."""

    def kept_for(self, session: str) -> dict[str, int]:  # noqa: ARG002 - of any session
        """Nothing is kept for a session."""
        return {}

    def open(self, tag: Tag, options: Options) -> StageStream:
        """One response. Raises `StageFailure("wrong_options")`."""
        if not isinstance(options, TalkerOptions):
            raise StageFailure("wrong_options", f"{type(options).__name__} for {tag.key} at the Talker")
        if options.speed != 1.0:
            raise StageFailure("wrong_options", f"speed {options.speed}: this Talker speaks at its own")
        if options.voice and options.voice not in self._net.speakers:
            raise StageFailure(
                "wrong_options", f"no voice {options.voice!r}; there are: {', '.join(self._net.speakers)}"
            )
        voice = Voice(self._net, options.voice, self._settings.temperature, options.seed)
        return _TalkerStream(self._net, voice, self._settings)

    def close(self) -> None:
        """The weights go with their last reference."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Reads one item of the prompt. `sound` tells hidden states from text."""

    voice: Voice
    rows: Any
    sound: bool

    kind = "prefill"
    urgency = 0
    units = 0

    def run(self, context: StepContext) -> None:  # noqa: ARG002 - bounded, so it need not ask
        with torch.inference_mode():
            self.voice.read(self.rows, sound=self.sound)


@dataclass(frozen=True, slots=True)
class _Open:
    """Takes in the reply's first token, after which speech begins."""

    voice: Voice
    row: Any

    kind = "open"
    urgency = 0
    units = 0

    def run(self, context: StepContext) -> None:  # noqa: ARG002 - bounded, so it need not ask
        with torch.inference_mode():
            self.voice.open(self.row)


@dataclass(frozen=True, slots=True)
class _Speak:
    """Makes one frame and takes in the reply's next token; `row` is None where there is none any more."""

    voice: Voice
    row: Any | None
    urgency: int

    kind = "frame"
    units = 0

    def run(self, context: StepContext) -> tuple[int, ...]:  # noqa: ARG002 - bounded, so it need not ask
        with torch.inference_mode():
            return self.voice.frame(self.row)


class _TalkerStream:
    """One response. The voice is changed by its steps, and looked at between them."""

    def __init__(self, net: TalkerNet, voice: Voice, settings: TalkerSettings) -> None:
        self._intake = RowIntake(net.thinker_dim, net.device, ("prefill", "hidden", "step"))
        self._voice = voice
        self._settings = settings
        self._prompt: deque[tuple[Any, bool]] = deque()
        self._tokens: deque[Any] = deque()
        self._frames: list[tuple[int, ...]] = []
        self._handed_over = 0
        self._ended = False
        self._step: _Read | _Open | _Speak | None = None

    @property
    def finished(self) -> bool:
        return self._ended and self._intake.ended

    def feed(self, item: Item) -> Sequence[Output]:
        rows = self._intake.take(item)
        assert isinstance(item, Embeddings), "the intake takes nothing else"
        if self._ended:
            return [Consumed(item.count)] if item.count else []
        if item.role == "step":
            self._tokens += rows.unbind(0)
        elif self._tokens or self._voice.has_begun:
            raise StageFailure("wrong_item", "the prompt goes on after the reply has begun")
        elif item.count:
            self._prompt.append((rows, item.role == "hidden"))
        return self._end() if self._has_nothing_to_say() else []

    def _has_nothing_to_say(self) -> bool:
        """The reply is over before its first token; and no step runs, since what one takes in stays here meanwhile."""
        return self._intake.ended and not self._prompt and not self._tokens and not self._voice.has_begun

    def next_step(self) -> _Read | _Open | _Speak | None:
        self._step = None if self._ended else self._plan()
        return self._step

    def _plan(self) -> _Read | _Open | _Speak | None:
        if self._prompt:
            return _Read(self._voice, *self._prompt[0])
        if not self._voice.has_begun:
            return _Open(self._voice, self._tokens[0]) if self._tokens else None
        if not self._tokens and not self._intake.ended:
            return None
        return _Speak(self._voice, self._tokens[0] if self._tokens else None, 1 if self._handed_over else 0)

    def finish_step(self, result: object) -> Sequence[Output]:
        """`result` is a frame's codes, or None where a step only took in."""
        used = self._take_used()
        outputs: list[Output] = [Consumed(used)] if used else []
        if isinstance(result, tuple):
            self._frames.append(result)
        is_full = self._handed_over + len(self._frames) >= self._settings.frames_max
        if is_full or self._voice.has_ended or self._has_nothing_to_say():
            return outputs + self._end()
        chunk = self._settings.chunk_then if self._handed_over else self._settings.chunk_first
        return outputs + ([self._hand_over(final=False)] if len(self._frames) >= chunk else [])

    def _take_used(self) -> int:
        """Let go of what the step took in. Gives how many vectors that were."""
        match self._step:
            case _Read(_, rows):
                self._prompt.popleft()
                return len(rows)
            case _Speak(_, None):
                return 0
            case _:
                self._tokens.popleft()
                return 1

    def _end(self) -> list[Output]:
        """Hand over the last frames, and give back what will not be spoken."""
        self._ended = True
        outputs: list[Output] = [Consumed(len(self._tokens))] if self._tokens else []
        outputs.append(self._hand_over(final=True))
        self.close()
        return outputs

    def _hand_over(self, *, final: bool) -> Emit:
        frames = len(self._frames)
        codes = np.array(self._frames, dtype="<i8").T.tobytes()
        item = CodecFrames(self._handed_over, frames, codes, final)
        self._handed_over += frames
        self._frames = []
        return Emit(item, frames)

    def held(self) -> dict[str, int]:
        """Vectors that wait, positions of KV, and frames of a chunk that is not full yet."""
        waiting = sum(len(rows) for rows, _ in self._prompt) + len(self._tokens)
        return {"vectors": waiting, "positions": self._voice.positions, "frames": len(self._frames)}

    def close(self) -> None:
        self._prompt.clear()
        self._tokens.clear()
        self._frames = []
        self._voice.forget()
