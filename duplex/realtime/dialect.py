"""The conversation's events as messages of the Realtime API: one event may become a whole family of them.

Theory of operation
    A response is told by its start, its text, its frames and its end. The dialect adds the envelopes that the API
    wants around them (output item, content part), keeps for that what it has announced, and numbers every message.

Rules
* Pure: an event in, messages (dicts, ready for JSON) out. One instance per connection.
* Extra fields go to everybody; extra events only where `extensions` is on.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from media.audio_format import FORMATS
from media.chunk import samples_to_ms, samples_to_ms_above
from media.rtp_map import Position
from sessions import events
from sessions.heard import Cut
from sessions.items import Item
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
        self.transcription = True
        # The client's id of the command that is being followed: what refuses it names it.
        self.answered: str | None = None
        self._seq = 0

    def stamp(self, message: Message) -> Message:
        """Give `message`, which is the next to leave, its id and its place in the order of this connection."""
        self._seq += 1
        return {**message, "event_id": self.new_id("event"), "server_event_seq": self._seq}

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
            case events.InputCleared():
                return [{"type": "input_audio_buffer.cleared"}]
            case events.ItemAdded(item, previous):
                body = {"item": item_dict(item), "previous_item_id": previous}
                return [{"type": "conversation.item.added", **body}, {"type": "conversation.item.done", **body}]
            case events.ItemDeleted(item_id):
                return [{"type": "conversation.item.deleted", "item_id": item_id}]
            case events.ItemRetrieved(item):
                return [{"type": "conversation.item.retrieved", "item": item_dict(item)}]
            case events.ItemTruncated(item_id, ms, cut):
                return [_truncated(item_id, ms, cut)]
            case events.ItemRefined(item_id, cut):
                return [_truncated(item_id, cut.ms, cut)] if self.extensions else []
            case events.CallerText() | events.CallerTextFailed():
                return self._caller_text(event) if self.transcription else []
            case events.ResponseStarted(response, previous):
                return _started(response, previous)
            case events.ReplyText(response_id, item_id, delta, spoken):
                kind = "response.output_audio_transcript.delta" if spoken else "response.output_text.delta"
                return [{"type": kind, **_place(response_id, item_id), "delta": delta}]
            case events.ReplyWords():
                return [_word(event, word) for word in event.words] if self.extensions else []
            case events.ReplyAudio():
                return [_audio(event)] if self._sound_in_messages else self._sound_started(event.frame.response)
            case events.ResponseFinished(response, timings):
                return [*_finished(response, timings), *self._sound_ended(response)]
            case events.ResponseLost(response_id):
                return [_lost(response_id)]
            case events.ResponseDrained():
                return [_drained(event)] if self.extensions else []
            case events.CommandRefused(code, message, param):
                return [error_message(code, message, param=param, event_id=self.answered)]

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
    cut = Cut(item.heard_samples, item.text, item.cut_word, *known)
    return {**body, "content": [content], **(_cut(cut) if item.cut else {})}


def _cut(cut: Cut) -> Message:
    error_ms = samples_to_ms_above(cut.error_samples, cut.sample_rate)
    known = {"heard_ms": cut.ms, "heard_basis": cut.basis, "heard_error_ms": error_ms}
    return {"cut": True, "cut_word": cut.word, **known}


def _truncated(item_id: str, ms: int, cut: Cut | None) -> Message:
    body = {"type": "conversation.item.truncated", "item_id": item_id, "content_index": 0, "audio_end_ms": ms}
    return body if cut is None else {**body, "transcript": cut.text, **_cut(cut)}


def _content(text: str, *, with_audio: bool) -> Message:
    if with_audio:
        return {"type": "output_audio", "transcript": text}
    return {"type": "output_text", "text": text}


def _place(response_id: str, item_id: str) -> Message:
    return {"response_id": response_id, "item_id": item_id, "output_index": 0, "content_index": 0}


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


def _started(response: events.ResponseView, previous: str | None) -> list[Message]:
    item = _reply_item(response, "in_progress")
    head = {"response_id": response.id, "output_index": 0}
    messages: list[Message] = [
        {"type": "response.created", "response": _response_dict(response, [])},
        {"type": "response.output_item.added", **head, "item": item},
    ]
    if response.in_conversation:
        messages.append({"type": "conversation.item.added", "previous_item_id": previous, "item": item})
    part = {"type": "audio", "transcript": ""} if _with_audio(response) else {"type": "text", "text": ""}
    messages.append({"type": "response.content_part.added", **_place(response.id, response.item), "part": part})
    return messages


def _word(event: events.ReplyWords, word: SpokenWord) -> Message:
    return {
        "type": "response.audio_timestamp.delta",
        **_place(event.response, event.item),
        "timestamp_type": "word",
        "text": word.text,
        "audio_offset_ms": samples_to_ms(word.start, event.sample_rate),
        "audio_duration_ms": samples_to_ms(word.end - word.start, event.sample_rate),
        "start_sample": word.start,
        "samples": word.end - word.start,
        "sample_rate": event.sample_rate,
    }


def _audio(event: events.ReplyAudio) -> Message:
    frame, form = event.frame, FORMATS[event.format]
    return {
        "type": AUDIO_DELTA,
        **_place(frame.response, event.item),
        "delta": base64.b64encode(form.encode(frame.pcm)).decode("ascii"),
        "epoch": event.epoch,
        "start_sample": frame.start_sample,
        "samples": frame.samples,
        "sample_rate": form.sample_rate,
        "watermark": event.watermark,
    }


def _finished(response: events.ResponseView, timings: tuple[tuple[str, float], ...]) -> list[Message]:
    place = _place(response.id, response.item)
    item = _reply_item(response, "completed" if response.status == "completed" else "incomplete")
    if _with_audio(response):
        part = {"type": "audio", "transcript": response.text}
        messages: list[Message] = [
            {"type": "response.output_audio.done", **place},
            {"type": "response.output_audio_transcript.done", **place, "transcript": response.text},
        ]
    else:
        part = {"type": "text", "text": response.text}
        messages = [{"type": "response.output_text.done", **place, "text": response.text}]
    messages += [
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "response_id": response.id, "output_index": 0, "item": item},
    ]
    if response.in_conversation:
        messages.append({"type": "conversation.item.done", "item": item})
    body = _response_dict(response, [item])
    return [*messages, {"type": "response.done", "response": body, "timings": dict(timings) or None}]


def _held(event: events.TurnHeld | events.TurnResumed) -> Message:
    if isinstance(event, events.TurnHeld):
        return {"type": "turn.held", "audio_start_ms": event.audio_start_ms}
    return {"type": "turn.resumed", "reason": event.reason}


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
