"""What one gateway asks of another: something that only the one which has a call can do.

Theory of operation
    A request may come to any gateway, of this host or of another one. What belongs to a call is done by the gateway
    that has it: whoever was asked writes to that one, by the store, and waits for its answer. A letter may be lost, its
    reader may stand still or have ended; so each wait has a limit, and whoever asks goes on without an answer.

Rules
* An errand may be done twice and is then as if it had been done once.
* A letter that cannot be read is dropped: it comes from another release.
* At most `UNDER_WAY_MAX` are done at a time; what comes beyond that is not answered.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import msgspec
import structlog

from sessions.store import SessionStore, StoreError, valid_session_id

AWAY_S = 1.0  # a store that is away is tried so often
UNDER_WAY_MAX = 256

_log = structlog.get_logger("duplex.errands")


class What(enum.StrEnum):
    """What is asked for, of the one whose id comes with it."""

    MAKE_WAY = "make_way"  # end the session's call, as the one who shows its token takes it over; when it is written
    END = "end"  # end the session's call, as an operator wants it; when all of it is given back
    DRAIN = "drain"  # nothing but that: when all that was held of the session is given back
    HANG_UP = "hang_up"  # end the call of a browser


class Outcome(enum.StrEnum):
    """What came of it."""

    DONE = "done"
    NOT_DONE = "not_done"  # it is not there, or took too long
    NOBODY = "nobody"  # there is no such gateway any more
    NO_ANSWER = "no_answer"  # whether it was done is not known


class _Errand(msgspec.Struct, frozen=True, tag=True):
    """`proof`: the digest of a token, where one is needed."""

    number: int
    sender: str
    what: What
    of: str
    proof: bytes


class _Answer(msgspec.Struct, frozen=True, tag=True):
    number: int
    is_done: bool


_encode = msgspec.msgpack.encode
_letters = msgspec.msgpack.Decoder(_Errand | _Answer)
Deed = Callable[[str, bytes], Awaitable[bool]]


class Errands:
    """Those of gateway `name`."""

    def __init__(self, store: SessionStore, name: str) -> None:
        self._store = store
        self._name = name
        self._deeds: dict[What, Deed] = {}
        self._number = 0
        self._asked: dict[int, asyncio.Future[bool]] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def offer(self, what: What, deed: Deed) -> None:
        """Do it by `deed` when another gateway asks: it is given the id and the proof, and says whether it is done."""
        self._deeds[what] = deed

    async def ask(self, gateway: str, what: What, of: str, *, s_max: float, proof: bytes = b"") -> Outcome:
        """Have `gateway` do it; waits at most `s_max` for its answer."""
        if not valid_session_id(gateway):
            return Outcome.NOBODY
        self._number += 1
        number = self._number
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(s_max):
                letter = _encode(_Errand(number, self._name, what, of, proof))
                if not await self._store.send(gateway, letter):
                    return Outcome.NOBODY
                return Outcome.DONE if await answer else Outcome.NOT_DONE
        except (TimeoutError, StoreError) as error:
            _log.warning("errand_not_answered", what=what, gateway=gateway, error=type(error).__name__)
            return Outcome.NO_ANSWER
        finally:
            del self._asked[number]

    async def run(self) -> None:
        """Read letters, and do what they ask for, until cancelled."""
        try:
            while True:
                with suppress(StoreError):  # what is said of that is said by those who write
                    async with self._store.letters(self._name) as letters:
                        async for letter in letters:
                            self._read(letter)
                await asyncio.sleep(AWAY_S)
        finally:
            for task in self._under_way:
                task.cancel()

    def _read(self, letter: bytes) -> None:
        try:
            read = _letters.decode(letter)
        except msgspec.DecodeError as error:
            _log.warning("letter_unreadable", error=str(error)[:100])
            return
        if isinstance(read, _Errand):
            self._begin(read)
            return
        answer = self._asked.get(read.number)
        if answer is not None and not answer.done():
            answer.set_result(read.is_done)

    def _begin(self, errand: _Errand) -> None:
        if len(self._under_way) >= UNDER_WAY_MAX:
            _log.error("errand_dropped", what=errand.what)
            return
        task = asyncio.create_task(self._do(errand))
        self._under_way.add(task)
        task.add_done_callback(partial(self._done, errand))

    async def _do(self, errand: _Errand) -> None:
        is_done = await self._deeds[errand.what](errand.of, errand.proof)
        with suppress(StoreError):
            await self._store.send(errand.sender, _encode(_Answer(errand.number, is_done)))

    def _done(self, errand: _Errand, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("errand_failed", what=errand.what, exc_info=error)
