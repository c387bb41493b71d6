"""The sending side of all links of one process: carries out what `stages.outgoing` decides.

Theory of operation
    Each link enrols with a function that writes to its socket. Links of one process share the arena: a block that one
    reader gives back may let another link's stream go on. A gateway's links lend nothing and need no common exchange.

    The kernel takes what is written to a local socket for the writer's last act before it sleeps, and may queue the
    reader up behind the writer, on its processor. Where a payload went by way of a block, the reader has it still to
    copy, so the writer gives way to it. Small frames are not worth that: with the machine full, whoever gives way may
    have to wait for others too.

Rules
* The event log of the arena is told the moment of what comes over a link; what is sent belongs to an event of the
  worker, who has told it.
* A lease's deadline is a timer, set only while something is leased; an orphaned block is logged and stays lent.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from stages.arena import Arena
from stages.contracts import DataRef, Tag
from stages.messages import ArenaOffer, Frame, LinkRole
from stages.outgoing import GoOn, Outgoing, OutgoingStatistics, Pause, Place, SendEffect, Write

_log = structlog.get_logger("stages.exchange")


class OnPause(Protocol):
    """Stream `key` should send nothing for now, or may go on."""

    def __call__(self, key: str, *, paused: bool) -> None: ...


def _ignore(key: str, *, paused: bool) -> None:
    """For a process whose streams are held back by their credit alone."""


@dataclass(frozen=True, slots=True)
class _Writer:
    write: Callable[[bytes], None]
    write_soon: Callable[[bytes], None]


class Exchange:
    """`arena` is let go of by `close`."""

    def __init__(self, arena: Arena | None = None, on_pause: OnPause = _ignore) -> None:
        self._arena = arena
        self._on_pause = on_pause
        self._outgoing = Outgoing(arena.table if arena else None)
        self._numbers = itertools.count(1)
        self._writers: dict[int, _Writer] = {}
        self._expiry: asyncio.TimerHandle | None = None

    # ---- links -----------------------------------------------------------------------------------

    @property
    def offer(self) -> ArenaOffer | None:
        """What readers are told of the arena."""
        return self._arena.offer if self._arena else None

    def enrol(self, write: Callable[[bytes], None], write_soon: Callable[[bytes], None] | None = None) -> int:
        """A number for a new link; `write` sends one encoded frame on it, `write_soon` one that may wait a moment."""
        number = next(self._numbers)
        self._writers[number] = _Writer(write, write_soon or write)
        return number

    def link_up(self, number: int, role: LinkRole, *, lends: bool) -> None:
        self._outgoing.link_up(number, role, lends=lends)

    def link_lost(self, number: int) -> None:
        if self._writers.pop(number, None) is not None:
            self._note_moment()
            self._carry_out(self._outgoing.link_lost(number))

    def taken(self, number: int, frame_bytes: int) -> None:
        """See `Outgoing.taken`."""
        self._note_moment()
        self._carry_out(self._outgoing.taken(number, frame_bytes))

    def released(self, number: int, ref: DataRef) -> None:
        self._note_moment()
        self._carry_out(self._outgoing.released(number, ref))

    # ---- streams ---------------------------------------------------------------------------------

    def send(self, number: int, frame: Frame) -> None:
        """See `Outgoing.send`."""
        self._carry_out(self._outgoing.send(number, frame))

    def fail(self, tag: Tag, code: str, message: str) -> None:
        """See `Outgoing.fail`."""
        self._outgoing.fail(tag, code, message)

    def is_closing(self, key: str) -> bool:
        """See `Outgoing.is_closing`."""
        return self._outgoing.is_closing(key)

    def held_of(self, session: str, key: str = "") -> dict[str, int]:
        """See `Outgoing.held_of`."""
        return self._outgoing.held_of(session, key)

    def statistics(self) -> OutgoingStatistics:
        """What is on its way over the links, and what waits."""
        return self._outgoing.statistics()

    # ---- effects ---------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[SendEffect]) -> None:
        for effect in effects:
            match effect:
                case Write(number, encoded, may_wait):
                    writer = self._writers.get(number)
                    if writer is not None:
                        (writer.write_soon if may_wait else writer.write)(encoded)
                case Place():
                    self._place(effect)
                case Pause(key):
                    self._on_pause(key, paused=True)
                case GoOn(key):
                    self._on_pause(key, paused=False)

    def _place(self, place: Place) -> None:
        assert self._arena is not None, "only an arena has blocks"
        self._arena.write(place.ref, place.payload)
        self._carry_out(self._outgoing.placed(place, self._note_moment()))
        self._watch_leases()
        os.sched_yield()  # to the reader

    def _note_moment(self) -> int:
        """Tell the event log that something has come, now; gives that moment."""
        now_ns = time.monotonic_ns()
        if self._arena is not None:
            self._arena.table.events.at(now_ns)
        return now_ns

    # ---- leases ----------------------------------------------------------------------------------

    def _watch_leases(self) -> None:
        due_ns = self._arena.table.next_expiry_ns() if self._arena else None
        if self._expiry is None and due_ns is not None:
            delay_s = max(0, due_ns - time.monotonic_ns()) / 1e9
            self._expiry = asyncio.get_running_loop().call_later(delay_s, self._leases_due)

    def _leases_due(self) -> None:
        self._expiry = None
        self.expire(self._note_moment())
        self._watch_leases()

    def expire(self, now_ns: int) -> None:
        """Report the blocks whose readers have kept them for too long."""
        for ref in self._arena.table.expire(now_ns) if self._arena else ():
            _log.error("block_orphaned", block=ref.block, length=ref.length)

    def close(self) -> None:
        """Give up all links, then the arena."""
        for number in list(self._writers):
            self.link_lost(number)
        if self._expiry is not None:
            self._expiry.cancel()
        if self._arena is not None:
            self._arena.close()
