"""Whether the stages can take one more call, by what waits there already.

Theory of operation
    Admission counts places; what a place is worth depends on the work that calls bring. So a newcomer is also refused
    where some stage has fallen behind: where the oldest step that is ready for an engine thread, or the stream that
    waits longest for room to send, has waited for longer than a caller would. What waits is told each second
    (`duplex.inspection`).

Rules
* A stage is behind only where each of its replicas that has told is: a newcomer would go to the others.
* Waits for credit count nowhere: they are mostly those of slow clients, which hold up nobody else.
* At a Thinker whose places for KV are all in use, as many streams may wait as there are places; then it is full.
"""

from __future__ import annotations

from collections.abc import Mapping

from stages.messages import WorkerSnapshot

NS_PER_S = 1_000_000_000


def stage_behind(snapshots: Mapping[tuple[str, str], WorkerSnapshot], wait_ns_max: int) -> str | None:
    """Which stage is, and why; None where all keep up. `snapshots`: the newest, by stage and replica."""
    behind: dict[str, list[str | None]] = {}
    for (stage, _), snapshot in snapshots.items():
        behind.setdefault(stage, []).append(_why(snapshot, wait_ns_max))
    for stage, whys in behind.items():
        if all(whys):
            return f"the {stage} {whys[0]}"
    return None


def _why(snapshot: WorkerSnapshot, wait_ns_max: int) -> str | None:
    waited_ns = max(snapshot.scheduler.wait_ns_max, snapshot.room_wait_ns_max)
    if waited_ns > wait_ns_max:
        return f"has had work waiting for {waited_ns / NS_PER_S:.1f} s"
    kv = snapshot.kv
    if kv is not None and kv.pinned >= kv.places and kv.waiting >= kv.places:
        return "has no place for another conversation"
    return None
