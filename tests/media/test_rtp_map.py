"""The map from the RTP clock to samples, against one that remembers every tick."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.rtp_map import SPANS_MAX, TIMESTAMP_MODULUS, Position, RtpMap, unwrap

TICKS = 2


def two_replies() -> RtpMap:
    """`a`: 40 samples from tick 100 on; silence; `b`: 20 samples from tick 300 on."""
    rtp_map = RtpMap(TICKS)
    rtp_map.record(100, "a", 0, 20)
    rtp_map.record(140, "a", 20, 20)
    rtp_map.record(300, "b", 0, 20)
    return rtp_map


def test_a_moment_inside_a_reply_is_a_sample_of_it_rounded_down() -> None:
    rtp_map = two_replies()
    assert rtp_map.locate(100) == Position("a", 0, 40)
    assert rtp_map.locate(101) == Position("a", 0, 40)
    assert rtp_map.locate(102) == Position("a", 1, 40)
    assert rtp_map.locate(145) == Position("a", 22, 40)
    assert rtp_map.locate(301) == Position("b", 0, 20)


def test_silence_belongs_to_the_end_of_the_reply_before_it() -> None:
    rtp_map = two_replies()
    assert rtp_map.locate(99) is None
    assert rtp_map.locate(250) == Position("a", 40, 40)
    assert rtp_map.locate(10_000) == Position("b", 20, 20)


def test_nothing_said_nothing_heard() -> None:
    rtp_map = RtpMap(TICKS)
    assert rtp_map.locate(5) is None
    assert rtp_map.end_tick == 0
    rtp_map.take_back(0)
    assert rtp_map.locate(5) is None


def test_what_is_not_sent_after_all_was_not_heard() -> None:
    rtp_map = two_replies()
    rtp_map.take_back(150)
    assert rtp_map.locate(400) == Position("a", 25, 25)
    rtp_map.record(160, "c", 0, 5)
    assert rtp_map.locate(400) == Position("c", 5, 5)


def test_a_reply_that_ran_dry_goes_on_where_it_was() -> None:
    rtp_map = RtpMap(TICKS)
    rtp_map.record(0, "a", 0, 10)
    rtp_map.record(60, "a", 10, 10)
    assert rtp_map.locate(50) == Position("a", 10, 10)
    assert rtp_map.locate(64) == Position("a", 12, 20)


@pytest.mark.parametrize(
    ("tick", "left"),
    [
        (0, Position("b", 0, 0)),
        (40, Position("b", 0, 0)),
        (60, Position("b", 0, 0)),
        (64, Position("b", 2, 2)),
        (90, Position("b", 10, 10)),
        (100, Position("b", 10, 10)),
        (106, Position("b", 13, 13)),
        (120, None),
    ],
)
def test_it_is_told_what_is_left_of_the_reply_of_which_something_is_taken_back(tick: int, left: Position) -> None:
    rtp_map = RtpMap(TICKS)
    rtp_map.record(0, "a", 0, 20)
    rtp_map.record(60, "b", 0, 10)
    rtp_map.record(100, "b", 10, 10)
    assert rtp_map.take_back(tick) == left
    assert rtp_map.end_tick <= max(tick, 40)
    assert rtp_map.take_back(tick) is None


def test_of_a_reply_that_has_yet_to_begin_nothing_was_heard() -> None:
    rtp_map = RtpMap(TICKS)
    rtp_map.record(100, "a", 0, 20)
    rtp_map.record(200, "b", 0, 10)
    rtp_map.record(300, "b", 10, 10)
    assert rtp_map.heard_at(50) == (Position("a", 0, 0), Position("b", 0, 0))
    assert rtp_map.heard_at(150) == (Position("a", 20, 20), Position("b", 0, 0))
    assert rtp_map.heard_at(202) == (Position("b", 1, 10),)
    assert rtp_map.heard_at(400) == (Position("b", 20, 20),)


def test_nothing_is_taken_back_where_nothing_was_said() -> None:
    assert RtpMap(TICKS).take_back(0) is None


def test_the_oldest_are_forgotten() -> None:
    rtp_map = RtpMap(TICKS)
    for number in range(SPANS_MAX + 1):
        rtp_map.record(number * 100, f"r{number}", 0, 10)
    assert rtp_map.locate(50) is None
    assert rtp_map.locate(100) == Position("r1", 0, 10)


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("ab"), st.integers(1, 20)), max_size=SPANS_MAX))
def test_every_tick_is_where_it_was_recorded(steps: list[tuple[int, str, int]]) -> None:
    rtp_map, ticks, told = RtpMap(TICKS), list[tuple[str, int] | None](), {"a": 0, "b": 0}
    for silence, response, samples in steps:
        ticks += [ticks[-1] if ticks else None] * silence
        rtp_map.record(len(ticks), response, told[response], samples)
        for sample in range(told[response], told[response] + samples):
            ticks += [(response, sample)] * TICKS
        told[response] += samples
        if ticks:
            ticks.append((response, told[response]))
    for tick, position in enumerate(ticks):
        found = rtp_map.locate(tick)
        assert (found and (found.response, found.samples)) == position
        assert found is None or found.samples <= found.until


@given(st.integers(0, 1 << 40), st.integers(-(1 << 31) + 1, (1 << 31) - 1))
def test_a_timestamp_is_taken_for_the_nearest_tick(near: int, distance: int) -> None:
    tick = near + distance
    assert unwrap(tick % TIMESTAMP_MODULUS, near) == tick
