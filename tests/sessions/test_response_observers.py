"""Observers of a response: opened with it, no matter to its terminal, waited for by its drain."""

from __future__ import annotations

from sessions.response import PLAYOUT, STAGE_LOST, Abort, Cut, Done, Drained, OpenStage, Phase, Response, Retry
from stages.contracts import DEADLINE_EXCEEDED
from tests.sessions.test_response import LINE, OWED, SEEN, SHORT, TAG, complete


def accepted() -> Response:
    """One that an aligner looks at."""
    return Response(TAG, SEEN, finals=OWED, observers=["aligner"], deadlines=SHORT, now_ns=10)


def observed() -> Response:
    """Open at all stages."""
    response = accepted()
    response.admit(10)
    for stage in reversed(SEEN):
        response.opened(stage)
    return response


def test_an_observer_is_opened_with_the_others_and_before_the_head() -> None:
    response = accepted()
    assert response.admit(10) == [OpenStage("talker"), OpenStage("vocoder"), OpenStage("aligner")]
    response.opened("talker")
    assert response.opened("vocoder") == []
    assert response.opened("aligner") == [OpenStage("thinker")]


def test_an_observer_is_wanted_until_its_last_look_is_over() -> None:
    response = accepted()
    assert response.lasts_ns_max("aligner", 10) == SHORT.whole_ns_max + SHORT.observer_ns_max
    assert response.lasts_ns_max("vocoder", 10) == SHORT.whole_ns_max


def test_an_observer_for_which_time_is_over_is_a_branch_that_ends() -> None:
    response = observed()
    assert response.stage_failed("aligner", DEADLINE_EXCEEDED, "too late", 20) == []
    assert not response.ended


def test_an_observer_that_will_not_be_opened_rolls_all_back() -> None:
    response = accepted()
    response.admit(10)
    rejected = Done(Phase.REJECTED, "capacity", "capacity", "full")
    assert response.refused("aligner", "capacity", "full", 20) == [Abort("talker"), Abort("vocoder"), rejected]


def test_an_observer_that_is_lost_before_it_was_open_costs_an_attempt_as_any_stage_does() -> None:
    response = accepted()
    response.admit(10)
    aborts = [Abort("talker"), Abort("vocoder"), Abort("aligner")]
    assert response.stage_lost("aligner", 20)[:4] == [*aborts, Retry(1, STAGE_LOST)]
    for stage in reversed(SEEN):
        response.opened(stage, 1)
    assert response.stage_lost("aligner", 30, 1) == [], "nobody depends on it any more"


def test_an_observer_of_the_first_attempt_has_nothing_to_look_back_on() -> None:
    response = observed()
    assert Abort("aligner") in response.stage_lost("talker", 20)
    for stage in reversed(SEEN):
        response.opened(stage, 1)
    response.output(30)
    effects = response.cancel("turn_detected", 40)
    assert [effect for effect in effects if isinstance(effect, Cut | Abort)] == [
        *(Abort(stage, 1) for stage in LINE),
        Cut("aligner"),
    ]
    assert response.tick(40 + SHORT.observer_ns_max) == [Abort("aligner", 1)]


def test_done_never_waits_for_an_observer_and_drained_always_does() -> None:
    response = observed()
    response.output(20)
    assert complete(response) == [Done(Phase.SUCCEEDED, "")]
    for stage in LINE:
        response.closed(stage, {}, 30)
    assert response.playout_released(0, 30) == []
    assert response.holds == {"aligner"}
    assert response.closed("aligner", {"gathered_audio": 3}, 90) == [
        Drained("complete", 70, (("aligner.gathered_audio", 3),))
    ]


def test_what_becomes_of_an_observer_is_no_matter_to_the_response() -> None:
    response = observed()
    assert response.stage_failed("aligner", "engine", "it broke", 20) == []
    assert response.closed("aligner", {}, 20) == []
    assert response.phase is Phase.RUNNING
    response = observed()
    assert response.stage_lost("aligner", 20) == []
    assert response.closed("aligner", {"process_exit": 1}, 30) == []
    assert response.holds == {PLAYOUT, *LINE}
    assert response.phase is Phase.RUNNING


def test_a_stage_of_the_line_that_fails_fails_the_response() -> None:
    response = observed()
    done = Done(Phase.FAILED, "failed", "engine", "it broke")
    assert done in response.stage_failed("talker", "engine", "it broke", 20)


def test_when_a_response_ends_early_its_observer_has_a_last_look_for_so_long() -> None:
    response = observed()
    effects = response.cancel("turn_detected", 1_000)
    assert effects == [*map(Abort, LINE), Cut("aligner"), Done(Phase.CANCELLED, "turn_detected")]
    assert response.next_deadline_ns() == 1_000 + SHORT.observer_ns_max
    assert response.tick(1_199) == []
    assert response.tick(1_200) == [Abort("aligner")]
    for stage in LINE:
        response.closed(stage, {}, 1_210)
    response.playout_released(0, 1_210)
    assert response.next_deadline_ns() == 1_200 + SHORT.drain_ns_max
    assert response.closed("aligner", {}, 1_220) == [Drained("complete", 220, ())]


def test_an_observer_that_never_lets_go_is_orphaned() -> None:
    response = observed()
    complete(response)
    response.tick(220)
    assert response.tick(319) == []
    assert response.tick(320) == [Drained("orphaned", 300, ())]
