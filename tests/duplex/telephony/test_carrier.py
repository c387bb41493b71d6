"""The words that all carriers have in common."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.telephony.carrier import CarrierError, Dtmf, digit_of, linear_line, mark_name, parse_mark


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**50))
def test_a_mark_is_called_what_it_marks(epoch: int, offset: int) -> None:
    assert parse_mark(mark_name(epoch, offset)) == (epoch, offset)


@given(st.text(max_size=50))
def test_any_other_name_is_no_mark_of_ours(name: str) -> None:
    with suppress(CarrierError):
        assert parse_mark(name) == tuple(map(int, name.split(":")))


@pytest.mark.parametrize("name", ["", ":", "1", "1:", ":1", "1:-1", "1:2:3", "1:²", "1:" + "9" * 21])
def test_what_has_the_wrong_form_is_no_mark(name: str) -> None:
    with pytest.raises(CarrierError) as refused:
        parse_mark(name)
    assert (refused.value.code, refused.value.fatal) == ("unknown_mark", False)


@pytest.mark.parametrize("digit", ["0", "*", "#", "a", "D"])
def test_a_key_that_telephones_have(digit: str) -> None:
    assert digit_of(digit) == Dtmf(digit.upper())


@pytest.mark.parametrize("digit", ["", "12", "E", "ß", " "])
def test_a_key_that_they_do_not_have(digit: str) -> None:
    with pytest.raises(CarrierError) as refused:
        digit_of(digit)
    assert refused.value.code == "invalid_digit"


def test_a_linear_line_carries_samples_as_they_are() -> None:
    line = linear_line(16_000)
    assert (line.encode(b"\x01\x02"), line.sample_rate) == (b"\x01\x02", 16_000)
