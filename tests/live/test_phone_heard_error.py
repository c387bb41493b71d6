"""A few of the cuts that `python -m benchmarks phone-heard-error` makes by the hundred."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from benchmarks.heard_error.plan import Transport, plan_calls
from benchmarks.heard_error.run import measure, oracle_service
from benchmarks.phone_heard_error import CARRIERS, unsure_ms
from tests.live.service import Service
from tests.live.test_heard_error import unsaid

pytestmark = [pytest.mark.live, pytest.mark.slow]

CUTS = 15


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with oracle_service(log_level="info") as running:
        yield running


@pytest.mark.parametrize("carrier", CARRIERS)
def test_history_is_never_above_what_left_the_queue(service: Service, carrier: Transport) -> None:
    findings = asyncio.run(measure(unsaid, service, plan_calls(carrier, CUTS, seed=7)))
    assert len(findings) == CUTS
    in_time = [one for one in findings if not one.spoken.late]  # how many that are is the machine's affair
    assert [one for one in in_time if one.faults or one.ms_error > unsure_ms(one)] == []
    assert {one.basis for one in in_time if one.heard} <= {"mark", "estimated"}
