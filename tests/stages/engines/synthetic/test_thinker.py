"""The synthetic Thinker: what it reads and what that costs, and what it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contracts import (
    Clause,
    Filler,
    Message,
    ObserverOptions,
    PrefillOptions,
    Prompt,
    Reading,
    Tag,
    TextDelta,
    TextDone,
    ThinkerOptions,
)
from stages.engines.synthetic.build import thinker
from stages.engines.synthetic.thinker import PREFILL_TOKENS_MAX, Kv, Thinker, tokens_of
from stages.stream import Emit, StageFailure, StageStream
from tests.stages.engines.synthetic.bench import TAG, emitted, events, kinds_and_ms, run, step_of

SYSTEM = Message("system", "x" * 40)  # 14 tokens
USER = Message("user", "y" * 24)  # 10 tokens
ASKED = (SYSTEM, USER)
TURN = Tag("s", 1, 1)


def model(**options: object) -> Thinker:
    one = thinker({"prefill_ms_per_token": 2, "word_ms": 10, "reply_words": 5, "words_per_clause": 3} | options)
    one.open_session("s")
    return one


def ask(one: Thinker, *messages: Message, limit: int = 100, spare: bool = False, session: str = "s") -> StageStream:
    return one.open(Tag(session, 1, 1, "resp_1"), ThinkerOptions(messages or ASKED, limit, spare=spare))


def prefill(one: Thinker) -> StageStream:
    return one.open(TURN, PrefillOptions())


# ---- what it says ---------------------------------------------------------------------------------------------


def test_a_reply_is_words_with_numbers_in_clauses() -> None:
    outputs = run(ask(model()))
    assert [event.text for event in events(outputs) if isinstance(event, TextDelta)] == [
        "w0",
        " w1",
        " w2,",
        " w3",
        " w4.",
    ]
    assert emitted(outputs) == [Clause(0, "w0 w1 w2,"), Clause(1, " w3 w4.", final=True)]
    assert [output.units for output in outputs if isinstance(output, Emit)] == [9, 7]
    assert events(outputs)[-1] == TextDone("w0 w1 w2, w3 w4.", "stop", 24, 0, 5)


def test_a_reply_that_is_longer_than_allowed_is_cut() -> None:
    outputs = run(ask(model(), limit=3))
    assert emitted(outputs) == [Clause(0, "w0 w1 w2.", final=True)]
    assert events(outputs)[-1] == TextDone("w0 w1 w2.", "max_output_tokens", 24, 0, 3)


def test_each_word_takes_its_time_after_the_prompt() -> None:
    stream = ask(model())
    first = step_of(stream)
    assert (first.kind, first.urgency) == ("prefill", 0)
    assert kinds_and_ms(stream) == [("prefill", 48), *[("word", 10)] * 5]
    assert stream.finished


def test_the_first_word_is_urgent() -> None:
    stream = ask(model(prefill_ms_per_token=0))
    stream.finish_step(step_of(stream))
    urgencies = []
    while stream.next_step() is not None:
        step = step_of(stream)
        urgencies.append(step.urgency)
        stream.finish_step(step)
    assert urgencies == [0, 1, 1, 1, 1]


def test_lengths_are_drawn() -> None:
    one = model(reply_words={"kind": "uniform", "low": 1, "high": 20})
    lengths = [len(emitted_words(ask(one))) for _ in range(20)]
    assert len(set(lengths)) > 5
    assert all(1 <= length <= 20 for length in lengths)


def emitted_words(stream: StageStream) -> list[str]:
    return " ".join(item.text for item in emitted(run(stream)) if isinstance(item, Clause)).split()


def test_what_is_not_said_is_held() -> None:
    stream = ask(model(prefill_ms_per_token=0))
    assert stream.held() == {"words": 5}
    for _ in range(3):  # the prompt and two words
        stream.finish_step(step_of(stream))
    assert stream.held() == {"words": 3}


# ---- what it reads --------------------------------------------------------------------------------------------


def test_long_prompts_are_read_in_pieces() -> None:
    one = model()
    long = Message("user", "z" * 4 * 66)  # 70 tokens
    assert kinds_and_ms(ask(one, long))[:3] == [("prefill", 64), ("prefill", 64), ("prefill", 12)]


def test_what_was_prefilled_costs_nothing() -> None:
    one = model()
    stream = prefill(one)
    stream.feed(Prompt(ASKED))
    assert step_of(stream).urgency == 2
    assert kinds_and_ms(stream) == [("prefill", 48)]
    assert not stream.finished
    reply = ask(one)
    assert kinds_and_ms(reply) == [("word", 10)] * 5
    stream.feed(Prompt((SYSTEM, Message("user", "y" * 24 + "z" * 8)), complete=True))
    reply.close()
    assert kinds_and_ms(stream) == [("prefill", 4)]


def test_a_growing_prompt_costs_what_was_added() -> None:
    one = model()
    stream = prefill(one)
    stream.feed(Prompt(ASKED))
    step = step_of(stream)
    stream.feed(Prompt((*ASKED, USER)))  # while the first is being read
    stream.finish_step(step)
    assert kinds_and_ms(stream) == [("prefill", 20)]
    assert stream.held() == {}


def test_nothing_is_prefilled_while_a_reply_is_made() -> None:
    one = model()
    stream, reply = prefill(one), ask(one)
    stream.feed(Prompt((SYSTEM,)))
    assert stream.next_step() is None
    reply.close()
    assert stream.next_step() is not None


def test_the_next_turn_reads_the_new_messages_alone() -> None:
    one = model()
    first = ask(one)
    said = events(run(first))[-1]
    assert isinstance(said, TextDone)
    first.close()
    done = events(run(ask(one, *ASKED, Message("assistant", said.text), USER)))[-1]
    assert isinstance(done, TextDone)
    assert done.prompt_tokens - done.cached_tokens == tokens_of((USER,))


def test_a_reply_that_was_cut_is_known_as_far_as_it_was_said() -> None:
    one = model()
    first = ask(one)
    run(first)
    first.close()
    cut = Message("assistant", "w0 w1")
    done = events(run(ask(one, *ASKED, cut, USER)))[-1]
    assert isinstance(done, TextDone)
    assert done.cached_tokens == tokens_of((*ASKED, cut))


def test_a_reply_that_said_nothing_leaves_the_prompt_behind() -> None:
    one = model()
    first = ask(one)
    first.finish_step(step_of(first))
    first.close()
    assert kinds_and_ms(ask(one)) == [("word", 10)] * 5


def test_out_of_band_it_reads_everything_and_changes_nothing() -> None:
    one = model()
    run(ask(one))
    spare = ask(one, spare=True)
    assert kinds_and_ms(spare)[0] == ("prefill", 48)
    spare.close()
    assert kinds_and_ms(ask(one))[0] == ("word", 10)


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=4), st.integers(0, 40)), max_size=6))
def test_no_more_is_cached_than_was_read_and_than_there_is(reads: list[tuple[list[int], int]]) -> None:
    texts = ["", "a" * 8, "a" * 20, "b" * 8]
    kv, total = Kv(), 0
    for choice, wanted in reads:
        messages = tuple(Message("user", texts[number]) for number in choice)
        assert 0 <= kv.cached(messages) <= min(total, tokens_of(messages))
        before = kv.cached(messages)
        tokens = min(wanted, tokens_of(messages) - before, PREFILL_TOKENS_MAX)
        total += tokens
        kv.extend(messages, tokens)
        assert kv.cached(messages) == before + tokens


def test_another_role_is_another_message() -> None:
    kv = Kv()
    kv.extend((USER,), 10)
    assert kv.cached((Message("assistant", USER.content),)) == 0


# ---- what it refuses ------------------------------------------------------------------------------------------


def test_sessions_have_places() -> None:
    one = thinker({"sessions_max": 2})
    for session in ("a", "b", "a"):
        one.open_session(session)
    with pytest.raises(StageFailure) as caught:
        one.open_session("c")
    assert caught.value.code == "capacity"
    one.close_session("a")
    one.close_session("unknown")
    one.open_session("c")
    one.close()


def test_a_session_that_is_opened_again_keeps_what_it_has_read() -> None:
    one = model()
    end(ask(one))
    one.open_session("s")
    assert one.kept_for("s") == {"kv": 1}
    again = ask(one)
    assert kinds_and_ms(again)[0][0] == "word"
    again.close()
    one.close_session("s")
    assert one.kept_for("s") == {"kv": 0}
    one.open_session("s")
    assert kinds_and_ms(ask(one))[0][0] == "prefill"


def test_more_sessions_than_places_read_again_what_was_lost() -> None:
    one = model(kv_places=1)
    one.open_session("t")
    end(ask(one))
    end(ask(one, session="t"))
    lost = ask(one)
    assert kinds_and_ms(lost)[0] == ("prefill", 48)
    assert one.kv.statistics().rebuilt_tokens == tokens_of(ASKED)


def test_a_reply_waits_for_a_place() -> None:
    one = model(kv_places=1)
    one.open_session("t")
    first, second = ask(one), ask(one, session="t")
    step_of(first)
    assert second.next_step() is None
    first.close()
    assert second.next_step() is not None


def test_what_was_read_ahead_and_lost_is_left_to_who_needs_it() -> None:
    one = model(kv_places=1)
    one.open_session("t")
    ahead = prefill(one)
    run(ahead, Prompt(ASKED))
    end(ask(one, session="t"))
    assert ahead.next_step() is None
    assert kinds_and_ms(ask(one))[0] == ("prefill", 48)


# ---- reading that takes long ------------------------------------------------------------------------------------

LONG = (SYSTEM, Message("user", "x" * 400))


def test_it_says_how_long_reading_will_take() -> None:
    stream = ask(model(), *LONG)
    first = step_of(stream)
    (reading,) = events(stream.finish_step(first))
    left = tokens_of(LONG) - PREFILL_TOKENS_MAX
    assert reading == Reading(left, left * 2_000_000)
    assert not any(isinstance(event, Reading) for event in events(run(stream)))


def test_out_of_band_nobody_waits() -> None:
    assert not any(isinstance(event, Reading) for event in events(run(ask(model(), *LONG, spare=True))))


def test_a_filler_is_said_before_the_first_word_and_is_no_part_of_the_text() -> None:
    one = model()
    stream = ask(one, *LONG)
    stream.finish_step(step_of(stream))
    said = stream.feed(Filler("One moment."))
    assert events(said) == [TextDelta("One moment. ", filler=True)]
    assert emitted(said) == [Clause(0, "One moment.")]
    rest = run(stream)
    clauses = [item for item in emitted(rest) if isinstance(item, Clause)]
    assert [clause.index for clause in clauses] == list(range(1, len(clauses) + 1))
    done = events(rest)[-1]
    assert isinstance(done, TextDone)
    assert done.text.startswith("w0")
    assert "".join(clause.text for clause in clauses) == f" {done.text}", "who wants all of the text gets words apart"
    assert stream.feed(Filler("Too late.")) == ()
    stream.close()
    assert kinds_and_ms(ask(one, *LONG, Message("assistant", done.text)))[0][0] == "word"


def end(stream: StageStream) -> None:
    run(stream)
    stream.close()


def test_what_is_not_for_it_is_refused() -> None:
    one = model()
    for options in (ObserverOptions(), ThinkerOptions(ASKED, 0)):
        with pytest.raises(StageFailure, match="Thinker takes no") as caught:
            one.open(TAG, options)
        assert caught.value.code == "wrong_options"
    with pytest.raises(StageFailure) as caught:
        one.open(Tag("other", 1, 1, "r"), ThinkerOptions(ASKED, 1))
    assert caught.value.code == "unknown_session"
    for stream in (ask(one), prefill(one)):
        with pytest.raises(StageFailure) as caught:
            stream.feed(Clause(0, ""))
        assert caught.value.code == "wrong_item"
