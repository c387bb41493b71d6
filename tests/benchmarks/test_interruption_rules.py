"""Speech over a reply in virtual time: rules are judged by what the detector and the encoder do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.interruption_rules import LEAD_MS, OURS, RULES, STEP_MS, Line, Outcome, Sound
from media.interruption import InterruptionSettings
from media.pcm import FloatSamples
from media.speech_gate import WINDOW_MS, WINDOW_SAMPLES
from media.turn_settings import TurnDetectorSettings
from stages.engines.local.utterance import FIRST_PARTIAL_SAMPLES, Heard
from stages.engines.local.whisper import never

LEAD = LEAD_MS // WINDOW_MS
PADDING_MS = 300
SPOKEN_MS = 640


class Says:
    """A recogniser that has always heard `text`."""

    def __init__(self, text: str) -> None:
        self._text = text

    def transcribe(self, pcm: FloatSamples, *, thorough: bool = True, cancelled: Callable[[], bool] = never) -> Heard:
        return Heard(self._text)


def judged(text: str, spoken_ms: int, rule: InterruptionSettings = RULES[OURS]) -> Outcome:
    """Of a caller who has said nothing before, and says `text` clearly for so long."""
    windows = spoken_ms // WINDOW_MS
    probabilities = [0.0] * LEAD + [1.0] * windows + [0.0] * 60
    samples = np.full(len(probabilities) * WINDOW_SAMPLES, 0.1, dtype=np.float32)
    return Line(Sound(samples, probabilities, 0), rule, Says(text)).hear()


def windows_up(ms: float) -> float:
    """The end of the window in which `ms` are over."""
    return -(-ms // WINDOW_MS) * WINDOW_MS


def test_words_interrupt_when_the_first_pass_over_them_has_ended() -> None:
    first_ms = FIRST_PARTIAL_SAMPLES / 16 - PADDING_MS
    outcome = judged("Wait a moment", SPOKEN_MS)
    assert outcome.yielded_ms is not None
    assert outcome.yielded_ms == pytest.approx(windows_up(first_ms) + windows_up(STEP_MS), abs=2 * WINDOW_MS)
    assert outcome.paused_ms == outcome.yielded_ms - WINDOW_MS  # the first window of speech holds


def test_voice_interrupts_by_lasting_as_long_as_the_rule_says() -> None:
    assert judged("", SPOKEN_MS).yielded_ms == InterruptionSettings().yield_ms == SPOKEN_MS
    assert judged("", SPOKEN_MS, InterruptionSettings(yield_ms=512)).yielded_ms == 512


def test_a_listener_is_let_speak_and_costs_a_pause() -> None:
    outcome = judged("Mm-hmm.", 256)
    assert outcome == Outcome(None, 256 - WINDOW_MS + TurnDetectorSettings().burst_end_ms)
