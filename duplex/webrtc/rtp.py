"""The border of the browser transport: RTP packets and messages on this side, ICE, DTLS, SRTP and SCTP on the other.

Theory of operation
    A `Peer` is one browser. It gives packets as they arrive, unordered and with gaps, and takes packets that are due
    now; it neither decodes, nor waits for late ones, nor paces. So another implementation, a process beside this one
    for instance, can take its place.

Rules
* The clock of a packet that goes out is counted in ticks of 48 kHz (RFC 7587, section 4.1) from the first one; the peer
  adds its own random origin. What comes in carries the 32-bit timestamp and 16-bit number of the wire.
* One packet is 20 ms, in both directions of time: `PACKET_TICKS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

CLOCK_RATE = 48_000
PACKET_NS = 20_000_000
PACKET_TICKS = CLOCK_RATE // 50
CHANNEL_LABEL = "oai-events"

# Packets that wait to be written: as many as the pacer catches up with at once. Then its sound waits in the ledger.
SENDING_PACKETS_MAX = 10


@dataclass(frozen=True, slots=True)
class ReceivedPacket:
    """`sequence` 16 bits, `timestamp` 32 bits, `arrival_ns` monotonic."""

    sequence: int
    timestamp: int
    payload: bytes
    arrival_ns: int


@dataclass(frozen=True, slots=True)
class SentPacket:
    """`tick` counts from the first packet and does not wrap."""

    tick: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReceiverReport:
    """What a peer says of our packets (RFC 3550, section 6.4.1): that of `tick` has arrived, the last until then.

    `jitter_ns`: mean deviation of their arrival. `round_trip_ns`: None where it cannot be told yet.
    """

    tick: int
    jitter_ns: int
    round_trip_ns: int | None


Sink = Callable[[ReceivedPacket], None]


class OfferError(ValueError):
    """The offer cannot be answered; the client must act. `status` is HTTP's."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class RtpSender(Protocol):
    """The way out."""

    @property
    def is_sending(self) -> bool:
        """Packets reach the peer from now on."""
        ...

    @property
    def waiting(self) -> int:
        """Packets that are not written yet, `SENDING_PACKETS_MAX` at most."""
        ...

    @property
    def timestamp_origin(self) -> int | None:
        """The 32-bit timestamp of tick 0; None until the first packet has left."""
        ...

    @property
    def report(self) -> ReceiverReport | None:
        """What the peer has reported last."""
        ...

    @property
    def last_packet_ns(self) -> int | None:
        """When a packet of the peer came last (monotonic)."""
        ...

    def put(self, packet: SentPacket) -> None:
        """Write `packet` as soon as may be."""
        ...

    def take_back(self) -> list[SentPacket]:
        """The packets that are not written yet; they will not be."""
        ...


class Peer(RtpSender, Protocol):
    """One browser, from its offer to its end. Messages are those of the channel `CHANNEL_LABEL`."""

    @property
    def over(self) -> asyncio.Event:
        """Set once nothing more is taken from it: it has gone, or has a `fault`."""
        ...

    @property
    def fault(self) -> str:
        """Why it must be let go, or empty. It can still be told so."""
        ...

    async def answer(self, offer: str) -> str:
        """The SDP answer; raises `OfferError`."""
        ...

    async def until_open(self) -> None:
        """Return once messages can be exchanged; raises `SocketClosedError`."""
        ...

    async def receive(self) -> str | bytes:
        """The next message; raises `SocketClosedError`."""
        ...

    async def send(self, text: str) -> None:
        """Send a message, waiting while many are under way; raises `SocketClosedError`."""
        ...

    async def close(self) -> None:
        """Let go of everything, in bounded time. Idempotent."""
        ...
