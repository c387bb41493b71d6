"""Barge-in, in every window there is: what stops, in which order, and what of the reply stays in history.

History is cut at what was sent: the words that were whole by the last sample that went out.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.effects import Effect, EndEpoch, GrantCredit, HearFrom, Measured, OpenStream, SaveEpoch, SaveItem, Tell
from sessions.events import (
    CommandRefused,
    ItemRefined,
    ItemTruncated,
    ReplyAudio,
    ResponseDrained,
    ResponseFinished,
    ResponseStarted,
    SpeechStarted,
)
from sessions.heard import Cut
from sessions.items import Item
from sessions.prompt import INTERRUPTED
from sessions.response import Deadlines
from sessions.settings import OUTPUT_RATE, ResponseSpec, SessionSettings
from stages.contracts import AudioOut, Message, TextDelta
from tests.sessions.talk import (
    EPOCH,
    SYSTEM,
    WORD_SAMPLES,
    Talk,
    assistant,
    kinds,
    of,
    over_and_unplayed,
    silence,
    told,
    user,
    without_interruption,
)

WORDS = "one two three four five"


def nothing_opened(talk: Talk) -> None:
    pass


def opened(talk: Talk) -> None:
    talk.open("resp_1")


def first_text(talk: Talk) -> None:
    opened(talk)
    talk.text("resp_1", "one two")


def first_audio_made(talk: Talk) -> None:
    first_text(talk)
    talk.words("resp_1", "one two")
    talk.audio("resp_1", 2 * WORD_SAMPLES)


def amid_the_audio(talk: Talk) -> None:
    first_audio_made(talk)
    talk.send(12)  # 240 ms: one word


def after_the_text(talk: Talk) -> None:
    talk.reply("resp_1", WORDS)
    talk.send(25)  # 500 ms: two words


def before_the_last_frame(talk: Talk) -> None:
    talk.reply("resp_1", WORDS)
    talk.send(49)


WINDOWS: list[tuple[Callable[[Talk], None], str]] = [
    (nothing_opened, ""),
    (opened, ""),
    (first_text, ""),
    (first_audio_made, ""),
    (amid_the_audio, "one"),
    (after_the_text, "one two"),
    (before_the_last_frame, "one two three four"),
]


@pytest.mark.parametrize(("window", "said"), WINDOWS, ids=[window.__name__ for window, _ in WINDOWS])
def test_speech_ends_the_epoch_whatever_the_reply_is_doing(window: Callable[[Talk], None], said: str) -> None:
    talk = Talk()
    talk.say("hello")
    window(talk)
    effects = talk.start(48_000)
    assert of(effects, EndEpoch) == [EndEpoch(EPOCH + 1)]
    end = talk.finished("resp_1")
    assert (end.status, end.reason, end.text) == ("cancelled", "turn_detected", said)
    assert talk.texts == [("user", "hello"), *([("assistant", said)] if said else [])]
    assert talk.core.take_due(talk.now_ns) == []
    talk.let_go("resp_1", sorted(talk.cancelled("resp_1")))
    assert [drain.status for drain in of(talk.events, ResponseDrained)] == ["complete"]
    # The very speech that interrupts is the next turn.
    talk.end(64_000)
    talk.heard("go on")
    assert talk.active == "resp_2"
    assert talk.tag("resp_2").epoch == EPOCH + 1
    assert talk.prompt("resp_2")[-1] == Message("user", "go on")


def test_the_order_of_a_stop() -> None:
    talk = Talk()
    talk.say("hello")
    after_the_text(talk)
    assert kinds(talk.start(48_000)) == [
        "OpenStream",
        "HearFrom",
        "TurnHeld",
        "EndEpoch",
        "SaveEpoch",
        "Measured",
        "SpeechStarted",
        "CancelStream",
        "CancelStream",
        "CancelStream",
        "ResponseFinished",
        "Measured",
        "SaveItem",
        "CancelStream",
        "OpenStream",
        "FeedStream",
        "Measured",
    ]
    assert talk.cancelled("resp_1") == {"thinker", "talker", "vocoder"}
    assert of(talk.effects, SaveEpoch) == [SaveEpoch(EPOCH + 1)]
    assert Measured("epochs_ended", 1, "turn_detected") in talk.effects


def test_a_hold_whose_reply_has_ended_meanwhile_is_counted_as_any_other() -> None:
    talk = Talk()
    talk.say("hello")
    amid_the_audio(talk)
    talk.do(talk.core.held(48_000, talk.now_ns))
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    talk.later(1_000)  # nothing of it is left to be heard either
    effects = talk.do(talk.core.interrupted(48_000, "duration", talk.now_ns))
    assert of(effects, EndEpoch) == []
    assert of(effects, Measured) == [Measured("holds", 1, "yielded_duration")]


def test_what_interrupts_belongs_to_its_turn_and_is_heard_from_before_its_onset() -> None:
    talk = Talk()
    talk.say("hello")
    effects = talk.start(48_000)
    assert of(effects, HearFrom)[0].sample == 48_000 - 4_800
    assert talk.turn_tag().epoch == EPOCH, "it began before the epoch ended, and outlives it"
    assert told(effects, SpeechStarted) == [SpeechStarted("item_3", 3_000)]


def test_pipecat_754_nothing_of_the_interrupted_turn_is_said_in_the_next() -> None:
    talk = Talk()
    talk.say("hello")
    after_the_text(talk)
    talk.start(48_000)
    before = len(talk.effects)
    talk.publish("resp_1", TextDelta(" six seven"))
    talk.publish("resp_1", AudioOut(1, OUTPUT_RATE, 5 * WORD_SAMPLES, silence(9_600), final=True))
    talk.end(64_000)
    talk.heard("something else")
    talk.reply("resp_2", "of course")
    talk.send()
    audio = of([e.event for e in of(talk.effects[before:], Tell)], ReplyAudio)
    assert {(each.epoch, each.frame.response) for each in audio} == {(EPOCH + 1, "resp_2")}
    assert sum(each.frame.samples for each in audio) == 2 * WORD_SAMPLES
    assert talk.finished("resp_2").text == "of course"


def test_pipecat_3077_a_chunk_that_was_in_flight_at_the_stop_is_not_sent() -> None:
    talk = Talk()
    talk.say("hello")
    amid_the_audio(talk)
    talk.start(48_000)
    assert talk.audio("resp_1", 9_600, seq=1, start=2 * WORD_SAMPLES) == []
    assert talk.send() == []


def test_pipecat_4996_what_was_sent_before_the_stop_stays_said() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", WORDS)
    talk.send(20)
    sent = sum(each.frame.samples for each in of(talk.events, ReplyAudio))
    assert sent == 2 * WORD_SAMPLES
    talk.start(48_000)
    item = talk.core.items[-1]
    assert item == Item(
        "item_2",
        "assistant",
        "one two",
        spoken=True,
        status="incomplete",
        audio_samples=sent,
        cut=True,
        heard_samples=sent,
        heard_error_samples=sent,  # all of it is still on its way
    )


@pytest.mark.parametrize("case", ["pipecat_5426", "pipecat_5303", "livekit_agents_5798"])
def test_text_that_was_not_spoken_yet_is_not_in_history(case: str) -> None:
    talk = Talk()
    talk.say("hello")
    talk.open("resp_1")
    talk.text("resp_1", WORDS)
    talk.text_done("resp_1")
    match case:
        case "pipecat_5426":  # it has gone to be spoken
            pass
        case "pipecat_5303":  # it was spoken, and not sent
            talk.words("resp_1", WORDS)
            talk.audio("resp_1", 5 * WORD_SAMPLES, final=True)
        case _:  # its audio comes after the stop
            talk.words("resp_1", WORDS)
            talk.start(48_000)
            talk.audio("resp_1", 5 * WORD_SAMPLES, final=True)
            talk.send()
            talk.end()
            talk.heard("go on")
    if case != "livekit_agents_5798":
        talk.say("go on")
    assert talk.texts == [("user", "hello"), ("user", "go on")]
    assert talk.prompt("resp_2") == (SYSTEM, Message("user", "hello"), Message("user", "go on"))


@given(frames=st.integers(0, 60), words=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_pipecat_3627_history_is_the_words_that_ended_within_what_was_sent(frames: int, words: int) -> None:
    text = [f"w{number}" for number in range(words)]
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", " ".join(text))
    sent = sum(each.frame.samples for each in told(talk.send(frames), ReplyAudio))
    talk.start(48_000)
    said = " ".join(text[: sent // WORD_SAMPLES])
    assert talk.finished("resp_1").text == said
    assert [item.text for item in talk.core.items if item.role == "assistant" and item.text] == ([said] if said else [])


# ---- after the terminal ----------------------------------------------------------------------------


def test_speech_between_done_and_drained_ends_nothing_twice() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "hi you")
    talk.send()
    assert talk.core.speaking.undrained == 1
    effects = talk.start(48_000)
    assert of(effects, EndEpoch) == []
    assert told(effects, ResponseFinished) == []
    assert told(effects, ResponseDrained) == []
    assert talk.core.epoch == EPOCH
    assert talk.texts == [("user", "hello"), ("assistant", "hi you")]
    talk.let_go("resp_1")
    talk.end(64_000)
    talk.heard("and you")
    assert talk.active == "resp_2"


def test_livekit_2071_the_model_reads_what_was_heard_and_that_it_was_cut_off() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "one two three four")
    talk.send(25)
    talk.say("go on")
    assert talk.prompt("resp_2") == (SYSTEM, user("hello"), assistant("one two —"), INTERRUPTED, user("go on"))


def test_of_a_reply_of_which_no_word_was_heard_the_model_reads_nothing() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", "one two three four")
    talk.send(5)
    talk.say("go on")
    assert talk.prompt("resp_2") == (SYSTEM, user("hello"), user("go on"))


def test_a_caller_interrupts_what_is_over_and_still_sounds() -> None:
    talk, heard_ms = over_and_unplayed()
    assert 400 < heard_ms < 600
    effects = talk.start(48_000)
    assert len(of(effects, EndEpoch)) == 1, "what its client has not played is void"
    (truncated,) = told(effects, ItemTruncated)
    assert truncated == ItemTruncated("item_2", heard_ms, Cut(heard_ms * 24, "one two", "three"))
    assert told(effects, ResponseFinished) == [], "it has had its terminal"
    assert talk.texts[:2] == [("user", "hello"), ("assistant", "one two")]
    assert talk.core.items[1].cut_word == "three"


def test_openai_agents_js_1608_all_that_is_still_to_be_heard_is_cut_where_it_was_heard() -> None:
    """Two short replies are over and one is being made; the caller still hears the first."""
    talk = Talk(recalls=True, lead_ms=1_000)
    talk.say("hello")
    talk.reply("resp_1", "one")
    talk.send()
    for response, text in (("resp_2", "two"), ("resp_3", "three four")):
        talk.do(talk.core.create_response(ResponseSpec(), talk.now_ns))
        assert talk.active == response
        talk.reply(response, text)
        talk.send(10)
    talk.later(120)
    effects = talk.start(48_000)
    assert [(cut.item, cut.audio_end_ms) for cut in told(effects, ItemTruncated)] == [("item_2", 120), ("item_3", 0)]
    assert talk.finished("resp_3").text == ""
    assert [(item.text, item.cut_word, item.cut) for item in talk.core.items[1:4]] == [
        ("", "one", True),
        ("", "", True),
        ("", "", True),
    ]
    assert len(of(effects, EndEpoch)) == 1


def test_a_report_that_comes_after_the_cut_corrects_it() -> None:
    talk = Talk(recalls=True)
    talk.say("hello")
    talk.reply("resp_1", "one two three")
    talk.send(25)
    talk.start(48_000)
    assert talk.texts[-1] == ("assistant", ""), "all of it was sent just now"
    saved, refined = talk.do(talk.core.heard("resp_1", 2 * WORD_SAMPLES, talk.now_ns))
    assert isinstance(saved, SaveItem)
    assert refined == Tell(ItemRefined("item_2", Cut(2 * WORD_SAMPLES, "one two", "", "acked")))
    assert talk.texts[-1] == ("assistant", "one two")


@pytest.mark.parametrize("recalls", [True, False])
def test_openai_agents_js_523_speech_while_nothing_is_said_truncates_nothing(recalls: bool) -> None:
    talk = Talk(recalls=recalls)
    talk.answered("hello", "hi you")
    talk.later(2 * 200 + 1)
    effects = talk.say("thanks")
    assert told(effects, ItemTruncated) == []
    assert talk.texts[:2] == [("user", "hello"), ("assistant", "hi you")]
    assert talk.core.epoch == EPOCH


# ---- one after the other ---------------------------------------------------------------------------


def test_two_in_quick_succession_end_one_reply_each() -> None:
    talk = Talk()
    talk.say("hello")
    talk.open("resp_1")
    for number in (1, 2):
        talk.start(48_000)
        talk.end(50_000)
        talk.heard(f"wait {number}")
        talk.open(f"resp_{number + 1}")
    assert [talk.finished(name).status for name in ("resp_1", "resp_2")] == ["cancelled", "cancelled"]
    assert talk.active == "resp_3"
    assert [effect.epoch for effect in of(talk.effects, EndEpoch)] == [EPOCH + 1, EPOCH + 2]
    assert [m.content for m in talk.prompt("resp_3")[1:]] == ["hello", "wait 1", "wait 2"]


def test_nemotron_voice_agent_45_each_response_ends_once_and_before_the_next_begins() -> None:
    talk = Talk()
    for number in range(4):
        talk.say(f"turn {number}")
        talk.reply(talk.active, WORDS)
        talk.send(10 * number)
    line = [event for event in talk.events if isinstance(event, ResponseStarted | ResponseFinished)]
    assert [type(event) for event in line] == [ResponseStarted, ResponseFinished] * 3 + [ResponseStarted]


def test_speech_during_an_awaited_transcript_ends_no_epoch_and_both_turns_are_answered() -> None:
    talk = Talk()
    talk.start()
    talk.end()
    first = talk.turn_tag()
    assert of(talk.start(48_000), EndEpoch) == []
    talk.end(64_000)
    talk.heard("are open", talk.turn_tag())
    talk.heard("tell me when you", first)
    assert talk.started() == ["resp_1"]
    assert [m.content for m in talk.prompt("resp_1")[1:]] == ["tell me when you", "are open"]


def test_livekit_agents_js_2132_an_interruption_is_of_its_epoch_and_drops_no_later_reply() -> None:
    talk = Talk()
    talk.say("hello")
    talk.start(48_000)
    talk.end(64_000)
    talk.heard("go on")
    talk.let_go("resp_1", ("talker", "vocoder"))
    talk.reply("resp_2", "as you wish")
    talk.send()
    assert talk.finished("resp_2").status == "completed"


def test_python_genai_1987_a_turn_that_interrupts_ends_and_is_answered() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", WORDS)
    talk.send(10)
    talk.start(48_000)
    talk.do(talk.core.speech_paused(60_000))
    talk.do(talk.core.speech_resumed(talk.now_ns))
    talk.do(talk.core.speech_paused(64_000))
    talk.end(64_000)
    talk.heard("stop")
    assert talk.active == "resp_2"


def test_sglang_omni_1344_a_cancel_keeps_the_callers_turn_and_what_was_said() -> None:
    talk = Talk()
    talk.say("hello")
    talk.reply("resp_1", WORDS)
    talk.send(20)
    talk.do(talk.core.cancel_response(None, talk.now_ns))
    assert talk.texts == [("user", "hello"), ("assistant", "one two")]


def test_a_turn_that_waits_for_its_answer_is_not_answered_into_the_callers_speech() -> None:
    talk = Talk()
    talk.start()
    talk.end()
    first = talk.turn_tag()
    greeting = ResponseSpec(messages=(("user", "greet"),))
    talk.do(talk.core.create_response(greeting, talk.now_ns))
    talk.heard("what time is it", first)  # waits for the greeting to end
    effects = talk.start(48_000)
    assert told(effects, ResponseStarted) == []
    assert talk.core.speaking.active is None
    talk.end(64_000)
    talk.heard("in London")
    assert talk.started() == ["resp_1", "resp_2"]
    assert [m.content for m in talk.prompt("resp_2")[1:]] == ["what time is it", "in London"]


def test_a_slow_drain_does_not_delay_the_next_answer() -> None:
    talk = Talk(deadlines=Deadlines(drain_ns_max=50))
    talk.say("hello")
    talk.open("resp_1")
    talk.say("go on")
    assert talk.active == "resp_2"
    talk.now_ns += 2_000_000_000
    talk.do(talk.core.tick(talk.now_ns, 0))
    assert [(d.response, d.status) for d in of(talk.events, ResponseDrained)] == [("resp_1", "orphaned")]


# ---- where speech does not interrupt ---------------------------------------------------------------


@pytest.mark.parametrize("recalls", [True, False])
def test_livekit_agents_5001_speech_that_shall_not_interrupt_never_ends_the_epoch_on_any_transport(
    recalls: bool,
) -> None:
    talk = Talk(without_interruption(), recalls=recalls)
    talk.say("hello")
    talk.reply("resp_1", WORDS)
    talk.send(10)
    effects: list[Effect] = [*talk.start(48_000), *talk.end(64_000), *talk.heard("go on")]
    assert of(effects, EndEpoch) == []
    assert talk.cancelled("resp_1") == set()
    assert told(effects, SpeechStarted) != []
    talk.send()
    assert talk.finished("resp_1").status == "completed"
    assert talk.active == "resp_2"


def test_an_explicit_cancel_works_where_speech_does_not() -> None:
    talk = Talk(without_interruption())
    talk.say("hello")
    talk.open("resp_1")
    effects = talk.do(talk.core.cancel_response(None, talk.now_ns))
    assert of(effects, EndEpoch) == [EndEpoch(EPOCH + 1)]
    assert talk.finished("resp_1").reason == "client_cancelled"


def test_a_reply_that_ends_while_the_caller_speaks_over_it_is_followed_when_they_have_ended() -> None:
    talk = Talk(without_interruption())
    talk.say("hello")
    talk.reply("resp_1", "hi you")
    talk.start(48_000)
    talk.send()
    assert talk.started() == ["resp_1"]
    talk.end(64_000)
    talk.heard("go on")
    assert talk.texts == [("user", "hello"), ("assistant", "hi you"), ("user", "go on")]
    assert talk.active == "resp_2"


# ---- beside the conversation -----------------------------------------------------------------------


def test_speech_does_not_end_a_response_outside_the_conversation() -> None:
    talk = Talk()
    talk.do(talk.core.create_response(ResponseSpec(in_conversation=False), talk.now_ns))
    talk.open("resp_1")
    assert of(talk.start(), EndEpoch) == []
    talk.audio("resp_1", 960)
    assert len(told(talk.send(), ReplyAudio)) == 2
    assert of(talk.effects, GrantCredit) != []
    assert of(talk.effects, SaveItem) == []
    assert [e.tag.epoch for e in of(talk.effects, OpenStream) if e.tag.response] == [-1, -1, -1]


def test_what_sounds_outside_the_conversation_is_neither_held_nor_stopped_also_when_it_is_over() -> None:
    talk = Talk(recalls=True, lead_ms=600)
    talk.do(talk.core.create_response(ResponseSpec(in_conversation=False), talk.now_ns))
    talk.reply("resp_1", "one two")
    talk.send()
    assert talk.finished("resp_1").status == "completed"
    talk.do(talk.core.heard("resp_1", 480, talk.now_ns))
    assert not talk.core.saying(talk.now_ns).is_audible, "a hold would have no end that is told"
    assert talk.do(talk.core.stop_speaking("client_cancelled", talk.now_ns)) == []
    for response in (None, "resp_1"):
        (refused,) = told(talk.do(talk.core.cancel_response(response, talk.now_ns)), CommandRefused)
        assert refused.code == "response_cancel_not_active"
    assert kinds(talk.start())[0] == "OpenStream", "an ordinary turn"
    assert talk.core.epoch == EPOCH


def test_the_caller_hangs_up_over_a_reply() -> None:
    talk = Talk(SessionSettings())
    talk.say("hello")
    talk.reply("resp_1", WORDS)
    talk.send(20)
    talk.later(400)
    talk.do(talk.core.create_response(ResponseSpec(in_conversation=False), talk.now_ns))
    talk.start(48_000)
    talk.do(talk.core.close(talk.now_ns))
    assert talk.core.hearing.current is None
    assert talk.core.speaking.running == ()
    assert [view.reason for view in map(talk.finished, ("resp_1", "resp_2"))] == ["turn_detected", "call_ended"]
    assert talk.texts == [("user", "hello"), ("assistant", "one two")]
    assert talk.core.close(talk.now_ns) == []
