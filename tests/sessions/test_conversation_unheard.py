"""What was sent and not heard: of replies that are over when their caller goes, and what a stop took back in time."""

from __future__ import annotations

import pytest

from sessions.effects import SaveItem, Tell
from sessions.events import CommandRefused, ItemTruncated
from sessions.settings import ResponseSpec
from tests.sessions.talk import WORD_SAMPLES, Talk, kinds, over_and_unplayed, told

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
