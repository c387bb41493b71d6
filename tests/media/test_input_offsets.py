"""Where pieces of a client's sound stand in its input: each sample once, and what is missing is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.input_offsets import GAP_S_MAX, START_S_MAX, InputGapError, InputOffsets, Placed

RATE = 24_000


def test_a_client_that_names_no_offsets_goes_on_where_the_input_ends() -> None:
    offsets = InputOffsets(1_000, RATE)
    assert not offsets.has_begun
    assert offsets.place(None, 480) == Placed(0, 0, 1_000)
    assert offsets.place(None, 480) == Placed(0, 0, 1_480)
    assert (offsets.next_sample, offsets.has_begun) == (1_960, True)


def test_what_has_come_before_is_skipped_and_no_more() -> None:
    offsets = InputOffsets(1_000, RATE)
    assert offsets.place(0, 900) == Placed(900, 0, 1_000), "all of it"
    assert not offsets.has_begun
    assert offsets.place(900, 300) == Placed(100, 0, 1_000)
    assert offsets.next_sample == 1_200


def test_what_is_missing_is_told_and_counts_as_come() -> None:
    offsets = InputOffsets(0, RATE)
    offsets.place(None, 100)
    assert offsets.place(150, 50) == Placed(0, 50, 150)
    assert offsets.next_sample == 200


def test_the_input_may_begin_far_behind_and_leave_out_no_more_than_can_be_filled() -> None:
    offsets = InputOffsets(0, RATE)
    far = (GAP_S_MAX + 1) * RATE
    assert offsets.place(far, 10) == Placed(0, far, far)
    assert offsets.place(far + 10 + GAP_S_MAX * RATE, 10).gap == GAP_S_MAX * RATE
    before = offsets.next_sample
    with pytest.raises(InputGapError, match=f"{far} samples are missing before that; at most {GAP_S_MAX} s can be"):
        offsets.place(before + far, 10)
    assert offsets.next_sample == before


def test_what_begins_where_no_session_can_be_is_refused_and_changes_nothing() -> None:
    offsets = InputOffsets(1_000, RATE)
    furthest = 1_000 + START_S_MAX * RATE
    with pytest.raises(InputGapError, match=f"at most {START_S_MAX} s can be"):
        offsets.place(furthest + 1, 10)
    assert (offsets.next_sample, offsets.has_begun) == (1_000, False)
    assert offsets.place(1_000, 480) == Placed(0, 0, 1_000)
    assert InputOffsets(1_000, RATE).place(furthest, 10).start == furthest


def test_another_rate_counts_from_where_the_sound_is() -> None:
    offsets = InputOffsets(0, RATE)
    offsets.place(None, 24_000)
    offsets.go_on(8_000, 8_000)
    assert offsets.place(7_900, 200) == Placed(100, 0, 8_000)
    with pytest.raises(InputGapError):
        offsets.place(8_100 + GAP_S_MAX * 8_000 + 1, 1)


@given(st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 500)), max_size=20))
def test_every_sample_is_taken_once_in_order(pieces: list[tuple[int, int]]) -> None:
    offsets, end = InputOffsets(500, RATE), 500
    for start, samples in pieces:
        placed = offsets.place(start, samples)
        assert placed.gap == max(0, start - end)
        assert placed.start == end + placed.gap
        taken = range(start + placed.skip, start + samples)
        assert not taken or taken[0] == placed.start
        end = placed.start + len(taken)
        assert offsets.next_sample == end
