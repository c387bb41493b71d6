"""What a stage holds and has lent, counted over all its streams.

Rules
* Each way out has one account, in the unit of its edge. A stream's credit is entered there when it is taken, and struck
  when it comes back or the stream ends; so with no stream left, every account is empty.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from stages.credit import CreditAccount
from stages.edges import GATEWAY, OutEdge
from stages.event_log import Trail
from stages.outbox import Outbox
from stages.scheduler import SchedulerStatistics


@dataclass(frozen=True, slots=True)
class EdgeStatistics:
    """`streams` use the edge. `waiting`: those that its credit holds up, each with a number that rises whenever its
    credit moves."""

    target: str
    streams: int
    credit_out: int
    credit_out_peak: int
    waiting: dict[str, int]


@dataclass(frozen=True, slots=True)
class StageStatistics:
    streams: int
    sessions: int
    stale_dropped: int
    scheduler: SchedulerStatistics
    edges: tuple[EdgeStatistics, ...]


class EdgeAccounts:
    """The accounts of `edges`."""

    def __init__(self, edges: Sequence[OutEdge]) -> None:
        self._edges = edges
        self._accounts = {edge.target: CreditAccount() for edge in edges}

    def outbox(self, targets: Collection[str], trail: Trail, sample_rate: int = 0) -> Outbox:
        """For a new stream, which hands over to these targets; to the gateway all do. `sample_rate`: of its sound."""
        used = [edge.at(sample_rate) for edge in self._edges if edge.target == GATEWAY or edge.target in targets]
        return Outbox(used, self._accounts, trail)

    def stray(self, outboxes: Collection[Outbox]) -> int:
        """Credit that is out and that no stream has taken, or the other way round, by how much on all edges together.
        `outboxes`: of all streams that there are."""
        return sum(
            abs(account.in_flight - sum(outbox.credit_out(target) for outbox in outboxes))
            for target, account in self._accounts.items()
        )

    def statistics(self, outboxes: Mapping[str, Outbox]) -> tuple[EdgeStatistics, ...]:
        """`outboxes`: of the streams that there are, by their names."""
        waits = {key: outbox.waiting() for key, outbox in outboxes.items()}
        return tuple(
            EdgeStatistics(
                target,
                sum(outbox.uses(target) for outbox in outboxes.values()),
                account.in_flight,
                account.peak,
                {key: waiting[target] for key, waiting in waits.items() if target in waiting},
            )
            for target, account in self._accounts.items()
        )
