"""What is told of words: where they stand in the sound, and which of them were heard."""

from __future__ import annotations

from dataclasses import replace

import pytest

from duplex.realtime.dialect import Message, RealtimeDialect, acknowledged_message, item_dict
from media.rtp_map import Position
from sessions import events
from sessions.heard import Cut
from sessions.items import Item
from sessions.reply import SpokenWord, Unsure

CUT = Cut(12_000, "One", "two", "acked")
SHOWN = {"cut": True, "cut_word": "two", "heard_ms": 500, "heard_basis": "acked", "heard_error_ms": 0}
WORDS = events.ReplyWords("resp_1", "item_1", (SpokenWord("One", 0, 6_000), SpokenWord("two", 6_000, 18_000)))


def told(event: events.Event, *, extensions: bool = True) -> list[Message]:
    return RealtimeDialect(lambda prefix: f"{prefix}_1", extensions=extensions).encode(event)


def finished(cut: Cut | None) -> list[Message]:
    view = events.ResponseView("resp_1", "item_1", 0, ("audio",), True, (), "One", "cancelled", cut=cut)
    return told(events.ResponseFinished(view), extensions=False)


def test_each_word_is_told_where_it_stands() -> None:
    first, second = told(WORDS)
    assert first | {"text": "two", "audio_offset_ms": 250, "start_sample": 6_000} == second | {
        "audio_duration_ms": 250,
        "samples": 6_000,
    }
    assert second == {
        "type": "response.audio_timestamp.delta",
        "response_id": "resp_1",
        "item_id": "item_1",
        "output_index": 0,
        "content_index": 0,
        "timestamp_type": "word",
        "text": "two",
        "audio_offset_ms": 250,
        "audio_duration_ms": 500,
        "start_sample": 6_000,
        "samples": 12_000,
        "sample_rate": 24_000,
    }


def test_a_report_is_answered_with_where_the_ear_was_and_how_far_it_sounds_on() -> None:
    assert acknowledged_message(Position("resp_1", 480, 960), 8_000) == {
        "type": "playback.acknowledged",
        "response_id": "resp_1",
        "played_samples": 480,
        "until_sample": 960,
        "sample_rate": 8_000,
    }


def test_at_a_telephones_rate_the_same_moments_are_fewer_samples() -> None:
    slow = replace(WORDS, words=(SpokenWord("two", 2_000, 6_000),), sample_rate=8_000)
    (word,) = told(slow)
    places = {"audio_offset_ms": 250, "audio_duration_ms": 500, "start_sample": 2_000, "samples": 4_000}
    assert word.items() >= {**places, "sample_rate": 8_000}.items()
    cut = replace(CUT, samples=4_000, error_samples=1, sample_rate=8_000)
    (refined,) = told(events.ItemRefined("item_1", cut))
    assert (refined["audio_end_ms"], refined["heard_ms"], refined["heard_error_ms"]) == (500, 500, 1)
    item = cut.applied_to(Item("item_1", "assistant", "One two", spoken=True, audio_samples=8_000))
    assert item_dict(item).items() >= {"heard_ms": 500, "heard_error_ms": 1}.items()


def test_a_reply_that_was_heard_to_its_end_after_all_is_told_to_be_uncut() -> None:
    whole = Cut(18_000, "One two", basis="acked", whole=True, status="completed")
    (refined,) = told(events.ItemRefined("item_1", whole))
    shown = {"audio_end_ms": 750, "transcript": "One two", "cut": False, "cut_word": "", "heard_ms": 750}
    assert refined.items() >= shown.items()
    item = Item("item_1", "assistant", "One two", spoken=True, audio_samples=18_000)
    assert item_dict(whole.applied_to(CUT.applied_to(item))) == item_dict(item)


@pytest.mark.parametrize("event", [WORDS, events.ItemRefined("item_1", CUT)])
def test_stock_clients_are_told_nothing_that_they_do_not_know(event: events.Event) -> None:
    assert told(event, extensions=False) == []


def test_the_item_of_a_reply_that_was_cut_says_so_wherever_it_stands() -> None:
    *_, output, item, done = finished(CUT)
    for shown in (output["item"], item["item"], done["response"]["output"][0]):
        assert shown.items() >= SHOWN.items()
    retrieved = item_dict(Item("i", "assistant", "One", spoken=True, cut=True, heard_samples=12_000, cut_word="two"))
    assert retrieved.items() >= (SHOWN | {"heard_basis": "estimated"}).items()


def test_that_of_a_reply_that_was_said_to_its_end_does_not() -> None:
    *_, done = finished(None)
    assert not SHOWN.keys() & done["response"]["output"][0].keys()


@pytest.mark.parametrize("event", [events.ItemTruncated("item_1", 500, CUT), events.ItemRefined("item_1", CUT)])
def test_a_truncation_says_what_was_heard(event: events.Event) -> None:
    place = {"type": "conversation.item.truncated", "item_id": "item_1", "content_index": 0, "audio_end_ms": 500}
    assert told(event) == [{**place, "transcript": "One", **SHOWN}]


def test_what_may_have_been_heard_stands_beside_the_transcript() -> None:
    words = (SpokenWord("One", 0, 6_000), SpokenWord("two", 6_000, 12_000))
    cut = Cut(6_000, "One", unsure=Unsure("resp_1", words, "three"), error_samples=6_000)
    item = cut.applied_to(Item("item_1", "assistant", "One", spoken=True, audio_samples=12_000))
    shown = item_dict(item)
    assert shown["content"] == [{"type": "output_audio", "transcript": "One"}]
    assert (shown["status"], shown["cut"], shown["possibly_heard"]) == ("incomplete", True, "two three")
    (refined,) = told(events.ItemRefined("item_1", cut))
    assert (refined["transcript"], refined["possibly_heard"]) == ("One", "two three")
    (settled,) = told(events.ItemRefined("item_1", replace(cut, unsure=None)))
    assert "possibly_heard" not in settled
