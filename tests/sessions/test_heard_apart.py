"""Replies of which reports tell history nothing: their client has cut them, or they are no part of it."""

from __future__ import annotations

import pytest

from sessions.heard import REPLIES_MAX, Cut
from tests.sessions.test_heard import MS, Call


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
