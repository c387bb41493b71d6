"""Keys that become a number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duplex.telephony.digits import DIGITS_MAX, PAUSE_NS, Digits


def pressed(digits: Digits, keys: str) -> list[str]:
    return [digits.press(key, 0) for key in keys]


def test_a_terminator_ends_a_number() -> None:
    assert pressed(Digits(), "42#7#") == ["", "", "42", "", "7"]


def test_a_terminator_alone_says_nothing() -> None:
    assert pressed(Digits(), "##") == ["", ""]


def test_a_pause_ends_a_number() -> None:
    digits = Digits()
    digits.press("4", 1)
    digits.press("2", PAUSE_NS)
    assert digits.due_ns == 2 * PAUSE_NS
    assert [digits.tick(2 * PAUSE_NS - 1), digits.tick(2 * PAUSE_NS), digits.tick(9 * PAUSE_NS)] == ["", "42", ""]
    assert digits.due_ns is None


def test_so_many_are_a_number() -> None:
    assert pressed(Digits(), "1" * DIGITS_MAX)[-1] == "1" * DIGITS_MAX


@given(st.text("0123456789*ABCD#", max_size=200))
def test_no_key_is_lost(keys: str) -> None:
    digits = Digits()
    numbers = [*pressed(digits, keys), digits.tick(PAUSE_NS)]
    assert "".join(numbers) == keys.replace("#", "")
    assert all(len(number) <= DIGITS_MAX for number in numbers)
