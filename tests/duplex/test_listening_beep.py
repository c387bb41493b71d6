"""The beep of an answering machine, on the way in."""

from __future__ import annotations

import numpy as np

from media.pcm import float_to_pcm16
from sessions.events import LineRecognised
from sessions.settings import OUTPUT_RATE
from tests.duplex.test_listening import play, say, silence, tone


def faint_tone(ms: int) -> bytes:
    """A steady one that is too soft to be taken for a voice."""
    places = np.arange(ms * OUTPUT_RATE // 1_000) / OUTPUT_RATE
    return float_to_pcm16((0.04 * np.sin(2 * np.pi * 1_000 * places)).astype(np.float32))


def test_a_beep_behind_a_voice_is_told_of() -> None:
    call = tone(1_500) + silence(200) + faint_tone(500) + silence(900)
    ears = play(lambda ears: say(ears, call))
    assert [event for event in ears.events() if isinstance(event, LineRecognised)] == [LineRecognised("beep")]


def test_a_tone_without_a_voice_before_it_is_none() -> None:
    ears = play(lambda ears: say(ears, silence(500) + faint_tone(500) + silence(900)))
    assert ears.events() == []
