"""Replies apart: their client has cut them or is gone, they are no part of history, or broke off with a gateway."""

from __future__ import annotations

from dataclasses import replace

import pytest

from media.playout import Playout
from sessions.heard import REPLIES_MAX, Cut, Heard
from sessions.items import Item
from sessions.reply import SpokenWord, Unsure
from sessions.settings import OUTPUT_RATE
from tests.sessions.test_heard import MS, WORD, Call


@pytest.mark.parametrize("when", ["before the end", "after it"])
@pytest.mark.parametrize("reported_ms", [0, 100, 500, 800, 10**6])
def test_no_report_moves_a_cut_that_its_client_has_set(when: str, reported_ms: int) -> None:
    """It knows where it stopped; reports were about what it played, not about where it wants history to end."""
    call = Call()
    call.play_until(340)
    call.heard.report("r1", 400 * 24, 340 * MS)
    if when == "before the end":
        call.heard.want("item_r1", 250 * 24)
    call.end(340)
    if when == "after it":
        call.heard.truncate("item_r1", 250 * 24, 341 * MS)
    cut = Cut(250 * 24, "w0 w1", "w2", "acked")
    assert call.heard.cut_of("item_r1") == cut
    assert call.heard.report("r1", reported_ms * 24, 400 * MS) is None
    assert call.heard.cut_of("item_r1") == cut
    moved = call.heard.truncate("item_r1", 300 * 24, 500 * MS)
    assert moved == Cut(300 * 24, "w0 w1 w2", "", "acked"), "its own word may be another one later"


def test_sound_outside_the_conversation_is_not_unplayed_and_nothing_stops_it() -> None:
    call = Call(words=5)
    call.play_until(320)
    view, cut = call.heard.ended("r1", "item_r1", call.reply, whole=True, recalled=False, now_ns=320 * MS, outside=True)
    assert (view.sent, cut.whole) == (500 * 24, True)
    for gone in (False, True):
        assert call.heard.unplayed(330 * MS, gone=gone) == []
        assert call.heard.stop(330 * MS, "r1", gone=gone) == []
    assert call.playout.view("r1", 400 * MS).heard == 400 * 24, "and it is heard all the same"


def test_what_is_known_of_a_reply_whose_item_is_gone_is_about_no_item() -> None:
    call = Call(words=5)
    call.play_until(320)
    call.end(320, whole=True)
    call.heard.forget("item_r1")
    call.heard.forget("item_r9")
    assert call.heard.cut_of("item_r1") is None
    assert call.heard.truncate("item_r1", 0, 330 * MS) is None
    assert "item_r1" not in [item for item, _ in call.heard.stop(330 * MS)]
    assert call.heard.report("r1", 200 * 24, 340 * MS) != "item_r1"
    for number in range(2, REPLIES_MAX + 2):
        assert "r1" in call.playout.open_responses()
        call.begin(f"r{number}")
        call.end(400, response=f"r{number}")
    assert "r1" not in call.playout.open_responses(), "its ledger leaves as any other"


@pytest.mark.parametrize("recalls", [True, False])
def test_a_report_that_comes_after_its_client_has_gone_tells_more_of_the_cut(recalls: bool) -> None:
    call = Call(recalls=recalls)
    call.play_until(340)
    assert call.end(340, gone=True).basis == "estimated"
    assert call.heard.report("r1", 210 * 24, 350 * MS) == "item_r1"
    assert call.heard.cut_of("item_r1") == Cut(210 * 24, "w0 w1", "w2", "acked", error_samples=130 * 24)


def test_of_a_reply_that_broke_off_no_word_is_named_as_cut() -> None:
    """The one that the cut falls into may have been heard whole, like those behind it."""
    heard = Heard(Playout(OUTPUT_RATE, 480, 0), recalls=True)
    words = tuple(SpokenWord(f"w{n}", n * WORD, (n + 1) * WORD) for n in range(3))
    item = Item("i", "assistant", "w0", spoken=True, cut=True, audio_samples=3 * WORD, heard_samples=150 * 24)
    heard.broke_off(replace(item, unsure=Unsure("r0", words)))
    cut = heard.cut_of("i")
    assert cut is not None
    assert (cut.text, cut.word, cut.possibly_heard) == ("w0", "", "w1 w2")
