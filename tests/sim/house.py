"""The processes of a simulated world, the routes between them, and the chance that rules them.

Theory of operation
    Stages, edges, windows and replicas come from a `Graph`, and each gateway has its own line to the store. Dead
    processes are started again as the supervisor does it, by the real cores: at once after a long life, later and
    later where one keeps dying, and at last only after a while. Each place draws from a stream of chance of its own.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

from duplex.pipeline import route_of
from media.chunk import ms_to_samples
from sessions.filler import FILLER
from sessions.planner import ReplyDefaults
from sessions.records import Conversation
from sessions.response import Deadlines
from sessions.return_policy import AfterResume, ReturnPolicy
from sessions.settings import OUTPUT_RATE, SessionSettings
from stages.edges import GATEWAY
from stages.engines.scripted import ScriptedModel, ScriptedOptions
from stages.event_log import EventLog
from stages.graph import Edge as GraphEdge
from stages.graph import Graph, StageKind, StageNode, worker_spec
from stages.pool import PoolLimits
from stages.replica import Quarantine, Replica, ReplicaState, Restart
from stages.restart import RestartPolicy
from stages.stream import StageModel
from tests.sim.clock import MS, Clock
from tests.sim.engines import SAMPLES_PER_FRAME, Ears, Fallible, FallibleBatches, FallibleMind, Talkative, Voice
from tests.sim.event_watch import EventWatch
from tests.sim.gateway import Gateway, Manner, Ways
from tests.sim.host import Edge, Host, HostSpec
from tests.sim.minds import Mind
from tests.sim.network import Route
from tests.sim.plan import Plan
from tests.sim.port import Way
from tests.sim.stage_watch import StageWatch
from tests.sim.store import Store, StoreLine
from tests.sim.tenants import NAMES, Tenants
from tests.sim.tools import SERVED, SHOW, ToolServer
from tests.sim.watch import WORD_MS

GATEWAYS = 2
AFTER_RESUME: tuple[AfterResume, ...] = ("wait", "ask", "answer")
KINDS: tuple[StageKind, ...] = ("encoder", "thinker", "talker", "vocoder")
OBSERVER = "aligner"
WHOLE_REPLY = 2_000_000  # characters or samples: more than any reply here has
RUN_DIR = Path("/nowhere")
# What is lost beyond all notice ends by `whole_ns_max`, which is the plan's.
DEADLINES = Deadlines(first_output_ns_max=4_000 * MS, drain_ns_max=2_000 * MS)
FRAMES_PER_WORD = ms_to_samples(WORD_MS, OUTPUT_RATE) // SAMPLES_PER_FRAME
BOOT_MS = (20, 200, 600)
STEP_MS_MIN, STEP_MS_MAX = 1, 40
SLOW_STEP_MS = 400.0
LATE_TRANSCRIPT_MS = (3_000, 9_000)  # the latter is longer than anybody waits for it

EVENTS_MAX = 1 << 20  # more than any process of a world records

STREAM_WAIT_NS_MAX = 4_000 * MS
RECOMPUTE_NS = 300 * MS

REPLIES = (
    "Yes.",
    "Hello. How can I help you today?",
    "",
    "One moment, please, and I will tell you all that I know of it, which is, to be honest, not much.",
    "Certainly, it is ten past four.",
)


def graph_of(plan: Plan) -> Graph:
    """The line of `plan`, and who looks on."""
    stages = [
        StageNode(name=kind, kind=kind, engine="scripted", replicas=count, chunk_ms_max=190 if kind == "vocoder" else 0)
        for kind, count in zip(KINDS, plan.replicas, strict=True)
    ]
    edges = [
        GraphEdge(source="thinker", target="talker", payload="clauses", window=320),
        GraphEdge(source="talker", target="vocoder", payload="latents", window=48),
        GraphEdge(source="vocoder", target=GATEWAY, payload="audio", window=ms_to_samples(400, OUTPUT_RATE)),
    ]
    if plan.observed:
        stages.append(StageNode(name=OBSERVER, kind="observer", engine="scripted"))
        edges += [
            GraphEdge(source="thinker", target=OBSERVER, payload="clauses", need="complete", window=WHOLE_REPLY),
            GraphEdge(source="vocoder", target=OBSERVER, payload="audio", need="complete", window=WHOLE_REPLY),
        ]
    return Graph(stages=tuple(stages), edges=tuple(edges))


class House:
    """`log` is given what happens, line by line."""

    def __init__(self, plan: Plan, log: Callable[[str], None] | None) -> None:
        self.clock = Clock()
        self.counts: Counter[str] = Counter()
        self.trouble = True
        self.log = log
        self._plan = plan
        self.mood = self.random_of("mood")
        self._chances = dict(plan.chances)
        self._words = count(1)
        self._ids: Counter[str] = Counter()
        self._policies: dict[str, RestartPolicy] = {}
        self._incarnations: Counter[str] = Counter()
        self.store = Store(self.clock, self.counts)
        self.graph = graph_of(plan)
        self._reply_route = route_of(self.graph)
        self.tenants = Tenants(Counter(filter(None, map(self.tenant_of, range(plan.sessions)))), self.counts)
        self.tools = ToolServer(self.clock, self.random_of("tools"), self.counts, self.store.watch.has_begun)
        self.keepers = {name: Replica() for node in self.graph.stages for name in node.replica_names}
        self.replicas = tuple(self.keepers)
        self._node_of = {name: node for node in self.graph.stages for name in node.replica_names}
        self.hosts: dict[str, Host | None] = dict.fromkeys(self.replicas)
        self.gateways: list[Gateway | None] = [None] * GATEWAYS
        self.data_routes = {
            (near, far): self._route(near, far)
            for edge in self.graph.edges
            if edge.target != GATEWAY
            for near in self.graph.stage(edge.source).replica_names
            for far in self.graph.stage(edge.target).replica_names
        }
        self.gateway_routes = [
            {name: self._route(f"gw_{slot}", name) for name in self.replicas} for slot in range(GATEWAYS)
        ]
        self.lines = [
            StoreLine(self.clock, self.store, self.random_of(f"store {slot}"), self.counts) for slot in range(GATEWAYS)
        ]
        self._all_hosts: list[Host] = []
        self._all_gateways: list[Gateway] = []
        self.booting = 0
        self.gateway_died: Callable[[Gateway], None] = lambda gateway: None
        self.store.watch.taken_over = self._taken_over
        self.store.watch.went_back = self.tools.forgetful.add
        self.store.watch.called = self._called
        self.dies_at_call = False

    # ---- chance and notes --------------------------------------------------------------------------

    def random_of(self, place: str) -> Random:
        """A stream of chance that belongs to `place` alone."""
        return Random(zlib.crc32(place.encode()) ^ self._plan.seed << 32)

    def happens(self, what: str, /) -> bool:
        share = self._chances.get(what, 0.0)
        happens = self.trouble and share > 0 and self.mood.random() < share
        self.counts[what] += happens
        return happens

    def count(self, what: str, /) -> None:
        self.counts[what] += 1
        self.note(what)

    def note(self, what: str, /) -> None:
        if self.log is not None:
            self.log(f"{self.clock.now_ns / 1e9 - 1:8.3f} s  {what}")

    def new_id(self, prefix: str, /) -> str:
        self._ids[prefix] += 1
        return f"{prefix}_{self._ids[prefix]}"

    def next_words(self) -> str:
        return f"turn {next(self._words)}"

    def _route(self, near: str, far: str) -> Route:
        route = Route((near, far), self.clock, self.random_of(f"{near} to {far}"), self.counts)
        route.log = self.note if self.log is not None else None
        return route

    def routes(self) -> Iterator[Route]:
        yield from self.data_routes.values()
        for by_stage in self.gateway_routes:
            yield from by_stage.values()

    def check_events(self) -> None:
        """What the event logs of all processes say must hold."""
        watch = EventWatch()
        for gateway in self._all_gateways:
            watch.gateway(gateway.events, is_alive=gateway.is_alive)
        for host in self._all_hosts:
            watch.worker(host.events, is_alive=host in self.living)
        self.counts["events checked"] += watch.events

    def check_accounts(self) -> None:
        """All places are free, and as much is used as calls have used."""
        for tenant, spent in self.tenants.used.items():
            leases, used = self.store.account(tenant)
            assert not leases, f"{tenant} has calls that are over"
            if len(self.tenants.days) > 1:
                continue
            assert all(used.get(kind, 0) >= amount for kind, amount in spent.items()), (
                f"{tenant} has used {spent}, and was given {used}"
            )
            if not self.tenants.has_lost:
                self.counts["accounts settled"] += 1
                assert Counter(used) == spent, f"{tenant} has used {spent}, and was given {used}"

    # ---- workers -----------------------------------------------------------------------------------

    @property
    def living(self) -> list[Host]:
        """The workers that whoever looks for them finds."""
        return [host for host in self.hosts.values() if host is not None]

    def is_held(self, response: str) -> bool:
        """Whether any of them holds `response`."""
        return any(host.watch.holds(response) for host in self.living)

    def boot_worker(self, name: str) -> None:
        incarnation = self.keepers[name].start(self.clock.now_ns)
        node = self._node_of[name]
        worker = worker_spec(self.graph, node, name, RUN_DIR, incarnation)
        observes = node.kind == "observer"
        watch = StageWatch(name, worker.edges, self.counts, observes=observes)
        spec = HostSpec(
            name,
            lambda events: worker.stage_of(self._model(node.kind), events),
            {
                far: Edge(self.data_routes[near, far], partial(self.hosts.get, far))
                for near, far in self._ways_from(name)
            },
            lambda: self._step_ms(node.kind),
            lambda: self.happens("steps failed"),
            self._retired,
            self.random_of(f"{name}/{incarnation}"),
        )
        host = self.hosts[name] = Host(self.clock, spec, incarnation, watch, EventLog(EVENTS_MAX))
        self._all_hosts.append(host)
        self.keepers[name].ready()

    def _ways_from(self, name: str) -> list[tuple[str, str]]:
        return [(near, far) for near, far in self.data_routes if near == name]

    def _model(self, kind: str) -> StageModel:
        if kind == "encoder":
            return Fallible(Ears(self, self.next_words), self)
        if kind == "vocoder":
            return FallibleBatches(Voice(), self)
        replies = (*self.mood.sample(REPLIES, len(REPLIES)), "And that is all.")
        script = ScriptedOptions(replies=replies, frames_per_word=FRAMES_PER_WORD)
        if kind != "thinker":
            return Fallible(ScriptedModel(kind, script), self)
        talk, places = Talkative(script, self), self._plan.offers.places
        return FallibleMind(Mind(talk, places, self.clock, self.counts), self) if places else Fallible(talk, self)

    def _step_ms(self, kind: str) -> float:
        if kind == "encoder" and self.happens("late transcripts"):
            return self.mood.choice(LATE_TRANSCRIPT_MS)
        if self.happens("slow steps"):
            return SLOW_STEP_MS
        return self.mood.uniform(STEP_MS_MIN, STEP_MS_MAX)

    def kill_worker(self, name: str) -> None:
        host = self.hosts[name]
        if host is not None:
            self.count("workers died")
            self.let_go_of(name)
            host.die()

    def let_go_of(self, name: str) -> None:
        """Whoever looks for the worker finds none, and then its successor."""
        self.hosts[name] = None
        match self.keepers[name].died(self.clock.now_ns):
            case Restart(pause_ns):
                self._boot_later(pause_ns / MS, self.boot_worker, name)
            case Quarantine(pause_ns):
                self.count("workers quarantined")
                self._boot_later(pause_ns / MS, self.boot_worker, name)

    def retire_worker(self, name: str) -> None:
        host = self.hosts[name]
        if host is not None and self.keepers[name].state is ReplicaState.UP:
            self.keepers[name].retire()
            host.retire()

    def _retired(self, host: Host) -> None:
        if host is self.hosts[host.replica]:
            self.count("workers retired")
            self.let_go_of(host.replica)
            host.die()

    # ---- gateways ----------------------------------------------------------------------------------

    def boot_gateway(self, slot: int) -> None:
        name = f"gw_{slot}"
        self._incarnations[name] += 1
        self._policies.setdefault(name, RestartPolicy()).started(self.clock.now_ns)
        name = f"{name}.{self._incarnations[name]}"
        defaults = ReplyDefaults(
            "Be kind.",
            max_output_tokens=40,
            prepare=self._plan.prepare,
            service_tools=SERVED if self._plan.offers.tools else (),
            filler=FILLER if self._plan.offers.places else "",
            returns=ReturnPolicy(AFTER_RESUME[(slot + self._incarnations[f"gw_{slot}"]) % len(AFTER_RESUME)]),
        )
        gateway = self.gateways[slot] = Gateway(
            name,
            Ways(
                {name: Way(route, partial(self.hosts.get, name)) for name, route in self.gateway_routes[slot].items()},
                self.lines[slot],
            ),
            Manner(
                self.graph,
                SessionSettings(tools=(SHOW,)) if self._plan.offers.tools else SessionSettings(),
                self._reply_route,
                self._limits_of,
                defaults,
                self._plan.transport_lead_ms,
                replace(DEADLINES, whole_ns_max=self._plan.whole_ms_max * MS),
                self.is_held,
                self.tools,
                self.tenants,
                self.new_id,
                EventLog(EVENTS_MAX),
                lambda: self._all_gateways,
            ),
            self.clock,
            self.counts,
        )
        self._all_gateways.append(gateway)

    @staticmethod
    def _limits_of(stage: StageNode) -> PoolLimits:
        return PoolLimits(stage.streams_max, STREAM_WAIT_NS_MAX, RECOMPUTE_NS if stage.kind == "thinker" else 0)

    def kill_gateway(self, slot: int) -> None:
        gateway = self.gateways[slot]
        if gateway is not None:
            self.count("gateways died")
            self.tenants.has_lost = True
            self.gateways[slot] = None
            gateway.die()
            self.gateway_died(gateway)
            pause_ms = self._policies[f"gw_{slot}"].died(self.clock.now_ns) / MS
            self._boot_later(pause_ms, self.boot_gateway, slot)

    def _called(self, owner: str) -> None:
        """The store has a call of a tool of `owner`, and not yet that it is about to be made."""
        names = [gateway.name if gateway is not None else "" for gateway in self.gateways]
        if self.dies_at_call and owner in names:
            self.dies_at_call = False
            self.count("gateways died at a call")
            self.kill_gateway(names.index(owner))

    def _taken_over(self, session: str, fence: int, stored: Conversation) -> None:
        """The session passes from the owner under `fence`, dead or not, to another, with what is `stored`."""
        for gateway in self._all_gateways:
            for call in (*gateway.calls.values(), *gateway.former):
                if (call.session, call.journal.ownership.fence) == (session, fence):
                    call.watch.taken_over(stored)

    def tenant_of(self, caller: int) -> str:
        """Of the caller of that number; empty where nobody counts."""
        return NAMES[caller % len(NAMES)] if self._plan.offers.tenants else ""

    def revoke(self, tenant: str) -> None:
        """Who calls for `tenant` may no more, as of now."""
        self.tenants.revoked.add(tenant)
        for gateway in self.gateways:
            if gateway is not None:
                gateway.do(gateway.tenancies.revoke, tenant)

    def tell_of_deletion(self, session: str) -> None:
        """All gateways hear that it is gone."""
        for gateway in self.gateways:
            if gateway is not None:
                self.clock.after(self.mood.uniform(0, 20), gateway.do, gateway.session_deleted, session)

    def a_gateway(self, random: Random, but: Gateway | None, /) -> Gateway | None:
        """One that lives, another than `but` if there is one."""
        living = [gateway for gateway in self.gateways if gateway is not None]
        others = [gateway for gateway in living if gateway is not but]
        return random.choice(others or living) if living else None

    @property
    def is_ready(self) -> bool:
        return not self.booting and all(gateway is not None and gateway.is_ready for gateway in self.gateways)

    def _boot_later(self, pause_ms: float, boot: Callable[..., None], *args: object) -> None:
        self.booting += 1

        def run() -> None:
            self.booting -= 1
            boot(*args)

        self.clock.after(pause_ms + self.mood.choice(BOOT_MS), run)
