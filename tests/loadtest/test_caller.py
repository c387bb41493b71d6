"""Calls over a real loopback WebSocket, with a microphone clock that waits for the exchange and for nothing else."""

from __future__ import annotations

import asyncio
import time

import pytest

from loadtest.caller import Call, MonotonicClock
from loadtest.errors import Unreachable
from loadtest.playout_model import Faults
from loadtest.realtime_client import Target
from loadtest.timeline import FRAME_NS, CallPlan
from loadtest.turns import CallOutcome, CallResult, TurnOutcome
from tests.loadtest.fake_realtime_server import CHUNK_SAMPLES, FakeRealtimeServer, ReplyScript, Script, serving
from tests.loadtest.link import utterances
from tests.loadtest.lockstep import LockstepClock

TTFA_MS = 160


def call(
    server: FakeRealtimeServer, plan: CallPlan, progress: list[str] | None = None, stop_after_frames: int | None = None
) -> CallResult:
    lines = [] if progress is None else progress

    async def place() -> CallResult:
        async with serving(server):
            placed = Call(Target.parse(server.url), plan, LockstepClock(server, stop_after_frames), lines.append)
            try:
                await placed.run()
            except asyncio.CancelledError:
                lines.append("cancelled")
            return placed.result()

    return asyncio.run(place())


def test_two_turns() -> None:
    progress: list[str] = []
    server = FakeRealtimeServer()
    result = call(server, CallPlan(utterances(100, 100), lead_ms=40, think_ms=40), progress)

    assert [turn.outcome for turn in result.turns] == [TurnOutcome.ANSWERED] * 2
    # An event is stamped when it has come back, which is up to one frame after the one that caused it.
    assert all(TTFA_MS <= (turn.ttfa_ms or 0) <= TTFA_MS + 20 for turn in result.turns)
    assert result.turns[1].caller_text == "question 2"
    assert result.event_seq_faults == 0
    assert result.went_well
    assert progress[0] == "session sess_1 is open"
    assert progress[-1] == "call completed"


def test_a_barge_in_with_stale_audio() -> None:
    plan = CallPlan(utterances(100, 200), lead_ms=40, think_ms=40, barge_in_after_ms=100)
    script = Script((ReplyScript(chunks=50, stale_chunks=1), ReplyScript()))
    result = call(FakeRealtimeServer(script=script), plan)

    assert result.turns[0].outcome is TurnOutcome.INTERRUPTED
    assert result.turns[0].faults == Faults(stale_samples=CHUNK_SAMPLES)
    assert result.turns[1].outcome is TurnOutcome.ANSWERED


def test_a_cancel_that_the_server_obeys() -> None:
    server = FakeRealtimeServer(script=Script((ReplyScript(chunks=50),)))
    result = call(server, CallPlan(utterances(100), lead_ms=40, think_ms=40, cancel_after_ms=100))

    assert result.turns[0].outcome is TurnOutcome.CANCELLED
    assert 0 <= (result.turns[0].cancel_stop_ms or 0) <= 40


def test_a_server_that_vanishes_amid_a_reply() -> None:
    script = Script((ReplyScript(vanish_at_chunk=4),))
    result = call(FakeRealtimeServer(script=script), CallPlan(utterances(100, 100), lead_ms=40))

    assert result.outcome is CallOutcome.CONNECTION_LOST
    assert [turn.outcome for turn in result.turns] == [TurnOutcome.UNFINISHED, TurnOutcome.NOT_SAID]


def test_a_server_that_talks_nonsense_ends_the_call_as_a_violation() -> None:
    script = Script((ReplyScript(nonsense=True),))
    result = call(FakeRealtimeServer(script=script), CallPlan(utterances(100), lead_ms=40))

    assert result.outcome is CallOutcome.PROTOCOL_VIOLATION
    assert result.turns[0].ttfa_censored


def test_a_session_that_another_connection_takes_over() -> None:
    script = Script((ReplyScript(replaced=True),))
    result = call(FakeRealtimeServer(script=script), CallPlan(utterances(100), lead_ms=40))

    assert result.outcome is CallOutcome.SESSION_REPLACED


def test_a_call_that_is_stopped_keeps_what_it_measured() -> None:
    progress: list[str] = []
    result = call(FakeRealtimeServer(), CallPlan(utterances(100, 100), lead_ms=40), progress, stop_after_frames=30)

    assert result.outcome is CallOutcome.INTERRUPTED_BY_USER
    assert result.turns[0].ttfa_ms is not None
    assert result.turns[1].outcome is TurnOutcome.NOT_SAID
    assert progress[-2:] == ["call interrupted_by_user", "cancelled"]


def test_no_session_no_record() -> None:
    placed = Call(Target.parse("ws://127.0.0.1:1"), CallPlan(utterances(100)), MonotonicClock())
    with pytest.raises(Unreachable):
        asyncio.run(placed.run())

    assert placed.result().turns[0].outcome is TurnOutcome.NOT_SAID
    assert placed.recording.pcm == b""


def test_the_real_clock_is_monotonic_and_does_not_wait_for_the_past() -> None:
    clock = MonotonicClock()
    before = time.monotonic_ns()
    asyncio.run(clock.sleep_until(before - FRAME_NS))

    assert before <= clock.now_ns() <= time.monotonic_ns()
