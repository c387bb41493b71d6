"""Steps of several streams at once: what one of them does, or what becomes of it, is nothing to the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stages.contracts import Clause, ObserverOptions, Tag, TextDelta
from stages.effects import ReportFault
from stages.messages import (
    Cancel,
    Closed,
    EndEpoch,
    Feed,
    Grant,
    Hello,
    Open,
    OpenSession,
    Published,
    Refused,
    SessionRefused,
    StepDone,
)
from stages.stream import Publish, StageFailure
from stages.tenant_shares import SHARE_LEAD_NS
from stages.worker import WorkerSpec
from tests.stages.puppet import BatchingPuppets, PuppetModel, PuppetStep
from tests.stages.stage_bench import CONTROL, MEDIA, SESSION, TAG, Puppets, StageBench, closings, sound

A, B, C = (Tag(SESSION, 5, 1, name) for name in "abc")
FAILURE = StageFailure("engine", "it broke")
BROKEN = ZeroDivisionError("a text that nobody is to see")
MS = 1_000_000


class Together(Puppets):
    """Streams a, b and c run together; one of another name has made them wait for each other."""

    def __init__(self, *steps: PuppetStep, publish_window: int = 0) -> None:
        self.batching = BatchingPuppets()
        super().__init__(PuppetStep(batch_key=""), publish_window=publish_window, model=self.batching)
        for tag, step in zip((A, B, C), steps or [PuppetStep((Publish(TextDelta("x")),))] * 3, strict=True):
            self.another(tag, step)
        self.finish()
        self.take_sent()


def test_steps_that_waited_together_run_together_and_each_is_timed() -> None:
    bench = Together()
    assert list(bench.running) == ["a", "b", "c"]
    bench.now_ns += 500
    assert bench.finish("a") == [
        frame for tag in (A, B, C) for frame in (StepDone(tag, "puppet", 0, 500, 3), Published(tag, TextDelta("x")))
    ]
    assert bench.stage.statistics().scheduler.batch_sizes == (1, 0, 1, 0)


def test_only_what_the_model_puts_together_runs_together() -> None:
    bench = Together(PuppetStep(), PuppetStep(batch_key="other"), PuppetStep())
    assert list(bench.running) == ["a", "c"]
    bench.finish("a")
    assert list(bench.running) == ["b"]


def test_a_model_that_does_not_batch_runs_one_step_at_a_time() -> None:
    bench = Puppets(PuppetStep())
    for tag in (A, B):
        bench.another(tag, PuppetStep())
    bench.finish()
    assert list(bench.running) == ["a"]
    assert bench.finish("a") == [StepDone(A, "puppet", 0, 0)]


@pytest.mark.parametrize("ending", [Cancel(B), EndEpoch(SESSION, 6)], ids=repr)
def test_who_is_cancelled_leaves_when_the_batch_is_back_and_its_result_is_dropped(ending: Cancel | EndEpoch) -> None:
    bench = Together()
    bench.another(kept := Tag(SESSION, 7, 1, "kept"))
    assert closings(bench.frame(ending))[-1:] == ([] if isinstance(ending, Cancel) else [(TAG, "cancelled", "")])
    gone = [tag for tag in (A, B, C) if bench.running[tag.key].flags.cancelled]
    frames = bench.finish("a")
    assert closings(frames) == [(tag, "cancelled", "") for tag in gone]
    assert [frame.tag for frame in frames if isinstance(frame, Published)] == [t for t in (A, B, C) if t not in gone]
    assert gone == ([B] if isinstance(ending, Cancel) else [A, B, C])
    assert bench.model.streams[kept.key].closed == 0


def test_a_cancelled_stream_that_waits_is_never_in_a_batch() -> None:
    bench = Puppets(PuppetStep(batch_key=""), model=BatchingPuppets())
    for tag in (A, B, C):
        bench.another(tag, PuppetStep())
    bench.frame(Cancel(B))
    bench.finish()
    assert list(bench.running) == ["a", "c"]
    assert bench.stage.statistics().scheduler.dropped == 1


def test_one_that_fails_fails_alone() -> None:
    bench = Together()
    frames = bench.finish("b", FAILURE)
    assert closings(frames) == [(B, "failed", "engine")]
    assert [frame.tag for frame in frames if isinstance(frame, StepDone)] == [A, C]


def test_an_output_that_no_edge_carries_fails_its_stream_and_no_other() -> None:
    said = Publish(TextDelta("x"))
    bench = Together(PuppetStep((said,)), PuppetStep((said, sound(1), said)), PuppetStep((said,)))
    frames = bench.finish("a")
    assert closings(frames) == [(B, "failed", "wrong_output")]
    assert [frame.tag for frame in frames if isinstance(frame, Published)] == [A, C]
    assert [frame.tag for frame in frames if isinstance(frame, StepDone)] == [A, B, C]


def test_a_result_that_breaks_its_stream_breaks_no_other() -> None:
    bench = Together(PuppetStep(), PuppetStep(fails=BROKEN), PuppetStep())
    frames = bench.finish("a")
    assert closings(frames) == [(B, "failed", "engine_fault")]
    assert [frame.tag for frame in frames if isinstance(frame, StepDone)] == [A, B, C]
    assert bench.faults == [ReportFault("b", BROKEN)]


def test_places_of_a_batch_are_given_anew_at_each_step() -> None:
    bench = Together()
    for tag in (A, B, C):
        bench.model.streams[tag.key].steps.append(PuppetStep())
    late = Tag(SESSION, 5, 1, "late")
    bench.another(late, PuppetStep())
    bench.frame(Cancel(C))
    bench.finish("a")
    assert sorted(bench.running) == ["a", "b", "late"]


def test_outputs_of_a_batch_wait_for_the_credit_of_their_own_stream() -> None:
    bench = Together(*(PuppetStep((sound(4), sound(1, 1))) for _ in range(3)), publish_window=4)
    assert [frame.tag for frame in bench.finish("a") if isinstance(frame, Published)] == [A, B, C]
    assert [frame.tag for frame in bench.frame(Grant(B, 4)) if isinstance(frame, Published)] == [B]


def test_progress_amid_a_batch_is_that_of_one_stream() -> None:
    bench = Together()
    assert bench.progress(Publish(TextDelta("y")), key="b") == [Published(B, TextDelta("y"))]


# ---- what the scheduler is told -----------------------------------------------------------------------------


def test_who_has_more_unplayed_is_served_later() -> None:
    bench = Puppets(PuppetStep(), publish_window=9_600)
    for tag, units in ((A, 9_600), (B, 4_800), (C, 0)):
        stream = bench.another(tag)
        stream.feed_outputs = (sound(units),)
        bench.frame(Feed(tag, Clause(0, "")))
        stream.steps.append(PuppetStep())
    bench.wake()
    started = []
    while bench.running:
        started.append(key := next(iter(bench.running)))
        bench.finish(key)
    assert started == [TAG.key, "c", "b", "a"]


def test_the_slack_of_steady_work_is_the_sound_that_is_left() -> None:
    bench = Puppets(PuppetStep(), publish_window=9_600)
    full = bench.another(A)
    full.feed_outputs = (sound(9_600),)
    bench.frame(Feed(A, Clause(0, "")))
    full.steps.append(PuppetStep())
    bench.wake()
    bench.now_ns += 400 * MS
    bench.another(B, PuppetStep(urgency=0))
    bench.now_ns -= 1
    bench.another(C, PuppetStep(urgency=0))
    started = []
    bench.finish()
    while bench.running:
        started.append(key := next(iter(bench.running)))
        bench.finish(key)
    assert started == ["c", "a", "b"]


@pytest.mark.parametrize("told", ["the stage", "its worker"])
def test_a_tenant_is_served_by_its_weight(told: str) -> None:
    model = PuppetModel()
    bench = StageBench(model, tenant_weights={"paid": 3})
    if told == "its worker":
        spec = WorkerSpec("think", "thinker", "scripted", "unix:/think.sock", 1, tenant_weights={"paid": 3})
        bench.stage = spec.stage_of(model, bench.events)
        bench.stage.link_up(CONTROL, Hello(1, "control", "gw_1"))
        bench.stage.link_up(MEDIA, Hello(1, "media", "gw_1"))
    bench.frame(OpenSession(SESSION, 0))
    tags = [Tag(SESSION, 5, 1, name) for name in ("x", "y", "paid")]
    for tag in tags:
        bench.frame(Open(tag, ObserverOptions(), tenant="paid" if tag.key == "paid" else ""))
        model.streams[tag.key].steps.extend([PuppetStep()] * 50)
    bench.wake()
    for _ in range(40):
        bench.now_ns += 60 * MS
        bench.finish(next(iter(bench.running)))
    plain, paid = bench.stage.statistics().scheduler.tenants
    assert (plain.tenant, paid.tenant) == ("", "paid")
    assert plain.service_ns + paid.service_ns == 40 * 60 * MS
    assert abs(plain.service_ns - paid.service_ns // 3) <= SHARE_LEAD_NS + 60 * MS


# ---- whatever an engine throws ------------------------------------------------------------------------------


def break_feed(bench: Puppets) -> list[object]:
    bench.stream.feed_fails = BROKEN
    return list(bench.frame(Feed(TAG, Clause(0, ""))))


def break_plan(bench: Puppets) -> list[object]:
    bench.stream.plan_fails = BROKEN
    return list(bench.wake())


def break_result(bench: Puppets) -> list[object]:
    bench.stream.steps.append(PuppetStep(fails=BROKEN))
    bench.wake()
    return list(bench.finish()[1:])


@pytest.mark.parametrize("breaks", [break_feed, break_plan, break_result])
def test_an_engine_that_throws_anything_fails_its_stream_and_no_other(
    breaks: Callable[[Puppets], list[object]],
) -> None:
    bench = Puppets()
    sibling = bench.another(A)
    assert breaks(bench) == [Closed(TAG, "failed", {}, "engine_fault", "the engine threw ZeroDivisionError")]
    assert bench.faults == [ReportFault(TAG.key, BROKEN)]
    assert sibling.closed == 0


def test_an_engine_that_throws_where_it_is_opened_refuses() -> None:
    bench = Puppets()
    bench.model.open_fails = bench.model.session_fails = BROKEN
    text = "the engine threw ZeroDivisionError"
    assert bench.frame(Open(A, ObserverOptions())) == [Refused(A, "engine_fault", text)]
    assert bench.frame(OpenSession("s", 1)) == [SessionRefused("s", "engine_fault", text)]
    assert bench.faults == [ReportFault("a", BROKEN), ReportFault("s", BROKEN)]
    assert bench.stage.statistics().sessions == 1


def test_an_engine_that_throws_as_it_closes_one_of_a_batch_changes_nothing_for_the_others() -> None:
    bench = Together(*[PuppetStep((Publish(TextDelta("x")),))] * 3)
    bench.model.streams["b"].close_fails = BROKEN
    bench.frame(Cancel(B))
    frames = bench.finish("a")
    assert [frame.tag for frame in frames if isinstance(frame, Published)] == [A, C]
    assert closings(frames) == [(B, "cancelled", "")]
    assert [(fault.key, fault.error) for fault in bench.faults] == [("b", BROKEN)]


def test_an_engine_that_throws_as_it_closes_lets_go_with_its_session_and_with_its_gateway() -> None:
    bench = Puppets()
    bench.stream.close_fails = BROKEN
    bench.model.close_fails = BROKEN
    assert closings(bench.lose(CONTROL)) == [(TAG, "cancelled", "")]
    assert bench.is_empty()
    assert [fault.key for fault in bench.faults] == [TAG.key, SESSION]
    assert bench.model.calls == [f"open {SESSION}", f"close {SESSION}"]
