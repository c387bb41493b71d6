"""A reply: its text as it grew, and the words that were whole by a sample."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.reply import WORDS_MAX, Reply, SpokenWord, Unsure
from sessions.settings import OUTPUT_RATE
from stages.contracts import Word, WordTimes


def times(*words: Word, rate: int = OUTPUT_RATE, clause: int = 0) -> WordTimes:
    return WordTimes(clause, rate, words)


def test_deltas_are_joined_as_they_came() -> None:
    reply = Reply()
    assert (reply.raw_text, reply.text) == ("", "")
    for delta in (" Hello", ",", " you "):
        reply.add_text(delta)
    assert reply.raw_text == " Hello, you "
    assert reply.text == "Hello, you"


def test_a_word_counts_once_its_last_sample_is_in() -> None:
    reply = Reply()
    reply.add_words(times(Word("one", 0, 2400), Word("two", 2400, 4800)))
    said = [reply.text_until(sample) for sample in (0, 2399, 2400, 4799, 4800, 10**9)]
    assert said == ["", "", "one", "one", "one two", "one two"]


def test_times_are_brought_to_the_output_rate_rounded_down() -> None:
    reply = Reply()
    reply.add_words(times(Word("one", 0, 1), rate=22_050))  # 1 * 24000 / 22050 = 1.08…
    assert (reply.text_until(0), reply.text_until(1)) == ("", "one")
    reply.add_words(times(Word("two", 1, 3), rate=100, clause=1))
    assert (reply.text_until(719), reply.text_until(720)) == ("one", "one two")


def test_clauses_follow_each_other() -> None:
    reply = Reply()
    reply.add_words(times(Word("one", 0, 100)))
    reply.add_words(times(clause=1))
    reply.add_words(times(Word("two", 100, 200), clause=2))
    assert reply.text_until(200) == "one two"


def test_words_are_taken_once() -> None:
    reply = Reply()
    assert reply.take_words() == ()
    reply.add_words(times(Word("one", 0, 100), Word("two", 100, 200)))
    assert reply.take_words() == (SpokenWord("one", 0, 100), SpokenWord("two", 100, 200))
    reply.add_words(times(Word("three", 200, 300), clause=1))
    assert reply.take_words() == (SpokenWord("three", 200, 300),)
    assert reply.take_words() == ()


def test_words_stand_at_the_rate_of_the_reply_and_err_low() -> None:
    reply = Reply(8_000)
    reply.add_words(WordTimes(0, 24_000, (Word("one", 0, 301), Word("two", 302, 600))))
    assert reply.take_words() == (SpokenWord("one", 0, 100), SpokenWord("two", 100, 200))


def test_words_beyond_the_bound_count_as_never_said() -> None:
    reply = Reply()
    for clause in range(2):
        reply.add_words(times(*(Word(f"w{clause}", at, at + 1) for at in range(WORDS_MAX - 1)), clause=clause))
    words = reply.text_until(10**9).split()
    assert len(words) == WORDS_MAX
    assert words[-2:] == ["w0", "w1"]


@given(st.lists(st.integers(1, 9_000), min_size=1, max_size=30), st.data())
def test_pipecat_3627_what_was_said_is_a_prefix_of_the_words_and_grows_with_the_samples(
    lengths: list[int], data: st.DataObject
) -> None:
    reply, ends, end = Reply(), list[int](), 0
    for number, length in enumerate(lengths):
        reply.add_words(times(Word(f"w{number}", end, end + length), clause=number))
        end += length
        ends.append(end)
    cut = data.draw(st.integers(0, end + 10))
    whole = sum(word_end <= cut for word_end in ends)
    assert reply.text_until(cut) == " ".join(f"w{number}" for number in range(whole))


@pytest.mark.parametrize(
    ("deltas", "said", "rest"),
    [
        ("", "", ""),
        ("", "one two", "one two"),
        ("one", "one two", " two"),
        (" one ", "one two", "two"),
        ("one t", "one two", "wo"),
        ("one two three", "one two", ""),
        ("One, two", "one two", ""),
    ],
)
def test_what_deltas_lack_of_what_was_said(deltas: str, said: str, rest: str) -> None:
    reply = Reply()
    reply.add_text(deltas)
    assert reply.rest_of(said) == rest


def test_aligned_words_replace_all_others_and_are_not_replaced() -> None:
    reply = Reply()
    reply.add_words(times(Word("one", 0, 100), Word("two", 100, 200)))
    reply.add_words(WordTimes(0, OUTPUT_RATE, (Word("one", 0, 150),), "aligned"))
    assert (reply.text_until(149), reply.text_until(10**9)) == ("", "one")
    assert reply.take_words() == ()
    reply.add_words(times(Word("three", 200, 300), clause=1))
    assert reply.text_until(10**9) == "one"


def test_what_has_no_place_in_the_sound_yet_is_untimed() -> None:
    reply = Reply()
    reply.add_text(" one two  three")
    assert (reply.untimed, reply.words, reply.is_aligned) == ("one two three", (), False)
    reply.add_words(times(Word("one", 0, 10)))
    assert (reply.untimed, reply.words) == ("two three", (SpokenWord("one", 0, 10),))
    reply.add_words(WordTimes(0, OUTPUT_RATE, (Word("one", 0, 9),), "aligned"))
    assert (reply.untimed, reply.is_aligned) == ("", True)


def test_what_is_left_of_a_reply_is_a_reply() -> None:
    unsure = Unsure("resp", (SpokenWord("one", 0, 10), SpokenWord("two", 10, 20)), "and three")
    reply = Reply.of(unsure, 8_000)
    assert (reply.text, reply.words, reply.sample_rate) == ("one two and three", unsure.words, 8_000)
    assert [unsure.beyond(sample) for sample in (0, 9, 10, 20)] == [
        "one two and three",
        "one two and three",
        "two and three",
        "and three",
    ]
    assert Unsure("resp", unsure.words).beyond(20) == ""
