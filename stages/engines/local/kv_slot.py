"""KV slots, and how prompts get into them: settings, ownership, pieces, fitting.

Rules
* A slot that changes hands starts afresh: no text, no KV and no cached-token count of its former owner is used.
* A piece of prompt is about `PIECE_CHARS` long and ends before white space, where tokens end too. If a cut splits a
  token nevertheless, the engine evaluates a few tokens again; the KV is right in any case.
* The prompt is fitted to the context less `output_tokens_max`, the same for prefills and for responses of any length,
  so that one continues the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stages.clauses import ClauseLimits
from stages.contracts import Message, Tool
from stages.engines.local.call_format import described
from stages.engines.local.chat_template import ChatTemplate
from stages.engines.local.llama import Completed, Completion, Llama, LlamaContextError, LlamaError
from stages.prompting import PromptTooLargeError, cost_of, estimate_tokens, fit
from stages.stream import StageFailure, StageStream

PIECE_CHARS = 90  # 20 tokens of English, some 150 ms
FIT_MARGIN = 0.95


@dataclass(frozen=True, slots=True)
class ThinkerSettings:
    """`sessions` KV slots of `context_tokens`, and a spare. The penalty, over the last `repeat_window` tokens, was
    chosen with `persona.MESSAGES`: 1.0 runs in circles, 1.1 avoids the very words that the answer needs."""

    sessions: int = 4
    context_tokens: int = 2_048
    threads: int = 1
    output_tokens_max: int = 512
    sentences_max: int = 2
    clauses: ClauseLimits = field(default_factory=ClauseLimits)
    repeat_penalty: float = 1.05
    repeat_window: int = 64

    def __post_init__(self) -> None:
        if self.sessions < 1 or self.sentences_max < 1:
            raise ValueError("a Thinker needs at least one session and one sentence")
        if not 1 <= self.output_tokens_max <= self.context_tokens // 2:
            raise ValueError("output_tokens_max must be 1 to half of context_tokens")

    @property
    def prompt_tokens_max(self) -> int:
        return self.context_tokens - self.output_tokens_max


@dataclass(slots=True, eq=False)
class Slot:
    """One owner's use of a KV slot: a session's, or, where it is shared, that of one stream after the other.

    `text` is what the KV is known to begin with; None until something of the owner has been evaluated, and until then
    the engine is told to reuse nothing. `holder` is the stream whose step uses the slot; `responses` counts the open
    responses, to which prefills give way.
    """

    index: int
    is_shared: bool = False
    text: str | None = None
    holder: StageStream | None = None
    latest: StageStream | None = None
    responses: int = 0

    def take(self, stream: StageStream) -> bool:
        """Reserve the slot for a step of `stream`."""
        if self.holder not in (None, stream):
            return False
        if self.is_shared and self.latest is not stream:
            self.text = None
        self.holder = self.latest = stream
        return True

    def release(self, stream: StageStream) -> None:
        if self.holder is stream:
            self.holder = None

    def begin(self, text: str) -> bool:
        """A request for `text` starts, which drops what differs from it. True if the KV may be reused."""
        if self.text is None:
            return False
        self.text = text[: _common_length(self.text, text)]
        return True


@dataclass(frozen=True, slots=True)
class Engine:
    """llama.cpp, the model's template and the settings, as steps need them."""

    llama: Llama
    template: ChatTemplate
    settings: ThinkerSettings

    def evaluate(self, slot: Slot, text: str, halted: Callable[[], bool]) -> Completed:
        """Bring the KV of `slot` to exactly `text`, in one request."""
        request = Completion(slot.index, text, reuse=slot.begin(text))
        completed = self.complete(request, lambda _: halted())
        if completed.reason != "halted":
            slot.text = text
        return completed

    def complete(self, request: Completion, watch: Callable[[str], bool]) -> Completed:
        """Raises `LlamaContextError`, and `StageFailure` for any other failure of the engine."""
        try:
            return self.llama.complete(request, watch)
        except LlamaContextError:
            raise
        except LlamaError as error:
            raise StageFailure("engine", str(error)) from error


def next_piece(known: str | None, text: str) -> str | None:
    """The prefix of `text` to evaluate next, given that `known` has been; None when the rest is one piece."""
    start = _common_length(known or "", text)
    if len(text) - start <= PIECE_CHARS:
        return None
    inside = (at for at in range(start + PIECE_CHARS, start, -1) if _is_gap(text, at))
    beyond = (at for at in range(start + PIECE_CHARS + 1, len(text)) if _is_gap(text, at))
    end = next(inside, None) or next(beyond, None)
    return text[:end] if end else None


def _common_length(one: str, other: str) -> int:
    differing = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


def _is_gap(text: str, at: int) -> bool:
    return text[at].isspace() and not text[at - 1].isspace()


class Prompter:
    """Fits and renders the prompts of one stream, more tightly once the engine has refused one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._budget_tokens = engine.settings.prompt_tokens_max
        self._estimated_tokens = 0

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, answer: bool) -> str:
        """Raises `StageFailure("prompt_too_long", …)` where even the last message does not fit."""
        told_tokens = estimate_tokens(described(tools)) if tools else 0
        try:
            fitted = fit(messages, self._budget_tokens - told_tokens)
        except PromptTooLargeError as error:
            raise StageFailure("prompt_too_long", str(error)) from error
        self._estimated_tokens = cost_of(fitted) + told_tokens
        template = self._engine.template
        return template.render(fitted, tools) if answer else template.render_open(fitted, tools)

    def tighten(self, refusal: LlamaContextError) -> None:
        """The estimate of the latest prompt was low: aim as much lower as the engine counted higher."""
        part = self._engine.settings.prompt_tokens_max / refusal.prompt_tokens
        self._budget_tokens = int(self._estimated_tokens * part * FIT_MARGIN)
