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
    STAGE_LOST,
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
    Retry,
    Step,
)
from stages.contracts import Tag

TAG = Tag("sess", 1 << 20, 1, "resp_1")
LINE = ("thinker", "talker", "vocoder")
SEEN = (*LINE, "aligner")
OWED = {"text": "thinker", "audio": "vocoder"}
SHORT = Deadlines(
    admission_ns_max=500,
    first_output_ns_max=1_000,
    whole_ns_max=5_000,
    idle_ns_max=2_000,
    final_ns_max=50,
    observer_ns_max=200,
    drain_ns_max=100,
)


def spoken() -> Response:
    return Response(TAG, LINE, finals=OWED, deadlines=SHORT, now_ns=10)


def written() -> Response:
    return Response(TAG, LINE[:1], finals={"text": "thinker"}, deadlines=SHORT, now_ns=10)


def admitted() -> Response:
    response = spoken()
    response.admit(10)
    return response


def running() -> Response:
    response = admitted()
    for stage in reversed(LINE):
        response.opened(stage)
    return response


def putting_out() -> Response:
    response = running()
    response.output(20)
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
        Step.ADMIT: lambda: response.admit(10),
        Step.OPENED: lambda: [response.opened(stage) for stage in reversed(LINE)],
        Step.RETRY: lambda: response.stage_lost("talker", 20),
        Step.OUTPUT: lambda: response.output(20),
        Step.COMPLETE: lambda: complete(response),
        Step.CANCEL: lambda: response.cancel("client_cancelled", 20),
        Step.EXPIRE: lambda: response.tick(10**9),
        Step.FAIL: lambda: response.fail("code", "message", 20),
        Step.REFUSE: lambda: response.refused("talker", "capacity", "full", 20),
    }
    return steps[step]()


OPEN_PHASES = (Phase.ACCEPTED, Phase.ADMITTED, Phase.RUNNING, Phase.OUTPUT_OPEN)
MOVES: dict[tuple[Phase, Step], Phase] = {
    (Phase.ACCEPTED, Step.ADMIT): Phase.ADMITTED,
    (Phase.ACCEPTED, Step.REFUSE): Phase.REJECTED,
    (Phase.ADMITTED, Step.OPENED): Phase.RUNNING,
    (Phase.ADMITTED, Step.REFUSE): Phase.REJECTED,
    (Phase.ADMITTED, Step.OUTPUT): Phase.OUTPUT_OPEN,
    (Phase.ADMITTED, Step.COMPLETE): Phase.SUCCEEDED,
    # Lost amid output, there is no other attempt; before its stages are asked for, nothing can be lost.
    (Phase.OUTPUT_OPEN, Step.RETRY): Phase.FAILED,
    (Phase.RUNNING, Step.OUTPUT): Phase.OUTPUT_OPEN,
    (Phase.RUNNING, Step.REFUSE): Phase.REJECTED,
    (Phase.RUNNING, Step.COMPLETE): Phase.SUCCEEDED,
    (Phase.OUTPUT_OPEN, Step.COMPLETE): Phase.SUCCEEDED,
    **{(phase, Step.CANCEL): Phase.CANCELLED for phase in OPEN_PHASES},
    **{(phase, Step.EXPIRE): Phase.DEADLINE_EXCEEDED for phase in OPEN_PHASES[1:]},
    (Phase.ACCEPTED, Step.EXPIRE): Phase.REJECTED,
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
    assert response.admit(10) == [OpenStage("talker"), OpenStage("vocoder")]
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
    assert response.admit(10) == [OpenStage("thinker")]
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
    response.admit(10)
    response.output(20)
    assert response.final("text", 20) == [Done(Phase.SUCCEEDED, "")]
    assert response.opened("thinker") == []
    assert response.closed("thinker", {}, 30) == [Drained("complete", 10, ())]


def test_a_stage_that_lets_go_before_its_last_text_is_read_drains_with_the_end() -> None:
    response = written()
    response.admit(10)
    response.opened("thinker")
    assert response.closed("thinker", {"tokens": 2}, 15) == []
    assert response.final("text", 20) == [Done(Phase.SUCCEEDED, ""), Drained("complete", 0, (("thinker.tokens", 2),))]


@pytest.mark.parametrize("step", [Step.CANCEL, Step.FAIL, Step.EXPIRE])
def test_a_response_that_holds_nothing_any_more_drains_with_its_end(step: Step) -> None:
    response = written()
    response.admit(10)
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


def test_what_may_not_be_made_is_rejected_and_holds_nothing_of_any_stage() -> None:
    response = written()
    done = Done(Phase.REJECTED, "rejected", "quota_exceeded", "no tokens")
    assert response.reject("quota_exceeded", "no tokens", 20) == [done, Drained("complete", 0, ())]
    assert response.reject("quota_exceeded", "no tokens", 30) == []


def test_a_refusal_by_the_only_stage_drains_at_once() -> None:
    response = written()
    response.admit(10)
    effects = response.refused("thinker", "capacity", "no room", 20)
    assert effects == [Done(Phase.REJECTED, "capacity", "capacity", "no room"), Drained("complete", 0, ())]


def test_a_refusal_after_the_end_gives_back_what_was_entered_for_it() -> None:
    response = written()
    response.admit(10)
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
    response.admit(10)
    response.cancel("client_cancelled", 20)
    assert response.closed("thinker", {}, 30) == [Drained("complete", 10, ())]


# ---- stages that are lost --------------------------------------------------------------------------


def test_a_lost_stage_fails_what_was_put_out_and_may_still_hold_what_it_had() -> None:
    response = putting_out()
    effects = response.stage_lost("talker", 20)
    assert Done(Phase.FAILED, "failed", "stage_lost", "the talker was lost during the response") in effects
    response.playout_released(0, 21)
    response.closed("thinker", {}, 22)
    response.closed("vocoder", {}, 23)
    assert response.holds == {"talker"}
    gone = response.closed("talker", {"process_exit": 1}, 30)
    assert gone == [Drained("complete", 10, (("talker.process_exit", 1),))]


def test_a_lost_link_to_a_stage_that_holds_nothing_changes_nothing() -> None:
    response = running()
    response.closed("thinker", {}, 15)
    assert response.stage_lost("thinker", 20) == []
    assert response.stage_lost("encoder", 20) == []
    assert response.phase is Phase.RUNNING


# ---- deadlines -------------------------------------------------------------------------------------


TOO_LONG = Done(Phase.DEADLINE_EXCEEDED, "deadline", "deadline_exceeded", "the response took too long")


def test_who_is_not_admitted_in_time_is_rejected() -> None:
    response = written()
    assert response.next_deadline_ns() == 10 + SHORT.admission_ns_max
    assert response.tick(509) == []
    message = "what the caller said was not understood in time"
    assert response.tick(510) == [
        Done(Phase.REJECTED, "deadline", "admission_timeout", message),
        Drained("complete", 0, ()),
    ]


def test_the_first_output_is_due_a_while_after_the_admission() -> None:
    response = written()
    response.admit(400)
    assert response.next_deadline_ns() == 400 + SHORT.first_output_ns_max
    assert response.tick(1_399) == []
    assert response.tick(1_400) == [Abort("thinker"), TOO_LONG]


def test_a_response_that_is_put_out_may_go_on_until_the_whole_takes_too_long() -> None:
    response = running()
    for now_ns in range(1_000, 5_010, 500):
        response.output(now_ns)
        assert response.tick(now_ns) == []
    assert response.next_deadline_ns() == 10 + SHORT.whole_ns_max
    aborts = [Abort(stage) for stage in LINE]
    assert response.tick(5_010, reader_waits=True) == [*aborts, TOO_LONG], "and all its stages end with it"


def test_the_whole_limits_the_wait_for_the_first_output_too() -> None:
    response = Response(TAG, LINE, finals=OWED, deadlines=Deadlines(whole_ns_max=700), now_ns=10)
    response.admit(20)
    assert response.next_deadline_ns() == 710


def test_silence_amid_output_is_the_stages_fault_unless_its_reader_waits() -> None:
    response = putting_out()
    assert response.next_deadline_ns() == 20 + SHORT.idle_ns_max
    assert response.tick(2_020, reader_waits=True) == []
    assert response.next_deadline_ns() == 2_020 + SHORT.idle_ns_max
    assert response.tick(4_020)[-1] == Done(Phase.DEADLINE_EXCEEDED, "deadline", "stream_idle", "a stage fell silent")


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
    assert response.next_deadline_ns() == 20 + SHORT.idle_ns_max
    assert response.tick(2_020, reader_waits=True) == []
    assert response.tick(1_000) == []


def test_a_stage_that_owes_nothing_may_let_go_at_any_time() -> None:
    response = putting_out()
    response.closed("talker", {}, 20)
    assert response.next_deadline_ns() == 20 + SHORT.idle_ns_max


# ---- any order of events ---------------------------------------------------------------------------


class ResponseMachine(RuleBasedStateMachine):
    """Everything that can happen to a response, at any time, as often as you like."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 10
        self.response = Response(TAG, SEEN, finals=OWED, observers=["aligner"], deadlines=SHORT, now_ns=10)
        self.effects: list[Effect] = []
        self.opened: set[tuple[str, int]] = set()
        self.released: set[tuple[str, int]] = set()
        self.before = self.response.phase
        self.put_out = False
        self.begun = 0

    def take(self, effects: list[Effect]) -> None:
        held = self.response.holds
        for effect in effects:
            match effect:
                case OpenStage(stage, attempt):
                    assert effect not in self.effects
                    followers = {(name, attempt) for name in ("talker", "vocoder", "aligner")}
                    assert stage != "thinker" or followers <= self.opened
                    assert stage in held, "entered before it is asked for"
                    assert attempt == self.attempts
                case Abort(stage, attempt):
                    assert (stage, attempt) not in self.released, "aborts only for stages that hold"
                    assert not self.ended or stage == "aligner", "aborts only with the end, observers later"
                case Retry(attempt, cause):
                    assert attempt == self.attempts + 1
                    self.begun += cause == STAGE_LOST and ("thinker", self.attempts) in self.opened
                    assert self.begun <= 1, "an answer that has begun is begun anew once"
                    assert not self.put_out, "what was put out is never made again"
                case Cut(stage):
                    assert stage == "aligner"
                    assert stage in held
                    assert (stage, self.attempts) in self.opened - self.released
                    assert not self.ended
                case _:
                    pass
            self.effects.append(effect)

    @property
    def ended(self) -> bool:
        return any(isinstance(effect, Done) for effect in self.effects)

    @property
    def attempts(self) -> int:
        return sum(isinstance(effect, Retry) for effect in self.effects)

    @rule()
    def admit(self) -> None:
        self.take(self.response.admit(10))

    @rule(stage=st.sampled_from(SEEN), attempt=st.integers(0, 2))
    def open_one(self, stage: str, attempt: int) -> None:
        if OpenStage(stage, attempt) in self.effects:
            self.opened.add((stage, attempt))
            self.take(self.response.opened(stage, attempt))

    @rule(stage=st.sampled_from(SEEN), attempt=st.integers(0, 2))
    def close_one(self, stage: str, attempt: int) -> None:
        if OpenStage(stage, attempt) in self.effects:
            self.released.add((stage, attempt))
            self.take(self.response.closed(stage, {"items": 1}, self.now_ns, attempt))

    @rule(stage=st.sampled_from(SEEN), attempt=st.integers(0, 2))
    def refuse(self, stage: str, attempt: int) -> None:
        if OpenStage(stage, attempt) in self.effects and (stage, attempt) not in self.opened:
            self.released.add((stage, attempt))
            self.take(self.response.refused(stage, "capacity", "full", self.now_ns, attempt))

    @precondition(lambda self: self.response.may_ask_again)
    @rule()
    def ask_again(self) -> None:
        self.take(self.response.ask_again())

    @rule(stage=st.sampled_from((*SEEN, "encoder")), attempt=st.integers(0, 2))
    def lose(self, stage: str, attempt: int) -> None:
        self.take(self.response.stage_lost(stage, self.now_ns, attempt))

    @rule(stage=st.sampled_from(SEEN), code=st.sampled_from(("stage_lost", "bad_text")), attempt=st.integers(0, 2))
    def break_down(self, stage: str, code: str, attempt: int) -> None:
        if attempt <= self.attempts:
            self.take(self.response.stage_failed(stage, code, "", self.now_ns, attempt))

    @rule(stage=st.sampled_from(SEEN))
    def fail_one(self, stage: str) -> None:
        before = self.response.phase
        self.take(self.response.stage_failed(stage, "engine", "it broke", self.now_ns))
        assert stage != "aligner" or self.response.phase is before

    @rule()
    def receive_the_last_audio(self) -> None:
        self.response.came("audio")

    @rule()
    def make_sound(self) -> None:
        self.put_out = self.put_out or self.response.phase in (Phase.ADMITTED, Phase.RUNNING, Phase.OUTPUT_OPEN)
        self.response.output(self.now_ns)

    @rule(kind=st.sampled_from(("text", "audio")))
    def finish(self, kind: str) -> None:
        self.take(self.response.final(kind, self.now_ns))

    @rule()
    def cancel(self) -> None:
        self.take(self.response.cancel("client_cancelled", self.now_ns))

    @rule(ns=st.sampled_from((1, 50, 400, 2_000)), reader_waits=st.booleans())
    def wait(self, ns: int, reader_waits: bool) -> None:
        self.now_ns += ns
        self.take(self.response.tick(self.now_ns, reader_waits=reader_waits))

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
        assert self.response.holds or last is not None or not self.response.ended, "an empty ledger drains"

    @invariant()
    def a_response_that_is_not_drained_has_a_deadline(self) -> None:
        assert (self.response.next_deadline_ns() is None) == self.response.drained


ResponseMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestAnyOrder = pytest.mark.slow(ResponseMachine.TestCase)
