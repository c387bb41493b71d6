"""What is asked of the stages: by the response, else by the session, else by the service."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from sessions.planner import Identity, Planner, ReplyDefaults
from sessions.prompt import GOODBYE, IDLE
from sessions.route import Leg, Route, line
from sessions.service_calls import ServiceTool
from sessions.settings import ResponseSpec, SessionSettings
from stages.contracts import (
    OUT_OF_BAND,
    Message,
    ObserverOptions,
    Tag,
    TalkerOptions,
    ThinkerOptions,
    Tool,
    ToolChoice,
    VocoderOptions,
)

EXAMPLE = Message("user", "an example")
DEFAULTS = ReplyDefaults("Be kind.", 100, temperature=0.5, examples=(EXAMPLE,), voices=("joe", "amy"))
HISTORY = (Message("user", "hello"),)
KIND = Message("system", "Be kind.")


def planner(route: Route | None = None) -> Planner:
    ids = Counter[str]()

    def new_id(prefix: str) -> str:
        ids[prefix] += 1
        return f"{prefix}_{ids[prefix]}"

    return Planner(Identity("sess", 7, new_id), DEFAULTS, route or line())


def thinker(spec: ResponseSpec, settings: SessionSettings) -> ThinkerOptions:
    (_, options), *_ = planner().stages(spec, settings, HISTORY)
    assert isinstance(options, ThinkerOptions)
    return options


def test_a_plan_names_a_response_and_asks_each_stage() -> None:
    plan = planner().plan(ResponseSpec(), SessionSettings(), HISTORY, epoch=8, turn=3, previous="item_9")
    assert (plan.tag, plan.item, plan.previous_item) == (Tag("sess", 8, 3, "resp_1"), "item_1", "item_9")
    assert plan.with_audio
    assert (plan.view.id, plan.view.item, plan.view.epoch, plan.view.turn) == ("resp_1", "item_1", 8, 3)
    assert [options for _, options in plan.stages] == [
        ThinkerOptions((KIND, EXAMPLE, *HISTORY), 100, 0.5),
        TalkerOptions("", 1.0),
        VocoderOptions(voice=""),
    ]


def test_sound_is_asked_for_at_the_rate_of_its_format() -> None:
    settings = SessionSettings(output_format="audio/pcma")
    plan = planner().plan(ResponseSpec(), settings, HISTORY, epoch=8, turn=3, previous=None)
    assert plan.stages[-1][1] == VocoderOptions(8_000)
    assert (plan.output_format, plan.sample_rate) == ("audio/pcma", 8_000)


def test_what_was_prepared_is_of_use_where_nothing_has_changed() -> None:
    settings, one = SessionSettings(output_format="audio/pcma"), planner()
    plan = one.plan(ResponseSpec(), settings, HISTORY, epoch=8, turn=3, previous=None)
    assert one.would_make(plan, ResponseSpec(), settings, HISTORY)
    assert not one.would_make(plan, ResponseSpec(), settings, ())
    assert not one.would_make(plan, ResponseSpec(), replace(settings, output_format="audio/pcmu"), HISTORY)
    assert not one.would_make(plan, ResponseSpec(), replace(settings, output_format="audio/pcm"), HISTORY)


def test_what_is_said_beside_the_conversation_is_of_no_epoch() -> None:
    plan = planner().plan(
        ResponseSpec(in_conversation=False), SessionSettings(), HISTORY, epoch=8, turn=3, previous=None
    )
    assert (plan.tag.epoch, plan.view.in_conversation) == (OUT_OF_BAND, False)
    (_, options), *_ = plan.stages
    assert isinstance(options, ThinkerOptions)
    assert options.spare


def test_a_text_is_asked_of_the_thinker_alone() -> None:
    settings = SessionSettings(modalities=("text",))
    plan = planner().plan(ResponseSpec(), settings, HISTORY, epoch=8, turn=3, previous=None)
    assert (len(plan.stages), plan.with_audio) == (1, False)
    spoken = planner().stages(ResponseSpec(modalities=("audio",)), settings, HISTORY)
    assert len(spoken) == 3


def test_the_response_says_first_what_it_shall_be() -> None:
    session = SessionSettings(instructions="Be brief.", max_output_tokens=50, temperature=0.2)
    own = ResponseSpec(instructions="Be loud.", max_output_tokens=5, temperature=0.0)
    for spec, asked in ((own, ("Be loud.", 5, 0.0)), (ResponseSpec(), ("Be brief.", 50, 0.2))):
        options = thinker(spec, session)
        assert (options.messages[0].content, options.max_output_tokens, options.temperature) == asked


def test_instructions_are_those_of_the_moment_in_which_it_was_asked_for() -> None:
    one = planner()
    plan = one.plan(ResponseSpec(), SessionSettings(instructions="Now."), HISTORY, epoch=8, turn=3, previous=None)
    assert one.messages(plan.spec, SessionSettings(instructions="Later."), ())[0] == Message("system", "Now.")


def test_a_voice_is_one_that_there_is() -> None:
    for asked, spoken in (("amy", "amy"), ("nobody", "")):
        _, *voices = planner().stages(ResponseSpec(), SessionSettings(voice=asked), ())
        assert [options for _, options in voices] == [TalkerOptions(spoken, 1.0), VocoderOptions(voice=spoken)]


def test_who_looks_on_is_asked_too() -> None:
    legs = line().legs_of(with_audio=True)
    watched = replace(line(), legs=(*legs, Leg("aligner", "observer")))
    assert planner(watched).stages(ResponseSpec(), SessionSettings(), ())[-1][1] == ObserverOptions()


def test_a_prompt_is_the_history_or_what_is_brought_along_instead() -> None:
    one, settings = planner(), SessionSettings()
    assert one.messages(ResponseSpec(), settings, HISTORY) == (KIND, EXAMPLE, *HISTORY)
    own = ResponseSpec(messages=(("user", "classify this"),))
    assert one.messages(own, settings, HISTORY) == (KIND, EXAMPLE, Message("user", "classify this"))
    assert one.messages(ResponseSpec(idle="prompt"), settings, HISTORY) == (KIND, EXAMPLE, *HISTORY, IDLE)
    assert one.messages(ResponseSpec(idle="goodbye"), settings, HISTORY) == (KIND, EXAMPLE, *HISTORY, GOODBYE)


LOOK, GO = Tool("look"), Tool("go")
MUST = ToolChoice("required", "look")


@pytest.mark.parametrize(
    ("spec", "settings", "tools", "choice"),
    [
        (ResponseSpec(), SessionSettings(), (), ToolChoice()),
        (ResponseSpec(), SessionSettings(tool_choice=ToolChoice("required")), (), ToolChoice()),
        (ResponseSpec(), SessionSettings(tools=(LOOK,), tool_choice=MUST), (LOOK,), MUST),
        (ResponseSpec(tools=()), SessionSettings(tools=(LOOK,)), (), ToolChoice()),
        (ResponseSpec(tools=(GO,)), SessionSettings(tools=(LOOK,)), (GO,), ToolChoice()),
        (ResponseSpec(tool_choice=MUST), SessionSettings(tools=(LOOK,)), (LOOK,), MUST),
        (ResponseSpec(idle="prompt"), SessionSettings(tools=(LOOK,), tool_choice=MUST), (LOOK,), ToolChoice("none")),
    ],
)
def test_tools_are_the_responses_or_the_sessions(
    spec: ResponseSpec, settings: SessionSettings, tools: tuple[Tool, ...], choice: ToolChoice
) -> None:
    options = thinker(spec, settings)
    assert (options.tools, options.tool_choice) == (tools, choice)
    plan = planner().plan(spec, settings, HISTORY, epoch=8, turn=3, previous=None)
    assert plan.view.may_call == (bool(tools) and choice.mode != "none")


# ---- tools of the service, and words that nobody has to write ---------------------------------------------

BOOK = ServiceTool(Tool("book"), safe=False)


def serving() -> Planner:
    return Planner(Identity("sess", 7, lambda prefix: prefix), replace(DEFAULTS, service_tools=(BOOK,)), line())


def test_tools_of_the_service_come_first_and_have_their_names() -> None:
    settings = SessionSettings(tools=(Tool("look"), Tool("book", "Another.")))
    assert serving().tooling(ResponseSpec(), settings) == ((BOOK.tool, Tool("look")), ToolChoice())
    assert serving().tooling(ResponseSpec(tools=()), settings)[0] == (BOOK.tool,)


def test_a_choice_of_what_there_is_no_more_is_none() -> None:
    chosen = SessionSettings(tools=(Tool("look"),), tool_choice=ToolChoice("required", "book"))
    assert serving().tooling(ResponseSpec(), chosen)[1] == chosen.tool_choice
    assert planner().tooling(ResponseSpec(), chosen)[1] == ToolChoice()
    outside = ResponseSpec(in_conversation=False)
    assert serving().tooling(outside, chosen) == ((Tool("look"),), ToolChoice())


def test_a_plan_knows_which_calls_are_the_services() -> None:
    for outside, served in ((False, frozenset({"book"})), (True, frozenset())):
        spec = ResponseSpec(in_conversation=not outside)
        plan = serving().plan(spec, SessionSettings(), HISTORY, epoch=8, turn=3, previous=None)
        assert (plan.served, plan.view.may_call) == (served, bool(served))


def test_words_are_spoken_without_a_model() -> None:
    written = SessionSettings(modalities=("text",))
    plan = serving().plan(ResponseSpec(words="Wait."), written, (), epoch=8, turn=3, previous=None)
    assert [leg.stage for leg, _ in plan.stages] == ["talker", "vocoder"]
    assert (plan.with_audio, plan.view.modalities, plan.view.may_call) == (True, ("audio",), False)
    assert (plan.finals, plan.spec.reads_history) == ({"audio": "vocoder"}, False)


def test_words_that_are_given_read_nothing() -> None:
    one, settings = planner(), SessionSettings()
    plan = one.plan(ResponseSpec(words="Hello."), settings, (), epoch=8, turn=3, previous=None)
    assert one.stages_of(plan, settings, HISTORY) == plan.stages
    assert not any(isinstance(options, ThinkerOptions) for _, options in plan.stages)
