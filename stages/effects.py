"""What a stage asks its worker to do.

Rules
* Effects are carried out in the order in which they were given.
* `StartBatch.run` alone is called on an engine thread, with everything it needs captured in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stages.engine_boundary import EngineFault
from stages.messages import Frame
from stages.stream import BatchingModel, StageFailure, Step, StepContext


@dataclass(frozen=True, slots=True)
class Send:
    """Send `frame` on the link numbered `link`."""

    link: int
    frame: Frame


@dataclass(slots=True)
class StepFlags:
    """Written on the loop thread, read on the engine thread; plain attributes, so no lock is needed.

    `wake` is set by whoever runs the step, before it starts, and called once `cancelled` is true.
    """

    cancelled: bool = False
    stalled: bool = False
    wake: Callable[[], object] | None = None

    def cancel(self) -> None:
        self.cancelled = True
        if self.wake is not None:
            self.wake()


@dataclass(frozen=True, slots=True)
class StartStep:
    """`step` of stream `key`, with `flags` as its context's flags."""

    key: str
    step: Step
    flags: StepFlags


@dataclass(frozen=True, slots=True)
class StartBatch:
    """Run `steps` together: call `run` on an engine thread, and hand what it gives to `Stage.batch_done`.

    `model` is None where the engine runs single steps only.
    """

    number: int
    steps: tuple[StartStep, ...]
    model: BatchingModel | None

    def run(self, contexts: Sequence[StepContext]) -> Sequence[object]:
        """The result of each step, or the `StageFailure` that it ends in. What this raises fails all of them."""
        steps = [start.step for start in self.steps]
        if len(steps) == 1:
            return [steps[0].run(contexts[0])]
        assert self.model is not None, "only a model that batches is given batches"
        results = self.model.run_batch(steps, contexts)
        if len(results) != len(steps):
            raise StageFailure("step_failed", f"{len(results)} results of {len(steps)} steps")
        return results


@dataclass(frozen=True, slots=True)
class ReportFault:
    """For stream (or session) `key`, the engine threw what it must not throw: `error` belongs in the log."""

    key: str
    error: Exception


Effect = Send | StartBatch | ReportFault


def reports_of(key: str, failure: StageFailure) -> list[ReportFault]:
    """What is to be reported of the failure of stream, or session, `key`: a fault of its engine."""
    return [ReportFault(key, failure.error)] if isinstance(failure, EngineFault) else []
