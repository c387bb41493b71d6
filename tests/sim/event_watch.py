"""What must hold of the event logs of a simulated world, told from them alone when all is over.

Rules that are checked
* Of a worker: see `tests.stages.event_promises`.
* A response is accepted, admitted, ended and drained, in this order and once each. It is told to have sent what was
  sent, and sends nothing after its end.
* It drains as complete only after each stage that was asked for it has refused or let go, by the gateway's log and by
  the worker's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stages.event_log import EventKind, EventLog
from tests.stages.event_promises import WorkerPromises

# The line of a response: each kind, and what comes before it.
_LINE = {
    EventKind.ACCEPTED: "",
    EventKind.ADMITTED: EventKind.ACCEPTED,
    EventKind.TERMINAL: EventKind.ADMITTED,
    EventKind.DRAINED: EventKind.TERMINAL,
}
_BEFORE_THE_END = frozenset({EventKind.SENT, EventKind.ASKED, EventKind.RETRIED})
_LET_GO = frozenset({EventKind.CLOSED, EventKind.REFUSED})


@dataclass(slots=True)
class _Response:
    at: str = ""
    sent: int = 0
    asked: set[tuple[str, int]] = field(default_factory=set)
    drained_ns: int = 0

    def take(self, at_ns: int, kind: EventKind, value: int, link: str, state: str) -> None:
        if kind in _LINE:
            may_be_rejected = kind is EventKind.TERMINAL and self.at == EventKind.ACCEPTED
            assert self.at == _LINE[kind] or may_be_rejected, f"{kind} after {self.at or 'nothing'}"
            self.at = kind
        assert kind not in _BEFORE_THE_END or self.at == EventKind.ADMITTED, f"{kind} after {self.at}"
        if kind is EventKind.SENT:
            self.sent += value
        elif kind is EventKind.TERMINAL:
            assert value == self.sent, f"it ended with {value} samples sent, and sent {self.sent}"
        elif kind is EventKind.ASKED:
            self.asked.add((link, value))
        elif kind in _LET_GO:
            self.asked.discard((link, value))
        elif kind is EventKind.DRAINED and state == "complete":
            assert not self.asked, f"it has drained, and {self.asked} have not let go"
            self.drained_ns = at_ns


class EventWatch:
    """Keeps a log for each process of a world."""

    def __init__(self) -> None:
        self._drained: dict[str, int] = {}
        self.events = 0

    def gateway(self, log: EventLog, *, is_alive: bool) -> None:
        """Check the log of a gateway. One that is alive has ended every response."""
        responses: dict[str, _Response] = {}
        before_ns = 0
        self.events += log.statistics().recorded
        for at_ns, kind, whose, value, link, state, _cause in log._ring:
            assert at_ns >= before_ns, "moments never go back"
            before_ns = at_ns
            if kind is not EventKind.STALE:
                responses.setdefault(whose.stream, _Response()).take(at_ns, kind, value, link, state)
        for name, response in responses.items():
            assert not is_alive or response.at in (EventKind.TERMINAL, EventKind.DRAINED), f"{name} never ended"
            if response.drained_ns:
                self._drained[name] = response.drained_ns

    def worker(self, log: EventLog, *, is_alive: bool) -> None:
        """Check the log of a worker. One that is alive, and that all know, holds nothing of what has drained."""
        promises = WorkerPromises()
        promises.check(log)
        self.events += log.statistics().recorded
        if is_alive:
            promises.nothing_is_left()
            self._check_drained(promises.lives.items())

    def _check_drained(self, lives: Iterable[tuple[str, list[tuple[int, int]]]]) -> None:
        for key, times in lives:
            drained_ns = self._drained.get(key.partition("#")[0], 0)
            for opened_ns, closed_ns in times:
                assert not opened_ns <= drained_ns < closed_ns, f"{key} had drained when it was still held"
