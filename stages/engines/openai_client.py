"""Streaming chat completions from any server that speaks OpenAI's HTTP interface.

Theory of operation
    One event loop in a thread of its own holds the connection pool. Each request is a task there, the *reader*, which
    puts pieces of the reply into a small queue; engine threads take from it, a fraction of a second at a time, so
    that a cancel never waits for the server. A taker that stops taking fills the queue, then the socket's buffers,
    and so holds the server back. Cancelling the reader closes its connection.

Rules
* Every wait has its own limit: connecting, until the first token, between tokens.
* A single event and the whole reply are bounded; beyond that the reply is bad.
* Failure codes: auth, rate_limited, unavailable, timeout, bad_reply, refused. Neither key nor body of an answer ever
  gets into a failure's text.
* The environment sets no proxy: what is configured is what is used.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx2
import msgspec

from stages.contracts import Message, Tool, ToolChoice
from stages.stream import StageFailure

EVENT_BYTES_MAX = 64 * 1024  # a token's event has about 300 bytes
REPLY_BYTES_MAX = 8 * 1024 * 1024  # of events; 4,096 tokens make 1.2 MB
PIECES_QUEUED_MAX = 64  # about a second of a fast server
CLOSE_S_MAX = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class ApiKey:
    """A secret that does not show when printed."""

    value: str

    def __repr__(self) -> str:
        return "ApiKey(***)"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where and how to ask. `base_url` ends before `/chat/completions`; an empty key sends none."""

    base_url: str
    model: str
    api_key: ApiKey
    connections_max: int = 32
    connect_s_max: float = 3.0
    first_token_s_max: float = 10.0
    between_tokens_s_max: float = 5.0

    def __post_init__(self) -> None:
        if httpx2.URL(self.base_url).scheme not in ("http", "https"):
            raise ValueError(f"base_url must start with http:// or https://, not {self.base_url!r}")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    messages: tuple[Message, ...]
    tokens_max: int
    temperature: float
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)


@dataclass(frozen=True, slots=True)
class CallPiece:
    """More of call number `index`, as the server counts them; `name` is empty but for its first piece."""

    index: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatEnd:
    """The reply is whole. Token counts are 0 where the server gives none."""

    reason: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, frozen=True):
    index: int = 0
    function: _Function = _Function()


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    tool_calls: tuple[_Call, ...] | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: object = None


_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ChatClient:
    """The connection pool and its thread."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        key = settings.api_key.value
        self.http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(None, connect=settings.connect_s_max, pool=settings.connect_s_max),
            limits=httpx2.Limits(max_connections=settings.connections_max),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            trust_env=False,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chat-client", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` in the client's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def start(self, request: ChatRequest) -> Exchange:
        """Send `request`; returns at once."""
        return Exchange(self, request)

    def close(self) -> None:
        """End all exchanges and the thread. Called once."""
        self.submit(self._end_all()).result(CLOSE_S_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S_MAX)
        self._loop.close()

    async def _end_all(self) -> None:
        readers = asyncio.all_tasks() - {asyncio.current_task()}
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await self.http.aclose()
        await self._loop.shutdown_asyncgens()


class Exchange:
    """One request and its streamed reply."""

    def __init__(self, client: ChatClient, request: ChatRequest) -> None:
        self._client = client
        self._body = _body(client.settings.model, request)
        self._pieces: asyncio.Queue[str | CallPiece | ChatEnd | StageFailure] = asyncio.Queue(PIECES_QUEUED_MAX)
        self._reader = client.submit(self._read())

    def take(self, wait_s: float) -> str | CallPiece | ChatEnd | None:
        """The next piece of text or of a call, or the end; None if none came within `wait_s`. Raises `StageFailure`.

        Blocks the calling thread, which must not be the client's own.
        """
        taken = self._client.submit(self._take(wait_s)).result()
        if isinstance(taken, StageFailure):
            raise taken
        if taken is None and self._reader.done():
            self._reader.result()
        return taken

    def cancel(self) -> None:
        """Close the connection, if the reply is not whole. Returns at once."""
        self._reader.cancel()

    async def _take(self, wait_s: float) -> str | CallPiece | ChatEnd | StageFailure | None:
        try:
            async with asyncio.timeout(wait_s):
                return await self._pieces.get()
        except TimeoutError:
            return None

    async def _read(self) -> None:
        end: ChatEnd | StageFailure
        try:
            end = await self._stream()
        except StageFailure as failure:
            end = failure
        except (TimeoutError, httpx2.TimeoutException):
            end = StageFailure("timeout", "the language model's server did not answer in time")
        except (httpx2.SSEError, httpx2.DecodingError, msgspec.DecodeError, RecursionError):
            end = StageFailure("bad_reply", "the language model's server sent what is no stream of completions")
        except httpx2.HTTPError as error:
            end = StageFailure("unavailable", f"the language model's server is away: {type(error).__name__}")
        await self._pieces.put(end)

    async def _stream(self) -> ChatEnd:
        settings = self._client.settings
        url = settings.base_url.rstrip("/") + "/chat/completions"
        request = self._client.http.build_request("POST", url, json=self._body)
        first_by = asyncio.get_running_loop().time() + settings.first_token_s_max
        async with asyncio.timeout_at(first_by):
            response = await self._client.http.send(request, stream=True)
        try:
            _check_status(response.status_code)
            return await self._pass_on(response, first_by)
        finally:
            await response.aclose()

    async def _pass_on(self, response: httpx2.Response, first_by: float) -> ChatEnd:
        """Queue text and calls of `response` as they come; returns how it ended."""
        between_s = self._client.settings.between_tokens_s_max
        events = aiter(httpx2.EventSource(response, max_event_size=EVENT_BYTES_MAX))
        loop = asyncio.get_running_loop()
        tally = _Tally()
        next_by = first_by
        while not tally.is_over:
            async with asyncio.timeout_at(next_by):
                event = await anext(events, None)
            for piece in tally.take(event.data if event else None):
                await self._pieces.put(piece)
                next_by = loop.time() + between_s
        return tally.end()


class _Tally:
    """Reads events and remembers what the end of the reply needs."""

    def __init__(self) -> None:
        self.is_over = False
        self._reason = ""
        self._usage = _Usage()
        self._bytes = 0

    def take(self, data: str | None) -> list[str | CallPiece]:
        """What an event's `data` holds of the reply; None is the end of the stream."""
        if data is None or data.strip() == "[DONE]":
            self._finish(said_so=data is not None)
            return []
        self._bytes += len(data)
        if self._bytes > REPLY_BYTES_MAX:
            raise StageFailure("bad_reply", f"the reply exceeds {REPLY_BYTES_MAX} bytes")
        chunk = msgspec.json.decode(data, type=_Chunk)
        if chunk.error is not None:
            raise StageFailure("unavailable", "the language model's server reported an error amid the reply")
        self._usage = chunk.usage or self._usage
        self._reason = next((choice.finish_reason for choice in chunk.choices if choice.finish_reason), self._reason)
        text = "".join(choice.delta.content or "" for choice in chunk.choices)
        calls = [call for choice in chunk.choices for call in choice.delta.tool_calls or ()]
        pieces = (CallPiece(one.index, one.function.name or "", one.function.arguments or "") for one in calls)
        return [*([text] if text else []), *pieces]

    def _finish(self, *, said_so: bool) -> None:
        if not said_so and not self._reason:
            raise StageFailure("unavailable", "the connection ended before the reply was whole")
        self.is_over = True

    def end(self) -> ChatEnd:
        usage = self._usage
        details = usage.prompt_tokens_details
        cached = (details.cached_tokens or 0) if details else 0
        return ChatEnd(_REASONS.get(self._reason, "stop"), usage.prompt_tokens, cached, usage.completion_tokens)


def _check_status(status: int) -> None:
    if status == httpx2.codes.OK:
        return
    if status in (401, 403):
        raise StageFailure("auth", f"the language model's server does not accept the key ({status})")
    if status == 429:
        raise StageFailure("rate_limited", "the language model's server asks to slow down")
    if status >= 500:
        raise StageFailure("unavailable", f"the language model's server answered {status}")
    raise StageFailure("refused", f"the language model's server answered {status}")


def _body(model: str, request: ChatRequest) -> dict[str, object]:
    return {
        "model": model,
        "messages": [_message(message) for message in request.messages],
        "max_tokens": request.tokens_max,
        "temperature": request.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        **(_tools(request) if request.tools else {}),
    }


def _message(message: Message) -> dict[str, object]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.content}
    if not message.calls:
        return {"role": message.role, "content": message.content}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.calls
    ]
    return {"role": message.role, "content": message.content or None, "tool_calls": calls}


def _tools(request: ChatRequest) -> dict[str, object]:
    functions = [
        {"name": tool.name, "description": tool.description, "parameters": msgspec.json.decode(tool.parameters)}
        for tool in request.tools
    ]
    choice = request.tool_choice
    named = {"type": "function", "function": {"name": choice.name}}
    return {
        "tools": [{"type": "function", "function": function} for function in functions],
        "tool_choice": named if choice.name else choice.mode,
    }
