"""Plays seeds of the simulator: `python -m tests.sim.run --seed N [--count M] [--processes P] [--trace] [--shrink]`.

Many seeds give a summary: how fast, how many hours were simulated, what happened how often, which seeds broke a
promise. One seed can be traced, and cut down to a short script of what it takes to break it.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import signal
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.sim.plan import Plan, draw
from tests.sim.shrink import shrink
from tests.sim.world import World

NS_PER_HOUR = 3_600 * 10**9
CHUNK = 20  # seeds that a process plays before it reports; at the end the others wait for one
GARBAGE_MAX = 50_000  # objects made before the collector looks: most of a world goes without it
TOLD_EVERY = 1_000  # seeds of a long run, after which it says how far it is
LAST_LINES = 40  # of a trace, before the end of a world that was cut down
FAILURES_MAX = 20  # more would hide the first ones


@dataclass(slots=True)
class Played:
    """What came of some seeds. `broken`: seeds with what was broken; times in ns, `cpu_ns` of all processes."""

    seeds: int = 0
    simulated_ns: int = 0
    cpu_ns: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Played) -> None:
        self.seeds += other.seeds
        self.simulated_ns += other.simulated_ns
        self.cpu_ns += other.cpu_ns
        self.counts.update(other.counts)
        self.broken += other.broken


def play(seed: int) -> World:
    """The world of `seed`, run to its end. A broken promise says how it can be seen again."""
    return play_plan(draw(seed))


def play_plan(plan: Plan, log: Callable[[str], None] | None = None) -> World:
    world = World(plan, log)
    try:
        world.run()
    except Exception as error:
        at_s = world.clock.now_ns / 1e9 - 1
        error.add_note(f"at {at_s:.3f} s; replay it with: python -m tests.sim.run --seed {plan.seed} --shrink")
        raise
    return world


def play_some(seeds: Sequence[int]) -> Played:
    played, began_ns = Played(), time.process_time_ns()
    for seed in seeds:
        try:
            world = play(seed)
        except Exception as error:  # noqa: BLE001 - every seed is to be seen, whatever broke the one before
            played.broken.append((seed, _summary(error)))
        else:
            played.simulated_ns += world.clock.now_ns
            played.counts.update(world.counts)
        played.seeds += 1
    played.cpu_ns = time.process_time_ns() - began_ns
    return played


def _summary(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {frame.name}, line {frame.lineno}: {error}"


def play_many(seeds: Sequence[int], processes: int) -> Iterator[Played]:
    """What came of `seeds`, part by part, in their order."""
    parts = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    if processes <= 1:
        yield from map(play_some, parts)
        return
    with multiprocessing.get_context("spawn").Pool(processes, _begin) as pool:
        yield from pool.imap(play_some, parts)


def _begin() -> None:
    """A process of the pool: what it has imported stays, and need not be looked at again and again."""
    gc.freeze()
    gc.set_threshold(GARBAGE_MAX)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="print everything that happens in one seed")
    parser.add_argument("--shrink", action="store_true", help="cut one seed down to what it takes to break it")
    asked = parser.parse_args()
    if min(asked.count, asked.processes) < 1:
        parser.error("one seed and one process are the least")
    if asked.shrink:
        return _shrink(asked.seed)
    if asked.trace:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads only the head has seen enough
        return _trace(draw(asked.seed), _print)
    return _play(range(asked.seed, asked.seed + asked.count), asked.processes)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _trace(plan: Plan, log: Callable[[str], None]) -> int:
    try:
        play_plan(plan, log)
    except Exception as error:  # noqa: BLE001 - what broke is told behind what had happened until then
        log("".join(traceback.format_exception(error)))
        return 1
    return 0


def _shrink(seed: int) -> int:
    try:
        plan = shrink(draw(seed))
    except ValueError as error:
        sys.stdout.write(f"{error}\n")
        return 0
    sys.stdout.write(f"{plan.script()}\n\n")
    last: deque[str] = deque(maxlen=LAST_LINES)
    _trace(plan, last.append)
    sys.stdout.write("\n".join((*last, "")))
    return 1


def _play(seeds: range, processes: int) -> int:
    total, began_ns = Played(), time.monotonic_ns()
    for part in play_many(seeds, processes):
        for seed, what in part.broken[: max(0, FAILURES_MAX - len(total.broken))]:
            sys.stdout.write(f"seed {seed}: {what}\n")
            sys.stdout.flush()
        total.add(part)
        if total.seeds % TOLD_EVERY < part.seeds < len(seeds):
            sys.stderr.write(f"{total.seeds} of {len(seeds)} seeds, {len(total.broken)} broke a promise\n")
    width = max((len(name) for name in total.counts), default=0)
    for name in sorted(total.counts):
        sys.stdout.write(f"{name:<{width}} {total.counts[name]}\n")
    wall_s = (time.monotonic_ns() - began_ns) / 1e9
    sys.stdout.write(
        f"{total.seeds} seeds, {total.simulated_ns / NS_PER_HOUR:.2f} simulated hours in {wall_s:.1f} s: "
        f"{total.seeds / wall_s:.0f} seeds/s, {total.seeds * 1e9 / total.cpu_ns:.0f} per second of a core\n"
        f"{len(total.broken)} of {total.seeds} seeds broke a promise\n"
    )
    return 1 if total.broken else 0


if __name__ == "__main__":
    sys.exit(main())
