"""What is asked of a worker: opened once, fed after that, and void or held while the worker is away."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from duplex.stage_port import (
    HELD_OPENS_MAX,
    UNOPENED_FEEDS_MAX,
    Down,
    DropLinks,
    Effect,
    SendControl,
    SendMedia,
    StagePort,
    StageUnresponsiveError,
    Tell,
    TellLater,
    Up,
)
from stages.contracts import Clause, Tag, TalkerOptions
from stages.messages import (
    LINK_VERSION,
    Cancel,
    Closed,
    EndEpoch,
    Feed,
    Frame,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Refused,
    Welcome,
)

EPOCH = 1 << 20


def tag(number: int) -> Tag:
    return Tag("sess", EPOCH, number, f"resp_{number}")


TAG = tag(1)
OPEN = Open(TAG, TalkerOptions(), ("vocoder",))
WORD = Clause(0, "word")


def welcome(incarnation: int = 1, *, onward_up: bool = True) -> Welcome:
    return Welcome(LINK_VERSION, "talker", incarnation, "rev", onward_up)


def ready_port() -> StagePort:
    port = StagePort("talker")
    assert port.welcomed(welcome()) == [Up(reborn=False)]
    assert port.released() == []
    return port


def test_orders_and_feeds_go_their_ways() -> None:
    port = ready_port()
    assert port.order(OPEN) == [SendControl(OPEN)]
    assert port.frame(Opened(TAG)) == [Tell(Opened(TAG))]
    assert port.feed(TAG, WORD, 4) == [SendMedia(Feed(TAG, WORD, 4))]
    assert port.order(Cancel(TAG)) == [SendControl(Cancel(TAG))]
    assert port.frame(Closed(TAG, "cancelled", {})) == [Tell(Closed(TAG, "cancelled", {}))]


def test_feeds_wait_until_the_stream_is_open() -> None:
    port = ready_port()
    port.order(OPEN)
    assert port.feed(TAG, WORD, 4) == port.feed(TAG, WORD, 5) == []
    assert port.frame(Opened(TAG)) == [
        SendMedia(Feed(TAG, WORD, 4)),
        SendMedia(Feed(TAG, WORD, 5)),
        Tell(Opened(TAG)),
    ]


@pytest.mark.parametrize("how", ["refused", "cancelled"])
def test_feeds_of_a_stream_that_is_not_to_be_are_forgotten(how: str) -> None:
    port = ready_port()
    port.order(OPEN)
    port.feed(TAG, WORD, 4)
    if how == "refused":
        refused = Refused(TAG, "capacity", "full")
        assert port.frame(refused) == [Tell(refused)]
    else:
        port.order(Cancel(TAG))
    assert port.frame(Opened(TAG)) == [Tell(Opened(TAG))]


def test_feeds_that_wait_are_bounded() -> None:
    port = ready_port()
    port.order(OPEN)
    for _ in range(UNOPENED_FEEDS_MAX):
        port.feed(TAG, WORD)
    with pytest.raises(StageUnresponsiveError):
        port.feed(TAG, WORD)


def test_a_worker_that_is_away_is_told_nothing_but_what_to_open_when_it_is_back() -> None:
    port = StagePort("talker")
    for frame in (OPEN, OpenSession("sess", EPOCH), EndEpoch("sess", EPOCH)):
        assert port.order(frame) == []
    assert port.feed(TAG, WORD, 4) == port.feed(tag(2), WORD) == []
    assert (port.held, port.ready, port.incarnation) == (1, False, -1)
    assert port.released() == []
    port.welcomed(welcome())
    assert port.order(OpenSession("sess", EPOCH)) == [SendControl(OpenSession("sess", EPOCH))]
    assert port.released() == [SendControl(OPEN)]
    assert (port.held, port.ready, port.incarnation) == (0, True, 1)
    assert port.frame(Opened(TAG)) == [SendMedia(Feed(TAG, WORD, 4)), Tell(Opened(TAG))]


def test_a_stream_that_is_asked_for_again_on_return_is_opened_once() -> None:
    port = StagePort("talker")
    port.order(OPEN)
    port.welcomed(welcome())
    assert port.order(OPEN) == [SendControl(OPEN)]
    assert port.released() == []


def test_streams_wait_for_the_stage_behind() -> None:
    port = StagePort("talker")
    port.welcomed(welcome(onward_up=False))
    assert port.order(OPEN) == port.released() == []
    assert port.frame(OnwardChanged(up=True)) == [SendControl(OPEN)]
    assert port.ready


def test_a_refusal_for_want_of_the_stage_behind_waits_for_that() -> None:
    port = ready_port()
    port.order(OPEN)
    port.feed(TAG, WORD, 4)
    assert port.frame(OnwardChanged(up=False)) == []
    assert port.frame(Refused(TAG, "downstream_lost", "gone")) == []
    assert port.frame(OnwardChanged(up=True)) == [SendControl(OPEN)]
    assert port.frame(Opened(TAG))[0] == SendMedia(Feed(TAG, WORD, 4))


def test_a_refusal_for_want_of_the_stage_behind_that_is_back_is_asked_again() -> None:
    port = ready_port()
    port.order(OPEN)
    assert port.frame(Refused(TAG, "downstream_lost", "gone")) == [SendControl(OPEN)]


def test_a_refusal_of_what_was_cancelled_is_told() -> None:
    port = ready_port()
    port.order(OPEN)
    port.order(Cancel(TAG))
    refused = Refused(TAG, "downstream_lost", "gone")
    assert port.frame(refused) == [Tell(refused)]


def test_a_waiting_stream_that_is_cancelled_is_closed_by_us() -> None:
    port = StagePort("talker")
    port.order(OPEN)
    assert port.order(Cancel(TAG)) == [TellLater(Closed(TAG, "cancelled", {}))]
    port.welcomed(welcome())
    assert port.released() == []


def test_waiting_streams_are_bounded() -> None:
    port = StagePort("talker")
    for number in range(HELD_OPENS_MAX):
        port.order(Open(tag(number), TalkerOptions()))
    with pytest.raises(StageUnresponsiveError):
        port.order(Open(tag(HELD_OPENS_MAX), TalkerOptions()))


def test_a_refusal_beyond_what_may_wait_is_told() -> None:
    port = ready_port()
    port.order(OPEN)
    port.frame(OnwardChanged(up=False))
    for number in range(2, HELD_OPENS_MAX + 2):
        port.order(Open(tag(number), TalkerOptions()))
    refused = Refused(TAG, "downstream_lost", "gone")
    assert port.frame(refused) == [Tell(refused)]


@pytest.mark.parametrize(("incarnation", "reborn"), [(1, False), (2, True), (7, True)])
def test_a_higher_incarnation_is_a_new_process(incarnation: int, reborn: bool) -> None:
    port = ready_port()
    assert port.lost() == [Down()]
    assert not port.ready
    assert port.welcomed(welcome(incarnation)) == [Up(reborn)]


def test_a_lower_incarnation_is_the_past() -> None:
    port = ready_port()
    port.lost()
    assert port.welcomed(welcome(0)) == [DropLinks()]
    assert (port.ready, port.incarnation) == (False, 1)
    assert port.lost() == [], "it was never up"
    assert port.welcomed(welcome(1)) == [Up(reborn=False)]


def test_what_was_open_is_lost_with_the_worker_and_what_waited_is_kept() -> None:
    port = ready_port()
    port.order(OPEN)
    port.feed(TAG, WORD, 4)
    port.lost()
    waiting = Open(tag(2), TalkerOptions())
    port.order(waiting)
    port.feed(tag(2), WORD, 5)
    port.lost()
    port.welcomed(welcome(2))
    assert port.released() == [SendControl(waiting)]
    assert port.frame(Opened(TAG)) == [Tell(Opened(TAG))]
    assert port.frame(Opened(tag(2)))[0] == SendMedia(Feed(tag(2), WORD, 5))


class StagePortMachine(RuleBasedStateMachine):
    """A worker that comes and goes: a stream is asked for once in each of its lives, and fed only when it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.port = StagePort("talker")
        self.incarnation = 0
        self.is_up = False
        self.onward_up = False
        self.next = 0
        self.wanted: set[Tag] = set()
        self.asked: set[Tag] = set()
        self.opened: set[Tag] = set()

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendControl(Open(tag)):
                    assert self.is_up
                    assert self.onward_up
                    assert tag not in self.asked | self.opened
                    self.asked.add(tag)
                case SendMedia(Feed(tag)):
                    assert tag in self.opened
                case Up():
                    self.carry_out(self.port.released())

    def told(self, frame: Frame) -> None:
        self.carry_out(self.port.frame(frame))

    @precondition(lambda self: not self.is_up)
    @rule(dies=st.booleans(), onward_up=st.booleans())
    def comes(self, dies: bool, onward_up: bool) -> None:
        self.incarnation += dies
        self.is_up, self.onward_up = True, onward_up
        self.carry_out(self.port.welcomed(welcome(self.incarnation, onward_up=onward_up)))

    @precondition(lambda self: self.is_up)
    @rule()
    def goes(self) -> None:
        self.is_up = False
        self.wanted -= self.asked | self.opened
        self.asked.clear()
        self.opened.clear()
        assert self.port.lost() == [Down()]

    @precondition(lambda self: self.is_up)
    @rule()
    def next_stage_changes(self) -> None:
        self.onward_up = not self.onward_up
        self.told(OnwardChanged(self.onward_up))

    @rule()
    def open(self) -> None:
        self.next += 1
        self.wanted.add(tag(self.next))
        self.carry_out(self.port.order(Open(tag(self.next), TalkerOptions())))

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        cancelled = data.draw(st.sampled_from(sorted(self.wanted, key=lambda each: each.turn)))
        is_held = cancelled not in self.asked | self.opened
        effects = self.port.order(Cancel(cancelled))
        assert effects == [TellLater(Closed(cancelled, "cancelled", {})) if is_held else SendControl(Cancel(cancelled))]
        for tags in (self.wanted, self.asked, self.opened):
            tags.discard(cancelled)

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def feed(self, data: st.DataObject) -> None:
        fed = data.draw(st.sampled_from(sorted(self.wanted, key=lambda each: each.turn)))
        self.carry_out(self.port.feed(fed, WORD))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), refuses=st.booleans())
    def answer(self, data: st.DataObject, refuses: bool) -> None:
        answered = data.draw(st.sampled_from(sorted(self.asked, key=lambda each: each.turn)))
        self.asked.remove(answered)
        if not refuses:
            self.opened.add(answered)
            self.told(Opened(answered))
        elif self.onward_up:
            self.wanted.remove(answered)
            self.told(Refused(answered, "capacity", "full"))
        else:
            self.told(Refused(answered, "downstream_lost", "gone"))

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert self.port.ready == (self.is_up and self.onward_up)
        assert self.port.held == len(self.wanted - self.asked - self.opened)
        assert not self.port.ready or self.port.held == 0


StagePortMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAnyOrder = StagePortMachine.TestCase
