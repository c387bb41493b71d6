from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.continuity import HOLES_MAX, Continuity


def added(*frames: tuple[int, int]) -> Continuity:
    continuity = Continuity()
    for start, samples in frames:
        continuity.add(start, samples)
    return continuity


def counts(continuity: Continuity) -> tuple[int, int, int]:
    return continuity.missing_samples, continuity.doubled_samples, continuity.reordered_frames


def test_frames_that_touch_are_whole() -> None:
    assert counts(added((0, 10), (10, 10), (20, 5))) == (0, 0, 0)


def test_a_response_taken_up_in_the_middle_starts_there() -> None:
    continuity = added((480, 10), (490, 10))

    assert counts(continuity) == (0, 0, 0)
    assert continuity.next_sample == 500


def test_a_jump_leaves_samples_missing() -> None:
    assert counts(added((0, 10), (15, 10))) == (5, 0, 0)


def test_a_repeat_and_an_overlap_are_doubled() -> None:
    assert counts(added((0, 10), (0, 10), (15, 10), (12, 6))) == (2, 13, 1)


def test_a_late_frame_is_reordered_and_no_longer_missing() -> None:
    assert counts(added((0, 10), (20, 10), (10, 10))) == (0, 0, 1)


def test_a_late_frame_may_fill_a_hole_in_part_or_several_holes() -> None:
    assert counts(added((0, 10), (20, 10), (12, 4))) == (6, 0, 1)
    assert counts(added((0, 10), (20, 10), (40, 10), (5, 40))) == (0, 20, 1)


def test_forgotten_holes_stay_missing() -> None:
    continuity = added(*((2 * place, 1) for place in range(HOLES_MAX + 2)))
    assert continuity.missing_samples == HOLES_MAX + 1

    continuity.add(1, 1)
    assert counts(continuity) == (HOLES_MAX + 1, 1, 0)
    continuity.add(3, 1)
    assert counts(continuity) == (HOLES_MAX, 1, 1)


@given(st.permutations(range(12)))
def test_any_order_of_whole_frames_ends_whole(order: list[int]) -> None:
    continuity = added((0, 7), *((7 + 7 * place, 7) for place in order))

    assert (continuity.missing_samples, continuity.doubled_samples) == (0, 0)
    assert continuity.next_sample == 7 * 13
    assert (continuity.reordered_frames == 0) == (order == sorted(order))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=30))
def test_what_was_missing_and_doubled_adds_up(frames: list[tuple[int, int]]) -> None:
    continuity = Continuity()
    first = frames[0][0]
    covered: set[int] = set()
    total = 0
    for start, samples in frames:
        continuity.add(start, samples)
        covered |= {place for place in range(start, start + samples) if place >= first}
        total += samples

    assert continuity.next_sample == max(covered) + 1
    assert continuity.missing_samples == max(covered) + 1 - first - len(covered)
    assert continuity.doubled_samples == total - len(covered)
