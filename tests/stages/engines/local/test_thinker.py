"""The Thinker's streams: what they publish and hand on, who has the slot when, and that stops are stops."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stages.contracts import (
    Filler,
    Message,
    ObserverOptions,
    Pause,
    PrefillOptions,
    Prompt,
    Reading,
    Tag,
    TextDelta,
    ThinkerOptions,
)
from stages.engines.local.llama import PIECE_TOKENS
from stages.engines.local.persona import MESSAGES
from stages.engines.local.thinker import FITS_MAX
from stages.prompting import cost_of
from stages.stream import Output, Publish, StageModel, StageStream
from tests.stages.engines.local.thinker_bench import (
    ASK,
    LONG,
    Bench,
    answer,
    failure_code,
    open_response,
    stall_once_after,
    talk,
)
from tests.stages.reply_bench import RecordingContext, clauses_of, deltas_of, done_of, run_all, run_step

# ---- replies ------------------------------------------------------------------------------------------


def test_a_reply_is_published_by_token_and_handed_on_by_clause() -> None:
    bench = Bench()
    stream = bench.respond()
    outputs = run_all(stream)
    text = "Yes, I can hear you. How can I help you today?"
    assert deltas_of(outputs)[:3] == ["Yes,", " I", " can"]
    assert "".join(deltas_of(outputs)) == text
    assert [(clause.text, clause.final) for clause in clauses_of(outputs)] == [
        ("Yes,", False),
        (" I can hear you.", False),
        (" How can I help you today?", True),
    ]
    done = done_of(outputs)
    assert (done.text, done.reason, done.cached_tokens) == (text, "stop", 0)
    assert done.output_tokens == len(text.split()) + 1
    assert stream.finished
    stream.close()


def test_a_reply_that_ends_by_itself_is_whole() -> None:
    outputs = run_all(Bench("Just so").respond())
    assert [(c.text, c.final) for c in clauses_of(outputs)] == [("Just so", True)]
    assert (done_of(outputs).reason, done_of(outputs).output_tokens) == ("stop", 2)


def test_an_empty_reply_still_has_its_final_clause() -> None:
    outputs = run_all(Bench("").respond())
    assert [(c.text, c.final) for c in clauses_of(outputs)] == [("", True)]
    assert done_of(outputs).text == ""


def test_a_reply_has_at_most_its_tokens() -> None:
    done = done_of(run_all(Bench().respond(tokens=3)))
    assert (done.text, done.reason, done.output_tokens) == ("Yes, I can", "max_output_tokens", 3)


def test_more_tokens_than_the_context_leaves_are_lowered() -> None:
    bench = Bench("word " * 400, sentences_max=1)
    assert done_of(run_all(bench.respond(tokens=10_000))).output_tokens == 256


def test_the_number_of_sentences_is_a_setting() -> None:
    assert done_of(run_all(Bench(sentences_max=1).respond())).text == "Yes, I can hear you."


def test_the_request_carries_options_and_stops() -> None:
    bench = Bench()
    run_all(bench.respond(temperature=0.5))
    request = bench.llama.requests[-1]
    assert (request.temperature, request.stops) == (0.5, ("<|im_end|>", "<|im_start|>"))
    assert (request.repeat_penalty, request.repeat_window) == (1.05, 64)


# ---- stalls and cancels -------------------------------------------------------------------------------


def test_a_stalled_reply_stops_at_once_and_goes_on_where_it_was() -> None:
    bench = Bench()
    stream = bench.respond()
    context = RecordingContext(stall_when=stall_once_after(1))
    assert run_step(stream, context)
    assert "".join(deltas_of(context.outputs)) == "Yes, I"
    assert not stream.finished
    resumed = stream.next_step()
    assert resumed is not None
    assert resumed.urgency == 1
    context.stall_when = lambda _: False
    context.outputs += stream.finish_step(resumed.run(context))
    assert done_of(context.outputs) == done_of(run_all(Bench().respond()))
    assert bench.llama.evaluated[-1] == 1, "the KV still held prompt and text"


def test_a_stall_at_the_last_token_ends_the_reply() -> None:
    stream = Bench().respond(tokens=2)
    context = RecordingContext(stall_when=stall_once_after(1))
    run_step(stream, context)
    assert done_of(context.outputs).reason == "max_output_tokens"


def test_a_cancel_stops_the_reply_at_the_next_token() -> None:
    bench = Bench()
    context = RecordingContext(cancel_when=lambda outputs: len(deltas_of(outputs)) == 2)
    stream = bench.respond()
    run_step(stream, context)
    assert deltas_of(context.outputs) == ["Yes,", " I"]
    assert not clauses_of(context.outputs)[1:]
    stream.close()
    assert bench.llama.kv[0][-2:] == [" I", " can"], "one token more than was seen"


def test_a_cancel_stops_a_long_prompt_at_the_next_piece() -> None:
    bench = Bench()
    asked = 0

    def third_time(_: Sequence[Output]) -> bool:
        nonlocal asked
        asked += 1
        return asked == 3

    stream = bench.respond(LONG)
    run_step(stream, RecordingContext(cancel_when=third_time))
    assert sum(bench.llama.evaluated) <= 2 * PIECE_TOKENS + 8
    assert len(bench.llama.requests) <= 2


@pytest.mark.parametrize("messages", [ASK, (Message("user", "Hi"),)])
def test_a_cancelled_first_evaluation_leaves_the_slot_unused(messages: tuple[Message, ...]) -> None:
    bench = Bench()
    run_step(bench.respond(messages), RecordingContext(cancel_when=lambda _: True))
    run_all(bench.respond(messages, name="r2"))
    assert [request.reuse for request in bench.llama.requests[:2]] == [False, False]


def test_a_long_prompt_is_evaluated_in_pieces_and_counted_whole() -> None:
    bench = Bench()
    done = done_of(run_all(bench.respond(LONG)))
    pieces = [request for request in bench.llama.requests if not request.tokens_max]
    assert len(pieces) == 5
    assert max(bench.llama.evaluated) <= 32
    assert (done.prompt_tokens, done.cached_tokens) == (sum(bench.llama.evaluated), 0)


# ---- prefill ------------------------------------------------------------------------------------------


def test_a_complete_prefill_leaves_one_token_to_evaluate() -> None:
    bench = Bench()
    prefill = bench.prefill(ASK, complete=True)
    assert run_all(prefill) == []
    assert not prefill.finished
    done = done_of(run_all(bench.respond()))
    assert done.prompt_tokens - done.cached_tokens == 1


def test_a_growing_prompt_is_evaluated_once() -> None:
    bench = Bench()
    prefill = bench.prefill()
    words = ["I", "would", "like", "to", "know", "what", "time", "it", "is"]
    for end in range(1, len(words) + 1):
        prefill.feed(Prompt((*LONG[:1], Message("user", " ".join(words[:end])))))
        run_all(prefill)
    prefill.feed(Prompt((*LONG[:1], Message("user", " ".join(words))), complete=True))
    run_all(prefill)
    assert sum(bench.llama.evaluated) <= len(bench.llama.kv[0]) + len(bench.llama.requests)


def test_a_step_of_a_prefill_is_one_piece_at_low_urgency() -> None:
    bench = Bench()
    prefill = bench.prefill(LONG)
    step = prefill.next_step()
    assert step is not None
    assert (step.kind, step.urgency, step.units) == ("prefill", 2, 0)
    assert prefill.finish_step(step.run(RecordingContext())) == ()
    assert bench.llama.evaluated[0] <= 32
    assert run_all(prefill) == []
    assert prefill.next_step() is None


def test_a_newer_prompt_replaces_the_older_also_while_it_runs() -> None:
    bench = Bench()
    prefill = bench.prefill(LONG)
    step = prefill.next_step()
    assert step is not None
    prefill.feed(Prompt(ASK, complete=True))
    assert step.run(RecordingContext()) is False
    prefill.finish_step(False)
    run_all(prefill)
    assert bench.llama.kv[0][-4:] == ["\n", "<|im_start|>", "assistant", "\n"]
    assert done_of(run_all(bench.respond())).cached_tokens > 8


def test_a_prompt_that_came_meanwhile_is_not_forgotten() -> None:
    bench = Bench()
    prefill = bench.prefill(ASK[:1])
    step = prefill.next_step()
    assert step is not None
    result = step.run(RecordingContext())
    assert result is True
    prefill.feed(Prompt(ASK))
    prefill.finish_step(result)
    assert prefill.next_step() is not None


def test_a_prompt_already_in_the_kv_asks_nothing_of_the_engine() -> None:
    bench = Bench()
    run_all(bench.prefill(ASK, complete=True))
    before = len(bench.llama.requests)
    run_all(bench.prefill(ASK))
    assert len(bench.llama.requests) == before


def test_the_next_turn_evaluates_only_what_is_new() -> None:
    bench = Bench()
    done = done_of(run_all(bench.respond()))
    history = (*ASK, Message("assistant", done.text), Message("user", "What time is it?"))
    turn = done_of(run_all(bench.respond(history, name="r2")))
    assert turn.cached_tokens >= done.prompt_tokens + done.output_tokens - 2
    assert turn.prompt_tokens - turn.cached_tokens <= 14


# ---- the slot -----------------------------------------------------------------------------------------


def test_streams_of_a_session_exclude_each_other_and_responses_go_first() -> None:
    bench = Bench()
    prefill = bench.prefill(LONG)
    running = prefill.next_step()
    assert running is not None
    response = bench.respond()
    assert response.next_step() is None, "the prefill has the slot"
    assert prefill.held() == {"slots": 1}
    assert running.run(RecordingContext()) is False, "it gives way at its next piece"
    prefill.finish_step(False)
    assert prefill.next_step() is None, "a response is open"
    assert response.held() == {"slots": 0}
    step = response.next_step()
    assert step is not None
    assert response.held() == {"slots": 1}
    response.finish_step(step.run(RecordingContext()))
    assert response.next_step() is None
    assert prefill.next_step() is not None


def test_a_planned_step_that_never_runs_gives_the_slot_back() -> None:
    bench = Bench()
    prefill = bench.prefill(LONG)
    assert prefill.next_step() is not None
    prefill.close()
    response = bench.respond()
    assert response.next_step() is not None
    response.close()
    assert response.finished
    assert bench.prefill(LONG).next_step() is not None


def test_the_spare_is_shared_without_sharing_its_content() -> None:
    bench = Bench()
    one, other = bench.respond(spare=True, name="o1"), bench.respond(spare=True, name="o2")
    waiting = RecordingContext(stall_when=stall_once_after(1))
    run_step(one, waiting)
    assert done_of(run_all(other)).cached_tokens == 0
    waiting.stall_when = lambda _: False
    run_all(one, waiting)
    assert done_of(waiting.outputs).text == done_of(run_all(bench.respond())).text
    assert sum(not request.reuse for request in bench.llama.requests if request.slot == 1) == 3


def test_the_spare_needs_no_session_and_leaves_the_sessions_slot_alone() -> None:
    bench = Bench()
    run_all(bench.prefill(ASK, complete=True))
    stranger = bench.model.open(Tag("x", -1, 0, "o"), ThinkerOptions(ASK, 9, spare=True))
    done_of(run_all(stranger))
    assert done_of(run_all(bench.respond())).cached_tokens > 0


def ask_in(bench: Bench, session: str, messages: tuple[Message, ...] = ASK) -> StageStream:
    bench.model.open_session(session)
    return bench.model.open(Tag(session, 1, 1, f"r{session}"), ThinkerOptions(messages, 100))


def test_sessions_have_slots_of_their_own_and_slots_are_reused_afresh() -> None:
    bench = Bench(slots=2)
    run_all(bench.respond())
    run_all(ask_in(bench, "t"))
    assert {request.slot for request in bench.llama.requests} == {0, 1}
    assert bench.model.kept_for("s") == {"slots": 1}
    bench.model.close_session("s")
    assert bench.model.kept_for("s") == {"slots": 0}
    bench.model.close_session("unknown")
    assert done_of(run_all(ask_in(bench, "u"))).cached_tokens == 0
    assert bench.llama.requests[-1].slot == 0


def test_a_slot_in_use_is_free_only_when_its_step_is_back() -> None:
    bench = Bench()
    stream = bench.respond()
    assert stream.next_step() is not None
    bench.model.close_session("s")
    other = ask_in(bench, "t")
    assert other.next_step() is None
    stream.close()
    assert other.next_step() is not None


def test_more_sessions_than_slots_take_turns_and_read_again_what_was_lost() -> None:
    bench = Bench(slots=2)
    sessions = ("a", "b", "c")
    first = {session: done_of(run_all(ask_in(bench, session))) for session in sessions}
    for session in sessions:
        history = (*ASK, Message("assistant", first[session].text), Message("user", f"And {session}?"))
        done = done_of(run_all(ask_in(bench, session, history)))
        assert (done.cached_tokens, done.text) == (0, first[session].text), "evicted, and right all the same"
    seen = bench.kv.statistics()
    assert (seen.misses, seen.evictions) == ({"new": 3, "evicted": 3}, {"pressure": 4})
    assert seen.rebuilt_tokens > 0


def test_a_response_waits_while_all_slots_are_used_by_others() -> None:
    bench = Bench()
    first = bench.respond()
    assert first.next_step() is not None
    second = ask_in(bench, "t")
    assert second.next_step() is None
    third = ask_in(bench, "u")
    assert third.next_step() is None
    first.close()
    assert done_of(run_all(second)).text
    assert done_of(run_all(third)).text


def test_a_prefill_that_lost_its_slot_begins_anew() -> None:
    bench = Bench()
    prefill = bench.prefill(LONG)
    run_step(prefill, RecordingContext())
    run_all(ask_in(bench, "t"))
    run_all(prefill)
    assert done_of(run_all(bench.respond(LONG))).cached_tokens > 50


# ---- reading that takes long ----------------------------------------------------------------------------


def test_how_long_the_prompt_will_take_is_said_before_it_is_read() -> None:
    bench = Bench()
    (reading,) = readings_of(run_all(bench.respond(LONG)))
    assert reading.tokens > 50


def test_what_was_read_ahead_or_is_out_of_band_needs_no_word() -> None:
    bench = Bench()
    assert not readings_of(run_all(bench.respond(LONG, spare=True, name="o")))
    run_all(bench.prefill(LONG, complete=True))
    assert not readings_of(run_all(bench.respond(LONG)))


def test_a_filler_is_said_while_the_prompt_is_read_and_is_no_part_of_the_text() -> None:
    bench = Bench()
    whole = done_of(run_all(bench.respond(LONG)))
    bench.model.close_session("s")
    bench.model.open_session("s")
    stream = bench.respond(LONG, name="r2")
    context = RecordingContext(cancel_when=lambda outputs: len(outputs) == 1 and order_filler(stream))
    run_all(stream, context)
    stream.close()
    clauses = clauses_of(context.outputs)
    assert [clause.index for clause in clauses] == list(range(len(clauses)))
    assert clauses[0].text == "One moment, please."
    deltas = [one.event for one in context.outputs if isinstance(one, Publish) and isinstance(one.event, TextDelta)]
    assert (deltas[0].text, deltas[0].filler) == ("One moment, please. ", True)
    assert "".join(delta.text for delta in deltas[1:]) == done_of(context.outputs).text == whole.text
    history = (*LONG, Message("assistant", whole.text), Message("user", "And now?"))
    assert done_of(run_all(bench.respond(history, name="r3"))).cached_tokens > whole.prompt_tokens


def test_a_filler_that_comes_too_late_is_not_said() -> None:
    bench = Bench()
    stream = bench.respond()
    waiting = RecordingContext(stall_when=stall_once_after(1))
    run_step(stream, waiting)
    stream.feed(Filler("One moment, please."))
    waiting.stall_when = lambda _: False
    run_all(stream, waiting)
    stream.close()
    assert all("moment" not in clause.text for clause in clauses_of(waiting.outputs))


def order_filler(stream: StageStream) -> bool:
    """As a `cancel_when` that is never true."""
    return bool(stream.feed(Filler("One moment, please.")))


def readings_of(outputs: Sequence[Output]) -> list[Reading]:
    return [one.event for one in outputs if isinstance(one, Publish) and isinstance(one.event, Reading)]


# ---- refusals -----------------------------------------------------------------------------------------


def test_what_is_no_request_is_refused_by_name() -> None:
    bench = Bench()
    assert failure_code(lambda: bench.model.open(Tag("s", 1, 1, "r"), ObserverOptions())) == "wrong_options"
    assert failure_code(lambda: bench.respond(tokens=0)) == "wrong_options"
    assert failure_code(lambda: bench.respond(temperature=2.5)) == "wrong_options"
    assert failure_code(lambda: bench.respond(())) == "bad_prompt"
    assert failure_code(lambda: bench.respond((Message("narrator", "x"),))) == "bad_prompt"
    assert failure_code(lambda: bench.model.open(Tag("x", 1, 1), PrefillOptions())) == "unknown_session"
    assert failure_code(lambda: bench.respond().feed(Prompt(ASK))) == "wrong_item"
    assert failure_code(lambda: bench.prefill().feed(Pause(0))) == "wrong_item"


def test_a_failure_ends_its_own_stream_only() -> None:
    bench = Bench()
    bench.llama.fails_on = "explode"
    bad = bench.respond((Message("user", "explode"),))
    assert failure_code(lambda: run_all(bad)) == "engine"
    bad.close()
    assert done_of(run_all(bench.respond())).reason == "stop"


BLANKS = Message("user", "a" + " " * 300 + "b")  # estimated at two tokens, counted as 301


def test_a_prompt_that_counts_more_than_estimated_is_fitted_again() -> None:
    bench = Bench()
    exchange = (BLANKS, Message("assistant", "Yes."))
    talk = (Message("system", "Be kind."), *exchange * 5, Message("user", "And now?"))
    assert run_all(bench.prefill(talk, complete=True)) == []
    assert len(bench.llama.kv[0]) < 1_024
    done = done_of(run_all(bench.respond(talk)))
    assert 300 < done.prompt_tokens < 1_024


def test_a_prompt_that_never_fits_is_a_failure() -> None:
    messages = (Message("system", BLANKS.content * 4), Message("user", "Hi"))
    assert failure_code(lambda: run_all(Bench().prefill(messages))) == "prompt_too_long"
    assert failure_code(lambda: run_all(Bench().respond(messages))) == "prompt_too_long"


def test_a_prompt_is_not_fitted_again_forever() -> None:
    bench = Bench()
    exchanges = (BLANKS, Message("assistant", "Yes.")) * 60
    stream = bench.respond((Message("system", "Be kind."), *exchanges, Message("user", "Hi")))
    assert failure_code(lambda: run_all(stream)) == "prompt_too_long"
    assert bench.llama.refusals == FITS_MAX


def test_closing_the_model_closes_the_engine() -> None:
    bench = Bench()
    assert (bench.model.concurrency, bench.model.revision) == (2, "fake")
    bench.model.close()
    assert bench.llama.closed


# ---- real weights -------------------------------------------------------------------------------------


@pytest.mark.models
@pytest.mark.slow
def test_real_replies_stream_and_are_short(sessions: StageModel) -> None:
    outputs = answer(sessions, "a", talk("What is the capital of France?"))
    done = done_of(outputs)
    assert done.text == "The capital of France is Paris."
    assert "".join(deltas_of(outputs)) == "".join(clause.text for clause in clauses_of(outputs)) == done.text
    assert len(deltas_of(outputs)) == done.output_tokens - 1 == 7
    assert done.reason == "stop"
    assert done.prompt_tokens > 100 > done.cached_tokens == 0


@pytest.mark.models
@pytest.mark.slow
def test_real_prefill_leaves_next_to_nothing(sessions: StageModel) -> None:
    prefill = sessions.open(Tag("a", 1, 1), PrefillOptions())
    for words in ("What is", "What is the capital of", "What is the capital of France?"):
        prefill.feed(Prompt(talk(words)))
        run_all(prefill)
    prefill.feed(Prompt(talk("What is the capital of France?"), complete=True))
    run_all(prefill)
    prefill.close()
    done = done_of(answer(sessions, "a", talk("What is the capital of France?")))
    assert done.prompt_tokens - done.cached_tokens == 1
    assert done.text == "The capital of France is Paris."


@pytest.mark.models
@pytest.mark.slow
def test_real_turns_reuse_the_kv_and_interleaved_sessions_keep_theirs(sessions: StageModel) -> None:
    history: dict[str, tuple[Message, ...]] = dict.fromkeys("abcd", ())
    questions = ("My name is {}.", "What is the weather like in {}?", "Thank you from {}.")
    for turn, question in enumerate(questions):
        for session, name in zip("abcd", ("Anna", "Bert", "Clara", "Doris"), strict=True):
            asked = question.format(name)
            done = done_of(answer(sessions, session, talk(asked, *history[session]), tokens=12))
            if turn:
                assert done.prompt_tokens - done.cached_tokens <= 25
                assert done.cached_tokens > 130 + 20 * turn
            history[session] += (Message("user", asked), Message("assistant", done.text))


@pytest.mark.models
@pytest.mark.slow
def test_real_cancel_stops_within_a_token(sessions: StageModel) -> None:
    context = RecordingContext(cancel_when=lambda outputs: len(deltas_of(outputs)) >= 3)
    stream = open_response(sessions, "a", talk("Tell me about the moon."))
    run_step(stream, context)
    stream.close()
    assert len(deltas_of(context.outputs)) == 3
    assert not stream.held()["slots"]
    assert done_of(answer(sessions, "a", talk("Tell me about the moon."))).cached_tokens > 100


@pytest.mark.models
@pytest.mark.slow
def test_a_real_stalled_reply_goes_on(sessions: StageModel) -> None:
    messages = talk("Thanks, that's all for now.")
    whole = done_of(answer(sessions, "a", messages))
    context = RecordingContext(stall_when=stall_once_after(1))
    stream = open_response(sessions, "b", messages)
    run_step(stream, context)
    assert not any(clause.final for clause in clauses_of(context.outputs))
    context.stall_when = lambda _: False
    run_all(stream, context)
    stream.close()
    assert done_of(context.outputs).text == whole.text


@pytest.mark.models
@pytest.mark.slow
def test_a_real_session_that_lost_its_slot_says_the_same(sessions: StageModel) -> None:
    question = talk("What is the capital of France?")
    names = [f"more-{number}" for number in range(5)]
    for name in names:
        sessions.open_session(name)
        assert done_of(answer(sessions, name, question)).text == "The capital of France is Paris."
    later = talk(
        "And how are you?", *question[len(MESSAGES) :], Message("assistant", "The capital of France is Paris.")
    )
    lost = done_of(answer(sessions, names[0], later))
    kept = done_of(answer(sessions, names[-1], later))
    assert lost.cached_tokens == 0
    assert kept.cached_tokens > 100
    assert lost.text == kept.text
    for name in names:
        sessions.close_session(name)


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("text", ["Größe, naïve café.", "It is 10:30 on 3.5.2026.", "International organisations met."])
def test_the_estimate_is_not_below_the_real_count(sessions: StageModel, text: str) -> None:
    done = done_of(answer(sessions, "c", (Message("user", text),), tokens=1))
    marks = 3  # the header of the answer
    assert done.prompt_tokens - marks <= cost_of([Message("user", text)])
