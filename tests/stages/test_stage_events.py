"""What a stage enters into the event log. That it does so in any order of things is shown by `test_stage_machine`."""

from __future__ import annotations

from stages.contracts import Latents, ObserverOptions, Tag, TextDelta
from stages.edges import GATEWAY, OutEdge
from stages.event_log import EventLog
from stages.messages import Cancel, CloseSession, EndEpoch, Feed, Grant, Hello, Open, OpenSession
from stages.stage import Stage
from stages.stream import Consumed, Publish, StageFailure
from tests.stages.puppet import PuppetModel, PuppetStep
from tests.stages.stage_bench import (
    CONTROL,
    INPUT,
    MEDIA,
    NEXT,
    ONWARD,
    OTHER_CONTROL,
    SESSION,
    SOURCE,
    TAG,
    Puppets,
    StageBench,
    latents,
    sound,
)

Told = tuple[str, int, str, str, str]
OTHER = Tag(SESSION, 5, 1, "resp_2", 1)
CHUNK = Feed(TAG, Latents(0, 4, bytes(16)), 4)


def told(log: EventLog, key: str = TAG.key) -> list[Told]:
    """Kind, value, link, state and cause of each event of a stream."""
    events = [event for event in log.read().events if event.stream == key]
    return [(event.kind, event.value, event.link, event.state, event.cause) for event in events]


def test_a_chunk_is_followed_from_its_queue_to_its_credit() -> None:
    bench = Puppets(publish_window=8)
    bench.frame(CHUNK, SOURCE)
    bench.stream.steps.append(PuppetStep((Consumed(4, "latents"), sound(4), Publish(TextDelta("Hi")))))
    bench.stream.ends = True
    bench.wake()
    bench.now_ns += 500
    bench.finish()
    assert told(bench.events) == [
        ("opened", 1, "", "", ""),
        ("queued", 1, "", "puppet", ""),
        ("started", 0, "", "puppet", ""),
        ("computed", 500, "", "puppet", ""),
        ("consumed", 4, "", "latents", ""),
        ("produced", 4, "", "audio", ""),
        ("produced", 0, "", "text", ""),
        ("credit_taken", 4, GATEWAY, "audio", ""),
        ("published", 4, "", "audio", ""),
        ("published", 0, "", "text", ""),
        ("credit_returned", 4, GATEWAY, "audio", "closed"),
        ("closed", 0, "", "", "finished"),
    ]


def test_credit_that_is_granted_and_what_waited_for_it() -> None:
    bench = Puppets(PuppetStep((latents(8), latents(4, 8))), onward_window=8)
    bench.finish()
    bench.frame(Grant(TAG, 8), ONWARD)
    assert told(bench.events)[-4:] == [
        ("produced", 4, "", "latents", ""),
        ("credit_taken", 8, NEXT, "latents", ""),
        ("credit_returned", 8, NEXT, "latents", "granted"),
        ("credit_taken", 4, NEXT, "latents", ""),
    ]


def test_a_step_that_waits_is_replanned_paused_and_dropped() -> None:
    bench = Puppets(PuppetStep())
    bench.another(OTHER, PuppetStep())
    bench.frame(Feed(OTHER, CHUNK.item, 4), SOURCE)
    bench.stage.pause(OTHER.key)
    bench.carry_out(bench.stage.go_on(OTHER.key, bench.now_ns))
    bench.frame(Cancel(OTHER))
    assert [event for event in told(bench.events, OTHER.key) if "queued" in event[0]] == [
        ("queued", 2, "", "puppet", ""),
        ("unqueued", 1, "", "", "input"),
        ("queued", 2, "", "puppet", ""),
        ("unqueued", 1, "", "", "no_room"),
        ("queued", 2, "", "puppet", ""),
        ("unqueued", 1, "", "", "ended"),
    ]
    assert told(bench.events, OTHER.key)[-1] == ("closed", 1, "", "", "cancelled")


def test_a_cancel_amid_a_step_says_what_it_threw_away_and_waits_for_the_step() -> None:
    bench = Puppets(PuppetStep(), publish_window=4)
    bench.progress(sound(4), sound(4, 1))
    bench.frame(Cancel(TAG))
    bench.frame(CHUNK, SOURCE)
    bench.finish()
    assert told(bench.events)[-5:] == [
        ("cancelled", 1, "", "", "cancelled"),
        ("stale", 1, "", "feed", ""),
        ("computed", 0, "", "puppet", ""),
        ("credit_returned", 4, GATEWAY, "audio", "closed"),
        ("closed", 0, "", "", "cancelled"),
    ]


def test_a_failure_is_told_by_its_code() -> None:
    bench = Puppets(PuppetStep())
    bench.finish(failure=StageFailure("step_failed", "the words of somebody"))
    assert told(bench.events)[-2:] == [("cancelled", 0, "", "", "step_failed"), ("closed", 0, "", "", "step_failed")]


def test_a_stream_that_is_refused() -> None:
    bench = StageBench(model := PuppetModel())
    bench.frame(OpenSession(SESSION, 0))
    model.open_fails = StageFailure("capacity", "all slots are taken")
    bench.frame(Open(TAG, ObserverOptions()))
    bench.frame(Open(Tag("nobody", 1, 1, "r"), ObserverOptions()))
    assert told(bench.events) == [("refused", 0, "", "", "capacity")]
    assert told(bench.events, "r") == [("refused", 0, "", "", "unknown_session")]


def test_the_credit_of_an_observer_that_is_lost_is_lost_with_it() -> None:
    log, model = EventLog(), PuppetModel()
    watching = OutEdge(NEXT, "audio", 8, need="complete", observed=True)
    stage = Stage(model, (watching, OutEdge(GATEWAY, "audio", 16)), events=log)
    stage.link_up(CONTROL, Hello(1, "control", "gw_1"))
    stage.link_up(MEDIA, Hello(1, "media", "gw_1"))
    stage.onward_up(NEXT, ONWARD)
    stage.handle(CONTROL, OpenSession(SESSION, 0), 0)
    for tag in (TAG, OTHER):
        stage.handle(CONTROL, Open(tag, ObserverOptions(), (NEXT,)), 0)
        stage.progress(tag.key, [sound(6)])
    stage.progress(OTHER.key, [sound(6, 1)])
    stage.link_lost(ONWARD, 0)
    lost = ("credit_returned", 6, NEXT, "audio", "lost")
    assert told(log)[-1] == lost
    assert told(log, OTHER.key)[-4:-1] == [
        ("produced", 6, "", "audio", ""),
        lost,
        ("credit_taken", 6, GATEWAY, "audio", ""),
    ]


def test_events_name_whose_they_are() -> None:
    bench = StageBench(PuppetModel())
    bench.events.at(7)
    bench.frame(OpenSession(SESSION, 0))
    bench.frame(Open(OTHER, ObserverOptions(), tenant="acme"))
    bench.frame(Open(INPUT, ObserverOptions()))
    bench.frame(EndEpoch(SESSION, 9), OTHER_CONTROL)
    bench.frame(CloseSession("nobody"))
    bench.frame(OpenSession("nobody", 0))
    names = [
        (event.at_ns, event.kind, event.session, event.stream, event.tenant) for event in bench.events.read().events
    ]
    assert names == [
        (7, "opened", SESSION, "resp_2#1", "acme"),
        (7, "opened", SESSION, INPUT.key, ""),
        (7, "stale", SESSION, "", ""),
        (7, "stale", "nobody", "", ""),
    ]
