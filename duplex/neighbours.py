"""The gateways of one host, to each other: each takes requests at a Unix socket that only this service can reach.

Theory of operation
    A caller is let in by any gateway (`duplex.door`), and may ask for what only another one has: a call to look at, a
    log. It is asked there, in the words of the public protocol, over a socket in the service's own folder; a file
    beside that says by which name the gateway owns sessions in its present life.

Rules
* Whoever is asked checks the caller's key again: being a neighbour is no permission.
* What came from a neighbour is never passed on (`is_passed_on`).
* A gateway of another host is no neighbour. A file may be that of a life that is over: its socket then is not there, or
  is that of another one, which does not know what it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

PASSED_ON_HEADER = "x-duplex-passed-on"
_KEYS = ("authorization", "sec-websocket-protocol")


class _Name(msgspec.Struct, frozen=True):
    replica: str
    owner: str


@dataclass(frozen=True, slots=True)
class Neighbour:
    """`owner`: the name by which it owns sessions. `socket`: where it can be asked."""

    replica: str
    owner: str
    socket: Path


def is_passed_on(headers: Mapping[str, str]) -> bool:
    """Whether a request with these (lower-case) headers was one of a neighbour's."""
    return PASSED_ON_HEADER in headers


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with which a request with these is passed on: its key, and that it was."""
    return {name: headers[name] for name in _KEYS if name in headers} | {PASSED_ON_HEADER: "1"}


class Neighbours:
    """As gateway number `number` of `count` sees them; `run_dir` is the service's own folder."""

    def __init__(self, run_dir: Path, number: int, count: int) -> None:
        self._run_dir = run_dir
        self._number = number
        self._others = [other for other in range(count) if other != number]

    @property
    def own_socket(self) -> Path:
        """Where this one is to listen."""
        return self._socket(self._number)

    @property
    def are_there(self) -> bool:
        """Whether there may be any."""
        return bool(self._others)

    def announce(self, replica: str, owner: str) -> None:
        """Have the others know this one."""
        self.own_socket.unlink(missing_ok=True)
        path = self._name(self._number)
        draft = path.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(_Name(replica, owner)))
        draft.replace(path)

    def all(self) -> tuple[Neighbour, ...]:
        """Those that have ever begun, in the order of their numbers."""
        found: list[Neighbour] = []
        for number in self._others:
            with suppress(OSError, msgspec.DecodeError):
                name = msgspec.json.decode(self._name(number).read_bytes(), type=_Name)
                found.append(Neighbour(name.replica, name.owner, self._socket(number)))
        return tuple(found)

    def owner(self, name: str) -> Neighbour | None:
        """The one that owns sessions by that name; None: it is none of this host, or is gone."""
        return next((one for one in self.all() if one.owner == name), None)

    def _socket(self, number: int) -> Path:
        return self._run_dir / f"near-{number}.sock"

    def _name(self, number: int) -> Path:
        return self._run_dir / f"near-{number}.json"
