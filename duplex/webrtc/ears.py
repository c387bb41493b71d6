"""The way in of one call over WebRTC: packets from the peer to the call's listening.

Theory of operation
    The peer's packets wait in a short queue, which is always drained: one task puts them in order, decodes them and
    hands the sound on. When the gateway is too busy the oldest packets are lost, and counted; the hole becomes silence
    like any other.

Rules
* What cannot be decoded becomes silence and never ends the call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from duplex.webrtc.inbound import Gap, Inbound, Piece
from duplex.webrtc.opus import DECODED_RATE, OpusDecoder, OpusError
from duplex.webrtc.rtp import CLOCK_RATE, ReceivedPacket

WAITING_PACKETS_MAX = 50  # a second: the stall of a process that is swapped, or of a full disk
SAMPLE_BYTES = 2


class Listener(Protocol):
    """Where the sound goes."""

    async def hear(self, pcm: bytes, /) -> object: ...


class Ears:
    """`began(ns)` is told once, when the first packet comes; `lost(what, count)` of packets that were no use."""

    def __init__(self, began: Callable[[int], None], lost: Callable[[str, int], None]) -> None:
        self._began = began
        self._lost = lost
        self._inbound = Inbound()
        self._decoder = OpusDecoder()
        self._waiting: deque[ReceivedPacket] = deque(maxlen=WAITING_PACKETS_MAX)
        self._wake = asyncio.Event()
        self._undecodable = 0
        self._dropped = 0
        self.last_packet_ns: int | None = None

    def put(self, packet: ReceivedPacket) -> None:
        """A packet has arrived."""
        if self.last_packet_ns is None:
            self._began(packet.arrival_ns)
        self.last_packet_ns = packet.arrival_ns
        self._dropped += len(self._waiting) == WAITING_PACKETS_MAX
        self._waiting.append(packet)
        self._wake.set()

    async def run(self, listener: Listener) -> None:
        """Hand on what is heard, until cancelled."""
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            for piece in self._inbound.take(self._waiting.popleft()):
                await listener.hear(self._sound(piece))

    def _sound(self, piece: Piece) -> bytes:
        silence = bytes(piece.ticks * DECODED_RATE // CLOCK_RATE * SAMPLE_BYTES)
        if isinstance(piece, Gap):
            return silence
        try:
            return self._decoder.decode(piece.payload)
        except OpusError:
            self._undecodable += 1
            return silence

    def report(self) -> None:
        """Tell what was lost in this call."""
        counts = self._inbound.counts
        losses = {
            "lost": counts.lost,
            "late": counts.late,
            "malformed": counts.malformed + self._undecodable,
            "excess": counts.excess,
            "overrun": self._dropped,
            "gap": counts.filled,
            "restart": counts.restarts,
        }
        for what, count in losses.items():
            if count:
                self._lost(what, count)
