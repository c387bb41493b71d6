"""Clauses end where speech may pause, early for the first one, and the text is neither lost nor changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.clauses import ClauseLimits, ClauseSplitter, Reply, SentenceLimit, boundary_after
from stages.stream import Emit
from tests.stages.reply_bench import clauses_of, deltas_of


def split(text: str, limits: ClauseLimits | None = None) -> list[str]:
    splitter = ClauseSplitter(limits)
    clauses = splitter.feed(text)
    rest = splitter.finish()
    return [*clauses, rest] if rest else clauses


@pytest.mark.parametrize(
    ("fragment", "boundary"),
    [
        ("Hello.", "stop"),
        ("Really?!", "stop"),
        ('She said "no."', "stop"),
        ("Well…", "stop"),
        ("Yes,", "comma"),
        ("as follows:", "comma"),
        ("wait —", "comma"),
        ("and", "none"),
        ("", "none"),
        ('"', "none"),
        ("1.", "none"),
        ("- 3,", "none"),
        ("ask Mr.", "none"),
        ("(Dr.", "none"),
        ("e.g.", "none"),
        ("at 10 p.m.", "none"),
        ("the U.S.", "none"),
        ("J.", "none"),
        ("So do I.", "stop"),
        ("in 1999.", "stop"),
    ],
)
def test_boundary(fragment: str, boundary: str) -> None:
    assert boundary_after(fragment) == boundary


def test_the_first_clause_ends_at_its_first_comma() -> None:
    assert split("Well, that is fine.") == ["Well,", " that is fine."]


def test_a_first_clause_without_a_stop_is_cut_after_six_words() -> None:
    assert split("one two three four five six seven eight") == ["one two three four five six", " seven eight"]


def test_a_later_clause_keeps_short_lists_together() -> None:
    assert split("Sure. Red, green, blue, and so on.") == ["Sure.", " Red, green, blue,", " and so on."]


def test_a_later_clause_is_cut_after_fourteen_words() -> None:
    words = " ".join(f"w{n}" for n in range(20))
    assert split(f"Sure. {words}")[1].split() == [f"w{n}" for n in range(14)]


def test_a_later_clause_is_cut_before_120_characters() -> None:
    word = "x" * 30
    assert [len(clause) for clause in split(f"Sure. {' '.join([word] * 6)}")] == [5, 93, 93]


def test_a_long_word_is_whole_up_to_its_limit() -> None:
    url = "https://example.com/" + "a" * 110
    assert split(f"See {url} now") == ["See", f" {url}", " now"]
    assert [len(clause) for clause in split("a" * 380)] == [140, 140, 100]


def test_numbers_times_addresses_and_abbreviations_stay_whole() -> None:
    text = "Mr. Lee paid $1,234.50 at 10:30 on www.example.com today. Good."
    assert split(text) == ["Mr. Lee paid $1,234.50 at 10:30", " on www.example.com today.", " Good."]


def test_a_line_ends_a_clause_also_after_blanks() -> None:
    assert split("One \n two\nthree") == ["One", " \n two", "\nthree"]
    assert split("\n\n One") == ["One"]
    assert split("One.\n\nTwo.") == ["One.", "\n\nTwo."]


def test_an_empty_text_has_no_clause() -> None:
    assert split(" \n ") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"first_words_max": 0},
        {"first_words_max": 20},
        {"comma_words_min": 0},
        {"chars_max": 1},
        {"chars_max": 500},
    ],
)
def test_senseless_limits_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a clause needs"):
        ClauseLimits(**changes)


PROSE = st.lists(
    st.sampled_from(["Hi", "Mr.", "e.g.", "3.5", "a" * 50, "b" * 130, ",", ". ", " ", "\n", "  ", '"', "?", "é", "I."])
).map("".join)


def test_of_a_long_run_of_white_space_only_the_beginning_is_kept() -> None:
    assert split("one two" + " " * 600 + "three") == ["one two" + " " * 16 + "three"]


SMALL = ClauseLimits(first_words_max=2, words_max=3, chars_max=20, word_chars_max=60)


def chunks_of(text: str, sizes: list[int]) -> list[str]:
    chunks, at = [], 0
    for size in sizes:
        chunks.append(text[at : at + size])
        at += size
    return [*chunks, text[at:]]


@given(PROSE, st.lists(st.integers(0, 7), max_size=40), st.sampled_from([SMALL, ClauseLimits()]))
def test_chunking_changes_nothing_and_nothing_is_lost(text: str, sizes: list[int], limits: ClauseLimits) -> None:
    splitter = ClauseSplitter(limits)
    clauses = [clause for chunk in chunks_of(text, sizes) for clause in splitter.feed(chunk)]
    rest = splitter.finish()
    clauses += [rest] if rest else []
    assert clauses == split(text, limits)
    assert "".join(clauses) == text.strip()
    assert all(clause.strip() for clause in clauses)


@given(PROSE)
def test_a_clause_keeps_its_limits(text: str) -> None:
    for index, clause in enumerate(split(text, SMALL)):
        assert len(clause.split()) <= (SMALL.words_max if index else SMALL.first_words_max)
        assert len(clause.strip()) <= SMALL.word_chars_max
        assert len(clause.split()) == 1 or len(clause) <= SMALL.chars_max


def test_sentences_are_counted_at_the_white_space_after_them() -> None:
    limit = SentenceLimit(2)
    admitted = [(limit.admit(text), limit.reached) for text in ("It is 3.5. Mr. Lee", " knows. More", "still more")]
    assert admitted == [("It is 3.5. Mr. Lee", False), (" knows. ", True), ("", True)]


def test_a_line_is_a_sentence_but_an_empty_one_is_not() -> None:
    limit = SentenceLimit(2)
    assert limit.admit("First\n\n\nSecond\nThird") == "First\n\n\nSecond\n"


def test_no_sentences_make_no_reply() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SentenceLimit(0)


def test_a_reply_publishes_text_and_hands_on_clauses() -> None:
    reply = Reply(ClauseLimits(), sentences_max=2)
    pieces = [" Sure", ",", " I can", ". ", "\n", "It is", " done. And", " more"]
    outputs = [output for piece in pieces for output in reply.feed(piece)]
    assert reply.ended
    outputs += reply.finish()
    assert deltas_of(outputs) == ["Sure", ",", " I can", ".", " \nIt is", " done."]
    assert reply.text == "Sure, I can. \nIt is done."
    assert [(c.index, c.text, c.final) for c in clauses_of(outputs)] == [
        (0, "Sure,", False),
        (1, " I can.", False),
        (2, " \nIt is done.", True),
    ]


def test_an_empty_reply_has_an_empty_final_clause() -> None:
    reply = Reply(ClauseLimits(), sentences_max=1)
    assert reply.feed(" ") == []
    (clause,) = clauses_of(reply.finish())
    assert (clause.index, clause.text, clause.final, reply.text) == (0, "", True, "")


@given(PROSE, st.lists(st.integers(0, 7), max_size=40), st.integers(1, 3))
def test_a_reply_does_not_depend_on_its_pieces(text: str, sizes: list[int], sentences_max: int) -> None:
    replies = []
    for pieces in ([text], chunks_of(text, sizes)):
        reply = Reply(ClauseLimits(), sentences_max)
        outputs = [output for piece in pieces for output in reply.feed(piece)]
        outputs += reply.finish()
        assert "".join(deltas_of(outputs)) == reply.text
        assert "".join(clause.text for clause in clauses_of(outputs)) == reply.text
        replies.append((reply.text, [clause.text for clause in clauses_of(outputs)], reply.ended))
    assert replies[0] == replies[1]
    assert replies[0][0] == replies[0][0].strip()


def test_words_that_are_over_are_finished_once() -> None:
    reply = Reply(ClauseLimits(), sentences_max=1)
    reply.feed("Let me see")
    assert [(clause.text, clause.final) for clause in clauses_of(reply.finish())] == [("Let me see", True)]
    assert reply.finish() == []


def test_words_that_bridge_a_wait_come_first_and_are_no_part_of_the_text() -> None:
    reply = Reply(ClauseLimits(), 1)
    outputs = [*reply.interject("One moment, please."), *reply.feed("It is ten. "), *reply.finish()]
    assert deltas_of(outputs) == ["One moment, please. ", "It is ten."]
    assert [(clause.index, clause.text) for clause in clauses_of(outputs)] == [
        (0, "One moment, please."),
        (1, " It is ten."),
    ], "together they are what is said"
    assert [output.units for output in outputs if isinstance(output, Emit)] == [19, 11]
    assert reply.text == "It is ten."
