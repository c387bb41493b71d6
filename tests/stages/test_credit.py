"""Credit against plain bookkeeping: every unit is either available or in flight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.credit import Credit, CreditError, CreditStatistics


@given(
    st.integers(1, 40), st.lists(st.tuples(st.sampled_from(("take", "give_back")), st.integers(-2, 45)), max_size=40)
)
def test_units_are_neither_made_nor_lost(window: int, moves: list[tuple[str, int]]) -> None:
    credit = Credit(window)
    in_flight, peak, refused = 0, 0, 0
    for move, units in moves:
        if move == "take":
            if not 0 <= units <= window:
                with pytest.raises(CreditError):
                    credit.take(units)
                continue
            fits = units <= window - in_flight
            assert credit.take(units) is fits
            in_flight += units if fits else 0
            refused += not fits
        elif 0 <= units <= in_flight:
            credit.give_back(units)
            in_flight -= units
        else:
            with pytest.raises(CreditError):
                credit.give_back(units)
        peak = max(peak, in_flight)
        assert credit.available + in_flight == credit.window == window
        assert credit.statistics() == CreditStatistics(window, in_flight, peak, refused)


def test_units_are_taken_all_or_nothing() -> None:
    credit = Credit(10)
    assert credit.take(7)
    assert not credit.take(4)
    assert credit.available == 3
    assert credit.take(3)
    assert credit.available == 0


def test_nothing_costs_nothing_even_when_all_is_in_flight() -> None:
    credit = Credit(1)
    assert credit.take(1)
    assert credit.take(0)
    credit.give_back(0)
    assert credit.available == 0


def test_what_was_given_back_cannot_be_given_back_again() -> None:
    credit = Credit(4)
    credit.take(4)
    credit.give_back(4)
    with pytest.raises(CreditError, match="1 units given back, 0 in flight"):
        credit.give_back(1)


def test_what_can_never_fit_is_a_bug_and_no_wait() -> None:
    with pytest.raises(CreditError, match="5 units can never fit a window of 4"):
        Credit(4).take(5)


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_lets_something_pass(window: int) -> None:
    with pytest.raises(CreditError, match="lets nothing pass"):
        Credit(window)
