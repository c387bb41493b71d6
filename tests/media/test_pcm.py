"""PCM conversion keeps integers, rounds and clips as stated; the aligner never shifts a stream."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.pcm import PcmAligner, PcmError, float_to_pcm16, pcm16_to_float


def test_every_16_bit_value_survives_the_way_to_float_and_back() -> None:
    pcm = np.arange(-32_768, 32_768).astype("<i2").tobytes()
    assert float_to_pcm16(pcm16_to_float(pcm)) == pcm


def test_full_scale_is_32768() -> None:
    floats = pcm16_to_float(np.array([-32_768, 16_384, 0, 32_767], dtype="<i2").tobytes())
    assert floats.dtype == np.float32
    assert floats.tolist() == [-1.0, 0.5, 0.0, 32_767 / 32_768]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5 / 32_768, 0),
        (1.5 / 32_768, 2),
        (-0.5 / 32_768, 0),
        (-1.6 / 32_768, -2),
        (1.0, 32_767),
        (-1.0, -32_768),
        (7.0, 32_767),
        (-7.0, -32_768),
        (float("inf"), 32_767),
        (float("-inf"), -32_768),
        (float("nan"), 0),
        (3e38, 32_767),
    ],
)
def test_rounds_to_nearest_even_and_clips(value: float, expected: int) -> None:
    pcm = float_to_pcm16(np.array([value], dtype=np.float32))
    assert int.from_bytes(pcm, "little", signed=True) == expected


def test_the_argument_is_left_as_it_was() -> None:
    samples = np.array([np.nan, 2.0], dtype=np.float32)
    float_to_pcm16(samples)
    assert np.isnan(samples[0])
    assert samples[1] == 2.0


def test_nothing_in_nothing_out() -> None:
    assert float_to_pcm16(np.empty(0, dtype=np.float32)) == b""
    assert len(pcm16_to_float(b"")) == 0


def test_an_odd_length_is_refused() -> None:
    with pytest.raises(PcmError, match="3 bytes"):
        pcm16_to_float(b"abc")


@given(st.lists(st.binary(max_size=9), max_size=20))
def test_aligned_pieces_are_whole_samples_and_join_to_the_stream(pieces: list[bytes]) -> None:
    aligner = PcmAligner()
    stream = b"".join(pieces)
    aligned = []
    for piece in pieces:
        aligned.append(aligner.align(piece))
        assert aligner.pending_bytes <= 1
    assert all(len(piece) % 2 == 0 for piece in aligned)
    assert b"".join(aligned) == stream[: len(stream) // 2 * 2]
    assert aligner.pending_bytes == len(stream) % 2


def test_reset_forgets_the_odd_byte() -> None:
    aligner = PcmAligner()
    assert aligner.align(b"abc") == b"ab"
    aligner.reset()
    assert aligner.pending_bytes == 0
    assert aligner.align(b"de") == b"de"
