"""Packets that come late, twice, out of order, or not at all; and clocks that jump."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.webrtc.inbound import (
    BURST_TICKS,
    GAP_TICKS_MAX,
    REORDER_PACKETS_MAX,
    SEQUENCE_JUMP_MAX,
    Gap,
    Inbound,
    Piece,
    Sound,
    opus_ticks,
)
from duplex.webrtc.rtp import PACKET_NS, PACKET_TICKS, ReceivedPacket

TWENTY_MS = 0xD8  # RFC 6716, table 2: configuration 27, one frame, mono


def packet(
    number: int, *, sequence: int | None = None, timestamp: int | None = None, at: int | None = None
) -> ReceivedPacket:
    """Packet `number` of a stream that begins shortly before both counters wrap."""
    at_ns = PACKET_NS * (number if at is None else at) + 1_000_000_000
    return ReceivedPacket(
        (65_530 + number if sequence is None else sequence) % (1 << 16),
        ((1 << 32) - 3 * PACKET_TICKS + number * PACKET_TICKS if timestamp is None else timestamp) % (1 << 32),
        bytes((TWENTY_MS, number % 256)),
        at_ns,
    )


def numbers(pieces: list[Piece]) -> list[int]:
    """The packets in `pieces`; a gap as minus its length in packets."""
    return [piece.payload[1] if isinstance(piece, Sound) else -piece.ticks // PACKET_TICKS for piece in pieces]


def heard(inbound: Inbound, *arrivals: int) -> list[int]:
    return [number for arrival in arrivals for number in numbers(inbound.take(packet(arrival)))]


def test_what_comes_in_order_goes_on_at_once() -> None:
    inbound = Inbound()
    for number in range(20):
        assert heard(inbound, number) == [number]


def test_packets_change_places_back() -> None:
    inbound = Inbound()
    assert heard(inbound, 0, 2) == [0]
    assert heard(inbound, 3) == []
    assert heard(inbound, 1) == [1, 2, 3]


def test_what_is_lost_becomes_silence_once_it_has_been_waited_for() -> None:
    inbound = Inbound()
    assert heard(inbound, 0, *range(2, 2 + REORDER_PACKETS_MAX)) == [0]
    assert heard(inbound, 5) == [-1, 2, 3, 4, 5]
    assert heard(inbound, 6) == [6]
    assert (inbound.counts.lost, inbound.counts.filled) == (1, 1)


def test_each_packet_is_used_once_and_late_ones_never() -> None:
    inbound = Inbound()
    assert heard(inbound, 0, 0, 2, 2, 1, 1, 2) == [0, 1, 2]
    assert inbound.counts.late == 4


def test_a_sender_that_says_nothing_is_silent() -> None:
    inbound = Inbound()
    heard(inbound, 0)
    later = packet(1, timestamp=packet(0).timestamp + 11 * PACKET_TICKS, at=11)
    assert numbers(inbound.take(later)) == [-10, 1]


def test_a_long_silence_is_shortened() -> None:
    inbound = Inbound()
    heard(inbound, 0)
    later = packet(1, timestamp=packet(0).timestamp + 100 * GAP_TICKS_MAX, at=100_000)
    assert inbound.take(later)[0] == Gap(GAP_TICKS_MAX)


def test_a_clock_that_goes_back_is_followed() -> None:
    inbound = Inbound()
    heard(inbound, 0, 1)
    assert numbers(inbound.take(packet(2, timestamp=packet(0).timestamp - 5 * PACKET_TICKS))) == [2]
    assert inbound.counts.restarts == 1


@pytest.mark.parametrize("jump", [SEQUENCE_JUMP_MAX + 2, -SEQUENCE_JUMP_MAX])
def test_a_sender_that_begins_anew_is_followed_at_once(jump: int) -> None:
    inbound = Inbound()
    assert heard(inbound, 0, 2) == [0]
    anew = packet(0, sequence=packet(0).sequence + jump, timestamp=7)
    assert numbers(inbound.take(anew)) == [0]
    assert inbound.counts.restarts == 1


def test_nobody_says_more_than_one_can_say() -> None:
    inbound = Inbound()
    pieces = [piece for number in range(1_000) for piece in inbound.take(packet(number, at=0))]
    assert sum(piece.ticks for piece in pieces) == BURST_TICKS
    assert inbound.counts.excess == 1_000 - BURST_TICKS // PACKET_TICKS
    assert heard(inbound, 1_000) == [1_000 % 256]


def test_silence_counts_as_said() -> None:
    inbound = Inbound()
    heard(inbound, 0)
    ticks = 0
    for number in range(1, 50):
        far = packet(number, timestamp=packet(0).timestamp + number * GAP_TICKS_MAX, at=0)
        ticks += sum(piece.ticks for piece in inbound.take(far))
    assert ticks <= BURST_TICKS


@pytest.mark.parametrize(
    ("header", "ticks"),
    [
        ("", 0),
        ("00", 480),
        ("18", 2_880),
        ("60", 480),
        ("68", 960),
        ("80", 120),
        ("f8", 960),
        ("f9", 1_920),
        ("fa", 1_920),
        ("fb", 0),
        ("fb03", 2_880),
        ("fb06", 5_760),
        ("fb07", 0),
        ("1b02", 5_760),
        ("fb00", 0),
    ],
)
def test_the_header_tells_the_length(header: str, ticks: int) -> None:
    assert opus_ticks(bytes.fromhex(header)) == ticks


def test_what_is_no_packet_is_counted_and_leaves_a_gap() -> None:
    inbound = Inbound()
    heard(inbound, 0)
    assert inbound.take(ReceivedPacket(packet(1).sequence, packet(1).timestamp, b"", 0)) == []
    assert inbound.counts.malformed == 1


@given(st.integers(0, 10_000), st.integers(0, 20))
def test_however_they_come_the_clock_is_whole(seed: int, losses: int) -> None:
    random = Random(seed)
    arrivals = [number for number in range(60) if number == 0 or random.random() > losses / 100]
    order = sorted(arrivals[1:], key=lambda number: number + random.uniform(0, 2.9))
    inbound, pieces = Inbound(), list[Piece]()
    for place, number in enumerate([0, *order]):
        pieces += inbound.take(packet(number, at=place))
    clock, last = 0, -1
    for piece in pieces:
        if isinstance(piece, Sound):
            assert clock == piece.payload[1] * PACKET_TICKS
            assert piece.payload[1] > last
            last = piece.payload[1]
        clock += piece.ticks
    assert inbound.counts.late == 0
    assert len(pieces) - inbound.counts.filled >= len(arrivals) - REORDER_PACKETS_MAX
