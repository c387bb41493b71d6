"""Which steps run next and which together; why none waits for ever; why no tenant takes another's share.

The bound: a step has a moment by which it is to be started, fixed when it was offered. What becomes ready after that
moment has a later one, so it never heads a batch first. What was ready by then is at most one step of each other
stream, and a stream that has run is ready anew only later. So from that moment on, each other stream heads at most one
batch before it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.scheduler import FIRST, SPECULATIVE, STEADY, URGENCY_SLACK_NS, Batch, Ready, StageScheduler
from stages.tenant_shares import DEBT_NS_MAX, SHARE_LEAD_NS, TenantService
from tests.stages.scheduler_run import Run, Stream, crowd, overdue_ns

MS = 1_000_000
SLACK_NS = URGENCY_SLACK_NS[STEADY]
STREAMS = tuple("abcdef")
CONCURRENCY = 2
BATCH_MAX = 3


def ready(
    key: str, at_ns: int = 0, urgency: int = STEADY, *, kind: str = "chunk", together: str = "", tenant: str = ""
) -> Ready:
    return Ready(key, kind, urgency, at_ns, None, tenant, together)


def start(scheduler: StageScheduler, now_ns: int = 0) -> str:
    """The streams in the batch that starts, or nothing."""
    batch = scheduler.start(now_ns)
    return "".join(batch.keys) if batch else ""


def offer(scheduler: StageScheduler, *steps: Ready) -> None:
    for step in steps:
        scheduler.offer(step)


def teach(scheduler: StageScheduler, kind: str, service_ns: int) -> None:
    """Let a step of `kind` take `service_ns`, before all else."""
    scheduler.offer(ready("teacher", -service_ns, kind=kind))
    batch = scheduler.start(-service_ns)
    assert batch is not None
    scheduler.done(batch.number, 0)


# ---- order --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("urgency", [FIRST, STEADY])
def test_the_more_urgent_class_goes_first(urgency: int) -> None:
    scheduler = StageScheduler(1)
    offer(scheduler, ready("late", 0, urgency + 1), ready("first", 10 * MS, urgency))
    assert scheduler.start(15 * MS) == Batch(1, "chunk", ("first",), (5 * MS,), 15 * MS)
    assert scheduler.start(15 * MS) is None
    scheduler.done(1, 20 * MS)
    assert scheduler.start(20 * MS) == Batch(2, "chunk", ("late",), (20 * MS,), 20 * MS)


def test_what_has_waited_its_slack_goes_before_a_newer_first_chunk() -> None:
    scheduler = StageScheduler(1)
    late_ns = URGENCY_SLACK_NS[SPECULATIVE] + 1
    offer(scheduler, ready("s", 0, SPECULATIVE), ready("f", late_ns, FIRST))
    assert start(scheduler, late_ns) == "s"


def test_equals_keep_their_order() -> None:
    scheduler = StageScheduler(3)
    offer(scheduler, *(ready(key) for key in "bac"))
    assert [start(scheduler) for _ in range(3)] == ["b", "a", "c"]


def test_steady_work_may_wait_while_there_is_sound_but_a_first_chunk_and_speculation_are_as_ever() -> None:
    scheduler = StageScheduler(6)
    full = [replace(ready(key, 0, urgency), lead_ns=400 * MS) for urgency, key in enumerate("fst")]
    offer(scheduler, *full, ready("e"), ready("l", 300 * MS), ready("m", 450 * MS))
    assert "".join(start(scheduler, 450 * MS) for _ in range(6)) == "fesltm"


def test_a_step_that_takes_long_must_go_earlier() -> None:
    scheduler = StageScheduler(1)
    teach(scheduler, "say", 100 * MS)
    offer(scheduler, ready("a"), ready("b", 60 * MS, kind="say"))
    assert start(scheduler, 60 * MS) == "b"


def test_a_step_that_takes_longer_than_its_slack_goes_by_when_it_became_ready() -> None:
    scheduler = StageScheduler(1)
    teach(scheduler, "say", 2 * SLACK_NS)
    offer(scheduler, ready("f", 9 * MS, FIRST), ready("s", 10 * MS, kind="say"), ready("g", 11 * MS, FIRST))
    served = []
    for number in (2, 3, 4):
        served.append(start(scheduler, 20 * MS))
        scheduler.done(number, 20 * MS)
    assert served == ["f", "s", "g"]


def test_it_is_known_how_long_the_oldest_step_has_been_running() -> None:
    scheduler = StageScheduler(2)
    known = [scheduler.step_age_ns(2 * MS)]
    offer(scheduler, ready("one"), ready("two"))
    for now_ns in (3 * MS, 5 * MS):
        scheduler.start(now_ns)
        known.append(scheduler.step_age_ns(6 * MS))
    scheduler.done(1, 9 * MS)
    assert [*known, scheduler.step_age_ns(9 * MS)] == [0, 3 * MS, 3 * MS, 4 * MS]


def test_a_stream_has_one_step_at_a_time() -> None:
    scheduler = StageScheduler(1)
    offer(scheduler, ready("a"))
    with pytest.raises(AssertionError, match="offered twice"):
        offer(scheduler, ready("a"))
    scheduler.start(0)
    with pytest.raises(AssertionError, match="while it runs"):
        offer(scheduler, ready("a"))
    assert scheduler.runs("a")
    assert not scheduler.waits("a")


@pytest.mark.parametrize(("concurrency", "batch_max"), [(0, 1), (1, 0)])
def test_a_stage_that_runs_nothing_is_a_mistake(concurrency: int, batch_max: int) -> None:
    with pytest.raises(AssertionError, match="runs something"):
        StageScheduler(concurrency, batch_max)


def test_a_withdrawn_step_is_forgotten_and_says_since_when_it_was_ready() -> None:
    scheduler = StageScheduler(1)
    offer(scheduler, ready("a", 5))
    assert scheduler.waits("a")
    assert scheduler.withdraw("a") == 5
    assert scheduler.withdraw("a") is None
    assert start(scheduler, 9) == ""
    assert (scheduler.statistics().withdrawn, scheduler.statistics().started) == (1, 0)


def test_a_dropped_step_is_counted_and_never_computed() -> None:
    scheduler = StageScheduler(1)
    offer(scheduler, ready("a"), ready("b"))
    scheduler.drop("a")
    scheduler.drop("a")
    assert start(scheduler) == "b"
    scheduler.drop("b")
    assert scheduler.runs("b")
    assert (scheduler.statistics().dropped, scheduler.statistics().started) == (1, 1)


# ---- deadlines ----------------------------------------------------------------------------------------------


def due(key: str, deadline_ns: int, at_ns: int = 0, *, kind: str = "chunk", together: str = "") -> Ready:
    return replace(ready(key, at_ns, kind=kind, together=together), deadline_ns=deadline_ns)


def test_a_step_whose_deadline_has_passed_is_counted_and_never_started() -> None:
    scheduler = StageScheduler(1, 2)
    offer(scheduler, due("b", 9 * MS, together="t"), ready("c", together="t"), due("a", 9 * MS), due("d", 10 * MS))
    assert scheduler.expire(9 * MS - 1) == []
    with pytest.raises(AssertionError, match="overdue"):
        scheduler.start(9 * MS)
    assert sorted(scheduler.expire(9 * MS)) == ["a", "b"]
    assert [scheduler.waits(key) for key in "abcd"] == [False, False, True, True]
    assert start(scheduler, 9 * MS) == "d"
    statistics = scheduler.statistics()
    assert (statistics.expired, statistics.dropped, statistics.started, statistics.waiting) == (2, 0, 1, 1)


def test_a_step_that_has_begun_in_time_may_end_later() -> None:
    scheduler = StageScheduler(1)
    offer(scheduler, due("a", 9 * MS))
    assert start(scheduler, 8 * MS) == "a"
    assert scheduler.expire(10 * MS) == []
    assert scheduler.done(1, 20 * MS).keys == ("a",)


@pytest.mark.parametrize("left_by", ["drop", "withdraw"])
def test_what_is_no_longer_there_does_not_expire(left_by: str) -> None:
    scheduler = StageScheduler(1)
    offer(scheduler, due("a", 9 * MS), due("b", 9 * MS))
    getattr(scheduler, left_by)("a")
    assert scheduler.expire(9 * MS) == ["b"]
    offer(scheduler, due("a", 12 * MS))
    assert scheduler.expire(11 * MS) == []


def test_a_step_is_started_early_enough_to_end_by_its_deadline() -> None:
    scheduler = StageScheduler(1)
    teach(scheduler, "say", 20 * MS)
    offer(scheduler, ready("a"), due("b", SLACK_NS, kind="say"), due("c", 2 * SLACK_NS))
    assert start(scheduler) == "b"


def test_what_a_step_is_expected_to_take_never_ends_it() -> None:
    scheduler = StageScheduler(1)
    teach(scheduler, "say", 500 * MS)
    offer(scheduler, due("a", 100 * MS, kind="say"))
    assert scheduler.expire(99 * MS) == []
    assert start(scheduler, 99 * MS) == "a"


def test_a_tenant_whose_steps_expire_is_charged_nothing() -> None:
    scheduler = StageScheduler(1)
    offer(scheduler, replace(due("a", 9 * MS), tenant="late"), ready("b", tenant="x"))
    scheduler.expire(9 * MS)
    assert start(scheduler, 9 * MS) == "b"
    scheduler.done(1, 20 * MS)
    assert scheduler.statistics().tenants == (TenantService("x", 1, 11 * MS),)


# ---- what is known ------------------------------------------------------------------------------------------


def test_what_is_counted() -> None:
    scheduler = StageScheduler(2, 2, {"x": 2})
    offer(scheduler, *(ready(key, number, together="t", tenant="x") for number, key in enumerate("abc", 1)))
    scheduler.start(10)
    statistics = scheduler.statistics()
    assert (statistics.waiting, statistics.waiting_peak, statistics.running, statistics.started) == (1, 3, 1, 2)
    assert (statistics.oldest_ready_ns, statistics.queued_ns_max, statistics.batch_sizes) == (3, 9, (0, 1))
    scheduler.done(1, 10 + 6 * MS)
    scheduler.start(20)
    statistics = scheduler.statistics()
    assert (statistics.oldest_ready_ns, statistics.queued_ns_max, statistics.batch_sizes) == (None, 17, (1, 1))
    assert [(one.batches, one.predicted_ns, one.error_ns_mean) for one in statistics.kinds] == [(1, 6 * MS, 6 * MS)]
    assert statistics.tenants == (TenantService("x", 3, 6 * MS),)


# ---- batches ------------------------------------------------------------------------------------------------


def test_a_batch_takes_the_most_urgent_of_its_group_up_to_the_engines_limit() -> None:
    scheduler = StageScheduler(1, 3)
    offer(scheduler, *(ready(key, number, together="t") for number, key in enumerate("abcd")))
    scheduler.drop("b")
    offer(scheduler, ready("e", 1, FIRST, together="t"))
    assert start(scheduler, 9) == "eac"
    scheduler.done(1, 20)
    assert start(scheduler, 20) == "d"


def test_only_a_group_goes_together() -> None:
    scheduler = StageScheduler(9, 9)
    offer(scheduler, ready("a"), ready("b"), ready("c", together="t"), ready("d", together="u"))
    offer(scheduler, ready("e", kind="say", together="t"), ready("f", together="t"))
    assert [start(scheduler) for _ in range(6)] == ["a", "b", "cf", "d", "e", ""]


def test_a_first_chunk_takes_along_who_is_ready() -> None:
    scheduler = StageScheduler(1, 3)
    offer(scheduler, ready("a", together="t"), ready("f", 5, FIRST, together="t"))
    assert start(scheduler, 5) == "fa"


def test_the_places_of_a_batch_are_free_again_at_each_step() -> None:
    scheduler = StageScheduler(1, 2)
    teach(scheduler, "chunk", 5 * MS)
    offer(scheduler, ready("a", together="t"), ready("b", together="t"))
    assert start(scheduler) == "ab"
    offer(scheduler, ready("c", MS, together="t"))
    assert scheduler.done(2, 5 * MS).keys == ("a", "b")
    offer(scheduler, ready("a", 5 * MS, together="t"), ready("b", 5 * MS, together="t"))
    assert start(scheduler, 5 * MS) == "ca"


def out_with_company(service_ns: int, concurrency: int = 2, batch_max: int = 4) -> StageScheduler:
    """A batch of group `t` is running since 0, expected to take `service_ns`."""
    scheduler = StageScheduler(concurrency, batch_max)
    if service_ns:
        teach(scheduler, "chunk", service_ns)
    offer(scheduler, ready("r", together="t"))
    assert start(scheduler) == "r"
    return scheduler


def test_a_steady_step_leaves_a_thread_free_for_company_that_will_be_back_in_time() -> None:
    scheduler = out_with_company(40 * MS)
    offer(scheduler, ready("a", MS, together="t"))
    assert start(scheduler, MS) == ""
    scheduler.done(2, 40 * MS)
    offer(scheduler, ready("r", 40 * MS, together="t"))
    assert start(scheduler, 40 * MS) == "ar"


def test_company_that_is_late_is_waited_for_while_the_slack_lasts() -> None:
    scheduler = out_with_company(40 * MS)
    offer(scheduler, ready("a", MS, together="t"))
    start_by_ns = MS + SLACK_NS - 40 * MS
    assert start(scheduler, start_by_ns - 1) == ""
    assert start(scheduler, start_by_ns) == "a"


def test_nobody_waits_for_company_that_comes_too_late_or_of_which_nothing_is_known() -> None:
    for service_ns in (SLACK_NS, 0):
        scheduler = out_with_company(service_ns)
        offer(scheduler, ready("a", MS, together="t"))
        assert start(scheduler, MS) == "a"


def test_a_first_chunk_never_waits_for_company() -> None:
    scheduler = out_with_company(40 * MS)
    offer(scheduler, ready("a", MS, together="t"))
    assert start(scheduler, MS) == ""
    offer(scheduler, ready("f", 2 * MS, FIRST, together="t", tenant="other"))
    assert start(scheduler, 2 * MS) == "fa"


def test_a_full_batch_needs_no_more_company() -> None:
    scheduler = out_with_company(40 * MS, batch_max=3)
    offer(scheduler, ready("a", MS, together="t"), ready("b", MS, together="t", tenant="other"))
    assert start(scheduler, MS) == ""
    offer(scheduler, ready("c", MS, together="t"))
    assert start(scheduler, MS) == "abc"


def test_who_waits_for_company_holds_up_no_other_group() -> None:
    scheduler = out_with_company(40 * MS)
    offer(scheduler, ready("a", MS, together="t"), ready("x", 2 * MS), ready("u", 2 * MS, together="u"))
    assert start(scheduler, 2 * MS) == "x"
    scheduler.done(3, 3 * MS)
    assert start(scheduler, 3 * MS) == "u"


# ---- tenants ------------------------------------------------------------------------------------------------


def test_a_tenant_that_has_had_its_share_lets_others_go_first() -> None:
    scheduler = StageScheduler(1)
    served = ""
    offer(scheduler, *(ready(key, tenant="many") for key in "abc"), ready("x", 5 * MS, tenant="few"))
    for number in range(1, 9):
        served += (key := start(scheduler, number * 200 * MS))
        scheduler.done(number, number * 200 * MS + 160 * MS)
        offer(scheduler, ready(key, number * 200 * MS + 160 * MS, tenant="few" if key == "x" else "many"))
    assert served == "axbxcxax"


def test_tenants_that_are_about_even_go_by_urgency() -> None:
    scheduler = StageScheduler(4)
    teach(scheduler, "chunk", 40 * MS)
    offer(scheduler, *(ready(key, tenant="many") for key in "abc"), ready("x", 5 * MS, tenant="few"))
    assert "".join(start(scheduler, 5 * MS) for _ in range(4)) == "abcx"


@pytest.mark.parametrize("left_by", ["running", "dropping", "withdrawing"])
def test_a_tenant_that_was_away_has_saved_nothing_up(left_by: str) -> None:
    scheduler, now_ns = StageScheduler(1), 0

    def serve(keys: str) -> str:
        nonlocal now_ns
        served = ""
        for _ in keys:
            batch = scheduler.start(now_ns)
            assert batch is not None
            now_ns += SHARE_LEAD_NS + MS
            scheduler.done(batch.number, now_ns)
            served += batch.keys[0]
        return served

    offer(scheduler, ready("x", tenant="few"))
    if left_by == "running":
        serve("x")
    elif left_by == "dropping":
        scheduler.drop("x")
    else:
        scheduler.withdraw("x")
    offer(scheduler, *(ready(key, now_ns, tenant="many") for key in "abcdefgh"))
    assert serve("abcd") == "abcd"
    offer(scheduler, *(ready(key, now_ns, tenant="few") for key in "xyz"))
    assert serve("exfyg") == "xeyfz"


def test_the_steps_of_a_batch_are_charged_together_as_much_as_one() -> None:
    scheduler = StageScheduler(3, 2)
    teach(scheduler, "chunk", SHARE_LEAD_NS - MS)
    offer(scheduler, ready("a", together="t", tenant="many"), ready("b", together="t", tenant="many"))
    offer(scheduler, ready("c", MS, tenant="many"), ready("x", 2 * MS, tenant="few"))
    assert [start(scheduler, 2 * MS) for _ in range(3)] == ["ab", "c", "x"]


def test_others_ride_along_where_there_is_room_and_the_least_served_is_asked_first() -> None:
    scheduler = StageScheduler(2, 3)
    offer(scheduler, ready("a", tenant="many"))
    scheduler.start(0)
    offer(scheduler, *(ready(key, 0, together="t", tenant="many") for key in "bcd"))
    scheduler.done(1, 200 * MS)
    offer(scheduler, *(ready(key, 200 * MS, together="t", tenant="few") for key in "xy"))
    assert start(scheduler, 200 * MS) == "xyb"


# ---- long runs ----------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 4), st.integers(2, 12))
def test_once_its_time_has_come_a_step_waits_for_one_batch_of_each_other_stream(
    seed: int, concurrency: int, batch_max: int, count: int
) -> None:
    random = Random(seed)

    def next_step(stream: Stream, now_ns: int) -> Ready:
        urgency = random.choice((FIRST, FIRST, STEADY, SPECULATIVE))
        lead_ns = random.choice((None, random.randint(0, 400 * MS)))
        return Ready(stream.key, random.choice("kl"), urgency, now_ns, lead_ns, "", random.choice(("", "t", "u")))

    streams = {str(number): Stream(str(number)) for number in range(count)}
    run = Run(
        StageScheduler(concurrency, batch_max),
        streams,
        next_step,
        lambda _: random.randint(1, 150 * MS),
        lambda: random.choice((0, 0, random.randint(0, 40 * MS))),
    )
    overtaken: Counter[tuple[str, str]] = Counter()
    for batch in run.batches(300):
        for key in batch.keys:
            for pair in [pair for pair in overtaken if pair[0] == key]:
                del overtaken[pair]
        for stream in streams.values():
            step = stream.waits_since
            if step is not None and stream.key not in batch.keys and run.now_ns > overdue_ns(step):
                overtaken[stream.key, batch.keys[0]] += 1
        assert max(overtaken.values(), default=0) <= 1


def test_a_busy_worker_gets_round_to_speculation() -> None:
    """The worst case of the bound: three streams that always have a first chunk of 150 ms ready."""
    streams = {key: Stream(key) for key in "pabc"}
    run = Run(
        StageScheduler(1),
        streams,
        lambda stream, now_ns: ready(stream.key, now_ns, SPECULATIVE if stream.key == "p" else FIRST),
        lambda _: 150 * MS,
        lambda: 0,
    )
    started = [batch.keys[0] for batch in run.batches(20)]
    assert started.index("p") <= URGENCY_SLACK_NS[SPECULATIVE] // (150 * MS) + 1 + len("abc")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 20), st.integers(1, 4)), min_size=2, max_size=4))
def test_tenants_that_always_have_work_share_by_weight_and_not_by_streams(
    seed: int, tenants: list[tuple[int, int]]
) -> None:
    random, longest_ns = Random(seed), 60 * MS
    weights = {chr(65 + number): weight for number, (_, weight) in enumerate(tenants)}

    def next_step(stream: Stream, now_ns: int) -> Ready:
        return ready(stream.key, now_ns, random.choice((FIRST, STEADY, SPECULATIVE)), tenant=stream.tenant)

    scheduler = StageScheduler(1, 1, weights)
    streams = crowd([size for size, _ in tenants])
    run = Run(scheduler, streams, next_step, lambda _: random.randint(MS, longest_ns), lambda: 0)
    for _ in run.batches(400):
        pass
    served = {one.tenant: one.service_ns // weights[one.tenant] for one in scheduler.statistics().tenants}
    assert served.keys() == weights.keys()
    assert max(served.values()) - min(served.values()) <= SHARE_LEAD_NS + 2 * longest_ns


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 8), min_size=2, max_size=4))
def test_once_its_time_has_come_a_step_waits_for_no_more_than_the_share_of_other_tenants(
    seed: int, sizes: list[int]
) -> None:
    """While a step is overdue, another tenant gets what the step's own tenant gets, and a constant."""
    random, longest_ns, service_ns = Random(seed), 100 * MS, 0

    def next_step(stream: Stream, now_ns: int) -> Ready:
        return ready(stream.key, now_ns, random.choice((FIRST, STEADY, SPECULATIVE)), tenant=stream.tenant)

    def take_time(_: Batch) -> int:
        nonlocal service_ns
        service_ns = random.randint(MS, longest_ns)
        return service_ns

    streams = crowd(sizes)
    pauses = (0, 0, 30 * MS, 300 * MS)
    run = Run(StageScheduler(1), streams, next_step, take_time, lambda: random.choice(pauses))
    since_overdue: dict[str, Counter[str]] = {}
    before = ""
    for batch in run.batches(400):
        for had in since_overdue.values():
            had[before] += service_ns
        for key in batch.keys:
            since_overdue.pop(key, None)
        for stream in streams.values():
            step = stream.waits_since
            if step is not None and stream.key not in batch.keys and run.now_ns > overdue_ns(step):
                since_overdue.setdefault(stream.key, Counter())
        before = streams[batch.keys[0]].tenant
        for key, had in since_overdue.items():
            own = streams[key].tenant
            assert all(had[tenant] <= had[own] + DEBT_NS_MAX + SHARE_LEAD_NS + longest_ns for tenant in had if tenant)


def test_a_crowd_leaves_one_call_of_another_tenant_its_place_in_each_batch() -> None:
    """Fifty streams that are always late, batches of eight, and one that is never: it is in each batch, and they are
    in all its other places."""
    streams = crowd([50, 1])
    run = Run(
        StageScheduler(1, 8),
        streams,
        lambda stream, now_ns: ready(stream.key, now_ns, together="t", tenant=stream.tenant),
        lambda _: 20 * MS,
        lambda: 0,
    )
    started = list(run.batches(120))[20:]
    assert all(len(batch.keys) == 8 for batch in started)
    alone = [number for number, batch in enumerate(started) if "B0" in batch.keys]
    assert max(after - one for one, after in pairwise(alone)) == 1


def test_a_first_chunk_waits_for_the_running_batch_alone() -> None:
    """Whatever steady load there is, as long as it is in time."""
    streams = {f"s{number}": Stream(f"s{number}") for number in range(12)} | {"first": Stream("first")}
    run = Run(
        StageScheduler(1, 4),
        streams,
        lambda stream, now_ns: ready(stream.key, now_ns, FIRST if stream.key == "first" else STEADY, together="t"),
        lambda _: 20 * MS,
        lambda: 90 * MS,
    )
    waits = [
        queued_ns
        for batch in run.batches(300)
        for key, queued_ns in zip(batch.keys, batch.queued_ns, strict=True)
        if key == "first"
    ]
    assert len(waits) > 10
    assert max(waits) <= 20 * MS
