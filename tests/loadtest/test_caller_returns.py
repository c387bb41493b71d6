"""A call whose connection breaks is taken up again: what was not understood is said once more, and all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec import UNSET

from loadtest import caller as module
from loadtest import realtime_wire as wire
from loadtest.caller import Call
from loadtest.errors import CallError, ConnectionLost, ServerViolation, Unreachable
from loadtest.realtime_client import ResumeTicket, SessionOpened, Target
from loadtest.timeline import FRAME_BYTES, CallPlan
from loadtest.turns import CallOutcome
from tests.loadtest.link import utterances

FRAME_SAMPLES = FRAME_BYTES // 2
UNDERSTOOD = 5 * FRAME_SAMPLES
PLAN = CallPlan(utterances(100), lead_ms=40, turn_timeout_ms=400, return_ms_max=1_000)


class Clock:
    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    async def sleep_until(self, deadline_ns: int) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        self._now_ns = max(self._now_ns, deadline_ns)


class Connection:
    """Breaks with `fault` once it was sent so much sound; None: never."""

    def __init__(self, fault: CallError | None = None, samples: int = 0) -> None:
        self.sound: list[wire.AppendAudio] = []
        self._fault, self._samples = fault, samples
        self._broken = asyncio.Event()

    async def send(self, message: wire.ClientMessage) -> None:
        if isinstance(message, wire.AppendAudio):
            self.sound.append(message)
        if self._fault is not None and sum(len(one.audio) // 2 for one in self.sound) >= self._samples:
            self._broken.set()

    async def receive(self) -> wire.ServerEvent:
        await self._broken.wait()
        assert self._fault is not None
        raise self._fault


Line = Callable[[], Connection] | CallError


def play(monkeypatch: pytest.MonkeyPatch, plan: CallPlan, *lines: Line) -> tuple[Call, list[Connection], list[object]]:
    """A call over these, one after the other; the last again and again."""
    made: list[Connection] = []
    tickets: list[ResumeTicket | None] = []
    named: list[ResumeTicket | None] = []
    attempts = 0

    @asynccontextmanager
    async def connect(target: Target) -> AsyncIterator[Connection]:
        nonlocal attempts
        named.append(target.resume)
        line = lines[min(attempts, len(lines) - 1)]
        attempts += 1
        if isinstance(line, CallError):
            raise line
        made.append(line())
        yield made[-1]

    async def open_session(_connection: object, _settings: object, ticket: ResumeTicket | None) -> SessionOpened:
        tickets.append(ticket)
        assert named[-1] == ticket, "the address names the session"
        return SessionOpened("sess_1", "token", (), UNDERSTOOD if ticket else 0)

    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(module, "open_session", open_session)
    call = Call(Target.parse("ws://127.0.0.1:1"), plan, Clock())
    asyncio.run(call.run())
    return call, made, list(tickets)


def lost() -> Connection:
    return Connection(ConnectionLost(1006, "gone"), 8 * FRAME_SAMPLES)


def test_it_says_again_what_was_not_understood_and_goes_on_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    call, (first, second), tickets = play(monkeypatch, PLAN, lost, Unreachable("not yet"), Connection)
    assert call.result().outcome is CallOutcome.COMPLETED
    assert tickets == [None, ResumeTicket("sess_1", "token")]
    before = b"".join(message.audio for message in first.sound)
    again = [message for message in second.sound if message.start_sample is not UNSET]
    assert again[0].start_sample == UNDERSTOOD
    after = b"".join(message.audio for message in second.sound)
    assert after.startswith(before[2 * UNDERSTOOD :])
    frames = call.result().lateness.frames
    assert UNDERSTOOD + len(after) // 2 >= (frames - 1) * FRAME_SAMPLES, "also what was said while nobody was there"


def test_it_gives_up_in_time_and_at_once_where_the_server_makes_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    call, _, _ = play(monkeypatch, PLAN, lost, Unreachable("never"))
    assert call.result().outcome is CallOutcome.CONNECTION_LOST
    assert "not taken up again: never" in call.result().detail
    call, made, _ = play(monkeypatch, PLAN, lost, ServerViolation("nonsense"))
    assert (call.result().detail, len(made)) == ("nonsense", 1)


@pytest.mark.parametrize("plan", [PLAN, CallPlan(utterances(100), lead_ms=40)])
def test_it_does_not_come_back_where_it_may_not(monkeypatch: pytest.MonkeyPatch, plan: CallPlan) -> None:
    code = 4001 if plan.return_ms_max else 1006
    broken = lambda: Connection(ConnectionLost(code, "gone"), FRAME_SAMPLES)  # noqa: E731 - a line of the table above
    call, made, _ = play(monkeypatch, plan, broken)
    assert len(made) == 1
    wanted = CallOutcome.SESSION_REPLACED if code == 4001 else CallOutcome.CONNECTION_LOST
    assert call.result().outcome is wanted
