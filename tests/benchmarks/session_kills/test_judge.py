"""A conversation against its history: each promise is found broken where it is, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.session_kills.judge import CallTold, Kept, ReplyHeard, effects_in_no_history, judge
from loadtest.coded_ear import WordHeard
from media.coded_tones import EDGE_SAMPLES, WORD

ASK, ANSWER = Kept("u1", "typed", "user", "Turn 1."), Kept("a1", "message", "assistant", "one two three")
CALL, OUTPUT = Kept("c1", "function_call", call_id="call"), Kept("o1", "function_call_output", call_id="call")
THEN = Kept("a2", "message", "assistant", "It is booked.")
MORE = Kept("u2", "typed", "user", "Turn 2.")


def words(*numbers: int, lost: int = 0, repeated: int = 0) -> tuple[WordHeard, ...]:
    return tuple(WordHeard(7, number, place * WORD, lost, repeated) for place, number in enumerate(numbers))


def call(*history: Kept, heard: tuple[WordHeard, ...] = (), stale: int = 0, gapless: bool = False) -> CallTold:
    replies = (ReplyHeard("a1", heard, stale, gapless=gapless),)
    return CallTold(("u1",), frozenset({"u1"}), replies, history or (ASK, ANSWER))


def faults(told: CallTold, asked: tuple[str, ...] = ()) -> dict[str, int]:
    return dict(judge(told, asked).faults)


def test_what_was_heard_and_is_in_history_is_right() -> None:
    found = judge(call(ASK, ANSWER, MORE, heard=words(0, 1, 2)), ())
    assert (found.faults, found.turns, found.words_heard, found.possibly_heard, found.told_lost) == ({}, 2, 3, 0, 0)


def test_words_that_are_marked_are_accounted_for_and_counted() -> None:
    marked = replace(ANSWER, text="one", possibly_heard="two three four")
    found = judge(call(ASK, marked, heard=words(0, 1, 2)), ())
    assert (found.faults, found.possibly_heard) == ({}, 3)


@pytest.mark.parametrize(("history", "missing"), [((ASK, ANSWER), 1), ((ASK,), 4)])
def test_words_beyond_history_are_in_none(history: tuple[Kept, ...], missing: int) -> None:
    assert faults(call(*history, heard=words(0, 1, 2, 3))) == {"words in no history": missing}


def test_a_word_that_broke_off_was_not_heard() -> None:
    heard = (*words(0, 1, 2), *words(3, lost=EDGE_SAMPLES + 1))
    assert faults(call(heard=heard)) == {}


@pytest.mark.parametrize("heard", [words(0, 2), words(1, 0), words(0, 1, repeated=480)])
def test_words_twice_or_with_a_gap(heard: tuple[WordHeard, ...]) -> None:
    assert faults(call(heard=heard)) == {"heard twice or with a gap": 1}


@pytest.mark.parametrize(("heard", "broken"), [(words(0, 2), 0), (words(1, 0), 1), (words(0, 1, repeated=480), 1)])
def test_where_all_came_without_a_gap_a_word_may_be_torn_and_none_is_heard_twice(
    heard: tuple[WordHeard, ...], broken: int
) -> None:
    assert faults(call(heard=heard, gapless=True)).get("heard twice or with a gap", 0) == broken


def test_what_the_store_had_stays_and_what_it_had_not_was_not_promised() -> None:
    told = replace(call(MORE), told=("u1", "u2"))
    lost = judge(told, ())
    assert (lost.faults, lost.told_lost) == ({"checkpoints lost": 1}, 0)
    unstored = judge(replace(told, checkpoints=frozenset()), ())
    assert (unstored.faults, unstored.told_lost) == ({}, 1)


def test_items_keep_their_order() -> None:
    told = replace(call(MORE, ASK, ANSWER), told=("u1", "u2"))
    assert faults(told) == {"out of order": 1}


@pytest.mark.parametrize(
    "history",
    [
        (ASK, ANSWER, replace(ASK, id="u3")),
        (ASK, ANSWER, replace(ANSWER, id="a3")),
        (ASK, ANSWER, ANSWER, MORE),
    ],
    ids=["typed", "answered", "the same item"],
)
def test_duplicate_turns(history: tuple[Kept, ...]) -> None:
    assert faults(call(*history))["duplicate turns"] >= 1


def test_spoken_words_may_be_said_again() -> None:
    spoken = Kept("s1", "message", "user", "heard0")
    assert faults(call(ASK, ANSWER, spoken, THEN, replace(spoken, id="s2"))) == {}


def test_a_call_allows_one_more_answer_and_is_asked_for_once() -> None:
    history = (ASK, CALL, OUTPUT, ANSWER, THEN)
    assert faults(call(*history), ("call", "another")) == {}
    assert faults(call(ASK, CALL, OUTPUT, MORE, ANSWER, THEN)) == {}, "also behind the next turn"
    assert faults(call(*history, replace(THEN, id="a3"))) == {"duplicate turns": 1}
    assert faults(call(*history), ("call", "call")) == {"repeated side effects": 1}
    assert faults(call(ASK, CALL)) == {"calls without outcome": 1}


def test_an_effect_that_no_conversation_knows_of() -> None:
    assert effects_in_no_history([(ASK, CALL), (MORE,)], ["call", "call", "lost"]) == 1


def test_stale_samples_are_counted() -> None:
    assert faults(call(stale=480)) == {"stale samples": 480}
