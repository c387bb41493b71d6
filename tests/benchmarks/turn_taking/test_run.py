"""The shell of the evaluation where nothing answers; where something does, tests/live/test_turn_taking.py has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.service import Service
from benchmarks.turn_taking import run
from benchmarks.turn_taking.run import Order, evaluate


@asynccontextmanager
async def nobody(engine: str, **settings: str) -> AsyncIterator[Service]:
    """A service at a port where nothing listens (RFC 6335: 0 is reserved; 9 is discard, which nobody runs)."""
    yield Service("http://127.0.0.1:9", 0, Path(), Path())


@pytest.mark.slow
def test_a_call_that_breaks_is_told_and_leaves_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "running_service", nobody)
    said: list[str] = []
    order = Order("scripted", events=2, seed=1, calls=2, out=tmp_path / "out", cache=tmp_path / "voices")
    assert not asyncio.run(evaluate(order, said.append))
    assert sum(line.startswith("a call broke: no WebSocket server at") for line in said) == 2
    assert (order.out / "scripted-1.md").is_file()
