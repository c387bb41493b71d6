"""What becomes of responses, as the event log tells it. That the log is right in any order of things is shown by the
simulator."""

from __future__ import annotations

from msgspec import structs

from sessions.conversation import Conversation
from sessions.plan import Plan
from sessions.planner import Identity, ReplyDefaults
from sessions.response import Deadlines
from sessions.route import Leg, line
from sessions.settings import OUTPUT_RATE, ResponseSpec, SessionSettings
from stages.contracts import (
    AudioOut,
    ObserverOptions,
    Options,
    TalkerOptions,
    TextDelta,
    TextDone,
    ThinkerOptions,
    VocoderOptions,
)
from stages.event_log import EventLog
from tests.sessions.quick_store import QuickStore
from tests.sessions.talk import silence
from tests.sessions.test_speaking import plan, start

Told = tuple[int, str, int, str, str, str]
WHOLE = TextDone("Yes.", "stop", 9, 3, 2)


class Bench:
    def __init__(self, deadlines: Deadlines | None = None) -> None:
        self.log = EventLog()
        self.mouth = QuickStore(60_000, deadlines or Deadlines(), self.log, "acme")

    def started(self, what: Plan, now_ns: int = 0) -> Plan:
        start(self.mouth, what, now_ns=now_ns)
        for leg, _ in reversed(what.stages):
            self.mouth.opened(what.tag, leg.stage, now_ns)
        return what

    def told(self, since: int = 0) -> list[Told]:
        """Moment, kind, value, link, state and cause of each event from number `since` on."""
        events = self.log.read().events[since:]
        return [(event.at_ns, event.kind, event.value, event.link, event.state, event.cause) for event in events]


def test_a_reply_from_its_acceptance_until_it_has_drained() -> None:
    bench, what = Bench(), plan()
    bench.started(what)
    assert bench.told() == [
        (0, "accepted", 1, "", "", ""),
        (0, "admitted", 3, "", "", ""),
        (0, "asked", 0, "talker", "", ""),
        (0, "asked", 0, "vocoder", "", ""),
        (0, "opened", 0, "vocoder", "", ""),
        (0, "opened", 0, "talker", "", ""),
        (0, "asked", 0, "thinker", "", ""),
        (0, "opened", 0, "thinker", "", ""),
    ]
    for event in (TextDelta("Yes."), WHOLE, AudioOut(0, OUTPUT_RATE, 0, silence(480), final=True)):
        bench.mouth.published(what.tag, event, 5)
    for stage in ("thinker", "talker"):
        bench.mouth.closed(what.tag, stage, {}, None, 6)
    bench.mouth.take_due(7)
    bench.mouth.closed(what.tag, "vocoder", {}, None, 9)
    assert bench.told(8) == [
        (5, "received", 0, "", "text", ""),
        (5, "received", 0, "", "text_done", ""),
        (5, "received", 480, "", "audio", ""),
        (6, "closed", 0, "thinker", "", ""),
        (6, "closed", 0, "talker", "", ""),
        (7, "sent", 480, "", "", ""),
        (7, "terminal", 480, "", "succeeded", ""),
        (9, "closed", 0, "vocoder", "", ""),
        (9, "drained", 2, "", "complete", ""),
    ]
    assert {(event.session, event.stream, event.tenant) for event in bench.log.read().events} == {
        ("sess", "r1", "acme")
    }


def test_a_cancel_is_told_to_each_stage_before_the_end() -> None:
    bench, what = Bench(), plan()
    bench.started(what)
    bench.mouth.cancel("r1", "turn_detected", 3)
    bench.mouth.published(what.tag, TextDelta("late"), 4)
    assert bench.told(8) == [
        *((3, "cancelled", 0, stage, "", "abort") for stage in ("thinker", "talker", "vocoder")),
        (3, "terminal", 0, "", "cancelled", "turn_detected"),
        (4, "stale", 1, "", "text", ""),
    ]


def test_a_stage_that_fails_and_one_that_does_not_let_go() -> None:
    bench, what = Bench(Deadlines(drain_ns_max=100)), plan()
    bench.started(what)
    bench.mouth.closed(what.tag, "talker", {}, ("step_failed", "somebody's words"), 3)
    bench.mouth.closed(what.tag, "vocoder", {}, None, 4)
    bench.mouth.tick(103)
    bench.mouth.closed(what.tag, "thinker", {}, None, 200)
    assert bench.told(8) == [
        (3, "closed", 0, "talker", "", "step_failed"),
        (3, "cancelled", 0, "thinker", "", "abort"),
        (3, "cancelled", 0, "vocoder", "", "abort"),
        (3, "terminal", 0, "", "failed", "step_failed"),
        (4, "closed", 0, "vocoder", "", ""),
        (103, "drained", 100, "", "orphaned", ""),
        (200, "stale", 1, "thinker", "closed", ""),
    ]


def test_a_stage_that_refuses() -> None:
    bench, what = Bench(), plan(with_audio=False)
    start(bench.mouth, what)
    bench.mouth.refused(what.tag, "thinker", "capacity", "all slots are taken", 2)
    bench.mouth.refused(what.tag, "thinker", "capacity", "again", 3)
    bench.mouth.opened(what.tag, "thinker", 3)
    bench.mouth.lost(what.tag, "thinker", 3)
    assert bench.told(3) == [
        (2, "refused", 0, "thinker", "", "capacity"),
        (2, "terminal", 0, "", "rejected", "capacity"),
        (2, "drained", 0, "", "complete", ""),
        *((3, "stale", 1, "thinker", what, "") for what in ("refused", "opened", "lost")),
    ]


def test_a_loss_is_followed_by_another_attempt() -> None:
    bench, what = Bench(), plan(with_audio=False)
    bench.started(what)
    bench.mouth.lost(what.tag, "thinker", 2)
    again = structs.replace(what.tag, attempt=1)
    bench.mouth.opened(again, "thinker", 3)
    bench.mouth.published(what.tag, TextDelta("of the first"), 4)
    assert bench.told(4) == [
        (2, "lost", 0, "thinker", "", ""),
        (2, "cancelled", 0, "thinker", "", "abort"),
        (2, "retried", 1, "", "", "stage_lost"),
        (2, "asked", 1, "thinker", "", ""),
        (3, "opened", 1, "thinker", "", ""),
        (4, "stale", 1, "", "text", ""),
    ]


def test_an_observer_is_cut_where_something_was_sent() -> None:
    watch = Leg("aligner", "observer", (), (), spoken=True)
    options: tuple[Options, ...] = (ThinkerOptions((), 100), TalkerOptions(), VocoderOptions(), ObserverOptions())
    stages = tuple(zip((*line().legs_of(with_audio=True), watch), options, strict=True))
    causes = []
    for sent in (0, 480):
        bench, one = Bench(), plan()
        what = Plan(ResponseSpec(), one.tag, one.item, None, stages, with_audio=True, view=one.view)
        bench.started(what)
        if sent:
            bench.mouth.published(what.tag, AudioOut(0, OUTPUT_RATE, 0, silence(sent)), 1)
            bench.mouth.take_due(2)
        bench.mouth.cancel("r1", "client_cancelled", 3)
        causes += [
            event.cause for event in bench.log.read().events if (event.kind, event.link) == ("cancelled", "aligner")
        ]
    assert causes == ["abort", "cut"]


def test_a_reply_that_is_prepared_and_withdrawn_ends_in_the_log_alone() -> None:
    bench = Bench()
    bench.mouth.prepare(plan(), 1)
    bench.mouth.withdraw(2)
    told = bench.told()
    assert told[0] == (1, "accepted", 1, "", "prepared", "")
    assert (2, "terminal", 0, "", "cancelled", "withdrawn") in told


def test_the_conversation_says_whose_its_responses_are() -> None:
    log = EventLog()
    identity = Identity("sess", 1, lambda prefix: f"{prefix}_1", "acme")
    core = Conversation(identity, SessionSettings(), ReplyDefaults("Hi.", 10), transport_lead_ms=0, events=log)
    core.create_response(ResponseSpec(), 3)
    first = log.read().events[0]
    assert (first.at_ns, first.session, first.stream, first.tenant) == (3, "sess", "resp_1", "acme")
    assert core.tenant == "acme"
