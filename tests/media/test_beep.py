"""Beeps behind a voice, and all that is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import line_sounds
from benchmarks.line_sounds import cadence, silence, tone
from media.beep import BIN_HZ, QUIET_MS, SAME_HZ, VOICE_WITHIN_MS, Beep, BeepDetector, tone_hz
from media.pcm import FloatSamples
from media.speech_gate import VAD_SAMPLE_RATE, WINDOW_MS, WINDOW_SAMPLES

GREETING_MS = 2_016


class Line:
    def __init__(self) -> None:
        self.detector = BeepDetector()
        self.end = 0

    def hear(self, sound: FloatSamples, *, is_voice: bool = False) -> list[Beep]:
        """Whole windows of `sound`."""
        beeps = []
        for start in range(0, len(sound) - WINDOW_SAMPLES + 1, WINDOW_SAMPLES):
            self.end += WINDOW_SAMPLES
            beep = self.detector.window(sound[start : start + WINDOW_SAMPLES], self.end, is_voice=is_voice)
            beeps += [beep] if beep else []
        return beeps

    def greet(self, ms: int = GREETING_MS) -> Line:
        """Somebody speaks; what of is none of the detector's business."""
        assert self.hear(line_sounds.hiss(ms / 1_000, 0.1, seed=3), is_voice=True) == []
        return self


def test_a_tone_behind_a_voice_is_a_beep_once_the_line_has_been_quiet_behind_it() -> None:
    line = Line().greet()
    assert line.hear(tone([1_000], 0.48)) == []
    start = line.end - 480 * VAD_SAMPLE_RATE // 1_000
    assert line.hear(silence((QUIET_MS - WINDOW_MS) / 1_000)) == []
    (beep,) = line.hear(silence(WINDOW_MS * 2 / 1_000))
    assert (beep.start, beep.end, beep.voice_ms) == (start, start + 7_680, GREETING_MS)
    assert beep.hz == pytest.approx(1_000, abs=1)
    assert line.hear(silence(2)) == []


def test_a_click_at_the_edge_of_a_window_is_no_tone() -> None:
    click = np.zeros(WINDOW_SAMPLES, dtype=np.float32)
    click[0] = 1.0
    assert tone_hz(click) is None


@settings(max_examples=40, deadline=None)
@given(st.integers(440, 2_000), st.sampled_from([224, 320, 512, 1_024]), st.floats(0.02, 0.9), st.integers(0, 511))
def test_a_beep_of_any_pitch_length_and_level_is_known_wherever_it_begins(
    hz: int, ms: int, level: float, shift: int
) -> None:
    call = np.concatenate([silence(0.5)[shift:], tone([hz], ms / 1_000, level), silence(1.5)])
    beeps = Line().greet().hear(call)
    if abs(hz - 1_100) > 60:  # that is how facsimile machines call
        (beep,) = beeps
        assert beep.hz == pytest.approx(hz, abs=2)
        assert (beep.end - beep.start) * 1_000 / VAD_SAMPLE_RATE == pytest.approx(ms, abs=2 * WINDOW_MS)


@pytest.mark.parametrize("name", line_sounds.network(1))
def test_no_tone_of_a_network_behind_a_voice_is_a_beep(name: str) -> None:
    sound = line_sounds.network(12)[name]
    assert Line().greet().hear(np.concatenate([silence(0.32), sound, silence(1)])) == []


@pytest.mark.parametrize("ms", [128, 160, 1_280, 3_200])
def test_what_is_shorter_or_longer_than_a_beep_is_none(ms: int) -> None:
    assert Line().greet().hear(np.concatenate([tone([1_000], ms / 1_000), silence(1)])) == []


@pytest.mark.parametrize("hz", [300, 2_200])
def test_what_is_lower_or_higher_is_none(hz: int) -> None:
    assert Line().greet().hear(np.concatenate([tone([hz], 0.48), silence(1)])) == []


@pytest.mark.parametrize(("ms", "count"), [(0, 0), (960, 0), (992, 1)])
def test_no_beep_is_known_where_nobody_has_greeted(ms: int, count: int) -> None:
    assert len(Line().greet(ms).hear(np.concatenate([tone([1_000], 0.48), silence(1)]))) == count


def test_a_greeting_that_was_long_ago_counts_no_more() -> None:
    line = Line().greet()
    line.hear(silence(VOICE_WITHIN_MS / 1_000))
    assert line.hear(np.concatenate([tone([1_000], 0.48), silence(1)])) == []


def test_a_tone_that_is_softer_than_any_beep_is_none() -> None:
    assert Line().greet().hear(np.concatenate([tone([1_000], 0.48, 0.005), silence(1)])) == []


def test_a_tone_that_is_taken_for_a_voice_is_none() -> None:
    line = Line().greet()
    assert line.hear(tone([1_000], 0.48), is_voice=True) == []
    assert line.hear(silence(1)) == []


def test_who_speaks_on_behind_a_tone_is_no_machine() -> None:
    line = Line().greet()
    line.hear(np.concatenate([tone([1_000], 0.48), silence(0.1)]))
    assert line.hear(silence(0.1), is_voice=True) == []
    assert line.hear(silence(1)) == []


def test_noise_behind_a_tone_is_not_quiet() -> None:
    line = Line().greet()
    line.hear(tone([1_000], 0.48))
    assert line.hear(line_sounds.hiss(1, 0.05, seed=4)) == []


def test_the_noise_of_a_line_behind_it_is() -> None:
    line = Line().greet()
    line.hear(tone([1_000], 0.48))
    assert len(line.hear(line_sounds.hiss(1, 0.002, seed=4))) == 1


def test_another_tone_right_behind_is_one_signal_with_it() -> None:
    for gap_s in (0.0, 0.032, 0.096):
        signal = np.concatenate([tone([1_000], 0.48), silence(gap_s), tone([1_400], 0.48), silence(1)])
        assert Line().greet().hear(signal) == []


@pytest.mark.parametrize("hz", [1_060, 1_150])
def test_two_tones_of_nearly_the_same_pitch_are_two(hz: int) -> None:
    assert Line().greet().hear(np.concatenate([tone([1_000], 0.48), tone([hz], 0.48), silence(1)])) == []


def test_a_second_tone_after_a_while_may_be_the_beep() -> None:
    signal = np.concatenate([tone([2_200], 0.096), silence(0.352), tone([1_000], 0.48), silence(1)])
    (beep,) = Line().greet().hear(signal)
    assert beep.hz == pytest.approx(1_000, abs=1)


def test_a_cadence_is_none_though_each_tone_of_it_would_be() -> None:
    assert Line().greet().hear(cadence([1_000], 0.48, 0.48, 6)) == []


@given(st.floats(2, 250))
def test_the_frequency_of_a_tone_is_known_between_bins(bins: float) -> None:
    found = tone_hz(tone([bins * BIN_HZ], WINDOW_MS / 1_000))
    assert found == pytest.approx(bins * BIN_HZ, abs=SAME_HZ / 2)


@pytest.mark.parametrize(
    "sound", [line_sounds.hiss(0.032, 0.1, seed=5), tone([480, 620], 0.032), line_sounds.music(0.032, 2)]
)
def test_what_has_its_power_in_many_places_is_no_tone(sound: FloatSamples) -> None:
    assert tone_hz(sound) is None
