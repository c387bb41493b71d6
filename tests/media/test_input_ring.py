"""The ring against a list that forgets nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.input_ring import InputRing, RingRead
from media.pcm import PcmError


def pcm(*values: int) -> bytes:
    return np.array(values, dtype="<i2").tobytes()


@given(
    st.integers(1, 12),
    st.integers(0, 50),
    st.lists(st.integers(0, 30), max_size=10),
    st.tuples(st.integers(0, 250), st.integers(0, 250)).map(sorted),
)
def test_reads_what_a_list_would(capacity: int, start_sample: int, sizes: list[int], wanted: list[int]) -> None:
    ring = InputRing(capacity, start_sample)
    everything: list[int] = []
    for size in sizes:
        piece = list(range(len(everything), len(everything) + size))
        ring.append(pcm(*piece))
        everything += piece
    newest = start_sample + len(everything)
    oldest = start_sample + max(0, len(everything) - capacity)
    assert (ring.oldest, ring.newest) == (oldest, newest)
    start, end = wanted
    expected = [everything[n - start_sample] for n in range(start, end) if oldest <= n < newest]
    got = ring.read(start, end)
    assert got.pcm == pcm(*expected)
    assert got.clamped == (len(expected) < end - start)
    assert got.start_sample == min(max(start, oldest), newest)


def test_what_is_gone_and_what_is_to_come_are_clamped() -> None:
    ring = InputRing(4)
    ring.append(pcm(0, 1, 2, 3, 4, 5))
    assert ring.read(3, 5) == RingRead(3, pcm(3, 4), clamped=False)
    assert ring.read(0, 4) == RingRead(2, pcm(2, 3), clamped=True)
    assert ring.read(5, 9) == RingRead(5, pcm(5), clamped=True)
    assert ring.read(8, 9) == RingRead(6, b"", clamped=True)
    assert ring.read(4, 4) == RingRead(4, b"", clamped=False)


def test_odd_bytes_are_refused_and_change_nothing() -> None:
    ring = InputRing(4)
    with pytest.raises(PcmError):
        ring.append(b"abc")
    assert ring.newest == 0


def test_what_was_read_does_not_change_later() -> None:
    ring = InputRing(2)
    ring.append(pcm(1, 2))
    before = ring.read(0, 2)
    ring.append(pcm(3, 4))
    assert before.pcm == pcm(1, 2)


def test_impossible_arguments_are_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        InputRing(0)
    with pytest.raises(AssertionError):
        InputRing(1, -1)
    with pytest.raises(AssertionError):
        InputRing(1).read(2, 1)
