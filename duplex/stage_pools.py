"""The pools of a graph's stages, each of which knows those behind it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from duplex.stage_pool import PoolCallbacks, StagePool
from stages.dominant_shares import DominantShares
from stages.edges import GATEWAY
from stages.graph import Graph, StageNode, address_of
from stages.pool import PoolLimits

# A stream waits so long for a worker that is being started again; its response has a little longer.
STREAM_WAIT_NS_MAX = 15_000_000_000
# What a session keeps at a stage is the Thinker's KV alone: a full prompt is read again in about a second on a CPU.
RECOMPUTE_NS = {"thinker": 1_000_000_000}


def pools_of(graph: Graph, run_dir: Path, gateway: str, callbacks: PoolCallbacks) -> Mapping[str, StagePool]:
    """One for each stage of `graph`, by name; `gateway` is who asks. Tenants share the streams of all of them."""
    made: dict[str, StagePool] = {}
    shares = DominantShares(graph.tenant_weights)

    def make(stage: StageNode) -> StagePool:
        """Each is made once, after those behind it."""
        if stage.name in made:
            return made[stage.name]
        targets = [edge.target for edge in graph.edges_from(stage.name) if edge.target != GATEWAY]
        onward = {name: make(graph.stage(name)) for name in targets}
        addresses = {name: address_of(run_dir, name) for name in stage.replica_names}
        limits = PoolLimits(stage.streams_max, STREAM_WAIT_NS_MAX, RECOMPUTE_NS.get(stage.kind, 0))
        pool = StagePool(stage.name, addresses, gateway, callbacks, limits=limits, onward=onward, shares=shares)
        made[stage.name] = pool
        return pool

    return {stage.name: make(stage) for stage in graph.stages}
