"""The Thinker stage: it reads what was said and heard, and hands the Talker what it has in mind.

Theory of operation
    A session has a context, as long as that is not given to another one (`stages.kv_cache`). While the caller speaks, a
    prefill stream takes the prompt from the gateway and the turn's sound from the encoder, and reads both piece by
    piece. A response reads what is left, then writes one token a step. To the Talker go first the vectors of what it
    speaks from (see `prompt`), as they are read or found in the context, then one vector for each token of the reply as
    soon as it is picked.

    Any two streams of a session may take turns: a step begins by cutting the context back to what its own prompt
    agrees with.

Rules
* A step is one piece of prompt, or one token. While a response of the session is open nothing is prefilled.
* A response waits for a sound that is still coming in. A sound that is not here any more is read from the text.
* As in the library's `generate`, the token at which a reply is cut off is written but not spoken.
* A prompt that leaves no room for the reply is refused; no history is dropped.
* Failure codes: capacity, unknown_session, wrong_options, bad_prompt, wrong_item, prompt_too_long, audio_too_long,
  audio_unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stages.contracts import (
    Embeddings,
    Item,
    Message,
    Options,
    PrefillOptions,
    Prompt,
    Tag,
    TextDelta,
    TextDone,
    ThinkerOptions,
)
from stages.engines.torch_omni.context import Context, ThinkerNet
from stages.engines.torch_omni.hearing import Hearing
from stages.engines.torch_omni.options import ThinkerSettings
from stages.engines.torch_omni.prompt import PROMPT_FORM, Rendered, Sound, Vocabulary, render
from stages.engines.torch_omni.rows import RowIntake, emit_in_pieces, pack
from stages.engines.torch_omni.sampling import pick
from stages.kv_cache import Claim, KvCache, KvLimits
from stages.stream import Consumed, Emit, Output, Publish, StageFailure, StageStream, StepContext


@dataclass(slots=True, eq=False)
class _Session:
    hearing: Hearing
    responses: int = 0


class _Use:
    """One stream's use of its session's context. A prefill reads `ahead`."""

    def __init__(self, kv: KvCache[Context], session: str, *, ahead: bool) -> None:
        self._kv = kv
        self._claim: Claim[Context] = kv.claim(session, ahead=ahead)

    def take(self, stream: StageStream) -> Context | None:  # noqa: ARG002 - streams of a session take turns anyhow
        """The context for the next step; None while there is none to be had."""
        return self._kv.take(self._claim)

    def step_over(self, context: Context, read: int) -> None:
        self._kv.step_over(self._claim, len(context), read)

    def release(self, stream: StageStream) -> None:  # noqa: ARG002 - as above
        """Nothing is wanted for now."""
        self._kv.release(self._claim)


class _Spare:
    """The context of out-of-band responses: for one at a time, and empty when that begins."""

    def __init__(self) -> None:
        self._holder: StageStream | None = None
        self._context = Context()

    def take(self, stream: StageStream) -> Context | None:
        """The context, unless another stream has it."""
        if self._holder is None:
            self._holder, self._context = stream, Context()
        return self._context if self._holder is stream else None

    def step_over(self, context: Context, read: int) -> None:
        """Nobody counts it."""

    def release(self, stream: StageStream) -> None:
        if self._holder is stream:
            self._holder, self._context = None, Context()


class ThinkerModel:
    """The `StageModel` over the Thinker of `model`, whose weights are `revision`."""

    concurrency = 1

    def __init__(self, model: Any, revision: str, vocabulary: Vocabulary, settings: ThinkerSettings) -> None:
        self._engine = _Engine(ThinkerNet(model), vocabulary, settings)
        self._revision = revision
        self._sessions: dict[str, _Session] = {}
        limits = KvLimits(settings.sessions, idle_ns_max=settings.idle_s * 1_000_000_000)
        self._kv = KvCache(limits, lambda _: Context(), model=revision, prompt_format=PROMPT_FORM)
        self._spare = _Spare()

    @property
    def revision(self) -> str:
        return self._revision

    @property
    def kv(self) -> KvCache[Context]:
        return self._kv

    def open_session(self, session: str) -> None:
        """Let `session` claim a context; see `StageModel`."""
        self._kv.open(session)
        self._sessions.setdefault(session, _Session(Hearing(self._engine.settings.prompt_tokens_max)))

    def close_session(self, session: str) -> None:
        """Forget what `session` said and heard."""
        self._sessions.pop(session, None)
        self._kv.close(session)

    def kept_for(self, session: str) -> dict[str, int]:
        """Its context and its sounds; see `StageModel`."""
        return {"contexts": self._kv.kept_for(session), "hearings": int(session in self._sessions)}

    def open(self, tag: Tag, options: Options) -> StageStream:
        """Open a prefill or a response; see `StageModel`."""
        session = self._sessions.get(tag.session)
        if session is None:
            raise StageFailure("unknown_session", "the session was not opened here")
        if isinstance(options, PrefillOptions):
            return _PrefillStream(self._engine, session, _Use(self._kv, tag.session, ahead=True), tag.turn)
        if not isinstance(options, ThinkerOptions):
            raise StageFailure("wrong_options", f"a Thinker takes no {type(options).__name__}")
        if options.max_output_tokens < 1 or not 0.0 <= options.temperature <= 2.0:
            raise StageFailure("wrong_options", "max_output_tokens must be at least 1, temperature 0 to 2")
        if options.tools:
            raise StageFailure("wrong_options", "this model calls no tools")
        self._engine.check(options.messages)
        use = self._spare if options.spare else _Use(self._kv, tag.session, ahead=False)
        return _ResponseStream(self._engine, session, options, use)

    def close(self) -> None:
        """The weights go with their last reference."""


@dataclass(frozen=True, slots=True)
class _Engine:
    """What steps need of the model."""

    net: ThinkerNet
    vocabulary: Vocabulary
    settings: ThinkerSettings

    def check(self, messages: Sequence[Message]) -> None:
        """Raises `StageFailure("bad_prompt")`."""
        if not messages:
            raise StageFailure("bad_prompt", "there are no messages")
        unknown = next((message.role for message in messages if message.role not in self.vocabulary.roles), None)
        if unknown is not None:
            raise StageFailure("bad_prompt", f"role {unknown!r} is unknown")

    def render(self, messages: Sequence[Message], hearing: Hearing, *, answer: bool) -> Rendered:
        """Raises `StageFailure("prompt_too_long")`."""
        rendered = render(messages, hearing.by_turn, self.vocabulary, answer=answer)
        if len(rendered.keys) > self.settings.prompt_tokens_max:
            raise StageFailure(
                "prompt_too_long", f"{len(rendered.keys)} tokens, where {self.settings.prompt_tokens_max} fit"
            )
        return rendered

    def read_piece(self, context: Context, keys: Sequence[int], sounds: Mapping[int, Sound]) -> Any:
        """Read the next piece of a prompt of `keys`. Gives the output of its last position."""
        start = context.keep_common(keys)
        piece = keys[start : start + self.settings.piece_tokens_max]
        return context.read(self.net, self.net.inputs(piece, sounds), piece)


# ---- prefill ------------------------------------------------------------------------------------------


class _PrefillStream:
    """Keeps the session's context in step with the newest prompt and with the sound of its turn.

    It finishes once a sound has come to its end and been read. Without a sound it ends when it is cancelled.
    """

    def __init__(self, engine: _Engine, session: _Session, use: _Use, turn: int) -> None:
        self._engine = engine
        self._session = session
        self._use = use
        self._turn = turn
        self._intake = RowIntake(engine.net.dim, engine.net.device, ("audio",))
        self._prompt: Prompt | None = None
        self._context = Context()
        self._fed = self._planned = self._read = 0  # items: that came, that the step knows of, that have been read
        session.hearing.expect(turn)

    @property
    def finished(self) -> bool:
        is_left_to_others = self._prompt is None or self._session.responses > 0
        return self._intake.ended and (self._read == self._fed or is_left_to_others)

    def feed(self, item: Item) -> Sequence[Output]:
        """A newer prompt replaces the older one."""
        self._fed += 1
        if isinstance(item, Prompt):
            self._engine.check(item.messages)
            self._prompt = item
            return ()
        rows = self._intake.take(item)
        assert isinstance(item, Embeddings), "the intake takes nothing else"
        self._session.hearing.add(self._turn, rows.unbind(0), complete=item.final)
        return [Consumed(item.count)] if item.count else []

    def next_step(self) -> _PrefillStep | None:
        if self._prompt is None or self._read == self._fed or self._session.responses:
            self._use.release(self)
            return None
        context = self._use.take(self)
        if context is None:
            return None
        hearing = self._session.hearing
        is_whole = self._prompt.complete and not hearing.waits(self._prompt.messages)
        rendered = self._engine.render(self._prompt.messages, hearing, answer=is_whole)
        self._planned, self._context = self._fed, context
        return _PrefillStep(self._engine, context, rendered.keys, hearing.by_number())

    def finish_step(self, result: object) -> Sequence[Output]:
        """`result`: whether nothing is left to read of what the step knew, and how many positions it has read."""
        assert isinstance(result, _Read), "only a step of this stream comes back"
        self._use.step_over(self._context, result.positions)
        if result.is_whole:
            self._read = self._planned
            self._use.release(self)
        return ()

    def held(self) -> dict[str, int]:
        """Vectors of a sound that has not come to its end."""
        return {"vectors": self._session.hearing.unfinished(self._turn)}

    def close(self) -> None:
        """A sound that never came to its end is forgotten."""
        self._use.release(self)
        self._session.hearing.drop_unfinished(self._turn)


@dataclass(frozen=True, slots=True)
class _PrefillStep:
    engine: _Engine
    context: Context
    keys: list[int]
    sounds: Mapping[int, Sound]

    kind = "prefill"
    urgency = 2
    units = 0

    def run(self, context: StepContext) -> _Read:  # noqa: ARG002 - bounded, so it need not ask
        with torch.inference_mode():
            if self.context.agrees(self.keys):
                return _Read(is_whole=True, positions=0)
            known = self.context.keep_common(self.keys)
            self.engine.read_piece(self.context, self.keys, self.sounds)
        return _Read(is_whole=len(self.context) == len(self.keys), positions=len(self.context) - known)


@dataclass(frozen=True, slots=True)
class _Read:
    is_whole: bool
    positions: int


# ---- response -----------------------------------------------------------------------------------------


class _ResponseStream:
    """One reply."""

    def __init__(self, engine: _Engine, session: _Session, options: ThinkerOptions, use: _Use | _Spare) -> None:
        self._engine = engine
        self._session = session
        self._options = options
        self._use = use
        self._writer: _Writer | None = None
        self._is_open = True
        session.responses += not options.spare

    @property
    def finished(self) -> bool:
        return not self._is_open

    def feed(self, item: Item) -> Sequence[Output]:
        raise StageFailure("wrong_item", f"a response takes no {type(item).__name__}")

    def next_step(self) -> _ResponseStep | None:
        """None while a sound of the prompt is coming in, or no context is to be had."""
        if self._is_open and self._writer is None:
            self._writer = self._begin()
        if not self._is_open or self._writer is None:
            return None
        return _ResponseStep(self._writer, 1 if self._writer.tokens else 0)

    def _begin(self) -> _Writer | None:
        messages, hearing = self._options.messages, self._session.hearing
        hearing.check(messages)
        if hearing.waits(messages):
            return None
        context = self._use.take(self)
        if context is None:
            return None
        rendered = self._engine.render(messages, hearing, answer=True)
        return _Writer(self._engine, context, rendered, hearing.by_number(), self._options)

    def finish_step(self, result: object) -> Sequence[Output]:
        """`result` is what the step put out."""
        assert isinstance(result, list), "only a response's step comes back"
        assert self._writer is not None, "a step had a writer"
        self._use.step_over(self._writer.context, self._writer.take_read())
        if self._writer.reason:
            self._leave()
        return result

    def held(self) -> dict[str, int]:
        """Positions of the reply that is being written."""
        return {"tokens": len(self._writer.tokens) if self._writer and self._is_open else 0}

    def close(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._use.release(self)
        self._session.responses -= not self._options.spare


@dataclass(frozen=True, slots=True)
class _ResponseStep:
    writer: _Writer
    urgency: int

    kind = "respond"
    units = 0

    def run(self, context: StepContext) -> list[Output]:  # noqa: ARG002 - bounded, so it need not ask
        with torch.inference_mode():
            return self.writer.write()


class _Writer:
    """What a reply has come to. `tokens` are those that are written, without the mark of the end."""

    def __init__(
        self,
        engine: _Engine,
        context: Context,
        rendered: Rendered,
        sounds: Mapping[int, Sound],
        options: ThinkerOptions,
    ) -> None:
        self._engine = engine
        self.context = context
        self._sounds = sounds
        self._keys = list(rendered.keys)
        self._prompt_tokens = len(rendered.keys)
        self._spoken = [position for position, is_spoken in enumerate(rendered.spoken) if is_spoken]
        self._tokens_max = min(options.max_output_tokens, engine.settings.output_tokens_max)
        self._temperature = options.temperature
        self._generator = _fresh_generator(engine.net.device) if options.temperature else None
        self._cached_tokens: int | None = None
        self._handed_over = 0
        self._positions_read = 0
        self.tokens: list[int] = []
        self.reason = ""

    def write(self) -> list[Output]:
        """Read one more piece; behind the last one, pick a token."""
        known = self.context.keep_common(self._keys)
        if self._cached_tokens is None:
            self._cached_tokens = known
        last = self._engine.read_piece(self.context, self._keys, self._sounds)
        self._positions_read += len(self.context) - known
        outputs: list[Output] = list(self._prompt_read())
        if len(self.context) == len(self._keys):
            outputs += self._pick(last)
        return outputs

    def take_read(self) -> int:
        """How many positions were evaluated since the last call."""
        read, self._positions_read = self._positions_read, 0
        return read

    def _prompt_read(self) -> list[Emit]:
        """Of the positions that the Talker speaks from, those that have been read and not handed over."""
        emits: list[Emit] = []
        ready = [position for position in self._spoken if position < len(self.context)]
        self._spoken = self._spoken[len(ready) :]
        for run in _runs_of_one_kind(ready, self._keys):
            rows = self.context.rows(run)
            emits += emit_in_pieces(self._handed_over, rows, "hidden" if self._keys[run[0]] < 0 else "prefill")
            self._handed_over += len(run)
        return emits

    def _pick(self, last: Any) -> list[Output]:
        scores = self._engine.net.logits(last)
        token = int(pick(scores / self._temperature if self._temperature else scores, self._generator))
        if token == self._engine.vocabulary.im_end:
            return self._ending("stop", len(self.tokens) + 1)
        self.tokens.append(token)
        self._keys.append(token)
        delta = Publish(TextDelta(self._engine.vocabulary.write(token)))
        if len(self.tokens) == self._tokens_max:
            return [delta, *self._ending("max_output_tokens", len(self.tokens))]
        row = self._engine.net.embed([token])
        self._handed_over += 1
        return [delta, Emit(pack(self._handed_over - 1, row, "step"), 1)]

    def _ending(self, reason: str, output_tokens: int) -> list[Output]:
        self.reason = reason
        text = "".join(self._engine.vocabulary.write(token) for token in self.tokens)
        assert self._cached_tokens is not None, "a reply that ends has been begun"
        done = TextDone(text, reason, self._prompt_tokens, self._cached_tokens, output_tokens)
        none = torch.zeros((0, self._engine.net.dim))
        return [Emit(pack(self._handed_over, none, "step", final=True), 0), Publish(done)]


def _fresh_generator(device: str) -> Any:
    generator = torch.Generator(device)
    generator.seed()
    return generator


def _runs_of_one_kind(positions: Sequence[int], keys: Sequence[int]) -> list[list[int]]:
    """`positions`, in order, parted where text and sound meet."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and (keys[position] < 0) == (keys[runs[-1][-1]] < 0):
            runs[-1].append(position)
        else:
            runs.append([position])
    return runs
