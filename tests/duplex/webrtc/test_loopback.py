"""The one place that knows where the ICE library finds the addresses of this host."""

from __future__ import annotations

import pytest
from aioice import ice

from duplex.webrtc import loopback


def test_the_loopback_address_is_offered_once_and_only_for_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "_host_addresses", lambda use_ipv4, use_ipv6: ["192.168.1.7"])
    monkeypatch.setattr(ice, "get_host_addresses", ice.get_host_addresses)
    loopback.offer_loopback()
    loopback.offer_loopback()
    assert ice.get_host_addresses(use_ipv4=True, use_ipv6=True) == ["192.168.1.7", "127.0.0.1"]
    assert ice.get_host_addresses(use_ipv4=False, use_ipv6=True) == ["192.168.1.7"]
