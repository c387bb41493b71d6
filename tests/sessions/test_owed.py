"""What begins once nobody speaks: as it was asked for, not too late, and never without its client being told."""

from __future__ import annotations

import pytest

from sessions.effects import EndEpoch, OpenStream
from sessions.events import CommandRefused, ResponseDrained, ResponseFinished, ResponseStarted
from sessions.hearing import TRANSCRIPT_NS_MAX
from sessions.owed import OWED_NS_MAX, Owed, Owing
from sessions.parts import Parts
from sessions.plan import Marks
from sessions.responses import DRAINING_MAX
from sessions.settings import ResponseSpec, SessionSettings, TurnDetection
from stages.contracts import Message
from tests.sessions.talk import EPOCH, MS, Talk, kinds, of, told, user, with_tools, without_interruption

OUTSIDE = ResponseSpec(in_conversation=False)
SILENT = SessionSettings(turn_detection=TurnDetection(create_response=False))


def create(talk: Talk, spec: ResponseSpec | None = None) -> None:
    talk.do(talk.core.create_response(spec or ResponseSpec(), talk.now_ns))


def cancel(talk: Talk) -> None:
    talk.do(talk.core.cancel_response(None, talk.now_ns))


def refusals(talk: Talk) -> list[str]:
    return [refusal.code for refusal in of(talk.events, CommandRefused)]


# ---- a response that is asked for while the caller speaks --------------------------------------------

TOLD = ResponseSpec(instructions="Say that the taxi is there.")


def asked_amid_speech(settings: SessionSettings | None = None) -> Talk:
    talk = Talk(settings)
    talk.start()
    create(talk, TOLD)
    assert talk.started() == []
    return talk


def test_it_is_made_as_it_was_asked_for_and_answers_what_was_said() -> None:
    talk = asked_amid_speech()
    talk.end()
    assert talk.started() == []
    talk.heard("are we late?")
    assert talk.started() == ["resp_1"]
    assert talk.prompt("resp_1") == (Message("system", "Say that the taxi is there."), Message("user", "are we late?"))


def test_it_begins_too_where_turns_are_not_answered() -> None:
    talk = asked_amid_speech(SILENT)
    talk.end()
    talk.heard("are we late?")
    assert talk.started() == ["resp_1"]


@pytest.mark.parametrize("text", ["", "uh"])
def test_it_begins_whatever_the_speech_was(text: str) -> None:
    talk = asked_amid_speech()
    talk.end()
    talk.heard(text)
    assert talk.started() == ["resp_1"]


def test_it_begins_when_the_speech_is_withdrawn() -> None:
    talk = asked_amid_speech()
    talk.do(talk.core.clear_input(talk.now_ns))
    assert talk.started() == ["resp_1"]


def test_it_begins_when_the_words_are_lost() -> None:
    talk = asked_amid_speech()
    talk.end()
    talk.do(talk.core.closed(talk.turn_tag(), "encoder", {}, ("oom", "no memory"), talk.now_ns))
    assert talk.started() == ["resp_1"]


def test_another_is_refused_until_then() -> None:
    talk = asked_amid_speech()
    create(talk)
    talk.end()
    create(talk)
    assert refusals(talk) == ["conversation_already_has_active_response"] * 2
    talk.heard("are we late?")
    assert talk.started() == ["resp_1"]


def test_one_that_is_no_part_of_the_conversation_waits_for_nobody() -> None:
    talk = Talk()
    talk.start()
    create(talk, OUTSIDE)
    assert talk.started() == ["resp_1"]


def test_in_a_pause_it_begins_at_once() -> None:
    talk = Talk()
    talk.start()
    talk.do(talk.core.speech_paused(talk.now_ns))
    create(talk)
    assert talk.started() == ["resp_1"]


# ---- its client does not want it any more --------------------------------------------------------------


def is_whole_end(talk: Talk, response: str, reason: str) -> bool:
    """Its client was told of its beginning, its terminal and that it holds nothing, once each, and nothing was made."""
    about = [event for event in talk.events if isinstance(event, ResponseStarted | ResponseFinished | ResponseDrained)]
    views = [event for event in about if isinstance(event, ResponseDrained) or event.response.id == response]
    ended = talk.finished(response)
    assert [type(event) for event in views][-3:] == [ResponseStarted, ResponseFinished, ResponseDrained]
    assert not [stream for stream in of(talk.effects, OpenStream) if stream.tag.response == response]
    return (ended.status, ended.reason) == ("cancelled", reason)


def test_a_cancel_withdraws_what_waits_for_the_end_of_speech() -> None:
    talk = asked_amid_speech(SILENT)
    cancel(talk)
    assert is_whole_end(talk, "resp_1", "client_cancelled")
    talk.end()
    talk.heard("are we late?")
    assert (talk.started(), refusals(talk)) == (["resp_1"], [])
    assert talk.core.epoch == EPOCH, "nothing was said that could be stale"
    create(talk)
    assert talk.active == "resp_2"


def test_a_cancel_withdraws_what_waits_for_the_words() -> None:
    talk = asked_amid_speech(SILENT)
    talk.end()
    cancel(talk)
    assert is_whole_end(talk, "resp_1", "client_cancelled")
    talk.heard("are we late?")
    assert talk.started() == ["resp_1"]


def test_what_is_withdrawn_takes_no_answer_of_the_turn_with_it() -> None:
    talk = asked_amid_speech()
    cancel(talk)
    talk.end()
    talk.heard("are we late?")
    assert talk.started() == ["resp_1", "resp_2"]
    assert talk.prompt("resp_2")[-1] == user("are we late?")


def test_a_cancel_stops_what_still_sounds_as_well() -> None:
    talk = Talk(without_interruption(), recalls=True)
    talk.say("hello")
    talk.reply("resp_1", "one two three")
    talk.send()
    talk.start()
    create(talk)
    effects = talk.do(talk.core.cancel_response(None, talk.now_ns))
    assert is_whole_end(talk, "resp_2", "client_cancelled")
    assert effects[0] == EndEpoch(EPOCH + 1), "before its client is told anything"
    assert "ItemTruncated" in kinds(effects)


def test_what_waits_behind_the_words_before_a_call_ends_with_them() -> None:
    talk = Talk(with_tools())
    talk.say("hello")
    talk.open("resp_1")
    talk.called("resp_1")
    create(talk)
    cancel(talk)
    assert talk.finished("resp_1").status == "cancelled"
    assert is_whole_end(talk, "resp_2", "client_cancelled")
    assert talk.core.speaking.active is None


def test_the_end_of_the_call_is_the_end_of_what_is_owed() -> None:
    talk = asked_amid_speech()
    talk.do(talk.core.close(talk.now_ns))
    assert is_whole_end(talk, "resp_1", "call_ended")


def test_what_answers_a_turn_was_never_promised_to_its_client() -> None:
    talk = Talk()
    talk.say("hello")
    talk.start(48_000)
    talk.end(64_000)
    talk.start(80_000)
    talk.heard("and you?", talk.opened_at("encoder")[-2].tag)
    talk.do(talk.core.close(talk.now_ns))
    assert talk.started() == ["resp_1"]


# ---- it does not wait for ever -------------------------------------------------------------------------


def tick(talk: Talk) -> None:
    talk.do(talk.core.tick(talk.now_ns, 0))


def test_what_is_due() -> None:
    assert Owed(Marks(), 1, 5).due_ns == 5 + OWED_NS_MAX


def test_speech_without_an_end_is_waited_for_no_longer_than_the_limit() -> None:
    talk = asked_amid_speech()
    assert talk.core.next_deadline_ns() == talk.now_ns + OWED_NS_MAX
    talk.now_ns += OWED_NS_MAX - 1
    tick(talk)
    assert talk.started() == []
    talk.now_ns += 1
    tick(talk)
    assert talk.started() == ["resp_1"]
    assert talk.prompt("resp_1") == (Message("system", "Say that the taxi is there."),)
    assert talk.core.hearing.current is not None, "who speaks on is heard on"
    talk.reply("resp_1", "one")
    talk.send()
    talk.let_go("resp_1")
    talk.end()
    talk.heard("where is it?")
    assert talk.started() == ["resp_1", "resp_2"]


def test_the_answer_of_a_turn_waits_no_longer_for_the_next_ones_either() -> None:
    talk = Talk()
    talk.start()
    talk.end()
    tag = talk.turn_tag()
    talk.start(48_000)
    talk.heard("hello", tag)
    due_ns = talk.now_ns + OWED_NS_MAX
    talk.later(10_000)
    talk.end(64_000)
    tag = talk.turn_tag()
    talk.start(80_000)
    talk.heard("are you there?", tag)
    assert talk.core.next_deadline_ns() == due_ns
    talk.now_ns = due_ns
    tick(talk)
    assert talk.prompt("resp_1")[1:] == (user("hello"), user("are you there?"))


def test_words_that_are_still_being_understood_come_first() -> None:
    talk = asked_amid_speech()
    talk.now_ns += OWED_NS_MAX - 1 * MS
    talk.end()
    talk.start(48_000)
    assert talk.core.next_deadline_ns() == talk.now_ns + TRANSCRIPT_NS_MAX, "that has a limit of its own"
    talk.now_ns += TRANSCRIPT_NS_MAX
    tick(talk)
    assert talk.started() == ["resp_1"]


def test_what_has_yet_to_drain_comes_first() -> None:
    talk = asked_amid_speech(SILENT)
    for _ in range(DRAINING_MAX):
        create(talk, OUTSIDE)
        talk.do(talk.core.cancel_response(talk.core.speaking.running[0].id, talk.now_ns))
    assert talk.core.next_deadline_ns() == talk.core.speaking.next_deadline_ns()
    outside = talk.started()
    talk.end()
    talk.heard("are we late?")
    assert talk.started() == outside
    talk.let_go(outside[0])
    assert len(talk.started()) == DRAINING_MAX + 1


# ---- what came of calls that the service carries out ---------------------------------------------------


def owing(talk: Talk) -> Owing:
    core = talk.core
    return Owing(Parts(core._hearing, core._speaking, core._remembered, core._making))


def test_what_came_of_calls_is_said_unless_something_else_is_owed() -> None:
    talk = Talk()
    owed = owing(talk)
    owed.follow(TOLD, talk.now_ns)
    assert (owed.is_owed, owed.is_asked_for) == (True, False), "no client waits for it"
    assert owed.withdraw("client_cancelled") == []
    owed.ask(TOLD, None, talk.now_ns)
    owed.follow(ResponseSpec(), talk.now_ns)
    assert owed.is_asked_for
    assert told(owed.withdraw("client_cancelled"), ResponseFinished)[0].response.reason == "client_cancelled"
