"""One answer: its life, and the ledger of what it holds.

Theory of operation
    A response moves along one monotone line and ends exactly once. Its resources have their own line, which may end
    much later: each stage it was opened at, and its playout, is entered in the ledger before it is asked for, and
    struck when it has been given back. `done` is the terminal; `drained` is the empty ledger after it.

    The head stage is opened only when all others have said `Opened`, so nothing it makes can arrive unannounced.

Rules
* Every transition stands in `_TRANSITIONS`; what it does not name changes nothing (late events of an ended response
  only strike ledger entries).
* Success needs every final that was asked for: the text, and with audio the last sample sent.
* The ledger is struck by the stage's `Closed` or `Refused`, or by the death of its process; never by time.
  A drain that takes longer than `drain_ns_max` is reported as orphaned, once, and its late strikes are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from stages.contracts import Tag

PLAYOUT = "playout"


class Phase(Enum):
    ACCEPTED = auto()
    ADMITTED = auto()
    RUNNING = auto()
    OUTPUT_OPEN = auto()
    SUCCEEDED = auto()
    CANCELLED = auto()
    DEADLINE_EXCEEDED = auto()
    FAILED = auto()
    REJECTED = auto()


class Step(Enum):
    ADMIT = auto()
    OPENED = auto()
    OUTPUT = auto()
    COMPLETE = auto()
    CANCEL = auto()
    EXPIRE = auto()
    FAIL = auto()
    REFUSE = auto()


_ENDINGS = {Step.CANCEL: Phase.CANCELLED, Step.EXPIRE: Phase.DEADLINE_EXCEEDED, Step.FAIL: Phase.FAILED}

_TRANSITIONS: dict[tuple[Phase, Step], Phase] = {
    (Phase.ACCEPTED, Step.ADMIT): Phase.ADMITTED,
    (Phase.ACCEPTED, Step.REFUSE): Phase.REJECTED,
    (Phase.ADMITTED, Step.OPENED): Phase.RUNNING,
    (Phase.ADMITTED, Step.REFUSE): Phase.REJECTED,
    # Orders and output travel on two links without a common order: the head's output may precede its `Opened`.
    (Phase.ADMITTED, Step.OUTPUT): Phase.OUTPUT_OPEN,
    (Phase.ADMITTED, Step.COMPLETE): Phase.SUCCEEDED,
    (Phase.RUNNING, Step.OUTPUT): Phase.OUTPUT_OPEN,
    (Phase.RUNNING, Step.REFUSE): Phase.REJECTED,
    (Phase.OUTPUT_OPEN, Step.COMPLETE): Phase.SUCCEEDED,
    # An answer may be empty: both finals arrive and nothing was ever put out.
    (Phase.RUNNING, Step.COMPLETE): Phase.SUCCEEDED,
    **{
        (phase, step): ending
        for phase in (Phase.ACCEPTED, Phase.ADMITTED, Phase.RUNNING, Phase.OUTPUT_OPEN)
        for step, ending in _ENDINGS.items()
    },
}

TERMINAL = frozenset({Phase.SUCCEEDED, Phase.CANCELLED, Phase.DEADLINE_EXCEEDED, Phase.FAILED, Phase.REJECTED})


@dataclass(frozen=True, slots=True)
class Deadlines:
    """In ns. `first_output`: from acceptance to the first text or audio; `whole`: to the terminal; `drain`: from
    the terminal to the empty ledger, after which the response is reported as orphaned."""

    first_output_ns_max: int = 20_000_000_000
    whole_ns_max: int = 300_000_000_000
    drain_ns_max: int = 5_000_000_000


@dataclass(frozen=True, slots=True)
class OpenStage:
    stage: str


@dataclass(frozen=True, slots=True)
class Abort:
    """End the response at `stage`, whatever it is doing there."""

    stage: str


@dataclass(frozen=True, slots=True)
class Done:
    """The terminal. `reason` completes `phase`: turn_detected, client_cancelled, max_output_tokens, …"""

    phase: Phase
    reason: str
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Drained:
    status: str
    lag_ns: int
    released: tuple[tuple[str, int], ...]


Effect = OpenStage | Abort | Done | Drained


class Response:
    """`stages`: where it is opened, head first. `with_audio`: the last sample sent belongs to success."""

    def __init__(self, tag: Tag, stages: tuple[str, ...], *, with_audio: bool, deadlines: Deadlines, now_ns: int):
        assert stages, "a response needs a stage to answer it"
        self.tag = tag
        self._stages = stages
        self._deadlines = deadlines
        self._accepted_ns = now_ns
        self._phase = Phase.ACCEPTED
        self._unopened = set(stages)
        self._ledger: set[str] = {PLAYOUT} if with_audio else set()
        self._finals_missing = {"text", "audio"} if with_audio else {"text"}
        self._lost: set[str] = set()
        self._released: dict[str, int] = {}
        self._finish_reason = ""
        self._done_ns: int | None = None
        self._drained = False

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def ended(self) -> bool:
        return self._phase in TERMINAL

    @property
    def drained(self) -> bool:
        return self._drained

    @property
    def holds(self) -> frozenset[str]:
        """The open entries of the ledger."""
        return frozenset(self._ledger)

    def next_deadline_ns(self) -> int | None:
        if self._done_ns is not None:
            return None if self._drained else self._done_ns + self._deadlines.drain_ns_max
        waits = self._phase is not Phase.OUTPUT_OPEN
        limit = self._deadlines.first_output_ns_max if waits else self._deadlines.whole_ns_max
        return self._accepted_ns + limit

    # ---- the way up --------------------------------------------------------------------------------

    def admit(self) -> list[Effect]:
        """Resources are there: open every stage but the head."""
        if not self._move(Step.ADMIT):
            return []
        followers = self._stages[1:]
        return self._open(followers) if followers else self._open(self._stages[:1])

    def _open(self, stages: tuple[str, ...]) -> list[Effect]:
        self._ledger.update(stages)
        return [OpenStage(stage) for stage in stages]

    def opened(self, stage: str) -> list[Effect]:
        self._unopened.discard(stage)
        if self.ended:
            return []
        if self._unopened == {self._stages[0]} and self._stages[0] not in self._ledger:
            return self._open(self._stages[:1])
        if not self._unopened:
            self._move(Step.OPENED)
        return []

    def refused(self, stage: str, code: str, message: str, now_ns: int) -> list[Effect]:
        """`stage` would not take the response: it holds nothing of it, and the others let go."""
        self._ledger.discard(stage)
        return self._end(Step.REFUSE, code, now_ns, code, message) + self._check_drained(now_ns)

    def output(self) -> None:
        """Text or audio is on its way to the client."""
        self._move(Step.OUTPUT)

    def final(self, kind: str, now_ns: int, reason: str = "") -> list[Effect]:
        """The last of `kind` ("text" or "audio") has come; `reason` says how the text ended."""
        self._finals_missing.discard(kind)
        self._finish_reason = self._finish_reason or reason
        if self._finals_missing or self.ended:
            return []
        return self._end(Step.COMPLETE, self._finish_reason, now_ns)

    # ---- the ways down -----------------------------------------------------------------------------

    def cancel(self, reason: str, now_ns: int) -> list[Effect]:
        return self._end(Step.CANCEL, reason, now_ns)

    def fail(self, code: str, message: str, now_ns: int) -> list[Effect]:
        return self._end(Step.FAIL, "failed", now_ns, code, message)

    def closed(self, stage: str, released: dict[str, int], now_ns: int) -> list[Effect]:
        """`stage` holds nothing of the response any more."""
        for kind, count in released.items():
            self._released[f"{stage}.{kind}"] = self._released.get(f"{stage}.{kind}", 0) + count
        return self._strike(stage, now_ns)

    def stage_lost(self, stage: str, now_ns: int) -> list[Effect]:
        """No word reaches `stage` any more: what it was making cannot be finished. It may still hold what it has."""
        if stage not in self._ledger:
            return []
        self._lost.add(stage)
        return self.fail("stage_lost", f"the {stage} was lost during the response", now_ns)

    def process_died(self, stage: str, now_ns: int) -> list[Effect]:
        """The process behind a lost `stage` is gone for certain, and all it held with it."""
        if stage not in self._lost:
            return []
        self._lost.remove(stage)
        self._released[f"{stage}.process_exit"] = 1
        return self._strike(stage, now_ns)

    def playout_released(self, discarded_samples: int, now_ns: int) -> list[Effect]:
        """The playout ledger is gone; `discarded_samples` had been generated and were never sent."""
        if discarded_samples:
            self._released["playout.samples"] = discarded_samples
        return self._strike(PLAYOUT, now_ns)

    def tick(self, now_ns: int) -> list[Effect]:
        """Act on deadlines that have passed."""
        due_ns = self.next_deadline_ns()
        if due_ns is None or now_ns < due_ns:
            return []
        if self._done_ns is not None:
            return self._drain("orphaned", now_ns)
        return self._end(Step.EXPIRE, "deadline", now_ns, "deadline_exceeded", "the response took too long")

    def _end(self, step: Step, reason: str, now_ns: int, code: str = "", message: str = "") -> list[Effect]:
        if not self._move(step):
            return []
        self._done_ns = now_ns
        aborts: list[Effect] = []
        if self._phase is not Phase.SUCCEEDED:
            aborts = [Abort(stage) for stage in self._stages if stage in self._ledger]
        # Whoever held something may have let go before the end.
        return [*aborts, Done(self._phase, reason, code, message), *self._check_drained(now_ns)]

    def _strike(self, entry: str, now_ns: int) -> list[Effect]:
        self._ledger.discard(entry)
        return self._check_drained(now_ns)

    def _check_drained(self, now_ns: int) -> list[Effect]:
        if self._ledger or self._done_ns is None or self._drained:
            return []
        return self._drain("complete", now_ns)

    def _drain(self, status: str, now_ns: int) -> list[Effect]:
        assert self._done_ns is not None, "only an ended response drains"
        self._drained = True
        return [Drained(status, now_ns - self._done_ns, tuple(sorted(self._released.items())))]

    def _move(self, step: Step) -> bool:
        target = _TRANSITIONS.get((self._phase, step))
        if target is None:
            return False
        self._phase = target
        return True
