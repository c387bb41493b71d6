"""The prompt that is read ahead: one stream at a time, each with a name of its own."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.effects import CancelStream, FeedStream, OpenStream
from sessions.prefill import Prefill
from stages.contracts import Message, PrefillOptions, Prompt, Tag, Tool

FIRST, SECOND = Tag("sess", 7, 1), Tag("sess", 7, 2)
HELLO = (Message("user", "hello"),)


def test_a_prefill_is_opened_and_fed() -> None:
    prefill = Prefill("sess", "llm")
    opened = [OpenStream("llm", FIRST, PrefillOptions()), FeedStream("llm", FIRST, Prompt(HELLO))]
    assert prefill.start(7, 1, HELLO) == opened
    assert prefill.tag == FIRST
    assert prefill.feed(HELLO, complete=True) == [FeedStream("llm", FIRST, Prompt(HELLO, True))]


def test_one_ends_before_the_next_begins() -> None:
    prefill = Prefill("sess", "llm")
    prefill.start(7, 1, HELLO)
    assert prefill.start(7, 2, HELLO)[0] == CancelStream("llm", FIRST)
    assert prefill.stop() == [CancelStream("llm", SECOND)]
    assert prefill.stop() == prefill.feed(HELLO, complete=False) == []


def test_what_is_gone_is_fed_and_stopped_no_more() -> None:
    prefill = Prefill("sess", "llm")
    prefill.start(7, 2, HELLO)
    prefill.gone(FIRST)
    assert prefill.tag == SECOND
    prefill.gone(SECOND)
    assert prefill.stop() == []


STEPS = st.lists(
    st.tuples(st.sampled_from(("start", "feed", "stop", "gone", "gone before")), st.booleans()), max_size=30
)


@settings(max_examples=50)
@given(STEPS)
def test_at_most_one_is_read_and_nothing_else_is_fed_or_stopped(steps: list[tuple[str, bool]]) -> None:
    prefill, reading, turn = Prefill("sess", "llm"), list[Tag](), 0
    for step, complete in steps:
        match step:
            case "start":
                turn += 1
                effects = prefill.start(7, turn, HELLO)
            case "feed":
                effects = prefill.feed(HELLO, complete=complete)
            case "stop":
                effects = prefill.stop()
            case _:
                gone = Tag("sess", 7, turn if step == "gone" else turn - 1)
                prefill.gone(gone)
                effects, reading = [], [tag for tag in reading if tag != gone]
        for effect in effects:
            match effect:
                case OpenStream(tag=tag):
                    assert reading == [], "one ends before the next begins"
                    reading.append(tag)
                case FeedStream(tag=tag):
                    assert reading == [tag]
                case CancelStream(tag=tag):
                    reading.remove(tag)
        assert reading == ([] if prefill.tag is None else [prefill.tag])


def test_what_is_read_is_read_as_a_model_that_knows_the_tools() -> None:
    prefill, tools = Prefill("sess", "llm"), (Tool("look"),)
    assert prefill.start(7, 1, HELLO, tools)[1] == FeedStream("llm", FIRST, Prompt(HELLO, tools=tools))
    assert prefill.feed(HELLO, complete=True) == [FeedStream("llm", FIRST, Prompt(HELLO, True, tools))]
    assert prefill.start(7, 2, HELLO)[2] == FeedStream("llm", SECOND, Prompt(HELLO)), "they go with the settings"
