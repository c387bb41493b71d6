"""A few of the cuts and holds that `python -m benchmarks heard-error` and `holds` make by the thousand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from benchmarks.heard_error.plan import Transport, plan_calls
from benchmarks.heard_error.report import is_good, report
from benchmarks.heard_error.run import measure, oracle_service
from benchmarks.holds import HOLDS_PER_CALL, WORDS, measure_holds
from tests.live.service import Service

pytestmark = [pytest.mark.live, pytest.mark.slow]

CUTS: dict[Transport, int] = {"websocket": 45, "webrtc": 25}
HOLDS: dict[Transport, int] = {"websocket": 12, "webrtc": 4}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with oracle_service(WORDS) as running:
        yield running


def unsaid(_text: str) -> None:
    """The progress of a benchmark is nothing to a test."""


@pytest.mark.parametrize("transport", CUTS)
def test_history_ends_where_the_ear_did(service: Service, transport: Transport) -> None:
    findings = asyncio.run(measure(unsaid, service, plan_calls(transport, CUTS[transport], seed=7)))
    assert len(findings) == CUTS[transport]
    assert is_good(findings), "\n".join(report(findings))


@pytest.mark.parametrize("transport", HOLDS)
def test_what_was_held_goes_on_where_it_stopped(service: Service, transport: Transport) -> None:
    held = asyncio.run(measure_holds(unsaid, service, transport, HOLDS[transport]))
    assert held.faults == {}
    assert held.holds >= HOLDS[transport] - HOLDS_PER_CALL, "a sound may come when the reply is over"
    assert held.seams > 0
