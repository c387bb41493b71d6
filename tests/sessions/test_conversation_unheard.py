"""What was sent and not heard: of replies that are over when their caller goes or speaks, and what was taken back."""

from __future__ import annotations

import pytest

from sessions.effects import SaveItem, Tell
from sessions.events import CommandRefused, ItemTruncated
from sessions.items import Item
from sessions.prompt import INTERRUPTED
from sessions.settings import ResponseSpec, SessionSettings
from tests.sessions.talk import (
    WORD_SAMPLES,
    Talk,
    assistant,
    kinds,
    over_and_unplayed,
    samples_of,
    told,
    user,
    without_interruption,
)

WORDS = "one two three four five"


def test_a_client_that_cancels_what_is_over_and_still_sounds_has_not_heard_its_end() -> None:
    talk, heard_ms = over_and_unplayed()
    effects = talk.do(talk.core.cancel_response("resp_1", talk.now_ns))
    assert [(one.item, one.audio_end_ms) for one in told(effects, ItemTruncated)] == [("item_2", heard_ms)]
    assert talk.texts[-1] == ("assistant", "one two")
    assert [type(effect) for effect in effects] == [SaveItem, Tell], "nothing of it is made any more"


def test_a_cancel_of_another_response_stops_nothing_that_still_sounds() -> None:
    talk, _ = over_and_unplayed()
    (refused,) = told(talk.do(talk.core.cancel_response("resp_9", talk.now_ns)), CommandRefused)
    assert refused.code == "response_cancel_not_active"
    assert talk.texts[-1] == ("assistant", "one two three")


def test_who_hangs_up_while_a_reply_still_sounds_has_not_heard_its_end() -> None:
    talk, _ = over_and_unplayed()
    talk.do(talk.core.close(talk.now_ns))
    assert talk.texts[-1] == ("assistant", "one two")
    assert talk.core.items[-1].cut_word == "three"


def test_who_hangs_up_over_two_replies_has_heard_the_end_of_neither() -> None:
    talk = Talk(recalls=True, lead_ms=1_000)
    for number in (1, 2):
        talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
        talk.reply(f"resp_{number}", "one two")
        talk.send(21)
        talk.let_go(f"resp_{number}")
    talk.later(250)
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    effects = talk.do(talk.core.close(talk.now_ns))
    assert [text for role, text in talk.texts if role == "assistant"] == ["one", ""]
    assert kinds(effects).index("EndEpoch") < kinds(effects).index("ItemTruncated")


@pytest.mark.parametrize("amid", [False, True])
def test_who_hangs_up_has_not_heard_the_packets_on_their_way(amid: bool) -> None:
    """They cannot be recalled, but the last report says where the caller was."""
    talk = Talk(recalls=False)
    talk.say("hello")
    talk.reply("resp_1", WORDS)
    talk.send(25 if amid else 51)
    talk.do(talk.core.heard("resp_1", WORD_SAMPLES, talk.now_ns))
    talk.do(talk.core.close(talk.now_ns))
    assert talk.texts[-1] == ("assistant", "one")
    assert (talk.core.items[-1].cut, talk.core.items[-1].heard_basis) == (True, "acked")


def test_a_reply_that_failed_and_still_sounds_is_interrupted_where_the_ear_is() -> None:
    """What its client has of it plays on, and is thrown away when the client hears that somebody speaks."""
    talk = Talk(recalls=True, lead_ms=400)
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", WORDS)
    talk.words("resp_1", WORDS)
    talk.audio("resp_1", 2 * WORD_SAMPLES)
    talk.send()
    talk.do(talk.core.closed(talk.tag("resp_1"), "vocoder", {}, ("step_failed", "by chance"), talk.now_ns))
    assert talk.texts[-1] == ("assistant", "one two"), "all that was sent will be heard"
    talk.later(250)
    assert talk.core.saying(talk.now_ns).may_be_held
    effects = talk.start(48_000)
    assert kinds(effects).index("EndEpoch") < kinds(effects).index("SpeechStarted")
    assert [(one.item, one.audio_end_ms) for one in told(effects, ItemTruncated)] == [("item_2", 250)]
    assert talk.texts[-1] == ("assistant", "one")


def test_who_answers_as_a_reply_ends_interrupts_nothing_though_its_last_report_was_short_of_the_end() -> None:
    """A client whose player is empty has nothing more to report."""
    talk, _ = over_and_unplayed()
    end = 3 * WORD_SAMPLES
    talk.later(200)
    talk.do(talk.core.heard("resp_1", end - 20, talk.now_ns))
    talk.later(50)
    assert not talk.core.saying(talk.now_ns).is_audible
    effects = talk.start()
    assert told(effects, ItemTruncated) == []
    assert talk.texts[-1] == ("assistant", "one two three")
    talk.do(talk.core.heard("resp_1", end - 5, talk.now_ns))
    assert talk.texts[-1] == ("assistant", "one two"), "unless it says where it stopped"


def test_whoever_takes_the_id_of_a_reply_that_was_deleted_keeps_their_words() -> None:
    talk, _ = over_and_unplayed()
    talk.do(talk.core.cancel_response("resp_1", talk.now_ns))
    talk.do(talk.core.delete_item("item_2"))
    talk.do(talk.core.create_item(Item("item_2", "user", "my own words", spoken=False), None))
    for samples in (100, 3 * WORD_SAMPLES):
        assert talk.do(talk.core.heard("resp_1", samples, talk.now_ns)) == []
    assert talk.texts[-1] == ("user", "my own words")


def test_what_was_taken_back_unwritten_is_not_in_history() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", WORDS)
    talk.send(31)
    talk.start(48_000)
    assert talk.texts[-1] == ("assistant", "one two three")
    effects = talk.do(talk.core.written("resp_1", 3 * WORD_SAMPLES - 480, talk.now_ns))
    assert kinds(effects) == ["SaveItem", "ItemRefined"]
    assert talk.texts[-1] == ("assistant", "one two")
    assert talk.core.written("resp_1", 3 * WORD_SAMPLES, talk.now_ns) == []


# ---- believed to be heard ------------------------------------------------------------------------------------------

REPORTED_MS = 250  # of 600: one word, and a part of the next


def believed_heard(settings: SessionSettings | None = None) -> Talk:
    """A reply of three words has ended, and by the pace of sending its caller has heard it all."""
    talk, _ = over_and_unplayed()
    talk.later(500)
    if settings is not None:
        talk.update(settings)
    assert not talk.core.saying(talk.now_ns).may_be_held
    return talk


def report(talk: Talk, ms: int) -> list[str]:
    return kinds(talk.do(talk.core.heard("resp_1", samples_of(ms), talk.now_ns)))


def test_who_hears_late_and_speaks_has_not_heard_the_end_of_what_was_believed_to_be_heard() -> None:
    """The client stops playing as it hears of the speech, and only then reports for the first time."""
    talk = believed_heard()
    assert "ItemTruncated" not in kinds(talk.start(48_000))
    assert report(talk, REPORTED_MS) == ["SaveItem", "ItemRefined"]
    assert talk.texts[1] == ("assistant", "one")
    item = talk.core.items[1]
    assert (item.cut, item.status, item.cut_word) == (True, "incomplete", "two")
    assert item.heard_samples == samples_of(REPORTED_MS)
    assert not talk.core.saying(talk.now_ns).may_be_held, "its client plays no more of it"
    talk.end()
    talk.heard("go on")
    assert talk.prompt(talk.active)[-4:] == (
        user("hello"),
        assistant("one —"),
        INTERRUPTED,
        user("go on"),
    )


def test_what_such_a_caller_had_heard_to_its_end_is_whole_again() -> None:
    talk = believed_heard()
    before = talk.core.items[1]
    talk.start(48_000)
    report(talk, REPORTED_MS)
    assert report(talk, 600) == ["SaveItem", "ItemRefined"]
    assert talk.core.items[1] == before
    assert report(talk, REPORTED_MS) == [], "an old one"


@pytest.mark.parametrize("stop", ["cancel", "clear"])
def test_a_client_that_stops_by_itself_what_was_believed_to_be_heard_says_where(stop: str) -> None:
    talk = believed_heard()
    effects = (
        talk.core.cancel_response(None, talk.now_ns)
        if stop == "cancel"
        else talk.core.stop_speaking("client_cancelled", talk.now_ns)
    )
    talk.do(effects)
    report(talk, REPORTED_MS)
    assert talk.texts[-1] == ("assistant", "one")


def test_speech_that_interrupts_nothing_stops_nobody() -> None:
    talk = believed_heard(without_interruption())
    talk.start(48_000)
    assert report(talk, REPORTED_MS) == []
    assert talk.texts[1] == ("assistant", "one two three")


def test_a_reply_that_reached_its_limit_and_was_heard_after_all_is_incomplete_still() -> None:
    talk = Talk(recalls=True, lead_ms=400)
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", "one two three")
    talk.text_done("resp_1", "max_output_tokens")
    talk.words("resp_1", "one two three")
    talk.audio("resp_1", 3 * WORD_SAMPLES, final=True)
    talk.send()
    talk.later(300)
    talk.send()
    before = talk.core.items[-1]
    assert (before.status, before.cut) == ("incomplete", False)
    talk.start(48_000)
    assert talk.core.items[1].cut
    report(talk, 600)
    assert talk.core.items[1] == before
