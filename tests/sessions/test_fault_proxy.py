"""The proxy passes on what it reads, whatever that is, and does what it was told to and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.sessions.fault_proxy import (
    BreaksAfter,
    BreaksBefore,
    FaultProxy,
    Late,
    Says,
    Silence,
    closed,
    command_of,
    fault_proxy,
    read_value,
)

S_MAX = 5
SET = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n"
GET = b"*2\r\n$3\r\nget\r\n$1\r\na\r\n"


class Server:
    """Says how many requests it has read."""

    def __init__(self) -> None:
        self.read = 0
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()  # a client has gone

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await read_value(reader)
                self.read += 1
                self.asked.set()
                writer.write(b":%d\r\n" % self.read)
        except asyncio.IncompleteReadError:
            await closed(writer)
            self.gone.set()


Scenario = Callable[[FaultProxy, Server, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def play(folder: Path, scenario: Scenario) -> None:
    async def run() -> None:
        server = Server()
        async with (
            asyncio.timeout(S_MAX),
            await asyncio.start_unix_server(server.serve, folder / "server.sock"),
            fault_proxy(folder / "server.sock", folder / "proxy.sock") as proxy,
        ):
            reader, writer = await asyncio.open_unix_connection(folder / "proxy.sock")
            await scenario(proxy, server, reader, writer)
            await closed(writer)
            await server.gone.wait()

    asyncio.run(run())


@pytest.mark.parametrize(
    "value",
    [
        b"+OK\r\n",
        b":-3\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$5\r\na\r\nb\r\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
        b"%1\r\n+key\r\n~2\r\n#t\r\n_\r\n",
        b"!5\r\nERR x\r\n",
        b",1.5\r\n",
    ],
)
def test_a_value_is_read_whole_and_no_further(value: bytes) -> None:
    async def scenario() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(value + b"rest")
        reader.feed_eof()
        assert await read_value(reader) == value
        assert await reader.read() == b"rest"

    asyncio.run(scenario())


def test_commands_are_known_by_their_names() -> None:
    assert (command_of(SET), command_of(GET)) == (b"SET", b"GET")


def test_requests_and_replies_are_passed_on(tmp_path: Path) -> None:
    async def scenario(proxy: FaultProxy, server: Server, reader: asyncio.StreamReader, writer: object) -> None:
        assert isinstance(writer, asyncio.StreamWriter)
        writer.write(SET + GET)
        assert [await read_value(reader), await read_value(reader)] == [b":1\r\n", b":2\r\n"]
        assert proxy.struck == 0

    play(tmp_path, scenario)


def test_a_said_error_reaches_no_server_and_befalls_writes_alone(tmp_path: Path) -> None:
    async def scenario(
        proxy: FaultProxy, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        proxy.befall(Says("LOADING busy"), times=1)
        writer.write(GET + SET + SET)
        replies = [await read_value(reader) for _ in range(3)]
        assert replies == [b":1\r\n", b"-LOADING busy\r\n", b":2\r\n"]
        assert (proxy.struck, server.read) == (1, 2)

    play(tmp_path, scenario)


@pytest.mark.parametrize(("fault", "read"), [(BreaksBefore(), 0), (BreaksAfter(), 1)])
def test_a_connection_breaks_before_or_after_the_write(
    tmp_path: Path, fault: BreaksBefore | BreaksAfter, read: int
) -> None:
    async def scenario(
        proxy: FaultProxy, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        proxy.befall(fault)
        writer.write(SET)
        assert await reader.read() == b""
        assert server.read == read

    play(tmp_path, scenario)


def test_silence_loses_a_request_and_keeps_the_connection(tmp_path: Path) -> None:
    async def scenario(
        proxy: FaultProxy, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        proxy.befall(Silence())
        writer.write(SET + GET)
        assert await read_value(reader) == b":1\r\n"
        proxy.heal()
        writer.write(SET)
        assert await read_value(reader) == b":2\r\n"

    play(tmp_path, scenario)


def test_a_late_reply_comes_when_all_is_well_again(tmp_path: Path) -> None:
    async def scenario(
        proxy: FaultProxy, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        proxy.befall(Late())
        writer.write(SET)
        reply = asyncio.create_task(read_value(reader))
        await server.asked.wait()
        assert not reply.done()
        proxy.heal()
        assert await reply == b":1\r\n"

    play(tmp_path, scenario)


def test_it_goes_away_comes_back_and_leads_elsewhere(tmp_path: Path) -> None:
    async def scenario(
        proxy: FaultProxy, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(SET)
        await read_value(reader)
        await proxy.go_away()
        assert await reader.read() == b""
        with pytest.raises(OSError, match="No such file"):
            await asyncio.open_unix_connection(tmp_path / "proxy.sock")
        other = Server()
        async with await asyncio.start_unix_server(other.serve, tmp_path / "other.sock"):
            proxy.lead_to(tmp_path / "other.sock")
            await proxy.come()
            again, onward = await asyncio.open_unix_connection(tmp_path / "proxy.sock")
            onward.write(SET)
            await read_value(again)
            await closed(onward)
            await other.gone.wait()
        assert (server.read, other.read) == (1, 1)

    play(tmp_path, scenario)
