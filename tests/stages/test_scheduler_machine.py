"""A scheduler under any order of calls by one tenant: each batch is checked against a list that is searched from end to
end, and every step that was offered is started, dropped, expired, withdrawn or waits."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stages.scheduler import FIRST, NEVER_NS, SPECULATIVE, STEADY, Batch, Ready, StageScheduler
from stages.service_times import ServiceTimes
from tests.stages.scheduler_run import overdue_ns

MS = 1_000_000
STREAMS = tuple("abcdef")
CONCURRENCY = 2
BATCH_MAX = 3


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scheduler = StageScheduler(CONCURRENCY, BATCH_MAX)
        self.times = ServiceTimes()
        self.now_ns = 0
        self.waiting: dict[str, Ready] = {}
        self.start_by_ns: dict[str, int] = {}
        self.running: dict[int, tuple[Batch, str, int]] = {}
        self.offered = self.peak = self.longest_ns = self.dropped = self.expired = self.withdrawn = 0
        self.sizes = [0] * BATCH_MAX

    def _busy(self) -> set[str]:
        return {key for batch, _, _ in self.running.values() for key in batch.keys}

    def _offerable(self) -> list[str]:
        return [key for key in STREAMS if key not in self.waiting and key not in self._busy()]

    @precondition(lambda self: self._offerable())
    @rule(
        data=st.data(),
        urgency=st.sampled_from((FIRST, STEADY, STEADY, SPECULATIVE)),
        lead_ns=st.none() | st.integers(0, 400 * MS),
        together=st.sampled_from(("", "t", "t", "u")),
        left_ns=st.none() | st.integers(-20 * MS, 200 * MS),
    )
    def offer(self, data: st.DataObject, urgency: int, lead_ns: int | None, together: str, left_ns: int | None) -> None:
        key = data.draw(st.sampled_from(self._offerable()))
        deadline_ns = NEVER_NS if left_ns is None else self.now_ns + left_ns
        step = Ready(key, "chunk", urgency, self.now_ns, lead_ns, "", together, deadline_ns)
        self.scheduler.offer(step)
        self.offered += 1
        self.waiting[key] = step
        slack_ns = min(overdue_ns(step), deadline_ns) - self.now_ns
        self.start_by_ns[key] = self.now_ns + max(0, slack_ns - self.times.predicted_ns("chunk"))
        self.peak = max(self.peak, len(self.waiting))

    def _awaits_company(self, step: Ready) -> bool:
        """Whether the start of `step` could be worth putting off."""
        back_ns = [
            batch.started_ns + predicted_ns
            for batch, together, predicted_ns in self.running.values()
            if together == step.batch_key and predicted_ns
        ]
        group = [one for one in self.waiting.values() if one.batch_key == step.batch_key]
        start_by_ns = min(self.start_by_ns[one.key] for one in group)
        return bool(
            step.batch_key
            and len(group) < BATCH_MAX
            and all(one.urgency != FIRST for one in group if self.start_by_ns[one.key] == start_by_ns)
            and self.now_ns < start_by_ns
            and any(back < start_by_ns for back in back_ns)
        )

    @rule()
    def expire(self) -> None:
        late = {key for key, one in self.waiting.items() if one.deadline_ns <= self.now_ns}
        expired = self.scheduler.expire(self.now_ns)
        assert len(expired) == len(late)
        assert set(expired) == late
        for key in late:
            del self.waiting[key]
        self.expired += len(late)

    @rule()
    def start(self) -> None:
        self.expire()
        startable = [step for step in self.waiting.values() if not self._awaits_company(step)]
        batch = self.scheduler.start(self.now_ns)
        if not startable or len(self.running) == CONCURRENCY:
            assert batch is None
            return
        assert batch is not None
        head = self.waiting[batch.keys[0]]
        assert self.start_by_ns[head.key] == min(self.start_by_ns[step.key] for step in startable)
        together = [step for step in self.waiting.values() if head.batch_key and step.batch_key == head.batch_key]
        size = max(1, min(BATCH_MAX, len(together)))
        assert len(batch.keys) == len(set(batch.keys)) == size
        assert all(self.waiting[key] in together for key in batch.keys[1:])
        by_urgency = sorted(self.start_by_ns[step.key] for step in together)[:size]
        assert not together or [self.start_by_ns[key] for key in batch.keys] == by_urgency
        for key in batch.keys:
            assert self.now_ns < self.waiting[key].deadline_ns, "what nobody wants any more is never started"
        assert batch.queued_ns == tuple(self.now_ns - self.waiting[key].ready_ns for key in batch.keys)
        for key in batch.keys:
            del self.waiting[key]
        self.running[batch.number] = batch, head.batch_key, self.times.predicted_ns("chunk")
        self.longest_ns = max(self.longest_ns, *batch.queued_ns)
        self.sizes[size - 1] += 1

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        batch, _, predicted_ns = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        assert self.scheduler.done(batch.number, self.now_ns) == batch
        self.times.observe("chunk", predicted_ns, self.now_ns - batch.started_ns)

    @rule(key=st.sampled_from(STREAMS))
    def withdraw(self, key: str) -> None:
        step = self.waiting.pop(key, None)
        assert self.scheduler.withdraw(key) == (step and step.ready_ns)
        self.withdrawn += step is not None

    @rule(key=st.sampled_from(STREAMS))
    def drop(self, key: str) -> None:
        self.dropped += self.waiting.pop(key, None) is not None
        self.scheduler.drop(key)

    @rule(pause_ns=st.integers(0, 80 * MS))
    def time_passes(self, pause_ns: int) -> None:
        self.now_ns += pause_ns

    @invariant()
    def is_accounted_for(self) -> None:
        for key in STREAMS:
            assert self.scheduler.waits(key) == (key in self.waiting)
            assert self.scheduler.runs(key) == (key in self._busy())
        assert sorted(self.scheduler.keys) == sorted([*self.waiting, *self._busy()])
        statistics = self.scheduler.statistics()
        assert statistics.waiting == len(self.waiting)
        assert statistics.oldest_ready_ns == min((one.ready_ns for one in self.waiting.values()), default=None)
        assert (statistics.waiting_peak, statistics.queued_ns_max) == (self.peak, self.longest_ns)
        assert (statistics.running, statistics.batch_sizes) == (len(self.running), tuple(self.sizes))
        assert (statistics.dropped, statistics.expired) == (self.dropped, self.expired)
        assert statistics.withdrawn == self.withdrawn
        assert statistics.started == sum(size * count for size, count in enumerate(self.sizes, 1))
        gone = statistics.started + self.dropped + self.expired + self.withdrawn
        assert self.offered == gone + len(self.waiting)
        assert statistics.kinds == self.times.statistics()


Machine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestAnyOrder = Machine.TestCase
