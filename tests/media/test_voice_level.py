"""A caller's usual level, and voices far below it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.speech_gate import WINDOW_MS
from media.voice_level import FAINT_DB, FAR_DB, JUDGED_MS, LEARNING_MS, VoiceLevel, level_db

LONG_MS = 10_000


def spoken(db: float, ms: int = LEARNING_MS, voice: VoiceLevel | None = None) -> VoiceLevel:
    voice = voice or VoiceLevel()
    for _ in range(ms // WINDOW_MS):
        voice.learn(db)
    return voice


def test_the_level_of_samples_is_their_root_mean_square() -> None:
    assert level_db(np.full(512, 0.1, dtype=np.float32)) == pytest.approx(-20, abs=1e-4)
    assert level_db(np.zeros(512, dtype=np.float32)) == pytest.approx(-120)


def test_of_a_caller_who_has_not_spoken_long_enough_nothing_is_known() -> None:
    voice = spoken(-20, LEARNING_MS - WINDOW_MS)
    assert voice.usual_db is None
    assert not voice.is_far(FAINT_DB + 0.1, LONG_MS, so_far=True)


@pytest.mark.parametrize("so_far", [True, False])
def test_of_a_caller_who_is_not_known_only_a_voice_is_far_that_no_line_makes_of_theirs(so_far: bool) -> None:
    voice = VoiceLevel()
    assert voice.is_far(FAINT_DB - 0.1, JUDGED_MS, so_far=so_far)
    assert voice.is_far(FAINT_DB - 0.1, JUDGED_MS - WINDOW_MS, so_far=so_far) is so_far


def test_a_caller_who_is_always_faint_is_not_far() -> None:
    assert not spoken(FAINT_DB - 5).is_far(FAINT_DB - 5, LONG_MS, so_far=True)


def test_a_voice_far_below_the_usual_level_is_far() -> None:
    voice = spoken(-20)
    assert voice.usual_db == pytest.approx(-20)
    assert voice.is_far(-20 - FAR_DB - 0.1, JUDGED_MS, so_far=False)
    assert not voice.is_far(-20 - FAR_DB + 0.1, JUDGED_MS, so_far=True)


@pytest.mark.parametrize("so_far", [True, False])
def test_a_voice_is_heard_for_a_while_before_it_is_judged(so_far: bool) -> None:
    voice = spoken(-20)
    for db in (-20, -40):
        assert voice.is_far(db, JUDGED_MS - WINDOW_MS, so_far=so_far) is so_far


def test_the_first_speech_counts_by_its_mean_power() -> None:
    voice = spoken(-20, LEARNING_MS // 2)
    spoken(-24, LEARNING_MS // 2, voice)
    assert voice.usual_db == pytest.approx(-21.55, abs=0.01)


def test_silence_in_which_a_vad_still_hears_speech_hardly_moves_it() -> None:
    voice = spoken(-20, LONG_MS)
    spoken(-120, 5 * WINDOW_MS, voice)
    assert voice.usual_db == pytest.approx(-20, abs=0.1)


def test_a_caller_who_moves_away_is_followed() -> None:
    voice = spoken(-20, LONG_MS)
    spoken(-26, 5 * LONG_MS, voice)
    assert voice.usual_db == pytest.approx(-26, abs=0.1)


def test_somebody_in_the_background_who_was_taken_for_the_caller_hardly_moves_it() -> None:
    voice = spoken(-20, LONG_MS)
    spoken(-34, 3_000, voice)
    assert voice.usual_db == pytest.approx(-20.8, abs=0.1)
    assert voice.is_far(-34, JUDGED_MS, so_far=False)


def test_a_caller_who_stays_far_becomes_the_usual_one() -> None:
    voice = spoken(-34, 60_000, spoken(-20, LONG_MS))
    assert not voice.is_far(-34, LONG_MS, so_far=True)


@given(st.lists(st.floats(-90, 0), min_size=1, max_size=200))
def test_the_usual_level_lies_within_what_was_heard(levels: list[float]) -> None:
    voice = VoiceLevel()
    for db in levels:
        voice.learn(db)
    if voice.usual_db is not None:
        assert min(levels) - 1e-6 <= voice.usual_db <= max(levels) + 1e-6
