"""How a worker stands, in one frame: what is lent, how full links, arena and KV are, what waits and for how long.

Rules
* A snapshot is as large as the worker has edges and kinds of steps, and says nothing of any session.
* Ages of credit and of room are told by looking (`stages.waits`): whoever asks every second is told of a wait within a
  second, and never of one that was not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from stages.accounts import EdgeStatistics, StageStatistics
from stages.block_table import TableStatistics
from stages.credit import CreditStatistics
from stages.edges import GATEWAY
from stages.kv_cache import KvStatistics
from stages.messages import (
    ArenaSnapshot,
    EdgeSnapshot,
    KindSnapshot,
    KvSnapshot,
    SchedulerSnapshot,
    WorkerSnapshot,
)
from stages.outgoing import OutgoingStatistics
from stages.scheduler import SchedulerStatistics
from stages.waits import Waits

NO_CREDIT = EdgeStatistics(GATEWAY, 0, 0, 0, {})  # words and transcripts go to the gateway without credit


class Snapshots:
    """Of the worker `replica`. `target_at`: where the payload of a link goes."""

    def __init__(self, replica: str, target_at: Callable[[int], str]) -> None:
        self._replica = replica
        self._target_at = target_at
        self._credit_waits = Waits[tuple[str, str]]()
        self._room_waits = Waits[str]()

    def take(
        self,
        stage: StageStatistics,
        outgoing: OutgoingStatistics,
        arena: TableStatistics,
        kv: KvStatistics,
        now_ns: int,
    ) -> WorkerSnapshot:
        """The state of things as they are told at `now_ns` (monotonic)."""
        room = self._room_waits.look(outgoing.waiting, now_ns)
        return WorkerSnapshot(
            self._replica,
            stage.streams,
            stage.sessions,
            len(room),
            max(room.values(), default=0),
            _scheduler(stage.scheduler, now_ns),
            _arena(arena),
            self._edges(stage.edges, outgoing.windows, now_ns),
            _kv(kv) if kv.places else None,
        )

    def _edges(
        self, edges: Sequence[EdgeStatistics], windows: dict[int, CreditStatistics], now_ns: int
    ) -> tuple[EdgeSnapshot, ...]:
        waiting = {(edge.target, key): moves for edge in edges for key, moves in edge.waiting.items()}
        waits = self._credit_waits.look(waiting, now_ns)
        if all(edge.target != GATEWAY for edge in edges):
            edges = (*edges, NO_CREDIT)
        return tuple(
            EdgeSnapshot(
                edge.target,
                edge.streams,
                edge.credit_out,
                edge.credit_out_peak,
                max((waits[edge.target, key] for key in edge.waiting), default=0),
                *self._fullest(edge.target, windows),
            )
            for edge in edges
        )

    def _fullest(self, target: str, windows: dict[int, CreditStatistics]) -> tuple[int, int]:
        """Bytes in flight to `target` on the link that has most, now and at its peak."""
        here = [window for link, window in windows.items() if self._target_at(link) == target]
        in_flight = max((window.in_flight for window in here), default=0)
        return in_flight, max((window.in_flight_peak for window in here), default=0)


def _scheduler(seen: SchedulerStatistics, now_ns: int) -> SchedulerSnapshot:
    wait_ns = 0 if seen.oldest_ready_ns is None else now_ns - seen.oldest_ready_ns
    kinds = tuple(
        KindSnapshot(one.kind, one.batches, one.predicted_ns, one.service_ns_mean, one.error_ns_mean)
        for one in seen.kinds
    )
    return SchedulerSnapshot(seen.waiting, seen.waiting_peak, wait_ns, seen.running, seen.expired, kinds)


def _kv(seen: KvStatistics) -> KvSnapshot:
    return KvSnapshot(**asdict(seen))


def _arena(seen: TableStatistics) -> ArenaSnapshot:
    used = seen.writing + seen.leased + seen.orphaned
    return ArenaSnapshot(used + seen.free, used, seen.used_peak, seen.orphaned, seen.lease_age_ns_max)
