"""The calls of a reply on their way out of an engine: one after the other, named, bounded, and whole or never made.

Rules
* A call is of a tool that the model may call, its arguments are a JSON object, and a reply makes at most
  `CALLS_MAX`. What an engine makes beside that ends its stream with the code `bad_call`, and is no call.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stages.contracts import CALL_CHARACTERS_MAX, CALLS_MAX, CallDelta, CallDone, Tool, ToolChoice
from stages.stream import Output, Publish, StageFailure

_object = msgspec.json.Decoder(dict[str, object])


def callable_now(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """Those of `tools`, of which the model is told, that it may call."""
    return [tool for tool in tools if choice.mode != "none" and choice.name in ("", tool.name)]


class CallWriter:
    """The calls of one reply of a model that may call `tools`. Each method gives what is to be published, and raises
    `StageFailure`."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._names = frozenset(tool.name for tool in tools)
        self._index = -1
        self._name: str | None = None
        self._arguments = ""

    @property
    def is_writing(self) -> bool:
        """A call has begun and is not whole."""
        return self._name is not None

    def begin(self, name: str) -> list[Output]:
        assert self._name is None, "calls are written one after the other"
        if name not in self._names:
            raise StageFailure("bad_call", "the model calls a tool that it may not call")
        if self._index + 1 >= CALLS_MAX:
            raise StageFailure("bad_call", f"more than {CALLS_MAX} calls in a reply")
        self._index, self._name, self._arguments = self._index + 1, name, ""
        return [Publish(CallDelta(self._index, name))]

    def add(self, arguments: str) -> list[Output]:
        """More of the arguments of the call that has begun."""
        assert self._name is not None, "a call has begun"
        self._arguments += arguments
        if len(self._arguments) > CALL_CHARACTERS_MAX:
            raise StageFailure("bad_call", f"more than {CALL_CHARACTERS_MAX} characters of arguments")
        return [Publish(CallDelta(self._index, self._name, arguments))] if arguments else []

    def finish(self) -> list[Output]:
        """The call that has begun is whole."""
        # Some servers send nothing at all for a function without parameters.
        empty = [] if self._arguments.strip() else self.add("{}")
        try:
            _object.decode(self._arguments)
        except (msgspec.DecodeError, RecursionError) as error:
            raise StageFailure("bad_call", "the arguments of a call are no JSON object") from error
        self._name = None
        return [*empty, Publish(CallDone(self._index, self._arguments))]
