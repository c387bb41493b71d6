"""KV slots, and how prompts get into them: settings, what a slot holds, pieces, fitting.

Rules
* A slot that changes hands starts afresh: no text, no KV and no cached-token count of its former owner is used.
* A piece of prompt is about `PIECE_CHARS` long and ends before white space, where tokens end too. If a cut splits a
  token nevertheless, the engine evaluates a few tokens again; the KV is right in any case.
* The prompt is fitted to the context less `output_tokens_max`, the same for prefills and for responses of any length,
  so that one continues the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stages.clauses import ClauseLimits
from stages.contracts import Message, Tool
from stages.engines.local.call_format import described
from stages.engines.local.chat_template import ChatTemplate
from stages.engines.local.llama import Completed, Completion, Llama, LlamaContextError, LlamaError
from stages.kv_cache import IDLE_S_MAX
from stages.prefill_speed import PrefillSpeed
from stages.prompting import PromptTooLargeError, cost_of, estimate_tokens, fit
from stages.stream import StageFailure

PIECE_CHARS = 90  # 20 tokens of English, some 150 ms
FIT_MARGIN = 0.95


@dataclass(frozen=True, slots=True)
class ThinkerSettings:
    """`slots` for the KV of so many sessions, of `context_tokens` each, and a spare; what a session has not used for
    `idle_s_max` is given up. The penalty, over the last `repeat_window` tokens, was
    chosen with `persona.MESSAGES`: 1.0 runs in circles, 1.1 avoids the very words that the answer needs."""

    slots: int = 4
    idle_s_max: int = IDLE_S_MAX
    context_tokens: int = 2_048
    threads: int = 1
    output_tokens_max: int = 512
    sentences_max: int = 2
    clauses: ClauseLimits = field(default_factory=ClauseLimits)
    repeat_penalty: float = 1.05
    repeat_window: int = 64

    def __post_init__(self) -> None:
        if min(self.slots, self.idle_s_max, self.sentences_max) < 1:
            raise ValueError("a Thinker needs at least one slot, one second and one sentence")
        if not 1 <= self.output_tokens_max <= self.context_tokens // 2:
            raise ValueError("output_tokens_max must be 1 to half of context_tokens")

    @property
    def prompt_tokens_max(self) -> int:
        return self.context_tokens - self.output_tokens_max


@dataclass(slots=True, eq=False)
class Slot:
    """One owner's use of the KV slot `index`.

    `text` is what the KV is known to begin with; None until something of the owner has been evaluated, and until then
    the engine is told to reuse nothing. `tokens` are in the KV, as the engine counted them last.
    """

    index: int
    text: str | None = None
    tokens: int = 0
    read: int = 0

    def take_read(self) -> int:
        """The tokens that were evaluated since the last call."""
        read, self.read = self.read, 0
        return read

    def begin(self, text: str) -> bool:
        """A request for `text` starts, which drops what differs from it. True if the KV may be reused."""
        if self.text is None:
            return False
        self.text = text[: _common_length(self.text, text)]
        return True

    def lacks(self, text: str) -> str:
        """The end of `text` that is to be evaluated."""
        return text[_common_length(self.text or "", text) :]

    def hold(self, completed: Completed) -> None:
        """A request has come to this."""
        if completed.reason != "halted" or completed.output_tokens:
            self.tokens = completed.prompt_tokens + completed.output_tokens
            self.read += completed.prompt_tokens - completed.cached_tokens


@dataclass(frozen=True, slots=True)
class Engine:
    """llama.cpp, the model's template and the settings, as steps need them. `clock` gives monotonic ns.

    Several threads tell `speed` what they have seen: where two do at once, one of them is not heard.
    """

    llama: Llama
    template: ChatTemplate
    settings: ThinkerSettings
    clock: Callable[[], int] = time.monotonic_ns
    speed: PrefillSpeed = field(default_factory=PrefillSpeed)

    def evaluate(self, slot: Slot, text: str, halted: Callable[[], bool]) -> Completed:
        """Bring the KV of `slot` to exactly `text`, in one request."""
        lacking, began_ns = slot.lacks(text), self.clock()
        request = Completion(slot.index, text, reuse=slot.begin(text))
        completed = self.complete(request, lambda _: halted())
        slot.hold(completed)
        if completed.reason != "halted":
            slot.text = text
            self.speed.observe(max(1, estimate_tokens(lacking)), self.clock() - began_ns)
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
