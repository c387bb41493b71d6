"""The local Thinker: replies by llama.cpp, with each session's KV kept in step with what is said.

Theory of operation
    Sessions have their KV in slots, of which there may be fewer than sessions (`stages.kv_cache`); one more, the spare,
    serves out-of-band responses. While the caller speaks, a prefill stream evaluates the growing prompt piece by piece;
    when the answer is wanted, a single token is left to evaluate. A session that has lost its slot gets another one,
    and its whole prompt is evaluated again: how long that will take is said before it begins (`Reading`), and words to
    bridge it may be ordered while it is under way (`Filler`).
    A response is one uninterrupted generation: text goes out token by token, clauses as they end. Where a clause waits
    for credit the generation stops, and a later step goes on from prompt and text so far, which the KV still holds.

    Streams of one session share its slot by turns (`seats`). A response has precedence: while one is open, nothing is
    prefilled, and a prefill under way stops at its next piece.

Rules
* A cancel waits for one piece of prompt (`kv_slot`), or one token.
* `max_output_tokens` above the setting `output_tokens_max` is lowered to it.
* A reply ends after `sentences_max` sentences, with reason "stop". Small models do not end by themselves.
* Where the model was told of tools, a grammar holds its reply to words and one call. The words are over, and go on to
  be spoken, as soon as the call begins; nothing waits for credit from then on.
* Failure codes: capacity, unknown_session, wrong_options, bad_prompt, wrong_item, prompt_too_long, bad_call, engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.call_writer import callable_now
from stages.clauses import Reply
from stages.contracts import (
    Filler,
    Item,
    Message,
    Options,
    PrefillOptions,
    Prompt,
    Reading,
    Tag,
    TextDone,
    ThinkerOptions,
)
from stages.engines.local.call_format import CallReader, grammar
from stages.engines.local.chat_template import ChatTemplate
from stages.engines.local.gguf import read_header
from stages.engines.local.kv_slot import Engine, Prompter, Slot, ThinkerSettings, next_piece
from stages.engines.local.llama import (
    Completed,
    Completion,
    Llama,
    LlamaContextError,
    LlamaServer,
    LlamaSettings,
)
from stages.engines.local.seats import Seat, SessionSeat, SpareSeat, Turns
from stages.kv_cache import KvCache, KvLimits
from stages.prompting import estimate_tokens
from stages.stream import Output, Publish, StageFailure, StageStream, Step, StepContext

FITS_MAX = 3  # a prompt that the engine refuses, by its own count, is fitted anew so often
ROLES = frozenset(("system", "user", "assistant", "tool"))


def load_thinker(path: Path, settings: ThinkerSettings, revision: str = "") -> ThinkerModel:
    """A Thinker from a GGUF file: 0.5–1.5 s. Raises `GgufError`, `TemplateUnsupportedError` and `LlamaError`."""
    header = read_header(path)
    template = ChatTemplate(header)
    slots = LlamaSettings(settings.slots + 1, settings.context_tokens, settings.threads)
    llama = LlamaServer(path, slots)
    return ThinkerModel(llama, template, settings, revision or header.name, header.kv_token_bytes)


class ThinkerModel:
    """The `StageModel`. It closes `llama` when closed."""

    def __init__(
        self, llama: Llama, template: ChatTemplate, settings: ThinkerSettings, revision: str, token_bytes: int = 0
    ) -> None:
        assert llama.settings.slots == settings.slots + 1, "the slots and the spare"
        self._engine = Engine(llama, template, settings)
        limits = KvLimits(settings.slots, idle_ns_max=settings.idle_s_max * 1_000_000_000, token_bytes=token_bytes)
        self._kv = KvCache(limits, Slot, model=revision, prompt_format=template.revision)
        self._turns: dict[str, Turns] = {}
        self._spare = Slot(settings.slots)
        self._spare_turns = Turns()
        self._revision = revision

    @property
    def concurrency(self) -> int:
        return self._engine.settings.slots + 1

    @property
    def kv(self) -> KvCache[Slot]:
        return self._kv

    @property
    def revision(self) -> str:
        return self._revision

    def open_session(self, session: str) -> None:
        """Let `session` claim a slot; see `StageModel`."""
        self._kv.open(session)
        self._turns.setdefault(session, Turns())

    def close_session(self, session: str) -> None:
        """Take its slot back; at once, or when the step that still uses it has come back."""
        self._turns.pop(session, None)
        self._kv.close(session)

    def kept_for(self, session: str) -> dict[str, int]:
        """Its KV slot; see `StageModel`."""
        return {"slots": self._kv.kept_for(session)}

    def open(self, tag: Tag, options: Options) -> StageStream:
        """Open a prefill or a response; see `StageModel`."""
        if isinstance(options, PrefillOptions):
            turns = self._turns_of(tag)
            return _PrefillStream(self._engine, SessionSeat(self._kv, turns, tag.session, ahead=True), turns)
        if not isinstance(options, ThinkerOptions):
            raise StageFailure("wrong_options", f"a Thinker takes no {type(options).__name__}")
        _check(options.messages)
        if options.max_output_tokens < 1 or not 0.0 <= options.temperature <= 2.0:
            raise StageFailure("wrong_options", "max_output_tokens must be at least 1, temperature 0 to 2")
        if options.spare:
            spare = SpareSeat(self._spare, self._spare_turns)
            return _ResponseStream(self._engine, spare, self._spare_turns, options)
        turns = self._turns_of(tag)
        return _ResponseStream(self._engine, SessionSeat(self._kv, turns, tag.session, ahead=False), turns, options)

    def _turns_of(self, tag: Tag) -> Turns:
        turns = self._turns.get(tag.session)
        if turns is None:
            raise StageFailure("unknown_session", "the session was not opened here")
        return turns

    def close(self) -> None:
        self._engine.llama.close()


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise StageFailure("bad_prompt", "there are no messages")
    unknown = next((message.role for message in messages if message.role not in ROLES), None)
    if unknown is not None:
        raise StageFailure("bad_prompt", f"role {unknown!r} is unknown")


# ---- prefill ------------------------------------------------------------------------------------------


class _PrefillStream:
    """Keeps the session's KV in step with the newest `Prompt`. It ends when it is cancelled or closed."""

    def __init__(self, engine: Engine, seat: Seat, turns: Turns) -> None:
        self._prompter = Prompter(engine)
        self._engine = engine
        self._seat = seat
        self._turns = turns
        self._wanted: Prompt | None = None
        self._running: _PrefillStep | None = None

    @property
    def finished(self) -> bool:
        return False

    def feed(self, item: Item) -> Sequence[Output]:
        """A newer prompt replaces the older one."""
        if not isinstance(item, Prompt):
            raise StageFailure("wrong_item", f"a prefill takes no {type(item).__name__}")
        _check(item.messages)
        self._wanted = item
        if self._running is not None:
            self._running.outdated = True
        return ()

    def next_step(self) -> Step | None:
        slot = self._seat.take() if self._wanted is not None else None
        if slot is None or self._wanted is None:
            return None
        self._running = _PrefillStep(self._engine, self._prompter, slot, self._turns, self._wanted)
        return self._running

    def finish_step(self, result: object) -> Sequence[Output]:
        """`result` is true where the KV is in step with the step's prompt."""
        step, self._running = self._running, None
        assert step is not None, "a step was planned"
        self._seat.step_over()
        if result and self._wanted is step.prompt:
            self._wanted = None
            self._seat.leave()
        return ()

    def held(self) -> dict[str, int]:
        return {"slots": int(self._seat.is_taken)}

    def close(self) -> None:
        self._seat.leave()


@dataclass(slots=True)
class _PrefillStep:
    """Evaluates one piece. `outdated` is set on the loop thread when a newer prompt has come."""

    engine: Engine
    prompter: Prompter
    slot: Slot
    turns: Turns
    prompt: Prompt
    outdated: bool = False

    kind = "prefill"
    urgency = 2
    units = 0

    def run(self, context: StepContext) -> bool:
        """True when all of the prompt has been evaluated."""
        text = self.prompter.render(self.prompt.messages, self.prompt.tools, answer=self.prompt.complete)
        if (self.slot.text or "").startswith(text):
            return True
        piece = next_piece(self.slot.text, text)
        try:
            completed = self.engine.evaluate(self.slot, piece or text, lambda: self._is_void(context))
        except LlamaContextError as refusal:
            self.prompter.tighten(refusal)
            return False
        return completed.reason != "halted" and piece is None

    def _is_void(self, context: StepContext) -> bool:
        return context.cancelled() or self.outdated or self.turns.responses > 0


# ---- response -----------------------------------------------------------------------------------------


class _ResponseStream:
    """One reply."""

    def __init__(self, engine: Engine, seat: Seat, turns: Turns, options: ThinkerOptions) -> None:
        self._seat = seat
        self._turns = turns
        self._writer = _Writer(engine, options)
        self._is_open = True
        self._has_begun = False
        turns.responses += 1

    @property
    def finished(self) -> bool:
        return not self._is_open

    def feed(self, item: Item) -> Sequence[Output]:
        if not isinstance(item, Filler):
            raise StageFailure("wrong_item", f"a response takes no {type(item).__name__}")
        self._writer.filler = item.text
        return ()

    def next_step(self) -> Step | None:
        slot = self._seat.take() if self._is_open else None
        if slot is None:
            return None
        urgency = 1 if self._has_begun else 0
        self._has_begun = True
        return _ResponseStep(self._writer, slot, urgency)

    def finish_step(self, result: object) -> Sequence[Output]:
        """`result` is the reason why the reply is over, or None where it goes on."""
        self._seat.step_over()
        if result is None:
            return ()
        self._leave()
        return self._writer.ending(str(result))

    def held(self) -> dict[str, int]:
        return {"slots": int(self._seat.is_taken)}

    def close(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._is_open:
            self._is_open = False
            self._turns.responses -= 1
            self._seat.leave()


@dataclass(frozen=True, slots=True)
class _ResponseStep:
    """Writes until the reply is over, the stream is cancelled, or a clause waits for credit."""

    writer: _Writer
    slot: Slot
    urgency: int

    kind = "respond"
    units = 0

    def run(self, context: StepContext) -> str | None:
        return self.writer.write(self.slot, context)


class _Writer:
    """What a reply has come to, written on by one step after the other.

    `filler` is set on the loop thread, and said by the step that is reading the prompt then, between two pieces of it.
    """

    def __init__(self, engine: Engine, options: ThinkerOptions) -> None:
        settings = engine.settings
        self.filler = ""
        self._engine = engine
        self._options = options
        self._is_announced = options.spare  # nobody waits for what is out of band
        self._prompter = Prompter(engine)
        self._reply = Reply(settings.clauses, settings.sentences_max)
        self._tokens_left = min(options.max_output_tokens, settings.output_tokens_max)
        self._output_tokens = 0
        self._prompt_tokens = 0
        self._cached_tokens: int | None = None
        choice = options.tool_choice
        self._calls = CallReader(callable_now(options.tools, choice), must_call=choice.mode == "required")

    def write(self, slot: Slot, context: StepContext) -> str | None:
        """The reason why the reply is over, or None."""
        for _ in range(FITS_MAX):
            prompt = self._prompter.render(self._options.messages, self._options.tools, answer=True)
            try:
                return self._go_on(slot, prompt, context)
            except LlamaContextError as refusal:
                self._prompter.tighten(refusal)
        raise StageFailure("prompt_too_long", f"the engine refused {FITS_MAX} ever shorter prompts")

    def _go_on(self, slot: Slot, prompt: str, context: StepContext) -> str | None:
        text = prompt + self._reply.text
        while piece := next_piece(slot.text, text):
            self._announce(slot.lacks(text), context)
            evaluated = self._engine.evaluate(slot, piece, lambda: self._is_void(context))
            self._note_prompt(evaluated)
            if evaluated.reason == "halted":
                return None
        completed = self._engine.complete(self._request(slot, text), lambda token: self._take(token, context))
        self._note_prompt(completed)
        slot.hold(completed)
        self._output_tokens += completed.output_tokens
        self._tokens_left -= completed.output_tokens
        if completed.reason != "halted" or completed.output_tokens:
            slot.text = prompt + self._reply.text
        return self._reason(completed)

    def _announce(self, lacking: str, context: StepContext) -> None:
        """Say once how long the first word will take."""
        if not self._is_announced:
            self._is_announced = True
            tokens = estimate_tokens(lacking)
            context.progress([Publish(Reading(tokens, self._engine.speed.predicted_ns(tokens)))])

    def _is_void(self, context: StepContext) -> bool:
        """Asked while the prompt is read."""
        if self.filler and not self._reply.text:
            words, self.filler = self.filler, ""
            context.progress(self._reply.interject(words))
        return context.cancelled()

    def _request(self, slot: Slot, text: str) -> Completion:
        settings = self._engine.settings
        return Completion(
            slot=slot.index,
            prompt=text,
            tokens_max=self._tokens_left,
            reuse=slot.begin(text),
            temperature=self._options.temperature,
            repeat_penalty=settings.repeat_penalty,
            repeat_window=settings.repeat_window,
            stops=self._engine.template.stops,
            grammar=grammar(self._options.tools, self._options.tool_choice, self._engine.template.end),
        )

    def _take(self, token: str, context: StepContext) -> bool:
        if context.cancelled() or not token:
            return context.cancelled()
        outputs = self._read(token) if self._options.tools else self._reply.feed(token)
        if outputs:
            context.progress(outputs)
        if self._calls.has_begun:
            return self._calls.is_whole
        return self._reply.ended or context.stalled()

    def _read(self, token: str) -> list[Output]:
        words, calling = self._calls.feed(token)
        spoken = self._reply.feed(words)
        return [*spoken, *self._reply.finish(), *calling] if self._calls.has_begun else spoken

    def _note_prompt(self, completed: Completed) -> None:
        if self._cached_tokens is None:
            self._cached_tokens = completed.cached_tokens
        if not self._output_tokens:
            self._prompt_tokens = completed.prompt_tokens

    def _reason(self, completed: Completed) -> str | None:
        if self._reply.ended or self._calls.is_whole:
            return "stop"
        if completed.reason == "stop":
            self._calls.check_end()
            return "stop"
        if completed.reason == "length" or self._tokens_left < 1:
            return "max_output_tokens"
        return None

    def ending(self, reason: str) -> Sequence[Output]:
        """The last outputs of a reply that is over for `reason`."""
        done = TextDone(self._reply.text, reason, self._prompt_tokens, self._cached_tokens or 0, self._output_tokens)
        return (*self._reply.finish(), Publish(done))
