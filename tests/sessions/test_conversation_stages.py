"""Stages that refuse, fall silent, are lost and come back; and that deadlines end what they leave open."""

from __future__ import annotations

import pytest
from msgspec import structs

from sessions.effects import EndEpoch, FeedStream, HearFrom, OpenStream, SaveEpoch
from sessions.events import ItemAdded, ReplyText, ResponseDrained
from sessions.items import Item
from sessions.settings import Modality, ResponseSpec, SessionSettings
from stages.contracts import EncoderOptions, EndOfTurn, Message
from tests.sessions.talk import INSTRUCTIONS, MS, SYSTEM, Talk, of, samples_of, told, user


def test_an_encoder_that_was_lost_amid_an_utterance_hears_it_again() -> None:
    talk = Talk()
    talk.start()
    tag = talk.turn_tag()
    again = structs.replace(tag, attempt=1)
    effects = talk.do(talk.core.lost(tag, "encoder", talk.now_ns))
    assert effects == [OpenStream("encoder", again, EncoderOptions()), HearFrom(again, 11_200)]
    talk.end()
    talk.heard("every word of it")
    assert talk.prompt("resp_1") == (SYSTEM, user("every word of it"))


def test_an_encoder_that_was_lost_before_its_transcript_hears_the_turn_again_to_its_end() -> None:
    talk = Talk()
    talk.start()
    talk.end()
    tag = talk.turn_tag()
    effects = talk.do(talk.core.lost(tag, "encoder", talk.now_ns))
    assert of(effects, HearFrom) == [HearFrom(structs.replace(tag, attempt=1), 11_200, 32_000)]
    assert of(effects, FeedStream)[0].item == EndOfTurn(32_000)
    talk.heard("every word of it")
    assert talk.started() == ["resp_1"]


@pytest.mark.parametrize("stage", ["thinker", "talker", "vocoder"])
def test_a_response_whose_stage_is_lost_fails_and_the_next_turn_is_answered(stage: str) -> None:
    talk = Talk()
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", "Well")
    tag = talk.tag("resp_1")
    talk.do(talk.core.lost(tag, stage, talk.now_ns))
    assert (talk.finished("resp_1").status, talk.finished("resp_1").code) == ("failed", "stage_lost")
    assert of(talk.effects, EndEpoch) == []
    talk.let_go("resp_1", [other for other in ("thinker", "talker", "vocoder") if other != stage])
    assert talk.core.speaking.undrained == 1
    talk.do(talk.core.closed(tag, stage, {"process_exit": 1}, None, talk.now_ns))
    assert talk.core.speaking.undrained == 0
    talk.say("hello again")
    assert talk.active == "resp_2"
    assert talk.prompt("resp_2") == (SYSTEM, user("hello"), user("hello again"))


def test_a_response_that_a_stage_refuses_fails_by_the_name_of_the_reason() -> None:
    talk = Talk()
    talk.say("hello")
    talk.do(talk.core.refused(talk.tag("resp_1"), "vocoder", "capacity", "256 streams are open", talk.now_ns))
    view = talk.finished("resp_1")
    assert (view.status, view.code, view.message) == ("failed", "capacity", "256 streams are open")
    talk.let_go("resp_1", ("talker",))
    assert talk.core.speaking.undrained == 0


@pytest.mark.parametrize("stage", ["thinker", "talker", "vocoder"])
def test_a_response_of_which_nothing_was_said_is_made_again_where_its_stage_is_lost_and_once_only(stage: str) -> None:
    talk = Talk()
    talk.say("hello")
    talk.open("resp_1")
    first = talk.tag("resp_1")
    talk.do(talk.core.lost(first, stage, talk.now_ns))
    assert talk.core.speaking.active is not None
    assert talk.tag("resp_1") == structs.replace(first, attempt=1)
    assert talk.prompt("resp_1") == (SYSTEM, user("hello"))
    talk.do(talk.core.lost(talk.tag("resp_1"), stage, talk.now_ns))
    assert talk.finished("resp_1").code == "stage_lost"
    assert talk.started() == ["resp_1"]


def test_a_stage_that_was_lost_may_still_hold_what_it_had() -> None:
    talk = Talk()
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", "Well")
    talk.do(talk.core.lost(talk.tag("resp_1"), "thinker", talk.now_ns))
    talk.let_go("resp_1", ("talker", "vocoder"))
    assert talk.core.speaking.undrained == 1


@pytest.mark.parametrize("opened", [(), ("vocoder",), ("vocoder", "talker"), ("vocoder", "talker", "thinker")])
@pytest.mark.parametrize("modality", ["audio", "text"])
def test_vllm_omni_7006_a_cancel_is_one_terminal_of_what_was_asked_for_whoever_is_silent(
    opened: tuple[str, ...], modality: Modality
) -> None:
    """The first stage makes no sound itself, and what stages say of an ended response makes no second end."""
    talk = Talk()
    talk.do(talk.core.create_response(ResponseSpec(modalities=(modality,)), talk.now_ns))
    tag, asked = talk.tag("resp_1"), {e.stage for e in of(talk.effects, OpenStream) if e.tag.response == "resp_1"}
    for stage in opened:
        if stage in asked:
            talk.do(talk.core.opened(tag, stage, talk.now_ns))
            asked = {e.stage for e in of(talk.effects, OpenStream) if e.tag.response == "resp_1"}
    effects = talk.do(talk.core.cancel_response(None, talk.now_ns))
    view = talk.finished("resp_1")
    assert (view.status, view.reason, view.modalities) == ("cancelled", "client_cancelled", (modality,))
    assert talk.cancelled("resp_1") == asked
    assert told(effects, ResponseDrained) == []
    talk.text_done("resp_1")
    talk.audio("resp_1", 480, final=True)
    for stage in opened:
        talk.do(talk.core.opened(tag, stage, talk.now_ns))
    assert of(talk.events, ReplyText) == []
    assert talk.send() == []
    talk.let_go("resp_1", sorted(asked))
    talk.let_go("resp_1", sorted(asked))
    assert talk.finished("resp_1") == view
    assert len(of(talk.events, ResponseDrained)) == 1
    assert {e.stage for e in of(talk.effects, OpenStream) if e.tag.response == "resp_1"} == asked


def test_livekit_livekit_4484_a_response_whose_stages_say_nothing_ends_at_its_deadline() -> None:
    talk = Talk()
    talk.say("hello")
    due_ns = talk.core.next_deadline_ns()
    assert due_ns is not None
    talk.now_ns = due_ns
    talk.do(talk.core.tick(talk.now_ns, 0))
    assert talk.finished("resp_1").code == "deadline_exceeded"
    talk.say("are you there")
    assert talk.active == "resp_2"


def test_nothing_is_due_where_nothing_happens() -> None:
    talk = Talk()
    assert talk.core.next_deadline_ns() is None
    assert talk.core.tick(talk.now_ns, 0) == []
    assert talk.core.take_due(talk.now_ns) == []
    assert talk.core.settings == SessionSettings()


def test_openai_agents_python_3776_no_time_is_taken_from_a_clock_on_the_wall() -> None:
    """By one of those, all that was sent of the reply would have been heard for years."""
    talk = Talk(recalls=True, lead_ms=1_000)
    talk.now_ns = 5 * MS  # a machine that has just been started
    talk.say("hello")
    talk.reply("resp_1", "one two three four five six seven eight")
    began_ns = talk.now_ns
    talk.send()
    talk.later(500)
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    item = talk.core.items[-1]
    assert item.heard_samples == samples_of((talk.now_ns - began_ns) // MS)
    assert item.audio_samples >= samples_of(1_000)


def test_the_instructions_of_the_service_open_every_prompt_where_nobody_says_otherwise() -> None:
    talk = Talk()
    talk.say("hello")
    assert talk.prompt("resp_1")[0] == Message("system", INSTRUCTIONS)
    assert of(talk.effects, SaveEpoch) == []
    assert told(talk.effects, ItemAdded)[0] == ItemAdded(Item("item_1", "user", "", spoken=True), None)
