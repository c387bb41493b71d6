"""The tools of a simulated world: the server that carries them out, a gateway's requests, and what may happen twice.

Theory of operation
    Tool `book` does something, `look_up` only reads, and `show` is the client's. Each call is made for one turn, whose
    number is its argument. The server counts what was done, by key and by turn; it may be slow, refuse, fail, or break
    after it has done what it was asked for.

Rules
* The server is asked for nothing of which the log does not say so, and under one key once, unless that is safe.
* What the history calls not done is never done. What has succeeded was.
* For one turn `book` is done once, whoever dies; but where a client, or a store that went back, has taken from the
  history what said so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from sessions.records import Outcome
from sessions.service_calls import Failure, FailureCode, Result, ServiceTool
from sessions.tool_calls import BegunCall
from stages.contracts import Tool
from tests.sim.clock import Clock

BOOK = ServiceTool(Tool("book"))
LOOK_UP = ServiceTool(Tool("look_up"), safe=True)
SERVED = (BOOK, LOOK_UP)
SERVED_NAMES = frozenset(each.tool.name for each in SERVED)
SHOW = Tool("show")

TIME_LIMIT_MS = 3_000
WAY_MS_MAX = 20.0
QUICK_MS, SLOW_MS = (5, 100, 400), (1_200, 2_500, 5_000)  # the last is longer than anybody waits for it
SLOW_SHARE, FAILED_SHARE = 0.5, 0.3
FAILURES: tuple[tuple[FailureCode, bool], ...] = (
    ("unavailable", False),
    ("refused", False),
    ("server_error", False),
    ("server_error", True),
    ("broken", False),
    ("broken", True),
)
"""How a request ends that fails, and whether it was carried out."""
NOT_DONE = frozenset({"unavailable", "refused", "busy", "quota_exceeded", "not_begun", "not_available"})

Deliver = Callable[[str, Result | Failure], None]


def turn_of(arguments: str) -> int:
    return int(json.loads(arguments)["turn"])


@dataclass(slots=True)
class _Book:
    """Of one key. `done`: how often it was carried out. `is_void`: history says that it was not done."""

    session: str
    turn: int
    asked: int = 0
    done: int = 0
    is_void: bool = False


@dataclass(slots=True)
class ToolServer:
    """`is_begun`: the log has said, by now, that a call is about to be made."""

    clock: Clock
    random: Random
    counts: Counter[str]
    is_begun: Callable[[str, str], bool]
    forgetful: set[str] = field(default_factory=set)
    """Sessions of whose history something was taken."""
    _books: dict[str, _Book] = field(default_factory=dict)
    _void: set[str] = field(default_factory=set)
    _turns: dict[int, set[str]] = field(default_factory=dict)

    def ask(
        self, session: str, call_id: str, name: str, arguments: str, answer: Callable[[Result | Failure], None]
    ) -> None:
        """A gateway sends a request; `answer` is what comes back."""
        assert self.is_begun(session, call_id), f"{call_id} is made, and the log does not say so"
        book = self._books.setdefault(call_id, _Book(session, turn_of(arguments)))
        book.asked += 1
        self.counts[f"tools asked {name}"] += 1
        assert book.asked == 1 or name != BOOK.tool.name, f"{call_id} is asked for again"
        takes_ms = self.random.choice(SLOW_MS if self.random.random() < SLOW_SHARE else QUICK_MS)
        code, is_done = self.random.choice(FAILURES) if self.random.random() < FAILED_SHARE else (None, True)
        over_ms = self.random.random() * WAY_MS_MAX + takes_ms
        if is_done:
            self.clock.after(over_ms, self._carry_out, call_id, name, book)
        if over_ms > TIME_LIMIT_MS:
            self.clock.after(TIME_LIMIT_MS, answer, Failure("timeout"))
        else:
            self.clock.after(over_ms, answer, Result(f"done {book.turn}") if code is None else Failure(code))

    def _carry_out(self, call_id: str, name: str, book: _Book) -> None:
        book.done += 1
        if name != BOOK.tool.name:
            return
        assert call_id not in self._void, f"{call_id} is done, and history says that it was not"
        self.counts["side effects"] += 1
        keys = self._turns.setdefault(book.turn, set())
        keys.add(call_id)
        assert len(keys) == 1 or book.session in self.forgetful, f"for turn {book.turn} it is done twice: {keys}"

    def settled(self, call: BegunCall, outcome: Outcome, text: str) -> None:
        """History says what came of `call`."""
        self.counts[f"tools {outcome}"] += 1
        book = self._books.get(call.id)
        if outcome == "succeeded":
            assert book is not None, f"{call.id} has succeeded, and was never made"
            assert book.done, f"{call.id} has succeeded, and was never done"
            assert text == f"done {book.turn}", "its answer is that of its own turn"
        elif not call.safe and json.loads(text)["error"] in NOT_DONE:
            assert book is None or not book.done, f"{call.id} was done, and history says that it was not"
            self._void.add(call.id)


@dataclass(slots=True, eq=False)
class _Flight:
    deliver: Deliver


class Requests:
    """Those of one gateway's process; `do` drops what is meant for a dead one."""

    def __init__(self, server: ToolServer, do: Callable[..., None]) -> None:
        self._server = server
        self._do = do
        self._flights: dict[str, _Flight] = {}

    def request(self, session: str, call_id: str, name: str, arguments: str, deliver: Deliver) -> None:
        if not self.follow(call_id, deliver):
            flight = self._flights[call_id] = _Flight(deliver)
            self._server.ask(
                session, call_id, name, arguments, lambda answer: self._do(self._landed, call_id, flight, answer)
            )

    def follow(self, call_id: str, deliver: Deliver) -> bool:
        """`deliver` what comes of a call, in place of whoever was to be told; False where it is not under way."""
        flight = self._flights.get(call_id)
        if flight is not None:
            self._server.counts["tools followed"] += 1
            flight.deliver = deliver
        return flight is not None

    def cancel(self, call_id: str) -> None:
        self._flights.pop(call_id, None)

    def _landed(self, call_id: str, flight: _Flight, answer: Result | Failure) -> None:
        if self._flights.get(call_id) is flight:
            del self._flights[call_id]
            flight.deliver(call_id, answer)
