"""Whether the other end of a connection is still there.

Theory of operation
    What a client has sent waits in our socket, also while this process stands still, and is read long after the client
    has closed or reset the connection: a reader finds that behind all the rest. The kernel knows at once.

    Of a client that has gone without a word nobody knows. One that answered a ping a moment ago was there; where that
    is longer ago, as after this process stood still, the next answer says so, or that none comes.
"""

from __future__ import annotations

import asyncio
import select
import sys
import time
from collections.abc import Callable

from media.heard_estimate import Probe

UNSEEN_NS_MAX = 3_000_000_000  # three pings
LOOK_S = 0.05
LOOKS_MAX = 60  # as long


def is_connected(transport: asyncio.Transport) -> bool:
    """False once the other end has closed the connection, or reset it. One that is gone without a word is there as far
    as anybody knows."""
    connection = transport.get_extra_info("socket")
    if transport.is_closing() or connection is None or connection.fileno() < 0:
        return False
    if sys.platform != "linux":
        return True
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLRDHUP)  # errors and resets are told without being asked for
    return not poller.poll(0)


def was_seen(probe: Probe, now_ns: int) -> bool:
    """The client was there a moment ago; so is one that has never been asked."""
    return probe.alive_ns is None or now_ns - probe.alive_ns < UNSEEN_NS_MAX


async def until_seen(probe: Callable[[], Probe]) -> bool:
    """Wait until the client has been there a moment ago, by what its pings show; False where it is not for a while."""
    for _ in range(LOOKS_MAX):
        if was_seen(probe(), time.monotonic_ns()):
            return True
        await asyncio.sleep(LOOK_S)
    return False
