"""Offers as browsers make them, and as nobody should."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.webrtc.offer import CANDIDATES_MAX, LINE_CHARACTERS_MAX, OFFER_BYTES_MAX, checked_offer
from duplex.webrtc.rtp import OfferError

HOST = "a=candidate:1 1 udp 2122260223 192.168.1.7 50000 typ host generation 0"
LINES = (
    "v=0",
    "o=- 1 2 IN IP4 127.0.0.1",
    "s=-",
    "t=0 0",
    "a=group:BUNDLE 0 1",
    "m=audio 9 UDP/TLS/RTP/SAVPF 111",
    "c=IN IP4 0.0.0.0",
    "a=ice-ufrag:abcd",
    "a=ice-pwd:0123456789012345678901",
    "a=fingerprint:sha-256 AA:BB",
    "a=setup:actpass",
    "a=mid:0",
    "a=rtpmap:111 opus/48000/2",
    HOST,
    "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
    "a=mid:1",
    "a=sctp-port:5000",
)


def body(*more: str, without: str = "", lines: tuple[str, ...] = LINES) -> bytes:
    kept = [line for line in lines if not (without and line.startswith(without))]
    return ("\r\n".join([*kept, *more]) + "\r\n").encode()


def refused(offer: bytes) -> tuple[str, int]:
    with pytest.raises(OfferError) as raised:
        checked_offer(offer)
    return raised.value.code, raised.value.status


def test_an_offer_that_we_can_use_stays_as_it_is() -> None:
    assert checked_offer(body()).encode() == body()
    assert checked_offer(body().replace(b"\r\n", b"\n")).encode() == body()


def test_a_size_is_enough() -> None:
    assert refused(b"v" * (OFFER_BYTES_MAX + 1)) == ("offer_too_large", 413)


@pytest.mark.parametrize(
    "offer",
    [
        b"",
        b"\xff\xfe",
        b"hello",
        b"v=0",
        body("x"),
        body("a=\x00"),
        body("a=" + "b" * LINE_CHARACTERS_MAX),
        body(without="a=fingerprint"),
        body(without="a=ice-ufrag"),
        body(without="a=ice-pwd"),
        body(without="a=setup"),
    ],
)
def test_what_is_no_offer_is_refused(offer: bytes) -> None:
    assert refused(offer)[0] in ("invalid_sdp", "unsupported_media")


@pytest.mark.parametrize(
    "offer",
    [
        body(without="m=application"),
        body(without="m=audio"),
        body("m=video 9 UDP/TLS/RTP/SAVPF 96"),
        body("m=audio 9 UDP/TLS/RTP/SAVPF 111"),
    ],
)
def test_one_sound_and_one_channel_are_needed(offer: bytes) -> None:
    assert refused(offer) == ("unsupported_media", 400)


def test_opus_is_needed() -> None:
    assert refused(body(without="a=rtpmap")) == ("opus_missing", 400)


@pytest.mark.parametrize(
    "candidate",
    [
        "1 2 udp 1 192.168.1.7 50000 typ host",
        "1 1 tcp 1 192.168.1.7 9 typ host tcptype active",
        "1 1 udp 1 0e8b37a0-1111-2222-3333-444455556666.local 50000 typ host",
        "1 1 udp 1 example.com 50000 typ host",
        "1 1 udp 1 224.0.0.1 50000 typ host",
        "1 1 udp 1 0.0.0.0 50000 typ host",
        "1 1 udp 1 192.168.1.7 0 typ host",
        "1 1 udp 1 192.168.1.7 65536 typ host",
        "1 1 udp x 192.168.1.7 50000 typ host",
        "1 1 udp 1 192.168.1.7 50000 host typ",
        "1 1 udp 1",
    ],
)
def test_candidates_of_no_use_are_left_out(candidate: str) -> None:
    offer = checked_offer(body(f"a=candidate:{candidate}", "a=end-of-candidates"))
    assert offer.encode() == body()


def test_candidates_are_counted_by_section() -> None:
    many = [HOST.replace("50000", str(50_000 + number)) for number in range(CANDIDATES_MAX + 5)]
    assert checked_offer(body(*many)).count("a=candidate:") == 1 + CANDIDATES_MAX


def test_only_candidates_of_the_configured_networks_stay() -> None:
    six = "a=candidate:2 1 UDP 1 fd00::1 50000 typ host"
    kept = checked_offer(body(six), [ip_network("fd00::/8")])
    assert six in kept
    assert HOST not in kept
    assert checked_offer(body(six), [ip_network("192.168.0.0/16")]).encode() == body()


@given(st.binary(max_size=400))
def test_bytes_are_answered_or_refused(offer: bytes) -> None:
    with pytest.raises(OfferError):
        checked_offer(offer)
