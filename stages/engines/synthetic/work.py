"""Steps that take a time that was drawn, and streams that want one after the other.

Theory of operation
    A stream says what it wants to do next; that becomes a step with a service time of its own. Running the step spends
    that time: `cpu_share` of it on the CPU, outside the interpreter's lock as a model's kernels are, the rest asleep. A
    cancel ends both. What a step brings is made when it has come back.

Rules
* A stream that wants the same as before is given the same step. One that wants something else instead gives up a step
  that has not begun, and with it the time that was drawn.
* No step keeps its thread after a cancel for longer than one block takes to be hashed, unless the profile says that
  steps cannot be interrupted: those run to their end, as a pass on a GPU does.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stages.contracts import Item, Options
from stages.engines.synthetic.distributions import VALUE_MAX, Distribution, drawing
from stages.engines.synthetic.profile import StageProfile
from stages.stream import Output, StageFailure, Step, StepContext

NS_PER_MS = 1_000_000
# Large enough for hashlib to give the interpreter's lock away (2,048 bytes), small enough to take well under 1 ms.
_BLOCK = bytes(64 << 10)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a kind of step takes: `fixed_ms`, and `each_ms` for each unit of its work."""

    fixed_ms: Distribution = 0.0
    each_ms: Distribution = 0.0


@dataclass(frozen=True, slots=True)
class Want:
    """A step that a stream wants: its kind, the `count` of units of its work, and what it is `about`, so that a step is
    not taken for another. `urgency` and `units` as in `Step`."""

    kind: str
    count: int = 1
    about: int = 0
    urgency: int = 1
    units: int = 0


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A `Step`. Its result is itself."""

    want: Want
    service_ns: int
    cpu_share: float
    interruptible: bool = True

    @property
    def kind(self) -> str:
        return self.want.kind

    @property
    def urgency(self) -> int:
        return self.want.urgency

    @property
    def units(self) -> int:
        return self.want.units

    def run(self, context: StepContext) -> object:
        ends_ns = time.monotonic_ns() + self.service_ns
        _compute(int(self.service_ns * self.cpu_share), context.cancelled if self.interruptible else _never)
        rest_ns = max(0, ends_ns - time.monotonic_ns())
        if self.interruptible:
            context.wait_cancelled(rest_ns)
        else:
            time.sleep(rest_ns / 1e9)
        return self


def _never() -> bool:
    return False


def _compute(cpu_ns: int, cancelled: Callable[[], bool]) -> None:
    """Keep a core busy for `cpu_ns`, however long that takes beside others."""
    ends_ns = time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < ends_ns and not cancelled():
        hashlib.sha256(_BLOCK)


class Work:
    """Makes the steps of one stage. `costs` are those of every kind of step that its streams want."""

    def __init__(self, stage: str, profile: StageProfile, costs: Mapping[str, Cost]) -> None:
        self._cpu_share = profile.cpu_share
        self._interruptible = profile.interruptible
        self._draws = {
            kind: (
                drawing(cost.fixed_ms, f"{profile.seed}/{stage}/{kind}/fixed"),
                drawing(cost.each_ms, f"{profile.seed}/{stage}/{kind}/each"),
            )
            for kind, cost in costs.items()
        }

    def step(self, want: Want) -> TimedStep:
        fixed, each = self._draws[want.kind]
        ms = min(fixed() + each() * want.count, VALUE_MAX)
        return TimedStep(want, int(ms * NS_PER_MS), self._cpu_share, self._interruptible)


class TimedStream(ABC):
    """A `StageStream` of steps that take their time. It has `finished` once it says so."""

    finished = False

    def __init__(self, work: Work) -> None:
        self._work = work
        self._step: TimedStep | None = None

    @abstractmethod
    def feed(self, item: Item) -> Sequence[Output]:
        """As `StageStream.feed`."""

    @abstractmethod
    def want(self) -> Want | None:
        """What to do next, if anything. Asked again whenever that may have changed."""

    @abstractmethod
    def came(self, want: Want) -> Sequence[Output]:
        """The step of `want` has come back: what it brings."""

    @abstractmethod
    def held(self) -> dict[str, int]:
        """As `StageStream.held`."""

    def next_step(self) -> Step | None:
        want = None if self.finished else self.want()
        if want is None:
            self._step = None
        elif self._step is None or self._step.want != want:
            self._step = self._work.step(want)
        return self._step

    def finish_step(self, result: object) -> Sequence[Output]:
        assert isinstance(result, TimedStep), "only a step of this stream comes back"
        self._step = None
        return self.came(result.want)

    def close(self) -> None:
        self._step = None


class TimedModel:
    """What is the same of `StageModel` at every stage. Nothing is kept for a session."""

    def __init__(self, profile: StageProfile) -> None:
        self.concurrency = profile.concurrency
        self.revision = "synthetic"

    def open_session(self, session: str) -> None:
        """Nothing is kept for a session."""

    def close_session(self, session: str) -> None:
        """Nothing was kept for a session."""

    def kept_for(self, session: str) -> dict[str, int]:  # noqa: ARG002 - of any session
        """Nothing is kept for a session."""
        return {}

    def close(self) -> None:
        """There is nothing to unload."""


def wrong_item(stage: str, item: Item) -> StageFailure:
    return StageFailure("wrong_item", f"a synthetic {stage} takes no {type(item).__name__}, or not now")


def wrong_options(stage: str, options: Options) -> StageFailure:
    return StageFailure("wrong_options", f"a synthetic {stage} takes no {type(options).__name__}")
