"""Who is behind each link of a worker: gateways and stages before it, and the replicas of the stages after it.

Rules
* A peer is known by its role and name. Who introduces itself anew has lost the link before, though that may not have
  been noticed here yet.
* A gateway has a name of its own in each of its lives. A stage keeps its name and counts its processes: what an earlier
  one says when a later one is known comes from the past.
* A gateway without its media link hears nothing of what is published; it drops both of its links once it notices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stages.edges import GATEWAY, OutEdge
from stages.effects import Effect, Send
from stages.messages import Frame, Hello, InwardChanged, LinkRole

MEDIA_LOST = ("media_lost", "what is published reaches nobody")


@dataclass(frozen=True, slots=True)
class Peer:
    """`incarnation`: of a stage's process; 0 for a gateway."""

    role: LinkRole
    name: str
    incarnation: int = 0


class Peers:
    def __init__(self) -> None:
        self._peers: dict[int, Peer] = {}

    def greet(self, link: int, hello: Hello) -> list[int]:
        """A peer has introduced itself on `link`. The links, to be forgotten, by which it was known before.

        One of the past is not entered: nobody is behind its link.
        """
        peer = _peer(hello)
        before = [other for other, known in self._peers.items() if (known.role, known.name) == (peer.role, peer.name)]
        if any(self._peers[other].incarnation > peer.incarnation for other in before):
            return []
        self._peers[link] = peer
        return before

    def forget(self, link: int) -> LinkRole | None:
        """`link` is gone; the role of who was behind it."""
        peer = self._peers.pop(link, None)
        return peer.role if peer is not None else None

    def tell_gateways(self, frame: Frame) -> list[Effect]:
        return [Send(link, frame) for link, peer in self._peers.items() if peer.role == "control"]

    def tell_of_sources(self, before: frozenset[str]) -> list[Effect]:
        """Tell the gateways which have come and gone since the sources were those of `before`."""
        changed = [InwardChanged(source, up=source not in before) for source in sorted(self.sources ^ before)]
        return [effect for change in changed for effect in self.tell_gateways(change)]

    @property
    def sources(self) -> frozenset[str]:
        """The replicas of stages before this one that are here."""
        return frozenset(peer.name for peer in self._peers.values() if peer.role == "data")

    def refusal(self, control: int) -> tuple[str, str] | None:
        """Why the gateway behind it opens no streams, if so: code and message."""
        return MEDIA_LOST if self.media_of(control) is None else None

    def is_gateway(self, link: int) -> bool:
        """`link` is the control link of a gateway that is here."""
        peer = self._peers.get(link)
        return peer is not None and peer.role == "control"

    def is_stage(self, link: int) -> bool:
        """A stage before this one is behind `link`."""
        peer = self._peers.get(link)
        return peer is not None and peer.role == "data"

    def are_one(self, link: int, control: int) -> bool:
        """The same gateway is behind both links."""
        peer, gateway = self._peers.get(link), self._peers.get(control)
        return peer is not None and gateway is not None and peer.role != "data" and peer.name == gateway.name

    def media_of(self, control: int) -> int | None:
        """The media link of the gateway behind `control`."""
        links = (link for link, peer in self._peers.items() if peer.role == "media" and self.are_one(link, control))
        return next(links, None)


def _peer(hello: Hello) -> Peer:
    if hello.role != "data":
        return Peer(hello.role, hello.name)
    stage, _, incarnation = hello.name.partition("/")
    return Peer(hello.role, stage, int(incarnation) if incarnation.isdecimal() else 0)


class Onward:
    """The links to replicas of next stages, which `edges` name."""

    def __init__(self, edges: Iterable[OutEdge]) -> None:
        self._targets = {name: edge.target for edge in edges if edge.target != GATEWAY for name in edge.replica_names}
        self._links: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The replicas that streams can be opened for."""
        return tuple(self._links)

    @property
    def is_complete(self) -> bool:
        """True where streams can be opened that use every edge."""
        return {self._targets[replica] for replica in self._links} == set(self._targets.values())

    def up(self, replica: str, link: int) -> None:
        self._links[replica] = link

    def lost(self, link: int) -> str | None:
        """`link` is gone; the replica to which it led, if to one."""
        replica = self.at(link)
        if replica is not None:
            del self._links[replica]
        return replica

    def at(self, link: int) -> str | None:
        """Which replica is at the end of `link`, if it leads to one."""
        return next((replica for replica, number in self._links.items() if number == link), None)

    def link_to(self, replica: str) -> int:
        """Raises KeyError where it is not connected."""
        return self._links[replica]

    def target_of(self, replica: str | None) -> str:
        """The stage of `replica`; the gateway where it is none."""
        return GATEWAY if replica is None else self._targets[replica]

    def target_at(self, link: int) -> str:
        """Where the payload of `link` goes: a next stage, or else the gateway."""
        return self.target_of(self.at(link))

    def refusal(self, replicas: Collection[str]) -> tuple[str, str] | None:
        """Why no stream can be opened that hands over to `replicas`, if so: code and message."""
        unknown = sorted(replica for replica in replicas if replica not in self._targets)
        if unknown:
            return "unknown_edge", f"no edge leads to {', '.join(unknown)}"
        away = sorted(replica for replica in replicas if replica not in self._links)
        if away:
            return "downstream_lost", f"{', '.join(away)} is not connected"
        return None
