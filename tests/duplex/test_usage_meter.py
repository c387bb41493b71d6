"""What a call uses, in whole units of its allowance."""

from __future__ import annotations

from duplex.usage_meter import UsageMeter
from sessions.quotas import Allowance, Quotas

ALL = Quotas(audio_seconds_per_day=100, bytes_per_day=1_000, tool_calls_per_day=1)


def filled() -> Allowance:
    one = Allowance(ALL)
    one.drawn(
        {"audio_ms": 1_000, "bytes": 1_000, "tool_calls": 1}, {"audio_ms": 1_000, "bytes": 1_000, "tool_calls": 1}
    )
    return one


def test_sound_counts_in_both_directions_and_no_part_of_a_ms_is_lost() -> None:
    allowance = filled()
    meter = UsageMeter(allowance)
    for newest in range(0, 16_001, 7):  # a second of the caller's, at 16 kHz
        meter.heard(newest)
    meter.heard(16_000)
    assert allowance.unspent().get("audio_ms", 0) == 0
    allowance.drawn({"audio_ms": 1_000}, {"audio_ms": 1_000})
    for _ in range(1_000):
        meter.said(12, 24_000)
    assert allowance.unspent()["audio_ms"] == 500


def test_messages_and_tools() -> None:
    allowance = filled()
    meter = UsageMeter(allowance)
    meter.message(400)
    meter.message(500)
    assert [meter.may_call_tool(), meter.may_call_tool()] == [True, False]
    assert allowance.unspent() == {"audio_ms": 1_000, "bytes": 100}
