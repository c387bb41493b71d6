"""llama.cpp through `xllamacpp`: one server inside this process, as many KV slots as asked for.

Theory of operation
    The server evaluates what all slots have to do in common batches, on threads of its own. `complete` blocks the
    calling thread, releases the interpreter lock, and calls `watch` after each piece of the prompt and each token; a
    true answer stops the request there. One slot serves one request at a time: that is the caller's to keep, since
    a second one would wait inside, out of reach of its `watch`.

Rules
* A batch holds `PIECE_TOKENS` tokens. That bounds what one session's prompt adds to the token time of another's
  reply, and how long a stop can take: 120–190 ms on one thread of a slow machine (8–11 ms a token, 135 M
  parameters). When a stop is asked for, the next batch may be under way: its tokens stay in the KV.
* KV that is stored stays in its slot: no copies in memory (`cache_ram_mib`), no checkpoints, no moving to another
  slot, no shifting of a full context.
* The server insists on listening. It listens on a socket in a private directory, which is removed at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import xllamacpp

PIECE_TOKENS = 16
SLOTS_MAX = PIECE_TOKENS  # a batch must hold a token of every slot

Watch = Callable[[str], bool]
Reason = Literal["stop", "length", "halted"]


class LlamaError(RuntimeError):
    """A request failed; other requests go on. The text is the engine's."""


class LlamaContextError(LlamaError):
    """The prompt exceeds the slot's context: shorten it by what `prompt_tokens`, the true count, says."""

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(f"{prompt_tokens} tokens of prompt for a context of {context_tokens}")
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


@dataclass(frozen=True, slots=True)
class LlamaSettings:
    """`context_tokens` is per slot; KV costs 23 KB a token for SmolLM2-135M."""

    slots: int
    context_tokens: int = 2_048
    threads: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= SLOTS_MAX:
            raise ValueError(f"slots must be 1 to {SLOTS_MAX}, not {self.slots}")
        if self.context_tokens < 256 or self.threads < 1:
            raise ValueError("a slot needs at least 256 tokens of context, and the engine one thread")


@dataclass(frozen=True, slots=True)
class Completion:
    """A request. `tokens_max` 0 only evaluates the prompt. `reuse` takes over what of the slot's KV the prompt begins
    with; without it nothing of the slot's past is used. `repeat_penalty` acts on the last `repeat_window` tokens,
    prompt included. `temperature` 0 is greedy. `grammar`: what may be written, in llguidance's dialect of Lark; one
    that the engine cannot read is dropped without a word."""

    slot: int
    prompt: str
    tokens_max: int = 0
    reuse: bool = True
    temperature: float = 0.0
    repeat_penalty: float = 1.0
    repeat_window: int = 0
    stops: tuple[str, ...] = ()
    grammar: str = ""


@dataclass(frozen=True, slots=True)
class Completed:
    """How a request ended: the model's own end, `tokens_max` or a full context, or `watch`.

    Of `prompt_tokens`, `cached_tokens` came from the slot's KV. A halted request reports what it had got to.
    """

    reason: Reason
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Llama(Protocol):
    """What the Thinker needs of an engine."""

    @property
    def settings(self) -> LlamaSettings: ...

    def complete(self, request: Completion, watch: Watch) -> Completed:
        """Run `request`. `watch` gets "" for each piece of prompt, the new text for each token; what it raises comes
        out here. Raises `LlamaError`."""
        ...

    def close(self) -> None: ...


class LlamaServer:
    """`Llama` over a GGUF file."""

    def __init__(self, path: Path, settings: LlamaSettings) -> None:
        """Loads the model: 0.5–1.5 s. Raises `LlamaError` where the engine refuses the file."""
        self._settings = settings
        with tempfile.TemporaryDirectory(prefix="llama-", ignore_cleanup_errors=True) as private:
            params = _params(path, settings, Path(private) / "listen.sock")
            try:
                self._server = xllamacpp.Server(params)
            except RuntimeError as error:
                raise LlamaError(f"cannot load {path.name}: {error}") from error

    @property
    def settings(self) -> LlamaSettings:
        return self._settings

    def complete(self, request: Completion, watch: Watch) -> Completed:
        """Run `request`; see `Llama`."""
        assert 0 <= request.slot < self._settings.slots, "an unknown slot would be replaced by any other"
        observer = _Observer(watch, generates=request.tokens_max > 0)
        try:
            self._server.handle_completions(_body(request), observer)
        except RuntimeError as error:
            raise LlamaError(str(error)) from error
        return observer.outcome()

    def close(self) -> None:
        """Stop the engine's threads and free its memory. No request may be running."""
        del self._server


def _params(path: Path, settings: LlamaSettings, socket: Path) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = settings.context_tokens * settings.slots
    params.n_parallel = settings.slots
    params.kv_unified = False
    params.n_batch = params.n_ubatch = PIECE_TOKENS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
    params.ctx_shift = False
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    params.n_ctx_checkpoints = 0
    params.hostnames = [str(socket)]
    params.n_threads_http = 1
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = 0
    return params


def _body(request: Completion) -> dict[str, object]:
    grammar = {"grammar": request.grammar} if request.grammar else {}
    return {
        "prompt": request.prompt,
        "id_slot": request.slot,
        "cache_prompt": request.reuse,
        "n_predict": request.tokens_max,
        "temperature": request.temperature,
        "repeat_penalty": request.repeat_penalty,
        "repeat_last_n": request.repeat_window,
        "stop": list(request.stops),
        "stream": True,
        "return_progress": True,
        "timings_per_token": True,
        **grammar,
    }


class _Choice(msgspec.Struct, frozen=True):
    text: str = ""
    finish_reason: Literal["stop", "length"] | None = None


class _Progress(msgspec.Struct, frozen=True):
    total: int
    cache: int


class _Timings(msgspec.Struct, frozen=True):
    cache_n: int
    prompt_n: int
    predicted_n: int


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    n_prompt_tokens: int = 0
    n_ctx: int = 0


class _Chunk(msgspec.Struct, frozen=True):
    """What the engine calls back with, as far as it matters here."""

    choices: tuple[_Choice, ...] = ()
    prompt_progress: _Progress | None = None
    timings: _Timings | None = None
    error: _Error | None = None


class _Observer:
    """The engine's callback: remembers where the request stands, and carries exceptions, which the engine drops."""

    def __init__(self, watch: Watch, *, generates: bool) -> None:
        self._watch = watch
        self._generates = generates
        self._reason: Reason | None = None
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._output_tokens = 0
        self._failure: BaseException | None = None

    def __call__(self, chunk: object) -> bool:
        try:
            self._note(msgspec.convert(chunk, _Chunk))
        except BaseException as failure:  # noqa: BLE001 - raised again in `outcome`
            self._failure = failure
        return self._failure is not None or self._reason == "halted"

    def _note(self, chunk: _Chunk) -> None:
        if chunk.error is not None:
            raise _failure(chunk.error)
        if chunk.prompt_progress is not None:
            self._prompt_tokens, self._cached_tokens = chunk.prompt_progress.total, chunk.prompt_progress.cache
        if chunk.timings is not None:
            self._prompt_tokens = chunk.timings.cache_n + chunk.timings.prompt_n
            self._cached_tokens, self._output_tokens = chunk.timings.cache_n, chunk.timings.predicted_n
        self._reason = next((choice.finish_reason for choice in chunk.choices if choice.finish_reason), None)
        # An evaluation alone samples a token too, which nobody asked for.
        text = "".join(choice.text for choice in chunk.choices) if self._generates else ""
        if (text or self._reason is None) and self._watch(text) and self._reason is None:
            self._reason = "halted"

    def outcome(self) -> Completed:
        """What the request came to; raises what went wrong in it."""
        if self._failure is not None:
            raise self._failure
        if self._reason is None:
            raise LlamaError("the engine ended a request without saying why")
        output_tokens = self._output_tokens if self._generates else 0
        return Completed(self._reason, self._prompt_tokens, self._cached_tokens, output_tokens)


def _failure(error: _Error) -> LlamaError:
    if error.n_prompt_tokens:
        return LlamaContextError(error.n_prompt_tokens, error.n_ctx)
    return LlamaError(error.message)
