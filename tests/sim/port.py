"""A gateway's links to one worker: the real core, and a shell that reconnects for ever.

`Surroundings` gives the real pool of a stage the world's clock, and these links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from duplex.replica_port import Greeting, ReplicaPort
from duplex.stage_client import ClientCallbacks
from stages.messages import LINK_VERSION, Feed, Frame, Hello, InwardChanged, LinkRole, OnwardChanged, Open, Welcome
from tests.sim.clock import MS, Clock
from tests.sim.host import RETRY_MS_MAX, RETRY_MS_MIN, Host
from tests.sim.network import Route, Wire


class Process(Protocol):
    """The gateway's: what it does happens while it runs."""

    @property
    def clock(self) -> Clock: ...
    def do(self, call: Callable[..., None], *args: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Way:
    """The way to a replica. `find` gives the process to connect to, or None while there is none."""

    route: Route
    find: Callable[[], Host | None]


class _Link:
    """The gateway's end of a link."""

    __slots__ = ("port", "role", "wire")

    def __init__(self, port: Port, role: LinkRole) -> None:
        self.port = port
        self.role = role
        self.wire: Wire | None = None

    def deliver(self, frame: Frame) -> None:
        self.port.process.do(self.port.take, self, frame)

    def lost(self) -> None:
        self.port.process.do(self.port.lose, self)


class Port:
    """`gateway` is our name."""

    def __init__(self, replica: str, process: Process, way: Way, gateway: str, callbacks: ClientCallbacks) -> None:
        self.process = process
        self.core = ReplicaPort()
        # Where each stream was opened last: a process with a higher incarnation cannot hold it.
        self.opened_at: dict[str, int] = {}
        self._replica = replica
        self._way = way
        self._gateway = gateway
        self._callbacks = callbacks
        self._links: dict[LinkRole, _Link] = {}
        self.connect()

    @property
    def is_up(self) -> bool:
        return self.core.is_up

    @property
    def onward(self) -> frozenset[str]:
        return self.core.onward

    @property
    def inward(self) -> frozenset[str]:
        return self.core.inward

    def connect(self) -> None:
        host, route = self._way.find(), self._way.route
        if host is None or route.is_held:
            self._connect_later()
            return
        roles: tuple[LinkRole, ...] = ("media", "control")
        for role in roles:
            link = self._links[role] = _Link(self, role)
            link.wire = route.connect(link, host.accept)
            link.wire.send(Hello(LINK_VERSION, role, self._gateway))

    def _connect_later(self) -> None:
        pause_ms = self._way.route.random.uniform(RETRY_MS_MIN, RETRY_MS_MAX)
        self.process.clock.after(pause_ms, self.process.do, self.connect)

    def lose(self, link: _Link) -> None:
        if self._links.get(link.role) is link:
            self._drop()

    def _drop(self) -> None:
        self.hang_up()
        self._connect_later()
        if self.core.lost():
            self._callbacks.down(self._replica, self.core.incarnation)

    def hang_up(self) -> None:
        for link in self._links.values():
            if link.wire is not None:
                link.wire.hang_up()
        self._links.clear()

    def take(self, link: _Link, frame: Frame) -> None:
        if self._links.get(link.role) is not link:
            return  # dropped by us: nothing of it is read any more
        if isinstance(frame, Welcome):
            self._welcome(link, frame)
            return
        if isinstance(frame, OnwardChanged | InwardChanged):
            self.core.changed(frame)
        self._callbacks.frame(self._replica, frame)

    def _welcome(self, link: _Link, welcome: Welcome) -> None:
        greeting = self.core.welcomed(welcome, on_control=link.role == "control")
        if greeting is Greeting.PAST:
            self._way.route.counts["processes of the past"] += 1
            self._drop()
        elif greeting is Greeting.UP:
            self._callbacks.up(self._replica, welcome.incarnation)

    def order(self, frame: Frame, /) -> None:
        if isinstance(frame, Open):
            self.opened_at[frame.tag.key] = self.core.incarnation
        self._send("control", frame)

    def feed(self, feed: Feed, /) -> None:
        self._send("media", feed)

    def _send(self, role: LinkRole, frame: Frame) -> None:
        link = self._links.get(role)
        if link is not None and link.wire is not None:
            link.wire.send(frame)

    def may_hold(self, key: str) -> bool:
        """As far as we know, the process that was asked for stream `key` still lives."""
        return self.opened_at.get(key, -1) == self.core.incarnation

    def was_asked_for(self, key: str) -> bool:
        return key in self.opened_at


class Surroundings:
    """What the pools of a gateway live in. `ways`: by the names of replicas."""

    def __init__(self, process: Process, ways: dict[str, Way]) -> None:
        self.ports: dict[str, Port] = {}
        self._process = process
        self._ways = ways

    def link_to(self, replica: str, address: str, gateway: str, callbacks: ClientCallbacks, /) -> Port:
        port = self.ports[replica] = Port(replica, self._process, self._ways[replica], gateway, callbacks)
        return port

    def now_ns(self) -> int:
        return self._process.clock.now_ns

    def later(self, delay_ns: int, call: Callable[[], None], /) -> None:
        self._process.clock.after(delay_ns / MS, self._process.do, call)

    def note(self, what: str, /, **about: str) -> None:
        pass
