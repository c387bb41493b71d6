"""Places for calls: so many as a host carries, whichever of its gateways takes them.

Theory of operation
    A place is a byte of a file that all gateways of a service open, and who has it holds a lock on that byte. The
    kernel gives a byte to one of them, and takes it back from a process that has ended, however it did. So two that ask
    in the same instant never get the same place, a gateway that was killed holds none, and one that stands still holds
    up nobody.

Rules
* Locks are those of an open file (`F_OFD_SETLK`), so each gateway has opened the file itself.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import Protocol

PLACES_NAME = "places"


class Places(Protocol):
    """Those of one gateway, out of what its host has."""

    @property
    def taken(self) -> int:
        """How many this gateway has."""
        ...

    def take(self) -> bool:
        """Take one; False where none is free."""
        ...

    def give_back(self) -> None:
        """One that was taken here is free again."""
        ...


class OwnPlaces:
    """`count` places that nobody else takes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.taken = 0

    def take(self) -> bool:
        if self.taken >= self._count:
            return False
        self.taken += 1
        return True

    def give_back(self) -> None:
        assert self.taken > 0, "a place is given back once"
        self.taken -= 1


class SharedPlaces:
    """`count` places in the service whose sockets are in `run_dir`. Raises OSError where its file cannot be used."""

    def __init__(self, run_dir: Path, count: int) -> None:
        self._count = count
        self._held: set[int] = set()
        self._file = os.open(run_dir / PLACES_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @property
    def taken(self) -> int:
        return len(self._held)

    def take(self) -> bool:
        free = (place for place in range(self._count) if place not in self._held)
        place = next(filter(self._locked, free), None)
        if place is not None:
            self._held.add(place)
        return place is not None

    def give_back(self) -> None:
        self._set(fcntl.F_UNLCK, self._held.pop())

    def close(self) -> None:
        """Give all of them back."""
        self._held.clear()
        os.close(self._file)

    def _locked(self, place: int) -> bool:
        try:
            self._set(fcntl.F_WRLCK, place)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True

    def _set(self, kind: int, place: int) -> None:
        # struct flock: type, whence, start, length, process (0 for a lock of an open file).
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, struct.pack("hhqqi", kind, os.SEEK_SET, place, 1, 0))
