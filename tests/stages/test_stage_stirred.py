"""Whose steps are looked for when something comes: those that it may have made ready."""

from __future__ import annotations

from stages.contracts import OUT_OF_BAND, Clause, Tag
from stages.messages import Feed, Grant
from stages.stream import StageFailure
from tests.stages.puppet import PuppetStep
from tests.stages.stage_bench import MEDIA, SESSION, TAG, Puppets, closings, sound

SIBLING = Tag(SESSION, 5, 1, "resp_2")
STRANGER = Tag("other", 5, 1, "resp_3")
ASIDE = Tag(SESSION, OUT_OF_BAND, 1, "resp_4")


def test_credit_stirs_its_own_stream_alone() -> None:
    bench = Puppets(publish_window=10)
    other = bench.another(SIBLING)
    bench.progress(sound(4))
    before = bench.stream.asked, other.asked
    bench.frame(Grant(TAG, 4))
    assert (bench.stream.asked, other.asked) == (before[0] + 1, before[1])


def test_input_and_a_step_that_ends_stir_the_streams_of_their_session() -> None:
    bench = Puppets(publish_window=10)
    sibling, stranger = bench.another(SIBLING), bench.another(STRANGER)
    before = sibling.asked, stranger.asked
    bench.stream.steps.append(PuppetStep())
    bench.frame(Feed(TAG, Clause(0, "Hi.")), MEDIA)
    assert (sibling.asked, stranger.asked) == (before[0] + 1, before[1])
    bench.finish()
    assert (sibling.asked, stranger.asked) == (before[0] + 2, before[1])


def test_a_step_out_of_band_stirs_all_streams_and_so_does_one_with_which_its_stream_leaves() -> None:
    bench = Puppets(publish_window=10, concurrency=2)
    stranger = bench.another(STRANGER)
    bench.another(ASIDE, PuppetStep())
    before = stranger.asked
    bench.finish(ASIDE.key)
    assert stranger.asked == before + 1
    bench.another(SIBLING, PuppetStep())
    before = stranger.asked
    bench.finish(SIBLING.key, StageFailure("engine", "it broke"))
    assert stranger.asked == before + 1


def test_what_comes_for_a_stream_that_is_gone_stirs_nobody() -> None:
    bench = Puppets()
    before = bench.stream.asked
    bench.frame(Grant(SIBLING, 4))
    assert bench.stream.asked == before


def test_a_stream_that_leaves_by_its_credit_makes_room_for_one_that_waits() -> None:
    bench = Puppets(publish_window=10, concurrency=2)
    other = bench.another(SIBLING)
    bench.progress(sound(10), sound(1, 1))
    bench.stream.ends = True
    assert closings(bench.wake()) == [], "its last sound waits for credit"
    bench.stream.frees.append((other, PuppetStep(kind="freed")))
    assert closings(bench.frame(Grant(TAG, 10))) == [(TAG, "finished", "")]
    assert list(bench.running) == [SIBLING.key]
