"""Which streams' steps run next on a worker's engine threads, and which of them together.

Theory of operation
    A step that becomes ready is to be started by a moment of its own, `start_by`: when it became ready, plus its slack,
    less the time that it is expected to take. A first chunk has no slack, steady work as much as its consumer still has
    to play, speculation the most. The earliest `start_by` heads the next batch. First chunks thus overtake steady work,
    unless a caller is about to hear a gap; and age tells among equals. Between tenants the accounts of
    `stages.tenant_shares` say who may go.

    Steps of one kind and one batch key can be computed together; `stages.lanes` has them in order. Whoever heads a
    batch is joined by those of his group that wait now, most urgent first, up to `batch_max`; so batches fill while the
    threads are busy and are small when they are not. With several threads, a step leaves a free one alone while a batch
    of its group is running that will be back before its `start_by`: the streams in that batch are the company worth
    waiting for. There are no timers; the wait ends with that batch.

Rules
* A stream has at most one step offered or running. At most `concurrency` batches run at once. Nobody owns a place in
  a batch: each step asks for one anew.
* A first chunk never waits for company, having no slack.
* The bound on waiting: once `start_by` is past, a step is overtaken by at most one batch headed by each other stream
  of its tenant; and by other tenants only while they have had no more than their share (`stages.tenant_shares`).
  For whatever became ready after that moment has a later one, and a stream that has run becomes ready only later.
* A step has the deadline of its stream, and is started early enough to end by it where it can. Once that has passed it
  is never started: its driver lets it `expire`, before it starts anything. What a step is expected to take never ends
  it: it is told by kind, the steps of a kind differ, and a long one may hand over its outputs as it goes.
* Neither a dropped nor an expired step is ever computed. offered = started + dropped + expired + withdrawn + waiting,
  always.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from stages.lanes import Group, Lane, Place, first, foremost
from stages.service_times import KindService, ServiceTimes
from stages.tenant_shares import Account, TenantService, TenantShares

FIRST, STEADY, SPECULATIVE = 0, 1, 2

# Slack per urgency class. Steady chunks carry about 190 ms of sound, so one may wait that long where no lead is known;
# speculation (partials, prefill) is worth less than either but must move within a caller's sentence.
URGENCY_SLACK_NS = (0, 150_000_000, 600_000_000)

NEVER_NS = 1 << 63  # no clock of a host gets so far


@dataclass(frozen=True, slots=True)
class Ready:
    """A step of stream `key` that can run since `ready_ns`.

    `lead_ns`: the sound that its consumer holds unplayed, where that is known. `batch_key`: what it can be computed
    together with, among steps of its `kind`; empty for a step that runs alone. `deadline_ns`: when nobody wants it any
    more.
    """

    key: str
    kind: str
    urgency: int
    ready_ns: int
    lead_ns: int | None = None
    tenant: str = ""
    batch_key: str = ""
    deadline_ns: int = NEVER_NS


@dataclass(frozen=True, slots=True)
class Batch:
    """The steps of streams `keys`, started together; each had been ready for its `queued_ns`."""

    number: int
    kind: str
    keys: tuple[str, ...]
    queued_ns: tuple[int, ...]
    started_ns: int


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """`running` counts batches, all else steps. `oldest_ready_ns`: since when the step waits that has waited longest.
    `batch_sizes[n - 1]` batches had `n` steps."""

    waiting: int
    waiting_peak: int
    oldest_ready_ns: int | None
    queued_ns_max: int
    running: int
    started: int
    dropped: int
    expired: int
    withdrawn: int
    batch_sizes: tuple[int, ...]
    kinds: tuple[KindService, ...]
    tenants: tuple[TenantService, ...]


@dataclass(frozen=True, slots=True)
class _Waiting:
    ready: Ready
    place: Place
    lane: Lane


@dataclass(frozen=True, slots=True)
class _Running:
    batch: Batch
    batch_key: str
    predicted_ns: int
    charges: tuple[tuple[Account, int], ...]


class StageScheduler:
    """`concurrency` engine threads take batches of up to `batch_max` steps. `weights` as in `TenantShares`."""

    def __init__(self, concurrency: int, batch_max: int = 1, weights: Mapping[str, int] | None = None) -> None:
        assert min(concurrency, batch_max) >= 1, "a stage runs something"
        self._concurrency = concurrency
        self._batch_max = batch_max
        self._waiting: dict[str, _Waiting] = {}
        self._groups: dict[tuple[str, str], Group] = {}
        # The earliest deadline of all that has waited since the last look: nothing expires before.
        self._next_expiry_ns = NEVER_NS
        self._running: dict[int, _Running] = {}
        self._busy: set[str] = set()
        self._times = ServiceTimes()
        self._shares = TenantShares(weights or {})
        self._order = 0
        self._batches = 0
        self._started = 0
        self._waiting_peak = 0
        self._queued_ns_max = 0
        self._dropped = 0
        self._expired = 0
        self._withdrawn = 0
        self._batch_sizes = [0] * batch_max

    # ---- waiting ---------------------------------------------------------------------------------

    def offer(self, ready: Ready) -> None:
        """A step can run."""
        assert ready.key not in self._waiting, f"stream {ready.key} offered twice"
        assert ready.key not in self._busy, f"stream {ready.key} offered while it runs"
        self._order += 1
        place = (self._start_by_ns(ready), self._order, ready.key)
        lane = self._group(ready.kind, ready.batch_key).enter(self._shares.enter(ready.tenant), place)
        self._next_expiry_ns = min(self._next_expiry_ns, ready.deadline_ns)
        self._waiting[ready.key] = _Waiting(ready, place, lane)
        self._waiting_peak = max(self._waiting_peak, len(self._waiting))

    def _group(self, kind: str, batch_key: str) -> Group:
        group = self._groups.get((kind, batch_key))
        if group is None:
            group = self._groups[kind, batch_key] = Group(kind, batch_key)
        return group

    def _start_by_ns(self, ready: Ready) -> int:
        slack_ns = URGENCY_SLACK_NS[ready.urgency]
        if ready.urgency == STEADY and ready.lead_ns is not None:
            slack_ns = ready.lead_ns
        slack_ns = min(slack_ns, ready.deadline_ns - ready.ready_ns)
        return ready.ready_ns + max(0, slack_ns - self._times.predicted_ns(ready.kind))

    def withdraw(self, key: str) -> int | None:
        """Take the waiting step of `key` back, to be planned anew. Gives since when it was ready, or None where none
        waits."""
        if key not in self._waiting:
            return None
        self._withdrawn += 1
        return self._forget(key).ready_ns

    def drop(self, key: str) -> None:
        """The stream of `key` is no longer wanted: its waiting step, if any, is never computed."""
        if key in self._waiting:
            self._dropped += 1
            self._forget(key)

    def expire(self, now_ns: int) -> list[str]:
        """Drop the waiting steps whose deadline has passed; gives their streams."""
        if not self._may_expire(now_ns):
            return []
        expired = [key for key, one in self._waiting.items() if one.ready.deadline_ns <= now_ns]
        for key in expired:
            self._forget(key)
        self._expired += len(expired)
        self._next_expiry_ns = min((one.ready.deadline_ns for one in self._waiting.values()), default=NEVER_NS)
        return expired

    def _may_expire(self, now_ns: int) -> bool:
        """A deadline has passed since the last look."""
        return now_ns >= self._next_expiry_ns

    def _forget(self, key: str) -> Ready:
        waiting = self._take(key)
        self._shares.leave(waiting.lane.account)
        return waiting.ready

    def _take(self, key: str) -> _Waiting:
        waiting = self._waiting.pop(key)
        group = waiting.lane.group
        group.leave(waiting.lane, waiting.place)
        if not group.waiting:
            del self._groups[group.kind, group.batch_key]
        return waiting

    # ---- running ---------------------------------------------------------------------------------

    def start(self, now_ns: int) -> Batch | None:
        """The batch to run now, or None. Let steps `expire`, then ask until there is none."""
        assert not self._may_expire(now_ns), "what is overdue is never started"
        if len(self._running) >= self._concurrency:
            return None
        startable = [group.lanes(self._startable_until_ns(group, now_ns)) for group in self._groups.values()]
        accounts = [lane.account for lanes in startable for lane in lanes]
        if not accounts:
            return None
        entitled_ns = self._shares.begin(accounts)
        heads = [head for lanes in startable if (head := foremost(lanes, entitled_ns))]
        return self._begin(self._gather(min(heads, key=first)), now_ns)

    def _startable_until_ns(self, group: Group, now_ns: int) -> int | None:
        """Steps of `group` that are to be started later wait for company: for a batch of theirs that is out, whose
        streams can still join them. None where no step waits for that."""
        if not group.batch_key or group.waiting >= self._batch_max:
            return None
        back_ns = [
            running.batch.started_ns + running.predicted_ns
            for running in self._running.values()
            if running.predicted_ns and (running.batch.kind, running.batch_key) == (group.kind, group.batch_key)
        ]
        return max(now_ns, min(back_ns)) if back_ns else None

    def _gather(self, lane: Lane) -> list[_Waiting]:
        """The most urgent step of `lane`, and who can go with it."""
        group = lane.group
        gathered = [self._take(lane.first_key)]
        entitled_ns: int | None = None
        while group.batch_key and group.waiting and len(gathered) < self._batch_max:
            if entitled_ns is None or not lane.places:  # the least served may be another one now
                entitled_ns = self._shares.entitled_ns(one.account for one in group.lanes())
            joined = foremost(group.lanes(), entitled_ns)
            assert joined is not None, "the least served may always go"
            lane = joined
            gathered.append(self._take(lane.first_key))
        return gathered

    def _begin(self, gathered: Sequence[_Waiting], now_ns: int) -> Batch:
        kind, batch_key = gathered[0].ready.kind, gathered[0].ready.batch_key
        keys = tuple(one.ready.key for one in gathered)
        queued_ns = tuple(now_ns - one.ready.ready_ns for one in gathered)
        predicted_ns = self._times.predicted_ns(kind)
        charges = tuple(
            (one.lane.account, self._shares.charge(one.lane.account, predicted_ns // len(gathered))) for one in gathered
        )
        self._batches += 1
        self._started += len(gathered)
        batch = Batch(self._batches, kind, keys, queued_ns, now_ns)
        self._running[batch.number] = _Running(batch, batch_key, predicted_ns, charges)
        self._busy.update(keys)
        self._queued_ns_max = max(self._queued_ns_max, *queued_ns)
        self._batch_sizes[len(keys) - 1] += 1
        return batch

    def done(self, number: int, now_ns: int) -> Batch:
        """The batch of that number has come back: its thread and all its places are free."""
        running = self._running.pop(number)
        batch = running.batch
        service_ns = now_ns - batch.started_ns
        self._times.observe(batch.kind, running.predicted_ns, service_ns)
        for account, charged_ns in running.charges:
            self._shares.settle(account, charged_ns, service_ns // len(batch.keys))
            self._shares.leave(account)
        self._busy.difference_update(batch.keys)
        return batch

    # ---- what is known ---------------------------------------------------------------------------

    def waits(self, key: str) -> bool:
        return key in self._waiting

    def runs(self, key: str) -> bool:
        return key in self._busy

    @property
    def keys(self) -> Iterator[str]:
        """The streams of which a step waits or runs."""
        return chain(self._waiting, self._busy)

    def step_age_ns(self, now_ns: int) -> int:
        """How long the oldest running step has been running; 0 where none runs."""
        return now_ns - min((running.batch.started_ns for running in self._running.values()), default=now_ns)

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            len(self._waiting),
            self._waiting_peak,
            min((one.ready.ready_ns for one in self._waiting.values()), default=None),
            self._queued_ns_max,
            len(self._running),
            self._started,
            self._dropped,
            self._expired,
            self._withdrawn,
            tuple(self._batch_sizes),
            self._times.statistics(),
            self._shares.statistics(),
        )
