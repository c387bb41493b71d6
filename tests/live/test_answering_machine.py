"""A machine answers over a telephone: its greeting, its beep, our message, and the end of the call; real processes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.speech import utterance
from loadtest.line import Line
from media.pcm import float_to_pcm16
from tests.live.caller import RATE, Caller, calling, silence, tone
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

GREETING = "Hi, this is Bob. Please leave a message after the tone."
MESSAGE = "Please call us back."


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {"scripted_heard": GREETING, "answering_machine": "leave_message", "machine_message": MESSAGE}
    with serving(tmp_path_factory.mktemp("machine"), settings) as running:
        yield running


def beep(ms: int = 500) -> bytes:
    """Too soft to be a voice for the scripted ear."""
    places = np.arange(ms * RATE // 1_000) / RATE
    return float_to_pcm16((0.04 * np.sin(2 * np.pi * 1_000 * places)).astype(np.float32))


def hear(caller: Caller, pcm: bytes) -> None:
    """24 kHz, as mu-law."""
    coded = Line("audio/pcmu").said(pcm).audio
    caller.send("input_audio_buffer.append", audio=base64.b64encode(coded).decode())


def assert_message_left(service: Service, call: bytes) -> None:
    """The machine that sounds as `call` is left the message, and nothing else is said."""
    with calling(service) as caller:
        caller.settle(audio={way: {"format": {"type": "audio/pcmu"}} for way in ("input", "output")})
        hear(caller, call)
        done = caller.find(lambda event: event["type"] == "response.done")["response"]
        ended = caller.until_closed()
        recognised = {event["what"] for event in caller.of_type("line.recognised")}
    assert done["status"] == "completed"
    assert done["output"][0]["content"][0]["transcript"] == MESSAGE
    assert recognised == {"answering_machine", "beep"}
    assert ended == (1000, "answering_machine")
    assert len(caller.of_type("response.created")) == 1


def test_a_message_is_left_after_the_beep_and_the_call_ends(service: Service) -> None:
    assert_message_left(service, silence(300) + tone(1_500) + silence(200) + beep() + silence(1_200))


@pytest.mark.models
def test_a_real_greeting_and_its_beep_are_understood_over_mu_law(tmp_path: Path) -> None:
    greeting = utterance("You have reached the mailbox of Bob. Please leave a message after the tone.").pcm
    settings = {"answering_machine": "leave_message", "machine_message": MESSAGE}
    with serving(tmp_path / "data", settings, engine="local") as service:
        assert_message_left(service, silence(500) + greeting + silence(400) + beep() + silence(2_000))
