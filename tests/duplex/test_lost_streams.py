"""What lost workers may hold: the end of a stream is told once, and not before each of them is accounted for."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from duplex.lost_streams import Ask, AskLater, Effect, Ended, Failed, LostStreams
from stages.contracts import Tag
from stages.messages import Audited, Closed, Outcome, Refused

S1 = "sess_1"
A, B = "a", "b"
TAG, OTHER = Tag(S1, 1 << 20, 1, "resp_1"), Tag(S1, 1 << 20, 1, "resp_2")
CANCELLED = Closed(TAG, "cancelled", {})
FINISHED = Closed(TAG, "finished", {"frames": 3})
BROKEN = Closed(TAG, "failed", {}, "engine", "it broke")


def answer(of: Tag = TAG, held: int = 0, by: str = A) -> Audited:
    return Audited(by, of.session, of.key, {"streams": held} if held else {}, {})


def lost(*begun: bool) -> LostStreams:
    """`TAG` was lost at `A`, once for each of `begun`."""
    streams = LostStreams([A, B])
    for had_begun in begun:
        streams.lose(A, 1, TAG, had_begun=had_begun)
    return streams


# ---- a stream that had begun ----------------------------------------------------------------------------------


def test_it_has_ended_when_a_higher_incarnation_tells_that_its_process_is_dead() -> None:
    streams = lost(True)
    streams.lose(A, 2, OTHER, had_begun=True)
    assert streams.reached(A, 2) == [Ended(Closed(TAG, "cancelled", {"process_exit": 1})), Ask(A, OTHER)]
    assert [one.tag for one in streams[A]] == [OTHER]


def test_it_has_ended_when_the_worker_that_is_reached_again_holds_nothing() -> None:
    streams = lost(True)
    assert streams.reached(A, 1) == [Ask(A, TAG)]
    assert streams.answered(A, answer()) == [Ended(Closed(TAG, "cancelled", {"link_lost": 1}))]
    assert streams.answered(A, answer()) is None
    assert streams[A] == []


def test_a_worker_that_still_holds_it_is_asked_again() -> None:
    streams = lost(True)
    streams.reached(A, 1)
    assert streams.answered(A, answer(held=1)) == [AskLater(A, TAG, 1)]
    assert streams.ask_again(AskLater(A, TAG, 1)) == [Ask(A, TAG)]
    assert streams.count(S1, TAG.key) == 1


def test_what_was_to_be_asked_before_a_worker_was_reached_anew_is_not() -> None:
    streams = lost(True)
    later = [AskLater(A, TAG, reached) for reached in (1, 2)]
    for question in later:
        assert streams.reached(A, 1) == [Ask(A, TAG)]
        assert streams.answered(A, answer(held=1)) == [question]
    assert [streams.ask_again(question) for question in later] == [[], [Ask(A, TAG)]]
    streams.answered(A, answer())
    assert streams.ask_again(later[1]) == [], "there is nothing to ask about"


def test_one_answer_is_for_all_that_a_worker_may_hold_of_a_stream() -> None:
    """Whose links are lost again and again is asked in vain as often."""
    streams = lost(False, False, True)
    assert streams.reached(A, 1) == [Ask(A, TAG)]
    assert streams.answered(A, answer(held=1)) == [AskLater(A, TAG, 1)]
    assert streams.count(S1, TAG.key) == 3
    assert streams.answered(A, answer()) == [Ended(Closed(TAG, "cancelled", {"link_lost": 1}))]
    assert streams[A] == []


def test_what_a_stream_of_that_name_says_later_ends_that_one_alone() -> None:
    """Input work is read again under its name: the first stream of it still ends by itself."""
    streams = lost(True)
    assert streams.ended(FINISHED, by=A) == [Ended(FINISHED)]
    assert streams.reached(A, 2) == [Ended(Closed(TAG, "cancelled", {"process_exit": 1}))]


# ---- a stream of which nothing was seen -------------------------------------------------------------------------


def test_it_has_not_ended_with_its_worker_and_is_asked_for_elsewhere() -> None:
    for incarnation, effects in ((2, []), (1, [Ask(A, TAG)])):
        streams = lost(False)
        assert streams.reached(A, incarnation) == effects
    assert streams.answered(A, answer()) == []
    assert streams.ended(FINISHED, by=B) == [Ended(FINISHED)]


@pytest.mark.parametrize(
    ("last", "at_once", "told"),
    [
        (CANCELLED, [], CANCELLED),
        (FINISHED, [], FINISHED),
        (BROKEN, [Failed(TAG)], BROKEN),
        (Refused(TAG, "busy", "still leaving"), [Failed(TAG)], CANCELLED),
    ],
    ids=["cancelled", "finished", "failed", "refused"],
)
def test_its_end_waits_for_each_worker_that_may_hold_it_and_its_failure_for_none(
    last: Closed | Refused, at_once: list[Effect], told: Closed
) -> None:
    streams = lost(False)
    streams.lose(B, 1, TAG, had_begun=False)
    assert streams.ended(last) == at_once
    assert streams.reached(A, 2) == []
    streams.reached(B, 1)
    assert streams.answered(B, answer(by=B)) == [Ended(told)]
    streams.lose(A, 2, TAG, had_begun=False)
    assert streams.reached(A, 3) == [], "what was told is not told again"


def test_so_does_the_end_that_another_worker_took_with_it() -> None:
    streams = lost(False)
    streams.lose(B, 1, TAG, had_begun=True)
    assert streams.reached(B, 2) == []
    assert streams.reached(A, 2) == [Ended(Closed(TAG, "cancelled", {"process_exit": 1}))]


def test_who_says_the_last_word_speaks_for_its_past() -> None:
    streams = lost(False, False)
    streams.lose(A, 1, OTHER, had_begun=False)
    assert streams.ended(FINISHED, by=A) == [Ended(FINISHED)]
    assert [one.tag for one in streams[A]] == [OTHER]


def test_an_answer_about_what_was_not_lost_is_for_who_asked() -> None:
    streams = lost(False)
    for other in (answer(OTHER), answer(Tag("sess_2", 1 << 20, 1, "resp_1")), Audited(A, S1, "", {}, {})):
        assert streams.answered(A, other) is None
    assert streams.answered(B, answer(by=B)) is None
    assert [streams.count(S1, name) for name in (TAG.key, OTHER.key, "")] == [1, 0, 0]


# ---- whatever happens ---------------------------------------------------------------------------------------------

STREAMS_MAX = 4
OUTCOMES: list[Outcome | None] = ["finished", "cancelled", "failed", None]  # None: refused


class Machine(RuleBasedStateMachine):
    """Streams that are asked for until they end, of workers that are lost, die, and let go when they please."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = LostStreams([A, B])
        self.incarnation = {A: 1, B: 1}
        self.up = {A, B}
        self.at: dict[Tag, str | None] = {}  # where each stream is that is not over
        self.begun: set[Tag] = set()
        self.holds: set[tuple[str, Tag]] = set()  # the truth, which nobody knows
        self.asked: list[Ask] = []
        self.timers: list[AskLater] = []
        self.known: list[Tag] = []
        self.told: list[Tag] = []
        self.failed: list[Tag] = []

    def _take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Ask(replica):
                    if replica in self.up:
                        self.asked.append(effect)
                case AskLater():
                    self.timers.append(effect)
                case Failed(tag):
                    assert tag not in [*self.at, *self.told, *self.failed]
                    self.failed.append(tag)
                case Ended(last):
                    assert last.tag not in [*self.at, *self.told], "an end is told once"
                    assert not [one for one in self.holds if one[1] == last.tag], "somebody still holds it"
                    self.told.append(last.tag)

    def _placed(self) -> list[Tag]:
        return [tag for tag, replica in self.at.items() if replica is not None]

    def _waiting(self) -> list[Tag]:
        return [tag for tag, replica in self.at.items() if replica is None]

    @precondition(lambda self: self.up)
    @rule(data=st.data())
    def all_are_asked_for(self, data: st.DataObject) -> None:
        """Those that wait, and a new one."""
        if len(self.known) < STREAMS_MAX:
            self.known.append(Tag(S1, 1 << 20, 1, f"resp_{len(self.known)}"))
            self.at[self.known[-1]] = None
        for tag in self._waiting():
            self.at[tag] = replica = data.draw(st.sampled_from(sorted(self.up)))
            self.holds.add((replica, tag))

    @precondition(lambda self: self._placed())
    @rule(data=st.data())
    def begins(self, data: st.DataObject) -> None:
        self.begun.add(data.draw(st.sampled_from(self._placed())))

    @precondition(lambda self: self._placed())
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def ends(self, data: st.DataObject, outcome: Outcome | None) -> None:
        tag = data.draw(st.sampled_from(self._placed()))
        replica = self.at.pop(tag)
        assert replica is not None
        self.holds.discard((replica, tag))
        last = Refused(tag, "busy", "") if outcome is None else Closed(tag, outcome, {})
        self._take(self.streams.ended(last, by=replica))

    @precondition(lambda self: self._waiting())
    @rule(data=st.data())
    def is_given_up(self, data: st.DataObject) -> None:
        tag = data.draw(st.sampled_from(self._waiting()))
        del self.at[tag]
        self._take(self.streams.ended(Closed(tag, "cancelled", {})))

    @precondition(lambda self: self.up)
    @rule(data=st.data(), arrived=st.booleans())
    def is_lost(self, data: st.DataObject, arrived: bool) -> None:
        replica = data.draw(st.sampled_from(sorted(self.up)))
        self.up.remove(replica)
        self.asked = [one for one in self.asked if one.replica != replica]
        for tag in [tag for tag in self._placed() if self.at[tag] == replica]:
            had_begun = tag in self.begun
            self.streams.lose(replica, self.incarnation[replica], tag, had_begun=had_begun)
            if had_begun:
                del self.at[tag]
            else:
                self.at[tag] = None
                if not arrived:
                    self.holds.discard((replica, tag))

    @precondition(lambda self: len(self.up) < 2)
    @rule(data=st.data(), died=st.booleans())
    def is_reached(self, data: st.DataObject, died: bool) -> None:
        replica = data.draw(st.sampled_from(sorted({A, B} - self.up)))
        if died:
            self.incarnation[replica] += 1
            self.holds = {one for one in self.holds if one[0] != replica}
        self.up.add(replica)
        self._take(self.streams.reached(replica, self.incarnation[replica]))

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def lets_go(self, data: st.DataObject) -> None:
        """A worker does, of what was lost with its links."""
        replica, tag = data.draw(st.sampled_from(sorted(self.holds, key=str)))
        if self.at.get(tag) != replica:
            self.holds.remove((replica, tag))

    @precondition(lambda self: self.asked)
    @rule()
    def answers(self) -> None:
        asked = self.asked.pop(0)
        held = (asked.replica, asked.tag) in self.holds
        self._take(self.streams.answered(asked.replica, answer(asked.tag, int(held), asked.replica)) or [])

    @precondition(lambda self: self.timers)
    @rule()
    def time_passes(self) -> None:
        self._take(self.streams.ask_again(self.timers.pop(0)))

    @invariant()
    def each_loss_is_being_asked_for(self) -> None:
        for replica in self.up:
            for tag in {one.tag for one in self.streams[replica]}:
                under_way = [*self.asked, *(ask for one in self.timers for ask in self.streams.ask_again(one))]
                assert under_way.count(Ask(replica, tag)) == 1

    def teardown(self) -> None:
        """Let everything come to its end: then each has been told."""
        for replica in sorted({A, B} - self.up):
            self.up.add(replica)
            self._take(self.streams.reached(replica, self.incarnation[replica]))
        for tag, by in list(self.at.items()):
            del self.at[tag]
            self.holds = {one for one in self.holds if one != (by, tag)}
            self._take(self.streams.ended(Closed(tag, "cancelled", {}), by=by))
        self.holds.clear()
        while self.asked or self.timers:
            if self.asked:
                self.answers()
            else:
                self.time_passes()
        assert sorted(self.told, key=str) == sorted(self.known, key=str)
        assert [self.streams[replica] for replica in (A, B)] == [[], []]


Machine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestWhateverHappens = Machine.TestCase
