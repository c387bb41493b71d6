"""A stage among replicas: to which of the next it hands over, how it shows that it lives, how it retires."""

from __future__ import annotations

from stages.contracts import Clause, ObserverOptions, Tag
from stages.effects import Send
from stages.messages import (
    CloseSession,
    Feed,
    Grant,
    Hello,
    InwardChanged,
    OnwardChanged,
    Open,
    OpenSession,
    Ping,
    Pong,
    Retire,
    Retiring,
)
from tests.stages.puppet import PuppetModel, PuppetStep
from tests.stages.stage_bench import (
    CONTROL,
    NEXT,
    ONWARD,
    OTHER_CONTROL,
    OTHER_MEDIA,
    OTHER_ONWARD,
    SESSION,
    SOURCE,
    TAG,
    Puppets,
    StageBench,
    closings,
    latents,
)


def test_a_stream_hands_over_to_the_replica_that_it_was_opened_for() -> None:
    bench = StageBench(PuppetModel(concurrency=2), onward_window=8, replicas=(NEXT, "other"))
    bench.carry_out(bench.stage.onward_up("other", OTHER_ONWARD))
    assert list(bench.stage.onward) == [NEXT, "other"]
    bench.frame(OpenSession(SESSION, 0))
    tags = {link: Tag(SESSION, 5, 1, f"resp_{link}") for link in (ONWARD, OTHER_ONWARD)}
    for tag, target in zip(tags.values(), (NEXT, "other"), strict=True):
        bench.frame(Open(tag, ObserverOptions(), (target,)))
    bench.take_sent()
    for tag in tags.values():
        bench.progress(latents(4), key=tag.key)
    assert bench.take_sent() == [Send(link, Feed(tag, latents(4).item, 4)) for link, tag in tags.items()]
    bench.frame(Grant(tags[ONWARD], 4), OTHER_ONWARD)
    assert bench.stage.statistics().stale_dropped == 1, "credit comes back from where the items went"
    frames = bench.lose(OTHER_ONWARD)
    assert frames[0] == OnwardChanged("other", False)
    assert closings(frames) == [(tags[OTHER_ONWARD], "failed", "downstream_lost")]
    assert list(bench.stage.onward) == [NEXT]


def test_a_ping_is_answered_with_the_age_of_the_oldest_running_step() -> None:
    bench = Puppets(PuppetStep())
    assert bench.frame(Ping(1), SOURCE) == [Pong(1, 0)]
    bench.frame(Feed(TAG, Clause(0, "")), SOURCE)
    bench.now_ns += 700
    assert bench.frame(Ping(2), SOURCE) == [Pong(2, 700)]
    bench.finish()
    assert bench.frame(Ping(3), SOURCE) == [Pong(3, 0)]


def test_a_stage_that_retires_finishes_what_it_has_and_says_so_to_every_gateway() -> None:
    bench = Puppets(PuppetStep())
    assert not bench.stage.has_retired
    bench.frame(Retire(), SOURCE)
    assert [(sent.link, sent.frame) for sent in bench.take_sent()[-1:]] == [(CONTROL, Retiring())]
    assert bench.carry_out(bench.stage.link_up(OTHER_CONTROL, Hello(1, "control", "gw_2"))) == [Retiring()]
    assert bench.carry_out(bench.stage.link_up(OTHER_MEDIA, Hello(1, "media", "gw_2"))) == []
    bench.frame(Feed(TAG, Clause(0, "")), SOURCE)
    bench.frame(CloseSession(SESSION))
    assert not bench.stage.has_retired, "a step still runs"
    bench.finish()
    assert bench.stage.has_retired


def test_gateways_are_told_whose_links_it_has() -> None:
    """A stage before may not have noticed that its link is gone: who asks it for a stream must know."""
    bench = StageBench(PuppetModel())
    bench.take_sent()
    inward = [bench.stage.inward]
    assert bench.lose(SOURCE) == [InwardChanged("before", up=False)]
    assert [*inward, bench.stage.inward] == [("before",), ()]
    assert bench.carry_out(bench.stage.link_up(30, Hello(1, "data", "before/1"))) == [InwardChanged("before", up=True)]
    assert bench.carry_out(bench.stage.link_up(31, Hello(1, "data", "before/2"))) == [], "its next life has a link too"
    assert bench.lose(30) == []
