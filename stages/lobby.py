"""Which of the links that came in may stay: those that have greeted, and others for a moment.

Theory of operation
    Whoever reaches an address can open links there, and until one has greeted nobody knows who is behind it. So it has
    little time to say so, and only so many may wait at once. A peer that means it greets as soon as it has connected;
    under a flood of others it is therefore the one that came first that goes, and who comes last still gets in.

Rules
* A link is entered once, and is gone from here when it has left. Who is to go is named once, and counted no more.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

GREETING_MS_MAX = 5_000  # also for a host that swaps, or a way that loses the first packets
# More than the kernel hands over in one turn of the loop (100), so no burst of true peers is turned away.
UNGREETED_MAX = 256
# 64 replicas of each of several stages before this one, and two links of each gateway. Each reads into 256 KiB.
LINKS_MAX = 1_024

K = TypeVar("K", bound=Hashable)


class Lobby(Generic[K]):
    """The links of one listener, by whatever names them."""

    def __init__(self) -> None:
        self._due_ns: dict[K, int] = {}  # who has yet to greet, the first that came first
        self._greeted: set[K] = set()

    @property
    def next_due_ns(self) -> int | None:
        """When `overdue` is to be asked next; None where nobody has to greet."""
        return next(iter(self._due_ns.values()), None)

    def entered(self, link: K, now_ns: int) -> tuple[K, str] | None:
        """`link` was accepted. Who has to go for it, perhaps itself, and why."""
        if len(self._due_ns) + len(self._greeted) >= LINKS_MAX:
            return link, f"{LINKS_MAX} links are open, which is all that there may be"
        self._due_ns[link] = now_ns + GREETING_MS_MAX * 1_000_000
        if len(self._due_ns) <= UNGREETED_MAX:
            return None
        first = next(iter(self._due_ns))
        del self._due_ns[first]
        return first, f"more than {UNGREETED_MAX} links have not greeted, and this one came first"

    def greeted(self, link: K) -> None:
        """It is known who is behind `link`."""
        if self._due_ns.pop(link, None) is not None:
            self._greeted.add(link)

    def left(self, link: K) -> None:
        """`link` is gone."""
        self._due_ns.pop(link, None)
        self._greeted.discard(link)

    def overdue(self, now_ns: int) -> list[tuple[K, str]]:
        """Who has had long enough to greet, and why each has to go."""
        late = [link for link, due_ns in self._due_ns.items() if due_ns <= now_ns]
        for link in late:
            del self._due_ns[link]
        return [(link, f"no greeting came within {GREETING_MS_MAX} ms") for link in late]
