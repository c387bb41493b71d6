"""`python -m benchmarks.turn_taking`: evaluates the turn-taking of a service of its own. Exit code 1 where events were
spoilt, 2 where the voices are missing."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from benchmarks.turn_taking.corpus import SEED_MAX, TEST_SEED_MIN
from benchmarks.turn_taking.run import CALLS_MAX, EVENTS_MAX, LineKind, Order, TurnEnd, evaluate
from benchmarks.turn_taking.voices import VoicesMissing

OUT = Path("build/turn-taking")
CACHE = Path("build/voices")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.turn_taking", description="Judge turn-taking from the caller's ear."
    )
    add = parser.add_argument
    add("--engine", choices=("local", "synthetic", "scripted"), default="local")
    add("--events", type=int, default=64, choices=range(1, EVENTS_MAX + 1), metavar="N")
    add(
        "--seed",
        type=int,
        default=TEST_SEED_MIN,
        choices=range(SEED_MAX + 1),
        metavar="N",
        help=f"below {TEST_SEED_MIN}: for tuning; up to {SEED_MAX}: for testing",
    )
    add("--calls", type=int, default=2, choices=range(1, CALLS_MAX + 1), metavar="N", help="calls at once")
    add("--turn-end", type=TurnEnd, default=TurnEnd.SILENCE, choices=list(TurnEnd), help="what ends the caller's turn")
    add("--sound", type=LineKind, default=LineKind.WIDEBAND, choices=list(LineKind), help="how it travels, both ways")
    add("--turns-only", action="store_true", help="of the events, only the caller's turns")
    given = parser.parse_args()
    order = Order(
        *(given.engine, given.events, given.seed, given.calls, OUT, CACHE),
        turn_end=given.turn_end,
        turns_only=given.turns_only,
        line=given.sound,
    )
    try:
        complete = asyncio.run(evaluate(order, _say))
    except VoicesMissing as missing:
        _say(str(missing))
        return 2
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
