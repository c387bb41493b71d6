"""The caller's packets, put in order: sound without holes, as it was spoken.

Theory of operation
    Nobody listens to this sound in real time: voice activity and the encoder take it as it comes. So a packet that is
    in order goes on at once, and only when one is missing do a few later ones wait for it; then it is given up and its
    place is filled. Whether a stretch of the clock was lost or never sent (a sender that is silent sends nothing), it
    becomes silence of the same length, which keeps the sample clock whole.

Rules
* A core: packets in, pieces out, time as an argument. Each packet is used once, late ones never.
* Sound and silence together come no faster than they are spoken, with `BURST_TICKS` ahead: what is beyond is dropped,
  so no peer can make us work on more than it could have said.
* Clocks that start afresh, backwards or far away, are followed without filling.
"""

from __future__ import annotations

from dataclasses import dataclass

from duplex.webrtc.rtp import CLOCK_RATE, ReceivedPacket
from media.rtp_map import unwrap

REORDER_PACKETS_MAX = 3  # 60 ms: as long as an answer may wait for a packet that is probably lost
SEQUENCE_MODULUS = 1 << 16
SEQUENCE_JUMP_MAX = 3_000  # RFC 3550, appendix A.1: MAX_DROPOUT; beyond it the sender has begun anew
GAP_TICKS_MAX = 2 * CLOCK_RATE  # ends any turn; what was not sent for longer is not worth the work
BURST_TICKS = 3 * CLOCK_RATE
PACKET_TICKS_MAX = 120 * CLOCK_RATE // 1000  # RFC 6716, section 3.2.5: R5

# Frame lengths in ticks by configuration number, RFC 6716, table 2.
_SILK = (480, 960, 1920, 2880)
_HYBRID = (480, 960)
_CELT = (120, 240, 480, 960)
_FRAME_TICKS = (*_SILK * 3, *_HYBRID * 2, *_CELT * 4)


@dataclass(frozen=True, slots=True)
class Sound:
    """One Opus packet, to be decoded."""

    payload: bytes
    ticks: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Silence."""

    ticks: int


Piece = Sound | Gap


@dataclass(slots=True)
class InboundCounts:
    """What was not as it should be, in packets; `filled` in gaps."""

    lost: int = 0
    late: int = 0
    malformed: int = 0
    excess: int = 0
    filled: int = 0
    restarts: int = 0


def opus_ticks(payload: bytes) -> int:
    """The length of an Opus packet in ticks, from its first bytes; 0 where it is none (RFC 6716, section 3)."""
    if not payload:
        return 0
    frame = _FRAME_TICKS[payload[0] >> 3]
    code = payload[0] & 3
    if code < 3:
        return frame * (1 if code == 0 else 2)
    count = payload[1] & 63 if len(payload) > 1 else 0
    return frame * count if frame * count <= PACKET_TICKS_MAX else 0


class Inbound:
    def __init__(self) -> None:
        self.counts = InboundCounts()
        self._held: dict[int, ReceivedPacket] = {}
        self._next_sequence: int | None = None
        self._next_tick: int | None = None
        self._ahead_ticks = 0
        self._last_arrival_ns = 0

    def take(self, packet: ReceivedPacket) -> list[Piece]:
        """What can be heard now that `packet` has arrived."""
        if not opus_ticks(packet.payload):
            self.counts.malformed += 1
            return []
        sequence = self._unwrapped(packet.sequence)
        if self._next_sequence is None or abs(sequence - self._next_sequence) > SEQUENCE_JUMP_MAX:
            self._begin(sequence)
        assert self._next_sequence is not None, "it was just set"
        if sequence < self._next_sequence or sequence in self._held:
            self.counts.late += 1
            return []
        self._held[sequence] = packet
        pieces: list[Piece] = []
        while self._next_sequence in self._held or len(self._held) > REORDER_PACKETS_MAX:
            first = min(self._held)
            self.counts.lost += first - self._next_sequence
            self._next_sequence = first + 1
            pieces += self._in_order(self._held.pop(first))
        return [piece for piece in pieces if self._is_within_budget(piece, packet.arrival_ns)]

    def _unwrapped(self, sequence: int) -> int:
        if self._next_sequence is None:
            return sequence
        ahead = (sequence - self._next_sequence) % SEQUENCE_MODULUS
        return self._next_sequence + (ahead if ahead < SEQUENCE_MODULUS // 2 else ahead - SEQUENCE_MODULUS)

    def _begin(self, sequence: int) -> None:
        self.counts.restarts += self._next_sequence is not None
        self._held.clear()
        self._next_sequence, self._next_tick = sequence, None

    def _in_order(self, packet: ReceivedPacket) -> list[Piece]:
        ticks = opus_ticks(packet.payload)
        expected = self._next_tick
        tick = packet.timestamp if expected is None else unwrap(packet.timestamp, expected)
        self._next_tick = tick + ticks
        sound = Sound(packet.payload, ticks)
        if expected is None or tick == expected:
            return [sound]
        if tick < expected:
            self.counts.restarts += 1
            return [sound]
        self.counts.filled += 1
        return [Gap(min(tick - expected, GAP_TICKS_MAX)), sound]

    def _is_within_budget(self, piece: Piece, now_ns: int) -> bool:
        passed = (now_ns - self._last_arrival_ns) * CLOCK_RATE // 1_000_000_000
        self._last_arrival_ns = now_ns
        self._ahead_ticks = max(0, self._ahead_ticks - passed)
        if self._ahead_ticks + piece.ticks > BURST_TICKS:
            self.counts.excess += 1
            return False
        self._ahead_ticks += piece.ticks
        return True
