"""One measurement after the other, each in a process of its own, and a table of what they found.

Rules
* Those that need a package, a browser or a right that the service itself does not need are left out: `hearing`, `page`,
  `torch-omni` and `webrtc-cpu` are asked for by name.
* The cheap ones that depend most on a quiet machine come first. All take about 25 minutes on two quiet cores, with
  fewer turns than each takes by itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.turns import Say


@dataclass(frozen=True, slots=True)
class Planned:
    """A measurement, how often it measures (0: its own number), and the beginnings of those lines that sum it up."""

    name: str
    turns: int
    shows: tuple[str, ...]


PLAN = (
    Planned("hop", 0, ("payload", "4 x 16", "80 ms", "1 MiB")),
    Planned("scheduler", 0, ("   10 steps", " 1000 steps", "    this scheduler")),
    Planned("vocoder-batches", 0, ("batches of",)),
    Planned("chunk-cpu", 0, ("1 reply", "50 replies", "    vocoder", "    gateway", "    all four")),
    Planned("drain", 200, ("one call", "50 responses", "cancel to", "p95 of the floor", "target")),
    Planned("voice-to-voice", 20, ("voice to voice", "last loud", "the same")),
    Planned("barge-in", 20, ("barge-in", "first interrupting", "done to drained", "faults")),
    Planned("cancel", 20, ("cancel", "response.cancel", "faults")),
    Planned("recovery", 0, ("kill -9",)),
    Planned("heard-error", 100, ("    ", "websocket, reports", "webrtc, reports", "faults")),
    Planned("phone-heard-error", 60, ("twilio, all", "asterisk, all", "twilio, an", "asterisk, an", "FAULT")),
    Planned("phone-drift", 2, ("good  twilio, one", "good  asterisk, one", "FAULT")),
    Planned("phone-cpu", 5, ("twilio,", "asterisk,")),
    Planned("holds", 60, ("WebSocket", "WebRTC", "    largest", "    faults")),
    Planned("turn-cpu", 5, ("1 call", "100 calls", "    ")),
    Planned("leaks", 50, ("the second cycle",)),
    Planned("cancel-leaks", 5_000, ("part", "    ledgers", "memory", "descriptors")),
)


@dataclass(frozen=True, slots=True)
class _Outcome:
    planned: Planned
    good: bool
    seconds: float
    lines: tuple[str, ...]

    @property
    def shown(self) -> list[str]:
        return [line for line in self.lines if line.startswith(self.planned.shows)]


async def run_series(say: Say, only: Sequence[str]) -> bool:
    """Those named in `only`, or all. False where one was unknown, found a fault or could not run."""
    names = [one.name for one in PLAN]
    unknown = [name for name in only if name not in names]
    if unknown:
        say(f"unknown: {', '.join(unknown)}; there are: {', '.join(names)}")
        return False
    chosen = [one for one in PLAN if one.name in only or not only]
    outcomes: list[_Outcome] = []
    for number, planned in enumerate(chosen, 1):
        say(f"[{number}/{len(chosen)}] {planned.name} (load {os.getloadavg()[0]:.1f})")
        outcomes.append(await _run(say, planned))
    _sum_up(say, outcomes)
    return all(outcome.good for outcome in outcomes)


async def _run(say: Say, planned: Planned) -> _Outcome:
    began_s = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks", planned.name, "--turns", str(planned.turns)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    assert process.stdout is not None, "standard output is a pipe"
    lines: list[str] = []
    async for line in process.stdout:
        lines.append(line.decode().rstrip("\n"))
        say(f"    {lines[-1]}")
    status = await process.wait()
    return _Outcome(planned, status == 0, time.monotonic() - began_s, tuple(lines))


def _sum_up(say: Say, outcomes: Sequence[_Outcome]) -> None:
    minutes = sum(outcome.seconds for outcome in outcomes) / 60
    say(f"\n{'measurement':<18}{'found':<8}{'s':>5}   what ({minutes:.0f} min in all)")
    for outcome in outcomes:
        shown = outcome.shown or ["nothing"]
        found = "good" if outcome.good else "FAULT"
        say(f"{outcome.planned.name:<18}{found:<8}{outcome.seconds:>5.0f}   {shown[0].strip()}")
        for line in shown[1:]:
            say(f"{'':<34}{line.strip()}")
