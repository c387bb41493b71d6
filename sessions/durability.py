"""What a store promises of what it has acknowledged, in honest words.

    memory              lost when the store's process dies
    process-crash-safe  kept when any process dies; the last seconds are lost with the machine (`appendfsync everysec`)
    power-loss-safe     on the disk before it is acknowledged (`appendfsync always`), on that one machine

A Redis server replies after it has written to its append-only file, and flushes that as `appendfsync` says (aof.c). No
more than this is promised for replicas: what some of them have acknowledged can be lost in a fail-over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Durability = Literal["process-crash-safe", "power-loss-safe"]
Promise = Literal["memory", "process-crash-safe", "power-loss-safe"]

APPENDFSYNC: dict[Durability, str] = {"process-crash-safe": "everysec", "power-loss-safe": "always"}
_RANKS: tuple[Promise, ...] = ("memory", "process-crash-safe", "power-loss-safe")


@dataclass(frozen=True, slots=True)
class Persistence:
    """What a server says of its append-only file, in its own words; None: it does not tell."""

    appendonly: bool | None = None
    appendfsync: str | None = None


def promise_of(server: Persistence) -> Promise | None:
    """The most that can be relied on; None where nothing is known."""
    if server.appendonly is None:
        return None
    if not server.appendonly:
        return "memory"
    return "power-loss-safe" if server.appendfsync == "always" else "process-crash-safe"


def shortfall(wanted: Durability, server: Persistence) -> str | None:
    """What `server` lacks of what is `wanted`; None where it gives that."""
    given = promise_of(server)
    if given is None or (given == "process-crash-safe" and server.appendfsync is None and wanted == "power-loss-safe"):
        return f"it does not tell its AOF policy: whether it is {wanted} is not known"
    if _RANKS.index(given) < _RANKS.index(wanted):
        return f"it is {given}, and {wanted} is asked for"
    return None


def mend(wanted: Durability) -> str:
    """What to do where there is a shortfall."""
    other = ", or durability = process-crash-safe" if wanted == "power-loss-safe" else ""
    return f"set appendonly yes and appendfsync {APPENDFSYNC[wanted]} at the server{other}"
