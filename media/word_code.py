"""The code of words that are numbers: sixteen symbols, of which any four tell the word and the rest prove it.

Theory of operation
    A word is (response, word). The two digits of each to the base 251 are the coefficients of a polynomial q of degree
    3, and its symbol at place p is q(x) + x^5 modulo 251, x = p + 1: a Reed-Solomon code (I. S. Reed, G. Solomon,
    1960). The term x^5 tells the place: symbols that are taken for those of other places differ from every word by a
    polynomial of degree 4, and so fit it at four places at most.

Rules
* Four symbols in a row propose a word; `AGREEING_IN_A_ROW` that agree with it prove it, or `AGREEING_IN_ALL`.
* Symbols of one word at wrong places, or one symbol again and again, agree with no word at more than five places.
* Two words differ in thirteen symbols at least; a word and the next of its response in all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

FIELD = 251  # the largest prime that fits a symbol of two times sixteen tones
SYMBOLS = 16
DATA_SYMBOLS = 4
PLACE_POWER = 5

RESPONSES = FIELD**2  # numbers of responses: 0..63000
WORDS = 4_096  # words of a response: 0..4095, about 14 minutes

# Four symbols propose, the others confirm. By chance a proposal is confirmed once in 4 million times (three more in a
# row, of four such runs), and is then compared with the sound itself. A word of which 20 ms are cut out still has seven
# whole symbols on one side.
AGREEING_IN_A_ROW = 7
AGREEING_IN_ALL = 9

Symbols = NDArray[np.int64]
Flags = NDArray[np.bool_]

_POINTS = np.arange(1, SYMBOLS + 1)
_POWERS = _POINTS[:, None] ** np.arange(DATA_SYMBOLS) % FIELD
_PLACES = _POINTS**PLACE_POWER % FIELD


def codeword(response: int, word: int) -> Symbols:
    """The symbols int64[16], each 0..250, of word number `word` of response number `response`."""
    assert 0 <= response < RESPONSES, f"response {response} is not within 0..{RESPONSES - 1}"
    assert 0 <= word < WORDS, f"word {word} is not within 0..{WORDS - 1}"
    digits = np.array([*divmod(response, FIELD), *divmod(word, FIELD)])
    return _evaluate(digits)


def _evaluate(digits: Symbols) -> Symbols:
    """The codewords (…, 16) of digits (…, 4)."""
    return (digits @ _POWERS.T + _PLACES) % FIELD


def _interpolation(first: int) -> Symbols:
    """What turns the polynomial's values at the four places from `first` on into its coefficients, (4, 4)."""
    points = [int(point) for point in _POINTS[first : first + DATA_SYMBOLS]]
    columns = []
    for point in points:
        others = [other for other in points if other != point]
        scale = int(np.prod([point - other for other in others]))
        coefficients = np.rint(np.poly(others)[::-1]).astype(np.int64)
        columns.append(coefficients * pow(scale, -1, FIELD) % FIELD)
    return np.array(columns).T


_INTERPOLATIONS = [_interpolation(first) for first in range(SYMBOLS - DATA_SYMBOLS + 1)]


def is_proof(agreeing: Flags) -> Flags:
    """Whether so many symbols agree, bool[…, 16], that the word is no chance: bool[…]."""
    runs = sliding_window_view(agreeing, AGREEING_IN_A_ROW, axis=-1).all(axis=-1).any(axis=-1)
    proof: Flags = runs | (agreeing.sum(axis=-1) >= AGREEING_IN_ALL)
    return proof


@dataclass(frozen=True, slots=True)
class Candidate:
    """Row `row` of what was received may be this word; `agreeing` is bool[16]."""

    row: int
    response: int
    word: int
    agreeing: Flags


def candidates(received: Symbols) -> list[Candidate]:
    """The words that rows of `received` (n, 16) may be; -1 stands where no symbol was made out. Rows may repeat."""
    found = []
    for first, interpolation in enumerate(_INTERPOLATIONS):
        places = slice(first, first + DATA_SYMBOLS)
        rows = np.flatnonzero((received[:, places] >= 0).all(axis=1))
        digits = (received[rows, places] - _PLACES[places]) @ interpolation.T % FIELD
        agreeing = _evaluate(digits) == received[rows]
        words = digits[:, 2] * FIELD + digits[:, 3]
        fits = is_proof(agreeing) & (words < WORDS)
        found += [
            Candidate(int(rows[at]), int(digits[at, 0] * FIELD + digits[at, 1]), int(words[at]), agreeing[at])
            for at in np.flatnonzero(fits)
        ]
    return found
