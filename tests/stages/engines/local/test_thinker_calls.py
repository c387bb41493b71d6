"""Calls by the local Thinker: told from speech, held to their schema, whole or never made."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from stages.contracts import CallDelta, CallDone, PrefillOptions, Prompt, Tag, ThinkerOptions, Tool, ToolChoice
from stages.stream import Output, Publish, StageModel
from tests.stages.engines.local.thinker_bench import ASK, CALL, WEATHER, Bench, failure_code, stall_once_after, talk
from tests.stages.reply_bench import RecordingContext, clauses_of, deltas_of, done_of, run_all, run_step


def calls_of(outputs: Sequence[Output]) -> list[CallDelta | CallDone]:
    return [o.event for o in outputs if isinstance(o, Publish) and isinstance(o.event, CallDelta | CallDone)]


def test_words_before_a_call_are_spoken_and_the_call_is_not() -> None:
    bench = Bench(f"Let me look. {CALL} And more.")
    outputs = run_all(bench.respond(choice=ToolChoice()))
    assert "".join(deltas_of(outputs)) == "Let me look."
    assert [(clause.text, clause.final) for clause in clauses_of(outputs)] == [("Let me look.", True)]
    begun, *written, done = calls_of(outputs)
    assert begun == CallDelta(0, "get_weather")
    assert done == CallDone(0, '{"city":"Paris"}')
    assert "".join(delta.arguments for delta in written if isinstance(delta, CallDelta)) == '{"city":"Paris"}'
    assert (done_of(outputs).text, done_of(outputs).reason) == ("Let me look.", "stop")
    finals = [at for at, output in enumerate(outputs) if clauses_of([output]) and clauses_of([output])[0].final]
    assert finals[0] < outputs.index(Publish(begun)), "they go on to be spoken while the call is written"


def test_a_call_alone_has_an_empty_clause() -> None:
    outputs = run_all(Bench(CALL).respond(choice=ToolChoice("required")))
    assert [(clause.text, clause.final) for clause in clauses_of(outputs)] == [("", True)]
    assert calls_of(outputs)[-1] == CallDone(0, '{"city":"Paris"}')


def test_the_request_carries_a_grammar_where_there_are_tools() -> None:
    bench = Bench("Yes.")
    run_all(bench.respond())
    run_all(bench.respond(choice=ToolChoice("none")))
    without, speech_only = (bench.llama.requests[at].grammar for at in (0, -1))
    assert (without, "call" in speech_only) == ("", False)
    assert "SPEECH <|im_end|>" in speech_only
    assert "You may call" in bench.llama.requests[-1].prompt


def test_nothing_waits_for_credit_once_a_call_has_begun() -> None:
    stream = Bench(f"Let me look. {CALL}").respond(choice=ToolChoice())
    context = RecordingContext(stall_when=lambda outputs: bool(clauses_of(outputs)))
    assert run_step(stream, context)
    assert isinstance(calls_of(context.outputs)[-1], CallDone)


def test_a_reply_that_stalled_before_its_call_goes_on_to_it() -> None:
    stream = Bench(f"Well, let me look. {CALL}").respond(choice=ToolChoice())
    context = RecordingContext(stall_when=stall_once_after(1))
    assert run_step(stream, context)
    assert calls_of(context.outputs) == []
    context.stall_when = lambda _: False
    run_all(stream, context)
    assert (done_of(context.outputs).text, len(calls_of(context.outputs)) > 2) == ("Well, let me look.", True)


def test_a_call_that_runs_into_the_limit_is_never_whole() -> None:
    outputs = run_all(Bench(CALL).respond(choice=ToolChoice("required"), tokens=5))
    assert done_of(outputs).reason == "max_output_tokens"
    assert not any(isinstance(event, CallDone) for event in calls_of(outputs))


def test_a_cancel_amid_a_call_leaves_it_unmade() -> None:
    stream = Bench(CALL).respond(choice=ToolChoice("required"))
    context = RecordingContext(cancel_when=lambda outputs: bool(calls_of(outputs)))
    run_step(stream, context)
    stream.close()
    assert not any(isinstance(event, CallDone) for event in calls_of(context.outputs))


def test_a_call_that_must_not_be_made_is_no_call() -> None:
    stream = Bench(f"Let me look. {CALL}").respond(choice=ToolChoice("none"))
    assert failure_code(lambda: run_all(stream)) == "bad_call"


@pytest.mark.parametrize("reply", ["Well.", "", CALL[:-1]])
def test_a_reply_without_the_call_that_it_must_make_fails(reply: str) -> None:
    stream = Bench(reply).respond(choice=ToolChoice("required"))
    assert failure_code(lambda: run_all(stream)) == "bad_call"


def test_a_prefill_reads_of_tools_what_the_answer_reads() -> None:
    bench = Bench()
    stream = bench.model.open(Tag("s", 1, 1), PrefillOptions())
    stream.feed(Prompt(ASK, complete=True, tools=(WEATHER,)))
    run_all(stream)
    stream.close()
    run_all(bench.respond(choice=ToolChoice()))
    assert bench.llama.evaluated[-1] == 1


# ---- real weights -------------------------------------------------------------------------------------


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("question", ["What is the weather in Paris?", "How warm is it in Berlin today?"])
def test_a_real_model_calls_what_it_must(sessions: StageModel, question: str) -> None:
    options = ThinkerOptions(talk(question), 120, tools=(WEATHER,), tool_choice=ToolChoice("required"))
    stream = sessions.open(Tag("b", 1, 1, "r"), options)
    outputs = run_all(stream)
    stream.close()
    begun, *_, done = calls_of(outputs)
    assert begun == CallDelta(0, "get_weather")
    assert isinstance(done, CallDone)
    arguments = json.loads(done.arguments)
    assert question.rstrip("?").split(" in ")[1].split()[0] == arguments["city"]
    assert set(arguments) <= {"city", "unit"}
    assert deltas_of(outputs) == []


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("choice", [ToolChoice("none"), ToolChoice()])
def test_a_real_model_that_need_not_call_speaks_as_ever(sessions: StageModel, choice: ToolChoice) -> None:
    options = ThinkerOptions(talk("Hello."), 40, tools=(WEATHER,), tool_choice=choice)
    stream = sessions.open(Tag("b", 1, 1, "r"), options)
    done = done_of(run_all(stream))
    stream.close()
    assert done.reason == "stop", "a grammar keeps no reply from ending"
    assert done.text.strip()
    assert "<" not in done.text


@pytest.mark.models
@pytest.mark.slow
def test_a_real_grammar_knows_each_form_of_schema(sessions: StageModel) -> None:
    """What the engine did not know would be dropped, and the call with it."""
    properties = {
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "ratio": {"type": ["number", "null"]},
        "kind": {"enum": ["a", "b"]},
        "fixed": {"const": "c"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
        "place": {"type": "object", "properties": {"name": {"$ref": "#/nowhere"}}, "required": ["name"]},
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    tool = Tool("order", "Order things.", json.dumps(schema))
    options = ThinkerOptions(talk("Two, please."), 250, tools=(tool,), tool_choice=ToolChoice("required", "order"))
    stream = sessions.open(Tag("b", 1, 1, "r"), options)
    done = calls_of(run_all(stream))[-1]
    stream.close()
    assert isinstance(done, CallDone)
    arguments = json.loads(done.arguments)
    assert set(arguments) == set(properties)
    assert (1 <= arguments["count"] <= 9, arguments["kind"] in "ab", arguments["fixed"]) == (True, True, "c")
