"""The code of words: any few symbols tell the word, wrong places and chance do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.word_code import (
    AGREEING_IN_A_ROW,
    AGREEING_IN_ALL,
    FIELD,
    RESPONSES,
    SYMBOLS,
    WORDS,
    Candidate,
    Symbols,
    candidates,
    codeword,
    is_proof,
)

responses = st.integers(0, RESPONSES - 1)
words = st.integers(0, WORDS - 1)
symbols = st.integers(-1, FIELD - 1)


def polynomial(response: int, word: int) -> list[int]:
    """The code as its docstring defines it."""
    digits = (response // FIELD, response % FIELD, word // FIELD, word % FIELD)
    return [(sum(digit * x**power for power, digit in enumerate(digits)) + x**5) % FIELD for x in range(1, SYMBOLS + 1)]


def named(found: list[Candidate]) -> set[tuple[int, int]]:
    return {(one.response, one.word) for one in found}


def one_row(*received: int) -> Symbols:
    return np.array(received, dtype=np.int64)[None]


@given(responses, words)
def test_a_word_is_its_polynomial(response: int, word: int) -> None:
    assert codeword(response, word).tolist() == polynomial(response, word)


@given(responses, words, responses, words)
def test_two_words_have_few_symbols_in_common(response: int, word: int, other_response: int, other_word: int) -> None:
    same = (codeword(response, word) == codeword(other_response, other_word)).sum()
    assert same <= 3 or (response, word) == (other_response, other_word)


@given(responses, st.integers(0, WORDS - 2))
def test_the_next_word_has_none(response: int, word: int) -> None:
    assert not (codeword(response, word) == codeword(response, word + 1)).any()


@given(responses, words, st.integers(0, SYMBOLS - AGREEING_IN_A_ROW))
def test_seven_symbols_in_a_row_tell_the_word(response: int, word: int, first: int) -> None:
    received = np.full((3, SYMBOLS), -1)
    places = slice(first, first + AGREEING_IN_A_ROW)
    received[1, places] = codeword(response, word)[places]
    found = candidates(received)
    assert named(found) == {(response, word)}
    assert {one.row for one in found} == {1}
    assert found[0].agreeing.tolist() == (received[1] >= 0).tolist()


@given(responses, words, st.integers(0, SYMBOLS - AGREEING_IN_A_ROW), st.lists(symbols, min_size=16, max_size=16))
def test_wrong_symbols_beside_them_do_no_harm(response: int, word: int, first: int, noise: list[int]) -> None:
    received = np.array([noise])
    places = slice(first, first + AGREEING_IN_A_ROW)
    received[0, places] = codeword(response, word)[places]
    assert (response, word) in named(candidates(received))


@given(responses, words)
def test_six_symbols_are_too_few(response: int, word: int) -> None:
    received = codeword(response, word)[None].copy()
    received[0, AGREEING_IN_A_ROW - 1 :] = -1
    assert candidates(received) == []


@given(responses, words, st.sets(st.integers(4, SYMBOLS - 1), min_size=1, max_size=7))
def test_nine_symbols_need_not_stand_in_a_row(response: int, word: int, lost: set[int]) -> None:
    received = codeword(response, word)[None].copy()
    received[0, list(lost)] = -1
    assert named(candidates(received)) == {(response, word)}


@given(responses, words, st.integers(-8, 8).filter(bool), symbols)
def test_symbols_at_wrong_places_are_no_word(response: int, word: int, shift: int, filling: int) -> None:
    received = np.full(SYMBOLS, filling)
    places = np.arange(SYMBOLS) + shift
    inside = (places >= 0) & (places < SYMBOLS)
    received[inside] = codeword(response, word)[places[inside]]
    assert candidates(received[None]) == []


@given(st.integers(0, FIELD - 1))
def test_a_symbol_that_goes_on_and_on_is_no_word(symbol: int) -> None:
    assert candidates(one_row(*[symbol] * SYMBOLS)) == []


def test_words_beyond_the_last_are_not_proposed() -> None:
    assert named(candidates(one_row(*polynomial(7, WORDS - 1)))) == {(7, WORDS - 1)}
    assert candidates(one_row(*polynomial(7, WORDS))) == []


def test_what_proves_a_word() -> None:
    flags = np.zeros((4, SYMBOLS), dtype=np.bool_)
    flags[0, 5 : 5 + AGREEING_IN_A_ROW] = True
    flags[1, ::2] = True
    flags[2, ::2] = flags[2, 1] = True
    flags[3, 5 : 4 + AGREEING_IN_A_ROW] = True
    assert (flags[1].sum(), flags[2].sum()) == (AGREEING_IN_ALL - 1, AGREEING_IN_ALL)
    assert is_proof(flags).tolist() == [True, False, True, False]


@pytest.mark.parametrize(("response", "word"), [(RESPONSES, 0), (-1, 0), (0, WORDS), (0, -1)])
def test_other_numbers_are_a_bug_of_the_caller(response: int, word: int) -> None:
    with pytest.raises(AssertionError, match="is not within"):
        codeword(response, word)
