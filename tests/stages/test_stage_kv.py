"""At a stage: streams that wait for a place for their KV are asked again, and each has its tenant's KV."""

from __future__ import annotations

from stages.contracts import Message, PrefillOptions, Prompt, Tag, ThinkerOptions
from stages.engines.synthetic.build import thinker
from stages.messages import Closed, Feed, Open, OpenSession, Refused
from tests.stages.stage_bench import StageBench

MESSAGES = (Message("system", "x" * 400), Message("user", "y" * 24))
OPTIONS = ThinkerOptions(MESSAGES, 1)


def bench() -> StageBench:
    """Of a Thinker with one place; sessions "a" to "c" are open."""
    one = StageBench(thinker({"prefill_ms_per_token": 0, "word_ms": 0, "reply_words": 1, "kv_places": 1}))
    for session in "abc":
        one.frame(OpenSession(session, 0))
    return one


def respond(one: StageBench, session: str, tenant: str = "") -> Tag:
    tag = Tag(session, 5, 1, f"resp_{session}{tenant}")
    one.frame(Open(tag, OPTIONS, (), tenant))
    return tag


def end(one: StageBench, tag: Tag) -> None:
    """Run its steps to its end."""
    while tag.key in one.running:
        one.finish(tag.key)
    assert any(isinstance(send.frame, Closed) and send.frame.tag == tag for send in one.sent)


def test_a_response_that_waits_for_a_place_begins_when_one_is_free() -> None:
    one = bench()
    first, second = respond(one, "a"), respond(one, "b")
    assert set(one.running) == {first.key}
    end(one, first)
    assert set(one.running) == {second.key}
    end(one, second)


def test_a_response_takes_the_place_of_who_reads_ahead_between_two_steps() -> None:
    one = bench()
    ahead = Tag("a", 5, 1)
    one.frame(Open(ahead, PrefillOptions()))
    one.frame(Feed(ahead, Prompt(MESSAGES)), link=2)
    assert set(one.running) == {ahead.key}
    answer = respond(one, "b")
    assert answer.key not in one.running
    one.finish(ahead.key)
    assert set(one.running) == {answer.key}, "asked again, though the step was of another session"
    end(one, answer)
    assert set(one.running) == {ahead.key}, "and who reads ahead goes on, from the beginning"


def test_however_many_wait_each_has_its_turn() -> None:
    one = bench()
    waiting = [respond(one, session) for session in ("a", "b", "c")]
    for tag in waiting:
        end(one, tag)
    assert not [send.frame for send in one.sent if isinstance(send.frame, Refused)]


def test_another_tenant_finds_no_kv_of_the_same_session() -> None:
    model = thinker({"prefill_ms_per_token": 0, "word_ms": 0, "reply_words": 1})
    one = StageBench(model)
    one.frame(OpenSession("a", 0))
    for tenant in ("acme", "acme", "other"):
        end(one, respond(one, "a", tenant))
        one.sent.clear()
    seen = model.kv.statistics()
    assert (seen.hits, seen.misses, seen.mismatches) == (1, {"new": 2}, 1)
