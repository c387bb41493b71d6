"""Session settings to and from the wire, and the checks of what a client sets.

Limits follow the Realtime API; what this service cannot do is refused by name instead of being ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET

from duplex.realtime.client_events import (
    AudioFormat,
    AudioPatch,
    ClientEventError,
    ItemBody,
    ResponseBody,
    SessionPatch,
    TurnDetectionPatch,
)
from duplex.realtime.tool_config import check_choice, check_name, choice_of, choice_value, tools_list, tools_of
from media.audio_format import FORMATS, FormatName
from sessions.items import Item, Role
from sessions.prompt import PROMPT_CHARACTERS_MAX
from sessions.settings import Modality, ResponseSpec, SessionSettings, TurnDetection
from sessions.tool_calls import call_item, output_item
from stages.contracts import CALL_CHARACTERS_MAX, Tool

INSTRUCTIONS_CHARACTERS_MAX = 16_384
TEXT_CHARACTERS_MAX = 16_384
OUTPUT_TOKENS_MAX = 4_096
SPEED_MIN, SPEED_MAX = 0.25, 1.5
SILENCE_MS_MIN, SILENCE_MS_MAX = 100, 10_000
PADDING_MS_MAX = 2_000
IDLE_MS_MIN, IDLE_MS_MAX = 5_000, 30_000
METADATA_PAIRS_MAX = 16
METADATA_KEY_CHARACTERS_MAX, METADATA_VALUE_CHARACTERS_MAX = 64, 512
INPUT_CHARACTERS_MAX = PROMPT_CHARACTERS_MAX
USUAL_VOICE = "default"  # what is shown where none was asked for
USUAL_FORMAT: FormatName = "audio/pcm"
FORMATS_KNOWN = ", ".join(f"{known.name} at {known.sample_rate} Hz" for known in FORMATS.values())
NAME_CHARACTERS_MAX = 128  # ids of items, names of models and voices
CALL_ID_CHARACTERS_MAX = 64
# What the API has for one kind of turn detection alone.
_KIND_OF = {
    "threshold": "server_vad",
    "prefix_padding_ms": "server_vad",
    "silence_duration_ms": "server_vad",
    "idle_timeout_ms": "server_vad",
    "eagerness": "semantic_vad",
}


def apply_patch(settings: SessionSettings, patch: SessionPatch, served: Sequence[Tool] = ()) -> SessionSettings:
    """`settings` as `patch` changes them; raises `ClientEventError` and changes nothing where a value is wrong.
    `served`: the tools of the service."""
    if patch.model is not UNSET:
        _check_length(patch.model, NAME_CHARACTERS_MAX, "session.model")
        settings = replace(settings, model=patch.model)
    if patch.instructions is not UNSET:
        _check_length(patch.instructions, INSTRUCTIONS_CHARACTERS_MAX, "session.instructions")
        settings = replace(settings, instructions=patch.instructions)
    if patch.output_modalities is not UNSET:
        settings = replace(settings, modalities=_modalities(patch.output_modalities, "session.output_modalities"))
    if patch.max_output_tokens is not UNSET:
        limit = _token_limit(patch.max_output_tokens, "session.max_output_tokens")
        settings = replace(settings, max_output_tokens=limit)
    if patch.temperature is not UNSET:
        settings = replace(settings, temperature=_between(patch.temperature, 0.0, 2.0, "session.temperature"))
    settings = _apply_tools(settings, patch, served)
    return _apply_audio(settings, patch.audio) if patch.audio is not UNSET else settings


def _apply_tools(settings: SessionSettings, patch: SessionPatch, served: Sequence[Tool]) -> SessionSettings:
    if patch.tools is not UNSET:
        settings = replace(settings, tools=tools_of(patch.tools, "session.tools", served))
    if patch.tool_choice is not UNSET:
        settings = replace(settings, tool_choice=choice_of(patch.tool_choice, "session.tool_choice"))
    check_choice(settings.tool_choice, (*served, *settings.tools), "session.tool_choice")
    return settings


def _apply_audio(settings: SessionSettings, patch: AudioPatch) -> SessionSettings:
    if patch.input is not UNSET:
        if patch.input.format is not UNSET:
            name = _format(patch.input.format, "session.audio.input.format")
            settings = replace(settings, input_format=name)
        if patch.input.transcription is not UNSET:
            settings = replace(settings, transcription=patch.input.transcription is not None)
        if patch.input.turn_detection is not UNSET:
            detection = patch.input.turn_detection
            settings = replace(settings, turn_detection=None if detection is None else _detection(settings, detection))
    if patch.output is not UNSET:
        if patch.output.format is not UNSET:
            name = _format(patch.output.format, "session.audio.output.format")
            settings = replace(settings, output_format=name)
        if patch.output.speed is not UNSET:
            speed = _between(patch.output.speed, SPEED_MIN, SPEED_MAX, "session.audio.output.speed")
            settings = replace(settings, speed=speed)
        if patch.output.voice is not UNSET:
            settings = replace(settings, voice=_voice(patch.output.voice, "session.audio.output.voice"))
    return settings


def _voice(asked: str | dict[str, Any], param: str) -> str:
    """Clients name voices of other services as a matter of course: a name that nobody here has is no fault."""
    if not isinstance(asked, str):
        raise ClientEventError("unsupported_voice", "voices are chosen by name", param)
    _check_length(asked, NAME_CHARACTERS_MAX, param)
    return "" if asked == USUAL_VOICE else asked


def _detection(settings: SessionSettings, patch: TurnDetectionPatch) -> TurnDetection:
    """Absent fields keep what was set before for the same kind, or take their default."""
    before = settings.turn_detection
    base = before if before is not None and before.kind == patch.type else TurnDetection(kind=patch.type)
    changes: dict[str, Any] = {
        name: value
        for name in ("eagerness", "create_response", "interrupt_response")
        if (value := getattr(patch, name)) is not None
    }
    path = "session.audio.input.turn_detection"
    _check_kind(patch, path)
    if patch.threshold is not None:
        changes["threshold"] = _between(patch.threshold, 0.0, 1.0, f"{path}.threshold")
    if patch.prefix_padding_ms is not None:
        _between(patch.prefix_padding_ms, 0, PADDING_MS_MAX, f"{path}.prefix_padding_ms")
        changes["prefix_padding_ms"] = patch.prefix_padding_ms
    if patch.silence_duration_ms is not None:
        _between(patch.silence_duration_ms, SILENCE_MS_MIN, SILENCE_MS_MAX, f"{path}.silence_duration_ms")
        changes["silence_duration_ms"] = patch.silence_duration_ms
    if patch.idle_timeout_ms is not UNSET:
        timeout = patch.idle_timeout_ms
        if timeout is not None:
            _between(timeout, IDLE_MS_MIN, IDLE_MS_MAX, f"{path}.idle_timeout_ms")
        changes["idle_timeout_ms"] = timeout
    return replace(base, **changes)


def _check_kind(patch: TurnDetectionPatch, path: str) -> None:
    """A field of another kind of detection is refused; null there says nothing."""
    for name, kind in _KIND_OF.items():
        if kind != patch.type and getattr(patch, name) not in (None, UNSET):
            raise ClientEventError("invalid_value", f"only {kind} has {name}", f"{path}.{name}")


def response_spec(body: ResponseBody, settings: SessionSettings, served: Sequence[Tool] = ()) -> ResponseSpec:
    """What `response.create` asks for in a session with these `settings`, of a service that has the tools `served`;
    raises `ClientEventError`."""
    if body.instructions is not None:
        _check_length(body.instructions, INSTRUCTIONS_CHARACTERS_MAX, "response.instructions")
    tools = None if body.tools is None else tools_of(body.tools, "response.tools", served)
    choice = None if body.tool_choice is None else choice_of(body.tool_choice, "response.tool_choice")
    # Out of band the service's own cannot be called; a session's choice of one is then none.
    of_service = served if choice is None or body.conversation == "auto" else ()
    usable = (*of_service, *(settings.tools if tools is None else tools))
    check_choice(choice or settings.tool_choice, usable, "response.tool_choice")
    metadata = tuple((body.metadata or {}).items())
    _check_metadata(metadata, "response.metadata")
    messages = None
    if body.input is not None:
        messages = tuple(_role_and_text(item, "response.input") for item in body.input)
        _check_length("".join(text for _, text in messages), INPUT_CHARACTERS_MAX, "response.input")
    limit = body.max_output_tokens
    return ResponseSpec(
        instructions=body.instructions,
        modalities=_modalities(body.output_modalities, "response.output_modalities")
        if body.output_modalities
        else None,
        max_output_tokens=None if limit is None else _token_limit(limit, "response.max_output_tokens"),
        temperature=None if body.temperature is None else _between(body.temperature, 0.0, 2.0, "response.temperature"),
        in_conversation=body.conversation == "auto",
        messages=messages,
        metadata=metadata,
        tools=tools,
        tool_choice=choice,
    )


def _check_metadata(pairs: tuple[tuple[str, str], ...], param: str) -> None:
    if len(pairs) > METADATA_PAIRS_MAX:
        raise ClientEventError("invalid_value", f"at most {METADATA_PAIRS_MAX} metadata pairs", param)
    for key, value in pairs:
        _check_length(key, METADATA_KEY_CHARACTERS_MAX, param)
        _check_length(value, METADATA_VALUE_CHARACTERS_MAX, param)


def item_of(body: ItemBody, new_id: str) -> Item:
    """The item in `conversation.item.create`: typed, or of a call; raises `ClientEventError`."""
    _check_length(body.id or "", NAME_CHARACTERS_MAX, "item.id")
    if body.type in ("function_call", "function_call_output"):
        return _item_of_call(body, body.id or new_id)
    role, text = _role_and_text(body, "item")
    return Item(body.id or new_id, role, text, spoken=False)


def _item_of_call(body: ItemBody, item_id: str) -> Item:
    if not body.call_id:
        raise ClientEventError("missing_value", "whose call is it?", "item.call_id")
    _check_length(body.call_id, CALL_ID_CHARACTERS_MAX, "item.call_id")
    if body.type == "function_call_output":
        if body.output is None:
            raise ClientEventError("missing_value", "what came of the call?", "item.output")
        _check_length(body.output, TEXT_CHARACTERS_MAX, "item.output")
        return output_item(item_id, body.call_id, body.output)
    check_name(body.name or "", "item.name")
    arguments = body.arguments or "{}"
    _check_length(arguments, CALL_CHARACTERS_MAX, "item.arguments")
    try:
        msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ClientEventError("invalid_value", "arguments are a JSON object, as text", "item.arguments") from error
    return call_item(item_id, body.call_id, body.name or "", arguments)


def _role_and_text(body: ItemBody, path: str) -> tuple[Role, str]:
    if body.type != "message" or body.role is None:
        raise ClientEventError("unsupported_item", f"items of type {body.type!r} are not supported", f"{path}.type")
    texts = []
    for part in body.content:
        text = part.text if part.text is not None else part.transcript
        if text is None:
            raise ClientEventError(
                "unsupported_content", f"content of type {part.type!r} needs a text or transcript", f"{path}.content"
            )
        texts.append(text)
    joined = "\n".join(texts).strip()
    if not joined:
        raise ClientEventError("invalid_value", "the item has no text", f"{path}.content")
    _check_length(joined, TEXT_CHARACTERS_MAX, f"{path}.content")
    return body.role, joined


def _modalities(asked: list[Any], param: str) -> tuple[Modality, ...]:
    if len(asked) != 1:
        raise ClientEventError("invalid_value", 'exactly one of "audio" (which includes its transcript), "text"', param)
    return tuple(asked)


def _token_limit(asked: int | str, param: str) -> int | None:
    if isinstance(asked, str):
        return None
    return int(_between(asked, 1, OUTPUT_TOKENS_MAX, param))


def _between(value: float, low: float, high: float, param: str) -> float:
    if not low <= value <= high:
        raise ClientEventError("invalid_value", f"{value} is not between {low} and {high}", param)
    return value


def _check_length(text: str, limit: int, param: str) -> None:
    if len(text) > limit:
        raise ClientEventError("string_above_max_length", f"{len(text)} characters, {limit} are allowed", param)


def _format(asked: AudioFormat, param: str) -> FormatName:
    for known in FORMATS.values():
        if asked.type == known.name and asked.rate in (None, known.sample_rate):
            return known.name
    rate = "" if asked.rate is None else f" at {asked.rate} Hz"
    raise ClientEventError("unsupported_format", f"{asked.type[:80]}{rate}: there is {FORMATS_KNOWN}", param)


def check_medium(settings: SessionSettings) -> None:
    """Sound travels beside the messages, as Opus: raises `ClientEventError` where another format was asked for."""
    for way, name in (("input", settings.input_format), ("output", settings.output_format)):
        if name != USUAL_FORMAT:
            message = f"{name}: the sound of this connection is Opus, on its track; only {USUAL_FORMAT} can be named"
            raise ClientEventError("unsupported_format", message, f"session.audio.{way}.format")


def check_line(settings: SessionSettings, wanted: SessionSettings) -> None:
    """Sound travels by a connection that has formats of its own: raises `ClientEventError` where it is to change."""
    for way, name, asked in (
        ("input", settings.input_format, wanted.input_format),
        ("output", settings.output_format, wanted.output_format),
    ):
        if name != asked:
            message = f"{way}: the sound of this call is its line's, and cannot be changed"
            raise ClientEventError("unsupported_format", message, f"session.audio.{way}.format")


def _format_dict(name: FormatName) -> dict[str, Any]:
    """As the API shows it: only PCM has a rate, the others are of telephones."""
    known = FORMATS[name]
    return {"type": name} if known.is_telephone else {"type": name, "rate": known.sample_rate}


def session_dict(session: str, settings: SessionSettings, served: Sequence[Tool] = ()) -> dict[str, Any]:
    """The session as `session.created` and `session.updated` show it. `served`: the tools of the service."""
    names = {"service_tools": [tool.name for tool in served]} if served else {}
    return {
        **names,
        "type": "realtime",
        "object": "realtime.session",
        "id": session,
        "model": settings.model,
        "instructions": settings.instructions,
        "output_modalities": list(settings.modalities),
        "audio": {
            "input": {
                "format": _format_dict(settings.input_format),
                "transcription": {"model": "default"} if settings.transcription else None,
                "noise_reduction": None,
                "turn_detection": _detection_dict(settings.turn_detection),
            },
            "output": {
                "format": _format_dict(settings.output_format),
                "voice": settings.voice or USUAL_VOICE,
                "speed": settings.speed,
            },
        },
        "tools": tools_list(settings.tools),
        "tool_choice": choice_value(settings.tool_choice),
        "max_output_tokens": "inf" if settings.max_output_tokens is None else settings.max_output_tokens,
    }


def _detection_dict(detection: TurnDetection | None) -> dict[str, Any] | None:
    if detection is None:
        return None
    common = {"create_response": detection.create_response, "interrupt_response": detection.interrupt_response}
    if detection.kind == "semantic_vad":
        return {"type": "semantic_vad", "eagerness": detection.eagerness, **common}
    return {
        "type": "server_vad",
        "threshold": detection.threshold,
        "prefix_padding_ms": detection.prefix_padding_ms,
        "silence_duration_ms": detection.silence_duration_ms,
        "idle_timeout_ms": detection.idle_timeout_ms,
        **common,
    }
