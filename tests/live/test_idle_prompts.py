"""A caller who says nothing after a reply is prompted, by the real service and in real time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.caller import Caller, Message, calling, silence, utterance
from tests.live.service import Service, serving
from tests.live.test_barge_in import AUDIO, done_of

pytestmark = [pytest.mark.live, pytest.mark.slow]

REPLY = "Yes indeed."
IDLE_MS = 5_000  # the least that may be asked for


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"scripted_heard": "good morning", "scripted_replies": REPLY}
    with serving(tmp_path_factory.mktemp("idle"), settings) as running:
        yield running


def prompted(caller: Caller) -> Message:
    """Wait for the prompt; gives its response."""
    caller.until("input_audio_buffer.timeout_triggered")
    response: Message = caller.until("response.created")["response"]
    return response


def test_a_silent_caller_is_prompted_and_answered_when_they_speak(service: Service) -> None:
    with calling(service) as caller:
        caller.settle(audio={"input": {"turn_detection": {"type": "server_vad", "idle_timeout_ms": IDLE_MS}}})
        caller.hear(utterance())
        first = caller.until("response.created")["response"]["id"]
        done_of(caller, first)
        caller.hear(silence(1_000))
        before = len(caller.events)
        prompt = prompted(caller)
        done = done_of(caller, prompt["id"])
        caller.hear(utterance())
        answer = caller.until("response.created")["response"]["id"]
        caller.send("response.cancel")
        done_of(caller, answer)
    events = [event for event in caller.events[before:] if event["type"] != "response.drained"]
    timeout, committed, added = events[0], events[1], events[2]
    assert [event["type"] for event in (committed, added)] == [
        "input_audio_buffer.committed",
        "conversation.item.added",
    ]
    assert timeout["item_id"] == committed["item_id"] == added["item"]["id"]
    assert added["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    sent_ms = 300 + 500 + 800 + 1_000
    assert timeout["audio_start_ms"] == 0
    assert sent_ms - 10 <= timeout["audio_end_ms"] <= sent_ms, "no more was sent, and a little is being resampled"
    assert done["status"] == "completed"
    assert done["output"][0]["content"][0]["transcript"] == REPLY
    assert [event for event in events if event["type"] == AUDIO and event["response_id"] == prompt["id"]]
    transcripts = [e for e in events if "input_audio_transcription" in e["type"] and e["item_id"] == timeout["item_id"]]
    assert transcripts == [], "silence is not listened to"
