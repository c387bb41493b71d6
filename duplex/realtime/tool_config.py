"""Tools and what becomes of calls, to and from the wire, and the checks of what a client sets.

Rules
* Every refusal names the field. What this service cannot offer, such as tools of other types, is refused by name.
* The service's own tools, `served`, come first: their names are taken, and their size counts.
* All tools together are small: they stand in every prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from duplex.realtime.client_events import ClientEventError, FunctionBody, NamedChoice
from stages.contracts import Tool, ToolChoice

TOOLS_MAX = 64
# Beside instructions and history they must fit the one frame in which a prompt crosses a link.
TOOLS_BYTES_MAX = 32_768
DESCRIPTION_CHARACTERS_MAX = 2_048
SCHEMA_DEPTH_MAX = 16  # of lists and objects: five levels of properties
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def tools_of(bodies: Sequence[FunctionBody], param: str, served: Sequence[Tool] = ()) -> tuple[Tool, ...]:
    """The tools that a client offers; raises `ClientEventError`."""
    if len(bodies) + len(served) > TOOLS_MAX:
        message = f"{len(bodies)} tools, {TOOLS_MAX - len(served)} are allowed"
        raise ClientEventError("too_many_tools", message, param)
    tools = tuple(_tool_of(body, f"{param}[{at}]") for at, body in enumerate(bodies))
    for at, tool in enumerate(tools):
        if any(tool.name == other.name for other in tools[:at]):
            raise ClientEventError("duplicate_tool", f"{tool.name!r} is there twice", f"{param}[{at}].name")
        if any(tool.name == other.name for other in served):
            raise ClientEventError("tool_name_taken", f"the service has a tool {tool.name!r}", f"{param}[{at}].name")
    size, left = _bytes(tools), TOOLS_BYTES_MAX - _bytes(served)
    if size > left:
        message = f"{size} bytes of names, descriptions and schemas, {left} are allowed"
        raise ClientEventError("tools_too_large", message, param)
    return tools


def _bytes(tools: Sequence[Tool]) -> int:
    return sum(len(f"{tool.name}{tool.description}{tool.parameters}".encode()) for tool in tools)


def _tool_of(body: FunctionBody, param: str) -> Tool:
    if body.type != "function":
        raise ClientEventError(
            "unsupported_tool", f"tools of type {body.type[:80]!r} are not supported", f"{param}.type"
        )
    check_name(body.name, f"{param}.name")
    if len(body.description or "") > DESCRIPTION_CHARACTERS_MAX:
        message = f"{len(body.description or '')} characters, {DESCRIPTION_CHARACTERS_MAX} are allowed"
        raise ClientEventError("string_above_max_length", message, f"{param}.description")
    schema = body.parameters or {}
    if schema.get("type", "object") != "object":
        raise ClientEventError("invalid_schema", "arguments are an object", f"{param}.parameters.type")
    if _is_deeper(schema, SCHEMA_DEPTH_MAX):
        message = f"more than {SCHEMA_DEPTH_MAX} lists and objects in each other"
        raise ClientEventError("schema_too_deep", message, f"{param}.parameters")
    return Tool(body.name, body.description or "", msgspec.json.encode(schema).decode())


def check_name(name: str, param: str) -> None:
    """Raises `ClientEventError` for what is no name of a function."""
    if not NAME.fullmatch(name):
        raise ClientEventError("invalid_tool_name", "1 to 64 of A-Z, a-z, 0-9, _ and -", param)


def _is_deeper(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in inner)


def choice_of(body: str | NamedChoice, param: str) -> ToolChoice:
    """What a client wants to become of its tools; raises `ClientEventError`."""
    if isinstance(body, NamedChoice):
        if body.type != "function":
            raise ClientEventError("unsupported_tool", "only functions can be chosen by name", f"{param}.type")
        check_name(body.name, f"{param}.name")
        return ToolChoice("required", body.name)
    match body:
        case "auto" | "none" | "required":
            return ToolChoice(body)
    raise ClientEventError("invalid_value", '"auto", "none", "required", or a function by its name', param)


def check_choice(choice: ToolChoice, tools: Sequence[Tool], param: str) -> None:
    """Raises `ClientEventError` where `choice` is of none of `tools`."""
    if choice.name and all(tool.name != choice.name for tool in tools):
        raise ClientEventError("unknown_tool", f"there is no tool {choice.name!r}", param)


def tools_list(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as a session shows them."""
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": msgspec.json.decode(tool.parameters),
        }
        for tool in tools
    ]


def choice_value(choice: ToolChoice) -> str | dict[str, str]:
    """What becomes of tools, as a session shows it."""
    return {"type": "function", "name": choice.name} if choice.name else choice.mode
