"""What an SDP offer must be before any other code reads it, and what is taken out of it.

Theory of operation
    An offer comes from anybody who may call, and names addresses that we then send packets to. So it is small, has one
    sound and one data section, and of its candidates only plain UDP addresses inside the configured networks stay, up
    to `CANDIDATES_MAX`. Host names (`….local`) go too: resolving them costs a second, and a browser that hides its
    address reaches us by its own checks.

Rules
* Pure: text in, text or `OfferError` out. Nothing is added to an offer.
* `end-of-candidates` goes as well, as what the browser sends next may come from an address that is not listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from duplex.webrtc.rtp import OfferError

OFFER_BYTES_MAX = 16 << 10
LINE_CHARACTERS_MAX = 1_024
CANDIDATES_MAX = 20  # of one section; a laptop with some virtual networks has a dozen

Network = IPv4Network | IPv6Network

_LINE = re.compile(r"[a-z]=[^\x00-\x1f\x7f]*")
_OPUS = re.compile(r"a=rtpmap:\d{1,3} opus/48000/2", re.IGNORECASE)
_NEEDED = ("a=fingerprint:", "a=ice-ufrag:", "a=ice-pwd:", "a=setup:")


def checked_offer(body: bytes, networks: Iterable[Network] = ()) -> str:
    """The offer without what we do not use; raises `OfferError`. No `networks`: candidates of all are taken."""
    if len(body) > OFFER_BYTES_MAX:
        raise OfferError("offer_too_large", f"an offer has at most {OFFER_BYTES_MAX} bytes", status=413)
    lines = _lines_of(body)
    sections = [line.split(" ", 1)[0].removeprefix("m=") for line in lines if line.startswith("m=")]
    if sorted(sections) != ["application", "audio"]:
        named = ", ".join(sorted(sections))[:80] or "nothing"
        message = f"one audio and one data section are needed, not {named}"
        raise OfferError("unsupported_media", message)
    if not any(_OPUS.fullmatch(line) for line in lines):
        raise OfferError("opus_missing", "the audio section does not offer opus/48000/2")
    for needed in _NEEDED:
        if not any(line.startswith(needed) for line in lines):
            raise OfferError("invalid_sdp", f"there is no {needed.removesuffix(':')} line")
    return "\r\n".join(_without_unused(lines, tuple(networks))) + "\r\n"


def _lines_of(body: bytes) -> list[str]:
    try:
        lines = body.decode("utf-8").replace("\r\n", "\n").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise OfferError("invalid_sdp", "the offer is not UTF-8") from error
    if lines[0] != "v=0":
        raise OfferError("invalid_sdp", "an offer begins with v=0")
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_CHARACTERS_MAX or not _LINE.fullmatch(line):
            raise OfferError("invalid_sdp", f"line {number} is not of the form <letter>=<value>, or too long")
    return lines


def _without_unused(lines: list[str], networks: tuple[Network, ...]) -> list[str]:
    kept, candidates = [], 0
    for line in lines:
        if line.startswith("m="):
            candidates = 0
        if line == "a=end-of-candidates":
            continue
        if line.startswith("a=candidate:"):
            if candidates == CANDIDATES_MAX or not _is_usable(line.removeprefix("a=candidate:").split(), networks):
                continue
            candidates += 1
        kept.append(line)
    return kept


def _is_usable(fields: list[str], networks: tuple[Network, ...]) -> bool:
    """foundation component transport priority address port "typ" type … (RFC 8839, section 5.1)."""
    if len(fields) < 8 or fields[1] != "1" or fields[2].lower() != "udp" or fields[6] != "typ":
        return False
    if not (fields[3].isdecimal() and fields[5].isdecimal() and 0 < int(fields[5]) < 1 << 16):
        return False
    address = _address(fields[4])
    if address is None or address.is_multicast or address.is_unspecified:
        return False
    return not networks or any(address in network for network in networks)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
