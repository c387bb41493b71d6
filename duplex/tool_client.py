"""Has tools' calls carried out over HTTP: one request each, signed, bounded, and never repeated here.

Theory of operation
    A call is a POST of its arguments to the tool's address, under its id as the idempotency key. Whoever asks is told
    once what has come of it. While it runs, another may take that place: a session that goes on in the same process
    finds its calls here.

Rules
* No redirect is followed, no environment sets a proxy, and only the addresses of the configuration are asked.
* Requests under way, connections, time and the size of an answer are bounded.
* No connection is used twice: one that its server has closed meanwhile would leave a call of which nobody knows whether
  it was done.
* Neither arguments nor answers get into a log or a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import httpx2
import msgspec
import structlog

from duplex.metrics import Metrics
from duplex.service_tools import HttpTool
from duplex.webhook_signature import signature
from sessions.service_calls import Failure, Result
from stages.contracts import Tool

# Some for each of dozens of calls; more wait within their time limit.
REQUESTS_MAX = 64
CONNECT_S_MAX = 3.0
# An answer stands in every prompt that follows, like an output of the client's.
ANSWER_CHARACTERS_MAX = 16_384
ANSWER_BYTES_MAX = 4 * ANSWER_CHARACTERS_MAX

Deliver = Callable[[str, Result | Failure], None]

_log = structlog.get_logger("duplex.tools")


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """`arguments`: a JSON object, as the model wrote it."""

    session: str
    call_id: str
    name: str
    arguments: str


class _Body(msgspec.Struct, frozen=True):
    session: str
    call_id: str
    tool: str
    arguments: msgspec.Raw


@dataclass(slots=True)
class _Flight:
    name: str
    task: asyncio.Task[Result | Failure]
    deliver: Deliver


class ToolClient:
    """Of one gateway. `run` has to run as long as anything is asked of it."""

    def __init__(self, tools: Iterable[HttpTool], metrics: Metrics) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._metrics = metrics
        self._room = asyncio.Semaphore(REQUESTS_MAX)
        self._flights: dict[str, _Flight] = {}
        # Made at the start: it reads certificates, which takes far longer than a frame of sound. None: for no tools.
        self._http = _http_client() if self._tools else None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Those that can be called."""
        return tuple(tool.served.tool for tool in self._tools.values())

    @property
    def under_way(self) -> int:
        return len(self._flights)

    async def run(self) -> None:
        """Until cancelled; then nothing is under way any more, and nobody is told of what was."""
        try:
            await asyncio.Event().wait()
        finally:
            tasks = [flight.task for flight in self._flights.values()]
            self._flights.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._http is not None:
                await self._http.aclose()

    def request(self, request: ToolRequest, deliver: Deliver) -> None:
        """Have a call carried out, and `deliver` what has come of it. One that is under way is followed."""
        if self.follow(request.call_id, deliver):
            return
        task = asyncio.create_task(self._carry_out(self._tools[request.name], request))
        self._flights[request.call_id] = _Flight(request.name, task, deliver)
        task.add_done_callback(partial(self._landed, request.call_id))

    def follow(self, call_id: str, deliver: Deliver) -> bool:
        """`deliver` what comes of a call, in place of whoever was to be told; False where it is not under way."""
        flight = self._flights.get(call_id)
        if flight is not None:
            flight.deliver = deliver
        return flight is not None

    def cancel(self, call_id: str) -> None:
        """Nobody wants to know any more."""
        flight = self._flights.pop(call_id, None)
        if flight is not None:
            flight.task.cancel()

    def _landed(self, call_id: str, task: asyncio.Task[Result | Failure]) -> None:
        flight = self._flights.get(call_id)
        if task.cancelled() or flight is None or flight.task is not task:
            return
        del self._flights[call_id]
        error = task.exception()
        if error is not None:
            _log.error("tool_request_failed", tool=flight.name, call=call_id, exc_info=error)
        flight.deliver(call_id, Failure("broken") if error is not None else task.result())

    # ---- one request -------------------------------------------------------------------------------

    async def _carry_out(self, tool: HttpTool, request: ToolRequest) -> Result | Failure:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        answer = await self._answer(tool, request)
        outcome = answer.code if isinstance(answer, Failure) else "succeeded"
        self._metrics.tool_request_seconds.labels(tool.name, outcome).observe(loop.time() - begun_s)
        _log.info("tool_answered", session=request.session, call=request.call_id, tool=tool.name, outcome=outcome)
        return answer

    async def _answer(self, tool: HttpTool, request: ToolRequest) -> Result | Failure:
        is_sent = False
        try:
            async with asyncio.timeout(tool.time_limit_s), self._room:
                is_sent = True
                return await self._exchange(tool, request)
        except TimeoutError:
            return Failure("timeout" if is_sent else "busy")
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            return Failure("unavailable")
        except httpx2.TransportError:
            return Failure("broken")

    async def _exchange(self, tool: HttpTool, request: ToolRequest) -> Result | Failure:
        arguments = msgspec.Raw(request.arguments.encode())
        body = msgspec.json.encode(_Body(request.session, request.call_id, request.name, arguments))
        headers = _headers(tool, request.call_id, body)
        assert self._http is not None, "who has a tool can ask for it"
        async with self._http.stream("POST", tool.url, content=body, headers=headers) as response:
            failure = _failure_of(response)
            return failure or await _read(response)


def _http_client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(None, connect=CONNECT_S_MAX),
        limits=httpx2.Limits(max_connections=REQUESTS_MAX, max_keepalive_connections=0),
        headers={"User-Agent": "duplex", "Accept-Encoding": "identity", "Content-Type": "application/json"},
        follow_redirects=False,
        trust_env=False,
    )


def _headers(tool: HttpTool, call_id: str, body: bytes) -> dict[str, str]:
    timestamp_s = int(datetime.now(UTC).timestamp())
    return {
        "Idempotency-Key": call_id,
        "webhook-id": call_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": signature(tool.secret, call_id, timestamp_s, body),
    }


def _failure_of(response: httpx2.Response) -> Failure | None:
    """None where what follows is the answer."""
    if response.is_redirect:
        return Failure("redirected")
    if response.is_client_error:
        return Failure("refused")
    if not response.is_success:
        return Failure("server_error")
    is_packed = response.headers.get("content-encoding", "identity") != "identity"
    return Failure("bad_answer") if is_packed else None


async def _read(response: httpx2.Response) -> Result | Failure:
    parts, size = [], 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            return Failure("answer_too_large")
        parts.append(part)
    try:
        text = b"".join(parts).decode()
    except UnicodeDecodeError:
        return Failure("bad_answer")
    return Result(text) if len(text) <= ANSWER_CHARACTERS_MAX else Failure("answer_too_large")
