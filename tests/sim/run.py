"""Replays seeds of the simulator: `python -m tests.sim.run --seed N [--count M]`."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter

from tests.sim.world import World


def play(seed: int) -> Counter[str]:
    """The call of `seed`; gives what has happened in it. A broken promise says how it can be seen again."""
    world = World(seed)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"at {world.clock.now_ns / 1e9:.3f} s; replay it with: python -m tests.sim.run --seed {seed}")
        raise
    return world.counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=1)
    asked = parser.parse_args()
    total: Counter[str] = Counter()
    failed = 0
    for seed in range(asked.seed, asked.seed + asked.count):
        try:
            total += play(seed)
        except Exception:  # noqa: BLE001 - every seed is to be seen, whatever broke the one before
            failed += 1
            sys.stdout.write(f"seed {seed}\n{traceback.format_exc()}\n")
    width = max((len(name) for name in total), default=0)
    for name in sorted(total):
        sys.stdout.write(f"{name:<{width}} {total[name]}\n")
    sys.stdout.write(f"{failed} of {asked.count} seeds broke a promise\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
