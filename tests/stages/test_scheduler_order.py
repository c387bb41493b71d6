"""Whatever happens, the steps are served in the order that looking at all of them would give."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from stages.scheduler import FIRST, NEVER_NS, SPECULATIVE, STEADY, Batch, Ready, StageScheduler
from stages.tenant_shares import TENANTS_MAX
from tests.stages.plain_scheduler import PlainScheduler

MS = 1_000_000
URGENCIES = (FIRST, STEADY, STEADY, SPECULATIVE)
GROUPS = (("say", ""), ("chunk", "t"), ("chunk", "t"), ("chunk", "u"), ("read", "t"))


class Pair:
    """The scheduler and the plain one, which are told the same."""

    def __init__(self, random: Random, concurrency: int, batch_max: int, tenants: int) -> None:
        self.random = random
        weights = {f"t{number}": number % 3 + 1 for number in range(tenants)}
        self.own = StageScheduler(concurrency, batch_max, weights)
        self.plain = PlainScheduler(concurrency, batch_max, weights)
        self.tenants = tenants
        self.idle = [f"s{number}" for number in range(2 * tenants + 2)]
        self.waiting: list[str] = []
        self.running: list[Batch] = []
        self.now_ns = 0

    def offer(self) -> None:
        key = self._pick(self.idle)
        tenant = f"t{self.random.randrange(self.tenants)}"
        kind, batch_key = self.random.choice(GROUPS)
        lead_ns = self.random.choice((None, self.random.randrange(400) * MS))
        deadline_ns = self.random.choice((NEVER_NS, NEVER_NS, self.now_ns + self.random.randrange(1, 900) * MS))
        urgency = self.random.choice(URGENCIES)
        ready = Ready(key, kind, urgency, self.now_ns, lead_ns, tenant, batch_key, deadline_ns)
        for one in (self.own, self.plain):
            one.offer(ready)
        self.waiting.append(key)

    def give_up(self) -> None:
        key = self._pick(self.waiting)
        self.own.drop(key) if self.random.random() < 0.5 else self.own.withdraw(key)
        self.plain.drop(key)
        self.idle.append(key)

    def start(self) -> None:
        expired = self.own.expire(self.now_ns)
        assert sorted(expired) == sorted(self.plain.expire(self.now_ns))
        self._no_longer_wait(expired)
        self.idle += expired
        while batch := self.own.start(self.now_ns):
            assert batch == self.plain.start(self.now_ns)
            self._no_longer_wait(batch.keys)
            self.running.append(batch)
        assert self.plain.start(self.now_ns) is None

    def done(self) -> None:
        batch = self.running.pop(self.random.randrange(len(self.running)))
        self.now_ns += self.random.randrange(80) * MS
        for one in (self.own, self.plain):
            assert one.done(batch.number, self.now_ns) == batch
        self.idle += batch.keys

    def _pick(self, keys: list[str]) -> str:
        return keys.pop(self.random.randrange(len(keys)))

    def _no_longer_wait(self, keys: list[str] | tuple[str, ...]) -> None:
        self.waiting = [key for key in self.waiting if key not in keys]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 5), st.integers(1, TENANTS_MAX + 8))
def test_each_batch_is_the_one_that_looking_at_all_steps_would_choose(
    seed: int, concurrency: int, batch_max: int, tenants: int
) -> None:
    random = Random(seed)
    pair = Pair(random, concurrency, batch_max, tenants)
    for _ in range(200):
        chance = random.random()
        if chance < 0.5 and pair.idle:
            pair.offer()
        elif chance < 0.6 and pair.waiting:
            pair.give_up()
        elif pair.running:
            pair.done()
        if chance < 0.9:  # else several things happen before somebody looks
            pair.start()
    assert pair.own.statistics().tenants == pair.plain.tenants
