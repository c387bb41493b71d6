"""The queue of Asterisk's WebSocket channel: frames of sound, marks between them, and its two levels.

Theory of operation
    The channel's timer takes one frame in each tick, and whatever stands before it in the queue. Nothing but a flush
    empties the queue faster, so what comes in a burst stays as delay.

Source: channels/chan_websocket.c of Asterisk, August 2026.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

# In frames; 20 s of 20 ms.
LENGTH_MAX = 1_000
XOFF_LEVEL = 900
XON_LEVEL = 800
# What the source does not limit: marks and completions that wait.
NOTICES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Notice:
    """An event that is due when all before it has left the queue."""

    event: str
    correlation_id: str


@dataclass(frozen=True, slots=True)
class Taken:
    """What one tick has taken: the notices that had come to the head, and a frame, where there was one.
    `turned_on`: the queue has room again; `ran_dry`: it was empty."""

    notices: tuple[Notice, ...] = ()
    frame: bytes | None = None
    turned_on: bool = False
    ran_dry: bool = False


class FrameQueue:
    """Of one channel. Frames are bytes as they came."""

    def __init__(self) -> None:
        self._items: deque[bytes | Notice] = deque()
        self.frames = 0
        self.is_full = False

    @property
    def takes_more(self) -> bool:
        """Whether the next message is taken; all of it then."""
        return self.frames < LENGTH_MAX

    def put(self, frame: bytes) -> bool:
        """Queue a frame; whether the sender must be told to stop."""
        self._items.append(frame)
        self.frames += 1
        turned_off = not self.is_full and self.frames >= XOFF_LEVEL
        self.is_full |= turned_off
        return turned_off

    def note(self, notice: Notice) -> bool:
        """Queue a notice; False where too many wait."""
        if len(self._items) - self.frames >= NOTICES_MAX:
            return False
        self._items.append(notice)
        return True

    def take(self) -> Taken:
        """One tick."""
        notices: list[Notice] = []
        frame: bytes | None = None
        while self._items and frame is None:
            item = self._items.popleft()
            if isinstance(item, Notice):
                notices.append(item)
            else:
                frame = item
                self.frames -= 1
        turned_on = self.is_full and self.frames < XON_LEVEL
        self.is_full &= not turned_on
        return Taken(tuple(notices), frame, turned_on, ran_dry=frame is None)

    def flush(self) -> tuple[list[bytes], list[Notice]]:
        """Empty the queue; what was in it. Whether it counts as full is for the next tick to say."""
        frames = [item for item in self._items if isinstance(item, bytes)]
        notices = [item for item in self._items if isinstance(item, Notice)]
        self._items.clear()
        self.frames = 0
        return frames, notices
