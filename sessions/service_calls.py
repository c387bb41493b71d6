"""Calls of tools that the service carries out itself: written down, then begun, then answered; each at most once,
unless it is safe.

Theory of operation
    A call that is whole is written down first: its id, which is the idempotency key, its tool, and a digest of its
    arguments. Only when the store has that is it begun. What came of it is written down together with the item that
    says so, so a log holds both or neither. So whoever takes a session over finds which calls may have been carried
    out. A *safe* call does no harm when it is repeated, or cancelled: it is begun again, under its key. Any other is
    followed, where the process that has begun it is this one; else nobody knows what came of it, and that is what the
    history says. So it does of one that a reply has made, and that was not written down any more.

        LEFT ──► READY ──► RUNNING ──► SETTLED        LEFT: written down, for another owner or by one
        SAVING ──┘

Rules
* Every transition stands in `_TRANSITIONS`; what it does not name changes nothing.
* A call that is not safe is begun once, by whoever has written it down, and never cancelled once it was begun.
* An interruption cancels safe calls; others go on, and their answers ask for no response any more.
* Only calls that a reply has made are carried out, with the arguments that it wrote; what a client brings never is.
* Arguments that do not fit the tool's schema are answered with what is wrong, and nothing is written down or begun.
* At most `AT_ONCE_MAX` calls of a conversation run, and `PENDING_MAX` are pending; more are answered as refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

import msgspec

from sessions.arguments import misfit
from sessions.effects import CancelTool, Effect, FollowTool, RequestTool, SaveCallBegun
from sessions.filler import FILLER
from sessions.items import Item
from sessions.records import Outcome
from sessions.settings import ResponseSpec
from sessions.tool_calls import BegunCall, outputs
from stages.contracts import Tool

# A reply makes up to 16 calls; the server behind them is mostly one.
AT_ONCE_MAX = 4
PENDING_MAX = 32
# A store answers within milliseconds. A caller who waits for a tool is told rather than left waiting for it as well.
STORE_NS_MAX = 5_000_000_000

FailureCode = Literal[
    "unavailable",
    "refused",
    "redirected",
    "busy",
    "quota_exceeded",
    "server_error",
    "timeout",
    "answer_too_large",
    "bad_answer",
    "broken",
    "lost",
]


@dataclass(frozen=True, slots=True)
class ServiceTool:
    """`safe`: to repeat or to cancel a call of it does no harm. `filler`: said once to a caller whom it keeps waiting;
    empty: nothing."""

    tool: Tool
    safe: bool = False
    filler: str = FILLER


@dataclass(frozen=True, slots=True)
class Result:
    """What the tool has answered."""

    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no result."""

    code: FailureCode


# What is known of a call without a result: whether anything was done, and what a model reads of it.
_NOT_DONE = "It was not done: "
_NOT_KNOWN = "It is not known whether it was done, and it must not be repeated unless the user wants that: "
_FAILURES: dict[FailureCode, str] = {
    "unavailable": f"{_NOT_DONE}its server cannot be reached.",
    "refused": f"{_NOT_DONE}its server has refused it.",
    "redirected": f"{_NOT_DONE}its server is somewhere else.",
    "busy": f"{_NOT_DONE}too much else was being done.",
    "quota_exceeded": f"{_NOT_DONE}no more calls may be made at present.",
    "server_error": f"{_NOT_KNOWN}its server has failed.",
    "timeout": f"{_NOT_KNOWN}its server has not answered in time.",
    "answer_too_large": "Its answer is too large to be read.",
    "bad_answer": "Its answer is no text.",
    "broken": f"{_NOT_KNOWN}the connection broke.",
    "lost": f"{_NOT_KNOWN}the service was interrupted.",
}


class Phase(Enum):
    LEFT = auto()
    SAVING = auto()
    READY = auto()
    RUNNING = auto()
    SETTLED = auto()


class Step(Enum):
    REDO = auto()
    FOLLOW = auto()
    STORED = auto()
    BEGIN = auto()
    ANSWER = auto()
    CANCEL = auto()
    GIVE_UP = auto()
    LEAVE = auto()


_TRANSITIONS: dict[tuple[Phase, Step], Phase] = {
    (Phase.LEFT, Step.REDO): Phase.READY,
    (Phase.LEFT, Step.FOLLOW): Phase.RUNNING,
    (Phase.LEFT, Step.GIVE_UP): Phase.SETTLED,
    (Phase.SAVING, Step.STORED): Phase.READY,
    (Phase.SAVING, Step.CANCEL): Phase.SETTLED,
    (Phase.SAVING, Step.GIVE_UP): Phase.SETTLED,
    (Phase.READY, Step.BEGIN): Phase.RUNNING,
    (Phase.READY, Step.CANCEL): Phase.SETTLED,
    (Phase.READY, Step.GIVE_UP): Phase.SETTLED,
    (Phase.RUNNING, Step.CANCEL): Phase.SETTLED,
    (Phase.RUNNING, Step.ANSWER): Phase.SETTLED,
    **{(phase, Step.LEAVE): Phase.LEFT for phase in (Phase.SAVING, Phase.READY, Phase.RUNNING)},
}


@dataclass(frozen=True, slots=True)
class Settled:
    """What came of `call`. `text`: for the history. `spec`: of the response that made it; None: its answer asks for no
    other. `is_begun`: it was written down."""

    call: BegunCall
    outcome: Outcome
    text: str
    spec: ResponseSpec | None
    is_begun: bool = True


@dataclass(slots=True)
class _Call:
    begun: BegunCall
    arguments: str
    phase: Phase
    since_ns: int
    spec: ResponseSpec | None = field(default_factory=ResponseSpec)
    filler: str = ""

    def move(self, step: Step) -> bool:
        target = _TRANSITIONS.get((self.phase, step))
        if target is None:
            return False
        self.phase = target
        return True


class ServiceCalls:
    """Those of one conversation. `left`: by its owner before, written down and not answered."""

    def __init__(self, tools: Iterable[ServiceTool], left: Iterable[BegunCall] = ()) -> None:
        self._tools = {each.tool.name: each for each in tools}
        self._calls = {begun.id: _Call(begun, "", Phase.LEFT, 0) for begun in left}
        self._settled: list[Settled] = []
        self._is_closed = False

    def knows(self, call_id: str) -> bool:
        """It is pending."""
        return call_id in self._calls

    @property
    def pending(self) -> tuple[BegunCall, ...]:
        """Written down, or about to be, and not answered."""
        return tuple(call.begun for call in self._calls.values())

    @property
    def is_running(self) -> bool:
        """Something is being carried out."""
        return any(call.phase is Phase.RUNNING for call in self._calls.values())

    @property
    def is_waited_for(self) -> bool:
        """An answer is to come that asks for a response."""
        return any(call.spec is not None and call.phase is not Phase.LEFT for call in self._calls.values())

    def take_settled(self) -> list[Settled]:
        """What has been settled since the last call."""
        settled, self._settled = self._settled, []
        return settled

    # ---- the way up --------------------------------------------------------------------------------

    def call(self, item: Item, spec: ResponseSpec, now_ns: int) -> list[Effect]:
        """`item` is a whole call of one of the tools, made by a response of `spec`."""
        tool = self._tools[item.name]
        begun = _begun(item, safe=tool.safe)
        if len(self._calls) >= PENDING_MAX:
            return self._refuse(begun, "busy", _FAILURES["busy"], spec)
        fault = misfit(item.text, tool.tool)
        if fault is not None:
            return self._refuse(begun, "bad_arguments", f"{_NOT_DONE}{fault}.", spec)
        self._calls[begun.id] = _Call(begun, item.text, Phase.SAVING, now_ns, spec, tool.filler)
        return [SaveCallBegun(begun)]

    def _refuse(self, begun: BegunCall, code: str, message: str, spec: ResponseSpec) -> list[Effect]:
        self._settled.append(Settled(begun, "failed", _error(code, message), spec, is_begun=False))
        return []

    def stored(self, call_id: str) -> list[Effect]:
        """The store has what was written down of it."""
        call = self._calls.get(call_id)
        return self._begin() if call is not None and call.move(Step.STORED) else []

    def _begin(self) -> list[Effect]:
        """Have those begun that are ready, as far as there is room."""
        if self._is_closed:
            return []
        running = sum(call.phase is Phase.RUNNING for call in self._calls.values())
        ready = [call for call in self._calls.values() if call.phase is Phase.READY][: max(0, AT_ONCE_MAX - running)]
        for call in ready:
            call.move(Step.BEGIN)
        return [RequestTool(call.begun.id, call.begun.name, call.arguments) for call in ready]

    def answered(self, call_id: str, answer: Result | Failure) -> list[Effect] | None:
        """What has come of it. None where nobody waits for that any more."""
        call = self._calls.get(call_id)
        if call is None or not call.move(Step.ANSWER):
            return None
        if isinstance(answer, Result):
            self._settle(call, "succeeded", answer.text)
        else:
            outcome: Outcome = "unknown" if answer.code == "lost" else "failed"
            self._settle(call, outcome, _error(answer.code, _FAILURES[answer.code]))
        return self._begin()

    def _settle(self, call: _Call, outcome: Outcome, text: str) -> None:
        del self._calls[call.begun.id]
        self._settled.append(Settled(call.begun, outcome, text, call.spec))

    # ---- the ways down -----------------------------------------------------------------------------

    def interrupt(self) -> list[Effect]:
        """Nobody waits for what comes of them: safe ones are cancelled, others go on."""
        effects: list[Effect] = []
        for call in list(self._calls.values()):
            if call.phase is Phase.LEFT:
                continue
            call.spec = None
            was_running = call.phase is Phase.RUNNING
            if call.begun.safe and call.move(Step.CANCEL):
                effects += [CancelTool(call.begun.id)] if was_running else []
                self._settle(call, "cancelled", _error("cancelled", "It was cancelled, as the user went on speaking."))
        return effects + self._begin()

    def close(self) -> list[Effect]:
        """The conversation ends here. What is safe can be begun again by whoever goes on with it; what was not begun
        never is, unless it is safe; anything else goes on, and nobody waits for it here."""
        self._is_closed = True
        effects: list[Effect] = []
        for call in list(self._calls.values()):
            call.spec = None
            if call.begun.safe:
                effects += [CancelTool(call.begun.id)] if call.phase is Phase.RUNNING else []
                call.move(Step.LEAVE)
            elif call.phase is not Phase.LEFT and call.move(Step.GIVE_UP):
                self._settle(call, "failed", _error("not_begun", f"{_NOT_DONE}the call ended."))
        return effects

    def next_deadline_ns(self) -> int | None:
        """When one has waited for the store for long enough."""
        waits = (call.since_ns for call in self._calls.values() if call.phase is Phase.SAVING)
        return min((since_ns + STORE_NS_MAX for since_ns in waits), default=None)

    def tick(self, now_ns: int) -> None:
        """Give up what could not be written down in time: what is not, is not begun."""
        for call in list(self._calls.values()):
            if call.phase is Phase.SAVING and now_ns >= call.since_ns + STORE_NS_MAX:
                call.move(Step.GIVE_UP)
                self._settle(call, "failed", _error("not_begun", f"{_NOT_DONE}it could not be recorded."))

    # ---- what another owner has left ---------------------------------------------------------------

    def recover(self, items: Iterable[Item], now_ns: int) -> list[Effect]:
        """Go on with the calls that were left; `items` is the history."""
        items = tuple(items)
        calls = {item.call_id: item for item in items if item.kind == "function_call"}
        answered = outputs(items)
        effects = [
            effect
            for item in calls.values()
            if item.by_service and item.status == "completed"
            if item.call_id not in answered and not self.knows(item.call_id)
            for effect in self._take_up(item, now_ns)
        ]
        for call in [each for each in self._calls.values() if each.phase is Phase.LEFT]:
            call.since_ns = now_ns
            item, tool = calls.get(call.begun.id), self._tools.get(call.begun.name)
            if not call.begun.safe:
                call.move(Step.FOLLOW)
                effects.append(FollowTool(call.begun.id))
            elif item is None or tool is None or _digest(item) != call.begun.digest:
                # Once it has left the history, a client may have brought another of its id.
                call.move(Step.GIVE_UP)
                self._settle(call, "failed", _error("not_available", f"{_NOT_DONE}there is no such tool any more."))
            else:
                call.arguments, call.filler = item.text, tool.filler
                call.move(Step.REDO)
        return effects + self._begin()

    def _take_up(self, item: Item, now_ns: int) -> list[Effect]:
        """A call that history has and that is not written down: its owner is gone, or a store that went back has
        forgotten it."""
        tool = self._tools.get(item.name)
        if tool is not None and tool.safe:
            return self.call(item, ResponseSpec(), now_ns)
        text = _error("lost", _FAILURES["lost"])
        self._settled.append(Settled(_begun(item, safe=False), "unknown", text, ResponseSpec(), is_begun=False))
        return []

    # ---- the caller waits --------------------------------------------------------------------------

    @property
    def unfilled(self) -> tuple[str, int] | None:
        """Of what is waited for longest and nobody has been told of, the id and since when; None: nothing is."""
        waits = (call for call in self._calls.values() if call.filler and call.spec is not None)
        first = min(waits, key=lambda call: call.since_ns, default=None)
        return None if first is None else (first.begun.id, first.since_ns)

    def fill(self, call_id: str) -> tuple[str, ResponseSpec]:
        """What to say of `call_id`, to whom its response was to speak. Nothing is said of the others that run by now:
        one who waits waits for all of them."""
        call = self._calls[call_id]
        filler = call.filler
        assert call.spec is not None, "of what nobody waits for nothing is said"
        for other in self._calls.values():
            other.filler = ""
        return filler, call.spec


def _begun(item: Item, *, safe: bool) -> BegunCall:
    return BegunCall(item.call_id, item.id, item.name, _digest(item), safe)


def _digest(item: Item) -> bytes:
    return hashlib.sha256(item.text.encode()).digest()


def _error(code: str, message: str) -> str:
    return msgspec.json.encode({"error": code, "message": message}).decode()
