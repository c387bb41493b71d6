"""Distributions: what a profile may say, and what is drawn."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, median

import msgspec
import pytest

from stages.engines.synthetic.distributions import (
    VALUE_MAX,
    Distribution,
    Exponential,
    Lognormal,
    Trace,
    Uniform,
    drawing,
)


def read(text: str) -> Distribution:
    """What stands behind an option of a profile."""
    option: Distribution = msgspec.toml.decode(f"option = {text}", type=dict[str, Distribution])["option"]
    return option


def drawn(distribution: Distribution, count: int = 2_000, seed: str = "1") -> list[float]:
    draw = drawing(distribution, seed)
    return [draw() for _ in range(count)]


@pytest.mark.parametrize(("text", "value"), [("16", 16.0), ("0", 0.0), ("2.5", 2.5)])
def test_a_number_is_always_the_same(text: str, value: float) -> None:
    assert set(drawn(read(text), 3)) == {value}


def test_uniform() -> None:
    values = drawn(read('{kind = "uniform", low = 10, high = 20}'))
    assert 10 <= min(values) < 10.2
    assert 19.8 < max(values) <= 20
    assert mean(values) == pytest.approx(15, abs=0.3)


def test_lognormal() -> None:
    values = drawn(read('{kind = "lognormal", median = 16, sigma = 0.25}'))
    assert median(values) == pytest.approx(16, rel=0.03)
    below = sum(value < 16 * 0.7788 for value in values) / len(values)  # e^-0.25: one sigma below
    assert below == pytest.approx(0.159, abs=0.03)


def test_exponential() -> None:
    values = drawn(read('{kind = "exponential", mean = 16}'))
    assert mean(values) == pytest.approx(16, rel=0.05)
    assert median(values) == pytest.approx(11.09, rel=0.07)  # ln 2 of the mean


def test_a_trace_is_replayed_in_order_and_over_and_over(tmp_path: Path) -> None:
    file = tmp_path / "trace.txt"
    file.write_text("5\n0\n\n12.5\n")
    assert drawn(read(f'{{kind = "trace", file = "{file}"}}'), 7) == [5, 0, 12.5, 5, 0, 12.5, 5]


@pytest.mark.parametrize("distribution", [Uniform(1, 2), Lognormal(5, 1), Exponential(5)])
def test_the_seed_fixes_what_is_drawn(distribution: Distribution) -> None:
    assert drawn(distribution, 5) == drawn(distribution, 5)
    assert drawn(distribution, 5) != drawn(distribution, 5, seed="2")


def test_no_tail_is_longer_than_the_limit() -> None:
    assert max(drawn(Lognormal(VALUE_MAX, 5))) == VALUE_MAX


@pytest.mark.parametrize(
    "text",
    [
        "-1",
        "60001",
        '"16"',
        '{kind = "gauss", mean = 1}',
        "{low = 1, high = 2}",
        '{kind = "uniform", low = 3, high = 2}',
        '{kind = "uniform", low = 3}',
        '{kind = "lognormal", median = 0, sigma = 1}',
        '{kind = "lognormal", median = 1, sigma = -1}',
        '{kind = "exponential", mean = 0}',
        '{kind = "exponential", mean = 1, median = 1}',
        '{kind = "trace", file = "nowhere/trace.txt"}',
    ],
)
def test_what_is_wrong_is_told_when_it_is_read(text: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"at `\$\[\.\.\.\]"):
        read(text)


@pytest.mark.parametrize("content", ["", "1\nfast\n", "1\n-1\n", "nan\n", "inf\n", "60001\n"])
def test_a_trace_holds_values_and_nothing_else(tmp_path: Path, content: str) -> None:
    file = tmp_path / "trace.txt"
    file.write_text(content)
    with pytest.raises(ValueError, match=f"trace {file}: "):
        Trace(str(file))


def test_a_trace_that_has_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"trace .*gone.txt: No such file"):
        Trace(str(tmp_path / "gone.txt"))
