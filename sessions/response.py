"""One answer: its life, and the ledger of what it holds.

Theory of operation
    A response moves along one monotone line and ends exactly once. Its resources have their own line, which may end
    much later: each stage it was opened at, and its playout, is entered in the ledger before it is asked for, and
    struck when it has been given back. `done` is the terminal; `drained` is the empty ledger after it.

    The head stage is opened only when all others have said `Opened`, so nothing it makes can arrive unannounced.

    Observers look on from side branches. They are opened with the others, or nothing is; from then on `done` never
    depends on them, and `drained` always does: they hold something until they have had their last look.

    A response whose stage is lost before anything of it was put out is made again, once, within its deadline and under
    its ids; only the number of the attempt rises. What was put out is never made again: then the response fails. A loss
    before the head has answered is none of a response being made: its opening begins anew, as often as it takes, and as
    another attempt, since the order may have reached the head, and what it made of that the next stage. So is one of
    which nothing has come when its prompt turns out to be another, at most `ASKED_AGAIN_MAX` times.

Rules
* Every transition stands in `_TRANSITIONS`; what it does not name changes nothing (late events of an ended response
  only strike ledger entries).
* Success needs every final that was asked for: the text, and with audio the last sample sent. They come in any order.
  A stage that has let go without its final is waited for `final_ns_max` longer, since its terminal may have overtaken
  it; then the final is lost and the response fails.
* When a response ends early, its observers are *cut*: they look at what was sent, for `observer_ns_max` at most.
* The ledger holds an entry for each stage and attempt. It is struck by the stage's `Closed` or `Refused`, or by the
  death of its process; never by time.
  A drain that takes longer than `drain_ns_max` is reported as orphaned, once, and its late strikes are counted.
* Of an attempt that was given up nothing counts any more but that it lets go.
* Every stage knows until when it is wanted. One that says that this time is over ends the response as its own deadline
  does, and is never asked again.
* Each deadline has an action of its own: admission rejects, first output and whole end it at all stages, silence amid
  output does so unless it is the reader who waits, and drain reports it as orphaned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from stages.contracts import DEADLINE_EXCEEDED, Tag

PLAYOUT = "playout"
STAGE_LOST = "stage_lost"
# Faults of a process or a link, which say nothing of the response: another may well make it.
RETRIED = frozenset({STAGE_LOST})
RETRIES_MAX = 1
PROMPT_MOVED = "prompt_moved"
# A client corrects what was heard of a reply once or twice; who goes on doing so must not keep the next from beginning.
ASKED_AGAIN_MAX = 4


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
    RETRY = auto()
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
    (Phase.ADMITTED, Step.RETRY): Phase.ADMITTED,
    (Phase.RUNNING, Step.RETRY): Phase.RUNNING,
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

_TOO_LONG = (DEADLINE_EXCEEDED, "the response took too long")

TERMINAL = frozenset({Phase.SUCCEEDED, Phase.CANCELLED, Phase.DEADLINE_EXCEEDED, Phase.FAILED, Phase.REJECTED})


@dataclass(frozen=True, slots=True)
class Deadlines:
    """In ns. `admission`: from acceptance to the opening of its stages, while the caller is still being understood;
    `first_output`: from there to the first text or audio; `whole`: from acceptance to the terminal; `idle`: between two
    pieces of its output; `final`: from the end of a stage to the final that it owes; `observer`: from the terminal to
    the end of observers, which are then aborted; `drain`: from the terminal, or that abort, to the empty ledger, after
    which it is reported as orphaned."""

    admission_ns_max: int = 10_000_000_000  # longer than anybody waits for a transcript
    first_output_ns_max: int = 20_000_000_000
    whole_ns_max: int = 300_000_000_000
    idle_ns_max: int = 20_000_000_000
    final_ns_max: int = 2_000_000_000
    observer_ns_max: int = 10_000_000_000
    drain_ns_max: int = 10_000_000_000  # a stage that hangs is found within five, and struck with its successor


@dataclass(frozen=True, slots=True)
class OpenStage:
    stage: str
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Abort:
    """End the response at `stage`, whatever it is doing there."""

    stage: str
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Let the observer `stage` have its last look, at what of the response was sent."""

    stage: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Everything is made anew, as `attempt`, for this `cause`; what there is of the one before is void."""

    attempt: int
    cause: str


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


Effect = OpenStage | Abort | Cut | Retry | Done | Drained


class Response:
    """`stages`: where it is opened, head first; `observers` are those of them that look on from side branches.

    `finals` ("text", "audio"): what belongs to success, and the stage that owes it.
    """

    def __init__(
        self,
        tag: Tag,
        stages: tuple[str, ...],
        *,
        finals: Mapping[str, str],
        deadlines: Deadlines,
        now_ns: int,
        observers: Collection[str] = (),
    ):
        assert stages, "a response needs a stage to answer it"
        self.tag = tag
        self._stages = stages
        self._observers = frozenset(observers)
        self._deadlines = deadlines
        self._accepted_ns = self._admitted_ns = self._output_ns = now_ns
        self._phase = Phase.ACCEPTED
        self._attempt = 0
        self._retries = 0
        self._asked_again = 0
        self._asked: set[tuple[str, int]] = set()
        self._unopened = set(stages)
        self._ledger: set[tuple[str, int]] = {(PLAYOUT, 0)} if "audio" in finals else set()
        self._finals = dict(finals)
        self._finals_missing = set(finals)
        self._owed = dict(finals)
        # Finals whose stage has let go, and when they count as lost.
        self._overdue: dict[str, int] = {}
        self._released: dict[str, int] = {}
        self._finish_reason = ""
        self._done_ns: int | None = None
        self._observers_aborted_ns: int | None = None
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
        """Who holds something of it, in any attempt."""
        return frozenset(name for name, _ in self._ledger)

    @property
    def is_head_asked(self) -> bool:
        """What depends on the head's input may be on its way, in the present attempt."""
        return self._stages[0] in self._holders

    @property
    def asked(self) -> frozenset[tuple[str, int]]:
        """The stages that were ever to open it, each with the attempt."""
        return frozenset(self._asked)

    def next_deadline_ns(self) -> int | None:
        if self._drained:
            return None
        if self._done_ns is not None:
            if self._is_watched:
                return self._done_ns + self._deadlines.observer_ns_max
            since_ns = self._done_ns if self._observers_aborted_ns is None else self._observers_aborted_ns
            return since_ns + self._deadlines.drain_ns_max
        if self._phase is Phase.ACCEPTED:
            return self._accepted_ns + self._deadlines.admission_ns_max
        return min(self._whole_due_ns, self._output_due_ns, *self._overdue.values())

    @property
    def _whole_due_ns(self) -> int:
        return self._accepted_ns + self._deadlines.whole_ns_max

    def lasts_ns_max(self, stage: str, now_ns: int) -> int:
        """How much longer it will want anything of `stage`: an observer has its last look after the end."""
        look_ns = self._deadlines.observer_ns_max if stage in self._observers else 0
        return max(0, self._whole_due_ns + look_ns - now_ns)

    @property
    def _output_due_ns(self) -> int:
        """When the next output is due, the first or a further one."""
        if self._phase is Phase.OUTPUT_OPEN:
            return self._output_ns + self._deadlines.idle_ns_max
        return self._admitted_ns + self._deadlines.first_output_ns_max

    @property
    def _is_watched(self) -> bool:
        """An observer is still having its last look."""
        return self._observers_aborted_ns is None and not self._observers.isdisjoint(self._holders)

    @property
    def _holders(self) -> frozenset[str]:
        """Who holds something of the present attempt."""
        return frozenset(name for name, attempt in self._ledger if attempt == self._attempt)

    # ---- the way up --------------------------------------------------------------------------------

    def admit(self, now_ns: int) -> list[Effect]:
        """Resources are there: open every stage but the head."""
        if not self._move(Step.ADMIT):
            return []
        self._admitted_ns = now_ns
        return self._open_followers()

    def _open_followers(self) -> list[Effect]:
        return self._open(self._stages[1:] or self._stages[:1])

    def _open(self, stages: tuple[str, ...]) -> list[Effect]:
        entries = [(stage, self._attempt) for stage in stages]
        self._ledger.update(entries)
        self._asked.update(entries)
        return [OpenStage(stage, self._attempt) for stage in stages]

    def opened(self, stage: str, attempt: int = 0) -> list[Effect]:
        if attempt != self._attempt:
            return []
        self._unopened.discard(stage)
        if self.ended:
            return []
        if self._unopened == {self._stages[0]} and not self.is_head_asked:
            return self._open(self._stages[:1])
        if not self._unopened:
            self._move(Step.OPENED)
        return []

    def refused(self, stage: str, code: str, message: str, now_ns: int, attempt: int = 0) -> list[Effect]:
        """`stage` would not take the response: it holds nothing of it, and the others let go."""
        self._ledger.discard((stage, attempt))
        ends = self._end(Step.REFUSE, code, now_ns, code, message) if attempt == self._attempt else []
        return ends + self._check_drained(now_ns)

    def reject(self, code: str, message: str, now_ns: int) -> list[Effect]:
        """It may not be made; nothing was asked for."""
        return self._end(Step.REFUSE, "rejected", now_ns, code, message) + self._check_drained(now_ns)

    def output(self, now_ns: int) -> None:
        """More text or audio is there for the client, or has gone to it."""
        self._output_ns = now_ns
        self._move(Step.OUTPUT)

    def came(self, kind: str) -> None:
        """The last of `kind` is here, though perhaps not yet on its way to the client: its stage owes nothing more."""
        self._owed.pop(kind, None)
        self._overdue.pop(kind, None)

    def final(self, kind: str, now_ns: int, reason: str = "") -> list[Effect]:
        """The last of `kind` ("text" or "audio") is on its way to the client; `reason` says how the text ended."""
        self.came(kind)
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

    def closed(self, stage: str, released: dict[str, int], now_ns: int, attempt: int = 0) -> list[Effect]:
        """`stage` holds nothing of `attempt` any more."""
        for kind, count in released.items():
            self._released[f"{stage}.{kind}"] = self._released.get(f"{stage}.{kind}", 0) + count
        if not self.ended and attempt == self._attempt:
            for kind in [kind for kind, owner in self._owed.items() if owner == stage]:
                self._overdue.setdefault(kind, now_ns + self._deadlines.final_ns_max)
        return self._strike(stage, attempt, now_ns)

    def stage_failed(self, stage: str, code: str, message: str, now_ns: int, attempt: int = 0) -> list[Effect]:
        """`stage` could not go on with `attempt`. Nobody depends on an observer."""
        return [] if stage in self._observers else self._cannot_go_on(code, message, now_ns, attempt)

    def _cannot_go_on(self, code: str, message: str, now_ns: int, attempt: int) -> list[Effect]:
        if attempt != self._attempt:
            return []
        if code == DEADLINE_EXCEEDED:
            return self._end(Step.EXPIRE, "deadline", now_ns, *_TOO_LONG)
        if code in RETRIED and self._may_retry and self._move(Step.RETRY):
            self._retries += self._has_begun
            return self._make_anew(code)
        return self.fail(code, message, now_ns)

    @property
    def _has_begun(self) -> bool:
        """The head has answered: what depends on it may have been made."""
        return self._stages[0] not in self._unopened

    @property
    def _may_retry(self) -> bool:
        return self._retries < RETRIES_MAX or not self._has_begun

    @property
    def may_ask_again(self) -> bool:
        """It is being made, and nothing of it has come."""
        return (self._phase, Step.RETRY) in _TRANSITIONS and self._asked_again < ASKED_AGAIN_MAX

    def ask_again(self) -> list[Effect]:
        """The head shall answer something else, as is known before anything of its answer has come."""
        assert self.may_ask_again, "nothing that has begun is made again"
        if not self.is_head_asked:
            return []  # it is asked later
        self._move(Step.RETRY)
        self._asked_again += 1
        return self._make_anew(PROMPT_MOVED)

    def _make_anew(self, cause: str) -> list[Effect]:
        aborts = [Abort(stage, self._attempt) for stage in self._stages if stage in self._holders]
        self._attempt += 1
        self._unopened = set(self._stages)
        self._finals_missing = set(self._finals)
        self._owed = dict(self._finals)
        self._overdue.clear()
        self._finish_reason = ""
        return [*aborts, Retry(self._attempt, cause), *self._open_followers()]

    def stage_lost(self, stage: str, now_ns: int, attempt: int = 0) -> list[Effect]:
        """No word reaches `stage` any more: what it was making cannot be finished. It may still hold what it has."""
        if (stage, attempt) not in self._ledger or (stage in self._observers and stage not in self._unopened):
            return []
        return self._cannot_go_on(STAGE_LOST, f"the {stage} was lost during the response", now_ns, attempt)

    def playout_released(self, discarded_samples: int, now_ns: int) -> list[Effect]:
        """The playout ledger is gone; `discarded_samples` had been generated and were never sent."""
        if discarded_samples:
            self._released["playout.samples"] = discarded_samples
        return self._strike(PLAYOUT, 0, now_ns)

    def tick(self, now_ns: int, *, reader_waits: bool = False) -> list[Effect]:
        """Act on deadlines that have passed. `reader_waits`: there is output, and its reader is not taking it."""
        due_ns = self.next_deadline_ns()
        if due_ns is None or now_ns < due_ns:
            return []
        if self._done_ns is None:
            return self._expire(now_ns, reader_waits)
        if self._is_watched:
            self._observers_aborted_ns = now_ns
            watching = self._observers & self._holders
            return [Abort(stage, self._attempt) for stage in self._stages if stage in watching]
        return self._drain("orphaned", now_ns)

    def _expire(self, now_ns: int, reader_waits: bool) -> list[Effect]:
        if self._phase is Phase.ACCEPTED:
            message = "what the caller said was not understood in time"
            return self._end(Step.REFUSE, "deadline", now_ns, "admission_timeout", message)
        lost = next((kind for kind, lost_ns in self._overdue.items() if now_ns >= lost_ns), None)
        if lost is not None:
            return self.fail("final_lost", f"the {self._owed[lost]} ended without its last {lost}", now_ns)
        is_idle = self._phase is Phase.OUTPUT_OPEN and now_ns < self._whole_due_ns
        if is_idle and reader_waits:
            self._output_ns = now_ns  # a slow reader is no slow stage
            return []
        code, message = ("stream_idle", "a stage fell silent") if is_idle else _TOO_LONG
        return self._end(Step.EXPIRE, "deadline", now_ns, code, message)

    def _end(self, step: Step, reason: str, now_ns: int, code: str = "", message: str = "") -> list[Effect]:
        if not self._move(step):
            return []
        self._done_ns = now_ns
        aborts: list[Effect] = []
        if self._phase is not Phase.SUCCEEDED:
            aborts = [self._stop(stage) for stage in self._stages if stage in self._holders]
        # Whoever held something may have let go before the end.
        return [*aborts, Done(self._phase, reason, code, message), *self._check_drained(now_ns)]

    def _stop(self, stage: str) -> Effect:
        looks = stage in self._observers and stage not in self._unopened
        return Cut(stage) if looks else Abort(stage, self._attempt)

    def _strike(self, name: str, attempt: int, now_ns: int) -> list[Effect]:
        self._ledger.discard((name, attempt))
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
