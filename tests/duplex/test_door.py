"""The door that several gateways share: the one with the fewest calls goes first, and nobody is left standing."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest

from duplex import door
from duplex.door import ABSENT, Door, LoadBoard, bound_socket, port_of

S_MAX = 5


@pytest.fixture
def board(tmp_path: Path) -> Iterator[LoadBoard]:
    opened = LoadBoard(tmp_path, 2)
    for number in range(2):
        opened.write(number, ABSENT)
    yield opened
    opened.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bound_socket("127.0.0.1", 0) as bound:
        yield bound


class House:
    """A gateway's side of a door: whom it let in."""

    def __init__(self, listener: socket.socket, board: LoadBoard, number: int = 0, calls: int = 0) -> None:
        self.calls = calls
        self.inside: list[socket.socket] = []
        self.came = asyncio.Event()
        self.door = Door(listener, board, number, lambda: self.calls)

    async def serve(self, connection: socket.socket) -> None:
        self.inside.append(connection)
        self.came.set()

    def open(self) -> None:
        self.door.open(self.serve)

    def clear(self) -> None:
        self.door.close()
        for connection in self.inside:
            connection.close()


def ring(listener: socket.socket) -> socket.socket:
    return socket.create_connection(listener.getsockname())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_any_free_port(host: str) -> None:
    with bound_socket(host, 0) as bound:
        assert port_of(bound) > 0
        assert not bound.getblocking()


def test_a_taken_port_is_named_with_its_setting() -> None:
    with bound_socket("127.0.0.1", 0) as bound:
        port = port_of(bound)
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1 port {port} .*DUPLEX_PORT"):
            bound_socket("127.0.0.1", port)
        with pytest.raises(OSError, match="set MINE"):
            bound_socket("127.0.0.1", port, "MINE")


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1"):
        bound_socket("192.0.2.1", 0)


def test_a_board_is_one_for_all_who_open_it(board: LoadBoard, tmp_path: Path) -> None:
    other = LoadBoard(tmp_path, 2)
    board.write(1, 4)
    assert (other.least_of_others(0), other.least_of_others(1)) == (4, ABSENT)
    other.close()


def test_a_lone_gateway_has_nobody_to_wait_for(tmp_path: Path) -> None:
    alone = LoadBoard(tmp_path, 1)
    assert alone.least_of_others(0) == ABSENT
    alone.close()


def test_who_comes_is_let_in_and_counted_until_it_may_have_become_a_call(
    listener: socket.socket, board: LoadBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "ARRIVAL_S", 0.0)

    async def scenario() -> None:
        house = House(listener, board, calls=2)
        assert house.door.is_alone
        house.open()
        assert board.least_of_others(1) == 2
        with ring(listener):
            await house.came.wait()
            await until(lambda: board.least_of_others(1) == 2)
        house.calls = 5
        house.door.note_calls()
        assert board.least_of_others(1) == 5
        assert not house.inside[0].getblocking()
        house.clear()

    asyncio.run(limited(scenario()))


async def limited(work: Coroutine[None, None, None]) -> None:
    async with asyncio.timeout(S_MAX):
        await work


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0)


def test_a_visitor_counts_at_once(listener: socket.socket, board: LoadBoard) -> None:
    async def scenario() -> None:
        house = House(listener, board)
        house.open()
        with ring(listener):
            await house.came.wait()
            assert board.least_of_others(1) == 1
        house.clear()

    asyncio.run(limited(scenario()))


def test_the_one_with_fewer_calls_goes_first(
    listener: socket.socket, board: LoadBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "GIVE_WAY_S", S_MAX)

    async def scenario() -> None:
        busy, idle = House(listener, board, 0, calls=1), House(listener, board, 1)
        idle.calls = 0
        busy.open()
        idle.open()
        with ring(listener):
            await idle.came.wait()
        assert busy.inside == []
        busy.clear()
        idle.clear()

    asyncio.run(limited(scenario()))


def test_who_is_not_let_in_by_one_that_stands_still_is_by_another(listener: socket.socket, board: LoadBoard) -> None:
    async def scenario() -> None:
        board.write(1, 0)  # it has said so, and says no more
        house = House(listener, board, calls=3)
        house.open()
        for count in (1, 2):
            house.came.clear()
            with ring(listener):
                await house.came.wait()
            assert len(house.inside) == count
        house.clear()

    asyncio.run(limited(scenario()))


def test_a_closed_door_leaves_them_to_others_and_stays_closed(listener: socket.socket, board: LoadBoard) -> None:
    async def scenario() -> None:
        leaving, other = House(listener, board, 0), House(listener, board, 1, calls=9)
        leaving.open()
        leaving.door.close()
        leaving.door.close()
        leaving.door.note_calls()
        leaving.open()
        assert board.least_of_others(1) == ABSENT
        other.open()
        with ring(listener):
            await other.came.wait()
        assert leaving.inside == []
        other.clear()

    asyncio.run(limited(scenario()))


def test_a_door_that_gives_way_can_be_closed(listener: socket.socket, board: LoadBoard) -> None:
    async def scenario() -> None:
        board.write(1, 0)
        house = House(listener, board, calls=3)
        house.open()
        with ring(listener):
            await until(lambda: house.door._pause is not None)
            house.door.close()
            board.write(1, ABSENT)
            other = House(listener, board, 1)
            other.open()
            await other.came.wait()
        assert house.inside == []
        other.clear()

    asyncio.run(limited(scenario()))


class Faulty(socket.socket):
    """Its next visitors cannot be taken."""

    faults: list[OSError]

    def accept(self) -> tuple[socket.socket, object]:
        if self.faults:
            raise self.faults.pop()
        return super().accept()


def test_a_visitor_that_cannot_be_taken_now_is_taken_later(
    listener: socket.socket, board: LoadBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "FULL_S", 0.0)

    async def scenario() -> None:
        faulty = Faulty(fileno=listener.detach())
        faulty.faults = [ConnectionAbortedError(), OSError(errno.EMFILE, "Too many open files")]
        with faulty:
            house = House(faulty, board)
            house.open()
            with ring(faulty):
                await house.came.wait()
            assert faulty.faults == []
            house.clear()

    asyncio.run(limited(scenario()))


@pytest.mark.parametrize(("error", "said"), [(ConnectionResetError(), False), (ValueError(), True)])
def test_only_faults_of_ours_are_logged(
    listener: socket.socket, board: LoadBoard, capsys: pytest.CaptureFixture[str], error: Exception, *, said: bool
) -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def serve(connection: socket.socket) -> None:
            connection.close()
            gone.set()
            raise error

        one = Door(listener, board, 0, lambda: 0)
        one.open(serve)
        with ring(listener):
            await gone.wait()
            await until(lambda: not one._entering)
        one.close()

    asyncio.run(limited(scenario()))
    assert ("connection_failed" in capsys.readouterr().out) is said
