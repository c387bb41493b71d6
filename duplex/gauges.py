"""What of a gateway is read when its metrics are asked for, and what its workers and its supervisor tell it of that."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence

import msgspec
import structlog

from duplex.call import Call
from duplex.metrics import Metrics
from duplex.stage_pool import StagePool
from stages.event_log import EventKind, EventLog
from stages.messages import Audited, ReplicaReport
from stages.replica import ReplicaState

_log = structlog.get_logger("duplex.gateway")


def read_gauges(metrics: Metrics, calls: Sequence[Call], stages: Mapping[str, StagePool]) -> None:
    """Set the gauges that tell of the present."""
    metrics.calls_unstored.set(sum(call.journal.suspended for call in calls))
    metrics.undrained.set(sum(call.conversation.speaking.undrained for call in calls))
    ledgers = [ledger for call in calls for ledger in call.ledgers()]
    metrics.credit_in_use_samples.set(sum(ledger.unsent for ledger in ledgers))
    metrics.encoder_credit_out_samples.set(sum(call.listening.credit_out for call in calls))
    now_ns = time.monotonic_ns()
    leads_ns = (call.conversation.speaking.lead_ns(now_ns) for call in calls)
    metrics.lead_seconds.set(max(leads_ns, default=0) / 1e9)
    for name, stage in stages.items():
        metrics.pool_streams.labels(name).set(stage.streams)
    metrics.threads.set(threading.active_count())
    metrics.tasks.set(len(asyncio.all_tasks()))


def note_audit(metrics: Metrics, events: EventLog, stage: str, answer: Audited) -> None:
    """What had been given back was looked for; anything that is there is a fault of ours."""
    metrics.audited(stage, answer)
    trail = events.of(answer.session, answer.stream)
    for kind, count in (answer.found or {"": 0}).items():
        trail.add(EventKind.AUDITED, count, stage, kind, answer.replica)
    if answer.found:
        _log.error("audit_found", stage=stage, **msgspec.structs.asdict(answer))


def note_report(metrics: Metrics, report: ReplicaReport) -> None:
    """The supervisor says how one of its processes has fared."""
    names = report.stage, report.replica
    metrics.replica_deaths.labels(*names).set(report.deaths)
    metrics.replica_hangs.labels(*names).set(report.hangs)
    metrics.replica_incarnation.labels(*names).set(report.incarnation)
    metrics.replica_quarantined.labels(*names).set(report.state == ReplicaState.QUARANTINED.value)
