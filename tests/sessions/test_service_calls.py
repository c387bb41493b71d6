"""Calls that the service carries out: written down first, begun at most once, answered once."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sessions.effects import CancelTool, Effect, FollowTool, RequestTool, SaveCallBegun
from sessions.items import Item
from sessions.service_calls import (
    AT_ONCE_MAX,
    PENDING_MAX,
    STORE_NS_MAX,
    Failure,
    Result,
    ServiceCalls,
    ServiceTool,
    Settled,
)
from sessions.settings import ResponseSpec
from sessions.tool_calls import BegunCall, call_item, output_item
from stages.contracts import Tool

LOOK, BOOK = ServiceTool(Tool("look"), safe=True), ServiceTool(Tool("book"), filler="Just a second.")
SPEC = ResponseSpec(instructions="Be quick.")
DIGEST = hashlib.sha256(b"{}").digest()


def item(number: int = 1, name: str = "look") -> Item:
    """A call that a reply has made."""
    return replace(call_item(f"item_{number}", f"call_{number}", name, "{}"), by_service=True)


def begun(number: int = 1, name: str = "look") -> BegunCall:
    return BegunCall(f"call_{number}", f"item_{number}", name, DIGEST, safe=name == "look")


def calls(*left: BegunCall) -> ServiceCalls:
    return ServiceCalls((LOOK, BOOK), left)


def running(name: str = "look") -> ServiceCalls:
    core = calls()
    core.call(item(name=name), SPEC, 0)
    core.stored("call_1")
    return core


def unfilled(core: ServiceCalls) -> tuple[str, int] | None:
    return core.unfilled


def errors(core: ServiceCalls) -> list[tuple[str, str]]:
    """What has been settled without a result."""
    return [(one.outcome, json.loads(one.text)["error"]) for one in core.take_settled()]


# ---- the way up ---------------------------------------------------------------------------------------


def test_a_call_is_written_down_before_it_is_begun() -> None:
    core = calls()
    assert core.call(item(), SPEC, 0) == [SaveCallBegun(begun())]
    assert (core.knows("call_1"), core.is_running, core.is_waited_for) == (True, False, True)
    assert core.stored("call_1") == [RequestTool("call_1", "look", "{}")]
    assert core.is_running
    assert core.stored("call_1") == [], "only once"


def test_what_has_come_is_settled_once() -> None:
    core = running()
    assert core.answered("call_1", Result("sunny")) == []
    assert core.take_settled() == [Settled(begun(), "succeeded", "sunny", SPEC)]
    assert core.answered("call_1", Result("rainy")) is None
    assert (core.pending, core.take_settled()) == ((), [])


@pytest.mark.parametrize(("code", "outcome"), [("timeout", "failed"), ("lost", "unknown")])
def test_a_failure_says_what_is_known(code: str, outcome: str) -> None:
    core = running("book")
    core.answered("call_1", Failure(code))  # type: ignore[arg-type]
    (settled,) = core.take_settled()
    assert (settled.outcome, json.loads(settled.text)["error"]) == (outcome, code)
    assert "not known" in json.loads(settled.text)["message"]


def test_so_many_run_at_once_and_the_next_when_there_is_room() -> None:
    core = calls()
    for number in range(AT_ONCE_MAX + 2):
        core.call(item(number), SPEC, 0)
        assert len(core.stored(f"call_{number}")) == (number < AT_ONCE_MAX)
    assert core.answered("call_0", Result("")) == [RequestTool(f"call_{AT_ONCE_MAX}", "look", "{}")]


def test_so_many_are_pending_and_more_are_refused() -> None:
    core = calls()
    for number in range(PENDING_MAX):
        core.call(item(number), SPEC, 0)
    assert core.call(item(PENDING_MAX), SPEC, 0) == []
    (refused,) = core.take_settled()
    assert (refused.is_begun, refused.outcome, refused.spec) == (False, "failed", SPEC)


# ---- the ways down --------------------------------------------------------------------------------------


def test_an_interruption_cancels_what_is_safe_and_asks_for_nothing_more() -> None:
    core = running()
    core.call(item(2, "book"), SPEC, 0)
    core.stored("call_2")
    core.call(item(3), SPEC, 0)
    assert core.interrupt() == [CancelTool("call_1")], "what was not begun needs no cancel"
    assert errors(core) == [("cancelled", "cancelled")] * 2
    assert not core.is_waited_for
    assert core.is_running
    core.answered("call_2", Result("booked"))
    assert core.take_settled() == [Settled(begun(2, "book"), "succeeded", "booked", None)]


def test_what_is_cancelled_makes_room() -> None:
    core = calls()
    for number in range(AT_ONCE_MAX):
        core.call(item(number), SPEC, 0)
        core.stored(f"call_{number}")
    core.call(item(9, "book"), SPEC, 0)
    core.stored("call_9")
    assert core.interrupt()[-1] == RequestTool("call_9", "book", "{}")


def test_what_cannot_be_written_down_in_time_is_not_begun() -> None:
    core = calls()
    core.call(item(), SPEC, 5)
    assert core.next_deadline_ns() == 5 + STORE_NS_MAX
    core.tick(4 + STORE_NS_MAX)
    assert core.take_settled() == []
    core.tick(5 + STORE_NS_MAX)
    assert errors(core) == [("failed", "not_begun")]
    assert core.stored("call_1") == []
    assert core.next_deadline_ns() is None


def test_at_the_end_safe_ones_are_left_and_others_go_on_or_are_not_begun() -> None:
    core = running("book")
    core.call(item(2, "book"), SPEC, 0)
    core.call(item(3), SPEC, 0)
    core.stored("call_3")
    core.call(item(4), SPEC, 0)
    assert core.close() == [CancelTool("call_3")]
    assert errors(core) == [("failed", "not_begun")]
    assert [call.id for call in core.pending] == ["call_1", "call_3", "call_4"]
    assert core.stored("call_4") == []
    assert core.answered("call_3", Result("too late")) is None
    assert core.answered("call_1", Result("booked")) == []
    assert [one.text for one in core.take_settled()] == ["booked"]
    assert core.close() == [], "what was left stays so"


def test_at_the_end_nobody_waits_for_what_goes_on() -> None:
    core = running("book")
    assert core.is_waited_for
    core.close()
    assert (core.is_running, core.is_waited_for, unfilled(core)) == (True, False, None)
    core.answered("call_1", Result("booked"))
    assert [one.spec for one in core.take_settled()] == [None]


def test_what_is_called_behind_the_end_is_written_down_and_not_begun() -> None:
    core = calls()
    core.close()
    assert core.call(item(name="book"), SPEC, 0) == [SaveCallBegun(begun(name="book"))]
    assert core.stored("call_1") == []
    assert [call.id for call in core.pending] == ["call_1"]


# ---- what another owner has left --------------------------------------------------------------------------


def test_what_is_safe_is_done_again_under_its_key_and_anything_else_is_followed() -> None:
    core = calls(begun(1), begun(2, "book"))
    assert (core.is_running, core.is_waited_for) == (False, False)
    assert core.interrupt() == []
    assert core.recover((item(1), item(2, "book")), 7) == [FollowTool("call_2"), RequestTool("call_1", "look", "{}")]
    assert core.recover((item(1), item(2, "book")), 7) == []
    assert core.is_waited_for
    core.answered("call_2", Failure("lost"))
    assert errors(core) == [("unknown", "lost")]


def test_what_was_left_and_is_gone_is_not_done_again() -> None:
    core = calls(begun(1), replace(begun(2), name="gone"))
    assert core.recover((item(2, "gone"),), 0) == []
    assert errors(core) == [("failed", "not_available")] * 2


def test_what_history_has_and_nobody_has_written_down_is_not_left_open() -> None:
    core = calls()
    history = (item(1), item(2, "book"), item(3, "gone"), replace(item(4), status="incomplete"), item(5))
    (saved,) = core.recover((*history, output_item("out_5", "call_5", "done")), 7)
    assert isinstance(saved, SaveCallBegun)
    assert saved.call.id == "call_1", "what is safe is made as if it were new"
    settled = [(one.call.id, one.outcome, one.is_begun) for one in core.take_settled()]
    assert settled == [("call_2", "unknown", False), ("call_3", "unknown", False)], (
        "also where there is no such tool now"
    )
    assert core.stored("call_1") == [RequestTool("call_1", "look", "{}")]


def test_what_a_client_brings_along_is_never_carried_out() -> None:
    core = calls()
    assert core.recover([replace(item(1), by_service=False), replace(item(2, "book"), by_service=False)], 7) == []
    assert (core.take_settled(), core.pending) == ([], ())


def test_a_clients_call_under_the_id_of_one_that_was_left_is_not_taken_for_it() -> None:
    core = calls(begun(1))
    assert core.recover([call_item("item_of_client", "call_1", "look", '{"of": "client"}')], 7) == []
    assert errors(core) == [("failed", "not_available")]


def test_what_an_earlier_release_has_begun_is_gone_on_with() -> None:
    """Its items do not say who has made a call, but what it wrote down does."""
    core = calls(begun(1))
    assert core.recover([replace(item(1), by_service=False)], 7) == [RequestTool("call_1", "look", "{}")]


def test_what_was_left_may_be_left_again() -> None:
    core = calls(begun(1), begun(2, "book"))
    assert core.close() == []
    assert len(core.pending) == 2


# ---- the caller waits ---------------------------------------------------------------------------------------


def test_a_caller_is_told_once_of_all_that_runs() -> None:
    core = calls()
    assert unfilled(core) is None
    core.call(item(1, "book"), SPEC, 3)
    core.call(item(2), SPEC, 5)
    assert unfilled(core) == ("call_1", 3)
    assert core.fill("call_1") == ("Just a second.", SPEC)
    assert unfilled(core) is None
    core.interrupt()
    core.call(item(3), SPEC, 9)
    assert unfilled(core) == ("call_3", 9)
    core.interrupt()
    assert unfilled(core) is None


# ---- whatever happens --------------------------------------------------------------------------------------


class Machine(RuleBasedStateMachine):
    """A conversation, its store, a tool's server that counts, and takeovers at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.items: dict[str, Item] = {}
        self.log: dict[str, BegunCall] = {}  # written down, and not settled, as the store has it
        self.unwritten: list[BegunCall] = []
        self.requests: Counter[str] = Counter()
        self.under_way: set[str] = set()
        self.settled: Counter[str] = Counter()
        self.cancelled: set[str] = set()
        self.core = calls()

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SaveCallBegun(call):
                    self.unwritten.append(call)
                case RequestTool(call_id):
                    assert call_id in self.log, "written down first"
                    self.requests[call_id] += 1
                    self.under_way.add(call_id)
                case CancelTool(call_id):
                    assert self.items[call_id].name == "look", "only what is safe is cancelled"
                    self.under_way.discard(call_id)
                case FollowTool(call_id):
                    if call_id not in self.under_way:
                        self.carry_out(self.core.answered(call_id, Failure("lost")) or [])
        for one in self.core.take_settled():
            self.settled[one.call.id] += 1
            self.log.pop(one.call.id, None)
            self.unwritten = [call for call in self.unwritten if call != one.call]
            if one.outcome == "cancelled":
                self.cancelled.add(one.call.id)

    @rule(name=st.sampled_from(["look", "book"]))
    def call(self, name: str) -> None:
        self.number += 1
        made = item(self.number, name)
        self.items[made.call_id] = made
        self.carry_out(self.core.call(made, SPEC, self.number))

    @rule()
    def store(self) -> None:
        if self.unwritten:
            call = self.unwritten.pop(0)
            self.log[call.id] = call
            self.carry_out(self.core.stored(call.id))

    @rule(pick=st.integers(0, 99), fails=st.booleans())
    def answer(self, pick: int, fails: bool) -> None:
        if self.under_way:
            call_id = sorted(self.under_way)[pick % len(self.under_way)]
            self.under_way.discard(call_id)
            answer = Failure("timeout") if fails else Result("ok")
            self.carry_out(self.core.answered(call_id, answer) or [])

    @rule()
    def interrupt(self) -> None:
        self.carry_out(self.core.interrupt())

    @rule(later_ns=st.integers(0, 2 * STORE_NS_MAX))
    def tick(self, later_ns: int) -> None:
        self.core.tick(self.number + later_ns)
        self.carry_out([])

    @rule(dies=st.booleans())
    def goes_over(self, dies: bool) -> None:
        if dies:
            self.under_way.clear()
            self.unwritten.clear()
        else:
            self.carry_out(self.core.close())
            self.log |= {call.id: call for call in self.unwritten}
            self.unwritten.clear()
        self.core = calls(*self.log.values())
        ends = [output_item(f"{call_id}_output", call_id, "") for call_id in self.settled]
        self.carry_out(self.core.recover([*self.items.values(), *ends], self.number))

    @invariant()
    def a_side_effect_is_begun_once(self) -> None:
        assert all(times == 1 for call_id, times in self.requests.items() if self.items[call_id].name == "book")

    @invariant()
    def each_call_is_settled_once(self) -> None:
        assert all(times == 1 for times in self.settled.values())
        assert not self.cancelled & self.under_way, "what is cancelled is not waited for"

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.core.pending) <= PENDING_MAX
        assert self.core.is_running or not self.under_way & {call.id for call in self.core.pending}


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_arguments_that_do_not_fit_are_answered_with_what_is_wrong_and_nothing_is_begun() -> None:
    people = '{"type":"object","required":["people"],"properties":{"people":{"type":"integer"}}}'
    core = ServiceCalls((ServiceTool(Tool("look", parameters=people)),))
    assert core.call(item(), SPEC, 0) == []
    (settled,) = core.take_settled()
    assert (settled.outcome, settled.is_begun, settled.spec) == ("failed", False, SPEC)
    assert json.loads(settled.text) == {"error": "bad_arguments", "message": "It was not done: people is missing."}
    assert not core.knows("call_1")
