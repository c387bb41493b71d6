"""Links between the processes of a simulated world, and the weather that they travel through.

Theory of operation
    A *route* joins two places (a gateway and a worker, two workers, a gateway and the store). A connection on it is a
    pair of wires, one for each direction. Its two ends notice a loss each in their own time. While a route is *held*,
    both sides live and hear nothing of each other: what was sent waits, as it does in the buffers of a network that
    drops packets, and comes when the hold ends, unless the connection broke meanwhile.

Rules
* A wire keeps the order of what is sent on it and delays each frame by chance; two wires keep no common order.
* A process that ends closes its links: what it had sent before still arrives, and then the end of the link. A link
  that breaks loses what was sent since.
* An end is told of the loss once, and of nothing after it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Protocol

from stages.messages import Frame
from tests.sim.clock import MS, Clock
from tests.sim.trace import brief

DELAY_MS_MAX = 2.0
NOTICE_MS_MAX = (5.0, 40.0, 600.0)  # each end notices a broken link in its own time: by a write that fails, or silence


class End(Protocol):
    """One side of a link."""

    def deliver(self, frame: Frame) -> None: ...
    def lost(self) -> None: ...


class Wire:
    """One direction of a link; `back` is the other one."""

    __slots__ = ("_is_cut", "_is_mute", "_last_ns", "_order", "_route", "_waiting", "back", "end")

    end: End
    back: Wire

    def __init__(self, route: Route, order: _Order) -> None:
        self._route = route
        self._order = order
        self._last_ns = 0
        self._is_mute = False
        self._is_cut = False
        self._waiting: deque[tuple[Frame | None, int]] = deque()

    def send(self, frame: Frame) -> None:
        if self._is_mute:
            return
        self._order.sent += 1
        self._send(frame, self._order.sent)

    def _send(self, frame: Frame | None, number: int) -> None:
        route = self._route
        due_ns = route.clock.now_ns + int(route.random.random() * route.delay_ms_max * MS)
        self._last_ns = max(self._last_ns, due_ns)
        route.clock.at(self._last_ns, self._arrive, frame, number)

    def hang_up(self) -> None:
        """This side closes the link: it hears nothing more, and the other one what was sent so far."""
        self.back.cut()
        if not self._is_mute:
            self._is_mute = True
            self._send(None, 0)

    def break_off(self) -> None:
        """The link breaks under both."""
        for wire in (self, self.back):
            if not wire._is_cut:
                wire._is_mute = True
                random = wire._route.random
                wire._route.clock.after(random.random() * random.choice(NOTICE_MS_MAX), wire._lose)

    def cut(self) -> None:
        """Nothing arrives any more."""
        self._is_cut = True
        self._waiting.clear()
        self._route.forget(self)

    def _lose(self) -> None:
        if not self._is_cut:
            self.cut()
            self.end.lost()

    def _arrive(self, frame: Frame | None, number: int) -> None:
        if self._is_cut:
            return
        if self._route.is_held or self._waiting:
            self._waiting.append((frame, number))
        else:
            self._deliver(frame, number)

    def flush(self) -> None:
        """The hold is over: what has waited arrives."""
        while self._waiting and not self._route.is_held and not self._is_cut:
            self._deliver(*self._waiting.popleft())

    def _deliver(self, frame: Frame | None, number: int) -> None:
        if frame is None:
            self._lose()
            return
        if number < self._order.newest:
            self._route.counts["frames overtaken on another link"] += 1
        self._order.newest = max(self._order.newest, number)
        if self._route.log is not None:
            self._route.log(f"{self._order.name}: {brief(frame)}")
        self.end.deliver(frame)


class _Order:
    """One direction of a route: how many frames were sent in it, and the newest that has come."""

    __slots__ = ("name", "newest", "sent")

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent = self.newest = 0


class Route:
    """`ends`: the two places. `log` is given every frame that arrives."""

    def __init__(self, ends: tuple[str, str], clock: Clock, random: Random, counts: Counter[str]) -> None:
        self.clock = clock
        self.random = random
        self.counts = counts
        self.log: Callable[[str], None] | None = None
        self.is_held = False
        self.delay_ms_max = DELAY_MS_MAX
        near, far = ends
        self._orders = (_Order(f"{near} > {far}"), _Order(f"{far} > {near}"))
        self._wires: dict[Wire, None] = {}

    def connect(self, near: End, accept: Callable[[Wire], End]) -> Wire:
        """A link between `near` and whom `accept` names for the wire back; gives the wire that `near` sends on."""
        there, back = (Wire(self, order) for order in self._orders)
        there.back, back.back = back, there
        self._wires[there] = self._wires[back] = None
        back.end = near
        there.end = accept(back)
        return there

    def forget(self, wire: Wire) -> None:
        self._wires.pop(wire, None)

    # ---- weather -----------------------------------------------------------------------------------

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False
        for wire in list(self._wires):
            self.clock.after(0, wire.flush)

    def break_links(self) -> None:
        """Every link breaks that there is now."""
        for wire in list(self._wires):
            if wire in self._wires:
                wire.break_off()

    def break_one(self) -> None:
        """One link breaks, and those beside it do not."""
        if self._wires:
            self.random.choice(list(self._wires)).break_off()
