"""What the pool of a stage lives in, a process or a simulation: time, a loop, and links to its replicas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from duplex.stage_client import ClientCallbacks, StageClient
from stages.messages import Feed, Frame

_log = structlog.get_logger("duplex.stage_pool")


class Replica(Protocol):
    """The links to one replica; `StageClient` but in simulations."""

    @property
    def is_up(self) -> bool: ...
    @property
    def onward(self) -> frozenset[str]: ...
    @property
    def inward(self) -> frozenset[str]: ...
    def order(self, frame: Frame, /) -> None: ...
    def feed(self, feed: Feed, /) -> None: ...


class Surroundings(Protocol):
    """What a pool asks of its world."""

    def link_to(self, replica: str, address: str, gateway: str, callbacks: ClientCallbacks, /) -> Replica: ...

    def now_ns(self) -> int:
        """Monotonic time."""
        ...

    def later(self, delay_ns: int, call: Callable[[], None], /) -> None:
        """Let `call` happen in `delay_ns`; at 0, once what happens now has happened."""
        ...

    def note(self, what: str, /, **about: str) -> None:
        """For the log."""
        ...


class RunningLoop:
    """The surroundings of a process: its clock, its event loop, its sockets."""

    def link_to(self, replica: str, address: str, gateway: str, callbacks: ClientCallbacks, /) -> Replica:
        return StageClient(replica, address, gateway, callbacks)

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def later(self, delay_ns: int, call: Callable[[], None], /) -> None:
        loop = asyncio.get_running_loop()
        if delay_ns:
            loop.call_later(delay_ns / 1e9, call)
        else:
            loop.call_soon(call)

    def note(self, what: str, /, **about: str) -> None:
        _log.info(what, **about)
