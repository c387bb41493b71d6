"""Gauges of the calls of a gateway, read when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence

from duplex.call import Call
from duplex.metrics import Metrics


def note_calls(metrics: Metrics, calls: Sequence[Call], now_ns: int) -> None:
    """Set what `metrics` says of `calls`: all that have not drained."""
    metrics.calls_unstored.set(sum(call.is_unstored for call in calls))
    metrics.undrained.set(sum(call.conversation.speaking.undrained for call in calls))
    ledgers = [ledger for call in calls for ledger in call.ledgers()]
    metrics.credit_in_use_samples.set(sum(ledger.unsent for ledger in ledgers))
    metrics.encoder_credit_out_samples.set(sum(call.listening.credit_out for call in calls))
    leads_ns = (call.conversation.speaking.lead_ns(now_ns) for call in calls)
    metrics.lead_seconds.set(max(leads_ns, default=0) / 1e9)
