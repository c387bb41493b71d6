"""What must hold of a worker's event log, whatever has happened: told from the log alone.

Rules that are checked
* Moments never go back.
* A stream is opened, leaves other events only while it is open, and closes once.
* Its steps go through the queue one at a time: queued, then started and computed, or taken out.
* Once it was cancelled it makes, publishes and takes nothing more.
* Credit that was taken comes back, and no more of it; when the stream has closed, all of it has.
* A block is acquired, leased at most once, and freed. A lease that has expired was one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto

from stages.event_log import EventKind, EventLog, Trail


class _Phase(Enum):
    IDLE = auto()
    QUEUED = auto()
    RUNNING = auto()


_STEPS = {
    (_Phase.IDLE, EventKind.QUEUED): _Phase.QUEUED,
    (_Phase.QUEUED, EventKind.UNQUEUED): _Phase.IDLE,
    (_Phase.QUEUED, EventKind.STARTED): _Phase.RUNNING,
    (_Phase.RUNNING, EventKind.COMPUTED): _Phase.IDLE,
}
_OF_STEPS = frozenset(kind for _, kind in _STEPS)
_OF_BLOCKS = frozenset({EventKind.ACQUIRED, EventKind.LEASED, EventKind.LEASE_EXPIRED, EventKind.FREED})
# What may be said of a stream that is not open.
_OF_NOBODY = frozenset({EventKind.REFUSED, EventKind.STALE})
_AFTER_CANCEL = frozenset({EventKind.UNQUEUED, EventKind.COMPUTED, EventKind.CREDIT_RETURNED})


@dataclass(slots=True)
class _Stream:
    opened_ns: int
    phase: _Phase = _Phase.IDLE
    cancelled: bool = False
    in_flight: Counter[str] = field(default_factory=Counter)

    def take(self, kind: EventKind, value: int, link: str) -> None:
        assert not self.cancelled or kind in _AFTER_CANCEL, f"{kind} after it was cancelled"
        if kind in _OF_STEPS:
            assert (self.phase, kind) in _STEPS, f"{kind} while its step is {self.phase.name.lower()}"
            self.phase = _STEPS[self.phase, kind]
        elif kind is EventKind.CREDIT_TAKEN:
            self.in_flight[link] += value
        elif kind is EventKind.CREDIT_RETURNED:
            self.in_flight[link] -= value
            assert self.in_flight[link] >= 0, f"more credit of {link} came back than was taken"
        elif kind is EventKind.CANCELLED:
            self.cancelled = True

    def close(self) -> None:
        assert self.phase is _Phase.IDLE, f"it closed while its step was {self.phase.name.lower()}"
        assert not any(self.in_flight.values()), f"it closed with credit in flight: {self.in_flight}"


@dataclass(slots=True)
class WorkerPromises:
    """The events of one worker's log. `lives`: each stream's opening and closing, by its key, in ns."""

    lives: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    _open: dict[str, _Stream] = field(default_factory=dict)
    _blocks: dict[str, EventKind] = field(default_factory=dict)

    def check(self, log: EventLog) -> None:
        """Raises `AssertionError` where a promise is broken."""
        assert not log.statistics().overwritten, "the log holds all that has happened"
        before_ns = 0
        for at_ns, kind, whose, value, link, state, _cause in log._ring:
            assert at_ns >= before_ns, "moments never go back"
            before_ns = at_ns
            if kind in _OF_BLOCKS:
                self._of_block(kind, state)
            elif kind not in _OF_NOBODY:
                self._of_stream(at_ns, kind, whose, value, link)

    @property
    def blocks(self) -> set[str]:
        """Those that have not been freed."""
        return set(self._blocks)

    def nothing_is_left(self) -> None:
        assert not self._open, f"streams that never closed: {list(self._open)}"
        assert not self._blocks, f"blocks that were never freed: {self._blocks}"

    def _of_stream(self, at_ns: int, kind: EventKind, whose: Trail, value: int, link: str) -> None:
        key = whose.stream
        stream = self._open.get(key)
        if kind is EventKind.OPENED:
            assert stream is None, f"{key} opened twice"
            self._open[key] = _Stream(at_ns)
            return
        assert stream is not None, f"{kind} of {key}, which is not open"
        if kind is EventKind.CLOSED:
            stream.close()
            del self._open[key]
            self.lives.setdefault(key, []).append((stream.opened_ns, at_ns))
        else:
            stream.take(kind, value, link)

    def _of_block(self, kind: EventKind, block: str) -> None:
        before = self._blocks.get(block, EventKind.FREED)
        self._blocks[block] = kind
        match kind:
            case EventKind.ACQUIRED:
                assert before is EventKind.FREED, f"{block} was acquired amid {before}"
            case EventKind.LEASED:
                assert before is EventKind.ACQUIRED, f"{block} was leased after {before}"
            case EventKind.LEASE_EXPIRED:
                assert before is EventKind.LEASED, f"the lease of {block} expired after {before}"
            case _:
                assert before is not EventKind.FREED, f"{block} was freed twice"
                del self._blocks[block]
