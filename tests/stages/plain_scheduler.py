"""The order of service spelled out: each choice looks at every step that waits, and nothing is kept in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stages.scheduler import STEADY, URGENCY_SLACK_NS, Batch, Ready
from stages.service_times import ServiceTimes
from stages.tenant_shares import Account, TenantService, TenantShares


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    ready: Ready
    account: Account
    start_by_ns: int
    order: int


@dataclass(frozen=True, slots=True)
class _Out:
    batch: Batch
    batch_key: str
    predicted_ns: int
    charges: list[tuple[Account, int]]


@dataclass(slots=True)
class PlainScheduler:
    concurrency: int
    batch_max: int
    weights: Mapping[str, int]
    times: ServiceTimes = field(default_factory=ServiceTimes)
    waiting: list[_Step] = field(default_factory=list)
    out: dict[int, _Out] = field(default_factory=dict)
    offered: int = 0
    started: int = 0
    shares: TenantShares = field(init=False)

    def __post_init__(self) -> None:
        self.shares = TenantShares(self.weights)

    def offer(self, ready: Ready) -> None:
        self.offered += 1
        known = ready.urgency == STEADY and ready.lead_ns is not None
        slack_ns = ready.lead_ns or 0 if known else URGENCY_SLACK_NS[ready.urgency]
        slack_ns = min(slack_ns, ready.deadline_ns - ready.ready_ns)
        start_by_ns = ready.ready_ns + max(0, slack_ns - self.times.predicted_ns(ready.kind))
        self.waiting.append(_Step(ready, self.shares.enter(ready.tenant), start_by_ns, self.offered))

    def drop(self, key: str) -> None:
        for step in [step for step in self.waiting if step.ready.key == key]:
            self.waiting.remove(step)
            self.shares.leave(step.account)

    def expire(self, now_ns: int) -> list[str]:
        late = [step.ready.key for step in self.waiting if step.ready.deadline_ns <= now_ns]
        for key in late:
            self.drop(key)
        return late

    def start(self, now_ns: int) -> Batch | None:
        startable = [step for step in self.waiting if not self._awaits_company(step, now_ns)]
        if len(self.out) >= self.concurrency or not startable:
            return None
        self.shares.begin(step.account for step in startable)
        steps = [self._take_foremost(startable)]
        while steps[0].ready.batch_key and len(steps) < self.batch_max and (rest := self._together(steps[0])):
            steps.append(self._take_foremost(rest))
        return self._begin(steps, now_ns)

    def _take_foremost(self, steps: Sequence[_Step]) -> _Step:
        entitled_ns = self.shares.entitled_ns(step.account for step in steps)
        entitled = [step for step in steps if step.account.used_ns <= entitled_ns]
        foremost = min(entitled, key=lambda step: (step.start_by_ns, step.order))
        self.waiting.remove(foremost)
        return foremost

    def _together(self, step: _Step) -> list[_Step]:
        group = step.ready.kind, step.ready.batch_key
        return [one for one in self.waiting if (one.ready.kind, one.ready.batch_key) == group]

    def _awaits_company(self, step: _Step, now_ns: int) -> bool:
        if not step.ready.batch_key or now_ns >= step.start_by_ns or len(self._together(step)) >= self.batch_max:
            return False
        return any(
            (one.batch.kind, one.batch_key) == (step.ready.kind, step.ready.batch_key)
            and one.predicted_ns
            and one.batch.started_ns + one.predicted_ns < step.start_by_ns
            for one in self.out.values()
        )

    def _begin(self, steps: Sequence[_Step], now_ns: int) -> Batch:
        self.started += 1
        kind, predicted_ns = steps[0].ready.kind, self.times.predicted_ns(steps[0].ready.kind)
        keys = tuple(step.ready.key for step in steps)
        batch = Batch(self.started, kind, keys, tuple(now_ns - step.ready.ready_ns for step in steps), now_ns)
        charges = [(step.account, self.shares.charge(step.account, predicted_ns // len(steps))) for step in steps]
        self.out[batch.number] = _Out(batch, steps[0].ready.batch_key, predicted_ns, charges)
        return batch

    def done(self, number: int, now_ns: int) -> Batch:
        one = self.out.pop(number)
        service_ns = now_ns - one.batch.started_ns
        self.times.observe(one.batch.kind, one.predicted_ns, service_ns)
        for account, charged_ns in one.charges:
            self.shares.settle(account, charged_ns, service_ns // len(one.charges))
            self.shares.leave(account)
        return one.batch

    @property
    def tenants(self) -> tuple[TenantService, ...]:
        return self.shares.statistics()
