"""Two of the kills that `python -m benchmarks session-kills` makes by the hundred."""

from __future__ import annotations

import pytest

from benchmarks.session_kills.plan import Kill, ServicePlan
from benchmarks.session_kills.report import Result, report
from benchmarks.session_kills.run import CALLS_AT_ONCE, live_through

pytestmark = [pytest.mark.live, pytest.mark.slow]


def test_a_gateway_and_the_store_take_nothing_with_them() -> None:
    result, told = Result(), list[str]()
    plan = ServicePlan(2, tool=True, seed=7, kills=(Kill("gateway", 800, 1), Kill("store", 800, 1)))
    live_through(plan, result, told.append)
    assert not any(result.faults.values()), "\n".join([*told, *report(result)])
    assert result.kills == {"gateway": 1, "store": 1}
    assert len(result.findings) == CALLS_AT_ONCE
    assert sum(found.words_heard for found in result.findings) > 0
    assert result.returns[2], "somebody had to come back"
