"""The chunk contract, and exact conversions of the sample clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.chunk import AudioChunk, ChunkError, ms_to_samples, rescale, samples_to_ms

RATES = st.sampled_from([8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
POSITIONS = st.integers(0, 10**12)


def test_a_chunk_says_where_it_begins_and_ends() -> None:
    chunk = AudioChunk(3, 24_000, 480, bytes(960), final=False)
    assert (chunk.samples, chunk.end_sample) == (480, 960)


def test_a_final_chunk_may_be_empty_and_stands_where_the_last_one_ended() -> None:
    chunk = AudioChunk(4, 24_000, 960, b"", final=True)
    assert (chunk.samples, chunk.end_sample) == (0, 960)


@pytest.mark.parametrize(
    ("fault", "chunk"),
    [
        ("3 bytes are not whole", (0, 24_000, 0, bytes(3), False)),
        ("negative seq", (-1, 24_000, 0, bytes(2), False)),
        ("negative seq or offset", (0, 24_000, -1, bytes(2), False)),
        ("no sample rate", (0, 0, 0, bytes(2), False)),
        ("only a final chunk may be empty", (0, 24_000, 0, b"", False)),
    ],
)
def test_what_breaks_the_contract_is_refused(fault: str, chunk: tuple[int, int, int, bytes, bool]) -> None:
    with pytest.raises(ChunkError, match=fault):
        AudioChunk(*chunk)


def test_ms_and_samples_are_rounded_down() -> None:
    assert [samples_to_ms(samples, 24_000) for samples in (0, 23, 24, 47, 48)] == [0, 0, 1, 1, 2]
    assert [ms_to_samples(ms, 22_050) for ms in (0, 1, 2, 20)] == [0, 22, 44, 441]


def test_openai_agents_python_4292_a_millisecond_is_counted_in_samples_of_its_own_rate() -> None:
    assert [samples_to_ms(160, 8_000), samples_to_ms(480, 24_000)] == [20, 20]


@given(POSITIONS, RATES)
def test_samples_to_ms_errs_by_less_than_one_and_never_high(samples: int, rate: int) -> None:
    ms = samples_to_ms(samples, rate)
    assert ms * rate <= samples * 1000 < (ms + 1) * rate


@given(POSITIONS, RATES, RATES)
def test_rescaling_errs_by_less_than_one_and_never_high(position: int, before: int, after: int) -> None:
    there = rescale(position, before, after)
    assert there * before <= position * after < (there + 1) * before


@given(POSITIONS, POSITIONS, RATES, RATES)
def test_rescaling_keeps_order(one: int, other: int, before: int, after: int) -> None:
    low, high = sorted((one, other))
    assert rescale(low, before, after) <= rescale(high, before, after)


@given(POSITIONS, RATES)
def test_rescaling_to_the_same_rate_changes_nothing(position: int, rate: int) -> None:
    assert rescale(position, rate, rate) == position
