"""Our own sound comes back through the caller's microphone: nothing is interrupted by it, and nobody answers it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from media.audio_format import FormatName
from media.wav import read_wav
from tests.live.caller import RATE, Message, calling
from tests.live.echoing_caller import EchoingCaller
from tests.live.service import Service, serving
from tests.live.test_telephone_sound import SPEECH

pytestmark = [pytest.mark.live, pytest.mark.models, pytest.mark.slow]

GAIN = 0.7
QUESTIONS = ("Tell me something about the sea.", "How do I make a good cup of tea?")
AFTER_MS = 2_000  # an echo of the last words, and the end of the turn that it must not be


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("echo"), {"max_output_tokens": "100"}, engine="local") as running:
        yield running


def reply_to(caller: EchoingCaller, text: str) -> Message:
    """A typed question, its whole reply, and the time in which the echo of its end comes back."""
    caller.type_text(text)
    caller.send("response.create")
    done: Message = caller.until("response.done")["response"]
    caller.until("response.drained")
    caller.listen_for(AFTER_MS)
    return done


@pytest.mark.parametrize(
    ("delay_ms", "format_name"), [(0, "audio/pcm"), (300, "audio/pcm"), (300, "audio/pcmu"), (900, "audio/pcm")]
)
def test_our_echo_interrupts_nothing_and_is_not_answered(
    service: Service, delay_ms: int, format_name: FormatName
) -> None:
    with calling(service) as connected:
        caller = EchoingCaller(connected, GAIN, delay_ms, format_name)
        replies = [reply_to(caller, text) for text in QUESTIONS]
    assert [reply["status_details"] or {} for reply in replies if reply["status"] == "cancelled"] == []
    assert len(caller.of_type("response.created")) == len(QUESTIONS)
    assert caller.of_type("input_audio_buffer.speech_started") == []


def test_a_caller_interrupts_over_our_echo_and_is_understood(service: Service) -> None:
    with calling(service) as connected:
        caller = EchoingCaller(connected, GAIN, 300)
        caller.type_text("Tell me a long story about the sea.")
        caller.send("response.create")
        caller.until("response.output_audio.delta")
        caller.listen_for(2_500)
        caller.say(read_wav(SPEECH / "capital.wav", RATE))
        cut = caller.until("response.done")["response"]
        heard = caller.until("conversation.item.input_audio_transcription.completed")["transcript"]
        answer = caller.until("response.done")["response"]
    assert (cut["status"], cut["status_details"]["reason"]) == ("cancelled", "turn_detected")
    assert "capital of France" in heard
    assert answer["status"] in ("completed", "incomplete")
