"""The evaluation of turn-taking, end to end on an engine without models: a service, a call, voices, both files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks.turn_taking.run import LineKind, Order, evaluate

pytestmark = [pytest.mark.live, pytest.mark.slow]


def test_a_few_events_leave_a_report(tmp_path: Path) -> None:
    said: list[str] = []
    order = Order("scripted", events=4, seed=1, calls=2, out=tmp_path / "out", cache=tmp_path / "voices")
    assert asyncio.run(evaluate(order, said.append))
    whole = json.loads((order.out / "scripted-1.json").read_text(encoding="utf-8"))
    assert sorted(seen["number"] for seen in whole["observations"]) == [0, 1, 2, 3]
    assert whole["errors"] == []
    assert all(seen["sounds"] for seen in whole["observations"] if seen["over"])
    assert "# Turn-taking" in (order.out / "scripted-1.md").read_text(encoding="utf-8")
    assert sum("/4  " in line for line in said) == 4


def test_the_same_over_a_telephone(tmp_path: Path) -> None:
    out, cache = tmp_path / "out", tmp_path / "voices"
    order = Order("scripted", events=1, seed=1, calls=1, out=out, cache=cache, line=LineKind.TELEPHONE)
    assert asyncio.run(evaluate(order, lambda _: None))
    whole = json.loads((order.out / "scripted-1-telephone.json").read_text(encoding="utf-8"))
    (seen,) = whole["observations"]
    assert (whole["errors"], whole["line"]) == ([], "telephone")
    assert seen["sounds"]
