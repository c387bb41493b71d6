"""The scripted server does what its script says, frame by frame."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.loadtest.fake_realtime_server import (
    Event,
    FakeConversation,
    FakeRealtimeServer,
    ReplyScript,
    Script,
    Vanish,
    serving,
)
from tests.loadtest.link import tone

LOUD_FRAME = tone(20)
SILENT_FRAME = bytes(960)


def append(pcm: bytes) -> Event:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm).decode()}


def feed(server: FakeConversation, loud: int, silent: int) -> list[Event]:
    frames = [LOUD_FRAME] * loud + [SILENT_FRAME] * silent
    return [event for frame in frames for event in server.on_message(append(frame))]


def kinds(events: list[Event]) -> list[str]:
    return [str(event["type"]).removeprefix("input_audio_buffer.").removeprefix("response.") for event in events]


def test_a_turn_is_heard_answered_and_drained() -> None:
    server = FakeConversation(Script((ReplyScript(chunks=1),)))
    events = feed(server, loud=3, silent=20)

    assert kinds(events) == [
        "speech_started",
        "speech_stopped",
        "committed",
        "conversation.item.input_audio_transcription.completed",
        "created",
        "output_audio.delta",
        "output_audio_transcript.delta",
        "done",
        "drained",
    ]
    assert [event["server_event_seq"] for event in events] == list(range(1, 10))


def test_chunks_come_at_the_pace_of_the_microphone() -> None:
    server = FakeConversation(Script((ReplyScript(chunks=10, lead_chunks=2),)))
    feed(server, loud=1, silent=7)

    deltas = [kinds(server.on_message(append(SILENT_FRAME))).count("output_audio.delta") for _ in range(5)]
    assert deltas == [3, 0, 1, 0, 1]


def test_speech_over_a_reply_cancels_it_at_the_second_loud_frame() -> None:
    server = FakeConversation(Script((ReplyScript(chunks=100, stale_chunks=1),)))
    feed(server, loud=1, silent=12)

    assert "speech_started" not in kinds(feed(server, loud=1, silent=0))
    events = feed(server, loud=1, silent=0)
    assert kinds(events) == ["speech_started", "done", "output_audio.delta", "drained"]
    assert events[1]["response"]["status_details"]["reason"] == "turn_detected"
    assert server.epoch == 2


def test_a_cancel_before_the_first_chunk_names_the_response_first() -> None:
    server = FakeConversation()
    feed(server, loud=1, silent=5)

    assert kinds(server.on_message({"type": "response.cancel"})) == ["created", "done", "drained"]
    assert server.on_message({"type": "response.cancel"}) == []


@pytest.mark.parametrize(
    ("script", "offsets"),
    [
        (ReplyScript(chunks=4), [0, 960, 1_920, 2_880]),
        (ReplyScript(chunks=4, skip_chunk=1), [0, 1_920, 2_880]),
        (ReplyScript(chunks=4, repeat_chunk=1), [0, 960, 960, 1_920, 2_880]),
        (ReplyScript(chunks=4, stall_at_chunk=2), [0, 960]),
        (ReplyScript(mute=True), []),
    ],
)
def test_faults_are_injected_as_scripted(script: ReplyScript, offsets: list[int]) -> None:
    events = feed(FakeConversation(Script((script,))), loud=1, silent=30)
    assert [event["start_sample"] for event in events if "delta" in event and "epoch" in event] == offsets


def test_a_stock_server_has_no_extensions() -> None:
    server = FakeConversation(Script(resume_token=None))
    events = server.greet() + feed(server, loud=1, silent=40)

    assert "resume_token" not in events[0]["session"]
    assert not any("start_sample" in event or event["type"] == "response.drained" for event in events)


def test_it_vanishes_with_its_last_words_numbered() -> None:
    server = FakeConversation(Script((ReplyScript(vanish_at_chunk=0),)))
    with pytest.raises(Vanish) as caught:
        feed(server, loud=1, silent=20)
    assert [event["server_event_seq"] for event in caught.value.events] == [5]


def test_errors_nonsense_and_resumption() -> None:
    failing = FakeConversation(Script((ReplyScript(error_code="engine_down"),)))
    assert feed(failing, loud=1, silent=10)[-1]["error"]["code"] == "engine_down"
    assert feed(FakeConversation(Script((ReplyScript(nonsense=True),))), loud=1, silent=8)[-1].keys() == {
        "type",
        "event_id",
        "server_event_seq",
    }
    resumed = FakeConversation().on_message({"type": "session.resume", "session_id": "s", "token": "t"})
    assert (resumed[0]["type"], resumed[0]["server_event_seq"]) == ("session.resumed", 1_001)


def test_the_shell_serves_a_conversation_over_loopback() -> None:
    async def exchange() -> list[Any]:
        async with serving(server), connect(server.url) as socket:
            await socket.send(json.dumps(append(SILENT_FRAME)))
            await socket.send(json.dumps({"type": "session.update"}))
            return [json.loads(await socket.recv())["type"] for _ in range(3)]

    server = FakeRealtimeServer()
    assert asyncio.run(exchange()) == ["session.created", "conversation.created", "session.updated"]
    assert (server.frames_handled, server.events_sent) == (1, 3)
