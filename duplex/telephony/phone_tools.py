"""What a model can do with its telephone call: end it, and pass it on.

Theory of operation
    Both are tools of the service that only calls by telephone have. A model says what it has to say and calls one in
    the same reply; it is carried out when the caller has heard that. Who speaks on meanwhile keeps the call.

Rules
* A call goes only where the configuration allows (`phone_transfer_to`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from duplex.call_tools import OwnTool
from duplex.telephony.carrier import Started
from duplex.telephony.control import CarrierControl, ControlError
from sessions.service_calls import Failure, Result, ServiceTool
from stages.contracts import Tool

HUNG_UP = "hung_up"
TRANSFERRED = "transferred"

_HANG_UP = Tool(
    "hang_up",
    "Ends this telephone call. Say goodbye first, in the same reply.",
    json.dumps({"type": "object", "properties": {}}),
)
_INTERRUPTED = Result("It was not done, since the caller went on speaking: the call goes on.")


class _To(msgspec.Struct, frozen=True):
    to: str


def _transfer_tool(places: tuple[str, ...]) -> Tool:
    to = {"type": "string", "enum": list(places)}
    schema = {"type": "object", "properties": {"to": to}, "required": ["to"]}
    return Tool(
        "transfer_call",
        "Has this telephone call go on with another number. Say so first, in the same reply.",
        json.dumps(schema),
    )


def phone_tools(control: CarrierControl | None, places: tuple[str, ...]) -> tuple[ServiceTool, ...]:
    """Those of a call whose carrier has this `control`, and that may go on at these `places`."""
    tools = [_HANG_UP] if control is None or not places else [_HANG_UP, _transfer_tool(places)]
    return tuple(ServiceTool(tool, safe=False, filler="") for tool in tools)


@dataclass(frozen=True, slots=True)
class PhoneActions:
    """`until_heard` waits, for a bounded time, until the caller has heard what was said; false where they interrupt.
    `end` ends the call here, for a reason."""

    started: Started
    control: CarrierControl | None
    until_heard: Callable[[], Awaitable[bool]]
    end: Callable[[str], None]

    def own_tools(self, served: tuple[ServiceTool, ...]) -> tuple[OwnTool, ...]:
        """`served` is what `phone_tools` gave."""
        acts = {"hang_up": self._hang_up, "transfer_call": self._transfer}
        return tuple(OwnTool(each.tool, acts[each.tool.name]) for each in served)

    async def _hang_up(self, _arguments: str) -> Result | Failure:
        if not await self.until_heard():
            return _INTERRUPTED
        self.end(HUNG_UP)
        return Result("The call has ended.")

    async def _transfer(self, arguments: str) -> Result | Failure:
        assert self.control is not None, "without it there is no such tool"
        to = msgspec.json.decode(arguments, type=_To).to  # it fits the schema: who calls has looked
        if not await self.until_heard():
            return _INTERRUPTED
        try:
            await self.control.transfer(self.started, to)
        except ControlError as error:
            return Failure("refused" if error.is_refused else "unavailable")
        self.end(TRANSFERRED)
        return Result("The call goes on there.")
