"""The pauses before a process is started again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.restart import PAUSE_NS_MAX, PAUSE_NS_MIN, STEADY_NS, RestartPolicy


def pauses(lives_ns: list[int]) -> list[int]:
    """The pause after each of `lives_ns`, with the clock running on through the pauses."""
    policy, now_ns, given_ns = RestartPolicy(), 7_000_000_000, []
    for life_ns in lives_ns:
        policy.started(now_ns)
        now_ns += life_ns
        given_ns.append(policy.died(now_ns))
        now_ns += given_ns[-1]
    return given_ns


def test_the_first_death_is_mended_at_once_and_each_further_one_waits_twice_as_long() -> None:
    assert pauses([1] * 9) == [0, *(PAUSE_NS_MIN << n for n in range(6)), PAUSE_NS_MAX, PAUSE_NS_MAX]


@pytest.mark.parametrize(("life_ns", "expected"), [(STEADY_NS - 1, PAUSE_NS_MIN << 2), (STEADY_NS, 0)])
def test_only_a_steady_life_clears_the_account(life_ns: int, expected: int) -> None:
    assert pauses([1, 1, 1, life_ns])[-1] == expected


def test_the_account_starts_anew_after_a_steady_life() -> None:
    assert pauses([1, 1, STEADY_NS, 1, 1]) == [0, PAUSE_NS_MIN, 0, PAUSE_NS_MIN, 2 * PAUSE_NS_MIN]


def test_the_pauses_of_others_are_their_own() -> None:
    one, other = RestartPolicy(), RestartPolicy()
    for policy in (one, one, one):
        policy.started(0)
        policy.died(1)
    other.started(0)
    assert other.died(1) == 0
    assert (one.deaths_in_a_row, other.deaths_in_a_row) == (3, 1)


@given(st.lists(st.integers(0, 2 * STEADY_NS), max_size=200))
def test_no_pause_exceeds_the_limit_and_none_shrinks_without_a_steady_life(lives_ns: list[int]) -> None:
    given_ns = pauses(lives_ns)
    assert all(0 <= pause_ns <= PAUSE_NS_MAX for pause_ns in given_ns)
    for before, after, life_ns in zip(given_ns, given_ns[1:], lives_ns[1:], strict=False):
        assert after == 0 if life_ns >= STEADY_NS else after >= max(before, PAUSE_NS_MIN)
