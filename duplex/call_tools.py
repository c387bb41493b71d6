"""The calls of tools that the service carries out for one conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from duplex.tool_client import Deliver, ToolClient, ToolRequest
from sessions import effects as do
from sessions.service_calls import Failure, FailureCode
from stages.contracts import Tool


class CallTools:
    """`client` None: the service has no tools. `may_call`: there is room for one more call in what its tenant may make.
    `deliver` is told what has come of each call."""

    def __init__(self, session: str, client: ToolClient | None, may_call: Callable[[], bool], deliver: Deliver) -> None:
        self._session = session
        self._client = client
        self._may_call = may_call
        self._deliver = deliver

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self._client.tools if self._client is not None else ()

    def order(self, effect: do.ToolOrder) -> None:
        client = self._client
        match effect:
            case do.RequestTool(call_id, name, arguments) if client is not None:
                if self._may_call():
                    client.request(ToolRequest(self._session, call_id, name, arguments), self._deliver)
                else:
                    self._fail(call_id, "quota_exceeded")
            case do.CancelTool(call_id):
                if client is not None:
                    client.cancel(call_id)
            case _:
                if client is None or not client.follow(effect.call_id, self._deliver):
                    self._fail(effect.call_id, "lost")

    def _fail(self, call_id: str, code: FailureCode) -> None:
        """Behind the effects that are being carried out."""
        asyncio.get_running_loop().call_soon(self._deliver, call_id, Failure(code))
