"""A Thinker behind HTTP: any server that speaks OpenAI's chat completions, with streaming.

Theory of operation
    The same streams as the local Thinker's: text token by token, clauses as they end, and a stop while a clause waits
    for credit. What the server has sent meanwhile waits in the client's queue and in the socket. There is no KV to
    keep here, so a prefill takes its prompts and does nothing.

Rules
* A step ends within `POLL_S` of a cancel, and cancelling closes the connection.
* Prompts are fitted to `context_tokens` less the reply, by estimate: the server's own count is not known before.
* A server may not heed `tool_choice`: a call that it rules out fails the reply.
* Words that come after a call are dropped: a reply calls last. Where there are tools, a reply that has had its
  sentences is read on, as it may yet call.
* Failure codes: capacity, unknown_session, wrong_options, bad_prompt, wrong_item, prompt_too_long, bad_call, and those
  of `openai_client`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from stages.call_writer import CallWriter, callable_now
from stages.clauses import ClauseLimits, Reply
from stages.contracts import Item, Options, PrefillOptions, Prompt, Tag, TextDone, ThinkerOptions
from stages.engines.openai_client import ApiKey, CallPiece, ChatClient, ChatEnd, ChatRequest, Exchange, ServerSettings
from stages.engines.openai_options import OpenAIOptions
from stages.prompting import PromptTooLargeError, estimate_tokens, fit
from stages.stream import Output, Publish, StageFailure, StageStream, Step, StepContext

POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class OpenAIThinkerSettings:
    """`context_tokens` is the model's. `sessions_max` also bounds the connections."""

    server: ServerSettings
    sessions_max: int = 32
    context_tokens: int = 8_192
    sentences_max: int = 4
    clauses: ClauseLimits = field(default_factory=ClauseLimits)


def build(options: Mapping[str, object]) -> OpenAIThinkerModel:
    """From a stage's specification. Raises `msgspec.ValidationError`, which names the option."""
    given = msgspec.convert(dict(options), OpenAIOptions)
    server = ServerSettings(given.base_url, given.model, ApiKey(given.api_key), given.sessions_max + 1)
    settings = OpenAIThinkerSettings(server, given.sessions_max, given.context_tokens, given.sentences_max)
    return OpenAIThinkerModel(settings)


class OpenAIThinkerModel:
    """The `StageModel`."""

    def __init__(self, settings: OpenAIThinkerSettings) -> None:
        self._settings = settings
        self._client = ChatClient(settings.server)
        self._sessions: set[str] = set()

    @property
    def concurrency(self) -> int:
        return self._settings.sessions_max + 1

    @property
    def revision(self) -> str:
        return self._settings.server.model

    def open_session(self, session: str) -> None:
        """Count the session; see `StageModel`."""
        if session not in self._sessions and len(self._sessions) >= self._settings.sessions_max:
            raise StageFailure("capacity", f"all {self._settings.sessions_max} sessions are taken")
        self._sessions.add(session)

    def close_session(self, session: str) -> None:
        self._sessions.discard(session)

    def kept_for(self, session: str) -> dict[str, int]:
        """Its place; see `StageModel`."""
        return {"sessions": int(session in self._sessions)}

    def open(self, tag: Tag, options: Options) -> StageStream:
        """Open a prefill or a response; see `StageModel`."""
        if isinstance(options, PrefillOptions):
            return _Prefill()
        if not isinstance(options, ThinkerOptions):
            raise StageFailure("wrong_options", f"a Thinker takes no {type(options).__name__}")
        if tag.session not in self._sessions and not options.spare:
            raise StageFailure("unknown_session", "the session is not open")
        return _Response(self._client, self._settings, self._request(options))

    def _request(self, options: ThinkerOptions) -> ChatRequest:
        if options.max_output_tokens < 1 or not 0.0 <= options.temperature <= 2.0:
            raise StageFailure("wrong_options", "max_output_tokens must be at least 1, temperature 0 to 2")
        if not options.messages:
            raise StageFailure("bad_prompt", "there are no messages")
        tokens_max = min(options.max_output_tokens, self._settings.context_tokens // 2)
        told = (f"{tool.name} {tool.description} {tool.parameters}" for tool in options.tools)
        told_tokens = sum(estimate_tokens(text) for text in told)
        try:
            messages = fit(options.messages, self._settings.context_tokens - tokens_max - told_tokens)
        except PromptTooLargeError as error:
            raise StageFailure("prompt_too_long", str(error)) from error
        return ChatRequest(messages, tokens_max, options.temperature, options.tools, options.tool_choice)

    def close(self) -> None:
        self._client.close()


class _Prefill:
    """Takes prompts and keeps nothing. It ends when it is cancelled or closed."""

    finished = False

    def feed(self, item: Item) -> Sequence[Output]:
        if not isinstance(item, Prompt):
            raise StageFailure("wrong_item", f"a prefill takes no {type(item).__name__}")
        return ()

    def next_step(self) -> Step | None:
        return None

    def finish_step(self, result: object) -> Sequence[Output]:  # noqa: ARG002 - there is none
        raise AssertionError("a prefill plans no steps")

    def held(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """There is nothing to give back."""


class _Response:
    """One reply. The request is sent by its first step."""

    def __init__(self, client: ChatClient, settings: OpenAIThinkerSettings, request: ChatRequest) -> None:
        self._writer = _Writer(client, settings, request)
        self._has_begun = False
        self._is_over = False

    @property
    def finished(self) -> bool:
        return self._is_over

    def feed(self, item: Item) -> Sequence[Output]:
        raise StageFailure("wrong_item", f"a response takes no {type(item).__name__}")

    def next_step(self) -> Step | None:
        if self._is_over:
            return None
        urgency = 1 if self._has_begun else 0
        self._has_begun = True
        return _ResponseStep(self._writer, urgency)

    def finish_step(self, result: object) -> Sequence[Output]:
        if not isinstance(result, ChatEnd):
            return ()
        self._is_over = True
        return self._writer.ending(result)

    def held(self) -> dict[str, int]:
        return {"connections": int(self._writer.is_connected)}

    def close(self) -> None:
        self._writer.disconnect()


@dataclass(frozen=True, slots=True)
class _ResponseStep:
    """Passes the reply on until it is over, the stream is cancelled, or a clause waits for credit."""

    writer: _Writer
    urgency: int

    kind = "respond"
    units = 0

    def run(self, context: StepContext) -> ChatEnd | None:
        return self.writer.write(context)


class _Writer:
    """What a reply has come to, written on by one step after the other."""

    def __init__(self, client: ChatClient, settings: OpenAIThinkerSettings, request: ChatRequest) -> None:
        self._client = client
        self._request = request
        self._reply = Reply(settings.clauses, settings.sentences_max)
        self._calls = CallWriter(callable_now(request.tools, request.tool_choice))
        self._call: int | None = None  # the server's number of the call that is being written
        self._exchange: Exchange | None = None
        self._pieces = 0

    @property
    def is_connected(self) -> bool:
        return self._exchange is not None

    def write(self, context: StepContext) -> ChatEnd | None:
        """How the reply ended, or None."""
        if self._exchange is None:
            self._exchange = self._client.start(self._request)
        while not context.cancelled():
            taken = self._exchange.take(POLL_S)
            if isinstance(taken, ChatEnd):
                self._end_calls(taken, context)
                return taken
            if taken:
                self._pass_on(taken, context)
            if self._reply.ended and not self._request.tools:
                return ChatEnd("stop", output_tokens=self._pieces)
            if context.stalled() and self._call is None:  # a call waits for no credit
                return None
        return None

    def _pass_on(self, piece: str | CallPiece, context: StepContext) -> None:
        self._pieces += 1
        outputs = self._call_on(piece) if isinstance(piece, CallPiece) else self._speak_on(piece)
        if outputs:
            context.progress(outputs)

    def _speak_on(self, text: str) -> Sequence[Output]:
        return self._reply.feed(text) if self._call is None else ()

    def _call_on(self, piece: CallPiece) -> Sequence[Output]:
        """The words are over, and go on to be spoken, as soon as there is a call."""
        outputs = [*self._reply.finish()]
        if piece.index != self._call:
            outputs += self._finish_call()
            self._call = piece.index
            outputs += self._calls.begin(piece.name)
        return [*outputs, *self._calls.add(piece.arguments)]

    def _finish_call(self) -> Sequence[Output]:
        return self._calls.finish() if self._calls.is_writing else ()

    def _end_calls(self, end: ChatEnd, context: StepContext) -> None:
        """The last call is whole, unless the reply was cut off in it: then it was never made."""
        if end.reason == "stop":
            context.progress(self._finish_call())

    def ending(self, end: ChatEnd) -> Sequence[Output]:
        """The last outputs of a reply that came to `end`. A server that counts no tokens is taken to send one each."""
        self.disconnect()
        output_tokens = end.output_tokens or self._pieces
        has_had_its_sentences = self._reply.ended and self._call is None
        reason = "stop" if has_had_its_sentences else end.reason
        done = TextDone(self._reply.text, reason, end.prompt_tokens, end.cached_tokens, output_tokens)
        return (*self._reply.finish(), Publish(done))

    def disconnect(self) -> None:
        if self._exchange is not None:
            self._exchange.cancel()
            self._exchange = None
