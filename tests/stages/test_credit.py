"""Credit against plain bookkeeping: every unit is either available or in flight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.credit import Credit, CreditAccount, CreditError, CreditStatistics


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


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(("take", "give_back", "close")), st.integers(0, 6)), max_size=60
    )
)
def test_an_account_holds_what_its_credits_have_in_flight(moves: list[tuple[int, str, int]]) -> None:
    account, peak = CreditAccount(), 0
    lent = [Credit(6, account) for _ in range(4)]
    for number, move, units in moves:
        one = lent[number]
        match move:
            case "take":
                one.take(units)
            case "give_back":
                one.give_back(min(units, one.window - one.available))
            case _:
                one.close()
        in_flight = sum(credit.window - credit.available for credit in lent)
        peak = max(peak, in_flight)
        assert (account.in_flight, account.peak) == (in_flight, peak)
    for credit in lent:
        credit.close()
    assert account.in_flight == 0


def test_credit_moves_when_units_go_or_come_and_not_when_they_are_refused() -> None:
    credit = Credit(4)
    assert (credit.take(4), credit.moves) == (True, 1)
    assert (credit.take(1), credit.moves) == (False, 1)
    credit.give_back(1)
    assert credit.moves == 2
