"""The remote Thinker streams, stalls and stops as the local one does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from stages.contracts import (
    CallDelta,
    CallDone,
    Message,
    ObserverOptions,
    Pause,
    PrefillOptions,
    Prompt,
    Tag,
    ThinkerOptions,
    Tool,
    ToolCall,
    ToolChoice,
)
from stages.engines.openai import OpenAIThinkerModel, build
from stages.stream import Output, Publish, StageFailure, StageModel, StageStream
from tests.stages.engines.chat_server import DONE, HEAD, Action, ChatServer, call, event, status
from tests.stages.reply_bench import RecordingContext, clauses_of, deltas_of, done_of, run_all, run_step

ASK = (Message("user", "Hello?"),)
WORDS = ["Yes,", " I can", " hear you", ".", " How are", " you?", " More", " to say."]
REPLY: list[Action] = [HEAD, *(event(word) for word in WORDS), event(reason="stop"), DONE]
URL = "http://127.0.0.1:1/v1"


@contextmanager
def opened(url: str = URL, **options: Any) -> Iterator[StageModel]:
    model = build({"base_url": url, "model": "tiny", "api_key": "sk-secret", **options})
    model.open_session("s")
    try:
        yield model
    finally:
        model.close()


AUTO = ToolChoice()


def respond(
    model: StageModel,
    messages: tuple[Message, ...] = ASK,
    tokens: int = 50,
    tools: tuple[Tool, ...] = (),
    tool_choice: ToolChoice = AUTO,
) -> StageStream:
    return model.open(Tag("s", 1, 1, "r"), ThinkerOptions(messages, tokens, tools=tools, tool_choice=tool_choice))


def failure_code(act: Callable[[], object]) -> str:
    with pytest.raises(StageFailure) as failure:
        act()
    return failure.value.code


def test_a_reply_streams_and_is_handed_on_by_clause() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 8}
    with ChatServer([*REPLY[:-2], event(reason="stop", usage=usage), DONE]) as server, opened(server.url) as model:
        stream = respond(model)
        outputs = run_all(stream)
        assert stream.finished
        stream.close()
        assert server.requests[0][1]["max_tokens"] == 50
    done = done_of(outputs)
    assert deltas_of(outputs) == WORDS
    assert [(c.text, c.final) for c in clauses_of(outputs)] == [
        ("Yes,", False),
        (" I can hear you.", False),
        (" How are you?", False),
        (" More to say.", True),
    ]
    assert (done.text, done.reason) == ("".join(WORDS), "stop")
    assert (done.prompt_tokens, done.output_tokens) == (9, 8)


LOOK = (Tool("look", "Look up.", '{"type":"object"}'), Tool("go"))
CALLING = [HEAD, event("Let me see."), call(0, "", "look"), call(0, '{"at":'), call(0, "1}")]


def calls_of(outputs: Sequence[Output]) -> list[CallDelta | CallDone]:
    return [o.event for o in outputs if isinstance(o, Publish) and isinstance(o.event, CallDelta | CallDone)]


def test_calls_are_passed_on_as_they_come() -> None:
    script = [*CALLING, call(1, None, "go"), event(" Dropped."), event(reason="tool_calls"), DONE]
    with ChatServer(script) as server, opened(server.url) as model:
        outputs = run_all(respond(model, tools=LOOK))
        body = server.requests[0][1]
    assert calls_of(outputs) == [
        CallDelta(0, "look"),
        CallDelta(0, "look", '{"at":'),
        CallDelta(0, "look", "1}"),
        CallDone(0, '{"at":1}'),
        CallDelta(1, "go"),
        CallDelta(1, "go", "{}"),
        CallDone(1, "{}"),
    ]
    assert [(clause.text, clause.final) for clause in clauses_of(outputs)] == [("Let me see.", True)]
    assert (done_of(outputs).text, done_of(outputs).reason) == ("Let me see.", "stop")
    parameters: dict[str, object] = {"type": "object"}
    told = [("look", "Look up.", parameters), ("go", "", {})]
    assert body["tools"] == [
        {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
        for name, about, schema in told
    ]
    assert body["tool_choice"] == "auto"


def test_a_call_waits_for_no_credit() -> None:
    with ChatServer([*CALLING, event(reason="tool_calls"), DONE]) as server, opened(server.url) as model:
        stream = respond(model, tools=LOOK)
        context = RecordingContext(stall_when=lambda outputs: bool(clauses_of(outputs)))
        assert run_step(stream, context)
        assert stream.finished
    assert isinstance(calls_of(context.outputs)[-1], CallDone)


def test_a_call_that_was_cut_off_was_never_made() -> None:
    with ChatServer([*CALLING[:-1], event(reason="length"), DONE]) as server, opened(server.url) as model:
        outputs = run_all(respond(model, tools=LOOK))
    assert done_of(outputs).reason == "max_output_tokens"
    assert not any(isinstance(event, CallDone) for event in calls_of(outputs))


@pytest.mark.parametrize("wrong", [call(0, "{", "look"), call(0, "[]", "look"), call(0, "{}", "never")])
def test_a_call_that_cannot_be_carried_out_fails(wrong: bytes) -> None:
    with ChatServer([HEAD, wrong, event(reason="tool_calls"), DONE]) as server, opened(server.url) as model:
        assert failure_code(lambda: run_all(respond(model, tools=LOOK))) == "bad_call"


@pytest.mark.parametrize(
    ("choice", "name", "ends"),
    [
        (ToolChoice("none"), "go", "bad_call"),
        (ToolChoice("required", "look"), "go", "bad_call"),
        (ToolChoice("required", "look"), "look", "whole"),
        (ToolChoice("required"), "go", "whole"),
        (ToolChoice(), "go", "whole"),
    ],
)
def test_a_server_that_does_not_heed_the_choice_makes_no_call(choice: ToolChoice, name: str, ends: str) -> None:
    script = [HEAD, call(0, "{}", name), event(reason="tool_calls"), DONE]
    with ChatServer(script) as server, opened(server.url) as model:
        stream = respond(model, tools=LOOK, tool_choice=choice)
        if ends == "whole":
            assert calls_of(run_all(stream))[-1] == CallDone(0, "{}")
        else:
            assert failure_code(lambda: run_all(stream)) == ends


def test_with_tools_a_reply_that_had_its_sentences_may_yet_call() -> None:
    script = [HEAD, event("One. Two. Three. "), call(0, "{}", "go"), event(reason="tool_calls"), DONE]
    with ChatServer(script) as server, opened(server.url, sentences_max=1) as model:
        outputs = run_all(respond(model, tools=LOOK))
    assert (done_of(outputs).text, calls_of(outputs)[-1]) == ("One.", CallDone(0, "{}"))


def test_who_has_had_their_sentences_ran_into_no_limit() -> None:
    script = [HEAD, event("One. Two. Three. "), event(reason="length"), DONE]
    with ChatServer(script) as server, opened(server.url, sentences_max=1) as model:
        assert done_of(run_all(respond(model, tools=LOOK))).reason == "stop"


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (ToolChoice("none"), "none"),
        (ToolChoice("required"), "required"),
        (ToolChoice("required", "go"), {"type": "function", "function": {"name": "go"}}),
    ],
)
def test_calls_results_and_choice_are_sent_in_the_servers_terms(choice: ToolChoice, sent: object) -> None:
    made = ToolCall("call_1", "go", "{}")
    messages = (
        *ASK,
        Message("assistant", "", calls=(made,)),
        Message("tool", "gone", call_id="call_1"),
        Message("assistant", "Well.", calls=(made,)),
        Message("tool", "again", call_id="call_1"),
    )
    with ChatServer(REPLY) as server, opened(server.url) as model:
        options = ThinkerOptions(messages, 50, tools=LOOK, tool_choice=choice)
        run_all(model.open(Tag("s", 1, 1, "r"), options))
        body = server.requests[0][1]
    called = [{"id": "call_1", "type": "function", "function": {"name": "go", "arguments": "{}"}}]
    assert body["tool_choice"] == sent
    assert body["messages"] == [
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": None, "tool_calls": called},
        {"role": "tool", "tool_call_id": "call_1", "content": "gone"},
        {"role": "assistant", "content": "Well.", "tool_calls": called},
        {"role": "tool", "tool_call_id": "call_1", "content": "again"},
    ]


def test_enough_sentences_end_the_reply_and_the_connection() -> None:
    with (
        ChatServer(REPLY[:-2], lingers=True) as server,
        opened(server.url, sentences_max=2) as model,
    ):
        done = done_of(run_all(respond(model)))
        assert server.client_left.wait(5)
    assert (done.text, done.reason, done.output_tokens) == ("Yes, I can hear you. How are you?", "stop", 7)


def test_a_stalled_reply_goes_on_on_the_same_connection() -> None:
    with ChatServer(REPLY) as server, opened(server.url) as model:
        stream = respond(model)
        context = RecordingContext(stall_when=lambda outputs: len(clauses_of(outputs)) == 1)
        assert run_step(stream, context)
        assert deltas_of(context.outputs) == WORDS[:2]
        assert stream.held() == {"connections": 1}
        context.stall_when = lambda _: False
        step = stream.next_step()
        assert step is not None
        assert step.urgency == 1
        context.outputs += stream.finish_step(step.run(context))
        assert stream.held() == {"connections": 0}
        assert len(server.requests) == 1
    assert done_of(context.outputs).text == "".join(WORDS)


def test_a_cancel_amid_the_reply_closes_the_connection() -> None:
    with ChatServer(REPLY[:3], lingers=True) as server, opened(server.url) as model:
        stream = respond(model)
        context = RecordingContext(cancel_when=lambda outputs: len(deltas_of(outputs)) == 2)
        run_step(stream, context)
        stream.close()
        assert server.client_left.wait(5)
    assert deltas_of(context.outputs) == WORDS[:2]


def test_a_cancel_does_not_wait_for_a_silent_server() -> None:
    asked = 0

    def third_time(_: Sequence[Output]) -> bool:
        nonlocal asked
        asked += 1
        return asked == 3

    with ChatServer([HEAD, threading.Event()]) as server, opened(server.url) as model:
        stream = respond(model)
        assert run_step(stream, RecordingContext(cancel_when=third_time))
        assert not stream.finished
        stream.close()
        server._script[1].set()  # type: ignore[union-attr]


def test_white_space_alone_publishes_nothing() -> None:
    with ChatServer([HEAD, event(" "), event("\n"), DONE]) as server, opened(server.url) as model:
        outputs = run_all(respond(model))
    assert deltas_of(outputs) == []
    assert [(c.text, c.final) for c in clauses_of(outputs)] == [("", True)]


def test_a_failure_is_the_streams() -> None:
    with ChatServer([status(429)]) as server, opened(server.url) as model:
        stream = respond(model)
        assert failure_code(lambda: run_all(stream)) == "rate_limited"
        stream.close()
        assert failure_code(lambda: run_all(respond(model))) == "rate_limited"


def test_a_prefill_takes_prompts_and_does_nothing() -> None:
    with opened() as model:
        prefill = model.open(Tag("s", 1, 1), PrefillOptions())
        assert prefill.feed(Prompt(ASK)) == ()
        assert prefill.next_step() is None
        assert failure_code(lambda: prefill.feed(Pause(0))) == "wrong_item"
        with pytest.raises(AssertionError):
            prefill.finish_step(None)
        assert (prefill.finished, prefill.held()) == (False, {})
        prefill.close()


def test_sessions_are_counted() -> None:
    with opened(sessions_max=1) as model:
        assert (model.concurrency, model.revision) == (2, "tiny")
        model.open_session("s")
        assert failure_code(lambda: model.open_session("t")) == "capacity"
        assert model.kept_for("s") == {"sessions": 1}
        model.close_session("s")
        assert model.kept_for("s") == {"sessions": 0}
        model.open_session("t")
        assert failure_code(lambda: respond(model)) == "unknown_session"
        spare = model.open(Tag("x", -1, 0, "o"), ThinkerOptions(ASK, 5, spare=True))
        assert spare.next_step() is not None


def test_what_is_no_request_is_refused_by_name() -> None:
    with opened(context_tokens=512) as model:
        assert failure_code(lambda: model.open(Tag("s", 1, 1, "r"), ObserverOptions())) == "wrong_options"
        assert failure_code(lambda: respond(model, ())) == "bad_prompt"
        assert failure_code(lambda: respond(model, tokens=0)) == "wrong_options"
        assert failure_code(lambda: respond(model, (Message("system", "long " * 600), *ASK))) == "prompt_too_long"
        assert failure_code(lambda: respond(model).feed(Prompt(ASK))) == "wrong_item"


def test_options_are_checked_by_name() -> None:
    with pytest.raises(msgspec.ValidationError, match="base_url"):
        build({"model": "tiny"})
    with pytest.raises(msgspec.ValidationError, match="colour"):
        build({"base_url": URL, "model": "tiny", "colour": "red"})
    with opened() as model:
        assert isinstance(model, OpenAIThinkerModel)
