"""Whose steps are looked for when something comes: those of the stream that it is about, and all where one leaves."""

from __future__ import annotations

from stages.contracts import Clause, Tag
from stages.messages import Feed, Grant
from tests.stages.puppet import PuppetStep
from tests.stages.stage_bench import MEDIA, SESSION, TAG, Puppets, closings, sound

OTHER = Tag(SESSION, 5, 1, "resp_2")


def test_input_and_credit_stir_their_own_stream_alone() -> None:
    bench = Puppets(publish_window=10)
    other = bench.another(OTHER)
    before = bench.stream.asked, other.asked
    bench.frame(Feed(TAG, Clause(0, "Hi.")), MEDIA)
    bench.progress(sound(4))
    bench.frame(Grant(TAG, 4))
    assert (bench.stream.asked, other.asked) == (before[0] + 2, before[1])


def test_what_comes_for_a_stream_that_is_gone_stirs_nobody() -> None:
    bench = Puppets()
    before = bench.stream.asked
    bench.frame(Grant(OTHER, 4))
    assert bench.stream.asked == before


def test_a_stream_that_leaves_by_its_credit_makes_room_for_one_that_waits() -> None:
    bench = Puppets(publish_window=10, concurrency=2)
    other = bench.another(OTHER)
    bench.progress(sound(10), sound(1, 1))
    bench.stream.ends = True
    assert closings(bench.wake()) == [], "its last sound waits for credit"
    bench.stream.frees.append((other, PuppetStep(kind="freed")))
    assert closings(bench.frame(Grant(TAG, 10))) == [(TAG, "finished", "")]
    assert list(bench.running) == [OTHER.key]
