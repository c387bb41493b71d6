"""What a process holds, as the kernel counts it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Census:
    threads: int
    descriptors: int
    resident_bytes: int
    anonymous_bytes: int  # what it has allocated: without files, which the kernel keeps or drops, and shared memory


def census_of(pid: int) -> Census:
    """Threads, open descriptors and memory of process `pid`."""
    process = Path(f"/proc/{pid}")
    threads, descriptors = (len(list((process / part).iterdir())) for part in ("task", "fd"))
    return Census(threads, descriptors, resident_bytes(pid), anonymous_bytes(pid))


def least_census(several: Sequence[Census]) -> Census:
    """The least of each figure."""
    return Census(
        min(one.threads for one in several),
        min(one.descriptors for one in several),
        min(one.resident_bytes for one in several),
        min(one.anonymous_bytes for one in several),
    )


def anonymous_bytes(pid: int) -> int:
    """Resident anonymous memory of process `pid`."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(kib) * 1024


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of process `pid`, or of this one."""
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def bytes_kept(work: Callable[[], None], rounds: int = 4) -> int:
    """What `work` adds to this process each time it is done: in the best of so many rounds, as a leak is in all."""
    work()
    held = resident_bytes()
    kept = []
    for _ in range(rounds):
        work()
        before, held = held, resident_bytes()
        kept.append(held - before)
    return min(kept)
