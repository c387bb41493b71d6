"""A stage whose outputs wait for room on their link, or can never go."""

from __future__ import annotations

from stages.contracts import Tag
from stages.messages import Cancel, Closed, Published, StepDone
from tests.stages.puppet import PuppetStep
from tests.stages.stage_bench import SESSION, TAG, Puppets, closings, sound


def test_a_paused_stream_keeps_its_outputs_and_starts_no_step() -> None:
    bench = Puppets(PuppetStep((sound(1),)), PuppetStep(), publish_window=4)
    flags = bench.running[TAG.key].flags
    bench.stage.pause(TAG.key)
    assert flags.stalled
    assert [type(frame) for frame in bench.finish()] == [StepDone]
    assert bench.running == {}
    assert [type(frame) for frame in bench.carry_out(bench.stage.go_on(TAG.key, bench.now_ns))] == [Published]
    assert (flags.stalled, list(bench.running)) == (False, [TAG.key])


def test_a_step_that_waits_is_taken_back_by_a_pause() -> None:
    bench = Puppets(PuppetStep())
    bench.another(Tag(SESSION, 5, 1, "a"), PuppetStep())
    bench.stage.pause("a")
    bench.finish()
    assert bench.running == {}
    bench.carry_out(bench.stage.go_on("a", bench.now_ns))
    assert list(bench.running) == ["a"]


def test_a_stream_that_ends_is_not_held_up_by_a_pause() -> None:
    bench = Puppets(PuppetStep())
    bench.stage.pause(TAG.key)
    bench.frame(Cancel(TAG))
    assert bench.stage.go_on(TAG.key, bench.now_ns) == []
    assert closings(bench.finish()) == [(TAG, "cancelled", "")]
    bench.stage.pause(TAG.key)
    assert bench.stage.go_on(TAG.key, bench.now_ns) == []
    assert bench.is_empty()


def test_a_stream_whose_output_cannot_be_sent_fails_alone() -> None:
    bench = Puppets()
    bench.another(Tag(SESSION, 5, 1, "a"))
    failed = bench.stage.send_failed(TAG.key, "hand_over_too_large", "300000 bytes", bench.now_ns)
    assert bench.carry_out(failed) == [Closed(TAG, "failed", {}, "hand_over_too_large", "300000 bytes")]
    assert bench.stage.send_failed(TAG.key, "hand_over_too_large", "again", bench.now_ns) == []
    assert bench.stage.statistics().streams == 1
