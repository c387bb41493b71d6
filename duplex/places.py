"""Places for calls: so many as a host carries, whichever of its gateways takes them, and a few for who comes back.

Theory of operation
    A place is a byte of a file that all gateways of a service open, and who has it holds a lock on that byte. The
    kernel gives a byte to one of them, and takes it back from a process that has ended, however it did. So two that ask
    in the same instant never get the same place, a gateway that was killed holds none, and one that stands still holds
    up nobody.

    Whoever comes back to a call that nobody knows yet to have lost its connection would find all places taken, one of
    them by that very call. For them there are a few places to spare, which they have until the former call has left.

Rules
* Locks are those of an open file (`F_OFD_SETLK`), so each gateway has opened the file itself.
* Newcomers get no spare place; and no other one while so many calls, those in spare places counted, are there.
* A spare place is given back first, and is changed for another as soon as there is one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import Protocol

PLACES_NAME = "places"
# The former call leaves within a second of the return, so few return at once; each is a call more than the host is
# said to carry.
SPARE_PLACES = 4


class Places(Protocol):
    """Those of one gateway, out of what its host has."""

    @property
    def taken(self) -> int:
        """How many this gateway has."""
        ...

    @property
    def spare(self) -> int:
        """How many of these are to spare."""
        ...

    def take(self, *, returning: bool = False) -> bool:
        """Take one, for a newcomer or for who is `returning`; False where none is free."""
        ...

    def give_back(self) -> None:
        """One that was taken here is free again."""
        ...

    def change(self) -> None:
        """Change spare places for others that are free by now."""
        ...


class OwnPlaces:
    """`count` places, and those to spare, that nobody else takes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.taken = 0

    @property
    def spare(self) -> int:
        return max(0, self.taken - self._count)

    def take(self, *, returning: bool = False) -> bool:
        if self.taken >= self._count + (SPARE_PLACES if returning else 0):
            return False
        self.taken += 1
        return True

    def give_back(self) -> None:
        assert self.taken > 0, "a place is given back once"
        self.taken -= 1

    def change(self) -> None:
        """Whoever leaves frees a spare place, where one is taken."""


class SharedPlaces:
    """`count` places, and those to spare, in the service whose sockets are in `run_dir`. Raises OSError where its file
    cannot be used."""

    def __init__(self, run_dir: Path, count: int) -> None:
        self._count = count
        self._held: set[int] = set()  # spare ones from `count` on
        self._file = os.open(run_dir / PLACES_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @property
    def taken(self) -> int:
        return len(self._held)

    @property
    def spare(self) -> int:
        return sum(place >= self._count for place in self._held)

    def take(self, *, returning: bool = False) -> bool:
        if returning:
            return self._take_first(self._count + SPARE_PLACES)
        return not self._is_crowded and self._take_first(self._count)

    def give_back(self) -> None:
        self._free(max(self._held))

    def change(self) -> None:
        while self.spare and self._take_first(self._count):
            self.give_back()

    def close(self) -> None:
        """Give all of them back."""
        self._held.clear()
        os.close(self._file)

    @property
    def _is_crowded(self) -> bool:
        """Whoever is in a spare place has the next one that is free."""
        if not self.spare and not self._is_elsewhere(self._count, SPARE_PLACES):
            return False
        others = (place for place in range(self._count + SPARE_PLACES) if place not in self._held)
        return self.taken + sum(self._is_elsewhere(place) for place in others) >= self._count

    def _take_first(self, count: int) -> bool:
        """Of the first `count`, the first that is free."""
        free = (place for place in range(count) if place not in self._held)
        place = next(filter(self._locked, free), None)
        if place is not None:
            self._held.add(place)
        return place is not None

    def _free(self, place: int) -> None:
        self._held.remove(place)
        self._ask(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, place)

    def _is_elsewhere(self, first: int, places: int = 1) -> bool:
        """Another gateway has one of so many."""
        return self._ask(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, first, places) != fcntl.F_UNLCK

    def _locked(self, place: int) -> bool:
        try:
            self._ask(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, place)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True

    def _ask(self, what: int, kind: int, first: int, places: int = 1) -> int:
        """The kind of lock that is in the answer."""
        # struct flock: type, whence, start, length, process (0 for a lock of an open file).
        answer = fcntl.fcntl(self._file, what, struct.pack("hhqqi", kind, os.SEEK_SET, first, places, 0))
        answered: int = struct.unpack_from("h", answer)[0]
        return answered
