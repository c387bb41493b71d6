"""Whether the stages can take one more call, by what waits there already.

Theory of operation
    Admission counts places; what a place is worth depends on the work that calls bring. So a newcomer is also refused
    where some stage has fallen behind: where the oldest step that is ready for an engine thread, or whoever waits
    longest for room to send or for a place for KV, has waited for longer than a caller would. What waits is told each
    second (`duplex.inspection`).

Rules
* A stage is behind only where each of its replicas that has told is: a newcomer would go to the others.
* Waits for credit count nowhere: they are mostly those of slow clients, which hold up nobody else.
* Who reads ahead waits for no place: that is what places are given up for.
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
    for_place_ns = 0 if snapshot.kv is None else snapshot.kv.wait_ns_max
    waited_ns = max(snapshot.scheduler.wait_ns_max, snapshot.room_wait_ns_max, for_place_ns)
    return f"has had work waiting for {waited_ns / NS_PER_S:.1f} s" if waited_ns > wait_ns_max else None
