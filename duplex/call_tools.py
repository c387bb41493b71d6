"""The calls of tools that the service carries out for one conversation: by asking a server, or by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from duplex.tool_client import Deliver, ToolClient, ToolRequest
from sessions import effects as do
from sessions.service_calls import Failure, FailureCode, Result
from stages.contracts import Tool

_log = structlog.get_logger("duplex.tools")


@dataclass(frozen=True, slots=True)
class OwnTool:
    """What the connection of a call can do. `act` gets the arguments, a JSON object as the model wrote it, and takes a
    bounded time."""

    tool: Tool
    act: Callable[[str], Coroutine[Any, Any, Result | Failure]]


class CallTools:
    """`client` None: the service has no tools. `may_call`: there is room for one more call in what its tenant may make.
    `deliver` is told what has come of each call."""

    def __init__(self, session: str, client: ToolClient | None, may_call: Callable[[], bool], deliver: Deliver) -> None:
        self._session = session
        self._client = client
        self._may_call = may_call
        self._deliver = deliver
        self._own: Mapping[str, OwnTool] = {}
        self._acting: set[asyncio.Task[Result | Failure]] = set()

    @property
    def tools(self) -> tuple[Tool, ...]:
        asked = self._client.tools if self._client is not None else ()
        return (*asked, *(own.tool for own in self._own.values()))

    def offer(self, *tools: OwnTool) -> None:
        """Carry these out here."""
        self._own = {own.tool.name: own for own in tools}

    def order(self, effect: do.ToolOrder) -> None:
        client = self._client
        match effect:
            case do.RequestTool(call_id, name, arguments) if client is not None or name in self._own:
                if not self._may_call():
                    self._fail(call_id, "quota_exceeded")
                elif name in self._own:
                    self._act(call_id, self._own[name], arguments)
                elif client is not None:
                    client.request(ToolRequest(self._session, call_id, name, arguments), self._deliver)
            case do.CancelTool(call_id):
                if client is not None:
                    client.cancel(call_id)
            case _:
                if client is None or not client.follow(effect.call_id, self._deliver):
                    self._fail(effect.call_id, "lost")

    def _act(self, call_id: str, own: OwnTool, arguments: str) -> None:
        acting = asyncio.create_task(own.act(arguments))
        self._acting.add(acting)
        acting.add_done_callback(partial(self._acted, call_id, own.tool.name))

    def _acted(self, call_id: str, name: str, acting: asyncio.Task[Result | Failure]) -> None:
        self._acting.discard(acting)
        error = None if acting.cancelled() else acting.exception()
        if error is not None:
            _log.error("tool_failed", tool=name, call=call_id, exc_info=error)
        is_done = not acting.cancelled() and error is None
        self._deliver(call_id, acting.result() if is_done else Failure("broken"))

    def _fail(self, call_id: str, code: FailureCode) -> None:
        """Behind the effects that are being carried out."""
        asyncio.get_running_loop().call_soon(self._deliver, call_id, Failure(code))
