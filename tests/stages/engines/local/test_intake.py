"""Audio is stored once, in order, without gaps, and never beyond its bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.engines.local.intake import GAP_SAMPLES_MAX, SAMPLE_RATE, Intake, samples_of
from stages.stream import StageFailure

HIGH = 4 * SAMPLE_RATE
CAPACITY = 5 * SAMPLE_RATE


def ramp(first: int, last: int) -> bytes:
    """PCM16 whose sample at offset `n` is `n + 1`, within 16 bits."""
    return (np.arange(first + 1, last + 1) % 30_000).astype("<i2").tobytes()


def intake_of(*spans: tuple[int, int]) -> Intake:
    intake = Intake(HIGH, CAPACITY)
    for first, last in spans:
        intake.add(first, ramp(first, last))
    return intake


def test_it_starts_where_the_first_audio_starts() -> None:
    intake = intake_of((700, 1000), (1000, 1500))
    assert (intake.start, intake.end, intake.stored) == (700, 1500, 800)
    assert intake.take(1500) == ramp(700, 1500)


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 400)), min_size=1, max_size=12))
def test_overlaps_and_duplicates_are_trimmed(jumps: list[tuple[int, int]]) -> None:
    """Whatever is sent again, the signal stands there once."""
    intake = intake_of((0, 100))
    for back, samples in jumps:
        first = max(0, intake.end - back)
        intake.add(first, ramp(first, first + samples))
    assert intake.take(intake.end) == ramp(0, intake.end)


def test_audio_from_before_the_first_is_trimmed() -> None:
    intake = intake_of((500, 600), (100, 700))
    assert (intake.start, intake.take(700)) == (500, ramp(500, 700))


def test_a_short_gap_becomes_silence() -> None:
    intake = intake_of((0, 100), (400, 500))
    assert intake.take(500) == ramp(0, 100) + bytes(600) + ramp(400, 500)
    assert intake.position(450) == 450
    assert intake.sample(250) == 250


def test_a_long_gap_becomes_bounded_silence_and_offsets_still_map() -> None:
    resumed = 100 + 60 * SAMPLE_RATE
    intake = intake_of((0, 100), (resumed, resumed + 200))
    assert intake.stored == 100 + GAP_SAMPLES_MAX + 200
    first = 100 + GAP_SAMPLES_MAX
    assert intake.position(resumed) == first
    assert intake.sample(first) == resumed
    assert intake.position(50) == 50
    assert intake.sample(50) == 50
    assert intake.position(resumed - 1) == first, "an offset within what was left out"
    assert intake.position(resumed + 10_000) == intake.end


def test_gaps_never_fill_it_above_the_high_mark() -> None:
    intake = intake_of((0, HIGH - 10), (HIGH + 500, HIGH + 600))
    assert intake.stored == HIGH + 100
    intake.add(HIGH + 900, ramp(0, 50))
    assert intake.stored == HIGH + 150
    assert intake.sample(intake.end) == HIGH + 950


@pytest.mark.parametrize(
    ("start_sample", "pcm", "code"),
    [(-1, bytes(2), "bad_audio"), (0, bytes(3), "bad_audio"), (0, bytes(2 * CAPACITY + 2), "input_overrun")],
)
def test_bad_audio_is_refused_by_code(start_sample: int, pcm: bytes, code: str) -> None:
    with pytest.raises(StageFailure) as failure:
        Intake(HIGH, CAPACITY).add(start_sample, pcm)
    assert failure.value.code == code


def test_drop_forgets_the_front() -> None:
    intake = intake_of((0, 1000))
    intake.drop(300)
    assert (intake.start, intake.end, intake.take(400)) == (300, 1000, ramp(300, 400))
    assert intake.position(100) == 300


def test_positions_before_anything_came_are_zero() -> None:
    intake = Intake(HIGH, CAPACITY)
    assert (intake.position(5000), intake.stored) == (0, 0)


def test_the_quietest_spot_is_the_middle_of_the_quiet() -> None:
    noise = np.full(3 * SAMPLE_RATE, 1000, dtype="<i2")
    noise[20_000:22_000] = 10
    intake = Intake(HIGH, CAPACITY)
    intake.add(5000, noise.tobytes())
    spot = intake.quietest(15_000, 15_000 + 2 * SAMPLE_RATE)
    assert 25_000 < spot < 27_000


def test_of_equally_quiet_spots_the_latest_is_taken() -> None:
    intake = Intake(HIGH, CAPACITY)
    intake.add(0, bytes(2 * 2 * SAMPLE_RATE))
    assert intake.quietest(0, 2 * SAMPLE_RATE) == 2 * SAMPLE_RATE - 800


def test_samples_are_scaled_to_one() -> None:
    assert samples_of(np.array([-32768, 0, 16384], dtype="<i2").tobytes()).tolist() == [-1.0, 0.0, 0.5]
