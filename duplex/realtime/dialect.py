"""The conversation's events as messages of the Realtime API: one event may become a whole family of them.

Theory of operation
    A response is told by its start, its text, its frames, its calls and its end. The dialect adds the envelopes that
    the API wants around them (output item, content part), keeps for that what it has announced, and numbers every
    message. A response that may call a tool may have no words, and then has no message.

Rules
* Pure: an event in, messages (dicts, ready for JSON) out. One instance per connection.
* An item that was added and is not history when its response is over is deleted, behind the end of that.
* Extra fields go to everybody; extra events only where `extensions` is on.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from duplex.realtime.session_config import session_dict
from media.audio_format import FORMATS
from media.chunk import samples_to_ms, samples_to_ms_above
from media.rtp_map import Position
from sessions import events
from sessions.heard import Cut
from sessions.items import CHARACTERS_MAX, ITEMS_MAX, Item
from sessions.reply import SpokenWord

Message = dict[str, Any]

AUDIO_DELTA = "response.output_audio.delta"

_REASONS = {"cancelled": {"turn_detected", "client_cancelled"}, "incomplete": {"max_output_tokens", "content_filter"}}


class RealtimeDialect:
    """`new_id(prefix)` names messages and content; `extensions` may be switched while the connection lives.

    `sound_in_messages` False: sound travels elsewhere, and the messages say when it starts and ends.
    """

    def __init__(
        self, new_id: Callable[[str], str], *, extensions: bool = False, sound_in_messages: bool = True
    ) -> None:
        self.new_id = new_id
        self.extensions = extensions
        self._sound_in_messages = sound_in_messages
        self._audible: set[str] = set()  # responses of which a frame went out and that have not ended
        self._outputs: dict[str, _Outputs] = {}  # of responses that have not ended
        self.transcription = True
        # The client's id of the command that is being followed: what refuses it names it.
        self.answered: str | None = None
        self.seq = 0  # of the last message that has left

    def stamp(self, message: Message) -> Message:
        """Give `message`, which is the next to leave, its id and its place in the order of this connection."""
        self.seq += 1
        return {**message, "event_id": self.new_id("event"), "server_event_seq": self.seq}

    def encode(self, event: events.Event) -> list[Message]:  # noqa: PLR0911, PLR0912 - the table, one line per event
        """The messages that tell `event`, to be stamped when they leave."""
        match event:
            case events.SpeechStarted(item, ms):
                return [{"type": "input_audio_buffer.speech_started", "item_id": item, "audio_start_ms": ms}]
            case events.TurnHeld() | events.TurnResumed():
                return [_held(event)] if self.extensions else []
            case events.SpeechStopped(item, ms):
                return [{"type": "input_audio_buffer.speech_stopped", "item_id": item, "audio_end_ms": ms}]
            case events.InputCommitted(item, previous):
                return [{"type": "input_audio_buffer.committed", "item_id": item, "previous_item_id": previous}]
            case events.CallerIdle(item, start_ms, end_ms):
                silence = {"item_id": item, "audio_start_ms": start_ms, "audio_end_ms": end_ms}
                return [{"type": "input_audio_buffer.timeout_triggered", **silence}]
            case events.LineRecognised(what, item, answered):
                recognised = {"type": "line.recognised", "what": what, "item_id": item, "answered": answered}
                return [recognised] if self.extensions else []
            case events.InputCleared():
                return [{"type": "input_audio_buffer.cleared"}]
            case events.ItemAdded(item, previous):
                body = {"item": item_dict(item), "previous_item_id": previous}
                return [{"type": "conversation.item.added", **body}, {"type": "conversation.item.done", **body}]
            case events.ItemDeleted(item_id):
                return [{"type": "conversation.item.deleted", "item_id": item_id}]
            case events.HistoryTrimmed():
                return [_trimmed(event)] if self.extensions else []
            case events.ItemRetrieved(item):
                return [{"type": "conversation.item.retrieved", "item": item_dict(item)}]
            case events.ItemTruncated(item_id, ms, cut):
                return [_truncated(item_id, ms, cut)]
            case events.ItemRefined(item_id, cut):
                return [_truncated(item_id, cut.ms, cut)] if self.extensions else []
            case events.CallerText() | events.CallerTextFailed():
                return self._caller_text(event) if self.transcription else []
            case events.ResponseStarted(response):
                self._outputs[response.id] = _Outputs(response)
                return [{"type": "response.created", "response": _response_dict(response, [])}]
            case events.MessageStarted(response_id, item_id, previous):
                return self._message_started(response_id, item_id, previous)
            case events.ReplyText(response_id, item_id, delta, spoken):
                kind = "response.output_audio_transcript.delta" if spoken else "response.output_text.delta"
                return [{"type": kind, **self._place(response_id, item_id), "delta": delta}]
            case events.ReplyWords():
                return self._words(event) if self.extensions else []
            case events.ReplyAudio(item_id, _, frame):
                place = self._place(frame.response, item_id)
                return [_audio(event, place)] if self._sound_in_messages else self._sound_started(frame.response)
            case events.CallStarted() | events.CallArguments() | events.CallFinished():
                return self._call(event)
            case events.CallUnknown():
                return [_unknown(event)] if self.extensions else []
            case events.ResponseFinished(response):
                return [*self._finished(event), *self._sound_ended(response)]
            case events.ResponseLost(response_id):
                return [_lost(response_id)]
            case events.ResponseDrained():
                return [_drained(event)] if self.extensions else []
            case events.DurabilitySuspended():
                return [{"type": "session.durability.suspended"}] if self.extensions else []
            case events.DurabilityRestored():
                return [{"type": "session.durability.restored"}] if self.extensions else []
            case events.SettingsChanged(session, settings, tools):
                self.transcription = settings.transcription
                return [{"type": "session.updated", "session": session_dict(session, settings, tools)}]
            case events.CommandRefused(code, message, param):
                return [error_message(code, message, param=param, event_id=self.answered)]

    # ---- responses ---------------------------------------------------------------------------------

    def _message_started(self, response_id: str, item_id: str, previous: str | None) -> list[Message]:
        outputs = self._outputs.get(response_id)
        if outputs is None:
            return []  # who came amid the response knows its message from its end
        response = outputs.view
        added = outputs.added(_reply_item(response, "in_progress"), previous)
        part = {"type": "audio", "transcript": ""} if _with_audio(response) else {"type": "text", "text": ""}
        place = self._place(response_id, item_id)
        return [*added, {"type": "response.content_part.added", **place, "part": part}]

    def _place(self, response_id: str, item_id: str) -> Message:
        outputs = self._outputs.get(response_id)
        index = outputs.index(item_id) if outputs else 0
        return {"response_id": response_id, "item_id": item_id, "output_index": index, "content_index": 0}

    def _words(self, event: events.ReplyWords) -> list[Message]:
        place = self._place(event.response, event.item)
        return [_word(event, place, word) for word in event.words]

    def _call(self, event: events.CallStarted | events.CallArguments | events.CallFinished) -> list[Message]:
        outputs = self._outputs.get(event.response)
        if outputs is None:
            return []  # who came amid the response knows its calls from its end
        if isinstance(event, events.CallStarted):
            return outputs.added(item_dict(event.item), event.previous)
        if isinstance(event, events.CallArguments):
            place = outputs.place_of_call(event.item, event.call_id)
            return [{"type": "response.function_call_arguments.delta", **place, "delta": event.delta}]
        item, messages = event.item, list[Message]()
        if item.status == "completed":  # there are clients that carry out whatever they are told so of
            place = outputs.place_of_call(item.id, item.call_id)
            whole = {"name": item.name, "arguments": item.text}
            messages.append({"type": "response.function_call_arguments.done", **place, **whole})
        return [*messages, *outputs.done(item_dict(item), event.previous)]

    def _finished(self, event: events.ResponseFinished) -> list[Message]:
        response = event.response
        # Whose beginning was not told here, its message was announced where it was.
        told = [response.item, *(call.id for call in response.calls)]
        outputs = self._outputs.pop(response.id, None) or _Outputs(response, told)
        items = {call.id: item_dict(call) for call in response.calls}
        messages: list[Message] = []
        if response.item in outputs.items:
            item = _reply_item(response, "completed" if response.status == "completed" else "incomplete")
            items[response.item] = item
            place = {"response_id": response.id, "item_id": response.item, "content_index": 0}
            place["output_index"] = outputs.index(response.item)
            messages = [*_content_done(response, place), *outputs.done(item, event.previous)]
        body = _response_dict(response, [items[name] for name in outputs.items])
        done = {"type": "response.done", "response": body, "timings": dict(event.timings) or None}
        is_ghost = response.leaves_nothing and response.in_conversation and response.item in outputs.items
        gone = [{"type": "conversation.item.deleted", "item_id": response.item}] if is_ghost else []
        return [*messages, done, *gone]

    def _sound_started(self, response_id: str) -> list[Message]:
        if response_id in self._audible:
            return []
        self._audible.add(response_id)
        return [{"type": "output_audio_buffer.started", "response_id": response_id}]

    def _sound_ended(self, response: events.ResponseView) -> list[Message]:
        """Nothing waits to be played behind the track: its end is the end of its sound."""
        if response.id not in self._audible:
            return []
        self._audible.remove(response.id)
        kind = "cleared" if response.status in ("cancelled", "failed") else "stopped"
        return [{"type": f"output_audio_buffer.{kind}", "response_id": response.id}]

    @staticmethod
    def _caller_text(event: events.CallerText | events.CallerTextFailed) -> list[Message]:
        place = {"item_id": event.item, "content_index": 0}
        kind = "conversation.item.input_audio_transcription"
        if isinstance(event, events.CallerTextFailed):
            error = {"type": "transcription_error", "code": event.code, "message": event.message}
            return [{"type": f"{kind}.failed", **place, "error": error}]
        if event.final:
            return [{"type": f"{kind}.completed", **place, "transcript": event.text}]
        return [{"type": f"{kind}.delta", **place, "delta": event.text}]


@dataclass(slots=True)
class _Outputs:
    """The items of a response that were announced, in their order."""

    view: events.ResponseView
    items: list[str] = field(default_factory=list)

    def index(self, item_id: str) -> int:
        return self.items.index(item_id) if item_id in self.items else 0

    def place_of_call(self, item_id: str, call_id: str) -> Message:
        place = {"response_id": self.view.id, "item_id": item_id, "output_index": self.index(item_id)}
        return {**place, "call_id": call_id}

    def added(self, item: Message, previous: str | None) -> list[Message]:
        self.items.append(item["id"])
        head = {"response_id": self.view.id, "output_index": len(self.items) - 1}
        messages: list[Message] = [{"type": "response.output_item.added", **head, "item": item}]
        if self.view.in_conversation:
            messages.append({"type": "conversation.item.added", "previous_item_id": previous, "item": item})
        return messages

    def done(self, item: Message, previous: str | None) -> list[Message]:
        head = {"response_id": self.view.id, "output_index": self.index(item["id"])}
        messages: list[Message] = [{"type": "response.output_item.done", **head, "item": item}]
        if self.view.in_conversation:
            messages.append({"type": "conversation.item.done", "previous_item_id": previous, "item": item})
        return messages


def error_message(
    code: str,
    message: str,
    *,
    kind: str = "invalid_request_error",
    param: str | None = None,
    event_id: str | None = None,
) -> Message:
    """An `error` event, not yet stamped. `kind` says who must act: invalid_request_error is the client."""
    body = {"type": kind, "code": code, "message": message, "param": param, "event_id": event_id}
    return {"type": "error", "error": body}


def acknowledged_message(place: Position, sample_rate: int) -> Message:
    """How a report of the client was understood, not yet stamped. `sample_rate`: of the response."""
    return {
        "type": "playback.acknowledged",
        "response_id": place.response,
        "played_samples": place.samples,
        "until_sample": place.until,
        "sample_rate": sample_rate,
    }


def item_dict(item: Item) -> Message:
    """An item as the API shows it. `cut` says that a spoken reply was not heard to its end: its transcript is what was
    heard, for `heard_ms` by `heard_basis` and within `heard_error_ms`, and it ends in the midst of `cut_word`."""
    if item.kind != "message":
        return _item_of_call(item)
    if item.role == "user":
        content = {"type": "input_audio", "transcript": item.text or None}
        if not item.spoken:
            content = {"type": "input_text", "text": item.text}
    elif item.role == "system":
        content = {"type": "input_text", "text": item.text}
    else:
        content = _content(item.text, with_audio=item.spoken)
    status = "completed" if item.status == "completed" else item.status
    body = {"id": item.id, "object": "realtime.item", "type": "message", "status": status, "role": item.role}
    known = (item.heard_basis, item.heard_error_samples, item.sample_rate)
    cut = Cut(item.heard_samples, item.text, item.cut_word, *known, unsure=item.unsure)
    return {**body, "content": [content], **(_cut(cut) if item.cut and item.spoken else {})}


def _item_of_call(item: Item) -> Message:
    body = {"id": item.id, "object": "realtime.item", "type": item.kind, "status": item.status, "call_id": item.call_id}
    if item.kind == "function_call":
        return {**body, "name": item.name, "arguments": item.text}
    return {**body, "output": item.text}


def _cut(cut: Cut) -> Message:
    error_ms = samples_to_ms_above(cut.error_samples, cut.sample_rate)
    known = {"heard_ms": cut.ms, "heard_basis": cut.basis, "heard_error_ms": error_ms}
    unsure = {"possibly_heard": cut.possibly_heard} if cut.possibly_heard else {}
    return {"cut": not cut.whole, "cut_word": cut.word, **known, **unsure}


def _truncated(item_id: str, ms: int, cut: Cut | None) -> Message:
    body = {"type": "conversation.item.truncated", "item_id": item_id, "content_index": 0, "audio_end_ms": ms}
    return body if cut is None else {**body, "transcript": cut.text, **_cut(cut)}


def _content(text: str, *, with_audio: bool) -> Message:
    if with_audio:
        return {"type": "output_audio", "transcript": text}
    return {"type": "output_text", "text": text}


def _with_audio(response: events.ResponseView) -> bool:
    return "audio" in response.modalities


def _reply_item(response: events.ResponseView, status: str) -> Message:
    content = [_content(response.text, with_audio=_with_audio(response))] if status != "in_progress" else []
    return {
        "id": response.item,
        "object": "realtime.item",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
        **(_cut(response.cut) if response.cut else {}),
    }


def _response_dict(response: events.ResponseView, output: list[Message]) -> Message:
    return {
        "id": response.id,
        "object": "realtime.response",
        "status": response.status,
        "status_details": _status_details(response),
        "output": output,
        "output_modalities": list(response.modalities),
        "conversation_id": "conv" if response.in_conversation else None,
        "metadata": dict(response.metadata) or None,
        "usage": _usage(response.usage) if response.status != "in_progress" else None,
        "epoch": response.epoch,
    }


def _status_details(response: events.ResponseView) -> Message | None:
    if response.status == "failed":
        error = {"type": "server_error", "code": response.code, "message": response.message}
        return {"type": "failed", "error": error}
    if response.reason in _REASONS.get(response.status, ()):
        return {"type": response.status, "reason": response.reason}
    return None


def _usage(usage: events.Usage) -> Message:
    return {
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.output_tokens,
        "input_token_details": {"cached_tokens": usage.cached_tokens},
    }


def _word(event: events.ReplyWords, place: Message, word: SpokenWord) -> Message:
    return {
        "type": "response.audio_timestamp.delta",
        **place,
        "timestamp_type": "word",
        "text": word.text,
        "audio_offset_ms": samples_to_ms(word.start, event.sample_rate),
        "audio_duration_ms": samples_to_ms(word.end - word.start, event.sample_rate),
        "start_sample": word.start,
        "samples": word.end - word.start,
        "sample_rate": event.sample_rate,
    }


def _audio(event: events.ReplyAudio, place: Message) -> Message:
    frame, form = event.frame, FORMATS[event.format]
    return {
        "type": AUDIO_DELTA,
        **place,
        "delta": base64.b64encode(form.encode(frame.pcm)).decode("ascii"),
        "epoch": event.epoch,
        "start_sample": frame.start_sample,
        "samples": frame.samples,
        "sample_rate": form.sample_rate,
        "watermark": event.watermark,
    }


def _content_done(response: events.ResponseView, place: Message) -> list[Message]:
    if _with_audio(response):
        part = {"type": "audio", "transcript": response.text}
        messages: list[Message] = [
            {"type": "response.output_audio.done", **place},
            {"type": "response.output_audio_transcript.done", **place, "transcript": response.text},
        ]
    else:
        part = {"type": "text", "text": response.text}
        messages = [{"type": "response.output_text.done", **place, "text": response.text}]
    return [*messages, {"type": "response.content_part.done", **place, "part": part}]


def _held(event: events.TurnHeld | events.TurnResumed) -> Message:
    if isinstance(event, events.TurnHeld):
        return {"type": "turn.held", "audio_start_ms": event.audio_start_ms}
    return {"type": "turn.resumed", "reason": event.reason}


def _trimmed(event: events.HistoryTrimmed) -> Message:
    limits = {"items_max": ITEMS_MAX, "characters_max": CHARACTERS_MAX}
    return {"type": "conversation.trimmed", "item_ids": list(event.items), **limits}


def _unknown(event: events.CallUnknown) -> Message:
    return {"type": "service_tool.outcome_unknown", "call_id": event.call_id, "name": event.name}


def _lost(response_id: str) -> Message:
    error = {"type": "server_error", "code": "response_lost", "message": "its end went with the connection before"}
    body: Message = {
        "id": response_id,
        "object": "realtime.response",
        "status": "failed",
        "status_details": {"type": "failed", "error": error},
        "output": [],
        "metadata": None,
        "usage": None,
    }
    return {"type": "response.done", "response": body}


def _drained(event: events.ResponseDrained) -> Message:
    return {
        "type": "response.drained",
        "response_id": event.response,
        "status": event.status,
        "lag_ms": event.lag_ms,
        "released": dict(event.released),
    }
