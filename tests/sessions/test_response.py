"""A response's line from acceptance to its terminal, its ledger, and its promises for any order of events."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sessions.response import (
    PLAYOUT,
    TERMINAL,
    Abort,
    Cut,
    Deadlines,
    Done,
    Drained,
    Effect,
    OpenStage,
    Phase,
    Response,
    Step,
)
from stages.contracts import Tag

TAG = Tag("sess", 1 << 20, 1, "resp_1")
LINE = ("thinker", "talker", "vocoder")
SEEN = (*LINE, "aligner")
OWED = {"text": "thinker", "audio": "vocoder"}
SHORT = Deadlines(first_output_ns_max=1_000, whole_ns_max=5_000, final_ns_max=50, observer_ns_max=200, drain_ns_max=100)


def spoken() -> Response:
    return Response(TAG, LINE, finals=OWED, deadlines=SHORT, now_ns=10)


def written() -> Response:
    return Response(TAG, LINE[:1], finals={"text": "thinker"}, deadlines=SHORT, now_ns=10)


def admitted() -> Response:
    response = spoken()
    response.admit()
    return response


def running() -> Response:
    response = admitted()
    for stage in reversed(LINE):
        response.opened(stage)
    return response


def putting_out() -> Response:
    response = running()
    response.output()
    return response


def ended_by(end: Callable[[Response], object]) -> Callable[[], Response]:
    def make() -> Response:
        response = running()
        end(response)
        return response

    return make


def complete(response: Response) -> list[Effect]:
    return [*response.final("text", 20), *response.final("audio", 20)]


def in_phase(phase: Phase) -> Response:
    makers: dict[Phase, Callable[[], Response]] = {
        Phase.ACCEPTED: spoken,
        Phase.ADMITTED: admitted,
        Phase.RUNNING: running,
        Phase.OUTPUT_OPEN: putting_out,
        Phase.SUCCEEDED: ended_by(complete),
        Phase.CANCELLED: ended_by(lambda response: response.cancel("turn_detected", 20)),
        Phase.DEADLINE_EXCEEDED: ended_by(lambda response: response.tick(10**9)),
        Phase.FAILED: ended_by(lambda response: response.fail("code", "message", 20)),
        Phase.REJECTED: ended_by(lambda response: response.refused("talker", "capacity", "full", 20)),
    }
    response = makers[phase]()
    assert response.phase is phase
    return response


def take(response: Response, step: Step) -> object:
    """Do to `response` what asks for `step`."""
    steps: dict[Step, Callable[[], object]] = {
        Step.ADMIT: response.admit,
        Step.OPENED: lambda: [response.opened(stage) for stage in reversed(LINE)],
        Step.OUTPUT: response.output,
        Step.COMPLETE: lambda: complete(response),
        Step.CANCEL: lambda: response.cancel("client_cancelled", 20),
        Step.EXPIRE: lambda: response.tick(10**9),
        Step.FAIL: lambda: response.fail("code", "message", 20),
        Step.REFUSE: lambda: response.refused("talker", "capacity", "full", 20),
    }
    return steps[step]()


OPEN_PHASES = (Phase.ACCEPTED, Phase.ADMITTED, Phase.RUNNING, Phase.OUTPUT_OPEN)
MOVES = {
    (Phase.ACCEPTED, Step.ADMIT): Phase.ADMITTED,
    (Phase.ACCEPTED, Step.REFUSE): Phase.REJECTED,
    (Phase.ADMITTED, Step.OPENED): Phase.RUNNING,
    (Phase.ADMITTED, Step.REFUSE): Phase.REJECTED,
    (Phase.ADMITTED, Step.OUTPUT): Phase.OUTPUT_OPEN,
    (Phase.ADMITTED, Step.COMPLETE): Phase.SUCCEEDED,
    (Phase.RUNNING, Step.OUTPUT): Phase.OUTPUT_OPEN,
    (Phase.RUNNING, Step.REFUSE): Phase.REJECTED,
    (Phase.RUNNING, Step.COMPLETE): Phase.SUCCEEDED,
    (Phase.OUTPUT_OPEN, Step.COMPLETE): Phase.SUCCEEDED,
    **{(phase, Step.CANCEL): Phase.CANCELLED for phase in OPEN_PHASES},
    **{(phase, Step.EXPIRE): Phase.DEADLINE_EXCEEDED for phase in OPEN_PHASES},
    **{(phase, Step.FAIL): Phase.FAILED for phase in OPEN_PHASES},
}


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("phase", Phase)
def test_each_step_leads_where_the_table_says_and_nowhere_else(phase: Phase, step: Step) -> None:
    response = in_phase(phase)
    take(response, step)
    assert response.phase is MOVES.get((phase, step), phase)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase in TERMINAL])
def test_a_terminal_is_final_and_told_once(phase: Phase) -> None:
    response = in_phase(phase)
    for step in (Step.COMPLETE, Step.CANCEL, Step.FAIL, Step.REFUSE):
        effects = take(response, step)
        assert isinstance(effects, list)
        assert not [effect for effect in effects if isinstance(effect, Done | Abort)]
    assert response.phase is phase


# ---- the way up ------------------------------------------------------------------------------------


def test_the_head_is_opened_only_after_all_that_follow_it() -> None:
    response = spoken()
    assert response.holds == {PLAYOUT}
    assert response.admit() == [OpenStage("talker"), OpenStage("vocoder")]
    assert response.opened("vocoder") == []
    assert response.opened("vocoder") == []
    assert response.opened("talker") == [OpenStage("thinker")]
    assert response.opened("talker") == []  # told again: opened once
    assert response.phase.name == "ADMITTED"
    assert response.opened("thinker") == []
    assert response.phase.name == "RUNNING"
    assert response.holds == {PLAYOUT, *LINE}


def test_a_lone_stage_is_opened_at_once() -> None:
    response = written()
    assert response.admit() == [OpenStage("thinker")]
    response.opened("thinker")
    assert response.phase is Phase.RUNNING


def test_a_response_needs_a_stage() -> None:
    with pytest.raises(AssertionError, match="needs a stage"):
        Response(TAG, (), finals={}, deadlines=SHORT, now_ns=0)


def test_what_opens_after_the_end_opens_nothing_more() -> None:
    response = admitted()
    response.opened("vocoder")
    response.cancel("client_cancelled", 20)
    assert response.opened("talker") == []
    assert "thinker" not in response.holds


def test_success_needs_text_and_audio_in_either_order() -> None:
    for first, second in (("text", "audio"), ("audio", "text")):
        response = running()
        assert response.final(first, 20) == []
        assert response.final(first, 20) == []
        assert response.final(second, 20) == [Done(Phase.SUCCEEDED, "")]
        assert response.holds == {PLAYOUT, *LINE}  # success aborts nobody: all let go by themselves


def test_how_the_text_ended_is_how_the_response_ended() -> None:
    response = running()
    response.final("text", 20, "max_output_tokens")
    assert response.final("audio", 30) == [Done(Phase.SUCCEEDED, "max_output_tokens")]


def test_text_that_overtakes_the_news_that_its_stage_is_open_ends_the_response() -> None:
    response = written()
    response.admit()
    response.output()
    assert response.final("text", 20) == [Done(Phase.SUCCEEDED, "")]
    assert response.opened("thinker") == []
    assert response.closed("thinker", {}, 30) == [Drained("complete", 10, ())]


def test_a_stage_that_lets_go_before_its_last_text_is_read_drains_with_the_end() -> None:
    response = written()
    response.admit()
    response.opened("thinker")
    assert response.closed("thinker", {"tokens": 2}, 15) == []
    assert response.final("text", 20) == [Done(Phase.SUCCEEDED, ""), Drained("complete", 0, (("thinker.tokens", 2),))]


@pytest.mark.parametrize("step", [Step.CANCEL, Step.FAIL, Step.EXPIRE])
def test_a_response_that_holds_nothing_any_more_drains_with_its_end(step: Step) -> None:
    response = written()
    response.admit()
    response.closed("thinker", {}, 15)
    effects = take(response, step)
    assert isinstance(effects, list)
    assert [type(effect) for effect in effects] == [Done, Drained]
    assert effects[-1] == Drained("complete", 0, ())


# ---- the ways down ---------------------------------------------------------------------------------


def test_only_stages_that_hold_something_are_aborted() -> None:
    response = running()
    response.closed("thinker", {}, 15)
    effects = response.cancel("turn_detected", 20)
    assert effects == [Abort("talker"), Abort("vocoder"), Done(Phase.CANCELLED, "turn_detected")]


def test_a_refusal_ends_the_response_at_all_other_stages() -> None:
    response = admitted()
    effects = response.refused("talker", "capacity", "no room", 20)
    assert effects == [Abort("vocoder"), Done(Phase.REJECTED, "capacity", "capacity", "no room")]
    assert response.holds == {PLAYOUT, "vocoder"}


def test_a_refusal_by_the_only_stage_drains_at_once() -> None:
    response = written()
    response.admit()
    effects = response.refused("thinker", "capacity", "no room", 20)
    assert effects == [Done(Phase.REJECTED, "capacity", "capacity", "no room"), Drained("complete", 0, ())]


def test_a_refusal_after_the_end_gives_back_what_was_entered_for_it() -> None:
    response = written()
    response.admit()
    response.cancel("client_cancelled", 20)
    assert response.refused("thinker", "stale_epoch", "too late", 25) == [Drained("complete", 5, ())]


def test_drained_tells_all_that_was_released_and_how_long_it_took() -> None:
    response = running()
    response.cancel("turn_detected", 100)
    assert response.closed("thinker", {"tokens": 3}, 110) == []
    assert response.closed("talker", {"frames": 4}, 120) == []
    assert response.playout_released(960, 125) == []
    assert response.closed("vocoder", {"frames": 1}, 130) == [
        Drained(
            "complete",
            30,
            (("playout.samples", 960), ("talker.frames", 4), ("thinker.tokens", 3), ("vocoder.frames", 1)),
        )
    ]
    assert response.drained
    assert response.holds == frozenset()
    assert response.next_deadline_ns() is None
    assert response.closed("vocoder", {}, 140) == []  # drained once


def test_nothing_unsent_is_nothing_released() -> None:
    response = written()
    assert response.playout_released(0, 20) == []
    response.admit()
    response.cancel("client_cancelled", 20)
    assert response.closed("thinker", {}, 30) == [Drained("complete", 10, ())]


# ---- stages that are lost --------------------------------------------------------------------------


def test_a_lost_stage_fails_the_response_and_may_still_hold_what_it_had() -> None:
    response = running()
    effects = response.stage_lost("talker", 20)
    assert Done(Phase.FAILED, "failed", "stage_lost", "the talker was lost during the response") in effects
    response.playout_released(0, 21)
    response.closed("thinker", {}, 22)
    response.closed("vocoder", {}, 23)
    assert response.holds == {"talker"}
    assert response.process_died("talker", 30) == [Drained("complete", 10, (("talker.process_exit", 1),))]


def test_a_lost_link_to_a_stage_that_holds_nothing_changes_nothing() -> None:
    response = running()
    response.closed("thinker", {}, 15)
    assert response.stage_lost("thinker", 20) == []
    assert response.stage_lost("encoder", 20) == []
    assert response.phase is Phase.RUNNING


def test_a_new_process_strikes_only_what_the_lost_one_held() -> None:
    response = running()
    assert response.process_died("talker", 20) == []  # opened after the loss: it waits for the new process
    assert response.holds == {PLAYOUT, *LINE}


# ---- deadlines -------------------------------------------------------------------------------------


def test_the_first_output_and_the_whole_have_deadlines_of_their_own() -> None:
    response = running()
    assert response.next_deadline_ns() == 10 + SHORT.first_output_ns_max
    assert response.tick(1_009) == []
    response.output()
    assert response.next_deadline_ns() == 10 + SHORT.whole_ns_max
    assert response.tick(1_010) == []
    done = response.tick(5_010)[-1]
    assert done == Done(Phase.DEADLINE_EXCEEDED, "deadline", "deadline_exceeded", "the response took too long")


def test_a_drain_that_takes_too_long_is_orphaned_once() -> None:
    response = running()
    response.cancel("turn_detected", 100)
    response.closed("thinker", {"tokens": 1}, 150)
    assert response.next_deadline_ns() == 200
    assert response.tick(199) == []
    assert response.tick(200) == [Drained("orphaned", 100, (("thinker.tokens", 1),))]
    assert response.tick(300) == []
    assert response.holds == {PLAYOUT, "talker", "vocoder"}
    for stage in ("talker", "vocoder"):
        assert response.closed(stage, {}, 310) == []
    assert response.playout_released(0, 320) == []  # late strikes drain nothing a second time
    assert response.holds == frozenset()


def test_livekit_agents_js_2065_the_end_waits_for_no_stage() -> None:
    response = admitted()
    effects = response.cancel("turn_detected", 20)  # no stage has answered yet
    assert Done(Phase.CANCELLED, "turn_detected") in effects


# ---- finals that do not come ------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "stage"), OWED.items())
def test_vllm_omni_5488_a_final_whose_stage_has_let_go_is_waited_for_and_then_lost(kind: str, stage: str) -> None:
    response = putting_out()
    assert response.closed(stage, {}, 20) == []
    assert response.next_deadline_ns() == 20 + SHORT.final_ns_max
    assert response.tick(69) == []
    aborts = [Abort(other) for other in LINE if other != stage]
    lost = Done(Phase.FAILED, "failed", "final_lost", f"the {stage} ended without its last {kind}")
    assert response.tick(70) == [*aborts, lost]


# Nothing is sent before it has come; everything else may overtake everything.
ORDERS = [
    order
    for order in permutations(["text", "audio came", "audio", "thinker", "vocoder"])
    if order.index("audio came") < order.index("audio")
]


@pytest.mark.parametrize("order", ORDERS)
def test_finals_and_terminals_may_overtake_each_other(order: tuple[str, ...]) -> None:
    response = putting_out()
    takes: dict[str, Callable[[], object]] = {
        "text": lambda: response.final("text", 20),
        "audio came": lambda: response.came("audio"),
        "audio": lambda: response.final("audio", 20),
        "thinker": lambda: response.closed("thinker", {}, 20),
        "vocoder": lambda: response.closed("vocoder", {}, 20),
    }
    for what in order:
        takes[what]()
    assert response.phase is Phase.SUCCEEDED
    response.closed("talker", {}, 30)
    assert response.playout_released(0, 30) == [Drained("complete", 10, ())]


def test_audio_that_has_come_may_be_sent_as_slowly_as_the_ear_takes_it() -> None:
    response = putting_out()
    response.closed("vocoder", {}, 20)
    response.came("audio")
    assert response.next_deadline_ns() == 10 + SHORT.whole_ns_max
    assert response.tick(1_000) == []


def test_a_stage_that_owes_nothing_may_let_go_at_any_time() -> None:
    response = putting_out()
    response.closed("talker", {}, 20)
    assert response.next_deadline_ns() == 10 + SHORT.whole_ns_max


# ---- any order of events ---------------------------------------------------------------------------


class ResponseMachine(RuleBasedStateMachine):
    """Everything that can happen to a response, at any time, as often as you like."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 10
        self.response = Response(TAG, SEEN, finals=OWED, observers=["aligner"], deadlines=SHORT, now_ns=10)
        self.effects: list[Effect] = []
        self.opened: set[str] = set()
        self.released: set[str] = set()
        self.before = self.response.phase

    def take(self, effects: list[Effect]) -> None:
        held = self.response.holds
        for effect in effects:
            match effect:
                case OpenStage(stage):
                    assert stage not in {done.stage for done in self.effects if isinstance(done, OpenStage)}
                    assert stage != "thinker" or {"talker", "vocoder", "aligner"} <= self.opened
                    assert stage in held, "entered before it is asked for"
                case Abort(stage):
                    assert stage not in self.released, "aborts only for stages that hold"
                    assert not self.ended or stage == "aligner", "aborts only with the end, observers later"
                case Cut(stage):
                    assert stage == "aligner"
                    assert stage in held & self.opened
                    assert not self.ended
                case _:
                    pass
            self.effects.append(effect)

    @property
    def ended(self) -> bool:
        return any(isinstance(effect, Done) for effect in self.effects)

    @rule()
    def admit(self) -> None:
        self.take(self.response.admit())

    @rule(stage=st.sampled_from(SEEN))
    def open_one(self, stage: str) -> None:
        if OpenStage(stage) in self.effects:
            self.opened.add(stage)
            self.take(self.response.opened(stage))

    @rule(stage=st.sampled_from(SEEN))
    def close_one(self, stage: str) -> None:
        if OpenStage(stage) in self.effects:
            self.released.add(stage)
            self.take(self.response.closed(stage, {"items": 1}, self.now_ns))

    @rule(stage=st.sampled_from(SEEN))
    def refuse(self, stage: str) -> None:
        if OpenStage(stage) in self.effects and stage not in self.opened:
            self.released.add(stage)
            self.take(self.response.refused(stage, "capacity", "full", self.now_ns))

    @rule(stage=st.sampled_from((*SEEN, "encoder")))
    def lose(self, stage: str) -> None:
        self.take(self.response.stage_lost(stage, self.now_ns))

    @rule(stage=st.sampled_from(SEEN))
    def bury(self, stage: str) -> None:
        self.take(self.response.process_died(stage, self.now_ns))

    @rule(stage=st.sampled_from(SEEN))
    def fail_one(self, stage: str) -> None:
        before = self.response.phase
        self.take(self.response.stage_failed(stage, "engine", "it broke", self.now_ns))
        assert stage != "aligner" or self.response.phase is before

    @rule()
    def receive_the_last_audio(self) -> None:
        self.response.came("audio")

    @rule()
    def put_out(self) -> None:
        self.response.output()

    @rule(kind=st.sampled_from(("text", "audio")))
    def finish(self, kind: str) -> None:
        self.take(self.response.final(kind, self.now_ns))

    @rule()
    def cancel(self) -> None:
        self.take(self.response.cancel("client_cancelled", self.now_ns))

    @rule(ns=st.sampled_from((1, 50, 400, 2_000)))
    def wait(self, ns: int) -> None:
        self.now_ns += ns
        self.take(self.response.tick(self.now_ns))

    @precondition(lambda self: self.ended)
    @rule()
    def release_playout(self) -> None:
        self.take(self.response.playout_released(0, self.now_ns))

    @invariant()
    def phases_never_run_backwards(self) -> None:
        order = list(Phase)
        if self.before in TERMINAL:
            assert self.response.phase is self.before
        assert order.index(self.response.phase) >= order.index(self.before)
        self.before = self.response.phase

    @invariant()
    def one_terminal_then_one_drained(self) -> None:
        ends = [effect for effect in self.effects if isinstance(effect, Done | Drained)]
        assert [type(end) for end in ends] in ([], [Done], [Done, Drained])
        assert self.ended == self.response.ended
        assert self.response.drained == (len(ends) == 2)

    @invariant()
    def a_complete_drain_means_an_empty_ledger(self) -> None:
        last = next((effect for effect in self.effects if isinstance(effect, Drained)), None)
        if last is not None and last.status == "complete":
            assert self.response.holds == frozenset()
        if last is None and self.response.ended:
            assert self.response.holds, "an empty ledger drains"

    @invariant()
    def a_response_that_is_not_drained_has_a_deadline(self) -> None:
        assert (self.response.next_deadline_ns() is None) == self.response.drained


ResponseMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestAnyOrder = pytest.mark.slow(ResponseMachine.TestCase)
