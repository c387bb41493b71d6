"""How far the caller's words are known: what is told of it, and what a log makes of that."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from sessions.effects import SaveDeletion
from sessions.hearing import Hearing
from sessions.items import InputSpan
from sessions.log import Log, compact, replay
from sessions.records import (
    Conversation,
    InputTaken,
    ItemAppended,
    ItemChanged,
    ItemDeleted,
    ItemRecord,
    SessionRecord,
    TurnRecord,
    decode_entry,
    encode_entry,
    token_digest,
)
from sessions.settings import INPUT_RATE
from sessions.taken_input import STEP_SAMPLES, UNNOTICED_SAMPLES, TakenInput
from stages.contracts import Tag, Transcript
from tests.sessions.talk import Talk, of

SECOND = INPUT_RATE
RECORD = SessionRecord("sess_1", "acme", 0, b"{}", token_digest("secret"))
FINAL = Transcript("Hello.", 0, settled=True, final=True)


def ears(input_from: int = 0) -> Hearing:
    ids = count(1)
    return Hearing("sess", "encoder", lambda: f"item_{next(ids)}", input_from)


def spoken(hearing: Hearing, onset: int, end: int, *, padding: int = SECOND // 4) -> None:
    hearing.start(onset, onset - padding, 5, answer=True)
    hearing.tell_started()
    hearing.end(end, 0, 0, None)


# ---- what is told ---------------------------------------------------------------------------------------------


def test_a_silent_caller_is_told_of_in_steps_and_less_than_has_come() -> None:
    taken = TakenInput(ears())
    assert taken.due(STEP_SAMPLES + UNNOTICED_SAMPLES - 1) is None
    assert taken.due(STEP_SAMPLES + UNNOTICED_SAMPLES) == STEP_SAMPLES
    assert taken.due(STEP_SAMPLES + UNNOTICED_SAMPLES) is None, "once"
    assert taken.last(STEP_SAMPLES + UNNOTICED_SAMPLES + 10) == STEP_SAMPLES + 10
    assert taken.last(0) is None, "it never goes back"


def test_nothing_behind_the_first_turn_without_words_is_taken() -> None:
    hearing = ears()
    taken = TakenInput(hearing)
    spoken(hearing, 10 * SECOND, 12 * SECOND)
    spoken(hearing, 14 * SECOND, 15 * SECOND)
    assert taken.due(60 * SECOND) == 10 * SECOND - SECOND // 4
    hearing.transcript(Tag("sess", 5, 1), FINAL, 0)
    assert taken.last(60 * SECOND) == 14 * SECOND - SECOND // 4
    hearing.transcript(Tag("sess", 5, 2), FINAL, 0)
    assert taken.last(16 * SECOND) == 15 * SECOND, "the end of a turn counts, though it has just come"


def test_what_is_spoken_or_buffered_is_not_taken() -> None:
    hearing = ears()
    taken = TakenInput(hearing)
    hearing.start(20 * SECOND, 19 * SECOND, 5, answer=True)
    assert taken.last(30 * SECOND) == 19 * SECOND
    hearing.discard()
    hearing.buffer(25 * SECOND, 26 * SECOND, 5)
    assert taken.dismissed(30 * SECOND) == 25 * SECOND
    hearing.discard()
    assert taken.dismissed(30 * SECOND) == 30 * SECOND, "its client wants none of it"


def test_a_turn_has_nothing_of_the_one_before() -> None:
    hearing = ears(SECOND)
    spoken(hearing, 2 * SECOND, 4 * SECOND, padding=2 * SECOND)
    assert hearing.settled_until(9 * SECOND) == SECOND, "nor of what was known before"
    hearing.start(4 * SECOND + 10, 3 * SECOND, 5, answer=True)
    assert hearing.current is not None
    assert hearing.current.own_from == 4 * SECOND


# ---- what a log makes of it -----------------------------------------------------------------------------------


def turn(name: str, start: int, end: int, words: str = "", previous: str | None = None) -> ItemRecord:
    return ItemRecord(name, "user", content=words, name="spoken", previous=previous, span=(start, end))


def taken_of(*entries: TurnRecord) -> int:
    stored = [decode_entry(encode_entry(entry)) for entry in entries]
    return replay(RECORD, stored).input_taken


ENDED, UNDERSTOOD = ItemAppended(turn("a", 100, 200)), ItemChanged(turn("a", 100, 200, "Hi."))


def test_a_log_without_places_knows_nothing() -> None:
    assert taken_of(ItemAppended(ItemRecord("a", "user", content="Hi."))) == 0


def test_a_turn_is_heard_again_from_its_beginning_until_its_words_are_stored() -> None:
    assert taken_of(ENDED) == 100
    assert taken_of(ENDED, UNDERSTOOD) == 200
    assert taken_of(ENDED, ItemDeleted("a")) == 200, "nothing was said in it"
    assert taken_of(ENDED, UNDERSTOOD, ItemDeleted("a")) == 200, "whoever deletes it does not want it said again"


def test_a_turn_that_is_understood_before_an_earlier_one_hides_nothing_of_that() -> None:
    later = turn("b", 300, 400, "Yes.", "a")
    assert taken_of(ENDED, ItemAppended(later)) == 100
    assert taken_of(ENDED, ItemAppended(later), UNDERSTOOD) == 400


def test_what_was_given_up_is_not_waited_for() -> None:
    assert taken_of(ENDED, InputTaken(250)) == 250
    assert taken_of(InputTaken(250), InputTaken(90)) == 250


@given(st.integers(0, 6), st.integers(0, 6))
def test_a_compaction_changes_nothing_of_it(place: int, kept: int) -> None:
    later = turn("b", 300, 400, "", "a")
    entries: list[TurnRecord] = [
        ENDED,
        InputTaken(50),
        ItemAppended(later),
        UNDERSTOOD,
        InputTaken(300),
        ItemChanged(turn("b", 300, 400, "Yes.", "a")),
    ]
    entries = entries[:kept] if kept > place else entries
    log = Log(Conversation((), RECORD.config, RECORD.epoch))
    for entry in entries[:place]:
        log.apply(entry)
    assert taken_of(compact(log.conversation()), *entries[place:]) == taken_of(*entries)


# ---- heard again ----------------------------------------------------------------------------------------------


def test_turns_that_are_said_again_leave_and_no_other() -> None:
    talk = Talk()
    talk.core.speech_started(5_000, 0)
    talk.core.speech_ended(20_000, 0, 0)
    (item,) = talk.core.items
    assert item.span == InputSpan(200, 20_000)
    assert talk.core.heard_again(201) == []
    assert [effect.item for effect in of(talk.core.heard_again(200), SaveDeletion)] == [item.id]
    assert talk.core.items == ()
