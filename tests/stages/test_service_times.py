"""What a kind of step is expected to take, from what it took."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stages.service_times import KindService, ServiceTimes

MS = 1_000_000


def test_an_unknown_kind_takes_no_time_and_the_first_batch_tells_all() -> None:
    times = ServiceTimes()
    assert times.predicted_ns("decode") == 0
    times.observe("decode", 0, 40 * MS)
    assert times.predicted_ns("decode") == 40 * MS
    assert times.predicted_ns("say") == 0


def test_an_estimate_rises_four_times_as_fast_as_it_falls() -> None:
    times = ServiceTimes()
    times.observe("decode", 0, 32 * MS)
    times.observe("decode", 32 * MS, 64 * MS)
    assert times.predicted_ns("decode") == 40 * MS
    times.observe("decode", 40 * MS, 8 * MS)
    assert times.predicted_ns("decode") == 38 * MS


def test_kinds_are_apart_and_errors_are_told_by_their_mean() -> None:
    times = ServiceTimes()
    times.observe("decode", 0, 10 * MS)
    times.observe("decode", 10 * MS, 6 * MS)
    times.observe("say", 0, 3 * MS)
    assert times.statistics() == (
        KindService("decode", 2, 10 * MS - MS // 4, 8 * MS, 7 * MS),
        KindService("say", 1, 3 * MS, 3 * MS, 3 * MS),
    )


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=50))
def test_an_estimate_lies_within_what_has_been_seen(taken: list[int]) -> None:
    times = ServiceTimes()
    for service_ns in taken:
        times.observe("decode", times.predicted_ns("decode"), service_ns)
    assert min(taken) <= times.predicted_ns("decode") <= max(taken)


def test_an_estimate_settles_above_the_mean() -> None:
    times = ServiceTimes()
    for number in range(400):
        times.observe("decode", 0, (10, 50)[number % 2] * MS)
    assert 35 * MS < times.predicted_ns("decode") < 48 * MS
