"""A worker's process: the real stage core, its links, and engine threads that take their time. It stops, and it dies.

Theory of operation
    As the real worker, it carries frames and steps between links and the core and decides nothing. While it is
    stopped (a long collection, a signal, a machine that swaps) everything that comes for it waits in order.

Rules
* One process has one incarnation. What was meant for a process that has died happens to nobody.
* What it cannot represent: the bytes of frames, the arena, and the window of bytes of a link.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from stages.effects import Effect, ReportFault, Send, StartBatch, StartStep, StepFlags
from stages.event_log import EventLog
from stages.messages import LINK_VERSION, Audit, Audited, Frame, Hello, Ping, Pong, Retire, Welcome, audited
from stages.stage import Stage
from stages.stream import Output, StageFailure
from tests.sim.clock import Clock
from tests.sim.network import Route, Wire
from tests.sim.stage_watch import StageWatch

RETRY_MS_MIN, RETRY_MS_MAX = 20, 200
PROBE = 1  # the number of the supervisor's link


@dataclass(frozen=True, slots=True)
class Edge:
    """The way to a replica of a next stage. `find` gives its process, or None while there is none."""

    route: Route
    find: Callable[[], Host | None]


@dataclass(frozen=True, slots=True)
class HostSpec:
    """`step_ms` draws the time that a batch of steps takes; `fails` says of each step whether it fails.

    `retired` is told once a process that was asked to end has nothing left.
    """

    replica: str
    stage: Callable[[EventLog], Stage]
    edges: Mapping[str, Edge]
    step_ms: Callable[[], float]
    fails: Callable[[], bool]
    retired: Callable[[Host], None]
    random: Random


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


class _Link:
    """This process's end of a link; `number` 0: its peer has not introduced itself. `target`: to whom it leads."""

    __slots__ = ("host", "number", "target", "wire")

    def __init__(self, host: Host, target: str = "") -> None:
        self.host = host
        self.number = 0
        self.target = target
        self.wire: Wire | None = None

    def deliver(self, frame: Frame) -> None:
        self.host.do(self.host.take, self, frame)

    def lost(self) -> None:
        self.host.do(self.host.lose, self)

    def send(self, frame: Frame) -> None:
        assert self.wire is not None, "a link is made before it is used"
        self.wire.send(frame)


class Host:
    def __init__(self, clock: Clock, spec: HostSpec, incarnation: int, watch: StageWatch, events: EventLog) -> None:
        self.replica = spec.replica
        self.events = events
        self.incarnation = incarnation
        self.is_alive = True
        self.watch = watch
        self._clock = clock
        self._spec = spec
        self._numbers = itertools.count(PROBE + 1)
        self._links: dict[int, _Link] = {}
        self._wires: dict[Wire, None] = {}
        self._onward: dict[str, _Link] = {}
        self._pongs: Callable[[Pong], object] = lambda pong: None
        self._is_retiring = False
        self._stopped = 0
        self._backlog: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self.stage = spec.stage(events)
        self.stage.link_up(PROBE, Hello(LINK_VERSION, "probe", "supervisor"))
        for target in spec.edges:
            self._look_onward(target)

    # ---- life --------------------------------------------------------------------------------------

    def do(self, call: Callable[..., None], *args: object) -> None:
        """Let `call` happen as soon as the process runs, if it still lives then."""
        if not self.is_alive:
            return
        if self._stopped:
            self._backlog.append((call, args))
        else:
            self.events.at(self._clock.now_ns)
            call(*args)

    @property
    def is_stopped(self) -> bool:
        return self._stopped > 0

    def stop(self) -> None:
        self._stopped += 1

    def resume(self) -> None:
        self._stopped -= 1
        while self._backlog and not self._stopped and self.is_alive:
            call, args = self._backlog.popleft()
            self.do(call, *args)

    def die(self) -> None:
        """All at once: threads, what was held, and the links, whose other ends learn it when what was sent has come."""
        self.is_alive = False
        for wire in list(self._wires):
            wire.hang_up()
        self._backlog.clear()

    # ---- the supervisor ----------------------------------------------------------------------------

    def ping(self, ping: Ping, answer: Callable[[Pong], object]) -> None:
        self._pongs = answer
        self.do(self._handle, PROBE, ping)

    def retire(self) -> None:
        self.do(self._retire)

    def _retire(self) -> None:
        self._is_retiring = True
        self._handle(PROBE, Retire())

    # ---- links -------------------------------------------------------------------------------------

    def accept(self, wire: Wire) -> _Link:
        """Somebody connects; what is sent to them goes by `wire`."""
        link = _Link(self)
        link.wire = wire
        self._wires[wire] = None
        return link

    def take(self, link: _Link, frame: Frame) -> None:
        if link.number:
            self.watch.takes(link.number, frame, self._clock.now_ns)
            if isinstance(frame, Audit):
                link.send(self._audited(link.number, frame))
            else:
                self._handle(link.number, frame)
        elif isinstance(frame, Hello):
            self._greet(link, frame)
        elif isinstance(frame, Welcome):
            self._enter(link)
            self.watch.onward_up(link.number, link.target)
            self._carry_out(self.stage.onward_up(link.target, link.number))

    def _audited(self, number: int, asked: Audit) -> Audited:
        audits = self.stage.audits
        held = audits.of_stream(asked.stream) if asked.stream else audits.of_session(asked.session, number)
        return audited(self.replica, asked, held, audits.strays())

    def _handle(self, number: int, frame: Frame) -> None:
        self._carry_out(self.stage.handle(number, frame, self._clock.now_ns))

    def _enter(self, link: _Link) -> None:
        link.number = next(self._numbers)
        self._links[link.number] = link

    def _greet(self, link: _Link, hello: Hello) -> None:
        self._enter(link)
        stage = self.stage
        link.send(Welcome(LINK_VERSION, self.replica, self.incarnation, "sim", stage.onward, stage.inward))
        self.watch.link_up(link.number, hello)
        self._carry_out(self.stage.link_up(link.number, hello))

    def lose(self, link: _Link) -> None:
        if link.wire is not None:
            self._wires.pop(link.wire, None)
        if self._onward.get(link.target) is link:
            del self._onward[link.target]
            self._look_again(link.target)
        if self._links.pop(link.number, None) is not None:
            self.watch.link_lost(link.number)
            self._carry_out(self.stage.link_lost(link.number, self._clock.now_ns))

    def _look_onward(self, target: str) -> None:
        """Connect to `target`, or try again soon."""
        edge = self._spec.edges[target]
        host = edge.find()
        if host is None or edge.route.is_held:
            self._look_again(target)
            return
        link = self._onward[target] = _Link(self, target)
        link.wire = edge.route.connect(link, host.accept)
        self._wires[link.wire] = None
        link.send(Hello(LINK_VERSION, "data", f"{self.replica}/{self.incarnation}"))

    def _look_again(self, target: str) -> None:
        pause_ms = self._spec.random.uniform(RETRY_MS_MIN, RETRY_MS_MAX)
        self._clock.after(pause_ms, self.do, self._look_onward, target)

    # ---- steps -------------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        self.watch.does(effects, self._clock.now_ns)
        for effect in effects:
            match effect:
                case Send(_, Pong() as pong):
                    self._pongs(pong)
                case Send(number, frame):
                    link = self._links.get(number)
                    if link is not None:
                        link.send(frame)
                case StartBatch():
                    self._clock.after(self._spec.step_ms(), self.do, self._batch_done, effect)
                case ReportFault(key, error):
                    raise AssertionError(f"the engine of {key} broke its contract") from error
        if self._is_retiring and self.stage.has_retired:
            self._is_retiring = False
            self._spec.retired(self)

    def _batch_done(self, batch: StartBatch) -> None:
        results = list(batch.run([self._context(start) for start in batch.steps]))
        for place in range(len(results)):
            if self._spec.fails():
                results[place] = StageFailure("step_failed", "by chance")
        self._carry_out(self.stage.batch_done(batch.number, results, self._clock.now_ns))

    def _context(self, start: StartStep) -> _Context:
        return _Context(start.flags, lambda outputs: self._carry_out(self.stage.progress(start.key, outputs)))
