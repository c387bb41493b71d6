"""How the workers stand, asked every second: for `/metrics`, and for alerts.

Theory of operation
    Each replica that is up is sent `Inspect` on its control link and answers with a `WorkerSnapshot`. The newest of
    each is kept, and told as metrics when those are asked for, which are asked anew then: what is shown is the present.
    Each that is asked for by the second is also held against the limits (`duplex.alerts`).

Rules
* A replica that is down has no figures: the last ones would pass for the present.
* An alert is a log record, `alert_raised` or `alert_cleared`, of level warning, and a gauge by its cause.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from duplex.alerts import AlertLimits, Alerts, Cause, Cleared, Raised, readings_of
from duplex.path_load import stage_behind
from stages.messages import KvSnapshot, WorkerSnapshot

ANSWER_S_MAX = 0.2  # an event loop answers within a millisecond; of one that does not, the last answer is told
INSPECT_INTERVAL_S = 1.0  # five answers of about 100 µs; an alert is raised within two of them

_log = structlog.get_logger("duplex.inspection")

_REPLICA = ("stage", "replica")
_EDGE = (*_REPLICA, "edge")
_KIND = (*_REPLICA, "kind")
_CAUSE = (*_REPLICA, "cause")
_NS = 1e9


class Inspection(Collector):
    """`ask` sends `Inspect` to every replica that is up. Registers itself as a collector of metrics."""

    def __init__(self, limits: AlertLimits, registry: CollectorRegistry) -> None:
        self._limits = limits
        self._alerts = Alerts()
        self._snapshots: dict[tuple[str, str], WorkerSnapshot] = {}
        self._awaited: Counter[tuple[str, str]] = Counter()  # answers to be shown, and held against no limit
        self._answered = asyncio.Event()
        registry.register(self)

    async def run(self, ask: Callable[[], None]) -> None:
        """Ask until cancelled."""
        while True:
            ask()
            await asyncio.sleep(INSPECT_INTERVAL_S)

    async def refresh(self, ask: Callable[[], None], replicas: Collection[tuple[str, str]]) -> None:
        """Ask now, and come back when `replicas` (stage, replica), all that are up, have answered."""
        self._awaited.update(replicas)
        ask()
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S_MAX):
                while any(self._awaited[one] for one in replicas):
                    self._answered.clear()
                    await self._answered.wait()

    def take(self, stage: str, snapshot: WorkerSnapshot) -> None:
        """A replica of `stage` has answered."""
        name = stage, snapshot.replica
        self._snapshots[name] = snapshot
        if self._awaited[name]:
            self._awaited[name] -= 1
            self._answered.set()
            return
        for reading in readings_of(stage, snapshot, self._limits):
            said = self._alerts.observe(reading)
            if said is not None:
                _say(said)

    def stage_behind(self, wait_ns_max: int) -> str | None:
        """Which stage has fallen behind, and why; None where all keep up."""
        return stage_behind(self._snapshots, wait_ns_max)

    def forget(self, stage: str, replica: str) -> None:
        """The replica is down."""
        self._snapshots.pop((stage, replica), None)
        self._awaited.pop((stage, replica), None)
        self._answered.set()
        for cleared in self._alerts.forget(stage, replica):
            _say(cleared)

    # ---- metrics -----------------------------------------------------------------------------------

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See `Collector`."""
        yield from self._of_streams()
        yield from self._of_edges()
        yield from self._of_arenas()
        yield from self._of_schedulers()
        yield from self._of_kv()
        alerts = GaugeMetricFamily("duplex_alert", "Places where the cause is over its limit", labels=["cause"])
        for cause in Cause:
            alerts.add_metric([cause.value], self._alerts.raised(cause))
        yield alerts

    def _of_streams(self) -> Iterator[GaugeMetricFamily]:
        yield self._gauge("stage_streams", "Streams at a stage", lambda one: one.streams)
        yield self._gauge("stage_sessions", "Sessions that a stage keeps something for", lambda one: one.sessions)
        yield self._gauge("room_waiting", "Streams that wait for room to send", lambda one: one.room_waiting)
        yield self._gauge("room_wait_seconds", "The longest such wait", lambda one: one.room_wait_ns_max / _NS)

    def _of_arenas(self) -> Iterator[GaugeMetricFamily]:
        yield self._gauge("arena_blocks", "Blocks of an arena", lambda one: one.arena.blocks)
        yield self._gauge("arena_blocks_used", "Blocks in use", lambda one: one.arena.used)
        yield self._gauge("arena_blocks_used_peak", "Most blocks ever in use", lambda one: one.arena.used_peak)
        yield self._gauge("arena_blocks_orphaned", "Blocks whose lease ran out", lambda one: one.arena.orphaned)
        yield self._gauge("arena_lease_seconds", "Oldest lease", lambda one: one.arena.lease_ns_max / _NS)

    def _of_schedulers(self) -> Iterator[GaugeMetricFamily]:
        yield self._gauge("scheduler_waiting", "Steps that wait", lambda one: one.scheduler.waiting)
        yield self._gauge("scheduler_waiting_peak", "Most steps that waited", lambda one: one.scheduler.waiting_peak)
        yield self._gauge("scheduler_wait_seconds", "Oldest step's wait", lambda one: one.scheduler.wait_ns_max / _NS)
        yield self._gauge("scheduler_running", "Batches that run", lambda one: one.scheduler.running)
        yield self._gauge("scheduler_expired", "Steps that came to nothing in time", lambda one: one.scheduler.expired)
        families = {
            "predicted": "What the next batch of a kind is expected to take",
            "service_mean": "What batches of a kind have taken",
            "error_mean": "By how much that differed from what was expected, either way",
        }
        gauges = [_family(f"scheduler_{name}_seconds", what, _KIND) for name, what in families.items()]
        for names, one in self._snapshots.items():
            for kind in one.scheduler.kinds:
                values = kind.predicted_ns, kind.service_ns_mean, kind.error_ns_mean
                for gauge, value in zip(gauges, values, strict=True):
                    gauge.add_metric([*names, kind.kind], value / _NS)
        yield from gauges

    def _of_kv(self) -> Iterator[GaugeMetricFamily]:
        families: dict[str, tuple[str, Callable[[KvSnapshot], float]]] = {
            "places": ("Places for sessions' KV", lambda kv: kv.places),
            "places_used": ("Places that hold a session's KV", lambda kv: kv.used),
            "places_pinned": ("Places in use", lambda kv: kv.pinned),
            "waiting": ("Streams that wait for a place", lambda kv: kv.waiting),
            "wait_seconds": ("The longest wait of a response for one", lambda kv: kv.wait_ns_max / _NS),
            "tokens": ("Tokens whose KV is kept", lambda kv: kv.tokens),
            "bytes": ("What that takes, where the size of one is known", lambda kv: kv.tokens * kv.token_bytes),
            "hits": ("Streams that found their KV", lambda kv: kv.hits),
            "mismatches": ("KV of the same session that was another's: refused", lambda kv: kv.mismatches),
            "rebuilt_tokens": ("Tokens read again after their KV was evicted", lambda kv: kv.rebuilt_tokens),
            "rebuilt_bytes": ("KV made again", lambda kv: kv.rebuilt_tokens * kv.token_bytes),
        }
        kept = {names: one.kv for names, one in self._snapshots.items() if one.kv is not None}
        for name, (what, value) in families.items():
            gauge = _family(f"kv_{name}", what, _REPLICA)
            for names, kv in kept.items():
                gauge.add_metric(names, value(kv))
            yield gauge
        misses = _family("kv_misses", "Streams that found no KV: none yet, or evicted", _CAUSE)
        evictions = _family("kv_evictions", "KV that was given up", _CAUSE)
        for names, kv in kept.items():
            for gauge, counts in ((misses, kv.misses), (evictions, kv.evictions)):
                for cause, count in counts.items():
                    gauge.add_metric([*names, cause], count)
        yield from (misses, evictions)

    def _of_edges(self) -> Iterator[GaugeMetricFamily]:
        families = {
            "streams": "Streams that use an edge",
            "credit_out": "Credit in flight, in the edge's unit",
            "credit_out_peak": "Most credit ever in flight",
            "wait_seconds": "Longest wait for credit that does not move",
            "bytes_in_flight": "Bytes in flight on the fullest link",
            "bytes_in_flight_peak": "Most bytes ever in flight on a link",
        }
        gauges = [_family(f"edge_{name}", what, _EDGE) for name, what in families.items()]
        for names, one in self._snapshots.items():
            for edge in one.edges:
                values = (
                    *(edge.streams, edge.credit_out, edge.credit_out_peak, edge.wait_ns_max / _NS),
                    *(edge.link_bytes, edge.link_bytes_peak),
                )
                for gauge, value in zip(gauges, values, strict=True):
                    gauge.add_metric([*names, edge.target], value)
        yield from gauges

    def _gauge(self, name: str, what: str, value: Callable[[WorkerSnapshot], float]) -> GaugeMetricFamily:
        """A figure that each replica has one of."""
        gauge = _family(name, what, _REPLICA)
        for names, snapshot in self._snapshots.items():
            gauge.add_metric(names, value(snapshot))
        return gauge


def _family(name: str, what: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"duplex_{name}", what, labels=labels)


def _say(said: Raised | Cleared) -> None:
    reading = said.reading
    cause, place = reading.cause, reading.place
    _log.warning(
        "alert_raised" if isinstance(said, Raised) else "alert_cleared",
        cause=cause.value,
        stage=place.stage,
        replica=place.replica,
        edge=place.edge,
        value=reading.value,
        limit=reading.limit,
        unit=cause.unit,
    )
