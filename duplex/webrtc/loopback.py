"""Candidates on 127.0.0.1, which the ICE library leaves out, for callers on this very machine.

A browser on a machine without a network, and every test, has no other way to us. The library asks one function of its
module for the addresses of this host; this is the only place that knows it.
"""

from __future__ import annotations

from aioice import ice

LOOPBACK = "127.0.0.1"

_host_addresses = ice.get_host_addresses


def _with_loopback(use_ipv4: bool, use_ipv6: bool) -> list[str]:
    addresses = _host_addresses(use_ipv4, use_ipv6)
    return [*addresses, LOOPBACK] if use_ipv4 and LOOPBACK not in addresses else addresses


def offer_loopback() -> None:
    """Offer a candidate on the loopback address too, in every connection of this process from now on. Idempotent."""
    ice.get_host_addresses = _with_loopback
