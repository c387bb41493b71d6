"""History against the ear: what is an error, of which sign, and what is a fault."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.heard_error.plan import Deed
from media.coded_tones import EAR_RATE, EDGE_SAMPLES, encode, response_number
from media.fade import FADE_MS
from tests.benchmarks.heard_error.spoken import MS, WORD, WORD_MS, item, judged, speech

ALL = range(8)
DEEDS: tuple[Deed, Deed] = ("speak", "cancel")


@pytest.mark.parametrize(("words", "ms"), [(0, 100), (2, 430), (3, 650), (4, 800)])
def test_history_that_ends_where_the_ear_did_is_right(words: int, ms: int) -> None:
    found = judged(speech(*ALL)[: ms * MS], item(words, ms))
    assert (found.words_error, found.presumes, found.faults) == (0, False, ())
    assert abs(found.ms_error) <= EDGE_SAMPLES / MS


def test_what_was_not_heard_is_presumed_and_what_is_missing_is_not() -> None:
    more = judged(speech(*ALL)[: 3 * WORD], item(5, 5 * WORD_MS))
    less = judged(speech(*ALL)[: 3 * WORD], item(1, WORD_MS + 40))
    assert (more.words_error, more.ms_error, more.presumes) == (2, 400, True)
    assert (less.words_error, less.ms_error, less.presumes) == (-2, -360, False)
    assert more.faults == less.faults == ()


def test_of_a_reply_that_is_not_in_history_nothing_may_have_been_heard() -> None:
    assert judged(np.zeros(WORD, dtype=np.float32), None).faults == ()
    heard = judged(speech(0), None)
    assert (heard.basis, heard.words_error, heard.faults) == ("", -1, ("more heard than sent",))


def test_more_than_was_sent_came_too_late() -> None:
    assert judged(speech(*ALL)[: 640 * MS], item(3, 620, sent_ms=620)).faults == ("more heard than sent",)
    assert judged(speech(*ALL)[: 635 * MS], item(3, 620, sent_ms=620)).faults == ()
    assert judged(speech(0, 1), item(2, 400), stale_samples=480).faults == ("came after its end",)


@pytest.mark.parametrize(
    ("words", "fault"),
    [((1, 2, 3), "heard with a gap"), ((0, 2, 3), "heard with a gap"), ((0, 2, 1), "heard out of order")],
)
def test_words_that_are_missing_or_out_of_place_are_faults(words: tuple[int, ...], fault: str) -> None:
    assert judged(speech(*words), item(3, 600)).faults == (fault,)


def test_a_word_that_is_heard_twice_is_a_fault() -> None:
    assert judged(speech(0, 1, 1, 2), item(3, 600)).faults == ("heard twice",)


def test_a_hole_in_a_word_is_a_fault_unless_it_is_the_last() -> None:
    said = speech(*ALL)
    hole = np.concatenate([said[: WORD + 2_400], said[WORD + 3_300 : 3 * WORD]])
    assert judged(hole, item(3, 600)).faults == ("heard with a gap",)


def test_history_itself_must_be_in_order() -> None:
    stored = item(0, 600)
    broken = type(stored)("item", "assistant", content="w0 w2", audio_ms_total=600)
    assert "history out of order" in judged(speech(0, 1, 2), broken).faults


@pytest.mark.parametrize(("words", "ms"), [(0, 40), (3, 640)])
def test_what_sounds_up_to_a_clear_was_heard_though_it_cannot_be_made_out(words: int, ms: int) -> None:
    sound = speech(*ALL)[: ms * MS]
    sound[words * WORD :] *= -1  # as a word is that the ear does not know
    cleared = judged(sound, item(words, ms), stop=(5.0, len(sound)))
    assert abs(cleared.ms_error) <= EDGE_SAMPLES / MS
    assert judged(sound, item(words, ms)).ms_error > 20


def test_of_a_reply_that_never_sounded_the_one_before_is_no_part() -> None:
    others = encode(response_number("resp_other"), 0, EAR_RATE)
    assert judged(others, item(0, 0), stop=(None, 2 * len(others))).ms_error == 0


def test_words_behind_a_clear_are_a_fault() -> None:
    assert judged(speech(0, 1, 2), item(3, 600), stop=(0.0, 2 * WORD - EDGE_SAMPLES - 1)).faults == (
        "came after its end",
    )
    assert judged(speech(0, 1, 2), item(3, 600), stop=(0.0, 3 * WORD)).faults == ()


def test_what_fades_out_in_a_hold_is_not_made_out_to_its_end() -> None:
    by_voice, asked = (judged(speech(0), item(1, 200), deed=deed) for deed in DEEDS)
    assert by_voice.ms_unsure == asked.ms_unsure + FADE_MS
    assert judged(speech(), None).ms_unsure > asked.ms_unsure, "a reply that has just begun"
