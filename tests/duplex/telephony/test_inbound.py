"""The caller's sound, out of order, twice, or with holes in it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.telephony.carrier import MU_LAW_LINE, SoundIn, linear_line
from duplex.telephony.inbound import (
    GAP_MS_MAX,
    GAP_MS_MIN,
    JUMP_CHUNKS_MAX,
    LATE_MS_MAX,
    REORDER_CHUNKS,
    Inbound,
    InboundCounts,
)

SILENCE = b"\xff"
FRAME_MS = 20


def frame(number: int) -> bytes:
    return bytes([number % 128]) * 160


def sound(number: int, *, at_ms: int | None = None, chunk: int | None = None) -> SoundIn:
    return SoundIn(frame(number), at_ms, chunk)


def numbered(number: int) -> SoundIn:
    return sound(number, at_ms=number * FRAME_MS, chunk=number)


def test_sound_without_numbers_is_heard_as_it_comes() -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=True)
    assert [inbound.take(sound(number)) for number in (3, 3, 1)] == [[frame(3)], [frame(3)], [frame(1)]]
    assert inbound.counts == InboundCounts()


def test_chunks_that_come_out_of_order_are_put_in_order() -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=False)
    heard = [inbound.take(sound(number, chunk=number)) for number in (1, 3, 2, 4)]
    assert heard == [[frame(1)], [], [frame(2), frame(3)], [frame(4)]]
    assert inbound.counts == InboundCounts(reordered=1)


def test_a_chunk_is_heard_once() -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=False)
    heard = [inbound.take(sound(number, chunk=number)) for number in (1, 1, 3, 3, 2, 2)]
    assert heard == [[frame(1)], [], [], [], [frame(2), frame(3)], []]
    assert inbound.counts == InboundCounts(doubled=3, reordered=1)


def test_one_that_does_not_come_is_lost_once_so_many_wait_for_it() -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=False)
    inbound.take(numbered(1))
    waiting = range(3, 3 + REORDER_CHUNKS)
    assert [inbound.take(sound(number, chunk=number)) for number in waiting] == [[]] * REORDER_CHUNKS
    last = waiting.stop
    assert inbound.take(sound(last, chunk=last)) == [frame(number) for number in range(3, last + 1)]
    assert inbound.counts == InboundCounts(lost=1)


def test_where_sound_comes_in_order_a_missing_chunk_is_not_waited_for() -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=True)
    heard = [inbound.take(sound(number, chunk=number)) for number in (1, 4, 3, 5)]
    assert heard == [[frame(1)], [frame(4)], [], [frame(5)]]
    assert inbound.counts == InboundCounts(lost=2, late=1)


def test_one_that_is_further_ahead_is_not_kept_waiting() -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=False)
    heard = [inbound.take(sound(number, chunk=number)) for number in (1, 3, 20, 21)]
    assert heard == [[frame(1)], [], [frame(3), frame(20)], [frame(21)]]
    assert inbound.counts == InboundCounts(lost=17)


def test_a_number_that_fits_nowhere_begins_anew_and_so_does_the_next() -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=False)
    heard = [inbound.take(sound(number, chunk=number)) for number in (1, 3, 1 << 50, 4, 5)]
    assert heard == [[frame(1)], [], [frame(3), frame(1 << 50)], [frame(4)], [frame(5)]]
    assert inbound.counts == InboundCounts(lost=1, reordered=2)


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_jump_is_believed_up_to_a_second(is_ordered: bool) -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=is_ordered)
    inbound.take(sound(1, chunk=1))
    furthest = 2 + JUMP_CHUNKS_MAX
    assert inbound.take(sound(2, chunk=furthest)) == [frame(2)]
    assert inbound.counts == InboundCounts(lost=JUMP_CHUNKS_MAX)
    assert inbound.take(sound(3, chunk=furthest + 2 + JUMP_CHUNKS_MAX)) == [frame(3)]
    assert inbound.counts == InboundCounts(lost=JUMP_CHUNKS_MAX, reordered=1)


@pytest.mark.parametrize(("chunks", "left_out"), [(500, 0), (20, LATE_MS_MAX // FRAME_MS)])
def test_numbers_that_restart_make_nobody_deaf(chunks: int, left_out: int) -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=True)
    for number in range(1, chunks + 1):
        inbound.take(sound(number, chunk=number))
    heard = [inbound.take(sound(-number, chunk=number)) for number in range(1, chunks + 1)]
    assert heard == [[]] * left_out + [[frame(-number)] for number in range(left_out + 1, chunks + 1)]


def test_the_same_number_with_other_sound_is_no_double() -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=False)
    heard = [inbound.take(sound(number, chunk=3)) for number in range(30)]
    assert heard == [[frame(0)]] + [[]] * 10 + [[frame(number)] for number in range(11, 30)]
    assert inbound.counts == InboundCounts(late=10, reordered=19)
    assert inbound.take(sound(29, chunk=3)) == []
    assert inbound.counts.doubled == 1


def test_what_is_new_is_what_has_come_since() -> None:
    before, after = InboundCounts(1, 2, 3, 4, 500), InboundCounts(2, 4, 6, 8, 1_000)
    assert after.since(before) == before


def test_what_the_clock_shows_to_be_missing_becomes_silence() -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=True)
    inbound.take(sound(1, at_ms=20))
    assert inbound.take(sound(2, at_ms=240)) == [SILENCE * 1_600, frame(2)]
    assert inbound.take(sound(3, at_ms=260)) == [frame(3)]
    assert inbound.counts.filled_ms == 200


def test_silence_is_of_the_lines_own_kind() -> None:
    inbound = Inbound(linear_line(16_000), is_ordered=True)
    inbound.take(SoundIn(bytes(640), 0))
    assert inbound.take(SoundIn(b"\x01" * 640, 120)) == [bytes(2 * 1_600), b"\x01" * 640]


def test_a_piece_that_is_a_little_late_leaves_no_hole() -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=True)
    inbound.take(sound(1, at_ms=0))
    assert inbound.take(sound(2, at_ms=FRAME_MS + GAP_MS_MIN - 1)) == [frame(2)]
    assert inbound.take(sound(3, at_ms=40)) == [frame(3)]


def test_a_clock_that_jumps_is_followed_and_no_more_is_filled_than_may_be() -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=True)
    inbound.take(sound(1, at_ms=0))
    silence, _ = inbound.take(sound(2, at_ms=1 << 50))
    assert len(silence) == GAP_MS_MAX * 8
    assert inbound.take(sound(3, at_ms=(1 << 50) + 20)) == [frame(3)]


def test_a_clock_that_begins_anew_is_followed() -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=True)
    inbound.take(sound(1, at_ms=60_000))
    assert inbound.take(sound(2, at_ms=0)) == [frame(2)]
    silence, _ = inbound.take(sound(3, at_ms=120))
    assert len(silence) == 100 * 8


@given(st.integers(1, 200), st.data(), st.booleans())
def test_chunks_within_the_window_are_all_heard_once_and_in_order(count: int, data: st.DataObject, twice: bool) -> None:
    shifts = data.draw(st.lists(st.integers(0, REORDER_CHUNKS - 1), min_size=count, max_size=count))
    order = [0, *sorted(range(1, count), key=lambda number: number + shifts[number])]
    inbound = Inbound(MU_LAW_LINE, is_ordered=False)
    came = [number for number in order for _ in range(1 + twice)]
    heard = [piece for number in came for piece in inbound.take(sound(number, chunk=number))]
    assert heard == [frame(number) for number in range(count)]
    assert inbound.counts.late == inbound.counts.lost == 0
    assert inbound.counts.doubled == count * twice


NUMBERS = st.integers(0, (1 << 53) - 1) | st.integers(0, 130) | st.integers(0, 6)


@given(st.lists(NUMBERS | st.none(), max_size=300), st.booleans(), st.booleans())
def test_whatever_numbers_come_nearly_all_is_heard_in_nearly_the_order_of_arrival(
    numbers: list[int | None], is_ordered: bool, goes_on: bool
) -> None:
    """`None`: the number that follows the last, or the last again."""
    inbound, heard, chunk = Inbound(MU_LAW_LINE, is_ordered=is_ordered), [], 0
    for arrival, number in enumerate(numbers):
        chunk = number if number is not None else chunk + goes_on
        coded = arrival.to_bytes(2, "big") * 80
        heard += [int.from_bytes(piece[:2], "big") for piece in inbound.take(SoundIn(coded, None, chunk))]
    assert len(set(heard)) == len(heard)
    kept = 0 if is_ordered else REORDER_CHUNKS
    assert (len(numbers) - len(heard)) * FRAME_MS <= LATE_MS_MAX + kept * FRAME_MS <= 500
    assert all(abs(at - place) <= kept for at, place in enumerate(map(sorted(heard).index, heard)))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40, unique=True).map(sorted))
def test_the_inputs_clock_stays_true_whatever_is_lost(numbers: list[int]) -> None:
    inbound, samples = Inbound(MU_LAW_LINE, is_ordered=True), 0
    for number in numbers:
        samples += sum(map(len, inbound.take(numbered(number))))
    gaps = [(after - before - 1) * FRAME_MS for before, after in pairwise(numbers)]
    assert sum(gap for gap in gaps if gap >= GAP_MS_MIN) <= inbound.counts.filled_ms <= sum(gaps)
    assert samples == len(numbers) * 160 + inbound.counts.filled_ms * 8
