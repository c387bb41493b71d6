"""What is told of sound that travels beside the messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from duplex.realtime.dialect import RealtimeDialect
from media.playout import Frame
from sessions.events import ReplyAudio, ResponseFinished, ResponseView

VIEW = ResponseView("resp_1", "item_1", 0, ("audio",), in_conversation=True, metadata=())


def dialect() -> RealtimeDialect:
    return RealtimeDialect(lambda prefix: f"{prefix}_1", sound_in_messages=False)


def audio(start: int) -> ReplyAudio:
    return ReplyAudio("item_1", 0, Frame("resp_1", start, bytes(960), final=False), start + 480)


def types(told: list[dict[str, object]]) -> list[object]:
    return [message["type"] for message in told if str(message["type"]).startswith("output_audio_buffer")]


def test_a_replys_sound_starts_once_and_no_frame_of_it_is_a_message() -> None:
    teller = dialect()
    (started,) = teller.encode(audio(0))
    assert started["type"] == "output_audio_buffer.started"
    assert started["response_id"] == "resp_1"
    assert teller.encode(audio(480)) == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [("completed", "stopped"), ("incomplete", "stopped"), ("cancelled", "cleared"), ("failed", "cleared")],
)
def test_it_ends_with_the_response(status: str, kind: str) -> None:
    teller = dialect()
    teller.encode(audio(0))
    told = teller.encode(ResponseFinished(replace(VIEW, status=status)))
    assert told[-2]["type"] == "response.done"
    assert told[-1]["type"] == f"output_audio_buffer.{kind}"
    assert types(teller.encode(audio(0))) == ["output_audio_buffer.started"]


def test_what_was_never_heard_does_not_end() -> None:
    assert types(dialect().encode(ResponseFinished(replace(VIEW, status="cancelled")))) == []


def test_where_sound_is_in_the_messages_nothing_is_told_of_it() -> None:
    teller = RealtimeDialect(lambda prefix: f"{prefix}_1")
    assert [message["type"] for message in teller.encode(audio(0))] == ["response.output_audio.delta"]
    assert types(teller.encode(ResponseFinished(replace(VIEW, status="completed")))) == []
