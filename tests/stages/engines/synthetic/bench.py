"""Driving streams of the synthetic engine as a worker does, with a clock of its own: nothing sleeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stages.contracts import Event, Item, Tag
from stages.engines.synthetic.work import TimedStep
from stages.stream import Consumed, Emit, Output, Publish, StageStream

TAG = Tag("s", 1, 1, "resp_1")
STEPS_MAX = 5_000


@dataclass(slots=True)
class Watch:
    """`StepContext` of steps whose waits are noted and cost nothing."""

    waited_ns: list[int] = field(default_factory=list)
    is_cancelled: bool = False

    def cancelled(self) -> bool:
        return self.is_cancelled

    def wait_cancelled(self, ns_max: int) -> bool:
        self.waited_ns.append(ns_max)
        return self.is_cancelled

    def stalled(self) -> bool:
        raise AssertionError("a timed step hands over at its end")

    def progress(self, outputs: Sequence[Output]) -> None:
        raise AssertionError("a timed step hands over at its end")


def step_of(stream: StageStream) -> TimedStep:
    step = stream.next_step()
    assert isinstance(step, TimedStep)
    return step


def run(stream: StageStream, *items: Item) -> list[Output]:
    """Feed `items`, then step until there is nothing to do."""
    outputs = [output for item in items for output in stream.feed(item)]
    for _ in range(STEPS_MAX):
        step = stream.next_step()
        if step is None:
            return outputs
        outputs += stream.finish_step(step.run(Watch()))
    raise AssertionError("the stream never came to rest")


def kinds_and_ms(stream: StageStream) -> list[tuple[str, float]]:
    """The steps to rest: their kinds and service times."""
    taken = []
    while (step := stream.next_step()) is not None:
        assert isinstance(step, TimedStep)
        taken.append((step.kind, step.service_ns / 1e6))
        stream.finish_step(step)
    return taken


def events(outputs: Sequence[Output]) -> list[Event]:
    return [output.event for output in outputs if isinstance(output, Publish)]


def emitted(outputs: Sequence[Output]) -> list[Item]:
    return [output.item for output in outputs if isinstance(output, Emit)]


def consumed(outputs: Sequence[Output]) -> list[int]:
    return [output.units for output in outputs if isinstance(output, Consumed)]
