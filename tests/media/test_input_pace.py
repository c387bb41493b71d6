"""When sound is taken to be spoken that comes as fast as anybody speaks, and faster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.input_pace import LEAD_NS_MAX, LIVE_NS, InputPace

MS = 1_000_000
RATE = 16_000
WINDOW = 512  # 32 ms
START_NS = 5_000 * MS


def burst(pace: InputPace, windows: int, now_ns: int) -> list[float]:
    """How many ms after their arrival these windows are spoken, which come at once."""
    return [(pace.spoken_ns(WINDOW, now_ns) - now_ns) / MS for _ in range(windows)]


@pytest.mark.parametrize("message_ms", [20, 100, 200])
def test_what_a_live_microphone_sends_was_spoken_just_now(message_ms: int) -> None:
    pace = InputPace(RATE)
    for number in range(100):
        now_ns = START_NS + number * message_ms * MS
        for _ in range(message_ms // 20):
            assert pace.spoken_ns(RATE // 50, now_ns) == now_ns


def test_a_recording_is_spoken_from_its_arrival_on() -> None:
    late = burst(InputPace(RATE), 20, START_NS)
    assert late[:7] == [0.0] * 7, "so much may be one message of a live client"
    assert late[7:10] == [24.0, 56.0, 88.0]
    assert late[19] == 19 * 32 - 200


def test_no_input_is_further_ahead_than_any_sound_on_its_way() -> None:
    late = burst(InputPace(RATE), 1_000, START_NS)
    assert late[-1] == (LEAD_NS_MAX - LIVE_NS) / MS


def test_what_was_held_up_on_its_way_is_soon_live_again() -> None:
    pace = InputPace(RATE)
    burst(pace, 100, START_NS)
    late = [pace.spoken_ns(WINDOW, now_ns) - now_ns for now_ns in range(START_NS, START_NS + 4_000 * MS, 32 * MS)]
    assert late[0] > 0
    assert late == sorted(late, reverse=True)
    assert late[-1] == 0


def test_after_a_pause_input_is_not_ahead() -> None:
    pace = InputPace(RATE)
    burst(pace, 100, START_NS)
    assert burst(pace, 7, START_NS + 800 * MS) == [0.0] * 7


@given(st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 4_000)), max_size=50))
def test_nothing_is_spoken_before_it_has_come(steps: list[tuple[int, int]]) -> None:
    pace, now_ns = InputPace(RATE), START_NS
    for ms, samples in steps:
        now_ns += ms * MS
        assert now_ns <= pace.spoken_ns(samples, now_ns) <= now_ns + LEAD_NS_MAX - LIVE_NS
