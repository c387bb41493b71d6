"""Another client of a caller's session, which has its token as well: a second page, or a request that was sent again.

Rule
* Once it has the session, it leaves soon, without a word: who is ended by it comes back.
"""

from __future__ import annotations

from random import Random

from sessions.items import Item
from tests.sim.clock import Clock
from tests.sim.visit import Visit, Visitor

STAYS_MS = (20, 400)


class Rival:
    """Of `visitor`, whose session it takes. `random` is its own."""

    def __init__(self, visitor: Visitor, random: Random) -> None:
        self._visitor = visitor
        self._random = random

    @property
    def clock(self) -> Clock:
        return self._visitor.clock

    @property
    def is_traced(self) -> bool:
        return self._visitor.is_traced

    @property
    def tenant(self) -> str:
        return self._visitor.tenant

    def note(self, what: str, /) -> None:
        self._visitor.note(f"(rival) {what}")

    def count(self, what: str, /) -> None:
        self._visitor.count(what)

    def connected(self, visit: Visit, /) -> None:
        self.count("rivals in")
        self.clock.after(self._random.uniform(*STAYS_MS), visit.leave, 0)

    def disconnected(self, visit: Visit, code: str, /) -> None:
        pass

    def called(self, item: Item, /) -> None:
        pass

    def forget_speech(self, visit: Visit, /) -> None:
        pass
