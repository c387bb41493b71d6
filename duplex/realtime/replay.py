"""What connections were told last, so that a client whose network was gone for a moment is told what it has missed.

Theory of operation
    Each connection that can be resumed keeps its newest messages as they were numbered (`SentEvents`), but for sound. A
    client that comes back to this gateway names the last number that it has seen, and is told what followed, under the
    old numbers; its connection goes on counting from there (`Replays`). What a connection leaves when it ends is
    packed: a reply of sixty words takes 61 KB as it lies, of which 45 KB are JSON, and 6 KB then.

Rules
* Either everything behind a number is there, or nothing is given: no gap goes unnoticed.
* Only the connection of the owner before counts: what another gateway has said meanwhile is not known here.
* A connection that lives keeps what it has said, however many there are: each has a place of the gateway. Those that
  have ended share a bound, and the one that ended first is the first to go.
* What was said in a session is forgotten here `KEPT_S` after its connection has ended.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import msgspec

from duplex.realtime.dialect import AUDIO_DELTA, Message

EVENTS_MAX = 512  # a long reply has some three hundred without its sound
BYTES_MAX = 128 << 10
KEPT_S = 30.0  # a phone that changes from Wi-Fi to mobile is back after 5 to 20, counted from the loss
ENDED_MAX = 1_024
ENDED_BYTES_MAX = 4 << 20  # packed: 250 that are full, or seven hundred after a reply of sixty words
PACKING_LEVEL = 1  # of zlib; a full one takes 0.5 ms, and comes to an eighth. Level 6 takes twice that for a ninth less

_json = msgspec.json.Decoder(dict)
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[int, int, list[tuple[int, bytes]]]).decode


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

    def packed(self) -> bytes:
        """All of it, for `unpacked`."""
        return zlib.compress(_pack((self.last, self._whole_behind, list(self._events))), PACKING_LEVEL)

    @classmethod
    def unpacked(cls, packed: bytes) -> SentEvents:
        """As it was when it was `packed`."""
        last, whole_behind, events = _unpack(zlib.decompress(packed))
        one = cls(last)
        one._whole_behind, one._events = whole_behind, deque(events)
        one._bytes = sum(len(encoded) for _, encoded in events)
        return one


class Source(Protocol):
    """The outbox of a connection."""

    def hand_over(self) -> SentEvents | None:
        """All that it was given to send, numbered; it sends nothing of that any more. None where some was dropped."""
        ...


@dataclass(frozen=True, slots=True)
class _Living:
    """A connection, of the owner `fence` of its session."""

    fence: int
    source: Source


@dataclass(frozen=True, slots=True)
class _Ended:
    """What such a connection has left."""

    fence: int
    ended_ns: int
    packed: bytes


class Replays:
    """Of the connections of one gateway, by their sessions."""

    def __init__(self) -> None:
        self._living: dict[str, _Living] = {}
        self._ended: dict[str, _Ended] = {}  # in the order of their ends
        self._ended_bytes = 0

    @property
    def ended_bytes(self) -> int:
        """What is kept of the connections that have ended, as it is packed."""
        return self._ended_bytes

    def hold(self, session: str, fence: int, source: Source) -> None:
        """`source` is what the owner `fence` of `session` has its client told by, until it has `ended`."""
        self.drop(session)
        self._living[session] = _Living(fence, source)

    def ended(self, session: str, source: Source, now_ns: int) -> None:
        """The connection is over, and not held any more: what it was told is kept, until it has to `expire`."""
        living = self._release(session, source)
        if living is not None and (sent := source.hand_over()) is not None:
            self._keep(session, _Ended(living.fence, now_ns, sent.packed()))

    def _keep(self, session: str, ended: _Ended) -> None:
        self._ended[session] = ended
        self._ended_bytes += len(ended.packed)
        while len(self._ended) > ENDED_MAX or self._ended_bytes > ENDED_BYTES_MAX:
            self.drop(next(iter(self._ended)))

    def forget(self, session: str, source: Source) -> None:
        """Keep nothing of the connection when it ends."""
        self._release(session, source)

    def expire(self, ended_ns: int) -> None:
        """Forget the connections that had ended by then."""
        while self._ended:
            session, oldest = next(iter(self._ended.items()))
            if oldest.ended_ns > ended_ns:
                break
            self.drop(session)

    def take(self, session: str, fence: int) -> SentEvents | None:
        """What the owner before `fence` has told; None where that was not here, or is not known any more."""
        living, ended = self._living.pop(session, None), self.drop(session)
        if living is not None and living.fence == fence - 1:
            return living.source.hand_over()
        if ended is not None and ended.fence == fence - 1:
            return SentEvents.unpacked(ended.packed)
        return None

    def _release(self, session: str, source: Source) -> _Living | None:
        """The connection, which is not held any more; None where another one has the session by now."""
        living = self._living.get(session)
        return self._living.pop(session) if living is not None and living.source is source else None

    def drop(self, session: str) -> _Ended | None:
        """Forget what a connection of `session` that has ended was told; gives it."""
        ended = self._ended.pop(session, None)
        self._ended_bytes -= 0 if ended is None else len(ended.packed)
        return ended
