"""What thousands of cancels leave behind: in ledgers, queues, arenas, links and accounts nothing, and no memory.

Fifty callers end replies in every way that they can, and hang up in between; eight times all are gone for a moment, and
what is held then is looked at. The first half fills caches, the allocator's free lists and the threads of engines; what
the second adds is what a service would gain for ever.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from benchmarks.drain import CALLERS, SEED, drained_service
from benchmarks.turns import Say
from tests.live.deeds import Ended, Holdings, Plan, end_replies, holdings_at_rest

CANCELS = 10_000
PARTS = 8
AFTER_S_MAX = 1.6  # about 45 cancels a second, with which 10,000 end within four minutes
GROWTH_MAX = 0.04  # of a process's memory, in the second half; the allocator's own ups and downs are up to 2.5 %
THREADS_MAX = 64 + 1  # the Thinker's engine may use so many, and there is the loop's
MIB = 1 << 20


async def cancel_leaks(say: Say, *, cancels: int) -> bool:
    """`cancels`, with rests in between; good where nothing is left at any, and the second half has added nothing."""
    held: list[Holdings] = []
    good = True
    with drained_service() as service:
        await holdings_at_rest(service)
        for part in range(1, PARTS + 1):
            began_s = time.monotonic()
            plan = Plan(CALLERS, cancels // PARTS, AFTER_S_MAX, SEED + part * CALLERS)
            ended = await end_replies(service.address, plan)
            held.append(await holdings_at_rest(service))
            say(f"part {part}: {ended.cancels} cancels in {time.monotonic() - began_s:.0f} s; {_told(ended)}")
            say(f"    ledgers that are not empty: {held[-1].ledgers or 'none'}")
            good &= not held[-1].ledgers and set(ended.drains) == {"complete"}
    _say_held(say, held[-1])
    return _is_level(say, held) and good


def _told(ended: Ended) -> str:
    deeds = ", ".join(f"{name} {count}" for name, count in sorted(ended.deeds.items()))
    ends = ", ".join(f"{status} {count}" for status, count in sorted(ended.statuses.items()))
    drains = ", ".join(f"{status} {count}" for status, count in sorted(ended.drains.items()))
    return f"{deeds}; ended {ends}; drained {drains}"


def _say_held(say: Say, held: Holdings) -> None:
    for part in held.memory:
        counts = f"descriptors {held.descriptors[part]:3}   threads {held.threads[part]:3}"
        say(f"    {part:<8} {counts}   memory {held.memory[part] / MIB:7.1f} MiB")


def _is_level(say: Say, held: Sequence[Holdings]) -> bool:
    """Memory is that of the median rest of each half: the allocator gives back, or does not, as it happens."""
    halves = held[: PARTS // 2], held[PARTS // 2 :]
    before, after = halves[0][-1], halves[1][-1]
    memory = [{part: statistics.median(one.memory[part] for one in half) for part in after.memory} for half in halves]
    growth = {part: memory[1][part] / memory[0][part] - 1 for part in after.memory}
    say("memory that the second half added: " + ", ".join(f"{part} {share:.2%}" for part, share in growth.items()))
    descriptors = {part: after.descriptors[part] - before.descriptors[part] for part in after.descriptors}
    threads = {part: after.threads[part] - before.threads[part] for part in after.threads}
    tasks = after.tasks - before.tasks
    say(f"descriptors that it added: {_more(descriptors)}; threads: {_more(threads)}; tasks: {tasks:.0f}")
    # Threads of engines, and connections to the store, are made when they are first needed at once, and stay.
    bounded = descriptors.pop("gateway") <= CALLERS and max(after.threads.values()) <= THREADS_MAX
    counts = bounded and max(descriptors.values()) <= 0 and threads["gateway"] <= 0 and tasks <= 0
    return counts and max(growth.values()) <= GROWTH_MAX


def _more(counts: dict[str, int]) -> str:
    return ", ".join(f"{part} {count}" for part, count in counts.items() if count) or "none"
