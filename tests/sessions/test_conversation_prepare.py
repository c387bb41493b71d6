"""Answers that are prepared in a pause: confirmed if the turn ends so, withdrawn without a trace if not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sessions.effects import CancelStream, EndEpoch, Measured, OpenStream
from sessions.events import (
    MessageStarted,
    ReplyAudio,
    ReplyText,
    ReplyWords,
    ResponseDrained,
    ResponseFinished,
    ResponseStarted,
)
from sessions.items import Item
from sessions.settings import ResponseSpec, SessionSettings, TurnDetection
from stages.contracts import Message
from tests.sessions.talk import SYSTEM, Talk, kinds, of, told, without_interruption

SAID = "what time is it"


def paused(talk: Talk, text: str = SAID) -> None:
    """The caller has said `text` and fallen silent, and it is known what was said."""
    talk.start(48_000)
    talk.do(talk.core.speech_paused(56_000))
    talk.heard(text, final=False)


def prepared(settings: SessionSettings | None = None) -> Talk:
    talk = Talk(settings, prepare=True)
    paused(talk)
    return talk


def outcomes(talk: Talk) -> list[str]:
    return [m.label for m in of(talk.effects, Measured) if m.name == "prepared_replies"]


def test_the_answer_begins_in_the_pause_and_nobody_is_told() -> None:
    talk = prepared()
    assert talk.prompt("resp_1") == (SYSTEM, Message("user", SAID))
    talk.reply("resp_1", "ten past four")
    assert talk.send() == []
    assert of(talk.events, ResponseStarted) == []
    assert of(talk.events, ReplyText) == []
    assert of(talk.events, ReplyWords) == []
    assert talk.core.speaking.active is None


def test_a_turn_that_ends_so_is_answered_with_what_was_prepared() -> None:
    talk = prepared()
    talk.reply("resp_1", "ten past four")
    talk.end()
    effects = talk.heard(SAID)
    assert of(effects, OpenStream) == []
    assert told(effects, MessageStarted)[0].previous == "item_1"
    assert told(effects, ReplyText)[0].delta == "ten past four"
    assert [word.text for word in told(effects, ReplyWords)[0].words] == ["ten", "past", "four"]
    assert outcomes(talk) == ["confirmed"]
    talk.send()
    talk.let_go("resp_1")
    assert talk.finished("resp_1").status == "completed"
    assert talk.texts == [("user", SAID), ("assistant", "ten past four")]
    assert talk.core.speaking.undrained == 0


def test_a_prepared_answer_can_be_interrupted_once_it_is_confirmed() -> None:
    talk = prepared()
    talk.reply("resp_1", "ten past four")
    talk.end()
    talk.heard(SAID)
    talk.send(10)
    assert of(talk.start(96_000), EndEpoch) != []
    assert talk.texts == [("user", SAID), ("assistant", "ten")]


def test_what_was_prepared_ends_with_its_epoch_and_is_made_anew_in_the_next() -> None:
    """Its client stops the end of the reply before while the caller speaks, and the stages drop all of that epoch."""
    talk = Talk(without_interruption(), prepare=True, recalls=True)
    talk.answered("hello", "one two three")
    paused(talk)
    assert outcomes(talk) == []
    talk.do(talk.core.stop_speaking("client_cancelled", talk.now_ns))
    assert outcomes(talk) == ["withdrawn"]
    talk.end()
    talk.heard(SAID)
    assert (talk.active, talk.tag("resp_3").epoch) == ("resp_3", talk.core.epoch)


def test_the_prefill_stops_before_an_answer_is_prepared_and_starts_again_if_it_is_withdrawn() -> None:
    talk = Talk(prepare=True)
    talk.start(48_000)
    prefill = talk.opened_at("thinker")[-1].tag
    talk.do(talk.core.speech_paused(56_000))
    effects = talk.heard(SAID, final=False)
    assert kinds(effects) == ["CancelStream", "OpenStream", "OpenStream", "Overheard"]
    assert of(effects, CancelStream)[0].tag == prefill
    effects = talk.do(talk.core.speech_resumed(talk.now_ns))
    assert kinds(effects) == [
        "FeedStream",
        "CancelStream",
        "CancelStream",
        "Measured",
        "OpenStream",
        "FeedStream",
    ]


def test_other_words_than_expected_are_answered_anew() -> None:
    talk = prepared()
    talk.open("resp_1")
    talk.end()
    talk.heard("what time is it in London")
    assert outcomes(talk) == ["withdrawn"]
    assert talk.started() == ["resp_2"]
    assert talk.cancelled("resp_1") == {"thinker", "talker", "vocoder"}
    assert talk.prompt("resp_2") == (SYSTEM, Message("user", "what time is it in London"))


def test_other_settings_than_expected_are_answered_anew() -> None:
    talk = prepared()
    talk.update(SessionSettings(voice="amy"))
    talk.end()
    talk.heard(SAID)
    assert talk.started() == ["resp_2"]


def test_a_guess_that_is_bettered_in_the_same_pause_is_prepared_anew() -> None:
    talk = prepared()
    talk.heard("what time is it now", final=False)
    talk.end()
    talk.heard("what time is it now")
    assert outcomes(talk) == ["withdrawn", "confirmed"]
    assert talk.started() == ["resp_2"]


def end_with_another_answer(talk: Talk) -> None:
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))


def go_on(talk: Talk) -> None:
    talk.do(talk.core.speech_resumed(talk.now_ns))


def throw_away(talk: Talk) -> None:
    talk.do(talk.core.clear_input(talk.now_ns))


def speak_again(talk: Talk) -> None:
    talk.end()
    talk.start(96_000)


def lose_the_words(talk: Talk) -> None:
    talk.end()
    talk.do(talk.core.refused(talk.turn_tag(), "encoder", "capacity", "", talk.now_ns))


def say_nothing(talk: Talk) -> None:
    talk.end()
    talk.heard("")


def commit(talk: Talk) -> None:
    talk.do(talk.core.commit_input(0, 60_000, talk.now_ns))
    talk.heard(SAID)


def delete(talk: Talk) -> None:
    talk.end()
    talk.do(talk.core.delete_item("item_1"))
    talk.heard(SAID)


def want_no_answer(talk: Talk) -> None:
    talk.update(SessionSettings(turn_detection=TurnDetection(create_response=False)))
    talk.end()
    talk.heard(SAID)


def hang_up(talk: Talk) -> None:
    talk.do(talk.core.close(talk.now_ns))


WAYS: list[Callable[[Talk], None]] = [
    end_with_another_answer,
    go_on,
    throw_away,
    speak_again,
    lose_the_words,
    say_nothing,
    commit,
    delete,
    want_no_answer,
    hang_up,
]


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_what_was_prepared_for_nothing_is_withdrawn_and_given_back(way: Callable[[Talk], None]) -> None:
    talk = prepared()
    talk.reply("resp_1", "ten past four")
    way(talk)
    assert talk.core.speaking.prepared is None
    assert outcomes(talk) == ["withdrawn"]
    assert talk.cancelled("resp_1") == {"thinker", "talker", "vocoder"}
    assert talk.send() == []
    talk.let_go("resp_1")
    assert "resp_1" not in [drain.response for drain in of(talk.events, ResponseDrained)]
    assert "resp_1" not in [end.response.id for end in of(talk.events, ResponseFinished)]
    assert talk.core.speaking.undrained == len(talk.core.speaking.running)
    assert ("assistant", "ten past four") not in talk.texts


def test_a_prepared_answer_that_fails_is_replaced_by_another() -> None:
    talk = prepared()
    talk.open("resp_1")
    talk.text("resp_1", "ten")
    talk.do(talk.core.lost(talk.tag("resp_1"), "talker", talk.now_ns))
    talk.end()
    talk.heard(SAID)
    assert talk.started() == ["resp_2"]
    assert of(talk.events, ResponseFinished) == []


def test_speech_that_goes_on_after_a_prepared_answer_has_failed_just_goes_on() -> None:
    talk = prepared()
    talk.open("resp_1")
    talk.text("resp_1", "ten")
    talk.do(talk.core.lost(talk.tag("resp_1"), "talker", talk.now_ns))
    assert kinds(talk.do(talk.core.speech_resumed(talk.now_ns))) == ["FeedStream"]
    talk.end()
    talk.heard(SAID)
    assert talk.started() == ["resp_2"]


def test_words_that_were_settled_in_an_earlier_pause_are_answered_in_none() -> None:
    talk = Talk(prepare=True)
    talk.start(48_000)
    talk.do(talk.core.speech_paused(56_000))
    talk.do(talk.core.speech_resumed(talk.now_ns))
    talk.heard(SAID, final=False)
    assert talk.core.speaking.prepared is None


@pytest.mark.parametrize(
    "settings",
    [
        SessionSettings(modalities=("text",)),
        SessionSettings(turn_detection=TurnDetection(create_response=False)),
    ],
    ids=["text only", "nobody asked"],
)
def test_what_is_not_prepared(settings: SessionSettings) -> None:
    talk = prepared(settings)
    assert [effect.stage for effect in of(talk.effects, OpenStream)] == ["encoder", "thinker"]  # and a prefill at most


def test_nothing_is_prepared_without_detection() -> None:
    talk = Talk(prepare=True)
    talk.start(48_000)
    talk.do(talk.core.speech_paused(56_000))
    talk.update(SessionSettings(turn_detection=None))
    talk.heard(SAID, final=False)
    assert talk.core.speaking.prepared is None


def test_nothing_is_prepared_where_the_service_does_not_want_it() -> None:
    talk = Talk(prepare=False)
    paused(talk)
    assert talk.core.speaking.prepared is None


def test_nothing_is_prepared_of_silence() -> None:
    talk = Talk(prepare=True)
    paused(talk, "")
    assert talk.core.speaking.prepared is None


def test_nothing_is_prepared_while_something_is_said_or_understood() -> None:
    talk = Talk(without_interruption(), prepare=True)
    talk.say("hello")
    paused(talk)
    assert talk.core.speaking.prepared is None
    talk = Talk(prepare=True)
    talk.start()
    talk.end()
    paused(talk)
    assert talk.core.speaking.prepared is None


def test_an_item_that_came_meanwhile_is_answered_too() -> None:
    talk = prepared()
    talk.do(talk.core.create_item(Item("typed", "user", "in London", spoken=False), None))
    talk.end()
    talk.heard(SAID)
    assert talk.started() == ["resp_2"]
    assert [m.content for m in talk.prompt("resp_2")[1:]] == ["in London", SAID]


def test_what_was_made_in_the_pause_takes_no_time_after_it() -> None:
    talk = prepared()
    talk.reply("resp_1", "ten past four")
    talk.later(400)
    talk.end()
    talk.later(20)
    talk.heard(SAID)
    talk.later(3)
    talk.send()
    timings = dict(of(talk.events, ResponseFinished)[0].timings)
    assert (timings["thinker"], timings["talker"], timings["vocoder"], timings["playout"]) == (0.0, 0.0, 0.0, 3.0)
    assert sum(timings.values()) == 2 * timings["total"]


def test_a_prepared_answer_does_not_keep_what_is_said_beside_the_conversation_waiting() -> None:
    talk = prepared()
    talk.do(talk.core.create_response(ResponseSpec(in_conversation=False), talk.now_ns))
    talk.open("resp_2")
    talk.audio("resp_2", 960)
    assert len(told(talk.send(), ReplyAudio)) == 2
