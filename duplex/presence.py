"""Whether the other end of a connection is still there.

Theory of operation
    What a client has sent waits in our socket, also while this process stands still, and is read long after the client
    has closed or reset the connection: a reader finds that behind all the rest. The kernel knows at once.
"""

from __future__ import annotations

import asyncio
import select
import sys


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
