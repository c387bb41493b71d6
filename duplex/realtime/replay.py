"""What connections were told last, so that a client whose network was gone for a moment is told what it has missed.

Theory of operation
    Each connection that can be resumed keeps its newest messages as they were numbered (`SentEvents`), but for sound. A
    client that comes back to this gateway names the last number that it has seen, and is told what followed, under the
    old numbers; its connection goes on counting from there (`Replays`).

Rules
* Either everything behind a number is there, or nothing is given: no gap goes unnoticed.
* Only the connection of the owner before counts: what another gateway has said meanwhile is not known here.
* What was said in a session is forgotten here `KEPT_S` after its connection has ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import msgspec

from duplex.realtime.dialect import AUDIO_DELTA, Message

EVENTS_MAX = 512  # a long reply has some three hundred without its sound
BYTES_MAX = 128 << 10
KEPT_MAX = 64  # connections; 8 MiB where all are full
KEPT_S = 3.0  # from when its end is known here, which is later than the loss

_json = msgspec.json.Decoder(dict)


class SentEvents:
    """The newest messages of a connection, the first of which will have the number after `last`."""

    def __init__(self, last: int) -> None:
        self.last = last
        self._whole_behind = last  # of every message with a greater number it is known what it was
        self._events: deque[tuple[int, bytes]] = deque()  # by their numbers, as they were sent: objects take far more
        self._bytes = 0

    def keep(self, message: Message, encoded: bytes) -> None:
        """`message`, which was `encoded` as JSON, is the next. Sound is only counted."""
        self.last = message["server_event_seq"]
        if message["type"] == AUDIO_DELTA:
            return
        self._events.append((self.last, encoded))
        self._bytes += len(encoded)
        while len(self._events) > EVENTS_MAX or self._bytes > BYTES_MAX:
            self._whole_behind, oldest = self._events.popleft()
            self._bytes -= len(oldest)

    def since(self, seen: int) -> list[Message] | None:
        """The messages behind number `seen`; None where not all of them are there."""
        if not self._whole_behind <= seen <= self.last:
            return None
        return [_json.decode(encoded) for number, encoded in self._events if number > seen]


class Source(Protocol):
    """The outbox of a connection."""

    def hand_over(self) -> SentEvents | None:
        """All that it was given to send, numbered; it sends nothing of that any more. None where some was dropped."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """By a connection that is over."""

    sent: SentEvents | None

    def hand_over(self) -> SentEvents | None:
        return self.sent


@dataclass(frozen=True, slots=True)
class _Kept:
    fence: int
    source: Source


class Replays:
    """Of the connections of one gateway, by their sessions."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def hold(self, session: str, fence: int, source: Source) -> None:
        """`source` is what the owner `fence` of `session` has its client told by."""
        self._kept.pop(session, None)
        self._kept[session] = _Kept(fence, source)
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    def ended(self, session: str, source: Source) -> None:
        """Its connection is over, and holds nothing here any more: what it was told is kept for a while."""
        kept = self._kept.get(session)
        if kept is None or kept.source is not source:
            return
        told = _Told(source.hand_over())
        self._kept[session] = _Kept(kept.fence, told)
        asyncio.get_running_loop().call_later(KEPT_S, self.forget, session, told)

    def forget(self, session: str, source: Source) -> None:
        """Unless another connection has the session by now."""
        kept = self._kept.get(session)
        if kept is not None and kept.source is source:
            del self._kept[session]

    def take(self, session: str, fence: int) -> SentEvents | None:
        """What the owner before `fence` has told; None where that was not here, or is not known any more."""
        kept = self._kept.pop(session, None)
        return kept.source.hand_over() if kept is not None and kept.fence == fence - 1 else None
