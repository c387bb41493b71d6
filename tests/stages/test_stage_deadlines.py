"""Streams that nobody wants any more: their next step is never computed, and they leave as failed."""

from __future__ import annotations

import pytest

from stages.contracts import DEADLINE_EXCEEDED, Latents, ObserverOptions, Tag
from stages.event_log import EventKind
from stages.messages import Cancel, Closed, Feed, Grant, Open, Opened, OpenSession, Ping, Pong, StepDone
from tests.stages.event_promises import WorkerPromises
from tests.stages.puppet import BatchingPuppets, PuppetModel, PuppetStep
from tests.stages.stage_bench import CONTROL, SESSION, SOURCE, TAG, StageBench, closings, sound

MS = 1_000_000
BUSY = Tag(SESSION, 5, 1, "busy")
LATER = Tag(SESSION, 5, 1, "later")
OVERDUE = (TAG, "failed", DEADLINE_EXCEEDED)


def bench(model: PuppetModel | None = None, publish_window: int = 0) -> StageBench:
    """A stage of one thread, where `TAG` lasts 100 ms and `BUSY` for ever; `BUSY` runs a step."""
    one = StageBench(model or PuppetModel(), publish_window=publish_window)
    one.frame(OpenSession(SESSION, 0))
    one.frame(Open(BUSY, ObserverOptions()))
    one.frame(Open(TAG, ObserverOptions(), lasts_ns_max=100 * MS))
    give(one, BUSY, PuppetStep())
    one.take_sent()
    return one


def give(one: StageBench, tag: Tag, *steps: PuppetStep) -> None:
    """Let stream `tag` have these steps, the first of them at once."""
    model = one.stage._model
    assert isinstance(model, PuppetModel)
    model.streams[tag.key].steps.extend(steps)
    one.wake()


def kinds(one: StageBench, tag: Tag) -> list[tuple[str, str]]:
    """The events of `tag` since it was opened, each with its cause."""
    return [(event.kind, event.cause) for event in one.events.read(response=tag.key).events[1:]]


def test_a_step_that_waits_beyond_its_streams_time_is_never_computed() -> None:
    one = bench()
    give(one, TAG, PuppetStep())
    one.now_ns += 100 * MS
    *_, closed = one.finish(BUSY.key)
    assert closed == Closed(TAG, "failed", {}, DEADLINE_EXCEEDED, "its time was over before its next step began")
    assert one.running == {}
    assert kinds(one, TAG) == [
        (EventKind.QUEUED, ""),
        (EventKind.UNQUEUED, DEADLINE_EXCEEDED),
        (EventKind.CANCELLED, DEADLINE_EXCEEDED),
        (EventKind.CLOSED, DEADLINE_EXCEEDED),
    ]
    seen = one.stage.statistics().scheduler
    assert (seen.expired, seen.dropped, seen.started, seen.waiting) == (1, 0, 1, 0)
    WorkerPromises().check(one.events)


def test_a_step_that_begins_in_time_is_computed_and_what_it_made_goes_out() -> None:
    one = bench(publish_window=8)
    give(one, TAG, PuppetStep((sound(4),)))
    one.now_ns += 100 * MS - 1
    one.finish(BUSY.key)
    assert list(one.running) == [TAG.key]
    one.now_ns += 50 * MS
    assert [type(frame).__name__ for frame in one.finish(TAG.key)] == ["StepDone", "Published"]


def test_a_stream_whose_time_is_over_has_no_further_step() -> None:
    one = bench()
    give(one, TAG, PuppetStep(), PuppetStep())
    one.finish(BUSY.key)
    one.now_ns += 100 * MS
    done, closed = one.finish(TAG.key)
    assert isinstance(done, StepDone)
    assert closings([closed]) == [OVERDUE]


def test_a_stream_that_is_opened_when_its_time_is_over_is_opened_and_computes_nothing() -> None:
    one = bench()
    give(one, BUSY, PuppetStep())
    one.frame(Open(LATER, ObserverOptions(), lasts_ns_max=0))
    assert one.frame(Open(LATER, ObserverOptions(), lasts_ns_max=0)) == [Opened(LATER)], "it holds no step yet"
    give(one, LATER, PuppetStep())
    assert closings([each.frame for each in one.take_sent()]) == [(LATER, "failed", DEADLINE_EXCEEDED)]


def test_opening_again_gives_no_more_time() -> None:
    one = bench()
    give(one, TAG, PuppetStep())
    one.now_ns += 60 * MS
    one.frame(Open(TAG, ObserverOptions(), lasts_ns_max=100 * MS))
    one.now_ns += 40 * MS
    assert closings(one.finish(BUSY.key)) == [OVERDUE]


def test_a_stream_without_a_limit_waits_for_as_long_as_it_takes() -> None:
    one = bench()
    one.frame(Open(LATER, ObserverOptions()))
    give(one, LATER, PuppetStep())
    one.now_ns += 10**15
    one.finish(BUSY.key)
    assert list(one.running) == [LATER.key]


@pytest.mark.parametrize("frame", [Ping(1), Cancel(LATER), Grant(BUSY, 1), Feed(LATER, Latents(0, 1, bytes(4)))])
def test_whatever_happens_at_the_stage_shows_what_is_overdue(frame: Ping | Cancel | Grant | Feed) -> None:
    one = bench()
    give(one, TAG, PuppetStep())
    one.now_ns += 100 * MS
    frames = one.frame(frame, SOURCE if isinstance(frame, Feed) else CONTROL)
    assert closings(frames) == [OVERDUE]
    assert list(one.running) == [BUSY.key], "its thread is not free"
    assert [frame for frame in frames if not isinstance(frame, Closed)] in ([], [Pong(1, 100 * MS)])


def test_who_waits_for_room_computes_nothing_and_is_left_to_the_orchestrator() -> None:
    one = bench()
    give(one, TAG, PuppetStep())
    one.stage.pause(TAG.key)
    one.now_ns += 100 * MS
    assert closings(one.finish(BUSY.key)) == []
    assert closings(one.carry_out(one.stage.go_on(TAG.key, one.now_ns))) == [OVERDUE]


def test_what_an_overdue_stream_kept_is_there_for_others_at_once() -> None:
    one = bench()
    model = one.stage._model
    assert isinstance(model, PuppetModel)
    one.frame(Open(LATER, ObserverOptions()))
    model.streams[TAG.key].frees.append((model.streams[LATER.key], PuppetStep()))
    give(one, TAG, PuppetStep())
    one.now_ns += 100 * MS
    one.finish(BUSY.key)
    assert list(one.running) == [LATER.key]


def test_neighbours_of_what_is_overdue_go_on_without_it() -> None:
    one = bench(BatchingPuppets())
    one.frame(Open(LATER, ObserverOptions()))
    for tag in (TAG, LATER):
        give(one, tag, PuppetStep())
    one.now_ns += 100 * MS
    assert closings(one.finish(BUSY.key)) == [OVERDUE]
    assert list(one.running) == [LATER.key]
