"""The public door: one listening socket that all gateways of a service have, and who of them lets the next one in.

Theory of operation
    The supervisor binds the address and hands the socket down, so a connection waits in one queue of the kernel, from
    which any gateway takes it: one that stands still, restarts or leaves takes none, and loses none. Left to
    themselves, gateways would take them by who wakes first. So each writes how many calls it has on a board that all of
    them read, and whoever has more than another lets that one go first for a moment; what is still there then is let
    in anyway, as the other may be stopped.

Rules
* Whoever was let in counts as a call for `ARRIVAL_S`, by when it is known whether one comes of it.
* The board only advises: what a gateway that was killed has left there costs a moment, until its supervisor strikes it.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import structlog

BACKLOG = 128
LOADS_NAME = "loads"
LOAD_BYTES = 4
ABSENT = (1 << 32) - 1  # of a gateway that takes nobody
# An idle gateway's loop takes a connection within a millisecond, a busy one's within its longest turn.
GIVE_WAY_S = 0.01
ARRIVAL_S = 0.25
FULL_S = 1.0  # without a descriptor for another connection, it is looked again so much later, as asyncio's servers do

_log = structlog.get_logger("duplex.door")


def bound_socket(host: str, port: int, setting: str = "DUPLEX_PORT") -> socket.socket:
    """A listening socket that does not block; raises OSError, which names the address and the `setting` that mends it,
    where that is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named. Without it, a small message waits up to 40 ms for the
    # acknowledgement of the one before.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host} port {port} ({error.strerror}): set {setting}") from error
    return listener


def port_of(listener: socket.socket) -> int:
    """The port that it listens on."""
    port: int = listener.getsockname()[1]
    return port


class LoadBoard:
    """How many calls each of `gateways` has, for all processes of the service whose sockets are in `run_dir`.

    Raises OSError where its file cannot be used.
    """

    def __init__(self, run_dir: Path, gateways: int) -> None:
        file = os.open(run_dir / LOADS_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, gateways * LOAD_BYTES)
            self._memory = mmap.mmap(file, gateways * LOAD_BYTES)
        finally:
            os.close(file)
        self._loads = memoryview(self._memory).cast("I")

    def write(self, number: int, load: int) -> None:
        """Gateway `number`, from 0 on, has so many; `ABSENT`: it takes nobody."""
        self._loads[number] = load

    def least_of_others(self, number: int) -> int:
        """What the one with the fewest has, of all but gateway `number`; `ABSENT` where nobody else is there."""
        return min((load for other, load in enumerate(self._loads) if other != number), default=ABSENT)

    def close(self) -> None:
        self._loads.release()
        self._memory.close()


class Door:
    """`calls` gives how many this gateway has."""

    def __init__(self, listener: socket.socket, board: LoadBoard, number: int, calls: Callable[[], int]) -> None:
        self._listener = listener
        self._board = board
        self._number = number
        self._calls = calls
        self._arriving = 0
        self._pause: asyncio.TimerHandle | None = None
        self._is_open = False
        self._serve: Callable[[socket.socket], Coroutine[Any, Any, object]] | None = None
        self._entering: set[asyncio.Task[object]] = set()

    # ---- life ------------------------------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """No other gateway lets anybody in."""
        return self._board.least_of_others(self._number) == ABSENT

    def open(self, serve: Callable[[socket.socket], Coroutine[Any, Any, object]]) -> None:
        """Let in whoever comes; `serve` gets their sockets. Idempotent, and void once it was closed."""
        if self._serve is None:
            self._serve, self._is_open = serve, True
            self.note_calls()
            self._look()

    def close(self) -> None:
        """Let nobody in any more; who is in stays. Idempotent."""
        if self._is_open:
            self._is_open = False
            self._look_away()
            self._board.write(self._number, ABSENT)

    def note_calls(self) -> None:
        """The number of calls has changed."""
        if self._is_open:
            self._board.write(self._number, self._load)

    @property
    def _load(self) -> int:
        return self._calls() + self._arriving

    # ---- whoever comes ---------------------------------------------------------------------------

    def _look(self) -> None:
        self._pause = None
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._somebody_is_there)

    def _look_away(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._listener.fileno())

    def _look_later(self, s: float, then: Callable[[], None]) -> None:
        self._look_away()
        self._pause = asyncio.get_running_loop().call_later(s, then)

    def _somebody_is_there(self) -> None:
        if self._load > self._board.least_of_others(self._number):
            self._look_later(GIVE_WAY_S, self._let_in_and_look)
        else:
            self._let_in()

    def _let_in_and_look(self) -> None:
        self._look()
        self._let_in()

    def _let_in(self) -> None:
        """Take the next one out of the queue, where no other gateway was faster."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.error("nobody_let_in", error=error.strerror)
            self._look_later(FULL_S, self._look)
            return
        connection.setblocking(False)
        self._arrived(connection)

    def _arrived(self, connection: socket.socket) -> None:
        assert self._serve is not None, "the door is open"
        self._arriving += 1
        self.note_calls()
        asyncio.get_running_loop().call_later(ARRIVAL_S, self._has_arrived)
        entering = asyncio.ensure_future(self._serve(connection))
        self._entering.add(entering)
        entering.add_done_callback(self._entered)

    def _has_arrived(self) -> None:
        self._arriving -= 1
        self.note_calls()

    def _entered(self, entering: asyncio.Task[object]) -> None:
        self._entering.discard(entering)
        error = None if entering.cancelled() else entering.exception()
        if error is not None and not isinstance(error, OSError):  # it is gone, or spoke no TLS: the client's matter
            _log.error("connection_failed", exc_info=error)
