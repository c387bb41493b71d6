"""Who waits for a call's place: newcomers for a free one, and whoever ends the calls until all are free.

Theory of operation
    Who comes back does not wait: there are places to spare for them (`duplex.places`). Such a place is changed for
    another as soon as somebody leaves.

Rules
* Where all places are taken, at most `AT_THE_DOOR_MAX` newcomers wait, and none longer than `ROOM_S_MAX`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from duplex.places import Places

# Who comes right after somebody has left waits so long for the place: a call has mostly drained within a step. Callers
# are owed a yes or no within 200 ms (livekit/agents#3202).
ROOM_S_MAX = 0.15
AT_THE_DOOR_MAX = 8
LEFT_ELSEWHERE_S = 0.03  # nobody tells of a call that another gateway's caller has left


class WaitingRoom:
    """`places` are those of this gateway."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._at_the_door = 0
        self._left = asyncio.Event()
        self._spare = asyncio.Event()  # somebody is in a spare place
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def taken(self) -> int:
        """How many places this gateway has given to calls."""
        return self._places.taken

    def take(self, *, returning: bool = False) -> bool:
        """Take a place, also one to spare for who is `returning`; False where none is free."""
        is_taken = self._places.take(returning=returning)
        if is_taken:
            self._empty.clear()
        if self._places.spare:
            self._spare.set()
        return is_taken

    def give_back(self) -> None:
        """A place that was taken here is free again."""
        self._places.give_back()
        self._left.set()
        if not self.taken:
            self._empty.set()

    async def run(self) -> None:
        """Change spare places for others until cancelled."""
        while True:
            await self._spare.wait()
            while self._places.spare:
                await self._until_somebody_left()
                self._places.change()
            self._spare.clear()

    async def until_empty(self) -> None:
        """Return when no call has a place here."""
        await self._empty.wait()

    async def until_room(self) -> None:
        """Where all places are taken, wait a moment: the one that somebody has just left is about to be free."""
        if self._has_room or self._at_the_door >= AT_THE_DOOR_MAX:
            return
        self._at_the_door += 1
        try:
            async with asyncio.timeout(ROOM_S_MAX):
                while not self._has_room:
                    await self._until_somebody_left()
        except TimeoutError:
            return
        finally:
            self._at_the_door -= 1

    @property
    def _has_room(self) -> bool:
        if not self._places.take():
            return False
        self._places.give_back()
        return True

    async def _until_somebody_left(self) -> None:
        """Or may have."""
        self._left.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEFT_ELSEWHERE_S):
                await self._left.wait()
