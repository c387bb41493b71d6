"""The report of kills: what is counted, and what is no longer good."""

from __future__ import annotations

import pytest

from benchmarks.session_kills.judge import Finding
from benchmarks.session_kills.report import PROMISES, Result, Return, is_good, report


def result(*, faults: dict[str, int] | None = None, speech_ms: float | None = 500) -> Result:
    found = Result(effects=2)
    found.kills.update(gateway=2, thinker=1, store=1)
    found.add(Finding(3, 20, 5, faults or {}, 0))
    found.returns[2] += [Return(100, speech_ms, 6), Return(120, speech_ms, 4)]
    return found


def test_what_was_counted_is_said() -> None:
    lines = report(result())
    assert lines[0] == "4 kills: gateway 2, thinker 1, store 1"
    assert lines[1] == "1 conversations, 3 turns, 20 words heard, 2 side effects"
    assert any(
        line.startswith("words marked possibly_heard") and line.endswith("10, 5.0 a gateway's kill") for line in lines
    )
    assert sum(line.startswith(PROMISES) and line.endswith(" 0") for line in lines) == len(PROMISES)


@pytest.mark.parametrize("name", PROMISES)
def test_a_promise_that_is_broken_is_not_good(name: str) -> None:
    assert is_good(result())
    assert not is_good(result(faults={name: 1}))


def test_how_soon_callers_are_back_is_an_aim_that_is_said() -> None:
    assert report(result(speech_ms=1_001))[-1] == "aim: p95 at most 1000 ms: 1001"
    assert is_good(result(speech_ms=1_001)), "and no promise"
    assert not report(result(speech_ms=None))[-1].startswith("aim"), "whose reply was no speech has no time"


def test_nothing_is_not_good() -> None:
    assert not is_good(Result())
