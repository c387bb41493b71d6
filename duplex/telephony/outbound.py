"""What waits to be sent to a carrier: messages in order, of which sound can be taken back until it has gone.

Rules
* Sound that waits is bounded by `SOUND_WAITING_MAX`: its sender asks `has_room` first. What else there is, by
  `MESSAGES_WAITING_MAX`: beyond that the carrier no longer reads.
* A carrier that takes nothing for `stall_ns_max` no longer reads either. Both set `overflowed`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from duplex.telephony.carrier import Message

SOUND_WAITING_MAX = 2
MESSAGES_WAITING_MAX = 256


@dataclass(frozen=True, slots=True)
class _Waiting:
    """`start`: where its sound, or what it marks, stands; None: it is about none."""

    message: Message
    start: int | None
    is_sound: bool


class Outbound:
    """Of one call."""

    def __init__(self, stall_ns_max: int) -> None:
        self._stall_ns_max = stall_ns_max
        self._waiting: deque[_Waiting] = deque()
        self._sound = 0
        self._moves = False
        self._still_since_ns: int | None = None
        self._wake = asyncio.Event()
        self.overflowed = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """Sound may be put in."""
        return self._sound < SOUND_WAITING_MAX

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def pace(self, now_ns: int) -> None:
        """See whether the carrier still takes what it is sent."""
        if self._moves or not self._waiting or self._still_since_ns is None:
            self._moves, self._still_since_ns = False, now_ns
        elif now_ns - self._still_since_ns >= self._stall_ns_max:
            self.overflowed.set()

    def put(self, message: Message, start: int | None = None, *, is_sound: bool = False) -> None:
        if len(self._waiting) >= MESSAGES_WAITING_MAX:
            self.overflowed.set()
            return
        self._waiting.append(_Waiting(message, start, is_sound))
        self._sound += is_sound
        self._wake.set()

    def drop_sound(self) -> int | None:
        """Forget sound, and its marks. Gives where the first of it stood; None where there was none."""
        starts = [entry.start for entry in self._waiting if entry.is_sound and entry.start is not None]
        self._waiting = deque(entry for entry in self._waiting if entry.start is None)
        self._sound = 0
        return starts[0] if starts else None

    async def next(self) -> Message:
        """The next message to send; whoever takes it sends it."""
        while not self._waiting:
            self._wake.clear()
            await self._wake.wait()
        entry = self._waiting.popleft()
        self._moves = True
        self._sound -= entry.is_sound
        return entry.message
