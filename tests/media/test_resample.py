"""The resampler is independent of chunking, exact in count, in time, and as clean as it claims to be."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.pcm import FloatSamples
from media.resample import (
    OUTPUT_BLOCK_SAMPLES,
    SAMPLE_RATES,
    STOP_BAND_START,
    ResampleError,
    StreamResampler,
    filter_bank,
)

PAIRS = list(permutations(SAMPLE_RATES, 2))
ANY_RATE = st.sampled_from(SAMPLE_RATES)
SPECTRUM_POINTS = 1 << 17


def noise(length: int, seed: int = 0) -> FloatSamples:
    return np.random.default_rng(seed).uniform(-1, 1, length).astype(np.float32)


def convert(samples: FloatSamples, from_rate: int, to_rate: int) -> FloatSamples:
    resampler = StreamResampler(from_rate, to_rate)
    return np.concatenate((resampler.process(samples), resampler.flush()))


@given(ANY_RATE, ANY_RATE, st.lists(st.integers(0, 300), max_size=8))
def test_the_output_does_not_depend_on_the_chunks(from_rate: int, to_rate: int, sizes: list[int]) -> None:
    samples = noise(sum(sizes))
    resampler = StreamResampler(from_rate, to_rate)
    pieces = [resampler.process(piece) for piece in np.split(samples, np.cumsum(sizes))]
    pieces.append(resampler.flush())
    np.testing.assert_allclose(np.concatenate(pieces), convert(samples, from_rate, to_rate), rtol=0, atol=1e-6)


@given(ANY_RATE, ANY_RATE, st.lists(st.integers(0, 200), max_size=8))
def test_counts_are_exact_and_little_is_held(from_rate: int, to_rate: int, sizes: list[int]) -> None:
    resampler = StreamResampler(from_rate, to_rate)
    ratio = Fraction(to_rate, from_rate)
    taken = given_out = 0
    for size in sizes:
        given_out += len(resampler.process(noise(size)))
        taken += size
        assert resampler.held_samples == taken - given_out * from_rate // to_rate
        assert 0 <= resampler.held_samples <= resampler.lookahead_samples <= from_rate // 500
    given_out += len(resampler.flush())
    assert given_out == -(-taken * ratio.numerator // ratio.denominator)
    assert resampler.held_samples == 0


@pytest.mark.parametrize(("from_rate", "to_rate"), PAIRS)
def test_a_tone_comes_out_at_its_own_time_and_level(from_rate: int, to_rate: int) -> None:
    frequency = 0.4 * min(from_rate, to_rate)
    tone = np.sin(2 * np.pi * frequency * np.arange(from_rate // 25) / from_rate).astype(np.float32)
    output = convert(tone, from_rate, to_rate)
    expected = np.sin(2 * np.pi * frequency * np.arange(len(output)) / to_rate)
    edge = to_rate // 400
    np.testing.assert_allclose(output[edge:-edge], expected[edge:-edge], atol=2e-3)


@pytest.mark.parametrize(("from_rate", "to_rate"), PAIRS)
def test_pass_band_is_flat_and_stop_band_60_db_down(from_rate: int, to_rate: int) -> None:
    bank = filter_bank(from_rate, to_rate)
    # Phase r, tap k weighs the input at distance k - half - r / up: interleaved they are one filter at from_rate * up.
    prototype = bank.phases[::-1].T.ravel().astype(np.float64) / bank.up
    gain = np.abs(np.fft.rfft(prototype, SPECTRUM_POINTS))
    nyquists = np.fft.rfftfreq(SPECTRUM_POINTS, 1 / (from_rate * bank.up)) / (min(from_rate, to_rate) / 2)
    assert np.max(np.abs(20 * np.log10(gain[nyquists <= 0.9]))) <= 0.1
    assert 20 * np.log10(np.max(gain[nyquists >= STOP_BAND_START])) <= -60


@pytest.mark.parametrize("from_rate", SAMPLE_RATES)
def test_a_constant_stays_constant(from_rate: int) -> None:
    for to_rate in SAMPLE_RATES:
        output = convert(np.full(1_000, 0.5, dtype=np.float32), from_rate, to_rate)
        edge = 2 * to_rate // 500
        np.testing.assert_allclose(output[edge:-edge], 0.5, atol=1e-6)


def test_what_lies_above_the_new_band_is_gone() -> None:
    tone = np.sin(2 * np.pi * 5_000 * np.arange(2_400) / 24_000).astype(np.float32)
    output = convert(tone, 24_000, 8_000)
    assert np.max(np.abs(output[40:-40])) < 1e-3


def test_equal_rates_pass_samples_through_at_once() -> None:
    samples = noise(50)
    resampler = StreamResampler(16_000, 16_000)
    np.testing.assert_array_equal(resampler.process(samples), samples)
    assert resampler.lookahead_samples == resampler.held_samples == 0
    assert len(resampler.flush()) == 0


def test_a_long_input_is_filtered_in_blocks_without_a_seam() -> None:
    samples = noise(OUTPUT_BLOCK_SAMPLES * 2)
    resampler = StreamResampler(8_000, 16_000)
    pieces = [resampler.process(piece) for piece in np.split(samples, 16)]
    pieces.append(resampler.flush())
    np.testing.assert_allclose(convert(samples, 8_000, 16_000), np.concatenate(pieces), atol=1e-6)


def test_reset_and_flush_begin_a_new_stream() -> None:
    samples = noise(100)
    resampler = StreamResampler(8_000, 24_000)
    resampler.process(noise(77, seed=1))
    resampler.reset()
    first = np.concatenate((resampler.process(samples), resampler.flush()))
    second = np.concatenate((resampler.process(samples), resampler.flush()))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, convert(samples, 8_000, 24_000))


TELEPHONE_PAIRS = [pair for pair in PAIRS if 8_000 in pair]


@pytest.mark.parametrize(("from_rate", "to_rate"), TELEPHONE_PAIRS)
def test_timbal_112_nothing_of_a_reply_that_was_cut_is_heard_in_the_next(from_rate: int, to_rate: int) -> None:
    resampler = StreamResampler(from_rate, to_rate)
    resampler.process(np.ones(from_rate // 50, dtype=np.float32))
    assert resampler.held_samples > 0, "the end of what was cut is still in there"
    resampler.reset()
    after = np.concatenate((resampler.process(np.zeros(from_rate // 50, dtype=np.float32)), resampler.flush()))
    assert len(after) == to_rate // 50
    assert not after.any()


@pytest.mark.parametrize(("from_rate", "to_rate"), TELEPHONE_PAIRS)
def test_a_telephone_is_delayed_by_no_more_than_2_ms(from_rate: int, to_rate: int) -> None:
    """A step is out once so much more has come, and no sample before it has changed."""
    resampler = StreamResampler(from_rate, to_rate)
    waits = 2 * from_rate // 1_000
    before = resampler.process(np.zeros(from_rate // 10, dtype=np.float32))
    given_out = len(before) + len(resampler.process(np.ones(waits + 1, dtype=np.float32)))
    assert given_out * from_rate >= from_rate // 10 * to_rate, "the first sample of the step is out"


@pytest.mark.parametrize(("from_rate", "to_rate"), [(11_025, 16_000), (16_000, 0)])
def test_an_unknown_rate_is_refused_by_name(from_rate: int, to_rate: int) -> None:
    with pytest.raises(ResampleError, match="is not one of"):
        StreamResampler(from_rate, to_rate)


def test_other_sample_types_are_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        StreamResampler(8_000, 16_000).process(np.zeros(4, dtype=np.float64))
