"""The caller's sound, out of order, twice, or with holes in it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from duplex.telephony.carrier import MU_LAW_LINE, SoundIn, linear_line
from duplex.telephony.inbound import GAP_MS_MAX, GAP_MS_MIN, LOSSES_KEPT, REORDER_CHUNKS, Inbound, InboundCounts

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


def test_one_that_is_later_than_is_remembered_counts_as_doubled() -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=True)
    for number in range(0, 2 * LOSSES_KEPT + 3, 2):
        inbound.take(sound(number, chunk=number))
    inbound.take(sound(3, chunk=3))
    inbound.take(sound(1, chunk=1))
    assert inbound.counts == InboundCounts(lost=LOSSES_KEPT + 1, late=1, doubled=1)


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


@given(st.permutations(range(1, 60)), st.booleans())
def test_nothing_is_heard_twice_or_out_of_order(order: list[int], is_ordered: bool) -> None:
    inbound = Inbound(MU_LAW_LINE, is_ordered=is_ordered)
    pieces = [piece for number in order for piece in inbound.take(sound(number, chunk=number))]
    heard = [piece[0] for piece in pieces]
    assert heard == sorted(set(heard))
    counts = inbound.counts
    assert len(heard) + counts.late + counts.doubled <= len(order)
    assert counts.reordered <= len(heard)
    assert not (is_ordered and (counts.reordered or counts.late > counts.lost))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40, unique=True).map(sorted))
def test_the_inputs_clock_stays_true_whatever_is_lost(numbers: list[int]) -> None:
    inbound, samples = Inbound(MU_LAW_LINE, is_ordered=True), 0
    for number in numbers:
        samples += sum(map(len, inbound.take(numbered(number))))
    gaps = [(after - before - 1) * FRAME_MS for before, after in pairwise(numbers)]
    assert sum(gap for gap in gaps if gap >= GAP_MS_MIN) <= inbound.counts.filled_ms <= sum(gaps)
    assert samples == len(numbers) * 160 + inbound.counts.filled_ms * 8
