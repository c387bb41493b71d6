"""Every moment at which a reply can be stopped, by speech, by the client or by a key, with all that follows in order.

The client throws away what it has not played, and 200 ms at most are on their way to its ear.
"""

from __future__ import annotations

import pytest

from sessions.effects import Effect, EndEpoch, FeedStream, SaveItem
from sessions.events import (
    CallFinished,
    CommandRefused,
    ItemAdded,
    ItemTruncated,
    ReplyAudio,
    ResponseDrained,
    ResponseFinished,
    ResponseStarted,
    SpeechStarted,
    TurnHeld,
)
from sessions.items import Item
from sessions.prompt import INTERRUPTED, PENDING
from sessions.settings import ResponseSpec, SessionSettings
from stages.contracts import CallDone, Message, Pause, SpeechResumed, ToolCall
from tests.sessions.talk import (
    CITY,
    EPOCH,
    SYSTEM,
    Talk,
    assistant,
    kinds,
    of,
    samples_of,
    told,
    user,
    without_interruption,
)
from tests.sessions.windows import (
    CALL,
    CALL_ITEM,
    ENDED,
    HEARD,
    ONSET,
    READING,
    SAID,
    SPEECH,
    STREAMS,
    WORDS,
    State,
    Stop,
    asked,
    asked_with_tools,
    at_work,
    at_work_while_words_are_heard,
    at_work_while_words_are_said,
    before_the_first_sample,
    between_done_and_drained,
    cancel,
    clear,
    done_and_unplayed,
    during_generation,
    held,
    idle,
    key,
    listening,
    play,
    with_its_first_sample,
    writing_a_call,
)

# ---- speech ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "text", "heard_ms"),
    [(before_the_first_sample, "", 0), (with_its_first_sample, "", 0), (during_generation, "one", 220)],
)
def test_speech_before_the_end_of_a_reply(window: State, text: str, heard_ms: int) -> None:
    talk = asked()
    window(talk)
    reads_ahead = window is with_its_first_sample  # its text is whole, and the next prompt is being read
    effects = talk.start(ONSET)
    saved = ["Measured", "SaveItem"] if told(talk.effects, ReplyAudio) else []
    assert kinds(effects) == [
        *SPEECH,
        *ENDED,
        "SpeechStarted",
        *STREAMS,
        "ResponseFinished",
        *saved,
        *(["CancelStream"] if reads_ahead else []),
        *READING,
        "Measured",
    ]
    end = talk.finished("resp_1")
    assert (end.status, end.reason, end.text) == ("cancelled", "turn_detected", text)
    heard = [item.heard_samples for item in talk.core.items if item.role == "assistant"]
    assert heard == ([samples_of(heard_ms)] if saved else [])
    assert told(talk.send(), ReplyAudio) == []
    talk.say("go on")
    said = (assistant(f"{text} —"), INTERRUPTED) if text else ()
    assert talk.prompt("resp_2") == (SYSTEM, user("hello"), *said, user("go on"))


def test_speech_after_done_while_sound_is_unplayed() -> None:
    talk = asked()
    done_and_unplayed(talk)
    effects = talk.start(ONSET)
    assert kinds(effects) == [
        *SPEECH,
        *ENDED,
        "SpeechStarted",
        "SaveItem",
        "ItemTruncated",
        "CancelStream",
        *READING,
        "Measured",
    ]
    assert told(effects, ItemTruncated) == [ItemTruncated("item_2", 420, HEARD)]
    assert told(effects, ResponseFinished) == [], "it has had its terminal"
    assert talk.texts == [SAID, ("assistant", "one two")]


def test_speech_between_done_and_drained() -> None:
    talk = asked()
    between_done_and_drained(talk)
    effects = talk.start(ONSET)
    assert kinds(effects) == ["OpenStream", "HearFrom", "SpeechStarted", "CancelStream", *READING]
    assert talk.core.epoch == EPOCH
    assert talk.texts == [SAID, ("assistant", WORDS)]
    assert told(talk.let_go("resp_1"), ResponseDrained)[0].status == "complete"


def test_speech_twice_in_quick_succession() -> None:
    talk = asked()
    during_generation(talk)
    talk.start(ONSET)
    talk.end(50_000)
    talk.heard("wait")
    assert talk.active == "resp_2"
    effects = talk.start(51_000)
    assert kinds(effects) == [*SPEECH, *ENDED, "SpeechStarted", *STREAMS[1:], "ResponseFinished", *READING, "Measured"]
    assert [talk.finished(name).reason for name in ("resp_1", "resp_2")] == ["turn_detected"] * 2
    assert [end.epoch for end in of(talk.effects, EndEpoch)] == [EPOCH + 1, EPOCH + 2]
    talk.end(66_000)
    talk.heard("go on")
    assert talk.prompt("resp_3") == (
        SYSTEM,
        user("hello"),
        assistant("one —"),
        INTERRUPTED,
        user("wait"),
        user("go on"),
    )


@pytest.mark.parametrize("sound_first", [True, False])
def test_speech_that_begins_in_the_same_frame_as_the_first_sample(sound_first: bool) -> None:
    """Whichever of the two is noticed first: nothing is lost if the reply goes on, and nothing heard if it does not."""
    talk = asked()
    talk.reply("resp_1", WORDS)
    if sound_first:
        talk.send(1)
    talk.do(talk.core.held(ONSET, talk.now_ns))
    faded = sum(event.frame.samples for event in told(talk.send(), ReplyAudio))
    assert faded == (samples_of(10) if sound_first else 0), "what sounds fades out, and nothing begins"
    talk.do(talk.core.resumed("short"))
    play(talk, 800)
    audio = of(talk.events, ReplyAudio)
    starts = [event.frame.start_sample for event in audio]
    assert starts == [0, *(event.frame.end_sample for event in audio[:-1])]
    assert (talk.finished("resp_1").status, talk.finished("resp_1").text) == ("completed", WORDS)


def test_speech_that_begins_with_the_first_sample_and_interrupts() -> None:
    talk = asked()
    talk.reply("resp_1", WORDS)
    talk.do(talk.core.held(ONSET, talk.now_ns))
    assert talk.send() == []
    talk.do(talk.core.interrupted(ONSET, "words", talk.now_ns))
    assert of(talk.events, ReplyAudio) == []
    assert (talk.finished("resp_1").text, talk.texts) == ("", [SAID])


def test_a_cough_between_the_callers_turn_and_the_reply() -> None:
    """It stops a reply of which nothing was heard; the caller's question is answered all the same, once."""
    talk = asked()
    before_the_first_sample(talk)
    talk.start(ONSET)
    talk.end(50_000)
    effects = talk.heard("")
    assert kinds(effects)[:4] == ["CallerText", "Measured", "SaveDeletion", "ItemDeleted"]
    assert told(effects, ResponseStarted)[0].response.id == "resp_2"
    assert talk.texts == [SAID]
    assert talk.prompt("resp_2") == (SYSTEM, user("hello"))


def test_a_cough_that_comes_while_the_callers_turn_is_understood() -> None:
    talk = Talk(recalls=True, lead_ms=200)
    talk.start()
    talk.end()
    question = talk.turn_tag()
    talk.start(ONSET)
    talk.heard("hello", question)
    assert talk.started() == [], "somebody may be speaking on"
    talk.end(50_000)
    talk.heard("")
    assert talk.started() == ["resp_1"]
    assert talk.prompt("resp_1") == (SYSTEM, user("hello"))
    assert of(talk.effects, EndEpoch) == []


@pytest.mark.parametrize(
    "window", [before_the_first_sample, with_its_first_sample, during_generation, done_and_unplayed]
)
def test_where_speech_must_not_interrupt_nothing_is_ever_held(window: State) -> None:
    talk = asked(without_interruption())
    window(talk)
    assert not talk.core.saying(talk.now_ns).may_be_held
    effects = talk.start(ONSET)
    assert told(effects, SpeechStarted) != []
    assert told(effects, TurnHeld) == []
    assert of(effects, EndEpoch) == []


# ---- explicit stops --------------------------------------------------------------------------------


STOPS = pytest.mark.parametrize("stop", [cancel, clear, key])
SETTINGS = pytest.mark.parametrize("settings", [SessionSettings(), without_interruption()], ids=["cut", "uncut"])


@STOPS
@SETTINGS
@pytest.mark.parametrize(
    ("window", "text"), [(before_the_first_sample, ""), (with_its_first_sample, ""), (during_generation, "one")]
)
def test_a_stop_ends_what_is_being_said(window: State, text: str, settings: SessionSettings, stop: Stop) -> None:
    talk = asked(settings)
    window(talk)
    saved = ["Measured", "SaveItem"] if told(talk.effects, ReplyAudio) else []
    effects = stop(talk)
    assert kinds(effects) == [*ENDED, *STREAMS, "ResponseFinished", *saved]
    end = talk.finished("resp_1")
    assert (end.status, end.text) == ("cancelled", text)
    assert end.reason == ("dtmf" if stop is key else "client_cancelled")
    assert told(effects, TurnHeld) == []
    assert told(talk.send(), ReplyAudio) == []
    assert stop(talk) == [] or told(talk.effects, CommandRefused), "once"
    assert talk.core.epoch == EPOCH + 1


@STOPS
def test_a_stop_of_what_is_held_leaves_the_speech_that_holds_it(stop: Stop) -> None:
    talk = asked()
    held(talk)
    effects = stop(talk)
    assert kinds(effects) == [*ENDED, *STREAMS, "ResponseFinished", "Measured", "SaveItem"]
    talk.do(talk.core.resumed("floor_free"))
    assert told(talk.do(talk.core.speech_started(ONSET, talk.now_ns)), SpeechStarted)[0].audio_start_ms == 3_000
    talk.end(64_000)
    talk.heard("stop it")
    assert talk.active == "resp_2"
    assert told(talk.send(), ReplyAudio) == []


@STOPS
@SETTINGS
def test_a_stop_ends_what_is_over_and_still_sounds(settings: SessionSettings, stop: Stop) -> None:
    talk = asked(settings)
    done_and_unplayed(talk)
    effects = stop(talk)
    assert kinds(effects) == [*ENDED, "SaveItem", "ItemTruncated"]
    assert told(effects, ItemTruncated) == [ItemTruncated("item_2", 420, HEARD)]
    assert talk.texts == [SAID, ("assistant", "one two")]
    assert talk.core.epoch == EPOCH + 1


@STOPS
@pytest.mark.parametrize("window", [between_done_and_drained, idle, listening])
def test_a_stop_of_nothing_changes_nothing(window: State, stop: Stop) -> None:
    talk = asked()
    window(talk)
    effects = stop(talk)
    assert kinds(effects) == (["CommandRefused"] if stop is cancel else [])
    assert talk.core.epoch == EPOCH
    assert talk.texts == [SAID, ("assistant", WORDS)]
    if window is listening:
        talk.end(64_000)
        talk.heard("go on")
        assert talk.active == "resp_2"


@pytest.mark.parametrize("stop", [clear, key])
def test_a_stop_while_the_caller_is_understood_takes_no_answer_from_them(stop: Stop) -> None:
    talk = Talk(recalls=True, lead_ms=200)
    talk.start()
    talk.end()
    assert stop(talk) == []
    talk.heard("hello")
    assert talk.started() == ["resp_1"]


@pytest.mark.parametrize("stop", [clear, key])
def test_who_stops_a_reply_wants_no_other_in_its_place(stop: Stop) -> None:
    talk = asked(without_interruption())
    during_generation(talk)
    talk.say("and you")  # owed once the reply has ended
    stop(talk)
    assert talk.started() == ["resp_1"]


def test_a_stop_ends_with_the_next_reply_what_still_sounds_of_the_last() -> None:
    talk = asked()
    done_and_unplayed(talk)
    talk.do(talk.core.create_item(Item("typed", "user", "go on", spoken=False), None))
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    effects = cancel(talk)
    assert kinds(effects) == [*ENDED, "SaveItem", "ItemTruncated", "CancelStream", "CancelStream", "ResponseFinished"]
    assert of(effects, SaveItem)[0].item.text == "one two"


def another_reply_is_over(talk: Talk) -> None:
    """20 ms long, and all of it is behind the end of the one before."""
    done_and_unplayed(talk)
    talk.do(talk.core.create_item(Item("typed", "user", "go on", spoken=False), None))
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    talk.open("resp_2")
    talk.text("resp_2", "no")
    talk.text_done("resp_2")
    talk.words("resp_2", "no")
    talk.audio("resp_2", samples_of(20), final=True)
    talk.send()
    assert talk.finished("resp_2").status == "completed"


def holding(talk: Talk) -> list[Effect]:
    return talk.do(talk.core.held(ONSET, talk.now_ns))


def interruption(talk: Talk) -> list[Effect]:
    return talk.start(ONSET)


@pytest.mark.parametrize("stop", [cancel, clear, key, interruption])
def test_a_stop_ends_all_replies_that_are_over_and_still_to_be_heard(stop: Stop) -> None:
    talk = asked()
    another_reply_is_over(talk)
    truncated = told(stop(talk), ItemTruncated)
    assert [(one.item, one.audio_end_ms) for one in truncated] == [("item_2", 420), ("item_3", 0)]
    assert not talk.core.speaking.is_sounding(talk.now_ns)
    assert talk.texts == [SAID, ("assistant", "one two"), ("user", "go on"), ("assistant", "")]


# ---- calls of tools ----------------------------------------------------------------------------------


def call_of(talk: Talk) -> Item:
    """The one call of the history."""
    (call,) = (item for item in talk.core.items if item.kind == "function_call")
    return call


def what_was_found_is_read_by_the_next_reply(talk: Talk, *before: Message) -> None:
    """The result comes late and starts nothing; the caller's words are answered with it."""
    calls = (ToolCall(CALL, "get_weather", CITY),)
    started = talk.started()
    assert kinds(talk.answer(CALL, "sunny")) == ["ItemAdded", "SaveItem"]
    assert told(talk.effects, ItemAdded)[-1].previous == CALL_ITEM
    assert talk.started() == started, "unasked, it starts no reply"
    talk.end(64_000)
    talk.heard("and tomorrow?")
    (reply,) = set(talk.started()) - set(started)
    assert talk.prompt(reply) == (
        SYSTEM,
        user("hello"),
        *before,
        Message("assistant", "", calls=calls),
        Message("tool", "sunny", call_id=CALL),
        user("and tomorrow?"),
    )


def test_speech_while_a_call_is_written() -> None:
    talk = asked_with_tools()
    writing_a_call(talk)
    effects = talk.start(ONSET)
    assert kinds(effects) == [
        *SPEECH,
        *ENDED,
        "SpeechStarted",
        *STREAMS,
        "CallFinished",
        "ResponseFinished",
        "SaveItem",
        *READING,
        "Measured",
    ]
    broken = Item(
        CALL_ITEM,
        "assistant",
        '{"city":',
        spoken=False,
        status="incomplete",
        kind="function_call",
        call_id=CALL,
        name="get_weather",
    )
    assert told(effects, CallFinished) == [CallFinished("resp_1", broken, "item_1")]
    end = talk.finished("resp_1")
    assert (end.status, end.reason, end.text, end.calls) == ("cancelled", "turn_detected", "", (broken,))
    assert call_of(talk) == broken
    assert talk.publish("resp_1", CallDone(0, CITY)) == [], "what comes late makes no call of it"
    refused = told(talk.answer(CALL, "sunny"), CommandRefused)
    assert [(one.code, one.param) for one in refused] == [("tool_call_incomplete", "item.call_id")]
    talk.end(64_000)
    talk.heard("never mind")
    assert talk.prompt("resp_2") == (SYSTEM, user("hello"), user("never mind")), "no model believes that it was made"


def test_speech_while_the_client_carries_a_call_out() -> None:
    talk = asked_with_tools()
    at_work(talk)
    effects = talk.start(ONSET)
    assert kinds(effects) == ["OpenStream", "HearFrom", "SpeechStarted", "CancelStream", *READING], "nothing is cut"
    assert talk.core.epoch == EPOCH
    assert call_of(talk).status == "completed"
    what_was_found_is_read_by_the_next_reply(talk)


def test_a_reply_between_a_call_and_its_result_knows_that_it_is_pending() -> None:
    talk = asked_with_tools()
    at_work(talk)
    talk.start(ONSET)
    talk.end(64_000)
    talk.heard("are you there?")
    assert [(one.role, one.content) for one in talk.prompt("resp_2")] == [
        ("system", SYSTEM.content),
        ("user", "hello"),
        ("assistant", ""),
        ("tool", PENDING),
        ("user", "are you there?"),
    ]
    assert talk.prefilled()[-1].messages[-2:] == talk.prompt("resp_2")[-3:-1], "it is read ahead as it will be"


def test_a_result_that_comes_before_a_reply_has_begun_is_read_by_it() -> None:
    talk = asked_with_tools()
    at_work(talk)
    talk.start(ONSET)
    talk.end(64_000)
    talk.heard("and?")
    assert talk.prompt("resp_2")[-2] == Message("tool", PENDING, call_id=CALL)
    talk.answer(CALL, "sunny")
    assert talk.prompt("resp_2")[-2:] == (Message("tool", "sunny", call_id=CALL), user("and?"))


def test_a_response_that_is_asked_for_while_the_caller_speaks_begins_behind_their_words() -> None:
    talk = asked_with_tools()
    at_work(talk)
    talk.start(ONSET)
    talk.answer(CALL, "sunny")
    assert talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns)) == []
    talk.end(64_000)
    assert told(talk.heard("and tomorrow?"), ResponseStarted)[0].response.id == "resp_2"
    assert talk.prompt("resp_2")[-2:] == (Message("tool", "sunny", call_id=CALL), user("and tomorrow?"))


@pytest.mark.parametrize("window", [at_work_while_words_are_said, at_work_while_words_are_heard])
def test_speech_over_the_words_before_a_call(window: State) -> None:
    """They are cut at the word, and the call is unharmed."""
    talk = asked_with_tools()
    window(talk)
    call = call_of(talk)
    assert (call.status, call.text) == ("completed", CITY)
    effects = talk.start(ONSET)
    if window is at_work_while_words_are_said:
        rest = [*STREAMS, "ResponseFinished", "Measured", "SaveItem", "CancelStream"]
    else:
        rest = ["SaveItem", "ItemTruncated", "CancelStream"]
    assert kinds(effects) == [*SPEECH, *ENDED, "SpeechStarted", *rest, *READING, "Measured"]
    text = "one" if window is at_work_while_words_are_said else "one two"
    assert [(item.id, item.text) for item in talk.core.items] == [
        ("item_1", "hello"),
        ("item_2", text),
        (CALL_ITEM, CITY),
    ]
    assert call_of(talk) == call
    assert talk.finished("resp_1").calls == (call,)
    what_was_found_is_read_by_the_next_reply(talk, assistant(f"{text} —"), INTERRUPTED)


@STOPS
def test_a_stop_of_a_call_that_is_being_written(stop: Stop) -> None:
    talk = asked_with_tools()
    writing_a_call(talk)
    effects = stop(talk)
    assert kinds(effects) == [*ENDED, *STREAMS, "CallFinished", "ResponseFinished", "SaveItem"]
    assert call_of(talk).status == "incomplete"


@STOPS
def test_a_stop_while_the_client_carries_a_call_out_stops_nothing(stop: Stop) -> None:
    """What the client does with a call is its own: it knows that it has cancelled."""
    talk = asked_with_tools()
    at_work(talk)
    assert kinds(stop(talk)) == (["CommandRefused"] if stop is cancel else [])
    assert call_of(talk).status == "completed"
    talk.start(ONSET)
    what_was_found_is_read_by_the_next_reply(talk)


@STOPS
@pytest.mark.parametrize("window", [at_work_while_words_are_said, at_work_while_words_are_heard])
def test_a_stop_of_the_words_before_a_call(window: State, stop: Stop) -> None:
    talk = asked_with_tools()
    window(talk)
    effects = stop(talk)
    if window is at_work_while_words_are_said:
        assert kinds(effects) == [*ENDED, *STREAMS, "ResponseFinished", "Measured", "SaveItem"]
    else:
        assert kinds(effects) == [*ENDED, "SaveItem", "ItemTruncated"]
    assert (call_of(talk).status, talk.core.items[-1].kind) == ("completed", "function_call")
    assert told(talk.answer(CALL, "sunny"), CommandRefused) == []


# ---- a turn that has paused ---------------------------------------------------------------------------


def left_open(talk: Talk) -> None:
    """The caller has paused amid a turn, and their client did not wait for its end."""
    talk.say("hello")
    talk.start(ONSET)
    talk.do(talk.core.speech_paused(ONSET + 8_000))
    talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
    during_generation(talk, talk.active)


@pytest.mark.parametrize("stop", [holding, interruption])
def test_speech_over_a_reply_goes_on_with_the_turn_that_was_left_open(stop: Stop) -> None:
    talk = Talk(recalls=True, lead_ms=200)
    left_open(talk)
    turn = talk.core.hearing.current
    effects = stop(talk)
    assert of(effects, FeedStream)[0].item == SpeechResumed()
    assert talk.core.hearing.current is turn
    assert of(talk.do(talk.core.speech_paused(96_000)), FeedStream)[0].item == Pause(96_000)


# ---- news that is about nothing ----------------------------------------------------------------------


def test_an_interruption_of_nothing_is_a_turn() -> None:
    talk = asked()
    between_done_and_drained(talk)
    effects = talk.do(talk.core.interrupted(ONSET, "words", talk.now_ns))
    assert kinds(effects) == ["OpenStream", "HearFrom", "SpeechStarted", "CancelStream", *READING, "Measured"]
    assert talk.core.epoch == EPOCH


def test_speech_that_was_noticed_before_detection_was_switched_off_is_none() -> None:
    talk = asked()
    during_generation(talk)
    talk.update(SessionSettings(turn_detection=None))
    assert talk.core.held(ONSET, talk.now_ns) == talk.core.interrupted(ONSET, "words", talk.now_ns) == []
    assert talk.core.dropped(talk.now_ns) == []
    assert talk.active == "resp_1"
