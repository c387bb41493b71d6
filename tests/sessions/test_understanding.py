"""What a conversation does with a machine's words and its beep."""

from __future__ import annotations

import pytest

from media.beep import Beep
from sessions.effects import Effect, EndCall, FeedStream
from sessions.events import LineRecognised
from sessions.far_side import BEEP_NS_MAX, REPEATS_MAX, WORDLESS_MAX, MachinePolicy
from sessions.settings import ResponseSpec, SessionSettings, TurnDetection
from sessions.understanding import MACHINE, MESSAGE_NS_MAX
from stages.contracts import Clause
from tests.sessions.talk import Talk, of, told

GREETING = "Hi, this is Bob. Please leave a message after the tone."
QUEUE = "Your call is important to us."
QUESTION = "what is the weather like in Paris today"
MESSAGE = "Please call us back."
BEEP = Beep(32_000, 40_000, 1_000.0, 1_500)
LEAVES = MachinePolicy("leave_message", MESSAGE)


def beep(talk: Talk) -> list[Effect]:
    return talk.do(talk.core.beeped(BEEP, talk.now_ns))


def tick(talk: Talk) -> list[Effect]:
    return talk.do(talk.core.tick(talk.now_ns, 32_000))


def said(talk: Talk, response: str) -> list[str]:
    """The clauses that the Talker is given for `response`, once it is open; none of a Thinker's."""
    talk.open(response)
    fed = [effect for effect in of(talk.effects, FeedStream) if effect.tag.response == response]
    return [effect.item.text for effect in fed if isinstance(effect.item, Clause)]


def recognised(effects: list[Effect]) -> list[LineRecognised]:
    return told(effects, LineRecognised)


def test_a_message_is_said_after_the_beep_and_then_the_call_ends() -> None:
    talk = Talk(machines=LEAVES)
    assert recognised(talk.say(GREETING)) == [LineRecognised("answering_machine", "item_1")]
    assert talk.started() == []
    effects = beep(talk)
    assert recognised(effects) == [LineRecognised("beep")]
    assert of(effects, EndCall) == [EndCall(MACHINE, talk.now_ns + MESSAGE_NS_MAX)]
    assert talk.started() == ["resp_1"]
    assert said(talk, "resp_1") == [MESSAGE]
    assert "thinker" not in talk.options("resp_1")


def test_the_words_of_a_machine_may_come_after_its_beep() -> None:
    talk = Talk(machines=LEAVES)
    talk.start()
    talk.end()
    assert of(beep(talk), EndCall) == []
    effects = talk.heard(GREETING)
    assert len(of(effects, EndCall)) == 1
    assert talk.started() == ["resp_1"]


def test_a_message_waits_for_no_beep_that_does_not_come() -> None:
    talk = Talk(machines=LEAVES)
    talk.say(GREETING)
    due_ns = talk.core.next_deadline_ns()
    assert due_ns == talk.now_ns + BEEP_NS_MAX
    talk.now_ns = due_ns - 1
    assert of(tick(talk), EndCall) == []
    talk.now_ns = due_ns
    assert len(of(tick(talk), EndCall)) == 1
    assert talk.started() == ["resp_1"]


def test_nothing_is_given_up_while_the_machine_still_speaks() -> None:
    talk = Talk(machines=LEAVES)
    talk.say(GREETING)
    talk.start()
    talk.now_ns += BEEP_NS_MAX
    assert of(tick(talk), EndCall) == []
    assert talk.started() == []


def test_a_message_goes_before_an_answer_that_is_owed_and_after_what_is_being_said() -> None:
    talk = Talk(SessionSettings(turn_detection=TurnDetection(interrupt_response=False)), machines=LEAVES)
    talk.say("Hello, this is Bob.")
    talk.say("I am out in the garden.")
    assert talk.started() == ["resp_1"]
    talk.say(GREETING)
    beep(talk)
    talk.reply("resp_1", "Hello Bob.")
    talk.send()
    talk.let_go("resp_1")
    assert talk.started() == ["resp_1", "resp_2"]
    assert said(talk, "resp_2") == [MESSAGE]


def test_what_a_client_has_asked_for_goes_before_a_message() -> None:
    talk = Talk(machines=LEAVES)
    talk.say(GREETING)
    talk.start()
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    beep(talk)
    talk.end()
    talk.heard("Have a nice day.")
    assert talk.started() == ["resp_1"]
    assert said(talk, "resp_1") == []


def test_where_nothing_is_spoken_no_message_is_left() -> None:
    talk = Talk(SessionSettings(modalities=("text",)), machines=LEAVES)
    talk.say(GREETING)
    assert len(of(beep(talk), EndCall)) == 1
    assert talk.started() == []


def test_words_of_a_turn_that_the_client_has_deleted_are_nothing() -> None:
    talk = Talk(machines=LEAVES)
    talk.start()
    talk.end()
    talk.do(talk.core.delete_item("item_1"))
    assert recognised(talk.heard(GREETING)) == []


def test_it_is_hung_up_on() -> None:
    talk = Talk(machines=MachinePolicy("hang_up"))
    effects = talk.say(GREETING)
    assert of(effects, EndCall) == [EndCall(MACHINE, talk.now_ns)]
    assert talk.started() == []


def test_where_calls_go_on_a_machine_is_answered_and_told_of() -> None:
    talk = Talk()
    assert recognised(talk.say(GREETING)) == [LineRecognised("answering_machine", "item_1", answered=True)]
    assert talk.started() == ["resp_1"]
    assert of(beep(talk), EndCall) == []


@pytest.mark.parametrize("prepare", [True, False])
def test_a_queue_is_history_and_answered_by_nobody(prepare: bool) -> None:
    talk = Talk(prepare=prepare)
    talk.start()
    talk.do(talk.core.speech_paused(30_000))
    talk.heard(QUEUE, final=False)
    talk.end()
    effects = talk.heard(QUEUE)
    assert recognised(effects) == [LineRecognised("queue", "item_1")]
    assert talk.texts == [("user", QUEUE)]
    assert talk.started() == []
    assert talk.core.speaking.active is None
    assert talk.core.speaking.prepared is None


def test_two_machines_do_not_answer_each_other_for_ever() -> None:
    talk = Talk()
    for _ in range(1 + REPEATS_MAX):
        talk.answered(QUESTION, "I did not get that.")
    for _ in range(3):
        talk.say(QUESTION)
    assert len(talk.started()) == 1 + REPEATS_MAX


def test_a_transcript_of_no_turn_is_nothing() -> None:
    talk = Talk()
    talk.say(GREETING)
    assert talk.heard(GREETING) == []


def test_sound_that_never_has_words_interrupts_no_reply_for_ever() -> None:
    talk = Talk()
    talk.say("Tell me a story.")
    for _ in range(10):
        if talk.core.speaking.active is None:
            break
        response = talk.active
        talk.open(response)
        talk.text(response, "Once upon a time")
        talk.words(response, "Once upon")
        talk.audio(response, 9_600)
        talk.send(5)
        talk.say("")
    assert len(talk.started()) == 1 + WORDLESS_MAX
    assert talk.core.speaking.active is None
    talk.say("Go on, please.")
    assert len(talk.started()) == 2 + WORDLESS_MAX
