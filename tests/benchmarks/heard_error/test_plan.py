"""The plans of callers: as many cuts as asked for, the same for the same seed, and none that cannot be."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.heard_error.plan import CONDITIONS, CUTS_PER_CALL, MOMENTS, REPORTS, Transport, plan_calls

TRANSPORTS: tuple[Transport, ...] = ("websocket", "webrtc", "twilio", "asterisk")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_way_to_call_and_to_cut_is_there(transport: Transport) -> None:
    plans = plan_calls(transport, 600, seed=1)
    assert len(plans) * CUTS_PER_CALL == 600
    kinds = {(reports, conditions) for reports in REPORTS[transport] for conditions in CONDITIONS[transport]}
    assert {(one.reports, one.conditions) for one in plans} == kinds
    cuts = [cut for one in plans for cut in one.cuts]
    assert {cut.moment for cut in cuts} == set(MOMENTS)
    assert Counter(cut.deed for cut in cuts)["hang_up"] == len(plans) // 2
    assert all(0 <= cut.share < 1 for cut in cuts)
    after_done = {cut.deed for cut in cuts if cut.moment == "after_done"}
    assert after_done.isdisjoint({"cancel", "stop"}), "what is over cannot be cancelled"


def test_a_seed_draws_the_same_again() -> None:
    assert plan_calls("websocket", 50, seed=3) == plan_calls("websocket", 50, seed=3)
    assert plan_calls("websocket", 50, seed=3) != plan_calls("websocket", 50, seed=4)


def test_the_network_is_as_the_conditions_are() -> None:
    prompt, uneven, slow = (plan.network() for plan in plan_calls("websocket", 15, seed=1))
    assert {prompt.down_ms() for _ in range(100)} == {prompt.up_ms()} == {0}
    delays = [uneven.down_ms() for _ in range(200)]
    assert min(delays) >= 100
    assert max(delays) - min(delays) <= uneven.buffer_ms, "its jitter buffer makes up for it"
    assert sorted({slow.down_ms() for _ in range(50)}) == [0, 400]
