"""The stage's rules one by one; `test_stage_machine.py` has them in any order."""

from __future__ import annotations

import pytest

from stages.accounts import EdgeStatistics, StageStatistics
from stages.contracts import OUT_OF_BAND, AudioOut, Clause, ObserverOptions, Tag, TextDelta
from stages.edges import GATEWAY
from stages.effects import Send
from stages.messages import (
    Cancel,
    Closed,
    CloseSession,
    EndEpoch,
    Feed,
    Grant,
    Hello,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Published,
    Refused,
    SessionOpened,
    SessionRefused,
    StepDone,
    Welcome,
)
from stages.scheduler import StageScheduler
from stages.stage import STREAMS_MAX
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
    closings,
    latents,
    sound,
)

CLAUSE = Clause(0, "Hello.", final=True)
TEXT = TextDelta("Hi")
FAILURE = StageFailure("engine", "it broke")

# ---- sessions -----------------------------------------------------------------------------------------------


def test_a_session_is_opened_once_and_its_model_told() -> None:
    bench = StageBench(model := PuppetModel())
    assert bench.frame(OpenSession("s", 1)) == [SessionOpened("s")]
    assert bench.frame(OpenSession("s", 1)) == [SessionOpened("s")]
    assert model.calls == ["open s"]
    assert bench.stage.statistics() == StageStatistics(0, 1, 0, StageScheduler(1).statistics(), ())


def test_a_model_without_room_refuses_the_session() -> None:
    bench = StageBench(model := PuppetModel())
    model.session_fails = StageFailure("capacity", "all slots are taken")
    assert bench.frame(OpenSession("s", 1)) == [SessionRefused("s", "capacity", "all slots are taken")]
    assert bench.frame(Open(Tag("s", 1, 1, "r"), ObserverOptions())) == [
        Refused(Tag("s", 1, 1, "r"), "unknown_session", "the session is not open at this stage")
    ]


def test_closing_a_session_ends_its_streams_and_then_the_model_forgets_it() -> None:
    bench = Puppets()
    bench.another(Tag("other", 5, 1, "resp_o"))
    bench.another(INPUT)
    assert closings(bench.frame(CloseSession(SESSION))) == [(TAG, "cancelled", ""), (INPUT, "cancelled", "")]
    assert bench.model.calls[-1] == f"close {SESSION}"
    assert bench.model.sessions == {"other"}
    assert bench.frame(CloseSession(SESSION)) == []
    assert bench.stale() == 1


def test_a_session_that_is_closed_while_a_step_runs_is_released_after_it() -> None:
    bench = Puppets(PuppetStep())
    assert bench.frame(CloseSession(SESSION)) == []
    assert bench.model.sessions == {SESSION}
    assert closings(bench.finish()) == [(TAG, "cancelled", "")]
    assert bench.model.sessions == set()


def test_a_session_that_is_opened_again_while_its_last_step_runs_is_kept() -> None:
    bench = Puppets(PuppetStep())
    bench.frame(CloseSession(SESSION))
    assert bench.frame(OpenSession(SESSION, 6)) == [SessionOpened(SESSION)]
    assert closings(bench.finish()) == [(TAG, "cancelled", "")]
    assert bench.model.sessions == {SESSION}
    assert bench.frame(Open(Tag(SESSION, 6, 2, "resp_2"), ObserverOptions()))[0] == Opened(Tag(SESSION, 6, 2, "resp_2"))


def test_who_opens_a_session_in_a_newer_epoch_ends_all_older_output() -> None:
    bench = Puppets()
    bench.another(INPUT)
    out_of_band = Tag(SESSION, OUT_OF_BAND, 1, "resp_b")
    bench.another(out_of_band)
    frames = bench.frame(OpenSession(SESSION, 6))
    assert frames[-1] == SessionOpened(SESSION)
    assert closings(frames) == [(TAG, "cancelled", "")]
    assert bench.stage.statistics().streams == 2


# ---- opening ------------------------------------------------------------------------------------------------


def test_opening_is_idempotent_for_the_same_tag() -> None:
    bench = Puppets()
    first = bench.stream
    assert bench.frame(Open(TAG, ObserverOptions())) == [Opened(TAG)]
    assert bench.stream is first


def test_an_ended_epoch_opens_no_output_but_input_and_out_of_band_work() -> None:
    bench = Puppets()
    bench.frame(EndEpoch(SESSION, 6))
    assert bench.frame(Open(TAG, ObserverOptions())) == [
        Refused(TAG, "stale_epoch", "epoch 5 ended, the session is at 6")
    ]
    for tag in (INPUT, Tag(SESSION, OUT_OF_BAND, 1, "resp_b"), Tag(SESSION, 6, 1, "resp_2")):
        assert bench.frame(Open(tag, ObserverOptions())) == [Opened(tag)]


def test_a_name_that_is_still_leaving_is_busy() -> None:
    bench = Puppets(PuppetStep())
    bench.frame(Cancel(TAG))
    assert bench.frame(Open(TAG, ObserverOptions())) == [Refused(TAG, "busy", "a stream of that name is still leaving")]
    bench.finish()
    assert bench.frame(Open(TAG, ObserverOptions())) == [Opened(TAG)]


def test_a_name_that_another_tag_holds_is_busy() -> None:
    bench = Puppets()
    later = Tag(SESSION, 6, 1, TAG.response)
    assert [type(frame) for frame in bench.frame(Open(later, ObserverOptions()))] == [Refused]


def test_only_so_many_streams_are_open_at_once() -> None:
    bench = Puppets()
    for number in range(STREAMS_MAX - 1):
        bench.open(Tag(SESSION, 5, 1, f"r{number}"))
    last = Tag(SESSION, 5, 1, "one too many")
    assert bench.open(last) == [Refused(last, "capacity", f"{STREAMS_MAX} streams are open")]


def test_a_model_refuses_by_its_own_code() -> None:
    bench = Puppets()
    bench.model.open_fails = StageFailure("wrong_options", "no such voice")
    tag = Tag(SESSION, 5, 1, "resp_2")
    assert bench.open(tag) == [Refused(tag, "wrong_options", "no such voice")]
    assert bench.stage.statistics().streams == 1


# ---- links --------------------------------------------------------------------------------------------------


def test_the_loss_of_a_gateways_control_link_ends_all_that_it_opened() -> None:
    bench = Puppets()
    bench.another(INPUT)
    bench.another_gateway()
    foreign = Tag("other", 5, 1, "resp_o")
    bench.frame(OpenSession("other", 5), OTHER_CONTROL)
    bench.frame(Open(foreign, ObserverOptions()), OTHER_CONTROL)
    assert closings(bench.lose(CONTROL)) == [(TAG, "cancelled", ""), (INPUT, "cancelled", "")]
    assert bench.model.sessions == {"other"}
    assert bench.stage.statistics().streams == 1


def test_the_loss_of_another_link_ends_nothing() -> None:
    bench = Puppets()
    assert bench.lose(99) == []
    assert bench.stage.statistics().streams == 1


def test_the_next_stage_comes_and_goes() -> None:
    bench = StageBench(PuppetModel(), onward_window=8, onward=False)
    bench.another_gateway()
    assert not bench.stage.onward
    assert bench.open(onward=True) == [Refused(TAG, "downstream_lost", "next is not connected")]
    assert bench.open(INPUT) == [Opened(INPUT)]
    bench.take_sent()
    bench.carry_out(bench.stage.onward_up(NEXT, ONWARD))
    told = [Send(link, OnwardChanged(NEXT, True)) for link in (CONTROL, OTHER_CONTROL)]
    assert bench.take_sent() == told
    assert list(bench.stage.onward) == [NEXT]
    assert bench.frame(Welcome(1, "next", 1, "", ()), ONWARD) == []
    bench.open(onward=True)
    frames = bench.lose(ONWARD)
    assert frames[:2] == [OnwardChanged(NEXT, False)] * 2
    assert closings(frames) == [(TAG, "failed", "downstream_lost")]
    statistics = bench.stage.statistics()
    assert (statistics.streams, statistics.stale_dropped) == (1, 0)


def test_events_go_to_the_media_link_of_the_gateway_that_opened_the_stream() -> None:
    bench = Puppets(PuppetStep((Publish(TEXT),)))
    bench.another_gateway()
    bench.progress(Publish(TEXT))
    bench.finish()
    sent = [effect for effect in bench.take_sent() if isinstance(effect.frame, Published)]
    assert sent == [Send(MEDIA, Published(TAG, TEXT))] * 2


def test_events_of_a_lost_gateway_go_nowhere_else() -> None:
    bench = Puppets(PuppetStep((Publish(TEXT),)))
    bench.lose(CONTROL)
    bench.take_sent()
    bench.finish()
    assert [type(effect.frame) for effect in bench.take_sent()] == [Closed]


# ---- input --------------------------------------------------------------------------------------------------


def test_input_reaches_its_stream_and_its_credit_goes_back_to_who_sent_it() -> None:
    bench = Puppets()
    bench.stream.feed_outputs = (Consumed(6), Consumed(0))
    bench.frame(Feed(TAG, CLAUSE, 6), SOURCE)
    assert bench.stream.fed == [CLAUSE]
    assert bench.take_sent() == [Send(SOURCE, Grant(TAG, 6))]


def test_credit_for_what_nobody_sent_goes_nowhere() -> None:
    bench = Puppets(PuppetStep((Consumed(3),)))
    assert [type(frame) for frame in bench.finish()] == [StepDone]


@pytest.mark.parametrize(
    "frame",
    [
        Feed(Tag(SESSION, 6, 1, TAG.response), CLAUSE),
        Feed(Tag(SESSION, 5, 1, "resp_0"), CLAUSE),
        Grant(Tag(SESSION, 6, 1, TAG.response), 1),
        Grant(Tag(SESSION, 5, 1, "resp_0"), 1),
        EndEpoch("task_1_2", 9),
        CloseSession("task_1_2"),
        Opened(TAG),
        Hello(1, "control", "gw_1"),
    ],
    ids=repr,
)
def test_what_is_stale_is_counted_and_changes_nothing(frame: Feed) -> None:
    bench = Puppets(PuppetStep((sound(4),)), publish_window=4)
    bench.progress(sound(4))
    assert bench.frame(frame) == []
    assert bench.stale() == 1
    assert bench.stream.fed == []
    assert bench.stage.statistics().streams == 1
    assert [type(sent) for sent in bench.finish()] == [StepDone]


def test_input_that_the_stream_does_not_take_fails_it_and_no_other() -> None:
    bench = Puppets()
    sibling = bench.another(Tag(SESSION, 5, 1, "resp_1_2"))
    bench.stream.feed_fails = StageFailure("wrong_item", "a vocoder does not take Clause")
    assert bench.frame(Feed(TAG, CLAUSE)) == [Closed(TAG, "failed", {}, "wrong_item", "a vocoder does not take Clause")]
    assert (bench.model.streams[TAG.key].closed, sibling.closed) == (1, 0)


def test_new_input_plans_a_waiting_step_anew_in_its_old_place() -> None:
    bench = Puppets(PuppetStep())
    waiting = bench.another(Tag(SESSION, 5, 1, "a"), PuppetStep(kind="speculative"))
    bench.now_ns += 1
    bench.another(Tag(SESSION, 5, 1, "b"), PuppetStep())
    waiting.steps[0] = PuppetStep(kind="final")
    bench.now_ns += 1
    bench.frame(Feed(waiting.tag, CLAUSE))
    bench.finish()
    started = bench.running["a"]
    assert isinstance(started.step, PuppetStep)
    assert started.step.kind == "final"


def test_new_input_may_make_a_waiting_step_void_or_end_the_stream() -> None:
    bench = Puppets(PuppetStep())
    waiting = bench.another(Tag(SESSION, 5, 1, "a"), PuppetStep())
    waiting.steps.clear()
    assert bench.frame(Feed(waiting.tag, CLAUSE)) == []
    assert bench.stage.statistics().scheduler.waiting == 0
    waiting.ends = True
    assert closings(bench.frame(Feed(waiting.tag, CLAUSE))) == [(waiting.tag, "finished", "")]


def test_a_step_that_is_planned_anew_waits_for_the_credit_that_it_needs() -> None:
    bench = Puppets(PuppetStep(), publish_window=4)
    waiting = bench.another(Tag(SESSION, 5, 1, "a"), PuppetStep(units=1))
    waiting.feed_outputs = (sound(2),)
    waiting.steps[0] = PuppetStep((sound(3, 1),), units=3)
    bench.frame(Feed(waiting.tag, CLAUSE))
    bench.finish()
    assert bench.running == {}
    bench.frame(Grant(waiting.tag, 2))
    assert list(bench.running) == ["a"]


def test_input_whose_outputs_wait_for_credit_holds_a_waiting_step_back() -> None:
    bench = Puppets(PuppetStep(), publish_window=4)
    waiting = bench.another(Tag(SESSION, 5, 1, "a"), PuppetStep())
    waiting.feed_outputs = (sound(4), sound(1, 1))
    asked = waiting.asked
    bench.frame(Feed(waiting.tag, CLAUSE))
    bench.finish()
    assert (bench.running, waiting.asked) == ({}, asked)


# ---- steps --------------------------------------------------------------------------------------------------


def test_a_step_is_timed_from_ready_to_done() -> None:
    bench = Puppets(PuppetStep())
    bench.another(Tag(SESSION, 5, 1, "a"), PuppetStep(kind="decode"))
    bench.now_ns += 30
    bench.finish()
    bench.now_ns += 500
    assert bench.finish("a") == [StepDone(Tag(SESSION, 5, 1, "a"), "decode", 30, 500)]


def test_no_more_steps_run_than_the_model_has_threads() -> None:
    bench = Puppets(PuppetStep(), concurrency=2)
    for name in "abc":
        bench.another(Tag(SESSION, 5, 1, name), PuppetStep())
    assert list(bench.running) == [TAG.key, "a"]
    bench.finish("a")
    assert list(bench.running) == [TAG.key, "b"]


def test_a_finished_stream_says_what_it_still_held() -> None:
    bench = Puppets(PuppetStep())
    bench.stream.ends = True
    bench.stream.holds = {"frames": 3, "slots": 0}
    assert bench.finish()[-1] == Closed(TAG, "finished", {"frames": 3})
    assert bench.stream.closed == 1
    assert bench.is_empty()


def test_a_stream_is_not_finished_before_its_outputs_have_gone() -> None:
    bench = Puppets(PuppetStep((sound(4), sound(4, 1))), publish_window=4)
    bench.stream.ends = True
    assert closings(bench.finish()) == []
    assert closings(bench.frame(Grant(TAG, 4))) == [(TAG, "finished", "")]


def test_vllm_omni_5349_an_end_without_sound_needs_no_room() -> None:
    bench = Puppets(
        PuppetStep((sound(4),)), PuppetStep((Publish(AudioOut(1, 24_000, 4, b"", final=True)),)), publish_window=4
    )
    bench.stream.ends = True
    bench.finish()
    assert list(bench.running) == [TAG.key], "all that may be in flight is"
    published, closed = bench.finish()[-2:]
    assert isinstance(published, Published)
    assert closed == Closed(TAG, "finished", {})


def test_a_step_that_fails_fails_its_stream() -> None:
    bench = Puppets(PuppetStep())
    assert bench.finish(failure=FAILURE) == [Closed(TAG, "failed", {}, "engine", "it broke")]
    assert bench.is_empty()


def test_a_result_that_cannot_be_used_fails_its_stream() -> None:
    bench = Puppets(PuppetStep(fails=FAILURE))
    assert closings(bench.finish()) == [(TAG, "failed", "engine")]
    assert bench.is_empty()


def test_a_plan_that_fails_fails_its_stream_and_no_other() -> None:
    bench = Puppets()
    sibling = bench.another(Tag(SESSION, 5, 1, "resp_1_2"), PuppetStep())
    bench.stream.plan_fails = FAILURE
    assert closings(bench.wake()) == [(TAG, "failed", "engine")]
    assert (list(bench.running), sibling.closed) == (["resp_1_2"], 0)


def test_a_plan_that_fails_while_its_step_waits_fails_its_stream() -> None:
    bench = Puppets(PuppetStep())
    waiting = bench.another(Tag(SESSION, 5, 1, "a"), PuppetStep())
    waiting.plan_fails = FAILURE
    assert closings(bench.frame(Feed(waiting.tag, CLAUSE))) == [(waiting.tag, "failed", "engine")]
    assert bench.stage.statistics().scheduler.waiting == 0


# ---- credit -------------------------------------------------------------------------------------------------


def test_what_is_handed_on_goes_to_the_next_stage_within_its_window() -> None:
    bench = Puppets(PuppetStep((latents(4), latents(4, 4), latents(4, 8))), onward_window=8)
    bench.finish()
    assert [effect.link for effect in bench.take_sent()] == [CONTROL, ONWARD, ONWARD]
    bench.frame(Grant(TAG, 4), ONWARD)
    assert bench.take_sent() == [Send(ONWARD, Feed(TAG, latents(4, 8).item, 4))]


def test_a_stream_that_is_not_to_go_on_hands_nothing_over() -> None:
    bench = Puppets(PuppetStep((latents(400),)))
    assert [type(frame) for frame in bench.finish()] == [StepDone]


def test_outputs_keep_their_order_though_only_one_kind_waits() -> None:
    bench = Puppets(PuppetStep((latents(8), latents(1, 8), Publish(TEXT))), onward_window=8)
    assert [type(frame) for frame in bench.finish()] == [StepDone, Feed]
    assert [type(frame) for frame in bench.frame(Grant(TAG, 8), ONWARD)] == [Feed, Published]


def test_a_stalled_step_is_told_and_the_stream_given_no_other() -> None:
    bench = Puppets(PuppetStep(), PuppetStep(), publish_window=4)
    flags, seen = bench.running[TAG.key].flags, []
    for seq, units in enumerate((4, 1)):
        bench.progress(sound(units, seq))
        seen.append(flags.stalled)
    bench.finish()
    assert bench.running == {}
    bench.frame(Grant(TAG, 4))
    assert [*seen, flags.stalled] == [False, True, False]
    assert list(bench.running) == [TAG.key]


def test_a_step_starts_only_with_all_the_credit_that_it_may_need() -> None:
    bench = Puppets(PuppetStep((sound(3),)), PuppetStep((sound(3, 1),), units=3), publish_window=4)
    bench.finish()
    assert bench.running == {}
    bench.frame(Grant(TAG, 1))
    assert bench.running == {}
    bench.frame(Grant(TAG, 1))
    assert list(bench.running) == [TAG.key]


def test_a_step_that_hands_on_needs_the_credit_of_that_edge() -> None:
    bench = Puppets(PuppetStep((latents(3),)), PuppetStep((latents(3, 3),), units=3), onward_window=4)
    bench.finish()
    assert bench.running == {}
    bench.frame(Grant(TAG, 3), ONWARD)
    assert list(bench.running) == [TAG.key]


def test_grants_count_for_the_edge_of_the_link_that_they_came_by() -> None:
    bench = Puppets(PuppetStep((latents(4),)), onward_window=4)
    bench.finish()
    assert bench.frame(Grant(TAG, 4), MEDIA) == []
    assert (bench.stale(), bench.stage.statistics().streams) == (1, 1)


@pytest.mark.parametrize("units", [5, -1])
def test_credit_that_was_never_taken_fails_the_stream_and_no_other(units: int) -> None:
    bench = Puppets(PuppetStep((sound(4),)), publish_window=8)
    sibling = bench.another(Tag(SESSION, 5, 1, "resp_1_2"))
    bench.finish()
    assert closings(bench.frame(Grant(TAG, units))) == [(TAG, "failed", "credit_violated")]
    assert sibling.closed == 0


def test_an_output_that_no_window_can_hold_fails_its_stream() -> None:
    bench = Puppets(PuppetStep((sound(4), sound(5, 1))), publish_window=4)
    frames = bench.finish()
    assert [type(frame) for frame in frames] == [StepDone, Published, Closed]
    assert closings(frames) == [(TAG, "failed", "hand_over_too_large")]
    assert bench.is_empty()


def test_an_output_too_large_amid_a_step_fails_its_stream_when_the_step_is_back() -> None:
    bench = Puppets(PuppetStep((Publish(TEXT),)), publish_window=4)
    assert bench.progress(sound(5)) == []
    assert bench.running[TAG.key].flags.cancelled
    assert closings(bench.finish()) == [(TAG, "failed", "hand_over_too_large")]


def test_a_step_that_no_window_can_hold_fails_its_stream_uncomputed() -> None:
    bench = StageBench(model := PuppetModel(), publish_window=4)
    bench.open()
    model.streams[TAG.key].steps.append(PuppetStep(units=5))
    assert closings(bench.wake()) == [(TAG, "failed", "hand_over_too_large")]
    assert bench.running == {}


# ---- endings ------------------------------------------------------------------------------------------------


def test_a_cancelled_stream_is_closed_when_its_step_has_come_back_and_its_result_is_dropped() -> None:
    bench = Puppets(PuppetStep((sound(1),)), publish_window=4)
    flags, woken = bench.running[TAG.key].flags, []
    flags.wake = lambda: woken.append(flags.cancelled)
    assert bench.frame(Cancel(TAG)) == []
    assert bench.progress(sound(1)) == []
    assert bench.frame(Feed(TAG, CLAUSE)) == []
    assert bench.frame(Grant(TAG, 1)) == []
    assert bench.frame(Cancel(TAG)) == []
    assert bench.stale() == 3
    assert woken == [True]
    assert bench.finish() == [Closed(TAG, "cancelled", {})]
    assert bench.stream.closed == 1
    assert bench.is_empty()


def test_a_cancelled_stream_fails_no_more() -> None:
    bench = Puppets(PuppetStep())
    bench.frame(Cancel(TAG))
    assert closings(bench.finish(failure=FAILURE)) == [(TAG, "cancelled", "")]


def test_a_cancelled_stream_whose_step_waits_is_closed_at_once_uncomputed() -> None:
    bench = Puppets(PuppetStep())
    waiting = bench.another(Tag(SESSION, 5, 1, "a"), PuppetStep())
    assert closings(bench.frame(Cancel(waiting.tag))) == [(waiting.tag, "cancelled", "")]
    bench.finish()
    assert bench.running == {}
    assert waiting.closed == 1


def test_a_cancelled_stream_drops_what_waits_for_credit() -> None:
    bench = Puppets(PuppetStep((sound(4), sound(4, 1))), publish_window=4)
    bench.finish()
    assert bench.frame(Cancel(TAG)) == [Closed(TAG, "cancelled", {})]


def test_the_end_of_an_epoch_ends_older_output_and_leaves_input_alone() -> None:
    bench = Puppets()
    kept = [INPUT, Tag(SESSION, 7, 2, "new"), Tag(SESSION, OUT_OF_BAND, 1, "beside"), Tag("task_1_2", 5, 1, "sibling")]
    for tag in kept:
        bench.another(tag)
    assert closings(bench.frame(EndEpoch(SESSION, 7))) == [(TAG, "cancelled", "")]
    assert bench.stage.statistics().streams == len(kept)
    assert closings(bench.frame(Cancel(kept[2]))) == [(kept[2], "cancelled", "")]


def test_an_epoch_never_goes_back() -> None:
    bench = Puppets()
    bench.frame(EndEpoch(SESSION, 9))
    bench.frame(EndEpoch(SESSION, 3))
    tag = Tag(SESSION, 8, 1, "late")
    assert [type(frame) for frame in bench.frame(Open(tag, ObserverOptions()))] == [Refused]


@pytest.mark.parametrize("ending", [Cancel(TAG), EndEpoch(SESSION, 6), CloseSession(SESSION)], ids=repr)
def test_siblings_with_longer_names_are_not_touched(ending: Cancel) -> None:
    bench = Puppets()
    siblings = [Tag("task_1_2", 5, 1, "resp_1_2"), Tag("task_1_2", 5, 1), Tag("task_1", 5, 12)]
    for tag in siblings:
        bench.another(tag)
    assert closings(bench.frame(ending)) == [(TAG, "cancelled", "")]
    assert bench.frame(Cancel(Tag("task_1", 5, 1, "resp_1_2_3"))) == []
    assert bench.stage.statistics().streams == 3
    assert bench.model.sessions >= {"task_1", "task_1_2"}


def test_progress_of_a_stream_that_has_left_is_stale() -> None:
    (bench := Puppets()).frame(Cancel(TAG))
    assert bench.progress(Publish(TEXT)) == []
    assert bench.stale() == 1


# ---- what is lent -------------------------------------------------------------------------------------------


def test_credit_of_a_stream_stands_in_its_edges_account_until_it_leaves() -> None:
    bench = Puppets(onward_window=10)

    def edge() -> EdgeStatistics:
        (one,) = bench.stage.statistics().edges
        return one

    bench.progress(latents(10), latents(2, 10))
    assert (edge().streams, edge().credit_out, edge().credit_out_peak) == (1, 10, 10)
    assert set(edge().waiting) == {TAG.key}
    bench.frame(Grant(TAG, 4), ONWARD)
    assert (edge().credit_out, edge().waiting) == (8, {})
    bench.frame(Cancel(TAG))
    assert edge() == EdgeStatistics(NEXT, 0, 0, 10, {})


def test_a_link_leads_to_a_next_stage_or_to_the_gateway() -> None:
    bench = Puppets(onward_window=10)
    assert [bench.stage.target_at(link) for link in (ONWARD, MEDIA)] == [NEXT, GATEWAY]
