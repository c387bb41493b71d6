from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.loudness import AUDIBLE_DBFS, audible_span
from tests.loadtest.link import tone

WINDOW = 120


def sine(dbfs: float, samples: int = 2_400) -> bytes:
    """A 400 Hz sine of that RMS level."""
    peak = 32_768 * 10 ** (dbfs / 20) * 2**0.5
    return (peak * np.sin(np.arange(samples) * 2 * np.pi * 400 / 24_000)).astype("<i2").tobytes()


def test_nothing_and_silence_are_inaudible() -> None:
    assert audible_span(b"", 24_000) is None
    assert audible_span(bytes(4_800), 24_000) is None


def test_the_span_is_exact_to_a_window() -> None:
    assert audible_span(tone(50, lead_ms=20, tail_ms=30), 24_000) == (480, 480 + 1_200)
    shifted = bytes(2 * 7) + tone(50)
    first, end = audible_span(shifted, 24_000) or (0, 0)
    assert 0 <= 7 - first < WINDOW
    assert 0 <= end - (7 + 1_200) < WINDOW


def test_a_short_last_window_counts() -> None:
    assert audible_span(bytes(2 * WINDOW) + tone(1), 24_000) == (WINDOW, WINDOW + 24)


def test_the_threshold_is_a_level_of_rms() -> None:
    assert audible_span(sine(AUDIBLE_DBFS - 1.5), 24_000) is None
    assert audible_span(sine(AUDIBLE_DBFS + 1.5), 24_000) is not None


def test_full_scale_does_not_overflow() -> None:
    assert audible_span((-32_768).to_bytes(2, "little", signed=True) * 240, 24_000) == (0, 240)


@settings(max_examples=50)
@given(st.integers(0, 2_000), st.integers(1, 3_000), st.integers(0, 2_000))
def test_sound_between_silences_is_found_to_within_a_window(before: int, length: int, after: int) -> None:
    loud = np.full(length, 8_000, dtype="<i2").tobytes()
    span = audible_span(bytes(2 * before) + loud + bytes(2 * after), 24_000)
    assert span is not None
    start, end = span
    assert before - WINDOW < start <= before
    assert before + length <= end < before + length + WINDOW
