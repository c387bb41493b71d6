"""`python -m benchmarks NAME`: measures a service of its own, or a part of it, and prints the figures; exit code 1 on a
fault. `python -m benchmarks all` runs those that need no more than the service itself, and sums up."""

from __future__ import annotations

from duplex import telemetry_off

telemetry_off.apply()

import argparse  # noqa: E402 - telemetry is switched off before anything else is imported
import asyncio  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Coroutine  # noqa: E402

from benchmarks import (  # noqa: E402
    cancel_leaks,
    checkpoints,
    chunk_cpu,
    drain,
    events,
    holds,
    hop,
    idle_sessions,
    leaks,
    phone_cpu,
    phone_drift,
    phone_heard_error,
    resume,
    scheduler,
    series,
    tenants,
    vocoder_batches,
    webrtc_cpu,
)
from benchmarks import turns as voice  # noqa: E402
from benchmarks.heard_error import run as heard_error  # noqa: E402
from benchmarks.session_kills import run as session_kills  # noqa: E402


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# What needs more than the service does is imported when it is asked for.


async def _torch_omni() -> bool:
    from benchmarks.torch_omni import torch_omni

    return await torch_omni(_say)


async def _kv() -> bool:
    from benchmarks.kv import kv

    return await kv(_say)


async def _hearing() -> bool:
    from benchmarks.hearing import hearing

    return await hearing(_say)


async def _turn_ends() -> bool:
    from benchmarks.turn_ends import turn_ends

    return await turn_ends(_say)


async def _telephone_echo() -> bool:
    from benchmarks.telephone_echo import telephone_echo

    return await telephone_echo(_say)


async def _far_end() -> bool:
    from benchmarks.far_end import far_end

    return await far_end(_say)


async def _hold_rules() -> bool:
    from benchmarks.hold_rules import hold_rules

    return await hold_rules(_say)


async def _interruption_rules() -> bool:
    from benchmarks.interruption_rules import interruption_rules

    return await interruption_rules(_say)


async def _echo() -> bool:
    from benchmarks.echo import echo

    return await echo(_say)


async def _turn_cpu(seconds: int) -> bool:
    from benchmarks import turn_cpu

    return await turn_cpu.turn_cpu(_say, seconds=seconds or turn_cpu.SECONDS)


async def _page(turns: int) -> bool:
    from benchmarks.page import page

    return await page(_say, turns=turns)


# Each takes how many turns (0: its own number) and how many calls at once.
MEASUREMENTS: dict[str, Callable[[int, int], Coroutine[None, None, bool]]] = {
    "voice-to-voice": lambda turns, calls: voice.voice_to_voice(_say, turns=turns or 50, calls=calls),
    "barge-in": lambda turns, _: voice.barge_in(_say, times=turns or 100),
    "cancel": lambda turns, _: voice.cancel(_say, times=turns or 100),
    "drain": lambda cancels, _: drain.drain(_say, cancels=cancels or drain.CANCELS),
    "cancel-leaks": lambda cancels, _: cancel_leaks.cancel_leaks(_say, cancels=cancels or cancel_leaks.CANCELS),
    "heard-error": lambda cuts, _: heard_error.heard_error(_say, cuts=cuts or heard_error.CUTS),
    "phone-heard-error": lambda cuts, _: phone_heard_error.phone_heard_error(_say, cuts=cuts or phone_heard_error.CUTS),
    "phone-cpu": lambda seconds, calls: phone_cpu.phone_cpu(
        _say, seconds=seconds or phone_cpu.SECONDS, calls=calls if calls > 1 else phone_cpu.CALLS
    ),
    "phone-drift": lambda minutes, _: phone_drift.phone_drift(_say, minutes=minutes or phone_drift.MINUTES),
    "holds": lambda count, _: holds.holds(_say, count=count or holds.HOLDS),
    "turn-cpu": lambda seconds, _: _turn_cpu(seconds),
    "chunk-cpu": lambda _turns, _calls: chunk_cpu.chunk_cpu(_say),
    "recovery": lambda _turns, _calls: voice.recovery(_say),
    "resume": lambda kills, _: resume.resume(_say, kills=kills or resume.KILLS),
    "hearing": lambda _turns, _calls: _hearing(),
    "turn-ends": lambda _turns, _calls: _turn_ends(),
    "echo": lambda _turns, _calls: _echo(),
    "telephone-echo": lambda _turns, _calls: _telephone_echo(),
    "far-end": lambda _turns, _calls: _far_end(),
    "hold-rules": lambda _turns, _calls: _hold_rules(),
    "interruption-rules": lambda _turns, _calls: _interruption_rules(),
    "page": lambda turns, _: _page(turns or 10),
    "kv": lambda _turns, _calls: _kv(),
    "leaks": lambda turns, _: leaks.leaks(_say, calls=turns or 200),
    "hop": lambda chunks, _: hop.hop(_say, chunks or hop.CHUNKS),
    "hop-busy": lambda chunks, _: hop.hop(_say, chunks or hop.CHUNKS, busy=True),
    "torch-omni": lambda _turns, _calls: _torch_omni(),
    "webrtc-cpu": lambda _turns, _calls: webrtc_cpu.webrtc_cpu(_say),
    "checkpoints": lambda turns, _: checkpoints.checkpoints(_say, turns or checkpoints.TURNS),
    "idle-sessions": lambda sessions, _: idle_sessions.idle_sessions(_say, left=sessions or idle_sessions.LEFT),
    "events": lambda replies, _: events.events(_say, replies or events.REPLIES),
    "scheduler": lambda _turns, _calls: scheduler.scheduler(_say),
    "tenants": lambda turns, _: tenants.tenants(_say, turns=turns or tenants.TURNS),
    "vocoder-batches": lambda _turns, _calls: vocoder_batches.vocoder_batches(_say),
}


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="benchmarks", description="Measure the service from the caller's ear.")
    parser.add_argument("name", choices=[*MEASUREMENTS, "session-kills", "all"])
    parser.add_argument("--turns", type=int, default=0, help="how many turns, interruptions or calls; 0: the usual")
    parser.add_argument("--calls", type=int, default=1, help="voice-to-voice: calls at once")
    parser.add_argument("--busy", action="store_true", help="hop: the reader's loop is busy 8 of every 20 ms")
    parser.add_argument("--kills", type=int, default=session_kills.KILLS, help="session-kills: how many in all")
    parser.add_argument("--seed", type=int, default=session_kills.SEED, help="session-kills: of its plan")
    parser.add_argument("--only", default="", help="all: the names of those to run, separated by blanks")
    arguments = parser.parse_args()
    if arguments.name == "all":
        return 0 if asyncio.run(series.run_series(_say, arguments.only.split())) else 1
    if arguments.name == "session-kills":
        kills = session_kills.session_kills(_say, kills=arguments.kills, seed=arguments.seed)
        return 0 if asyncio.run(kills) else 1
    name = "hop-busy" if arguments.busy and arguments.name == "hop" else arguments.name
    return 0 if asyncio.run(MEASUREMENTS[name](arguments.turns, arguments.calls)) else 1


if __name__ == "__main__":
    sys.exit(main())
