"""A worker's process: the real stage core, its links, and engine threads that take their time. It stops, and it dies.

Theory of operation
    As the real worker, it carries frames and steps between links and the core and decides nothing. While it is
    stopped (a long collection, a signal, a machine that swaps) everything that comes for it waits in order.

Rules
* One process has one incarnation. What was meant for a process that has died happens to nobody.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from stages.messages import LINK_VERSION, Frame, Hello, Welcome
from stages.stage import Effect, Send, Stage, StartStep, StepFlags
from stages.stream import Output, StageFailure, StageModel
from tests.sim.clock import Clock
from tests.sim.network import Route, Wire
from tests.sim.stage_watch import StageWatch

RETRY_MS_MIN, RETRY_MS_MAX = 20, 200


@dataclass(frozen=True, slots=True)
class Edge:
    """The way to the next stage. `find` gives its process, or None while there is none."""

    route: Route
    window: int
    find: Callable[[], Host | None]


@dataclass(frozen=True, slots=True)
class HostSpec:
    """`step_ms` draws the time that a step takes; `fails` says of each whether it fails."""

    stage: str
    model: Callable[[], StageModel]
    edge: Edge | None
    publish_window: int
    step_ms: Callable[[], float]
    fails: Callable[[], bool]
    random: Random


@dataclass(slots=True)
class _Context:
    flags: StepFlags
    hand_over: Callable[[Sequence[Output]], None]

    def cancelled(self) -> bool:
        return self.flags.cancelled

    def stalled(self) -> bool:
        return self.flags.stalled

    def progress(self, outputs: Sequence[Output]) -> None:
        self.hand_over(outputs)


class _Link:
    """This process's end of a link; `number` 0: its peer has not introduced itself."""

    __slots__ = ("host", "number", "wire")

    def __init__(self, host: Host) -> None:
        self.host = host
        self.number = 0
        self.wire: Wire | None = None

    def deliver(self, frame: Frame) -> None:
        self.host.do(self.host.take, self, frame)

    def lost(self) -> None:
        self.host.do(self.host.lose, self)

    def send(self, frame: Frame) -> None:
        assert self.wire is not None, "a link is made before it is used"
        self.wire.send(frame)


class Host:
    def __init__(self, clock: Clock, spec: HostSpec, incarnation: int, watch: StageWatch) -> None:
        self.stage_name = spec.stage
        self.incarnation = incarnation
        self.is_alive = True
        self.watch = watch
        self._clock = clock
        self._spec = spec
        self._numbers = itertools.count(1)
        self._links: dict[int, _Link] = {}
        self._wires: dict[Wire, None] = {}
        self._onward: _Link | None = None
        self._stopped = 0
        self._backlog: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        window = spec.edge.window if spec.edge else 0
        self.stage = Stage(spec.model(), onward_window=window, publish_window=spec.publish_window)
        self._look_onward()

    # ---- life --------------------------------------------------------------------------------------

    @property
    def is_stopped(self) -> bool:
        return self._stopped > 0

    def do(self, call: Callable[..., None], *args: object) -> None:
        """Let `call` happen as soon as the process runs, if it still lives then."""
        if not self.is_alive:
            return
        if self._stopped:
            self._backlog.append((call, args))
        else:
            call(*args)

    def stop(self) -> None:
        self._stopped += 1

    def resume(self) -> None:
        self._stopped -= 1
        while self._backlog and not self._stopped and self.is_alive:
            call, args = self._backlog.popleft()
            call(*args)

    def die(self) -> None:
        """All at once: threads, what was held, and the links, whose other ends learn it when what was sent has come."""
        self.is_alive = False
        for wire in list(self._wires):
            wire.hang_up()
        self._backlog.clear()

    # ---- links -------------------------------------------------------------------------------------

    def accept(self, wire: Wire) -> _Link:
        """Somebody connects; what is sent to them goes by `wire`."""
        link = _Link(self)
        link.wire = wire
        self._wires[wire] = None
        return link

    def take(self, link: _Link, frame: Frame) -> None:
        if link.number:
            self.watch.takes(link.number, frame)
            self._carry_out(self.stage.handle(link.number, frame, self._clock.now_ns))
        elif isinstance(frame, Hello):
            self._greet(link, frame)
        elif isinstance(frame, Welcome):
            self._enter(link)
            self.watch.onward_up(link.number)
            self._carry_out(self.stage.onward_up(link.number))

    def _enter(self, link: _Link) -> None:
        link.number = next(self._numbers)
        self._links[link.number] = link

    def _greet(self, link: _Link, hello: Hello) -> None:
        self._enter(link)
        self.watch.link_up(link.number, hello)
        self._carry_out(self.stage.link_up(link.number, hello))
        link.send(Welcome(LINK_VERSION, self.stage_name, self.incarnation, "sim", self.stage.is_onward_up))

    def lose(self, link: _Link) -> None:
        if link.wire is not None:
            self._wires.pop(link.wire, None)
        if link is self._onward:
            self._onward = None
            self._look_again()
        if self._links.pop(link.number, None) is not None:
            self.watch.link_lost(link.number)
            self._carry_out(self.stage.link_lost(link.number, self._clock.now_ns))

    def _look_onward(self) -> None:
        """Connect to the next stage, or try again soon."""
        edge = self._spec.edge
        if edge is None or self._onward is not None:
            return
        target = edge.find()
        if target is None or edge.route.is_held:
            self._look_again()
            return
        link = self._onward = _Link(self)
        link.wire = edge.route.connect(link, target.accept)
        self._wires[link.wire] = None
        link.send(Hello(LINK_VERSION, "data", f"{self.stage_name}/{self.incarnation}"))

    def _look_again(self) -> None:
        pause_ms = self._spec.random.uniform(RETRY_MS_MIN, RETRY_MS_MAX)
        self._clock.after(pause_ms, self.do, self._look_onward)

    # ---- steps -------------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        self.watch.does(effects)
        for effect in effects:
            match effect:
                case Send(number, frame):
                    link = self._links.get(number)
                    if link is not None:
                        link.send(frame)
                case StartStep():
                    self._clock.after(self._spec.step_ms(), self.do, self._step_done, effect)

    def _step_done(self, start: StartStep) -> None:
        if self._spec.fails():
            self._back(start, None, StageFailure("step_failed", "by chance"))
            return
        context = _Context(start.flags, lambda outputs: self._carry_out(self.stage.progress(start.key, outputs)))
        self._back(start, start.step.run(context), None)

    def _back(self, start: StartStep, result: object, failure: StageFailure | None) -> None:
        self._carry_out(self.stage.step_done(start.key, result, failure, self._clock.now_ns))
