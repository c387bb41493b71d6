"""Prometheus metrics. Labels are closed sets: never a session, a text or a client's value."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from sessions.effects import Figure
from stages.messages import Audited

_LATENCY_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0)
_SHORT_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_BATCH_STEPS = (1, 2, 4, 8, 16, 32)


class Metrics:
    """One registry per gateway process, so that tests and several gateways do not share figures."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.gateway = Gauge(
            "duplex_gateway_info",
            "Which gateway this is, and the life that it is in",
            ["gateway", "owner"],
            registry=registry,
        )
        self.threads = Gauge("duplex_threads", "Threads of the gateway", registry=registry)
        self.tasks = Gauge("duplex_tasks", "Tasks of the gateway's event loop", registry=registry)
        self._add_latencies(registry)
        self._add_outcomes(registry)
        self._add_present(registry)
        self._add_replicas(registry)
        self._add_telephony(registry)
        self._add_webrtc(registry)

    def _add_latencies(self, registry: CollectorRegistry) -> None:
        self.first_audio_seconds = Histogram(
            "duplex_first_audio_seconds",
            "Caller's last sound to the first reply frame handed to the kernel",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.encoder_wait_seconds = Histogram(
            "duplex_encoder_wait_seconds", "End of turn to transcript", buckets=_SHORT_S, registry=registry
        )
        self.stage_service_seconds = _of_steps(registry, "service_seconds", "One step's computing", _SHORT_S)
        self.stage_queue_seconds = _of_steps(registry, "queue_seconds", "One step's waiting", _SHORT_S)
        self.stage_batch_steps = _of_steps(registry, "batch_steps", "Steps in each step's batch", _BATCH_STEPS)
        self.barge_in_stop_seconds = Histogram(
            "duplex_barge_in_stop_seconds",
            "First interrupting sample received to the last old sample handed to the kernel",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.hold_seconds = Histogram(
            "duplex_hold_seconds",
            "First sample of speech over our own received to the hold of our sound",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.holds = Counter("duplex_holds", "Holds, by what they came to", ["outcome"], registry=registry)
        self.drain_lag_seconds = Histogram(
            "duplex_drain_lag_seconds", "Terminal to empty ledger", ["status"], buckets=_SHORT_S, registry=registry
        )

    def _add_outcomes(self, registry: CollectorRegistry) -> None:
        self.epochs_ended = Counter("duplex_epochs_ended", "Epochs ended", ["reason"], registry=registry)
        self.stale_dropped = Counter(
            "duplex_stale_dropped", "What came for something that had ended", ["where"], registry=registry
        )
        self.wasted_audio_seconds = Counter(
            "duplex_wasted_audio_seconds", "Generated and never sent", registry=registry
        )
        self.prepared_replies = Counter(
            "duplex_prepared_replies",
            "Replies begun in a pause, by what became of them",
            ["outcome"],
            registry=registry,
        )
        self.fillers = Counter("duplex_fillers", "Waits that were bridged by words", registry=registry)
        self.input_misplaced_samples = Counter(
            "duplex_input_misplaced_samples",
            "Samples that clients sent twice, or left out, by the offsets that they name",
            ["what"],
            registry=registry,
        )
        self.underruns = Counter("duplex_underruns", "Replies that ran dry at the ear", registry=registry)
        self.responses = Counter("duplex_responses", "Responses by terminal status", ["status"], registry=registry)
        self.errors = Counter("duplex_errors", "Errors by who must act", ["owner", "code"], registry=registry)
        self.calls_refused = Counter("duplex_calls_refused", "Calls refused at the door", ["reason"], registry=registry)
        self.audits = Counter(
            "duplex_audits",
            "Answers about what had drained or left, by whether anything of it was still held",
            ["stage", "outcome"],
            registry=registry,
        )
        self.audit_found = Counter(
            "duplex_audit_found", "What was still held, and must not have been", ["stage", "kind"], registry=registry
        )
        self.store_errors = Counter(
            "duplex_store_errors", "Writes to the store that failed", ["kind"], registry=registry
        )
        self.service_calls = Counter(
            "duplex_service_calls", "Calls of tools that the service carries out", ["outcome"], registry=registry
        )
        self.tool_request_seconds = Histogram(
            "duplex_tool_request_seconds",
            "Request of a tool to its answer",
            ["tool", "outcome"],
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.items_trimmed = Counter(
            "duplex_items_trimmed", "Items that left a conversation since it was too long", registry=registry
        )
        self.durability_suspended = Counter(
            "duplex_durability_suspended", "Times that a call went on unstored for a while", registry=registry
        )

    def _add_present(self, registry: CollectorRegistry) -> None:
        """Gauges that are read when asked."""
        self.calls = Gauge("duplex_calls", "Calls in progress", registry=registry)
        self.calls_unstored = Gauge(
            "duplex_calls_unstored", "Calls that go on while the store takes nothing of them", registry=registry
        )
        self.store_ready = Gauge("duplex_store_ready", "1 while the store takes writes", registry=registry)
        self.store_durable = Gauge(
            "duplex_store_durable", "1 where the store is known to give the durability asked for", registry=registry
        )
        self.replay_bytes = Gauge(
            "duplex_replay_bytes",
            "What connections that have ended were sent, kept for clients that come back",
            registry=registry,
        )
        self.pool_streams = Gauge(
            "duplex_pool_streams",
            "Streams asked of a stage and not over, those of lost processes among them",
            ["stage"],
            registry=registry,
        )
        self.undrained = Gauge("duplex_undrained_responses", "Responses whose ledger is not empty", registry=registry)
        self.credit_in_use_samples = Gauge(
            "duplex_credit_in_use_samples", "Audio generated and not yet sent, all calls", registry=registry
        )
        self.encoder_credit_out_samples = Gauge(
            "duplex_encoder_credit_out_samples",
            "Sound fed to the encoder and not yet used, all calls",
            registry=registry,
        )
        self.lead_seconds = Gauge(
            "duplex_lead_seconds", "Furthest that any reply was sent ahead of the ear, by estimate", registry=registry
        )
        self.pacer_lateness_seconds = Gauge(
            "duplex_pacer_lateness_seconds", "Worst lateness of the pacer since the last scrape", registry=registry
        )
        self.events_recorded = Gauge(
            "duplex_events_recorded", "Events that the process has entered in its log", ["process"], registry=registry
        )
        self.events_overwritten = Gauge(
            "duplex_events_overwritten", "Of these, how many its log holds no more", ["process"], registry=registry
        )

    def _add_replicas(self, registry: CollectorRegistry) -> None:
        """Of the processes that the supervisor keeps; the gateway is one of them."""
        names = ["stage", "replica"]
        self.stage_up = Gauge("duplex_stage_up", "1 while the replica can be reached", names, registry=registry)
        self.replica_incarnation = Gauge(
            "duplex_replica_incarnation", "How many times it was started", names, registry=registry
        )
        self.replica_deaths = Gauge(
            "duplex_replica_deaths", "How many times it has died since the service began", names, registry=registry
        )
        self.replica_hangs = Gauge(
            "duplex_replica_hangs", "How many times it was killed because it hung", names, registry=registry
        )
        self.replica_quarantined = Gauge(
            "duplex_replica_quarantined", "1 while it is left alone because it keeps dying", names, registry=registry
        )
        self.responses_retried = Counter(
            "duplex_responses_retried", "Responses made anew after the loss of a stage", registry=registry
        )

    def _add_telephony(self, registry: CollectorRegistry) -> None:
        self.phone_chunks_misplaced = Counter(
            "duplex_phone_chunks_misplaced",
            "Chunks of callers' sound that were lost, late, doubled or reordered on the way from their carrier",
            ["carrier", "what"],
            registry=registry,
        )
        self.phone_silence_seconds = Counter(
            "duplex_phone_silence_seconds",
            "Silence that was put in where a carrier had thrown sound away",
            ["carrier"],
            registry=registry,
        )

    def _add_webrtc(self, registry: CollectorRegistry) -> None:
        self.webrtc_connect_seconds = Histogram(
            "duplex_webrtc_connect_seconds",
            "Offer of a browser to its open channel, and to its first sound",
            ["until"],
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.rtp_packets_unused = Counter(
            "duplex_rtp_packets_unused",
            "Packets of callers that were not heard, and holes",
            ["what"],
            registry=registry,
        )
        self._measured: dict[Figure, Counter | Histogram] = {
            "answers_dropped": self.stale_dropped.labels("tools"),
            "drain_lag_seconds": self.drain_lag_seconds,
            "encoder_wait_seconds": self.encoder_wait_seconds,
            "epochs_ended": self.epochs_ended,
            "fillers": self.fillers,
            "first_audio_seconds": self.first_audio_seconds,
            "holds": self.holds,
            "items_trimmed": self.items_trimmed,
            "prepared_replies": self.prepared_replies,
            "responses_retried": self.responses_retried,
            "service_calls": self.service_calls,
            "wasted_audio_seconds": self.wasted_audio_seconds,
        }

    def will_audit(self, stage: str) -> None:
        """Both outcomes are told from the beginning, so that the first one that is wrong is a rise."""
        for outcome in ("clean", "held"):
            self.audits.labels(stage, outcome)

    def audited(self, stage: str, answer: Audited) -> None:
        """Count one answer about what had been given back."""
        self.audits.labels(stage, "held" if answer.found else "clean").inc()
        for kind, count in answer.found.items():
            self.audit_found.labels(stage, kind).inc(count)

    def measured(self, name: Figure, value: float, label: str) -> None:
        """Enter a figure that a conversation has measured (`sessions.effects.Measured`)."""
        figure = self._measured[name]
        one = figure.labels(label) if label else figure
        if isinstance(one, Histogram):
            one.observe(value)
        else:
            one.inc(value)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


def _of_steps(registry: CollectorRegistry, name: str, what: str, buckets: Sequence[float]) -> Histogram:
    return Histogram(f"duplex_stage_{name}", what, ["stage", "kind"], buckets=buckets, registry=registry)
