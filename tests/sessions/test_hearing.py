"""The caller's turns: the table of their moves, what the encoder is asked, what the client is told, what is awaited."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from sessions.effects import CancelStream, Effect, FeedStream, HearFrom, Measured, OpenStream, StopHearing, Tell
from sessions.events import (
    CallerText,
    CallerTextFailed,
    CommandRefused,
    InputCommitted,
    SpeechStarted,
    SpeechStopped,
)
from sessions.hearing import (
    AWAITING_MAX,
    BUFFER_FULL,
    BUFFER_SAMPLES_MAX,
    LATE_NS_MAX,
    TRANSCRIPT_NS_MAX,
    Hearing,
    Turn,
    TurnError,
    TurnPhase,
    TurnStep,
    Understood,
)
from stages.contracts import EncoderOptions, EndOfTurn, Pause, SpeechResumed, Tag, Transcript
from tests.sessions.talk import kinds, of, told

EPOCH = 5
OPENED = EncoderOptions()


def hearing() -> Hearing:
    ids = count(1)
    return Hearing("sess", "encoder", lambda: f"item_{next(ids)}")


def tag(turn: int) -> Tag:
    return Tag("sess", EPOCH, turn)


def final(text: str) -> Transcript:
    return Transcript(text, 0, settled=True, final=True)


def spoken(ears: Hearing, now_ns: int = 0) -> Tag:
    """A turn that was spoken, ended at `now_ns`, and waits for its transcript."""
    ears.start(16_000, 11_200, EPOCH, answer=True)
    ears.tell_started()
    assert ears.current is not None
    waiting = ears.current.tag
    ears.end(32_000, now_ns, now_ns, None)
    return waiting


# ---- the table -------------------------------------------------------------------------------------

MOVES = {
    (TurnPhase.SPEAKING, TurnStep.PAUSE): TurnPhase.PAUSED,
    (TurnPhase.SPEAKING, TurnStep.END): TurnPhase.ENDED,
    (TurnPhase.SPEAKING, TurnStep.DISCARD): TurnPhase.GONE,
    (TurnPhase.PAUSED, TurnStep.RESUME): TurnPhase.SPEAKING,
    (TurnPhase.PAUSED, TurnStep.END): TurnPhase.ENDED,
    (TurnPhase.PAUSED, TurnStep.DISCARD): TurnPhase.GONE,
    (TurnPhase.ENDED, TurnStep.SETTLE): TurnPhase.GONE,
    (TurnPhase.ENDED, TurnStep.DISCARD): TurnPhase.GONE,
}


@pytest.mark.parametrize("step", TurnStep)
@pytest.mark.parametrize("phase", TurnPhase)
def test_a_turn_moves_as_the_table_says_or_not_at_all(phase: TurnPhase, step: TurnStep) -> None:
    turn = Turn(tag(1), "item_1", 0, 0, answer=True, phase=phase)
    target = MOVES.get((phase, step))
    if target is None:
        with pytest.raises(TurnError, match=f"{step.name} in {phase.name}"):
            turn.move(step)
    else:
        turn.move(step)
    assert turn.phase is (target or phase)
    assert turn.is_paused == (turn.phase is TurnPhase.PAUSED)


# ---- speech ----------------------------------------------------------------------------------------


def test_a_turn_is_heard_from_before_its_onset() -> None:
    ears = hearing()
    effects = ears.start(16_000, 11_200, EPOCH, answer=True)
    assert effects == [OpenStream("encoder", tag(1), OPENED), HearFrom(tag(1), 11_200)]
    assert ears.tell_started() == Tell(SpeechStarted("item_1", 1_000))
    assert ears.current is not None
    assert not ears.is_awaited


def test_a_pause_is_told_to_the_encoder_at_once_and_taken_back() -> None:
    ears = hearing()
    ears.start(16_000, 11_200, EPOCH, answer=True)
    assert ears.pause(20_000) == [FeedStream("encoder", tag(1), Pause(20_000))]
    assert ears.resume() == [FeedStream("encoder", tag(1), SpeechResumed())]
    with pytest.raises(TurnError):
        ears.resume()
    ears.pause(24_000)
    with pytest.raises(TurnError):
        ears.pause(24_000)


def test_the_end_stops_the_feed_before_it_asks_for_the_transcript() -> None:
    ears = hearing()
    ears.start(16_000, 11_200, EPOCH, answer=True)
    ears.tell_started()
    assert ears.end(32_000, 400, 500, "item_0") == [
        StopHearing(tag(1)),
        FeedStream("encoder", tag(1), EndOfTurn(32_000)),
        Tell(SpeechStopped("item_1", 2_000)),
        Tell(InputCommitted("item_1", "item_0")),
    ]
    assert ears.current is None
    assert ears.is_awaited


def test_a_turn_that_the_client_was_not_told_of_does_not_stop_for_it_either() -> None:
    ears = hearing()
    ears.start(0, 0, EPOCH, answer=False)
    assert told(ears.end(32_000, 0, 0, None), SpeechStopped) == []


def test_turns_are_numbered_with_whatever_else_opens_one() -> None:
    ears = hearing()
    assert ears.next_turn() == 1
    spoken(ears)
    assert ears.next_turn() == 3


def test_what_is_thrown_away_is_cancelled_and_awaited_by_nobody() -> None:
    ears = hearing()
    assert ears.discard() == []
    ears.start(16_000, 11_200, EPOCH, answer=True)
    assert ears.discard() == [StopHearing(tag(1)), CancelStream("encoder", tag(1))]
    assert ears.current is None
    assert not ears.is_awaited
    assert ears.next_deadline_ns() is None


@pytest.mark.parametrize("call", ["pause", "resume", "end", "tell_started"])
def test_nothing_happens_to_a_turn_that_nobody_speaks(call: str) -> None:
    ears = hearing()
    calls = {
        "pause": lambda: ears.pause(0),
        "resume": ears.resume,
        "end": lambda: ears.end(0, 0, 0, None),
        "tell_started": ears.tell_started,
    }
    with pytest.raises(AssertionError, match="no turn is being spoken"):
        calls[call]()


def test_one_turn_is_spoken_at_a_time() -> None:
    ears = hearing()
    ears.start(0, 0, EPOCH, answer=True)
    with pytest.raises(AssertionError, match="one turn"):
        ears.start(0, 0, EPOCH, answer=True)


# ---- transcripts -----------------------------------------------------------------------------------


def test_a_final_transcript_settles_its_turn_once() -> None:
    ears = hearing()
    waiting = spoken(ears, now_ns=1_000_000_000)
    effects, understood = ears.transcript(waiting, final("hello"), 1_250_000_000)
    assert effects == [Tell(CallerText("item_1", "hello", final=True)), Measured("encoder_wait_seconds", 0.25)]
    assert isinstance(understood, Understood)
    assert (understood.turn.item, understood.text) == ("item_1", "hello")
    assert understood.turn.phase is TurnPhase.GONE
    assert not ears.is_awaited
    assert ears.transcript(waiting, final("hello"), 1_300_000_000) == ([], None)


def test_guesses_settle_nothing() -> None:
    ears = hearing()
    waiting = spoken(ears)
    assert ears.transcript(waiting, Transcript("hel", 0), 0) == ([], None)
    assert ears.transcript(waiting, Transcript("hello", 0, settled=True), 0) == ([], None)
    assert ears.is_awaited


def test_transcripts_may_come_in_any_order() -> None:
    ears = hearing()
    first, second = spoken(ears), spoken(ears)
    _, understood = ears.transcript(second, final("two"), 0)
    assert understood is not None
    assert understood.turn.item == "item_2"
    assert ears.is_awaited
    _, understood = ears.transcript(first, final("one"), 0)
    assert understood is not None
    assert understood.turn.item == "item_1"


def test_a_turn_of_an_earlier_owner_with_the_same_number_is_stale() -> None:
    ears = hearing()
    spoken(ears)
    stale = Tag("sess", EPOCH - 1, 1)
    assert ears.transcript(stale, final("before"), 0) == ([], None)
    assert ears.failed(stale, "code", "message") == []
    assert ears.is_awaited


# ---- failures --------------------------------------------------------------------------------------


def test_a_turn_whose_words_are_lost_is_told_and_given_up() -> None:
    ears = hearing()
    waiting = spoken(ears)
    effects = ears.failed(waiting, "oom", "no memory")
    assert effects == [StopHearing(waiting), Tell(CallerTextFailed("item_1", "oom", "no memory"))]
    assert not ears.is_awaited
    assert [turn.item for turn in ears.take_failed()] == ["item_1"]
    assert ears.take_failed() == []
    assert ears.failed(waiting, "oom", "no memory") == []


def test_a_turn_that_is_lost_while_it_is_spoken_goes_on_to_its_end() -> None:
    ears = hearing()
    ears.start(16_000, 11_200, EPOCH, answer=True)
    assert ears.failed(tag(1), "oom", "no memory") == [StopHearing(tag(1))]
    assert ears.take_failed() == []
    assert ears.current is not None
    assert ears.current.lost == ("oom", "no memory")
    ears.end(32_000, 0, 0, None)
    assert told(ears.failed(tag(1), "oom", "no memory"), CallerTextFailed) != []


def test_an_overdue_transcript_is_given_up() -> None:
    ears = hearing()
    first = spoken(ears, now_ns=100)
    spoken(ears, now_ns=200)
    assert ears.next_deadline_ns() == 100 + TRANSCRIPT_NS_MAX
    assert ears.tick(99 + TRANSCRIPT_NS_MAX) == []
    effects = ears.tick(100 + TRANSCRIPT_NS_MAX)
    assert kinds(effects) == ["StopHearing", "CallerTextFailed", "CancelStream"]
    assert told(effects, CallerTextFailed)[0].code == "transcript_timeout"
    assert of(effects, CancelStream)[0].tag == first
    assert ears.next_deadline_ns() == 200 + TRANSCRIPT_NS_MAX


def test_an_encoder_that_has_let_go_is_waited_for_a_little_longer() -> None:
    ears = hearing()
    first, second = spoken(ears, now_ns=100), spoken(ears, now_ns=200)
    ears.let_go(first, 1_000)
    ears.let_go(tag(9), 1_000)
    ears.let_go(structs.replace(second, attempt=1), 1_000)
    assert ears.next_deadline_ns() == 1_000 + LATE_NS_MAX
    effects, understood = ears.transcript(first, Transcript("late", 1, settled=True, final=True), 1_500)
    assert understood is not None
    assert understood.text == "late"
    assert told(effects, CallerText) == [CallerText("item_1", "late", final=True)]
    assert ears.next_deadline_ns() == 200 + TRANSCRIPT_NS_MAX
    ears.let_go(second, 2_000)
    assert ears.tick(1_999 + LATE_NS_MAX) == []
    assert told(ears.tick(2_000 + LATE_NS_MAX), CallerTextFailed)[0].code == "transcript_timeout"
    assert not ears.is_awaited


def test_who_lets_go_shortly_before_the_timeout_gains_no_time() -> None:
    ears = hearing()
    only = spoken(ears, now_ns=100)
    ears.let_go(only, 100 + TRANSCRIPT_NS_MAX - 1)
    assert ears.next_deadline_ns() == 100 + TRANSCRIPT_NS_MAX


def test_more_turns_than_can_be_heard_push_out_the_oldest() -> None:
    ears = hearing()
    turns = [spoken(ears) for _ in range(AWAITING_MAX)]
    ears.start(16_000, 11_200, EPOCH, answer=True)
    effects = ears.end(32_000, 0, 0, None)
    assert told(effects, CallerTextFailed) == [
        CallerTextFailed("item_1", "transcript_overload", "more turns came than could be heard")
    ]
    assert of(effects, CancelStream)[0].tag == turns[0]
    assert [turn.item for turn in ears.take_failed()] == ["item_1"]
    assert ears.transcript(turns[0], final("late"), 0) == ([], None)
    assert ears.transcript(turns[1], final("in time"), 0)[1] is not None


# ---- an encoder that comes back --------------------------------------------------------------------


def test_another_encoder_hears_each_lost_turn_again() -> None:
    ears = hearing()
    waiting = spoken(ears)
    ears.start(48_000, 43_200, EPOCH, answer=True)
    again = structs.replace(waiting, attempt=1)
    assert ears.lost(waiting, 0) == [
        OpenStream("encoder", again, OPENED),
        HearFrom(again, 11_200, 32_000),
        FeedStream("encoder", again, EndOfTurn(32_000)),
    ]
    current = structs.replace(tag(2), attempt=1)
    assert ears.lost(tag(2), 0) == [OpenStream("encoder", current, OPENED), HearFrom(current, 43_200)]
    assert ears.transcript(waiting, final("from the dead"), 0) == ([], None)
    _, understood = ears.transcript(again, final("every word"), 0)
    assert understood is not None
    assert understood.text == "every word"
    assert ears.pause(50_000) == [FeedStream("encoder", current, Pause(50_000))]


def test_a_turn_of_which_a_second_encoder_dies_is_given_up() -> None:
    ears = hearing()
    waiting = spoken(ears)
    ears.lost(waiting, 0)
    again = structs.replace(waiting, attempt=1)
    effects = ears.lost(again, 0)
    assert told(effects, CallerTextFailed)[0].code == "stage_lost"
    assert not ears.is_awaited


@pytest.mark.parametrize("ended", [True, False])
def test_a_turn_whose_beginning_is_not_kept_any_more_is_not_heard_again(ended: bool) -> None:
    ears = hearing()
    ears.start(16_000, 11_200, EPOCH, answer=True)
    if ended:
        ears.end(400_000, 0, 0, None)
    effects = ears.lost(tag(1), 11_201)
    assert of(effects, OpenStream) == []
    if not ended:
        assert told(effects, CallerTextFailed) == [], "it is told of when the turn ends"
        ears.end(400_000, 0, 0, None)
        effects = ears.failed(tag(1), "input_lost", "")
    assert [failed.code for failed in told(effects, CallerTextFailed)] == ["input_lost"]


def test_a_stream_of_no_turn_is_no_loss() -> None:
    assert hearing().lost(tag(1), 0) == []


# ---- sound that waits for its client's commit ---------------------------------------------------------

UNREAD = EncoderOptions(partials=False)


def test_what_is_buffered_is_heard_as_it_comes_and_nobody_waits_for_its_end() -> None:
    ears = hearing()
    assert ears.buffer(100, 612, EPOCH) == [OpenStream("encoder", tag(1), UNREAD), HearFrom(tag(1), 100)]
    assert ears.buffer(100, 1_124, EPOCH) == []
    assert (ears.current, ears.amid_speech) == (None, None)
    turn = ears.take_up()
    assert turn is not None
    assert (ears.current, turn.tag) == (turn, tag(1))
    assert ears.buffered is None
    assert told(ears.end(1_500, 0, 0, None), InputCommitted) == [InputCommitted("item_1", None)]


def test_a_buffer_that_is_full_says_so_once_and_keeps_its_beginning() -> None:
    ears = hearing()
    ears.buffer(100, 612, EPOCH)
    full = 100 + BUFFER_SAMPLES_MAX
    assert ears.buffer(100, full, EPOCH) == []
    effects = ears.buffer(100, full + 512, EPOCH)
    assert effects[:-1] == [StopHearing(tag(1), full + 512)]
    assert (told(effects, CommandRefused)[0].code, told(effects, CommandRefused)[0].param) == (BUFFER_FULL, "audio")
    assert "10 minutes" in told(effects, CommandRefused)[0].message
    assert ears.buffer(100, full + 1_024, EPOCH) == []
    ears.take_up()
    assert FeedStream("encoder", tag(1), EndOfTurn(full + 512)) in ears.end(full + 99_000, 0, 0, None)
    assert ears.buffer(full + 99_000, full + 99_512, EPOCH)[-1] == HearFrom(tag(2), full + 99_000)


def test_what_is_buffered_can_be_thrown_away() -> None:
    ears = hearing()
    ears.buffer(0, 512, EPOCH)
    assert ears.discard() == [StopHearing(tag(1)), CancelStream("encoder", tag(1))]
    assert ears.discard() == []
    assert ears.take_up() is None


@pytest.mark.parametrize("paused", [True, False])
def test_what_is_being_said_can_be_set_aside(paused: bool) -> None:
    ears = hearing()
    assert ears.set_aside() == []
    ears.start(16_000, 11_200, EPOCH, answer=True, provisional=True)
    if paused:
        ears.pause(20_000)
    assert ears.set_aside() == ([FeedStream("encoder", tag(1), SpeechResumed())] if paused else [])
    assert ears.current is None
    assert ears.buffered is not None
    assert (ears.buffered.tag, ears.buffered.provisional) == (tag(1), False)
    assert ears.buffer(11_200, 20_480, EPOCH) == [], "it goes on"


def test_an_encoder_that_loses_what_is_buffered_is_replaced() -> None:
    ears = hearing()
    ears.buffer(100, 612, EPOCH)
    again = structs.replace(tag(1), attempt=1)
    assert ears.lost(tag(1), 100) == [OpenStream("encoder", again, UNREAD), HearFrom(again, 100)]
    assert ears.failed(again, "oom", "no memory") == [StopHearing(again)]
    assert ears.buffered is not None
    assert ears.buffered.lost == ("oom", "no memory")


# ---- any order of events ---------------------------------------------------------------------------


class HearingMachine(RuleBasedStateMachine):
    """Whatever a caller, a client and an encoder may do, every turn leaves exactly once."""

    def __init__(self) -> None:
        super().__init__()
        self.ears = hearing()
        self.now_ns = 0
        self.began: dict[int, Tag] = {}
        self.left: list[int] = []
        self.committed: list[str] = []
        self.answers: list[str] = []

    def take(self, effects: list[Effect]) -> None:
        self.answers += [event.item for event in told(effects, CallerText)]
        self.answers += [event.item for event in told(effects, CallerTextFailed)]
        self.committed += [event.item for event in told(effects, InputCommitted)]
        self.left += [turn.tag.turn for turn in self.ears.take_failed()]

    @precondition(lambda self: self.ears.current is None)
    @rule()
    def start(self) -> None:
        self.take(self.ears.start(0, 0, EPOCH, answer=True))
        assert self.ears.current is not None
        self.began[self.ears.current.tag.turn] = self.ears.current.tag

    @precondition(lambda self: self.ears.current is not None)
    @rule()
    def pause_or_resume(self) -> None:
        assert self.ears.current is not None
        self.take(self.ears.resume() if self.ears.current.is_paused else self.ears.pause(0))

    @precondition(lambda self: self.ears.current is not None)
    @rule()
    def end(self) -> None:
        self.take(self.ears.end(0, self.now_ns, self.now_ns, None))

    @precondition(lambda self: self.ears.current is not None)
    @rule()
    def discard(self) -> None:
        assert self.ears.current is not None
        self.left.append(self.ears.current.tag.turn)
        self.take(self.ears.discard())

    @precondition(lambda self: bool(self.began))
    @rule(data=st.data(), text=st.sampled_from(["", "words"]))
    def understand(self, data: st.DataObject, text: str) -> None:
        turn = data.draw(st.sampled_from(sorted(self.began)))
        effects, understood = self.ears.transcript(self.began[turn], final(text), self.now_ns)
        if understood is not None:
            self.left.append(turn)
        self.take(effects)

    @precondition(lambda self: bool(self.began))
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        turn = data.draw(st.sampled_from(sorted(self.began)))
        self.take(self.ears.failed(self.began[turn], "code", "message"))

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds: int) -> None:
        self.now_ns += seconds * 1_000_000_000
        self.take(self.ears.tick(self.now_ns))

    @invariant()
    def every_turn_leaves_at_most_once(self) -> None:
        assert len(set(self.left)) == len(self.left)

    @invariant()
    def a_committed_turn_is_awaited_or_was_answered_once(self) -> None:
        assert len(set(self.answers)) == len(self.answers)
        assert set(self.answers) <= set(self.committed)
        waiting = set(self.committed) - set(self.answers)
        assert len(waiting) <= AWAITING_MAX
        assert self.ears.is_awaited == bool(waiting)

    @invariant()
    def what_is_awaited_has_a_deadline(self) -> None:
        due_ns = self.ears.next_deadline_ns()
        assert (due_ns is not None) == self.ears.is_awaited
        assert due_ns is None or self.now_ns < due_ns <= self.now_ns + TRANSCRIPT_NS_MAX


HearingMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyOrder = pytest.mark.slow(HearingMachine.TestCase)
