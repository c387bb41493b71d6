"""Whether one worker is there, and what it reaches, from what it says on its two links.

Rules
* It is there once it has welcomed both links: what a stream publishes needs the media link.
* Of a worker that introduces itself with a lower incarnation than was seen nothing is heard: it is the past.
"""

from __future__ import annotations

from enum import Enum, auto

from stages.messages import OnwardChanged, Welcome

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

    def welcomed(self, welcome: Welcome, *, on_control: bool) -> Greeting:
        """The worker has answered on one of its links."""
        if welcome.incarnation < self._incarnation:
            return Greeting.PAST
        if on_control:
            self._onward = set(welcome.onward)  # its changes follow on the same link
        self._incarnation = welcome.incarnation
        self._welcomes += 1
        return Greeting.UP if self.is_up else Greeting.WAITS

    def changed(self, change: OnwardChanged) -> None:
        if change.up:
            self._onward.add(change.target)
        else:
            self._onward.discard(change.target)

    def lost(self) -> bool:
        """One of the links is gone, and the other is dropped with it. True where the worker was there."""
        was_up, self._welcomes = self.is_up, 0
        self._onward.clear()
        return was_up
