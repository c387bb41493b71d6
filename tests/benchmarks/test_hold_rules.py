"""The rules that are compared, and that the network is heard as the service hears it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.hold_rules import LOUD, OURS, Listener, Rule, _Network, _received
from media.speech_gate import VAD_SAMPLE_RATE, WINDOW_SAMPLES
from media.turn_settings import TurnDetectorSettings
from media.vad import SileroVad, VadState
from stages.weights import locate

SOUND = np.random.default_rng(1).normal(0, 0.1, 24_000).astype(np.float32)


def test_a_rule_holds_in_the_window_that_fulfils_it() -> None:
    heard = np.array([0.5, 0.4, 0.5, 0.6, 0.9, 1.0], dtype=np.float32)
    assert Rule(2).holds_after(heard) == 4
    assert Rule(2, mean=0.9).holds_after(heard) == 6
    assert Rule(4).holds_after(heard) == 6
    assert Rule(5, clear=0.9).holds_after(heard) == 5
    assert Rule(5).holds_after(heard) is None


def test_ours_is_the_rule_of_the_service() -> None:
    settings = TurnDetectorSettings()
    assert (Rule(settings.hold_ms // 32, clear=settings.hold_clear), settings.threshold) == (OURS, LOUD)


@pytest.mark.parametrize(
    ("rate", "by_telephone", "samples"), [(16_000, False, 16_000), (16_000, True, 16_000), (8_000, True, 8_000)]
)
def test_what_is_received_has_the_rate_of_the_listener(rate: int, by_telephone: bool, samples: int) -> None:
    assert len(_received(SOUND, Listener("", rate, by_telephone=by_telephone))) == samples


@pytest.mark.models
def test_at_16_khz_the_network_is_heard_as_the_service_hears_it() -> None:
    sound, vad, state = SOUND[: 8 * WINDOW_SAMPLES], SileroVad(locate("silero-vad")), VadState()
    wanted = [vad.probabilities([(state, window)])[0] for window in sound.reshape(-1, WINDOW_SAMPLES)]
    assert _Network().probabilities(sound, VAD_SAMPLE_RATE).tolist() == pytest.approx(wanted)
