"""What a client may ask at any time, and that what cannot be done is refused by name and changes nothing."""

from __future__ import annotations

import pytest

from sessions.effects import CancelStream, EndEpoch, OpenStream, ResetGate, SaveDeletion, SaveItem, StopHearing
from sessions.events import (
    CommandRefused,
    InputCleared,
    ItemAdded,
    ItemDeleted,
    ItemRetrieved,
    ItemTruncated,
    MessageStarted,
    ResponseDrained,
    ResponseStarted,
)
from sessions.heard import REPLIES_MAX, Cut
from sessions.items import ROOT, Item
from sessions.responses import DRAINING_MAX
from sessions.settings import ResponseSpec, SessionSettings, TurnDetection
from stages.contracts import OUT_OF_BAND, Message, TalkerOptions, ThinkerOptions, VocoderOptions
from tests.sessions.talk import EPOCH, SYSTEM, WORD_SAMPLES, Talk, kinds, of, told, without_interruption

OUTSIDE = ResponseSpec(in_conversation=False)
SILENT = SessionSettings(turn_detection=TurnDetection(create_response=False))


def typed(name: str, text: str = "typed", role: str = "user") -> Item:
    return Item(name, "system" if role == "system" else "user", text, spoken=False)


def refusals(talk: Talk) -> list[str]:
    return [refusal.code for refusal in of(talk.events, CommandRefused)]


def create(talk: Talk, spec: ResponseSpec | None = None) -> None:
    talk.do(talk.core.create_response(spec or ResponseSpec(), talk.now_ns))


def cancel(talk: Talk, response: str | None = None) -> None:
    talk.do(talk.core.cancel_response(response, talk.now_ns))


# ---- items -----------------------------------------------------------------------------------------


def test_an_item_is_added_where_it_is_asked_for() -> None:
    talk = Talk()
    talk.do(talk.core.create_item(typed("a"), None))
    effects = talk.do(talk.core.create_item(typed("b"), ROOT))
    assert told(effects, ItemAdded) == [ItemAdded(typed("b"), None)]
    assert of(effects, SaveItem) == [SaveItem(typed("b"), None)]
    talk.do(talk.core.create_item(typed("c"), "b"))
    assert [item.id for item in talk.core.items] == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("item", "previous", "code", "param"),
    [("a", None, "item_exists", "item.id"), ("b", "nowhere", "item_not_found", "previous_item_id")],
)
def test_an_item_that_cannot_be_added_is_refused(item: str, previous: str | None, code: str, param: str) -> None:
    talk = Talk(items=(typed("a"),))
    effects = talk.do(talk.core.create_item(typed(item), previous))
    refusal = told(effects, CommandRefused)[0]
    assert (refusal.code, refusal.param) == (code, param)
    assert [each.id for each in talk.core.items] == ["a"]


def test_items_are_retrieved_and_deleted() -> None:
    talk = Talk(items=(typed("a"), typed("b")))
    assert told(talk.do(talk.core.retrieve_item("a")), ItemRetrieved) == [ItemRetrieved(typed("a"))]
    effects = talk.do(talk.core.delete_item("a"))
    assert told(effects, ItemDeleted) == [ItemDeleted("a")]
    assert of(effects, SaveDeletion) == [SaveDeletion("a")]
    for refused in (
        talk.core.retrieve_item("a"),
        talk.core.delete_item("a"),
        talk.truncate("a", 0),
    ):
        assert told(refused, CommandRefused)[0].code == "item_not_found"


def test_an_item_of_a_reply_that_is_not_over_is_not_to_be_had_yet() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "hi you")
    for effects in (talk.core.retrieve_item("item_2"), talk.core.delete_item("item_2")):
        (refused,) = told(talk.do(effects), CommandRefused)
        assert (refused.code, refused.param) == ("item_in_progress", "item_id")
    talk.send()
    assert told(talk.do(talk.core.retrieve_item("item_2")), ItemRetrieved) == [ItemRetrieved(talk.core.items[-1])]
    talk.do(talk.core.delete_item("item_2"))
    assert told(talk.do(talk.core.delete_item("item_2")), CommandRefused)[0].code == "item_not_found"


def test_an_item_that_is_deleted_while_it_is_being_understood_is_gone() -> None:
    talk = Talk(prepare=True)
    talk.start()
    talk.do(talk.core.speech_paused(30_000))
    talk.heard("forget it", final=False)
    talk.end()
    talk.do(talk.core.delete_item("item_1"))
    talk.heard("forget it")
    assert talk.texts == []
    assert talk.started() == []
    assert talk.core.speaking.prepared is None


def test_a_reply_stands_where_it_was_said_even_if_what_it_answers_is_deleted() -> None:
    talk = Talk(without_interruption())
    talk.say("hello")
    talk.reply("resp_1", "hi you")
    talk.say("how are you")
    talk.do(talk.core.delete_item("item_1"))
    talk.send()
    assert talk.texts == [("assistant", "hi you"), ("user", "how are you")]
    assert talk.active == "resp_2"


def test_a_reply_whose_place_was_a_cough_stands_before_what_came_later() -> None:
    talk = Talk(without_interruption(), items=(typed("a"),))
    talk.start()
    talk.end()
    cough = talk.turn_tag()
    create(talk, ResponseSpec(messages=(("user", "greet"),)))
    talk.reply("resp_1", "hi you")
    talk.heard("", cough)
    talk.say("how are you")
    talk.send()
    assert talk.texts == [("user", "typed"), ("assistant", "hi you"), ("user", "how are you")]


# ---- truncation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked_ms", "given_ms"), [(0, 0), (150, 150), (400, 400), (401, 400), (90_000, 400)])
def test_openai_agents_python_2370_a_truncation_is_clamped_to_what_was_sent(asked_ms: int, given_ms: int) -> None:
    talk = Talk()
    talk.answered("hello", "hi you")
    effects = talk.truncate("item_2", asked_ms)
    assert [(one.item, one.audio_end_ms) for one in told(effects, ItemTruncated)] == [("item_2", given_ms)]
    assert refusals(talk) == []


@pytest.mark.parametrize("asked_ms", [500, 501, 10**18])
def test_a_truncation_amid_a_reply_is_clamped_to_what_was_sent_by_then(asked_ms: int) -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "one two three")
    talk.send(25)
    assert told(talk.truncate("item_2", asked_ms), ItemTruncated) == [ItemTruncated("item_2", 500)]
    talk.send()
    assert talk.core.items[-1].heard_samples == 500 * 24, "what is sent later was not played either"


@pytest.mark.parametrize(("ms", "text", "word"), [(0, "", ""), (250, "hi", "you"), (200, "hi", "")])
def test_history_ends_where_the_client_stopped_playing(ms: int, text: str, word: str) -> None:
    talk = Talk()
    talk.answered("hello", "hi you")
    effects = talk.truncate("item_2", ms)
    item = talk.core.items[-1]
    assert (item.text, item.cut, item.cut_word) == (text, True, word)
    assert (item.heard_samples, item.heard_basis, item.status) == (ms * 24, "acked", "incomplete")
    assert of(effects, SaveItem) == [SaveItem(item, "item_1")]
    cut = Cut(ms * 24, text, word, "acked")
    assert told(effects, ItemTruncated) == [ItemTruncated("item_2", ms, cut)]


def test_a_client_that_truncates_at_the_end_changes_nothing() -> None:
    talk = Talk()
    talk.answered("hello", "hi you")
    item = talk.core.items[-1]
    effects = talk.truncate("item_2", 400)
    assert of(effects, SaveItem) == []
    assert told(effects, ItemTruncated) == [ItemTruncated("item_2", 400)]
    assert talk.core.items[-1] == item


def test_after_our_own_cut_the_client_knows_better() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "one two three")
    talk.send(25)
    talk.start(48_000)
    assert talk.texts[-1] == ("assistant", "one two")
    talk.truncate("item_2", 250)
    assert talk.texts[-1] == ("assistant", "one")
    talk.truncate("item_2", 90_000)
    assert talk.texts[-1] == ("assistant", "one two"), "no more than was sent"


@pytest.mark.parametrize("truncates_first", [True, False])
def test_a_truncation_and_a_cancel_come_in_either_order(truncates_first: bool) -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "one two three")
    talk.send(25)
    if truncates_first:
        assert told(talk.truncate("item_2", 250), ItemTruncated) == [ItemTruncated("item_2", 250)]
        cancel(talk)
    else:
        cancel(talk)
        talk.truncate("item_2", 250)
    item = talk.core.items[-1]
    assert (item.text, item.cut_word, item.heard_samples) == ("one", "two", 250 * 24)


def test_a_reply_of_an_earlier_gateway_is_truncated_by_its_share() -> None:
    reply = Item("old", "assistant", "one two three four", spoken=True, audio_samples=4 * WORD_SAMPLES)
    talk = Talk(items=(reply,))
    talk.truncate("old", 500)
    assert (talk.core.items[0].text, talk.core.items[0].cut_word) == ("one two", "three")


def test_openai_agents_python_4457_a_truncation_to_nothing_is_accepted_of_a_reply_that_said_no_word() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "hi you")
    talk.send(1)
    talk.start(48_000)
    (truncated,) = told(talk.truncate("item_2", 0), ItemTruncated)
    assert truncated == ItemTruncated("item_2", 0, Cut(0, "", "", "acked"))


def test_pipecat_2106_a_wrong_truncation_disables_nothing() -> None:
    talk = Talk()
    talk.answered("hello", "hi you")
    talk.truncate("nowhere", 10)
    talk.truncate("item_1", 10)
    assert refusals(talk) == ["item_not_found", "invalid_item"]
    talk.say("again")
    talk.reply("resp_2", "here I am")
    talk.send()
    assert talk.finished("resp_2").status == "completed"


def test_only_what_was_spoken_can_be_truncated() -> None:
    talk = Talk(SessionSettings(modalities=("text",)), items=(typed("a"),))
    talk.say("hello")
    talk.text("resp_1", "hi")
    talk.text_done("resp_1")
    for item in ("a", "item_1", "item_2"):
        talk.truncate(item, 0)
    assert refusals(talk) == ["invalid_item"] * 3


def test_what_cannot_be_truncated_cannot_be_while_it_is_made() -> None:
    talk = Talk(SessionSettings(modalities=("text",)))
    talk.say("hello")
    create(talk, ResponseSpec(in_conversation=False, modalities=("audio",)))
    talk.reply("resp_2", "out of band")
    talk.send()
    talk.text("resp_1", "hi")
    for item in ("item_2", "item_3"):
        assert told(talk.truncate(item, 500), ItemTruncated) == []
    assert refusals(talk) == ["invalid_item", "item_not_found"]
    talk.text_done("resp_1")
    for item in ("item_2", "item_3"):
        talk.truncate(item, 500)
    assert refusals(talk) == ["invalid_item", "item_not_found"] * 2


def test_openai_agents_python_2009_what_was_heard_is_known_without_any_truncation() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "one two three")
    talk.send(10)
    talk.start(48_000)
    assert talk.texts[-1] == ("assistant", "one")


# ---- input -----------------------------------------------------------------------------------------


def test_input_that_is_cleared_is_heard_by_nobody_and_ends_no_epoch() -> None:
    talk = Talk()
    talk.start()
    effects = talk.do(talk.core.clear_input(talk.now_ns))
    assert kinds(effects) == ["StopHearing", "CancelStream", "CancelStream", "ResetGate", "InputCleared"]
    assert talk.core.epoch == EPOCH
    assert talk.end() == []
    assert talk.core.items == ()


def test_clearing_nothing_is_no_fault() -> None:
    talk = Talk()
    assert kinds(talk.do(talk.core.clear_input(talk.now_ns))) == ["ResetGate", "InputCleared"]
    assert of(talk.effects, ResetGate) == [ResetGate()]
    assert of(talk.events, InputCleared) == [InputCleared()]
    assert of(talk.effects, StopHearing) == []


def test_a_turn_that_was_understood_is_answered_once_the_next_is_thrown_away() -> None:
    talk = Talk()
    talk.start()
    talk.end()
    first = talk.turn_tag()
    talk.start(48_000)
    talk.heard("what time is it", first)
    talk.do(talk.core.clear_input(talk.now_ns))
    assert talk.started() == ["resp_1"]


def test_a_turn_that_is_on_its_way_survives_a_clear() -> None:
    talk = Talk()
    talk.start()
    talk.end()
    talk.do(talk.core.clear_input(talk.now_ns))
    talk.heard("hello")
    assert talk.started() == ["resp_1"]


def test_an_empty_commit_is_refused() -> None:
    talk = Talk()
    talk.do(talk.core.commit_input(16_000, 16_000, talk.now_ns))
    assert refusals(talk) == ["input_audio_buffer_commit_empty"]
    assert talk.core.items == ()


# ---- responses -------------------------------------------------------------------------------------


def test_a_response_is_made_when_it_is_asked_for() -> None:
    talk = Talk(SILENT)
    talk.do(talk.core.create_item(typed("a", "what is up"), None))
    spec = ResponseSpec(metadata=(("topic", "greeting"),))
    create(talk, spec)
    assert of(talk.events, ResponseStarted)[0].response.metadata == spec.metadata
    assert of(talk.events, MessageStarted)[0].previous == "a"
    assert talk.prompt("resp_1") == (SYSTEM, Message("user", "what is up"))


def test_a_second_response_of_the_conversation_is_refused() -> None:
    talk = Talk()
    talk.say("hello")
    create(talk)
    assert refusals(talk) == ["conversation_already_has_active_response"]
    assert talk.active == "resp_1"


def test_one_response_outside_the_conversation_at_a_time() -> None:
    talk = Talk()
    talk.say("hello")
    create(talk, OUTSIDE)
    create(talk, OUTSIDE)
    assert refusals(talk) == ["out_of_band_response_active"]
    assert talk.active == "resp_1"
    cancel(talk, "resp_2")
    create(talk, OUTSIDE)
    assert talk.started() == ["resp_1", "resp_2", "resp_3"]


def test_a_response_outside_the_conversation_leaves_no_trace_in_it() -> None:
    talk = Talk(items=(typed("a"),))
    create(talk, ResponseSpec(in_conversation=False, messages=(("user", "classify"),)))
    talk.reply("resp_1", "fine")
    talk.send()
    talk.let_go("resp_1")
    assert talk.texts == [("user", "typed")]
    assert of(talk.effects, SaveItem) == []
    assert talk.core.epoch == EPOCH
    view = talk.finished("resp_1")
    assert (view.status, view.epoch, view.in_conversation) == ("completed", OUT_OF_BAND, False)
    assert talk.options("resp_1")["thinker"] == ThinkerOptions((SYSTEM, Message("user", "classify")), 100, spare=True)
    assert of(talk.events, MessageStarted)[0].previous is None


def test_a_response_outside_the_conversation_that_is_cancelled_ends_no_epoch() -> None:
    talk = Talk()
    talk.say("hello")
    create(talk, OUTSIDE)
    cancel(talk, "resp_2")
    assert talk.finished("resp_2").reason == "client_cancelled"
    assert of(talk.effects, EndEpoch) == []
    assert talk.active == "resp_1"


def test_a_cancel_beside_the_conversation_takes_no_answer_from_it() -> None:
    talk = Talk(without_interruption())
    talk.say("hello")
    create(talk, OUTSIDE)
    talk.reply("resp_1", "hi you")
    talk.say("how are you")  # owed once the reply has ended
    cancel(talk, "resp_2")
    cancel(talk, "resp_99")
    talk.send()
    assert talk.active == "resp_3"


@pytest.mark.parametrize("named", [None, "resp_1"])
def test_a_cancel_ends_the_active_response_and_its_epoch(named: str | None) -> None:
    talk = Talk()
    talk.say("hello")
    talk.open("resp_1")
    cancel(talk, named)
    view = talk.finished("resp_1")
    assert (view.status, view.reason) == ("cancelled", "client_cancelled")
    assert of(talk.effects, EndEpoch) == [EndEpoch(EPOCH + 1)]
    assert talk.cancelled("resp_1") == {"thinker", "talker", "vocoder"}
    talk.let_go("resp_1")
    assert of(talk.events, ResponseDrained)[0].status == "complete"


def test_who_cancels_the_active_response_wants_no_other_in_its_place() -> None:
    talk = Talk(without_interruption())
    talk.say("hello")
    talk.reply("resp_1", "hi you")
    talk.say("how are you")
    cancel(talk)
    assert talk.started() == ["resp_1"]
    assert talk.core.speaking.active is None


@pytest.mark.parametrize("named", [None, "resp_1", "nowhere"])
def test_a_cancel_of_what_is_not_in_progress_is_refused(named: str | None) -> None:
    talk = Talk()
    talk.answered("hello", "hi you")
    effects = talk.do(talk.core.cancel_response(named, talk.now_ns))
    refusal = told(effects, CommandRefused)[0]
    assert (refusal.code, refusal.param) == ("response_cancel_not_active", "response_id")
    assert (named or "no response") in refusal.message
    assert of(effects, CancelStream) == []
    assert talk.core.epoch == EPOCH


def test_a_cancel_before_the_caller_is_understood_is_refused_and_the_turn_answered() -> None:
    talk = Talk()
    talk.start()
    talk.end()
    cancel(talk)
    assert refusals(talk) == ["response_cancel_not_active"]
    talk.heard("hello")
    assert talk.active == "resp_1"


def test_responses_asked_for_and_cancelled_without_end_are_refused_before_they_pile_up() -> None:
    talk = Talk(SILENT, items=(typed("a"),))
    for _ in range(DRAINING_MAX):
        create(talk)
        cancel(talk)
    create(talk)
    assert refusals(talk) == ["too_many_responses"]
    talk.let_go("resp_1")  # it was never opened at the head, but what closes it is one of these
    create(talk)
    assert len(talk.started()) == DRAINING_MAX + 1


def test_a_turn_that_was_understood_while_too_much_drains_is_answered_when_there_is_room() -> None:
    talk = Talk(items=(typed("a"),), prepare=True)
    for _ in range(DRAINING_MAX):
        create(talk)
        cancel(talk)
    talk.start()
    talk.do(talk.core.speech_paused(30_000))
    talk.heard("hello", final=False)
    assert talk.core.speaking.prepared is None
    talk.end()
    talk.heard("hello")
    assert talk.core.speaking.active is None
    talk.let_go("resp_1")
    assert talk.prompt(talk.active)[-1] == Message("user", "hello")


def test_settings_hold_from_the_next_response_on() -> None:
    talk = Talk()
    talk.say("hello")
    talk.update(SessionSettings(instructions="Be brief.", modalities=("text",)))
    talk.reply("resp_1", "hi you")
    talk.send()
    assert talk.core.items[-1].audio_samples == 2 * WORD_SAMPLES
    talk.say("and now")
    assert [effect.stage for effect in of(talk.effects, OpenStream) if effect.tag.response == "resp_2"] == ["thinker"]
    assert talk.prompt("resp_2")[0] == Message("system", "Be brief.")


@pytest.mark.parametrize(("asked", "spoken"), [("amy", "amy"), ("joe", "joe"), ("", ""), ("marin", "")])
def test_a_session_chooses_among_the_voices_that_there_are(asked: str, spoken: str) -> None:
    talk = Talk(SessionSettings(voice=asked))
    talk.say("hello")
    options = talk.options("resp_1")
    assert options["talker"] == TalkerOptions(voice=spoken)
    assert options["vocoder"] == VocoderOptions(voice=spoken)


# ---- the end of the call ---------------------------------------------------------------------------


def test_a_call_that_ends_ends_all_that_runs_for_it() -> None:
    talk = Talk(without_interruption())
    talk.say("hello")
    create(talk, OUTSIDE)
    talk.start(48_000)
    effects = talk.do(talk.core.close(talk.now_ns))
    assert [talk.finished(name).status for name in ("resp_1", "resp_2")] == ["cancelled", "cancelled"]
    assert of(effects, EndEpoch) == [EndEpoch(EPOCH + 1)]
    assert of(effects, StopHearing) != []
    for response in ("resp_1", "resp_2"):
        talk.let_go(response)
    assert talk.core.speaking.undrained == 0


def test_a_call_that_ends_while_an_answer_is_prepared_withdraws_it() -> None:
    talk = Talk(prepare=True)
    talk.start()
    talk.do(talk.core.speech_paused(30_000))
    talk.heard("hello", final=False)
    talk.do(talk.core.close(talk.now_ns))
    talk.let_go("resp_1")
    assert talk.started() == []
    assert talk.core.speaking.undrained == 0


def test_what_is_understood_after_the_end_of_a_call_is_saved_and_not_answered() -> None:
    talk = Talk()
    talk.start()
    talk.end()
    talk.do(talk.core.close(talk.now_ns))
    effects = talk.heard("goodbye")
    assert talk.texts == [("user", "goodbye")]
    assert of(effects, SaveItem) != []
    assert (talk.started(), of(effects, OpenStream)) == ([], [])


def test_many_that_were_cancelled_and_hold_what_they_had_end_by_their_deadlines() -> None:
    talk = Talk(SILENT, items=(typed("a"),))
    for _ in range(2 * REPLIES_MAX):
        create(talk)
        talk.open(talk.active)
        cancel(talk)
    while (due_ns := talk.core.next_deadline_ns()) is not None:
        talk.now_ns = due_ns
        talk.do(talk.core.tick(talk.now_ns, 0))
    assert [drained.status for drained in of(talk.events, ResponseDrained)] == ["orphaned"] * 2 * REPLIES_MAX
