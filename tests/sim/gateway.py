"""A gateway's process: the calls that it serves, and what they share. It stops, and it dies.

Theory of operation
    A call is opened with a new session in the store, or with an earlier one by its token; a gateway that already
    serves that session ends its present call first, and waits until all of it is written. Frames from the stages find
    their call by session.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from duplex.checkpoints import Restored, encode_settings, restored
from duplex.log_queue import LogQueue
from duplex.stage_pool import PoolCallbacks, StagePool
from sessions import takeover
from sessions.conversation import Conversation
from sessions.planner import Identity, ReplyDefaults
from sessions.records import SessionRecord, token_digest
from sessions.response import Deadlines
from sessions.route import Route as ReplyRoute
from sessions.settings import SessionSettings
from sessions.store import Ownership, Snapshot, StoreError
from stages.contracts import EPOCHS_PER_FENCE, Tag
from stages.edges import GATEWAY
from stages.event_log import EventLog
from stages.graph import Graph, StageNode
from stages.messages import Audited, Frame
from stages.pool import PoolLimits
from tests.sim.call import FLUSH_MS_MAX, Call, Client, Journal, Shell
from tests.sim.clock import Clock
from tests.sim.player import Player
from tests.sim.port import Port, Surroundings, Way
from tests.sim.store import LEASE_TTL_MS, LIMITS, StoreLine
from tests.sim.tenants import REVOKED, Tenancies, Tenancy, Tenants
from tests.sim.tools import Requests, ToolServer
from tests.sim.watch import Watch

PACE_MS, IDLE_PACE_MS = 20, 100
RENEWAL_MS = LEASE_TTL_MS // 3
FLUSH_POLL_MS = 20
RTP_LEAD_MS = 20  # a packet


class Visitor(Client, Protocol):
    """A caller at the door, with their client."""

    @property
    def player(self) -> Player: ...
    @property
    def tenant(self) -> str: ...

    def admitted(self, call: Call) -> None: ...
    def refused(self, code: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Ways:
    """How a gateway reaches the rest: the replicas by their names, and the store."""

    replicas: dict[str, Way]
    line: StoreLine


@dataclass(frozen=True, slots=True)
class Manner:
    """How calls are served. `settings`: of a new session. `limits`: of the pool of a stage. `neighbours`: all gateways,
    whose answers to letters take no time."""

    graph: Graph
    settings: SessionSettings
    route: ReplyRoute
    limits: Callable[[StageNode], PoolLimits]
    defaults: ReplyDefaults
    transport_lead_ms: int
    deadlines: Deadlines
    holds: Callable[[str], bool]
    tools: ToolServer
    tenants: Tenants
    new_id: Callable[[str], str]
    events: EventLog
    neighbours: Callable[[], Iterable[Gateway]]


class Gateway:
    def __init__(self, name: str, ways: Ways, manner: Manner, clock: Clock, counts: Counter[str]) -> None:
        self.name = name
        self.is_alive = True
        self.calls: dict[str, Call] = {}
        self.former: list[Call] = []  # their session has gone over to another call here
        self._ways = ways
        self._manner = manner
        self.clock = clock
        self._counts = counts
        self._stopped = 0
        self._renewal_ns = 0
        self._backlog: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._requests = Requests(manner.tools, self.do)
        self.tenancies = Tenancies(manner.tenants, ways.line, self.do)
        self._surroundings = Surroundings(self, ways.replicas)
        self.stages: dict[str, StagePool] = {}
        for stage in manner.graph.stages:
            self._make_pool(stage)
        self._pace()

    def _make_pool(self, stage: StageNode) -> StagePool:
        """The stage's pool, which knows those behind it; each is made once."""
        if stage.name in self.stages:
            return self.stages[stage.name]
        graph = self._manner.graph
        targets = [edge.target for edge in graph.edges_from(stage.name) if edge.target != GATEWAY]
        onward = {name: self._make_pool(graph.stage(name)) for name in targets}
        callbacks = PoolCallbacks(
            self.frame, self.lost, self._is_untouched, self._open_waiting, lambda stage, replica, up: None
        )
        pool = self.stages[stage.name] = StagePool(
            stage.name,
            dict.fromkeys(stage.replica_names, ""),
            self.name,
            callbacks,
            limits=self._manner.limits(stage),
            onward=onward,
            surroundings=self._surroundings,
        )
        return pool

    @property
    def events(self) -> EventLog:
        return self._manner.events

    @property
    def ports(self) -> Mapping[str, Port]:
        """The links to each replica."""
        return self._surroundings.ports

    # ---- life --------------------------------------------------------------------------------------

    def do(self, call: Callable[..., None], *args: object) -> None:
        """Let `call` happen as soon as the process runs, if it still lives then."""
        if not self.is_alive:
            return
        if self._stopped:
            self._backlog.append((call, args))
        else:
            call(*args)

    @property
    def is_stopped(self) -> bool:
        return self._stopped > 0

    def stop(self) -> None:
        self._stopped += 1

    def resume(self) -> None:
        self._stopped -= 1
        while self._backlog and not self._stopped and self.is_alive:
            call, args = self._backlog.popleft()
            call(*args)

    def die(self) -> None:
        self.is_alive = False
        for port in self.ports.values():
            port.hang_up()
        self._backlog.clear()

    @property
    def is_ready(self) -> bool:
        return self.is_alive and not self._stopped and all(pool.ready for pool in self.stages.values())

    def _pace(self) -> None:
        is_busy = False
        self.tenancies.keep(self.clock.now_ns)
        if self.clock.now_ns >= self._renewal_ns:
            self._renewal_ns = self.clock.now_ns + RENEWAL_MS * 1_000_000
            for call in self.calls.values():
                call.journal.renew()
        for call in [*self.calls.values(), *self.former]:
            is_busy = call.pace() or is_busy
        self.clock.after(PACE_MS if is_busy else IDLE_PACE_MS, self.do, self._pace)

    # ---- stages ------------------------------------------------------------------------------------

    def frame(self, stage: str, frame: Frame) -> None:
        if isinstance(frame, Audited):
            self._counts["audits"] += 1
            assert not frame.found, f"the {stage} had given it back: {frame}"
            return
        tag = getattr(frame, "tag", None)
        call = self._call_of(tag.session if tag is not None else getattr(frame, "session", ""), tag)
        if call is None:
            self._counts["frames for calls that are over"] += 1
        else:
            call.frame(stage, frame)

    def _call_of(self, session: str, tag: Tag | None) -> Call | None:
        for call in self.former if tag is not None else ():
            if call.session == session and tag is not None and call.core.speaking.knows(tag.response):
                return call
        return self.calls.get(session)

    def lost(self, stage: str, tag: Tag) -> None:
        call = self._call_of(tag.session, tag)
        if call is not None:
            call.lost(stage, tag)

    def _is_untouched(self, tag: Tag) -> bool:
        call = self._call_of(tag.session, tag)
        return call is not None and call.core.speaking.is_untouched(tag)

    def _open_waiting(self) -> None:
        for pool in self.stages.values():
            pool.open_waiting()

    # ---- calls -------------------------------------------------------------------------------------

    def open(self, session: str, token: str, visitor: Visitor) -> None:
        """A call with a new session."""
        if not self.is_ready:
            visitor.refused("service_not_ready")
            return
        self.tenancies.enter(
            visitor.tenant, session, lambda tenancy: self._create(session, token, visitor, tenancy), visitor.refused
        )

    def _create(self, session: str, token: str, visitor: Visitor, tenancy: Tenancy) -> None:
        settings = self._manner.settings
        record = SessionRecord(session, "sim", self.clock.wall_ms, encode_settings(settings), token_digest(token))
        store = self._ways.line.store

        def answered(result: Ownership | StoreError) -> None:
            if isinstance(result, StoreError):
                self._refuse(visitor, result, tenancy)
            else:
                self._begin(result, Restored((), settings, record.epoch), (), visitor, tenancy)

        self._ways.line.ask(lambda: store.create(record, self.name), lambda result: self.do(answered, result))

    def resume_call(self, session: str, token: str, visitor: Visitor, epoch: int, named: str) -> None:
        """A call that goes on with `session`, of which the client has seen `epoch`. `named`: the session that it came
        in for, another one where it has not said yet to which it returns."""
        if not self.is_ready:
            visitor.refused("service_not_ready")
            return

        def entered(tenancy: Tenancy) -> None:
            if any(gateway.keeps(session, epoch) for gateway in self._manner.neighbours()):
                self.tenancies.leave(tenancy)
                self._counts["resumes outdated"] += 1
                visitor.refused("resume_outdated")
                return
            self._make_way(session, lambda: self._acquire(session, token, visitor, epoch, tenancy))

        self.tenancies.enter(visitor.tenant, named, entered, visitor.refused)

    def keeps(self, session: str, epoch: int) -> bool:
        """Asked by another gateway, it does not give the session up to a client that has seen `epoch`."""
        call = self.calls.get(session)
        if call is None or not self.is_alive or self._stopped:
            return False
        fence, seen_fence = call.core.epoch // EPOCHS_PER_FENCE, epoch // EPOCHS_PER_FENCE
        return takeover.is_outdated(seen_fence, fence, is_there=call.client.is_heard)

    def _make_way(self, session: str, then: Callable[[], None]) -> None:
        """End the session's present call here, and go on once all of it is written."""
        present = self.calls.get(session)
        if present is not None:
            present.end("session_replaced")
            self._until_written(present, then)
        else:
            then()

    def _acquire(self, session: str, token: str, visitor: Visitor, epoch: int, tenancy: Tenancy) -> None:
        store = self._ways.line.store

        def answered(result: tuple[Ownership, Snapshot] | StoreError) -> None:
            if isinstance(result, StoreError):
                self._refuse(visitor, result, tenancy)
                return
            ownership, snapshot = result
            self.tenancies.go_on_with(tenancy, session)
            present = self.calls.get(session)
            if present is not None:
                if takeover.is_overtaken(ownership.fence, present.journal.ownership.fence):
                    self.tenancies.leave(tenancy)
                    self._counts["resumes overtaken"] += 1
                    visitor.refused("session_replaced")
                    return
                self._replace(present, ownership)
            self._begin(ownership, restored(snapshot), snapshot.entries, visitor, tenancy)

        self._ways.line.ask(
            lambda: store.acquire(session, self.name, token_digest(token), seen_fence=epoch // EPOCHS_PER_FENCE),
            lambda result: self.do(answered, result),
        )

    def _replace(self, present: Call, ownership: Ownership) -> None:
        before = present.journal.ownership.fence
        assert before < ownership.fence, (
            f"a session goes from an owner to a later one, not from {before} to {ownership}"
        )
        del self.calls[ownership.session]
        self.former.append(present)
        present.end("session_replaced")
        present.leave_stages()

    def _refuse(self, visitor: Visitor, error: StoreError, tenancy: Tenancy) -> None:
        self.tenancies.leave(tenancy)
        self._counts[f"calls refused {type(error).__name__}"] += 1
        visitor.refused(type(error).__name__)

    def _begin(
        self,
        ownership: Ownership,
        before: Restored,
        earlier: tuple[bytes, ...],
        visitor: Visitor,
        tenancy: Tenancy,
    ) -> None:
        manner = self._manner
        core = Conversation(
            Identity(ownership.session, before.epoch, manner.new_id, tenancy.tenant),
            before.settings,
            manner.defaults,
            transport_lead_ms=RTP_LEAD_MS if visitor.player.headset.rtp else manner.transport_lead_ms,
            recalls=not visitor.player.headset.rtp,
            items=before.items,
            calls=before.calls,
            deadlines=manner.deadlines,
            events=manner.events,
            route=manner.route,
            allowance=tenancy.allowance,
        )
        watch = Watch(
            core,
            self.clock,
            self._counts,
            self.ports,
            manner.holds,
            player=visitor.player,
            tools=manner.tools,
            tenants=manner.tenants,
        )
        shell = Shell(self.stages, self.clock, self._requests, self.do)
        journal = Journal(LogQueue(LIMITS, earlier), ownership, self._ways.line, shell)
        call = Call(core, journal, watch, visitor, shell, tenancy=tenancy)
        self.calls[ownership.session] = call
        call.begin()
        visitor.admitted(call)
        call.recover()
        if tenancy.tenant in manner.tenants.revoked:
            call.end(REVOKED)

    def session_deleted(self, session: str) -> None:
        """Somebody says that it is gone."""
        call = self.calls.get(session)
        if call is not None:
            call.end("session_deleted")

    def leave(self, call: Call) -> None:
        """`call` has ended: forget it once it is written, or takes too long to be, and has drained."""
        self._until_written(call, lambda: self._until_drained(call))

    def _until_drained(self, call: Call) -> None:
        if not call.is_drained:
            self.clock.after(FLUSH_POLL_MS, self.do, self._until_drained, call)
            return
        call.leave_stages()
        call.journal.release()
        self.tenancies.leave(call.tenancy)
        if self.calls.get(call.session) is call:
            del self.calls[call.session]
        else:
            self.former.remove(call)
        for pool in self.stages.values():
            pool.audit_session(call.session)

    def _until_written(self, call: Call, then: Callable[[], None]) -> None:
        give_up_ns = self.clock.now_ns + FLUSH_MS_MAX * 1_000_000

        def look() -> None:
            if not call.journal.queue.waiting or self.clock.now_ns >= give_up_ns:
                then()
            else:
                self.clock.after(FLUSH_POLL_MS, self.do, look)

        look()
