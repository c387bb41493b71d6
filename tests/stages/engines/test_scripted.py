"""The scripted engine keeps the contracts of real ones: purity of plans, credit, order, endings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contracts import (
    AudioIn,
    AudioOut,
    CallDelta,
    CallDone,
    Clause,
    EncoderOptions,
    EndOfTurn,
    Event,
    Item,
    Latents,
    Message,
    ObserverOptions,
    Options,
    Pause,
    PrefillOptions,
    Prompt,
    SpeechResumed,
    Tag,
    TalkerOptions,
    TextDelta,
    TextDone,
    ThinkerOptions,
    Tool,
    ToolChoice,
    Transcript,
    VocoderOptions,
    Word,
    WordTimes,
)
from stages.effects import StepFlags
from stages.engines.scripted import (
    FRAME_RATE,
    FRAMES_PER_ITEM_MAX,
    TONE_HZ,
    TONE_LEVEL,
    ScriptedModel,
    ScriptedOptions,
    build_encoder,
    build_talker,
    build_thinker,
    build_vocoder,
)
from stages.stream import BatchingModel, Consumed, Emit, Output, Publish, StageFailure, StageModel, StageStream
from tests.stages.stage_bench import Flags

TAG = Tag("s", 1, 1, "r")
ANSWER = ThinkerOptions((Message("user", "how are you"),), 100)
OPTIONS: dict[str, Options] = {
    "encoder": EncoderOptions(),
    "thinker": ANSWER,
    "talker": TalkerOptions(),
    "vocoder": VocoderOptions(8_000),
}


def run(stream: StageStream, *items: Item) -> list[Output]:
    """Feed `items`, then step until there is nothing to do."""
    outputs = [output for item in items for output in stream.feed(item)]
    return outputs + steps(stream)


def steps(stream: StageStream) -> list[Output]:
    outputs: list[Output] = []
    while (step := stream.next_step()) is not None:
        assert not stream.finished
        outputs += stream.finish_step(step.run(Flags(StepFlags())))
    return outputs


def events(outputs: Sequence[Output]) -> list[Event]:
    return [output.event for output in outputs if isinstance(output, Publish)]


def emitted(outputs: Sequence[Output]) -> list[Item]:
    return [output.item for output in outputs if isinstance(output, Emit)]


def consumed(outputs: Sequence[Output]) -> list[int]:
    return [output.units for output in outputs if isinstance(output, Consumed)]


def latents(*frames: int) -> list[Latents]:
    items, start = [], 0
    for number, count in enumerate(frames, 1):
        items.append(Latents(start, count, bytes(4 * count), final=number == len(frames)))
        start += count
    return items


# ---- encoder ------------------------------------------------------------------------------------------------


def test_the_encoder_hears_the_next_text_once_the_turn_has_ended() -> None:
    model = build_encoder({"heard": ["one", "two"]})
    stream = model.open(TAG, EncoderOptions())
    outputs = run(stream, AudioIn(160, bytes(640)), Pause(480), SpeechResumed(), AudioIn(480, bytes(320)))
    assert (outputs, stream.finished) == ([Consumed(320), Consumed(160)], False)
    outputs = run(stream, EndOfTurn(640))
    assert (outputs, stream.finished) == ([Publish(Transcript("one", 640, settled=True, final=True))], True)
    heard = [run(model.open(TAG, EncoderOptions()), AudioIn(0, bytes(2)), EndOfTurn(1)) for _ in range(2)]
    assert [event.text for outputs in heard for event in events(outputs) if isinstance(event, Transcript)] == [
        "two"
    ] * 2


def test_the_encoder_tells_at_a_pause_what_it_has_heard_by_then() -> None:
    stream = build_encoder({"heard": ["one"]}).open(TAG, EncoderOptions())
    settled = Publish(Transcript("one", 480, settled=True))
    assert run(stream, AudioIn(160, bytes(640)), Pause(480)) == [Consumed(320), settled]
    assert not stream.finished
    assert run(stream, SpeechResumed(), Pause(480)) == [settled]


def test_a_turn_without_sound_has_no_words() -> None:
    stream = build_encoder({}).open(TAG, EncoderOptions())
    assert run(stream, EndOfTurn(0)) == [Publish(Transcript("", 0, settled=True, final=True))]


# ---- Thinker ------------------------------------------------------------------------------------------------


def test_the_thinker_answers_word_by_word_and_clause_by_clause() -> None:
    reply = "Hello there. How can I help you today?"
    stream = build_thinker({"replies": [reply]}).open(TAG, ANSWER)
    outputs = steps(stream)
    deltas = [event.text for event in events(outputs) if isinstance(event, TextDelta)]
    assert deltas == ["Hello", *(f" {word}" for word in reply.split()[1:])]
    clauses = [item for item in emitted(outputs) if isinstance(item, Clause)]
    assert clauses == [Clause(0, "Hello there."), Clause(1, " How can I help you today?", final=True)]
    assert [output.units for output in outputs if isinstance(output, Emit)] == [len(clause.text) for clause in clauses]
    assert events(outputs)[-1] == TextDone(reply, "stop", 3, 0, 8)
    assert outputs.index(Emit(clauses[0], 12)) == outputs.index(Publish(TextDelta(" How"))) + 1
    assert stream.finished


def test_the_thinker_stops_at_the_limit_of_tokens() -> None:
    stream = build_thinker({"replies": ["a b c d e f"]}).open(TAG, ThinkerOptions((), 5))
    assert events(steps(stream))[-1] == TextDone("a b c d e", "max_output_tokens", 0, 0, 5)


LOOK = Tool("look")
CALLING = 'Let me see. @look {"at": "the stars", "for": "a while"}'
ARGUMENTS = '{"at": "the stars", "for": "a while"}'


def with_tool(messages: tuple[Message, ...] = ANSWER.messages, **choice: Any) -> ThinkerOptions:
    return ThinkerOptions(messages, 100, tools=(LOOK,), tool_choice=ToolChoice(**choice))


def test_a_reply_may_end_in_a_call() -> None:
    outputs = steps(build_thinker({"replies": [CALLING]}).open(TAG, with_tool()))
    assert [clause.text for clause in emitted(outputs) if isinstance(clause, Clause)] == ["Let me see."]
    told = [event for event in events(outputs) if not isinstance(event, TextDelta)]
    begun, *written, done, ended = told
    assert begun == CallDelta(0, "look")
    assert len(written) > 1, "arguments come piece by piece"
    assert "".join(event.arguments for event in written if isinstance(event, CallDelta)) == ARGUMENTS
    assert done == CallDone(0, ARGUMENTS)
    assert ended == TextDone("Let me see.", "stop", 3, 0, 3)


def test_a_call_may_be_all_of_a_reply() -> None:
    outputs = steps(build_thinker({"replies": ["@look {}"]}).open(TAG, with_tool()))
    assert events(outputs) == [
        CallDelta(0, "look"),
        CallDelta(0, "look", "{}"),
        CallDone(0, "{}"),
        TextDone("", "stop", 3, 0, 0),
    ]
    assert emitted(outputs) == [Clause(0, "", final=True)]


OTHER_NAMED = ThinkerOptions((), 100, tools=(LOOK, Tool("other")), tool_choice=ToolChoice("required", "other"))


@pytest.mark.parametrize(
    "options",
    [ANSWER, with_tool(mode="none"), ThinkerOptions((), 100, tools=(Tool("other"),)), OTHER_NAMED],
    ids=["no tools", "none", "unknown", "another is named"],
)
def test_a_call_that_must_not_be_made_is_left_out(options: ThinkerOptions) -> None:
    told = events(steps(build_thinker({"replies": [CALLING]}).open(TAG, options)))
    assert not any(isinstance(event, CallDelta | CallDone) for event in told)
    assert isinstance(told[-1], TextDone)
    assert told[-1].text == "Let me see."


def test_what_a_tool_has_found_is_said_where_the_script_says_so() -> None:
    model = build_thinker({"replies": ["One.", "I see @result there.", "Two."]})
    found = (*ANSWER.messages, Message("tool", "a bear", call_id="c"))

    def said(messages: tuple[Message, ...]) -> str:
        done = events(steps(model.open(TAG, with_tool(messages))))[-1]
        assert isinstance(done, TextDone)
        return done.text

    prompts = (ANSWER.messages, found, ANSWER.messages, found)
    assert [said(messages) for messages in prompts] == ["One.", "I see a bear there.", "Two.", "I see a bear there."]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ((Message("user", "hi"),), "You heard ."),
        ((Message("assistant", "one"), Message("assistant", "two —"), Message("user", "hi")), "You heard two —."),
    ],
)
def test_what_the_prompt_has_us_say_last_is_repeated_where_the_script_says_so(
    messages: tuple[Message, ...], said: str
) -> None:
    model = build_thinker({"replies": ["You heard @said."]})
    done = events(steps(model.open(TAG, ThinkerOptions(messages, 100))))[-1]
    assert isinstance(done, TextDone)
    assert done.text == said


def test_an_empty_reply_still_ends() -> None:
    outputs = steps(build_thinker({"replies": [""]}).open(TAG, ANSWER))
    assert outputs == [Emit(Clause(0, "", final=True), 1), Publish(TextDone("", "stop", 3, 0, 0))]


@settings(max_examples=50)
@given(st.text("ab.,!? \n…", max_size=80))
def test_the_clauses_are_the_text(reply: str) -> None:
    outputs = steps(build_thinker({"replies": [reply]}).open(TAG, ThinkerOptions((), 1_000)))
    clauses = [item for item in emitted(outputs) if isinstance(item, Clause)]
    text = " ".join(reply.split())
    assert "".join(clause.text for clause in clauses) == text
    assert "".join(event.text for event in events(outputs) if isinstance(event, TextDelta)) == text
    assert [clause.index for clause in clauses] == list(range(len(clauses)))
    assert [clause.final for clause in clauses] == [False] * (len(clauses) - 1) + [True]


def test_the_last_reply_is_given_again() -> None:
    model = build_thinker({"replies": ["one", "two"]})
    texts = [events(steps(model.open(TAG, ANSWER)))[0] for _ in range(3)]
    assert texts == [TextDelta("one"), TextDelta("two"), TextDelta("two")]


def test_a_prefill_takes_prompts_and_uses_up_no_reply() -> None:
    model = build_thinker({"replies": ["one", "two"]})
    stream = model.open(Tag("s", 1, 1), PrefillOptions())
    assert run(stream, Prompt(()), Prompt((), complete=True)) == []
    assert (stream.finished, stream.held()) == (False, {"items": 0})
    assert events(steps(model.open(TAG, ANSWER)))[0] == TextDelta("one")


# ---- Talker -------------------------------------------------------------------------------------------------


def test_the_talker_gives_each_word_its_frames() -> None:
    stream = build_talker({"frames_per_word": 10}).open(TAG, TalkerOptions())
    assert run(stream, Clause(0, "How are you?")) == [
        Publish(WordTimes(0, FRAME_RATE, (Word("How", 0, 10), Word("are", 10, 20), Word("you?", 20, 30)))),
        Emit(Latents(0, FRAMES_PER_ITEM_MAX, bytes(64)), 16),
        Emit(Latents(16, 14, bytes(56), clause_end=True), 14),
        Consumed(12),
    ]
    assert run(stream, Clause(1, " Fine.", final=True)) == [
        Publish(WordTimes(1, FRAME_RATE, (Word("Fine.", 30, 40),))),
        Emit(Latents(30, 10, bytes(40), clause_end=True), 10),
        Emit(Latents(40, 0, b"", clause_end=True, final=True), 0),
        Consumed(6),
    ]
    assert stream.finished


def test_a_clause_without_words_costs_one_character() -> None:
    stream = build_talker({}).open(TAG, TalkerOptions())
    assert run(stream, Clause(0, "")) == [Consumed(1)]
    assert run(stream, Clause(1, "", final=True)) == [
        Emit(Latents(0, 0, b"", clause_end=True, final=True), 0),
        Consumed(1),
    ]


# ---- vocoder ------------------------------------------------------------------------------------------------


def test_the_vocoder_hums_without_a_break() -> None:
    stream = build_vocoder({}).open(TAG, VocoderOptions(8_000))
    outputs = run(stream, *latents(16, 4, 0))
    chunks = [event for event in events(outputs) if isinstance(event, AudioOut)]
    assert [(one.seq, one.sample_rate, one.start_sample, one.final) for one in chunks] == [
        (0, 8_000, 0, False),
        (1, 8_000, 1_280, False),
        (2, 8_000, 1_600, True),
    ]
    assert consumed(outputs) == [16, 4, 0]
    assert [output.units for output in outputs if isinstance(output, Publish)] == [1_280, 320, 0]
    heard = np.frombuffer(b"".join(one.pcm for one in chunks), "<i2") / 32_767
    tone = np.sin(2 * np.pi * TONE_HZ * np.arange(1_600) / 8_000) * TONE_LEVEL
    assert np.abs(heard - tone).max() < 1e-4


def test_a_step_of_the_vocoder_says_what_credit_it_needs() -> None:
    stream = build_vocoder({}).open(TAG, VocoderOptions(24_000))
    stream.feed(latents(16)[0])
    step = stream.next_step()
    assert step is not None
    assert (step.units, step.kind, step.urgency) == (3_840, "chunk", 1)


def test_the_vocoder_gives_together_what_it_gives_alone() -> None:
    model = build_vocoder({})
    assert isinstance(model, BatchingModel)
    streams = [model.open(Tag("s", 1, 1, name), VocoderOptions(8_000)) for name in "ab"]
    alone = [model.open(Tag("s", 1, 1, name), VocoderOptions(8_000)) for name in "ab"]
    for both in (streams, alone):
        both[0].feed(latents(16)[0])
        both[1].feed(latents(4)[0])
    planned = [step for stream in streams if (step := stream.next_step()) is not None]
    assert len(planned) == 2
    assert len({model.batch_key(step) for step in planned}) == 1
    results = model.run_batch(planned, [Flags(StepFlags())] * 2)
    outputs = [stream.finish_step(result) for stream, result in zip(streams, results, strict=True)]
    assert [list(output) for output in outputs] == [steps(stream) for stream in alone]


@pytest.mark.parametrize("kind", ["encoder", "thinker", "talker"])
def test_the_other_stages_run_one_step_at_a_time(kind: str) -> None:
    assert not isinstance(MODELS[kind], BatchingModel)


# ---- what all keep ------------------------------------------------------------------------------------------


FED: dict[str, Sequence[Item]] = {
    "encoder": (AudioIn(0, bytes(320)), EndOfTurn(160)),
    "thinker": (),
    "talker": (Clause(0, "one two"), Clause(1, "three", final=True)),
    "vocoder": latents(16, 16, 3),
}
MODELS: dict[str, ScriptedModel] = {
    "encoder": build_encoder({}),
    "thinker": build_thinker({}),
    "talker": build_talker({}),
    "vocoder": build_vocoder({}),
}


@pytest.mark.parametrize("kind", FED)
def test_asking_for_a_step_again_and_again_changes_nothing(kind: str) -> None:
    """A step that waits for its thread is planned anew with each item that comes."""
    plain = run(MODELS[kind].open(TAG, OPTIONS[kind]), *FED[kind])
    asked = MODELS[kind].open(TAG, OPTIONS[kind])
    outputs: list[Output] = []
    for item in FED[kind]:
        outputs += asked.feed(item)
        asked.next_step()
        asked.next_step()
        assert not asked.finished
    assert outputs + steps(asked) == plain
    assert asked.finished


@pytest.mark.parametrize(
    ("kind", "item"),
    [
        ("encoder", Clause(0, "")),
        ("thinker", Prompt(())),
        ("talker", latents(1)[0]),
        ("vocoder", Clause(0, "")),
    ],
)
def test_an_item_of_another_stage_is_refused_when_it_is_fed(kind: str, item: Item) -> None:
    stream = MODELS[kind].open(TAG, OPTIONS[kind])
    with pytest.raises(StageFailure, match=type(item).__name__) as caught:
        stream.feed(item)
    assert caught.value.code == "wrong_item"
    assert stream.held() == {"items": 0}


def test_a_prefill_takes_prompts_only() -> None:
    with pytest.raises(StageFailure, match="Prefill takes no EndOfTurn"):
        MODELS["thinker"].open(TAG, PrefillOptions()).feed(EndOfTurn(0))


@pytest.mark.parametrize("kind", FED)
def test_options_of_another_stage_are_refused(kind: str) -> None:
    others = [ObserverOptions(), *(options for other, options in OPTIONS.items() if other != kind)]
    for options in others:
        with pytest.raises(StageFailure) as caught:
            MODELS[kind].open(TAG, options)
        assert caught.value.code == "wrong_options"


def test_a_closed_stream_holds_nothing() -> None:
    stream = MODELS["talker"].open(TAG, TalkerOptions())
    stream.feed(Clause(0, "one"))
    assert stream.held() == {"items": 1}
    stream.close()
    assert stream.held() == {"items": 0}


def test_sessions_are_limited_as_slots_are() -> None:
    model: StageModel = ScriptedModel("thinker", ScriptedOptions(sessions_max=2))
    for session in ("a", "b", "a"):
        model.open_session(session)
    with pytest.raises(StageFailure) as caught:
        model.open_session("c")
    assert caught.value.code == "capacity"
    assert model.kept_for("a") == {"sessions": 1}
    model.close_session("a")
    assert model.kept_for("a") == {"sessions": 0}
    model.close_session("unknown")
    model.open_session("c")
    model.close()
    model.open_session("a")
