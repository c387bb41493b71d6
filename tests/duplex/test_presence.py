"""Who has hung up is known to have, whatever of theirs is yet to be read."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from duplex.presence import UNSEEN_NS_MAX, is_connected, was_seen
from media.heard_estimate import Probe

S_MAX = 10
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what is closed is reset


def play(scenario: Callable[[asyncio.Transport, socket.socket], Awaitable[None]]) -> None:
    """Between a transport from which nobody reads, and the other end of its connection."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, accepted)
        transport.pause_reading()
        with client:
            async with asyncio.timeout(S_MAX):
                await scenario(transport, client)
        transport.abort()
        await asyncio.sleep(0)
        assert not is_connected(transport)

    asyncio.run(run())


async def until_gone(transport: asyncio.Transport) -> None:
    while is_connected(transport):  # noqa: ASYNC110 - the kernel tells nobody
        await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["closed", "half closed", "reset"])
def test_who_has_hung_up_behind_what_they_sent_is_not_there(how: str) -> None:
    async def scenario(transport: asyncio.Transport, client: socket.socket) -> None:
        client.sendall(b"go on with my session" * 1_000)
        assert is_connected(transport)
        if how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        if how == "half closed":
            client.shutdown(socket.SHUT_WR)
        else:
            client.close()
        await until_gone(transport)

    play(scenario)


def test_a_connection_that_we_close_is_over() -> None:
    async def scenario(transport: asyncio.Transport, _client: socket.socket) -> None:
        transport.close()
        assert not is_connected(transport)

    play(scenario)


@pytest.mark.parametrize(
    ("alive_ns", "expected"), [(None, True), (1_000, False), (1_001, True)], ids=["never asked", "long ago", "just now"]
)
def test_who_answered_a_ping_a_moment_ago_was_there(alive_ns: int | None, expected: bool) -> None:
    assert was_seen(Probe(alive_ns=alive_ns), 1_000 + UNSEEN_NS_MAX) is expected
