"""A response whose stage is lost: made again once, under its ids, where nothing of it was put out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sessions.response import (
    ASKED_AGAIN_MAX,
    PROMPT_MOVED,
    STAGE_LOST,
    Abort,
    Done,
    Drained,
    OpenStage,
    Phase,
    Response,
    Retry,
)
from stages.contracts import DEADLINE_EXCEEDED
from tests.sessions.test_response import LINE, TOO_LONG, admitted, running, spoken


@pytest.mark.parametrize("make", [admitted, running])
def test_a_stage_that_is_lost_before_any_output_begins_another_attempt(make: Callable[[], Response]) -> None:
    response = make()
    phase = response.phase
    held = [stage for stage in LINE if stage in response.holds]
    assert response.stage_lost("talker", 20) == [
        *(Abort(stage, 0) for stage in held),
        Retry(1, STAGE_LOST),
        OpenStage("talker", 1),
        OpenStage("vocoder", 1),
    ]
    assert response.phase is phase
    response.opened("vocoder", 1)
    assert response.opened("talker", 0) == [], "an answer to the first attempt"
    assert response.opened("talker", 1) == [OpenStage("thinker", 1)]
    response.opened("thinker", 1)
    assert response.phase is Phase.RUNNING


def begin(response: Response, attempt: int) -> None:
    """All stages open, the head last."""
    for stage in reversed(LINE):
        response.opened(stage, attempt)


def test_an_answer_is_begun_twice_and_no_more() -> None:
    response = running()
    response.stage_lost("talker", 20)
    begin(response, 1)
    effects = response.stage_lost("vocoder", 30, 1)
    assert effects == [
        Abort("thinker", 1),
        Abort("talker", 1),
        Abort("vocoder", 1),
        Done(Phase.FAILED, "failed", "stage_lost", "the vocoder was lost during the response"),
    ]


@pytest.mark.parametrize("stage", ["talker", "vocoder"])
def test_what_is_lost_before_the_head_has_answered_is_opened_anew_and_costs_no_attempt(stage: str) -> None:
    response = admitted()
    for attempt in range(3):
        assert Retry(attempt + 1, STAGE_LOST) in response.stage_lost(stage, 20, attempt)
    begin(response, 3)
    assert Retry(4, STAGE_LOST) in response.stage_lost(stage, 30, 3), "the first of an answer that had begun"
    begin(response, 4)
    assert response.stage_lost(stage, 40, 4)[-1] == Done(
        Phase.FAILED, "failed", "stage_lost", f"the {stage} was lost during the response"
    )


def test_stages_that_are_lost_without_end_are_bounded_by_the_deadline() -> None:
    response = admitted()
    due_ns = response.next_deadline_ns()
    assert due_ns is not None
    for attempt in range(3):
        response.stage_lost("talker", 20, attempt)
    assert response.next_deadline_ns() == due_ns
    assert response.tick(due_ns)[-1] == Done(
        Phase.DEADLINE_EXCEEDED, "deadline", "deadline_exceeded", "the response took too long"
    )


@pytest.mark.parametrize("make", [admitted, running])
def test_a_stage_for_which_time_is_over_ends_the_response_as_its_deadline_does(make: Callable[[], Response]) -> None:
    response = make()
    response.closed("talker", {}, 20)
    held = [stage for stage in LINE if stage in response.holds]
    assert response.stage_failed("talker", DEADLINE_EXCEEDED, "too late", 20) == [*map(Abort, held), TOO_LONG]
    assert response.phase is Phase.DEADLINE_EXCEEDED


def test_time_that_is_over_for_an_earlier_attempt_or_after_the_end_changes_nothing() -> None:
    response = running()
    response.stage_lost("vocoder", 20)
    assert response.stage_failed("talker", DEADLINE_EXCEEDED, "too late", 21, 0) == []
    response.cancel("turn_detected", 22)
    assert response.stage_failed("thinker", DEADLINE_EXCEEDED, "too late", 23, 1) == []
    assert response.phase is Phase.CANCELLED


def test_every_attempt_lasts_until_the_one_deadline() -> None:
    response = running()
    assert [response.lasts_ns_max("talker", now_ns) for now_ns in (10, 20)] == [5_000, 4_990]
    response.stage_lost("talker", 20)
    assert [response.lasts_ns_max("talker", now_ns) for now_ns in (30, 5_010, 6_000)] == [4_980, 0, 0]


def test_what_a_stage_does_wrong_itself_is_not_tried_again() -> None:
    response = running()
    assert Done(Phase.FAILED, "failed", "bad_text", "no words") in response.stage_failed(
        "talker", "bad_text", "no words", 20
    )


def test_of_the_first_attempt_only_counts_that_it_lets_go() -> None:
    response = running()
    response.stage_lost("talker", 20)
    assert response.stage_lost("vocoder", 21) == []
    assert response.stage_failed("talker", "stage_lost", "gone", 22) == []
    assert response.refused("vocoder", "busy", "", 23) == []
    response.cancel("turn_detected", 30)
    response.playout_released(0, 30)
    for stage in ("talker", "vocoder"):
        response.closed(stage, {"frames": 2}, 31, 1)
    assert response.holds == {"talker", "thinker"}
    response.closed("thinker", {"frames": 1}, 32)
    # The last to let go is the lost one, with its process.
    (drained,) = response.closed("talker", {"process_exit": 1}, 33)
    assert isinstance(drained, Drained)
    assert dict(drained.released) == {
        "talker.frames": 2,
        "talker.process_exit": 1,
        "thinker.frames": 1,
        "vocoder.frames": 2,
    }


def test_every_stage_that_was_ever_asked_is_remembered() -> None:
    response = running()
    response.stage_lost("talker", 20)
    followers = {("talker", 1), ("vocoder", 1)}
    assert response.asked == {(stage, 0) for stage in LINE} | followers
    response.cancel("turn_detected", 30)
    for stage, attempt in response.asked:
        response.closed(stage, {}, 31, attempt)
    response.playout_released(0, 31)
    assert response.drained
    assert response.asked == {(stage, 0) for stage in LINE} | followers


def test_finals_of_the_first_attempt_end_nothing() -> None:
    response = running()
    response.final("text", 15, "max_output_tokens")
    response.stage_lost("vocoder", 20)
    assert response.final("audio", 30) == []
    assert response.final("text", 31) == [Done(Phase.SUCCEEDED, "")]


def test_the_second_attempt_has_the_deadline_of_the_first() -> None:
    response = running()
    due_ns = response.next_deadline_ns()
    response.stage_lost("talker", 500)
    assert response.next_deadline_ns() == due_ns


# ---- asked for in other words ----------------------------------------------------------------------


def test_a_head_that_was_not_asked_yet_is_asked_later() -> None:
    response = admitted()
    assert response.ask_again() == []
    response.opened("talker")
    assert response.opened("vocoder") == [OpenStage("thinker")]


def test_a_head_that_has_put_out_nothing_is_asked_again_and_all_is_made_anew() -> None:
    response = running()
    assert response.ask_again() == [
        *(Abort(stage, 0) for stage in LINE),
        Retry(1, PROMPT_MOVED),
        OpenStage("talker", 1),
        OpenStage("vocoder", 1),
    ]
    assert response.phase is Phase.RUNNING
    response.opened("vocoder", 1)
    response.opened("talker", 1)
    response.opened("thinker", 1)
    assert Retry(2, STAGE_LOST) in response.stage_lost("vocoder", 20, 1), "that cost no attempt"


def test_it_is_asked_again_so_often_and_no_more() -> None:
    response = running()
    for attempt in range(ASKED_AGAIN_MAX):
        assert response.may_ask_again
        response.ask_again()
        for stage in reversed(LINE):
            response.opened(stage, attempt + 1)
    assert not response.may_ask_again


def test_what_has_begun_or_was_not_admitted_is_not_asked_again() -> None:
    assert not spoken().may_ask_again
    response = running()
    response.output(20)
    assert not response.may_ask_again
    response.cancel("client_cancelled", 30)
    assert not response.may_ask_again
