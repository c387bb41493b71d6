"""A gateway's links to one stage: the real core, and a shell that reconnects for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from duplex.stage_port import Down, DropLinks, Effect, SendControl, SendMedia, StagePort, Tell, TellLater, Up
from stages.contracts import Item, Tag
from stages.messages import LINK_VERSION, Frame, Hello, LinkRole, Open, Welcome
from tests.sim.clock import Clock
from tests.sim.host import RETRY_MS_MAX, RETRY_MS_MIN, Host
from tests.sim.network import Route, Wire


class Listener(Protocol):
    """The gateway, as far as its links need it."""

    @property
    def clock(self) -> Clock: ...
    def do(self, call: Callable[..., None], *args: object) -> None: ...
    def frame(self, stage: str, frame: Frame) -> None: ...
    def stage_up(self, stage: str, reborn: bool) -> None: ...
    def stage_down(self, stage: str) -> None: ...


class _Link:
    """The gateway's end of a link."""

    __slots__ = ("port", "role", "wire")

    def __init__(self, port: Port, role: LinkRole) -> None:
        self.port = port
        self.role = role
        self.wire: Wire | None = None

    def deliver(self, frame: Frame) -> None:
        self.port.gateway.do(self.port.take, self, frame)

    def lost(self) -> None:
        self.port.gateway.do(self.port.lose, self)


@dataclass(frozen=True, slots=True)
class Way:
    """The way to a stage. `find` gives the process to connect to, or None while there is none."""

    stage: str
    route: Route
    find: Callable[[], Host | None]


class Port:
    def __init__(self, gateway: Listener, way: Way, name: str) -> None:
        self.gateway = gateway
        self.core = StagePort(way.stage)
        # Where each stream was opened last: a process with a higher incarnation cannot hold it.
        self.opened_at: dict[str, int] = {}
        self._way = way
        self._name = name
        self._links: dict[LinkRole, _Link] = {}
        self.connect()

    def connect(self) -> None:
        host, route = self._way.find(), self._way.route
        if host is None or route.is_held:
            self._connect_later()
            return
        roles: tuple[LinkRole, ...] = ("media", "control")
        for role in roles:
            link = self._links[role] = _Link(self, role)
            link.wire = route.connect(link, host.accept)
            link.wire.send(Hello(LINK_VERSION, role, self._name))

    def _connect_later(self) -> None:
        pause_ms = self._way.route.random.uniform(RETRY_MS_MIN, RETRY_MS_MAX)
        self.gateway.clock.after(pause_ms, self.gateway.do, self.connect)

    def lose(self, link: _Link) -> None:
        if self._links.get(link.role) is link:
            self._drop()
            self._carry_out(self.core.lost())

    def _drop(self) -> None:
        self.hang_up()
        self._connect_later()

    def hang_up(self) -> None:
        for link in self._links.values():
            if link.wire is not None:
                link.wire.hang_up()
        self._links.clear()

    def take(self, link: _Link, frame: Frame) -> None:
        if self._links.get(link.role) is not link:
            return  # dropped by us: nothing of it is read any more
        if not isinstance(frame, Welcome):
            self._carry_out(self.core.frame(frame))
        elif link.role == "control":
            self._carry_out(self.core.welcomed(frame))

    def order(self, frame: Frame) -> None:
        self._carry_out(self.core.order(frame))

    def feed(self, tag: Tag, item: Item, units: int = 0) -> None:
        self._carry_out(self.core.feed(tag, item, units))

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendControl(frame):
                    self._send("control", frame)
                case SendMedia(frame):
                    self._send("media", frame)
                case Tell(frame):
                    self.gateway.frame(self._way.stage, frame)
                case TellLater(frame):
                    self.gateway.clock.after(0, self.gateway.do, self.gateway.frame, self._way.stage, frame)
                case Up(reborn):
                    self.gateway.stage_up(self._way.stage, reborn)
                    self._carry_out(self.core.released())
                case Down():
                    self.gateway.stage_down(self._way.stage)
                case DropLinks():
                    self._drop()

    def _send(self, role: LinkRole, frame: Frame) -> None:
        if isinstance(frame, Open):
            self.opened_at[frame.tag.key] = self.core.incarnation
        link = self._links.get(role)
        if link is not None and link.wire is not None:
            link.wire.send(frame)
