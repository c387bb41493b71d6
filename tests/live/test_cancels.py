"""Hundreds of cancels at random points of replies, by callers who also hang up: nothing of them is left anywhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.live.deeds import Plan, end_replies, holdings_at_rest
from tests.live.service import serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

CALLERS = 12
STORE_CONNECTIONS = 2 * CALLERS  # those once made stay: one for each call, and for each that is just ending
THREADS = 16
PROFILE = f"""
[thinker]
concurrency = {THREADS}
prefill_ms_per_token = 0.2
word_ms = {{kind = "uniform", low = 5, high = 15}}
reply_words = 20
[talker]
concurrency = {THREADS}
interruptible = false
[vocoder]
concurrency = {THREADS}
interruptible = false
first_chunk_ms = {{kind = "uniform", low = 20, high = 40}}
"""


def test_three_hundred_cancels_leave_nothing_behind(tmp_path: Path) -> None:
    profile = tmp_path / "profile.toml"
    profile.write_text(PROFILE)
    settings = {"synthetic_profile": str(profile), "calls_max": str(4 * CALLERS)}

    async def scenario() -> None:
        before = await holdings_at_rest(service)
        ended = await end_replies(service.address, Plan(CALLERS, cancels=300, after_s_max=0.5, seed=7))
        after = await holdings_at_rest(service)
        assert set(ended.statuses) == {"cancelled"}
        assert set(ended.drains) == {"complete"}
        assert min(ended.deeds.values()) > 0
        assert len(ended.deeds) == 7, "every deed was done"
        assert (before.ledgers, after.ledgers) == ({}, {})
        assert after.tasks == before.tasks
        assert after.threads["gateway"] == before.threads["gateway"]
        for part, descriptors in before.descriptors.items():
            assert after.descriptors[part] <= descriptors + (STORE_CONNECTIONS if part == "gateway" else 0)
            assert after.threads[part] <= before.threads[part] + THREADS

    with serving(tmp_path / "data", settings, engine="synthetic") as service:
        asyncio.run(scenario())
