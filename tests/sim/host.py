"""A stage's process: the real stage core, its links, and engine threads that take their time. It dies and comes back.

Links are numbered alike at every host: control and media to the gateway, data from the stage before, onward to the
next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stages.edges import OutEdge
from stages.effects import Effect, ReportFault, Send, StartBatch, StartStep, StepFlags
from stages.messages import LINK_VERSION, Frame, Hello, Welcome
from stages.stage import Stage
from stages.stream import Output, StageFailure, StageModel
from tests.sim.clock import Clock, Wire

CONTROL, MEDIA, DATA, ONWARD = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class HostSpec:
    """`step_ms` draws the time that a batch of steps takes; `fails` says of each whether it fails."""

    name: str
    model: Callable[[], StageModel]
    edges: tuple[OutEdge, ...]
    step_ms: Callable[[], float]
    fails: Callable[[], bool]


@dataclass(slots=True)
class _Context:
    flags: StepFlags
    hand_over: Callable[[Sequence[Output]], None]

    def cancelled(self) -> bool:
        return self.flags.cancelled

    def wait_cancelled(self, ns_max: int) -> bool:
        return self.flags.cancelled

    def stalled(self) -> bool:
        return self.flags.stalled

    def progress(self, outputs: Sequence[Output]) -> None:
        self.hand_over(outputs)


class Host:
    """`stage` is None while the process is dead."""

    def __init__(self, clock: Clock, spec: HostSpec) -> None:
        self.name = spec.name
        self.incarnation = 0
        self.stage: Stage | None = None
        self._clock = clock
        self._spec = spec
        self._wires: dict[int, Wire] = {}

    # ---- life --------------------------------------------------------------------------------------

    def boot(self) -> None:
        spec = self._spec
        self.incarnation += 1
        self.stage = Stage(spec.model(), spec.edges)

    def die(self) -> None:
        """All at once: links, threads, and what was held."""
        for wire in self._wires.values():
            wire.cut()
        self._wires.clear()
        self.stage = None

    # ---- links -------------------------------------------------------------------------------------

    def link(self, number: int, out: Wire, hello: Hello) -> None:
        """A peer has connected: what is sent on `number` goes out by `out`."""
        assert self.stage is not None, "nobody connects to the dead"
        self._wires[number] = out
        self.stage.link_up(number, hello)

    def welcome(self) -> Welcome:
        assert self.stage is not None, "the dead welcome nobody"
        return Welcome(LINK_VERSION, self.name, self.incarnation, "sim", self.stage.onward)

    def connect_onward(self, target: str, out: Wire) -> None:
        assert self.stage is not None, "the dead connect to nobody"
        self._wires[ONWARD] = out
        self._carry_out(self.stage.onward_up(target, ONWARD))

    def unlink(self, *numbers: int) -> None:
        """These links are gone."""
        for number in numbers:
            wire = self._wires.pop(number, None)
            if wire is not None and self.stage is not None:
                wire.cut()
                self._carry_out(self.stage.link_lost(number, self._clock.now_ns))

    def frame(self, number: int, frame: Frame) -> None:
        if self.stage is not None and number in self._wires:
            self._carry_out(self.stage.handle(number, frame, self._clock.now_ns))

    # ---- steps -------------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(number, frame):
                    wire = self._wires.get(number)
                    if wire is not None:
                        wire.send(frame)
                case StartBatch():
                    self._start(effect)
                case ReportFault(key, error):
                    raise AssertionError(f"the engine of {key} broke its contract") from error

    def _start(self, batch: StartBatch) -> None:
        incarnation = self.incarnation
        self._clock.after(self._spec.step_ms(), lambda: self._batch_done(batch, incarnation))

    def _batch_done(self, batch: StartBatch, incarnation: int) -> None:
        stage = self.stage
        if stage is None or incarnation != self.incarnation:
            return  # the thread died with its process
        if self._spec.fails():
            results: Sequence[object] = [StageFailure("step_failed", "by chance")] * len(batch.steps)
        else:
            results = batch.run([self._context(stage, start) for start in batch.steps])
        self._carry_out(stage.batch_done(batch.number, results, self._clock.now_ns))

    def _context(self, stage: Stage, start: StartStep) -> _Context:
        return _Context(start.flags, lambda outputs: self._carry_out(stage.progress(start.key, outputs)))
