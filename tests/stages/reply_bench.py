"""Driving a Thinker's streams in tests as a worker does, without threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stages.contracts import Clause, TextDelta, TextDone
from stages.stream import Emit, Output, Publish, StageStream

STEPS_MAX = 200


@dataclass(slots=True)
class RecordingContext:
    """Keeps what steps hand over; `cancel_when` and `stall_when` are asked with the outputs so far."""

    outputs: list[Output] = field(default_factory=list)
    cancel_when: Callable[[Sequence[Output]], bool] = lambda _: False
    stall_when: Callable[[Sequence[Output]], bool] = lambda _: False

    def cancelled(self) -> bool:
        return self.cancel_when(self.outputs)

    def wait_cancelled(self, ns_max: int) -> bool:
        return self.cancelled()

    def stalled(self) -> bool:
        return self.stall_when(self.outputs)

    def progress(self, outputs: Sequence[Output]) -> None:
        self.outputs += outputs


def run_step(stream: StageStream, context: RecordingContext) -> bool:
    """Run the next step of `stream`, if it has one."""
    step = stream.next_step()
    if step is None:
        return False
    context.outputs += stream.finish_step(step.run(context))
    return True


def run_all(stream: StageStream, context: RecordingContext | None = None) -> list[Output]:
    """Run steps until the stream has none."""
    context = context or RecordingContext()
    for _ in range(STEPS_MAX):
        if not run_step(stream, context):
            return context.outputs
    raise AssertionError("the stream never came to rest")


def clauses_of(outputs: Sequence[Output]) -> list[Clause]:
    return [o.item for o in outputs if isinstance(o, Emit) and isinstance(o.item, Clause)]


def deltas_of(outputs: Sequence[Output]) -> list[str]:
    return [o.event.text for o in outputs if isinstance(o, Publish) and isinstance(o.event, TextDelta)]


def done_of(outputs: Sequence[Output]) -> TextDone:
    (done,) = (o.event for o in outputs if isinstance(o, Publish) and isinstance(o.event, TextDone))
    return done
