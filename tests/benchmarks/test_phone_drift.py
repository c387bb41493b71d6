"""Clocks that differ, on a virtual clock: a minute with 2,000 ppm drifts as far as ten with 200."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.phone_drift import CALLS, FRAME_MS, Found, drifting, keeps, phone_drift
from duplex.telephony.carrier_queue import CarrierQueue


@pytest.mark.slow
@pytest.mark.parametrize("skew_ppm", [-2_000, 2_000])
@pytest.mark.parametrize("carrier", CALLS)
def test_nothing_is_late_in_the_end_and_there_is_no_gap(carrier: str, skew_ppm: int) -> None:
    found = drifting(carrier, skew_ppm, 1.0, monologue=True)
    assert keeps(found), found.change_ms(found.out_ms)
    assert found.stalls > 20


@pytest.mark.slow
def test_a_queue_that_believes_its_own_clock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    told = CarrierQueue.played
    monkeypatch.setattr(CarrierQueue, "played", lambda queue, offset, now_ns, *_: told(queue, offset, now_ns))
    found = drifting("twilio", -2_000, 1.0, monologue=True)
    assert found.change_ms(found.out_ms)[1] > FRAME_MS
    assert not keeps(found)


def test_a_gap_breaks_the_promise() -> None:
    latencies = [(float(second), 100.0) for second in range(60)]
    assert keeps(Found(latencies, latencies))
    assert not keeps(Found(latencies, latencies, gaps_ms=[20.0]))
    assert not keeps(Found(latencies, latencies, filled_ms=20))
    late = [(at, ms + (at > 30) * (FRAME_MS + 1)) for at, ms in latencies]
    assert not keeps(Found(late, latencies))
    assert not keeps(Found(latencies, late))


@pytest.mark.slow
def test_replies_and_pauses() -> None:
    told: list[str] = []
    assert asyncio.run(phone_drift(told.append, minutes=1))
    assert len(told) == 16
    assert all(line.startswith("good") for line in told)
