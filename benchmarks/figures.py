"""Medians and percentiles as lines of text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile of a non-empty sequence; `share` 0.95 is p95."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def line(name: str, values: Sequence[float], unit: str = "ms") -> str:
    """`name  n  median  p95  max`, or that there is nothing."""
    if not values:
        return f"{name:<44} n=0"
    figures = (statistics.median(values), percentile(values, 0.95), max(values))
    median, p95, worst = (f"{figure:8.1f}" for figure in figures)
    return f"{name:<44} n={len(values):<4} median {median}  p95 {p95}  max {worst} {unit}"
