"""The processes of a simulated world, the routes between them, and the chance that rules them.

Theory of operation
    Stages, edges and windows come from a `Graph`; each stage has one worker, and each gateway its own line to the
    store. Dead processes are started again as the supervisor does it, by the real policy: at once after a long life,
    later and later where one keeps dying. Each place draws from a stream of chance of its own.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from random import Random

from media.chunk import ms_to_samples
from sessions.conversation import ReplyDefaults
from sessions.response import Deadlines
from sessions.settings import OUTPUT_RATE
from stages.engines.scripted import ScriptedModel, ScriptedOptions
from stages.graph import GATEWAY, Graph, StageKind, StageNode
from stages.graph import Edge as GraphEdge
from stages.restart import RestartPolicy
from stages.stream import StageModel
from tests.sim.clock import MS, Clock
from tests.sim.engines import SAMPLES_PER_FRAME, Ears, Fallible, Voice
from tests.sim.gateway import Gateway, Manner, Ways
from tests.sim.host import Edge, Host, HostSpec
from tests.sim.network import Route
from tests.sim.plan import Plan
from tests.sim.stage_watch import StageWatch
from tests.sim.store import Store, StoreLine
from tests.sim.watch import WORD_SAMPLES

GATEWAYS = 2
LINE: tuple[StageKind, ...] = ("encoder", "thinker", "talker", "vocoder")
GRAPH = Graph(
    stages=tuple(
        StageNode(name=name, kind=name, engine="scripted", chunk_ms_max=190 if name == "vocoder" else 0)
        for name in LINE
    ),
    edges=(
        GraphEdge(source="thinker", target="talker", payload="clauses", window=320),
        GraphEdge(source="talker", target="vocoder", payload="latents", window=48),
        GraphEdge(source="vocoder", target=GATEWAY, payload="audio", window=ms_to_samples(400, OUTPUT_RATE)),
    ),
)
# What is lost beyond all notice ends by `whole_ns_max`: no reply here takes so long unless its client does not read.
DEADLINES = Deadlines(first_output_ns_max=4_000 * MS, whole_ns_max=12_000 * MS, drain_ns_max=2_000 * MS)
FRAMES_PER_WORD = WORD_SAMPLES // SAMPLES_PER_FRAME
BOOT_MS = (20, 200, 600)
STEP_MS_MIN, STEP_MS_MAX = 1, 40
SLOW_STEP_MS = 400.0
LATE_TRANSCRIPT_MS = (3_000, 9_000)  # the latter is longer than anybody waits for it

REPLIES = (
    "Yes.",
    "Hello. How can I help you today?",
    "",
    "One moment, please, and I will tell you all that I know of it, which is, to be honest, not much.",
    "Certainly, it is ten past four.",
)


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
        self.stages = tuple(node.name for node in GRAPH.stages)
        self.hosts: dict[str, Host | None] = dict.fromkeys(self.stages)
        self.gateways: list[Gateway | None] = [None] * GATEWAYS
        self.data_routes = {
            edge.source: self._route(edge.source, edge.target) for edge in GRAPH.edges if edge.target != GATEWAY
        }
        self.gateway_routes = [
            {name: self._route(f"gw_{slot}", name) for name in self.stages} for slot in range(GATEWAYS)
        ]
        self.lines = [
            StoreLine(self.clock, self.store, self.random_of(f"store {slot}"), self.counts) for slot in range(GATEWAYS)
        ]
        self.gateway_died: Callable[[Gateway], None] = lambda gateway: None

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

    # ---- workers -----------------------------------------------------------------------------------

    @property
    def living(self) -> list[Host]:
        """The workers that whoever looks for them finds."""
        return [host for host in self.hosts.values() if host is not None]

    def is_held(self, response: str) -> bool:
        """Whether any of them holds `response`."""
        return any(host.watch.holds(response) for host in self.living)

    def boot_worker(self, name: str) -> None:
        incarnation = self._next_incarnation(name)
        edge = GRAPH.edge_from(name)
        window = edge.window if edge is not None else 0
        publish_window = window if edge is not None and edge.target == GATEWAY else 0
        onward = None
        if edge is not None and edge.target != GATEWAY:
            onward = Edge(self.data_routes[name], window, lambda: self.hosts[edge.target])
        spec = HostSpec(
            name,
            lambda: Fallible(self._model(name), self),
            onward,
            publish_window,
            lambda: self._step_ms(name),
            lambda: self.happens("steps failed"),
            self.random_of(f"{name}/{incarnation}"),
        )
        watch = StageWatch(name, window if onward is not None else 0, publish_window, self.counts)
        self.hosts[name] = Host(self.clock, spec, incarnation, watch)

    def _model(self, name: str) -> StageModel:
        if name == "encoder":
            return Ears(self, self.next_words)
        if name == "vocoder":
            return Voice()
        replies = tuple(self.mood.sample(REPLIES, len(REPLIES)))
        return ScriptedModel(
            name, ScriptedOptions(replies=(*replies, "And that is all."), frames_per_word=FRAMES_PER_WORD)
        )

    def _step_ms(self, name: str) -> float:
        if name == "encoder" and self.happens("late transcripts"):
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
        self._boot_later(name, self.boot_worker, name)

    # ---- gateways ----------------------------------------------------------------------------------

    def boot_gateway(self, slot: int) -> None:
        name = f"gw_{slot}"
        name = f"{name}.{self._next_incarnation(name)}"
        defaults = ReplyDefaults("Be kind.", max_output_tokens=40, prepare=self._plan.prepare)
        self.gateways[slot] = Gateway(
            name,
            Ways(self.gateway_routes[slot], lambda stage: self.hosts[stage], self.lines[slot]),
            Manner(defaults, self._plan.transport_lead_ms, DEADLINES, self.is_held, self.new_id),
            self.clock,
            self.counts,
        )

    def kill_gateway(self, slot: int) -> None:
        gateway = self.gateways[slot]
        if gateway is not None:
            self.count("gateways died")
            self.gateways[slot] = None
            gateway.die()
            self.gateway_died(gateway)
            self._boot_later(f"gw_{slot}", self.boot_gateway, slot)

    def a_gateway(self, random: Random, but: Gateway | None, /) -> Gateway | None:
        """One that lives, another than `but` if there is one."""
        living = [gateway for gateway in self.gateways if gateway is not None]
        others = [gateway for gateway in living if gateway is not but]
        return random.choice(others or living) if living else None

    @property
    def is_ready(self) -> bool:
        return all(gateway is not None and gateway.is_ready for gateway in self.gateways)

    # ---- the supervisor ----------------------------------------------------------------------------

    def _next_incarnation(self, name: str) -> int:
        self._incarnations[name] += 1
        self._policies.setdefault(name, RestartPolicy()).started(self.clock.now_ns)
        return self._incarnations[name]

    def _boot_later(self, name: str, boot: Callable[..., None], *args: object) -> None:
        pause_ms = self._policies[name].died(self.clock.now_ns) / MS
        self.clock.after(pause_ms + self.mood.choice(BOOT_MS), boot, *args)
