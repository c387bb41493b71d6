"""How a batch is run on an engine thread."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stages.effects import StartBatch, StartStep, StepFlags
from stages.stream import BatchingModel, StageFailure, StepContext
from tests.stages.puppet import BatchingPuppets, PuppetModel, PuppetStep
from tests.stages.stage_bench import Flags


def batch_of(model: BatchingModel | None, *steps: PuppetStep) -> StartBatch:
    return StartBatch(1, tuple(StartStep(step.kind, step, StepFlags()) for step in steps), model)


def contexts_of(batch: StartBatch) -> Sequence[StepContext]:
    return [Flags(start.flags) for start in batch.steps]


@pytest.mark.parametrize("model", [None, BatchingPuppets()])
def test_a_single_step_runs_by_itself(model: BatchingModel | None) -> None:
    batch = batch_of(model, step := PuppetStep())
    assert batch.run(contexts_of(batch)) == [step]


def test_several_steps_are_run_by_their_model_each_with_its_own_context() -> None:
    class Seeing(BatchingPuppets):
        def run_batch(self, steps: object, contexts: Sequence[StepContext]) -> Sequence[object]:
            return [context.cancelled() for context in contexts]

    batch = batch_of(Seeing(), PuppetStep(), PuppetStep())
    batch.steps[1].flags.cancelled = True
    assert batch.run(contexts_of(batch)) == [False, True]


def test_a_model_that_loses_results_fails_all() -> None:
    model = BatchingPuppets()
    model.batch_gives = [1]
    batch = batch_of(model, PuppetStep(), PuppetStep())
    with pytest.raises(StageFailure, match="1 results of 2 steps") as caught:
        batch.run(contexts_of(batch))
    assert caught.value.code == "step_failed"


def test_steps_of_a_model_that_runs_them_one_by_one_are_never_put_together() -> None:
    batch = batch_of(None, PuppetStep(), PuppetStep())
    with pytest.raises(AssertionError, match="only a model that batches"):
        batch.run(contexts_of(batch))


def test_a_model_says_by_what_it_offers_whether_it_batches() -> None:
    assert isinstance(BatchingPuppets(), BatchingModel)
    assert not isinstance(PuppetModel(), BatchingModel)
