"""Distributions by name: what a profile's option looks like, and how values are drawn from it.

    word_ms = 16                                                   always the same
    word_ms = {kind = "uniform", low = 10, high = 20}
    word_ms = {kind = "lognormal", median = 16, sigma = 0.25}      sigma: of the logarithm
    word_ms = {kind = "exponential", mean = 16}
    word_ms = {kind = "trace", file = "words.txt"}                 one value per line, in order, over and over

Rules
* Values are in the unit that the option's name says, and never exceed `VALUE_MAX`.
* The same seed gives the same values in the same order.
* What is wrong is told when the option is read, a trace's file included.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from math import isfinite, log
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec

# A minute, for service times: beyond any deadline, so that a long tail cannot hold a thread for ever.
VALUE_MAX = 60_000
TRACE_VALUES_MAX = 1_000_000

_Value = Annotated[float, msgspec.Meta(ge=0, le=VALUE_MAX)]
_Positive = Annotated[float, msgspec.Meta(gt=0, le=VALUE_MAX)]


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of the distributions that have more than one value."""


class Uniform(Shape, frozen=True, tag="uniform"):
    low: _Value
    high: _Value

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")


class Lognormal(Shape, frozen=True, tag="lognormal"):
    median: _Positive
    sigma: Annotated[float, msgspec.Meta(ge=0, le=5)]


class Exponential(Shape, frozen=True, tag="exponential"):
    mean: _Positive


class Trace(Shape, frozen=True, tag="trace"):
    """`file` is relative to the working directory."""

    file: str

    def __post_init__(self) -> None:
        self.values()

    def values(self) -> list[float]:
        """The file's values; raises `ValueError` where it cannot be read, or is no list of values."""
        try:
            lines = Path(self.file).read_text(encoding="utf-8").split()
        except OSError as error:
            raise ValueError(f"trace {self.file}: {error.strerror}") from error
        if not 1 <= len(lines) <= TRACE_VALUES_MAX:
            raise ValueError(f"trace {self.file}: {len(lines)} values, not 1 to {TRACE_VALUES_MAX}")
        return [self._value(number, line) for number, line in enumerate(lines, 1)]

    def _value(self, number: int, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not isfinite(value) or not 0 <= value <= VALUE_MAX:
            raise ValueError(f"trace {self.file}: value {number} is not within 0 to {VALUE_MAX}")
        return value


Distribution = _Value | Uniform | Lognormal | Exponential | Trace
Draw = Callable[[], float]


def drawing(distribution: Distribution, seed: str) -> Draw:
    """Draws values of `distribution`, in an order that `seed` fixes."""
    draw = _unlimited(distribution, Random(seed))
    return lambda: min(draw(), float(VALUE_MAX))


def _unlimited(distribution: Distribution, random: Random) -> Draw:
    match distribution:
        case Uniform(low, high):
            return lambda: random.uniform(low, high)
        case Lognormal(median, sigma):
            return lambda: random.lognormvariate(log(median), sigma)
        case Exponential(mean):
            return lambda: random.expovariate(1 / mean)
        case Trace():
            values = cycle(distribution.values())
            return lambda: next(values)
        case constant:
            return lambda: constant
