"""The shell of a simulated call: a clock, a socket, two loops. All decisions lie in `timeline`.

Theory of operation
    One task sends a microphone frame at each absolute deadline, whatever the server does; another takes events as
    they arrive and stamps them. A send that blocks, because the server does not read, delays frames but not their
    deadlines: the frames that fell behind follow at once, and the lateness is recorded.

Rules
* The clock is given, so tests run a call in virtual time. Only `MonotonicClock` reads a real one.
* A connection that breaks is taken up again for as long as the plan allows: the microphone goes on meanwhile, and what
  the service has not understood is sent again, before what is said then.
* Cancelling `run` (Ctrl-C) closes the connection; `result` then has what was measured until then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from loadtest import realtime_wire as wire
from loadtest.errors import CallError, ConnectionLost, ServerViolation
from loadtest.playout_model import NS_PER_S
from loadtest.realtime_client import CLOSE_ABNORMAL, RealtimeConnection, Target, connect, open_session
from loadtest.recording import Recording
from loadtest.timeline import CLOSE_REPLACED, CallPlan, CallTimeline
from loadtest.turns import NS_PER_MS, CallOutcome, CallResult

RETURN_PAUSE_MS = 100  # a gateway that is started again takes seconds, another one none


class Clock(Protocol):
    """The time of a call, in integer nanoseconds that never go back."""

    def now_ns(self) -> int: ...

    async def sleep_until(self, deadline_ns: int) -> None:
        """Return at `deadline_ns`, or at once where that has passed; other tasks run in between."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    async def sleep_until(self, deadline_ns: int) -> None:
        await asyncio.sleep(max(0, deadline_ns - time.monotonic_ns()) / NS_PER_S)


def ignore_progress(_line: str) -> None:
    """For callers whom nobody watches."""


class Call:
    """One call to `target` by `plan`. `progress` gets a line for a person whenever something happens."""

    def __init__(
        self, target: Target, plan: CallPlan, clock: Clock, progress: Callable[[str], None] = ignore_progress
    ) -> None:
        self._target = target
        self._plan = plan
        self._clock = clock
        self._progress = progress
        self._timeline = CallTimeline(plan)
        self._settings = wire.settings(plan.instructions, plan.silence_ms, plan.format_name)
        self._connection: RealtimeConnection | None = None
        self._has_given_up = False

    @property
    def recording(self) -> Recording:
        """The replies as heard, on the call's timeline."""
        return self._timeline.recording

    def result(self) -> CallResult:
        """What has been measured so far; whole once `run` has returned."""
        return self._timeline.result()

    async def run(self) -> None:
        """Call, talk, hang up. Raises `ConnectError` or `ServerViolation` where no session comes about; whatever
        happens later is in the result."""
        try:
            async with connect(self._target) as connection:
                await self._talk(connection)
        except asyncio.CancelledError:
            self._timeline.stop(CallOutcome.INTERRUPTED_BY_USER, "", self._clock.now_ns())
            raise
        finally:
            self._tell()

    async def _talk(self, connection: RealtimeConnection) -> None:
        opened = await open_session(connection, self._settings, self._target.resume)
        self._progress(f"session {opened.session_id} is open")
        self._timeline.begin(self._clock.now_ns(), opened.session_id, opened.resume_token)
        self._timeline.input_goes_on(opened.input_received)
        self._connection = connection
        listening = asyncio.create_task(self._stay(connection, opened.events))
        try:
            await self._speak()
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def _speak(self) -> None:
        index = 0
        while not self._timeline.finished:
            await self._clock.sleep_until(self._timeline.deadline_ns(index))
            await self._send(self._timeline.frame(index, self._clock.now_ns()))
            self._tell()
            index += 1

    async def _send(self, messages: Sequence[wire.ClientMessage]) -> None:
        """What has no connection to go by is kept where it is sound, and else of no use any more."""
        connection = self._connection
        if connection is None:
            return
        try:
            await _send_all(connection, messages)
        except CallError as fault:
            self._connection = None
            if not self._may_return(fault):
                self._timeline.fail(fault, self._clock.now_ns())

    async def _stay(self, connection: RealtimeConnection, early: Sequence[wire.ServerEvent]) -> None:
        """Listen, over one connection after the other."""
        fault = await self._listen(connection, early)
        while fault is not None and self._may_return(fault):
            self._progress(f"{fault}; coming back")
            fault = await self._return()
        if fault is not None:
            self._timeline.fail(fault, self._clock.now_ns())

    async def _listen(self, connection: RealtimeConnection, early: Sequence[wire.ServerEvent]) -> CallError | None:
        """Until the call is over, or the connection; why."""
        try:
            for event in early:
                await self._take(connection, event)
            while not self._timeline.finished:
                await self._take(connection, await connection.receive())
        except CallError as fault:
            return fault
        finally:
            self._connection = None
        return None

    # ---- coming back -----------------------------------------------------------------------------

    def _may_return(self, fault: CallError) -> bool:
        is_lost = isinstance(fault, ConnectionLost) and fault.close_code != CLOSE_REPLACED
        is_tried = self._plan.return_ms_max > 0 and not self._has_given_up
        return is_lost and is_tried and self._timeline.ticket() is not None

    async def _return(self) -> CallError | None:
        """Take the session up again, and listen; why that is over, or why nobody lets us."""
        until_ns = self._clock.now_ns() + self._plan.return_ms_max * NS_PER_MS
        while (ticket := self._timeline.ticket()) is not None:
            try:
                async with connect(replace(self._target, resume=ticket)) as connection:
                    opened = await open_session(connection, self._settings, ticket)
                    await self._say_again(connection, opened.input_received)
                    return await self._listen(connection, opened.events)
            except CallError as fault:
                if isinstance(fault, ServerViolation):
                    return fault
                if self._clock.now_ns() >= until_ns:
                    self._has_given_up = True
                    return ConnectionLost(CLOSE_ABNORMAL, f"not taken up again: {fault}")
            await self._clock.sleep_until(self._clock.now_ns() + RETURN_PAUSE_MS * NS_PER_MS)
        return None

    async def _say_again(self, connection: RealtimeConnection, sample: int) -> None:
        """All since `sample`, also what is said meanwhile; what follows goes out by itself."""
        while (piece := self._timeline.said_since(sample)) is not None:
            await connection.send(wire.AppendAudio(piece.coded, piece.start))
            sample = piece.end
        self._connection = connection

    async def _take(self, connection: RealtimeConnection, event: wire.ServerEvent) -> None:
        await _send_all(connection, self._timeline.on_event(event, self._clock.now_ns()))

    def _tell(self) -> None:
        for line in self._timeline.take_notes():
            self._progress(line)


async def _send_all(connection: RealtimeConnection, messages: Sequence[wire.ClientMessage]) -> None:
    for message in messages:
        await connection.send(message)
