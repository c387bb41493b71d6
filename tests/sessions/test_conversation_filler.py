"""A reply whose first word takes long begins with a filler: its own words, told, heard, cut and remembered as such."""

from __future__ import annotations

from sessions.effects import Effect, FeedStream, Measured
from sessions.events import ReplyText
from sessions.filler import FILLER, FILLER_AFTER_NS
from sessions.settings import ResponseSpec
from stages.contracts import Filler, Reading, Tag, TextDelta
from tests.sessions.talk import MS, SYSTEM, WORD_SAMPLES, Talk, assistant, of, told, user

LONG_NS = FILLER_AFTER_NS + 1
FILLER_WORDS = len(FILLER.split())


def asked(*, prepare: bool = False) -> Talk:
    """The second answer of a conversation, of which all stages are open and nothing has come yet."""
    talk = Talk(filler=FILLER, prepare=prepare)
    talk.answered("hello", "good day")
    talk.say("what time is it")
    talk.open("resp_2")
    return talk


def fillers(effects: list[Effect]) -> list[tuple[str, Tag, str]]:
    return [(one.stage, one.tag, one.item.text) for one in of(effects, FeedStream) if isinstance(one.item, Filler)]


def tick(talk: Talk) -> list[Effect]:
    return talk.do(talk.core.tick(talk.now_ns, 0))


def speak(talk: Talk, answer: str) -> None:
    """The Thinker says the filler, then `answer`, and all is spoken."""
    talk.publish("resp_2", TextDelta(f"{FILLER} ", filler=True))
    talk.words("resp_2", FILLER)
    talk.audio("resp_2", FILLER_WORDS * WORD_SAMPLES)
    talk.text("resp_2", answer)
    talk.text_done("resp_2")
    talk.words("resp_2", answer, first=FILLER_WORDS, clause=1)
    samples = len(answer.split()) * WORD_SAMPLES
    talk.audio("resp_2", samples, seq=1, start=FILLER_WORDS * WORD_SAMPLES, final=True)


def test_a_long_reading_is_bridged_at_once() -> None:
    talk = asked()
    effects = talk.publish("resp_2", Reading(400, LONG_NS))
    assert fillers(effects) == [("thinker", talk.tag("resp_2"), FILLER)]
    assert [one.name for one in of(effects, Measured)] == ["fillers"]


def test_one_that_takes_longer_than_expected_is_bridged_when_it_does() -> None:
    talk = asked()
    assert fillers(talk.publish("resp_2", Reading(400, 300 * MS))) == []
    assert talk.core.next_deadline_ns() == talk.now_ns + FILLER_AFTER_NS
    talk.later(999)
    assert fillers(tick(talk)) == []
    talk.later(1)
    assert len(fillers(tick(talk))) == 1
    talk.later(5_000)
    assert fillers(tick(talk)) == []


def test_a_word_in_time_leaves_nothing_to_bridge() -> None:
    talk = asked()
    talk.publish("resp_2", Reading(400, 300 * MS))
    talk.text("resp_2", "ten")
    talk.later(2_000)
    assert fillers(tick(talk)) == []


def test_what_ends_the_reply_ends_its_wait() -> None:
    talk = asked()
    talk.publish("resp_2", Reading(400, 300 * MS))
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    talk.later(2_000)
    assert fillers(tick(talk)) == []
    assert talk.cancelled("resp_2") == {"thinker", "talker", "vocoder"}


def test_the_filler_is_told_heard_and_remembered_and_no_prompt_has_it() -> None:
    talk = asked()
    talk.publish("resp_2", Reading(400, LONG_NS))
    speak(talk, "ten past four")
    talk.send()
    talk.let_go("resp_2")
    assert "".join(told.delta for told in of(talk.events, ReplyText) if told.response == "resp_2") == (
        f"{FILLER} ten past four"
    )
    item = talk.core.items[-1]
    assert (item.text, item.filler, item.status) == (f"{FILLER} ten past four", FILLER, "completed")
    history = (user("hello"), assistant("good day"), user("what time is it"), assistant("ten past four"))
    assert talk.prefilled()[-1].messages == (SYSTEM, *history), "as it is read ahead while it is being said"
    talk.say("and now")
    assert talk.prompt("resp_3") == (SYSTEM, *history, user("and now"))


def test_an_interruption_amid_the_filler_leaves_the_words_that_were_heard() -> None:
    talk = asked()
    talk.publish("resp_2", Reading(400, LONG_NS))
    speak(talk, "ten past four")
    talk.send(frames=12)
    talk.start(64_000)
    item = talk.core.items[-1]
    assert (item.text, item.filler, item.cut) == ("One", FILLER, True)
    talk.end(80_000)
    talk.heard("never mind")
    assert talk.prompt("resp_3")[-2:] == (user("what time is it"), user("never mind"))


def test_an_interruption_behind_the_filler_is_one_of_the_reply() -> None:
    talk = asked()
    talk.publish("resp_2", Reading(400, LONG_NS))
    speak(talk, "ten past four")
    talk.send(frames=10 * FILLER_WORDS + 12)
    talk.start(64_000)
    talk.end(80_000)
    talk.heard("never mind")
    assert talk.core.items[-2].text == f"{FILLER} ten"
    assert assistant("ten —") in talk.prompt("resp_3")


def test_the_first_reply_of_a_conversation_is_not_bridged() -> None:
    talk = Talk(filler=FILLER)
    talk.say("hello")
    talk.open("resp_1")
    assert fillers(talk.publish("resp_1", Reading(400, LONG_NS))) == [], "nothing was lost"


def test_what_is_written_or_out_of_band_is_not_bridged() -> None:
    for spec in (ResponseSpec(modalities=("text",)), ResponseSpec(in_conversation=False)):
        talk = Talk(filler=FILLER)
        talk.answered("hello", "good day")
        talk.do(talk.core.create_response(spec, talk.now_ns))
        talk.open("resp_2")
        assert fillers(talk.publish("resp_2", Reading(400, LONG_NS))) == []


def test_without_words_none_are_said() -> None:
    talk = Talk()
    talk.answered("hello", "good day")
    talk.say("what time is it")
    talk.open("resp_2")
    assert fillers(talk.publish("resp_2", Reading(400, LONG_NS))) == []


def test_a_prepared_reply_is_bridged_behind_the_clients_back() -> None:
    talk = Talk(filler=FILLER, prepare=True)
    talk.answered("hello", "good day")
    talk.start(48_000)
    talk.do(talk.core.speech_paused(56_000))
    talk.heard("what time is it", final=False)
    prepared = talk.core.speaking.prepared
    assert prepared is not None
    response = prepared.tag.response
    talk.open(response)
    assert len(fillers(talk.publish(response, Reading(400, LONG_NS)))) == 1
    talk.publish(response, TextDelta(f"{FILLER} ", filler=True))
    talk.end(64_000)
    effects = talk.heard("what time is it")
    assert told(effects, ReplyText)[0].delta == f"{FILLER} "


def test_a_reply_that_is_made_anew_may_be_bridged_anew() -> None:
    talk = asked()
    talk.publish("resp_2", Reading(400, LONG_NS))
    talk.do(talk.core.lost(talk.tag("resp_2"), "thinker", talk.now_ns))
    assert talk.tag("resp_2").attempt == 1
    talk.open("resp_2")
    effects = talk.publish("resp_2", Reading(400, LONG_NS))
    assert [tag.attempt for _, tag, _ in fillers(effects)] == [1]
