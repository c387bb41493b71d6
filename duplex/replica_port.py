"""Whether one worker is there, and what it reaches, from what it says on its two links.

Rules
* It is there once it has welcomed both links: what a stream publishes needs the media link.
* Of a worker that introduces itself with a lower incarnation than was seen nothing is heard: it is the past.
"""

from __future__ import annotations

from enum import Enum, auto

from stages.messages import InwardChanged, OnwardChanged, Welcome

LINKS = 2  # control and media


class Greeting(Enum):
    """What a `Welcome` means: the worker is there; it is on its way; it is to be left alone."""

    UP = auto()
    WAITS = auto()
    PAST = auto()


class ReplicaPort:
    def __init__(self) -> None:
        self._welcomes = 0
        self._incarnation = 0
        self._onward: set[str] = set()
        self._inward: set[str] = set()

    @property
    def is_up(self) -> bool:
        return self._welcomes == LINKS

    @property
    def incarnation(self) -> int:
        """That of the worker that was there last."""
        return self._incarnation

    @property
    def onward(self) -> frozenset[str]:
        """The replicas of the next stages that streams can be opened for."""
        return frozenset(self._onward)

    @property
    def inward(self) -> frozenset[str]:
        """The replicas of the stages before it whose links it has."""
        return frozenset(self._inward)

    def welcomed(self, welcome: Welcome, *, on_control: bool) -> Greeting:
        """The worker has answered on one of its links."""
        if welcome.incarnation < self._incarnation:
            return Greeting.PAST
        if on_control:
            # Their changes follow on the same link.
            self._onward, self._inward = set(welcome.onward), set(welcome.inward)
        self._incarnation = welcome.incarnation
        self._welcomes += 1
        return Greeting.UP if self.is_up else Greeting.WAITS

    def changed(self, change: OnwardChanged | InwardChanged) -> None:
        match change:
            case OnwardChanged(name, up):
                reached = self._onward
            case InwardChanged(name, up):
                reached = self._inward
        if up:
            reached.add(name)
        else:
            reached.discard(name)

    def lost(self) -> bool:
        """One of the links is gone, and the other is dropped with it. True where the worker was there."""
        was_up, self._welcomes = self.is_up, 0
        self._onward.clear()
        self._inward.clear()
        return was_up
