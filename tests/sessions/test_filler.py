"""When words that bridge a wait are due, and how they are told from the reply's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.filler import FILLER, FILLER_AFTER_NS, FillerCue, without_filler

MS = 1_000_000


def test_they_are_due_at_once_where_a_long_wait_is_expected() -> None:
    cue = FillerCue(FILLER)
    assert cue.wait(FILLER_AFTER_NS + 1, 5) == FILLER
    assert cue.due_ns is None


@pytest.mark.parametrize("expected_ns", [0, 300 * MS, FILLER_AFTER_NS])
def test_else_when_the_wait_has_lasted_so_long(expected_ns: int) -> None:
    cue = FillerCue(FILLER)
    assert cue.wait(expected_ns, 5) == ""
    assert cue.due_ns == 5 + FILLER_AFTER_NS
    assert cue.tick(4 + FILLER_AFTER_NS) == ""
    assert cue.tick(5 + FILLER_AFTER_NS) == FILLER


def test_they_are_said_once() -> None:
    cue = FillerCue(FILLER)
    cue.wait(2 * FILLER_AFTER_NS, 0)
    assert cue.wait(2 * FILLER_AFTER_NS, 0) == ""
    assert cue.tick(9 * FILLER_AFTER_NS) == ""


def test_what_is_made_anew_may_have_them_again() -> None:
    cue = FillerCue(FILLER)
    cue.wait(2 * FILLER_AFTER_NS, 0)
    cue.anew()
    assert cue.due_ns is None
    assert cue.wait(2 * FILLER_AFTER_NS, 0) == FILLER


def test_a_word_in_time_leaves_none_to_be_said() -> None:
    cue = FillerCue(FILLER)
    cue.wait(300 * MS, 0)
    cue.stop()
    assert cue.due_ns is None
    assert cue.tick(9 * FILLER_AFTER_NS) == ""


def test_without_words_none_are_due() -> None:
    cue = FillerCue("  ")
    assert cue.wait(9 * FILLER_AFTER_NS, 0) == ""
    assert cue.due_ns is None


def test_white_space_is_that_of_spoken_words() -> None:
    assert FillerCue(" One \n moment. ").wait(9 * FILLER_AFTER_NS, 0) == "One moment."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{FILLER} It is ten.", "It is ten."),
        (FILLER, ""),
        ("One moment,", ""),
        ("", ""),
    ],
    ids=["whole", "cut behind it", "cut in it", "nothing"],
)
def test_a_reply_says_what_follows_its_filler(text: str, said: str) -> None:
    assert without_filler(text, FILLER) == said


@given(st.text())
def test_a_reply_without_one_says_all_of_itself(text: str) -> None:
    assert without_filler(text, "") == text
