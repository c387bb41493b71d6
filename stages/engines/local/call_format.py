"""How a local model is told of tools, how it calls one, and how it is held to that.

Theory of operation
    The form is the one that Hermes and Qwen were trained on: the system message lists the functions as JSON, a call is
    `<tool_call>` with name and arguments in it, its result comes back as `<tool_response>` of the user. A grammar
    allows speech, then perhaps one call; `<` stands only where a call begins. So what is a call and what is spoken is
    decided by a character, and of the call's form nothing is ever spoken.

    The grammar is in llguidance's dialect of Lark, which takes a JSON schema as it is. Where it does not understand
    one, the engine drops the whole grammar without a word. So it is given only what it knows (`closed_schema`), and
    `CallReader` believes nothing that was written without a grammar.

Rules
* Of a schema types, properties, required ones, items, enumerations, alternatives and bounds are kept. What else it
  says is not enforced; objects have no other properties than those named, where any are.
* Strings and arrays are bounded, since a small model may never end one by itself.
* Names of tools are letters, digits, `_` and `-`: they are written into the grammar as they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stages.call_writer import CallWriter, callable_now
from stages.contracts import Tool, ToolCall, ToolChoice
from stages.stream import Output, StageFailure

# Of any string or array, whatever its schema says: a grammar that counts to a million is one that no engine survives.
STRING_CHARACTERS_MAX = 512
ARRAY_ITEMS_MAX = 16

_MARK = "<"
_CLOSING = "}\n</tool_call>"
_RANGE = ("minimum", "maximum")
_PLAIN = ("string", "number", "boolean", "null")
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


# ---- what the model reads ------------------------------------------------------------------------------


def described(tools: Sequence[Tool]) -> str:
    """What a system message says of `tools`."""
    listed = "\n".join(_listed(tool) for tool in tools)
    return (
        "You may call a function to help the user. These are the functions:\n"
        f"<tools>\n{listed}\n</tools>\n"
        "To call one, write its name and arguments, and nothing after them:\n"
        f"{_opening('name')}{{…}}{_CLOSING}"
    )


def _listed(tool: Tool) -> str:
    function = {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters)}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def _opening(name: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": '


def written(content: str, calls: Sequence[ToolCall]) -> str:
    """What an assistant said, with the calls that it made."""
    parts = [f"{_opening(call.name)}{call.arguments}{_CLOSING}" for call in calls]
    return "\n".join([content, *parts] if content else parts)


def answered(result: str) -> str:
    """What came of a call, as the user hands it in."""
    return f"<tool_response>\n{result}\n</tool_response>"


# ---- what the model may write --------------------------------------------------------------------------


def grammar(tools: Sequence[Tool], choice: ToolChoice, end: str) -> str:
    """What a model that knows `tools` may write; empty where that is anything. `end`: the token that ends its turn."""
    if not tools:
        return ""
    if choice.mode == "none":
        return f"%llguidance {{}}\nstart: SPEECH {end}\nSPEECH: /[^<]*/\n"
    offered = callable_now(tools, choice)
    calls = [
        f"call_{at}: {json.dumps(_opening(tool.name))} arguments_{at} {json.dumps(_CLOSING)}\n"
        f"arguments_{at}: %json {json.dumps(_arguments_of(tool))}\n"
        for at, tool in enumerate(offered)
    ]
    any_call = " | ".join(f"call_{at}" for at in range(len(offered)))
    start = "call" if choice.mode == "required" else f"SPEECH {end} | SPEECH call"
    return f"%llguidance {{}}\nstart: {start}\nSPEECH: /[^<]*/\ncall: {any_call}\n{''.join(calls)}"


def _arguments_of(tool: Tool) -> dict[str, Any]:
    schema = closed_schema(json.loads(tool.parameters))
    arguments = schema if schema.get("type") == "object" else _NOTHING
    return {**arguments, "x-guidance": {"whitespace_flexible": False}}


def closed_schema(schema: object) -> dict[str, Any]:  # noqa: PLR0911 - the table, one line per form
    """`schema` with nothing in it but what is enforced; what is not understood allows any plain value."""
    if not isinstance(schema, dict):
        return closed_schema({"type": list(_PLAIN)})
    if isinstance(choices := schema.get("enum"), list) and choices:
        return {"enum": choices}
    if "const" in schema:
        return {"const": schema["const"]}
    for several in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(several), list) and choices:
            return {"anyOf": [closed_schema(each) for each in choices]}
    kind = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(kind, list):  # each once: alternatives in alternatives would multiply
        several_kinds = dict.fromkeys(each for each in kind if isinstance(each, str))
        return {"anyOf": [closed_schema({**schema, "type": each}) for each in several_kinds or _PLAIN]}
    match kind:
        case "object":
            return _closed_object(schema)
        case "array":
            length = _length(schema, "minItems", "maxItems", ARRAY_ITEMS_MAX)
            return {"type": kind, **length, "items": closed_schema(schema.get("items"))}
        case "string":
            return {"type": kind, **_length(schema, "minLength", "maxLength", STRING_CHARACTERS_MAX)}
        case "integer" | "number":
            return {
                "type": kind,
                **{name: schema[name] for name in _RANGE if isinstance(schema.get(name), int | float)},
            }
        case "boolean" | "null":
            return {"type": kind}
    return closed_schema({"type": list(_PLAIN)})


def _closed_object(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {"type": "object"} if schema.get("additionalProperties", True) else _NOTHING
    named = schema.get("required")
    return {
        "type": "object",
        "properties": {name: closed_schema(each) for name, each in properties.items()},
        "required": [name for name in named if name in properties] if isinstance(named, list) else [],
        "additionalProperties": False,
    }


def _length(schema: dict[str, Any], least: str, most: str, limit: int) -> dict[str, int]:
    asked = {name: schema[name] for name in (least, most) if isinstance(schema.get(name), int)}
    return {most: limit, **{name: max(0, min(bound, limit)) for name, bound in asked.items()}}


# ---- what the model has written ------------------------------------------------------------------------


class CallReader:
    """Tells the call in a reply from its words. `tools` may be called; `must_call`: there are to be no words."""

    def __init__(self, tools: Sequence[Tool], *, must_call: bool) -> None:
        self._openings = {_opening(tool.name): tool.name for tool in tools}
        self._writer = CallWriter(tools)
        self._must_call = must_call
        self._pending = ""
        self.has_begun = False  # the words are over
        self.is_whole = False

    def feed(self, piece: str) -> tuple[str, list[Output]]:
        """The words in the next `piece` of the reply, and what is to be published of the call.

        Raises `StageFailure("bad_call", …)` for what the grammar does not allow.
        """
        if self.has_begun:
            return "", self._read(piece)
        words, mark, rest = piece.partition(_MARK)
        if self._must_call and words:
            raise StageFailure("bad_call", "the model speaks where it must call a tool")
        if not mark:
            return words, []
        self.has_begun = True
        return words, self._read(mark + rest)

    def _read(self, piece: str) -> list[Output]:
        self._pending += piece
        outputs: list[Output] = []
        if not self._writer.is_writing:
            opening = next((each for each in self._openings if self._pending.startswith(each)), None)
            if opening is None:
                self._check_opening()
                return []
            outputs += self._writer.begin(self._openings[opening])
            self._pending = self._pending.removeprefix(opening)
        self.is_whole = self._pending.endswith(_CLOSING)
        sure = len(self._pending) - len(_CLOSING)  # what is behind may belong to the end
        if sure > 0:
            outputs += self._writer.add(self._pending[:sure])
            self._pending = self._pending[sure:]
        return [*outputs, *self._writer.finish()] if self.is_whole else outputs

    def check_end(self) -> None:
        """The model has ended its reply here. Raises `StageFailure("bad_call", …)` where it must not."""
        if not self.is_whole and (self.has_begun or self._must_call):
            raise StageFailure("bad_call", "the model has ended its reply before its call was whole")

    def _check_opening(self) -> None:
        if not any(opening.startswith(self._pending) for opening in self._openings):
            raise StageFailure("bad_call", "the model has written what is neither speech nor a call")
