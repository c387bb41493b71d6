"""Whom a stage follows: a session's owner, the latest link of a peer, the latest process of the stage before."""

from __future__ import annotations

import pytest

from stages.contracts import OUT_OF_BAND, AudioOut, Clause, ObserverOptions, Pause, Tag, TextDelta
from stages.edges import InEdge
from stages.effects import Send
from stages.messages import (
    LINK_VERSION,
    Cancel,
    Closed,
    CloseSession,
    EndEpoch,
    Feed,
    Frame,
    Grant,
    Hello,
    Open,
    Opened,
    OpenSession,
    Published,
    Refused,
    SessionOpened,
    SessionRefused,
    StepDone,
)
from stages.stream import Publish
from tests.stages.puppet import PuppetStep
from tests.stages.stage_bench import (
    CONTROL,
    INPUT,
    MEDIA,
    OTHER_CONTROL,
    OTHER_MEDIA,
    SESSION,
    SOURCE,
    TAG,
    Puppets,
    closings,
    sound,
)

CLAUSE = Clause(0, "Hello.", final=True)
TEXT = TextDelta("Hi")
CLAUSES = (InEdge("clauses", 8),)


# ---- owners -------------------------------------------------------------------------------------------------


def _taken_over() -> Puppets:
    """A second gateway has taken the session over in epoch 9."""
    bench = Puppets()
    bench.another_gateway()
    bench.frame(OpenSession(SESSION, 9), OTHER_CONTROL)
    bench.frame(Open(Tag(SESSION, 9, 2, "resp_9"), ObserverOptions()), OTHER_CONTROL)
    return bench


def test_a_former_owner_can_neither_open_nor_close_the_session() -> None:
    bench = _taken_over()
    assert bench.frame(OpenSession(SESSION, 8)) == [
        SessionRefused(SESSION, "stale_epoch", "epoch 8 ended, the session is at 9")
    ]
    assert bench.frame(CloseSession(SESSION)) == []
    assert (bench.stage.statistics().streams, bench.stale()) == (1, 1)
    assert closings(bench.frame(CloseSession(SESSION), OTHER_CONTROL)) == [
        (Tag(SESSION, 9, 2, "resp_9"), "cancelled", "")
    ]


def test_who_opens_a_session_ends_all_that_others_had_opened_for_it() -> None:
    bench = Puppets()
    outside = Tag(SESSION, OUT_OF_BAND, 1, "resp_o")
    for tag in (INPUT, outside):
        bench.another(tag)
    bench.another_gateway()
    ended = closings(bench.frame(OpenSession(SESSION, 5), OTHER_CONTROL))
    assert ended == [(tag, "cancelled", "") for tag in (TAG, INPUT, outside)]
    assert bench.model.sessions == {SESSION}


def test_a_new_owner_is_told_that_the_session_is_open_when_nothing_of_the_one_before_is_left() -> None:
    bench = Puppets(PuppetStep())
    bench.another(INPUT)
    bench.another_gateway()
    assert bench.frame(OpenSession(SESSION, 9), OTHER_CONTROL) == [Closed(INPUT, "cancelled", {})]
    assert bench.finish() == [Closed(TAG, "cancelled", {}), SessionOpened(SESSION)]
    assert bench.frame(OpenSession(SESSION, 9), OTHER_CONTROL) == [SessionOpened(SESSION)]


def test_a_stream_that_is_open_is_opened_again_by_its_owner_alone() -> None:
    bench = Puppets()
    bench.another_gateway()
    again = Open(TAG, ObserverOptions())
    assert bench.frame(again) == [Opened(TAG)]
    assert bench.frame(again, OTHER_CONTROL) == [Refused(TAG, "not_owner", "another gateway has opened the session")]


def test_an_owner_that_has_streams_open_is_told_at_once_that_the_session_is_its_own() -> None:
    bench = Puppets()
    assert bench.frame(OpenSession(SESSION, 6)) == [Closed(TAG, "cancelled", {}), SessionOpened(SESSION)]
    bench.another(outside := Tag(SESSION, OUT_OF_BAND, 1, "resp_o"))
    assert bench.frame(OpenSession(SESSION, 7)) == [SessionOpened(SESSION)]
    assert closings(bench.frame(Cancel(outside))) == [(outside, "cancelled", "")]


@pytest.mark.parametrize(
    "link", [SOURCE, OTHER_CONTROL, OTHER_MEDIA, 99], ids=["before", "other", "its media", "nobody"]
)
def test_the_credit_of_what_was_published_is_given_back_by_its_gateway_alone(link: int) -> None:
    bench = Puppets(PuppetStep((sound(4),)), PuppetStep((sound(4, 1),)), publish_window=4)
    bench.another_gateway()
    bench.run_to_rest()
    assert bench.frame(Grant(TAG, 4), link) == []
    assert bench.stale() == 1
    assert [type(frame) for frame in bench.frame(Grant(TAG, 4), MEDIA)] == [Published]


def test_who_has_left_again_meanwhile_is_told_nothing() -> None:
    bench = Puppets(PuppetStep())
    bench.another_gateway()
    bench.frame(OpenSession(SESSION, 9), OTHER_CONTROL)
    bench.frame(CloseSession(SESSION), OTHER_CONTROL)
    assert bench.finish() == [Closed(TAG, "cancelled", {})]


def test_a_new_owner_counts_its_turns_anew_while_those_of_the_one_before_are_leaving() -> None:
    bench = Puppets()
    bench.another(INPUT, PuppetStep())
    bench.another_gateway()
    bench.frame(OpenSession(SESSION, 9), OTHER_CONTROL)
    again = Tag(SESSION, 9, INPUT.turn)
    assert bench.frame(Open(again, ObserverOptions()), OTHER_CONTROL) == [Opened(again)]
    assert [frame.tag for frame in bench.finish(INPUT.key) if isinstance(frame, Closed)] == [INPUT]


@pytest.mark.parametrize(
    "frame",
    [
        Cancel(Tag(SESSION, 9, 2, "resp_9")),
        Cancel(Tag(SESSION, 8, 2, "resp_9")),
        EndEpoch(SESSION, 99),
        CloseSession(SESSION),
        Grant(Tag(SESSION, 9, 2, "resp_9"), 1),
        Feed(Tag(SESSION, 9, 2, "resp_9"), CLAUSE),
    ],
    ids=repr,
)
def test_orders_of_a_former_owner_change_nothing(frame: Frame) -> None:
    bench = _taken_over()
    tag = Tag(SESSION, 9, 2, "resp_9")
    assert bench.frame(frame, CONTROL) == []
    assert (bench.model.streams[tag.key].fed, bench.stage.statistics().streams) == ([], 1)
    assert closings(bench.frame(EndEpoch(SESSION, 10), OTHER_CONTROL)) == [(tag, "cancelled", "")]


@pytest.mark.parametrize(
    "tag", [INPUT, Tag(SESSION, OUT_OF_BAND, 1, "resp_o"), Tag(SESSION, 99, 1, "resp_1")], ids=repr
)
def test_a_former_owner_opens_nothing(tag: Tag) -> None:
    bench = _taken_over()
    refused = Refused(tag, "not_owner", "another gateway has opened the session")
    assert bench.frame(Open(tag, ObserverOptions())) == [refused]


def test_the_loss_of_a_former_owner_leaves_the_session_alone() -> None:
    bench = _taken_over()
    assert bench.lose(CONTROL) == []
    assert (bench.stage.statistics().streams, bench.model.sessions) == (1, {SESSION})


def test_the_terminal_goes_to_who_opened_the_stream_last() -> None:
    """A gateway that reconnects may be heard on its new link before the old one is known to be lost."""
    bench = Puppets()
    bench.stage.link_up(OTHER_CONTROL, Hello(LINK_VERSION, "control", "gw_1"))
    bench.frame(OpenSession(SESSION, 5), OTHER_CONTROL)
    bench.frame(Open(TAG, ObserverOptions()), OTHER_CONTROL)
    bench.lose(CONTROL)
    bench.take_sent()
    bench.frame(Cancel(TAG), OTHER_CONTROL)
    assert bench.take_sent() == [Send(OTHER_CONTROL, Closed(TAG, "cancelled", {}))]


def test_streams_of_a_lost_gateway_end_though_another_owns_their_session_now() -> None:
    bench = Puppets()
    bench.another(INPUT)
    bench.another_gateway()
    bench.frame(OpenSession(SESSION, 5), OTHER_CONTROL)
    bench.lose(CONTROL)
    assert bench.is_empty()
    assert bench.model.sessions == {SESSION}


# ---- peers --------------------------------------------------------------------------------------------------


def test_a_gateway_that_introduces_itself_anew_has_lost_its_links() -> None:
    """It knows of the loss before we do, and asks anew for what it wants."""
    bench = Puppets()
    bench.another(INPUT, PuppetStep())
    bench.carry_out(bench.stage.link_up(22, Hello(LINK_VERSION, "media", "gw_1")))
    assert closings([sent.frame for sent in bench.take_sent()]) == [(TAG, "failed", "media_lost")]
    bench.carry_out(bench.stage.link_up(21, Hello(LINK_VERSION, "control", "gw_1")))
    assert closings(bench.finish(INPUT.key)) == [(INPUT, "failed", "media_lost")]
    bench.frame(OpenSession(SESSION, 5), 21)
    bench.frame(Open(TAG, ObserverOptions()), 21)
    assert bench.lose(CONTROL) == []
    assert bench.frame(Feed(TAG, CLAUSE), 22) == []
    assert (bench.stream.fed, bench.stale()) == ([CLAUSE], 0)
    bench.progress(Publish(TEXT))
    assert bench.take_sent()[-1] == Send(22, Published(TAG, TEXT))
    assert bench.lose(MEDIA) == []


def test_a_link_that_a_gateway_has_left_behind_takes_no_session_back() -> None:
    """What was under way on it comes after the new one has greeted, and nobody would close what that opens."""
    bench = Puppets()
    bench.carry_out(bench.stage.link_up(21, Hello(LINK_VERSION, "control", "gw_1")))
    bench.carry_out(bench.stage.link_up(22, Hello(LINK_VERSION, "media", "gw_1")))
    bench.frame(OpenSession(SESSION, 5), 21)
    assert bench.frame(OpenSession(SESSION, 6), CONTROL) == []
    assert bench.frame(OpenSession("other", 1), CONTROL) == []
    assert bench.stale() == 2
    bench.lose(CONTROL)
    assert bench.frame(Open(TAG, ObserverOptions()), 21) == [Opened(TAG)]
    bench.lose(21)
    assert bench.stage.statistics().sessions == 0


@pytest.mark.parametrize("link", [MEDIA, SOURCE, 99], ids=["media", "stage", "unknown"])
def test_only_a_control_link_opens_sessions(link: int) -> None:
    bench = Puppets()
    assert bench.frame(OpenSession("other", 1), link) == []
    assert (bench.stage.statistics().sessions, bench.stale()) == (1, 1)


def test_what_is_published_is_lost_with_the_media_link_and_its_streams_fail() -> None:
    """The gateway, which may not have noticed, is not to be told of a success of which it lacks the end."""
    bench = Puppets(PuppetStep((Publish(TEXT),)))
    bench.another_gateway()
    foreign = Tag("other", 5, 1, "resp_o")
    bench.frame(OpenSession("other", 5), OTHER_CONTROL)
    bench.frame(Open(foreign, ObserverOptions()), OTHER_CONTROL)
    bench.take_sent()
    assert bench.lose(MEDIA) == []
    bench.finish()
    sent = [Send(CONTROL, Closed(TAG, "failed", {}, "media_lost", "what is published reaches nobody"))]
    assert [effect for effect in bench.take_sent() if effect.link in (CONTROL, MEDIA)] == sent
    assert bench.stage.statistics().streams == 1, "the other gateway's goes on"
    again = Tag(SESSION, 5, 1, "resp_2")
    refused = Refused(again, "media_lost", "what is published reaches nobody")
    assert bench.frame(Open(again, ObserverOptions())) == [refused]


def test_a_success_goes_the_way_of_what_was_published() -> None:
    bench = Puppets(PuppetStep((Publish(TEXT),)))
    bench.stream.ends = True
    bench.finish()
    sent = [(effect.link, type(effect.frame)) for effect in bench.take_sent()]
    assert sent == [(CONTROL, StepDone), (MEDIA, Published), (MEDIA, Closed)]


def test_what_was_handed_over_is_lost_with_the_link_of_the_stage_before() -> None:
    """Whoever had made it may have finished, and would hear of no loss."""
    bench = Puppets(inputs=CLAUSES)
    waiting, whole, fed = (Tag(SESSION, 5, 1, name) for name in ("resp_w", "resp_f", "resp_s"))
    for tag in (INPUT, waiting, whole, fed):
        bench.another(tag)
    bench.frame(Feed(TAG, Clause(0, "One")), SOURCE)
    bench.frame(Feed(whole, Clause(0, "One", final=True)), SOURCE)
    bench.frame(Feed(whole, Pause(0)), SOURCE)
    bench.frame(Feed(fed, Clause(0, "One")), MEDIA)
    lost = [(TAG, "failed", "upstream_lost"), (waiting, "failed", "upstream_lost")]
    assert closings(bench.lose(SOURCE)) == lost


def test_what_comes_by_other_edges_is_lost_with_theirs() -> None:
    bench = Puppets(inputs=(*CLAUSES, InEdge("audio", 8)))
    bench.stage.link_up(30, Hello(LINK_VERSION, "data", "other/1"))
    bench.frame(Feed(TAG, CLAUSE), SOURCE)
    bench.frame(Feed(TAG, AudioOut(0, 24_000, 0, b"", final=False)), 30)
    assert closings(bench.lose(SOURCE)) == []
    assert closings(bench.lose(30)) == [(TAG, "failed", "upstream_lost")]


def test_a_new_process_of_the_stage_before_takes_the_place_of_the_old_one() -> None:
    bench = Puppets(inputs=CLAUSES)
    bench.carry_out(bench.stage.link_up(30, Hello(LINK_VERSION, "data", "before/2")))
    assert closings([sent.frame for sent in bench.take_sent()]) == [(TAG, "failed", "upstream_lost")]
    bench.open()
    bench.frame(Feed(TAG, CLAUSE), SOURCE)
    assert (bench.stream.fed, bench.stale()) == ([], 1)
    bench.frame(Feed(TAG, CLAUSE), 30)
    assert bench.stream.fed == [CLAUSE]
    assert bench.lose(SOURCE) == []


def test_a_past_process_of_the_stage_before_is_not_listened_to() -> None:
    bench = Puppets()
    assert bench.stage.link_up(30, Hello(LINK_VERSION, "data", "before/0")) == []
    bench.stage.link_up(31, Hello(LINK_VERSION, "data", "other/0"))
    bench.frame(Feed(TAG, CLAUSE), 30)
    assert (bench.stream.fed, bench.stale()) == ([], 1)
    bench.frame(Feed(TAG, CLAUSE), SOURCE)
    bench.frame(Feed(TAG, CLAUSE), 31)
    assert bench.stream.fed == [CLAUSE, CLAUSE]
    assert bench.lose(30) == []
