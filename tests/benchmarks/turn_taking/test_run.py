"""The shell of the evaluation where nothing answers; where something does, tests/live/test_turn_taking.py has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.service import Service
from benchmarks.turn_taking import run
from benchmarks.turn_taking.run import LineKind, Order, TurnEnd, evaluate


@asynccontextmanager
async def nobody(engine: str, **settings: str) -> AsyncIterator[Service]:
    """A service at a port where nothing listens (RFC 6335: 0 is reserved; 9 is discard, which nobody runs)."""
    yield Service("http://127.0.0.1:9", 0, Path(), Path())


@pytest.mark.parametrize(
    ("more", "stem"),
    [
        ({}, "local-7"),
        ({"turn_end": TurnEnd.SOUND}, "local-7-sound"),
        ({"line": LineKind.TELEPHONE}, "local-7-telephone"),
        ({"turn_end": TurnEnd.WORDS, "line": LineKind.TELEPHONE}, "local-7-telephone-words"),
    ],
)
def test_a_report_is_named_after_what_was_not_as_usual(more: dict[str, Any], stem: str) -> None:
    assert Order("local", events=2, seed=7, calls=1, out=Path(), cache=Path(), **more).stem == stem


@pytest.mark.slow
def test_a_call_that_breaks_is_told_and_leaves_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "running_service", nobody)
    said: list[str] = []
    order = Order("scripted", events=2, seed=1, calls=2, out=tmp_path / "out", cache=tmp_path / "voices")
    assert not asyncio.run(evaluate(order, said.append))
    assert sum(line.startswith("a call broke: no WebSocket server at") for line in said) == 2
    assert (order.out / "scripted-1.md").is_file()
