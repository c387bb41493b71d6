"""The gateway: the calls of one process, and what they share.

Theory of operation
    A call is admitted, gets a session in the store (a new one, or an earlier one by its token), and lives until its
    connection, the store, a limit or the shutdown ends it. Frames from the stages find their call by session.

Rules
* A call counts from admission to the end of its clean-up. The one over the limit is refused at the door.
* A call's place is given on only when those that it had at the stages are free: whoever is admitted is served.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

import msgspec
import structlog

from duplex.admission import RETRY_AFTER_S, RefusedError, store_refusal
from duplex.alerts import AlertLimits
from duplex.call import Call, Services
from duplex.checkpoints import Restored, encode_settings, restored
from duplex.claims import Claimant, Claims
from duplex.config import Config
from duplex.doubts import Doubts
from duplex.errands import Errands
from duplex.event_reader import EventReader
from duplex.garbage import CallGarbage
from duplex.gauges import note_audit, note_report, read_gauges
from duplex.inspection import Inspection
from duplex.journal import Journal
from duplex.metrics import Metrics
from duplex.pacer import Pacer
from duplex.pipeline import route_of
from duplex.places import OwnPlaces, Places
from duplex.service_tools import HttpTool
from duplex.session_watch import SESSION_REPLACED, SessionWatch
from duplex.stage_pool import PoolCallbacks
from duplex.stage_pools import pools_of
from duplex.store_watch import StoreWatch
from duplex.tasks import see_through, stop_task
from duplex.tenancies import Tenancies, Tenancy
from duplex.tenant_directory import TenantDirectory
from duplex.tenants import Permission
from duplex.tool_client import ToolClient
from duplex.transport import Transport
from duplex.turn_sound_service import TurnSoundModel, TurnSoundService
from duplex.vad_service import SpeechModel, VadService
from duplex.waiting_room import WaitingRoom
from sessions.conversation import Conversation
from sessions.planner import Identity, ReplyDefaults
from sessions.records import SessionRecord, StoredDataError, token_digest
from sessions.settings import SessionSettings
from sessions.store import (
    Notice,
    NoticeKind,
    Ownership,
    SessionStore,
    SessionUnknown,
    StoreError,
    valid_session_id,
)
from sessions.takeover import is_overtaken
from stages.contracts import EPOCHS_PER_FENCE, Tag
from stages.edges import GATEWAY
from stages.event_log import EventKind, EventLog
from stages.graph import Graph
from stages.messages import Audited, Frame, ReplicaReport, WorkerSnapshot

LEASE_TTL_MS = 30_000
# A stage lets go when its running step is back, within about 150 ms; one that hangs is found and killed by its keeper.
LET_GO_S_MAX = 2
REPLY_NS_MAX = 30_000_000_000  # a long reply; a retiring gateway ends what is still being said then
DRAIN_S_MAX = 5  # shutdown waits so long for calls to say goodbye and to be written down
RETURN_RETRY_S = 1  # whoever else comes back then has a place, and their former call is gone
OVERLOAD_RETRY_S = 5  # a stage that is behind has caught up by then, or will not soon
TOKEN_BYTES = 24
SESSION = "sess"
_log = structlog.get_logger("duplex.gateway")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that has begun, and the token with which it can be resumed. `history_lost`: the store has forgotten the
    last of what was said in the session."""

    call: Call
    resume_token: str
    history_lost: bool = False


def _alert_limits(config: Config) -> AlertLimits:
    return AlertLimits(int(config.alert_wait_s * 1e9), config.alert_lease_ms * 1_000_000, config.alert_fill_percent)


def new_id(prefix: str) -> str:
    """An id that nobody can guess and that is never reused."""
    return f"{prefix}_{secrets.token_hex(12)}"


def is_session_id(name: str) -> bool:
    """Whether this is the id of a session, as those are made here, and of nothing else."""
    return name.startswith(f"{SESSION}_")


class Gateway:
    """`load_turn_sound` gives the model that hears whether a turn sounds finished; None: words alone end turns.
    `places`: what is left of them for calls here; None: all that the configuration allows. `replica`: which one of its
    service's gateways this is; `name` is that of this life of it. `tools`: those that `defaults` has as well.
    `directory`: the tenants; None: there is one."""

    def __init__(
        self,
        config: Config,
        graph: Graph,
        store: SessionStore,
        vad: SpeechModel,
        defaults: ReplyDefaults,
        *,
        load_turn_sound: Callable[[], TurnSoundModel] | None = None,
        places: Places | None = None,
        replica: str = GATEWAY,
        tools: Sequence[HttpTool] = (),
        directory: TenantDirectory | None = None,
    ) -> None:
        self.config = config
        self.directory = directory or TenantDirectory()
        self.tenancies = Tenancies(store, self.directory, defaults.max_output_tokens, partial(new_id, SESSION))
        self.replica = replica
        self.metrics = Metrics()
        self.events = EventLog(config.events_max)
        self.events.at(time.monotonic_ns())  # from now on it holds everything, though nothing may happen for long
        self._inspection = Inspection(_alert_limits(config), self.metrics.registry)
        self._garbage = CallGarbage()
        self.name = new_id("gw")
        self.metrics.gateway.labels(replica, self.name).set(1)
        self.store = store
        self._defaults = defaults
        self._route = route_of(graph)
        self._calls: dict[str, Call] = {}
        # Calls whose session has gone over to another one here, and that have not drained yet.
        self._former: dict[str, list[Call]] = {}
        self._room = WaitingRoom(places or OwnPlaces(config.calls_max))
        self.on_calls: Callable[[], None] = lambda: None  # called when their number has changed
        self._draining = False
        self._vad = VadService(vad)
        self._turn_sound = None if load_turn_sound is None else TurnSoundService(load_turn_sound)
        self._pacer = Pacer()
        self.store_watch = StoreWatch(store, config.durability)
        self.errands = Errands(store, self.name)
        self._claims = Claims(store, self.errands, self.name)
        self.deleted: list[Callable[[str], object]] = []  # are told of each session that is
        self._session_watch = SessionWatch(store, self.calls_of, lambda: tuple(self._calls), self.deleted)
        for stage in graph.stages:
            for replica_name in stage.replica_names:
                self.metrics.stage_up.labels(stage.name, replica_name).set(0)
            self.metrics.will_audit(stage.name)
        callbacks = PoolCallbacks(self._frame, self._lost, self._is_untouched, self._open_waiting, self._reachable)
        self._stages = pools_of(graph, config.run_dir, self.name, callbacks)
        clients = [client for stage in self._stages.values() for client in stage.clients]
        self.event_reader = EventReader(self.events, clients, replica)
        self._doubts = Doubts(store, self.name)
        self.tools = ToolClient(tools, self.metrics)
        self._services = Services(self._stages, self._vad, self.metrics, self._turn_sound, self._doubts.ask, self.tools)

    # ---- life --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until cancelled."""
        tasks = [asyncio.create_task(client.run()) for stage in self._stages.values() for client in stage.clients]
        tasks += [asyncio.create_task(self._vad.run()), asyncio.create_task(self._pacer.run())]
        if self._turn_sound is not None:
            tasks.append(asyncio.create_task(self._turn_sound.run()))
        tasks.append(asyncio.create_task(self._inspection.run(self._inspect)))
        tasks.append(asyncio.create_task(self.store_watch.run()))
        tasks += [asyncio.create_task(self._session_watch.listen()), asyncio.create_task(self._session_watch.renew())]
        lasting = (self.errands, self.tools, self.tenancies, self._room)
        tasks += [asyncio.create_task(each.run()) for each in lasting]
        if self.directory.is_file:
            tasks.append(asyncio.create_task(self.directory.run()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                await stop_task(task)

    async def until_ready(self) -> None:
        """Return once every stage can be used."""
        for stage in self._stages.values():
            await stage.until_ready()

    async def retire(self) -> None:
        """Take no more calls, end each of the present ones as soon as nothing is being said in it, and wait until all
        have cleaned up. Their clients go on elsewhere."""
        self._draining = True
        by_ns = time.monotonic_ns() + REPLY_NS_MAX
        for call in list(self._calls.values()):
            call.end_in_pause("service_shutdown", by_ns)
        await self._room.until_empty()

    async def drain(self) -> None:
        """Take no more calls, end the present ones, and wait until they have cleaned up."""
        self._draining = True
        calls = list(self._calls.values())
        for call in calls:
            call.end("service_shutdown")
        try:
            async with asyncio.timeout(DRAIN_S_MAX):
                await self._room.until_empty()
        except TimeoutError:
            for call in self._all_calls():
                call.give_up_writing()

    def not_ready(self) -> str | None:
        """Why no call can be taken now, or None where one can."""
        if self._draining:
            return "the service is shutting down"
        missing = [name for name, stage in self._stages.items() if not stage.ready]
        return f"not connected: {', '.join(missing)}" if missing else self.store_watch.trouble

    @property
    def calls(self) -> int:
        """How many places are taken by calls here."""
        return self._room.taken

    # ---- stages ------------------------------------------------------------------------------------

    def _inspect(self) -> None:
        for stage in self._stages.values():
            stage.inspect()

    def _frame(self, stage: str, frame: Frame) -> None:
        if isinstance(frame, WorkerSnapshot):
            self._inspection.take(stage, frame)
            return
        if isinstance(frame, Audited):
            self.events.at(time.monotonic_ns())
            note_audit(self.metrics, self.events, stage, frame)
            return
        tag = getattr(frame, "tag", None)
        session = tag.session if tag is not None else getattr(frame, "session", "")
        call = self._call_of(session, tag)
        if call is None:
            self.metrics.stale_dropped.labels("gateway").inc()
            self.events.at(time.monotonic_ns())
            trail = self.events.of(session, tag.key if tag is not None else "")
            trail.add(EventKind.STALE, link=stage, state=type(frame).__name__.lower())
            return
        before = call.conversation.speaking.stale_dropped
        call.frame(stage, frame)
        self.metrics.stale_dropped.labels("speaking").inc(call.conversation.speaking.stale_dropped - before)

    def _call_of(self, session: str, tag: Tag | None) -> Call | None:
        """The session's present call, unless a former one still holds the response of `tag`."""
        for former in self._former.get(session, ()):
            if tag is not None and former.conversation.speaking.knows(tag.response):
                return former
        return self._calls.get(session)

    def calls_of(self, session: str) -> tuple[Call, ...]:
        """All that is held of the session here: its former calls that have not drained, and its present one."""
        present = self._calls.get(session)
        return (*self._former.get(session, ()), *([present] if present is not None else []))

    def call_of(self, session: str) -> Call | None:
        """The session's present call, if it is here."""
        return self._calls.get(session)

    @property
    def sessions(self) -> tuple[str, ...]:
        """Those that have a call here."""
        return tuple(self._calls)

    def _lost(self, stage: str, tag: Tag) -> None:
        call = self._call_of(tag.session, tag)
        if call is not None:
            call.lost(stage, tag)

    def _is_untouched(self, tag: Tag) -> bool:
        call = self._call_of(tag.session, tag)
        return call is not None and call.conversation.speaking.is_untouched(tag)

    def _open_waiting(self) -> None:
        for stage in self._stages.values():
            stage.open_waiting()

    def _reachable(self, stage: str, replica: str, up: bool) -> None:
        self.metrics.stage_up.labels(stage, replica).set(up)
        if not up:
            self._inspection.forget(stage, replica)

    def report(self, report: ReplicaReport) -> None:
        """The supervisor says how one of its processes has fared."""
        note_report(self.metrics, report)

    # ---- calls -------------------------------------------------------------------------------------

    async def until_room(self) -> None:
        """Wait a moment where all lines are in use."""
        await self._room.until_room()

    def admit(self, *, returning: bool = False) -> None:
        """Take a place for a call, or raise `RefusedError`. Each place is given back by `leave`. `returning`: the call
        takes the place of one that is there, and adds nothing to what the stages have to do."""
        reason = self.not_ready()
        if reason is not None:
            self.metrics.calls_refused.labels("not_ready").inc()
            raise RefusedError("service_not_ready", reason)
        behind = self._inspection.stage_behind(int(self.config.admission_wait_s * 1e9))
        if behind is not None and not returning:
            self.metrics.calls_refused.labels("overload").inc()
            raise RefusedError("service_overloaded", f"{behind}; call again later", OVERLOAD_RETRY_S)
        if not self._room.take(returning=returning):
            self.metrics.calls_refused.labels("capacity").inc()
            retry_s = RETURN_RETRY_S if returning else RETRY_AFTER_S
            raise RefusedError("capacity_exceeded", f"all {self.config.calls_max} lines are in use", retry_s)
        self._note_calls()

    @asynccontextmanager
    async def place(self, permission: Permission, returning: str | None = None) -> AsyncIterator[Tenancy]:
        """A place for a call with `permission`, given back on leaving. Raises `RefusedError`. `returning`: the session
        that its client says it comes back to, which is the only one that the call may serve."""
        if returning is not None and not valid_session_id(returning):
            message = "resume names nothing that could be a session"
            raise RefusedError("session_not_resumable", message, retry_after_s=None, status=400)
        takes_over = returning is not None and await self._claims.has_call(returning, permission.tenant)
        if not takes_over:
            await self.until_room()
        self.admit(returning=takes_over)
        try:
            async with self.tenancies.enter(permission, returning) as tenancy:
                yield tenancy
        except RefusedError as error:
            if error.status == 429:
                self.metrics.calls_refused.labels("quota").inc()
            raise
        finally:
            self.leave()

    def _note_calls(self) -> None:
        self.metrics.calls.set(self.calls)
        self.on_calls()

    @property
    def voices(self) -> tuple[str, ...]:
        """Those that a session can ask for, the usual one first; none where the engine has no choice."""
        return self._defaults.voices

    def leave(self) -> None:
        self._room.give_back()
        self._note_calls()
        self._garbage.call_ended(self.calls)

    @asynccontextmanager
    async def new_call(
        self, settings: SessionSettings, transport: Transport | None = None, tenancy: Tenancy | None = None
    ) -> AsyncIterator[Admitted]:
        """A call with a new session, the one that its tenancy begins. Raises `RefusedError` where the store is away.
        Who is refused within it has had no use of the session, and leaves none. `transport` None: WebSocket. `tenancy`
        None: nobody has to answer for it."""
        transport = transport or Transport(self.config.transport_lead_ms)
        tenancy = tenancy or self.tenancies.default()
        session, secret = tenancy.new_session, secrets.token_urlsafe(TOKEN_BYTES)
        digest, created_ms = token_digest(secret), int(datetime.now(UTC).timestamp() * 1000)
        record = SessionRecord(session, tenancy.tenant.id, created_ms, encode_settings(settings), digest)
        try:
            retention_ms = tenancy.tenant.retention_ms
            ownership = await self.store.create(record, self.name, LEASE_TTL_MS, retention_ms=retention_ms)
        except StoreError as error:
            raise store_refusal(error, self.metrics) from error
        begun = Restored((), settings, record.epoch)
        conversation = self._conversation(ownership, begun, transport, tenancy)
        try:
            async with self._living(conversation, self._journal(ownership), digest, transport, tenancy) as call:
                yield Admitted(call, f"{session}.{secret}")
        except RefusedError:
            await self.forget(session)
            raise

    @asynccontextmanager
    async def resumed_call(
        self,
        token: str,
        transport: Transport | None = None,
        tenancy: Tenancy | None = None,
        *,
        responses: Sequence[str] = (),
        epoch: int = 0,
        gives_way: bool = False,
        is_there: Callable[[], bool] = lambda: True,
    ) -> AsyncIterator[Admitted]:
        """A call that goes on with the session of `token`, whose client holds `responses` open and has seen `epoch`.
        `gives_way`: a call that the session has, and whose client is there, keeps it.

        Raises `RefusedError`; that of another tenant is refused as if it were not there. Once `is_there` says that the
        client is gone, nothing is taken for it.

        `transport` None: WebSocket.
        """
        transport = transport or Transport(self.config.transport_lead_ms)
        tenancy = tenancy or self.tenancies.default()
        session, _, secret = token.partition(".")
        digest, seen_fence = token_digest(secret), epoch // EPOCHS_PER_FENCE
        tenancy.check_session(session)
        try:
            await self._look_whose(session, tenancy)
            await self._claims.make_way(session, Claimant(digest, seen_fence, gives_way), is_there)
            ownership, snapshot = await self.store.acquire(
                session,
                self.name,
                digest,
                LEASE_TTL_MS,
                seen_fence=seen_fence,
                retention_ms=tenancy.tenant.retention_ms,
            )
            conversation = self._conversation(ownership, restored(snapshot), transport, tenancy)
        except StoreError as error:
            raise store_refusal(error, self.metrics) from error
        except (StoredDataError, msgspec.DecodeError) as error:
            _log.error("session_unreadable", session=session, error=type(error).__name__)
            raise RefusedError("session_unreadable", "the session is damaged", retry_after_s=None) from error
        if snapshot.went_back:
            self.metrics.store_errors.labels("StoreWentBack").inc()
            _log.error("history_lost", session=session, fence=ownership.fence)
        await self.tenancies.go_on_with(tenancy, session)
        previous = self._calls.get(session)
        if previous is not None:
            self._replace(previous, ownership)
        journal = self._journal(ownership, snapshot.entries)
        async with self._living(conversation, journal, digest, transport, tenancy, responses=responses) as call:
            with suppress(StoreError):  # whoever does not hear of it finds out by its next write
                await self.store.notify(Notice(NoticeKind.TAKEN, session))
            yield Admitted(call, token, snapshot.went_back)

    def _replace(self, previous: Call, ownership: Ownership) -> None:
        """The session of `previous` goes over to the call that has `ownership`. Raises `RefusedError` where it had gone
        over to `previous` after that."""
        if is_overtaken(ownership.fence, previous.fence):
            message = "another connection has taken the session over since"
            raise RefusedError(SESSION_REPLACED, message, retry_after_s=None)
        previous.end(SESSION_REPLACED)
        previous.leave_stages()
        self._former.setdefault(previous.session, []).append(previous)

    async def _look_whose(self, session: str, tenancy: Tenancy) -> None:
        """Raises `SessionUnknown` where it is another tenant's. Of a record that cannot be read, that is not known."""
        stored = await self.store.describe([session]) if self.directory.is_file else ()
        if any(held.tenant not in ("", tenancy.tenant.id) for held in stored):
            raise SessionUnknown(session)

    async def forget(self, session: str) -> None:
        """Delete a session that was made for a connection and never used."""
        try:
            await self.store.delete(session)
        except StoreError as error:
            _log.warning("session_not_deleted", session=session, error=type(error).__name__)

    def _journal(self, ownership: Ownership, earlier: Sequence[bytes] = ()) -> Journal:
        return Journal(self.store, ownership, earlier, outage_ns_max=self.config.store_outage_s * 1_000_000_000)

    def _conversation(
        self,
        ownership: Ownership,
        stored: Restored,
        transport: Transport,
        tenancy: Tenancy,
    ) -> Conversation:
        tools = (*self._defaults.service_tools, *transport.tools)
        return Conversation(
            Identity(ownership.session, stored.epoch, new_id, tenancy.tenant.id),
            transport.settings_here(stored.settings),
            replace(self._defaults, service_tools=tools),
            transport_lead_ms=transport.lead_ms,
            recalls=transport.recalls,
            reports=transport.reports,
            leaves=transport.leaves,
            items=stored.items,
            calls=stored.calls,
            input_from=stored.input_from,
            route=self._route,
            events=self.events,
            allowance=tenancy.allowance,
        )

    @asynccontextmanager
    async def _living(
        self,
        conversation: Conversation,
        journal: Journal,
        digest: bytes,
        transport: Transport,
        tenancy: Tenancy,
        *,
        responses: Sequence[str] = (),
    ) -> AsyncIterator[Call]:
        call = Call(
            conversation,
            journal.session,
            self._services,
            journal,
            transport.input_format,
            responses=responses,
            draw=tenancy.look,
        )
        journal.failed.add_done_callback(lambda failed: None if failed.cancelled() else call.end(failed.result()))
        writing = asyncio.create_task(call.write_down())
        self._calls[call.session], claim = call, self._claims.hold(call, digest)
        self._pacer.add(call)
        call.begin()
        # From here on what befalls the session finds the call; what came before shows by asking.
        call.look_after_session()
        tenancy.attach(call.end, call.allowance_drawn)
        if self._draining:
            call.end("service_shutdown")
        try:
            yield call
        finally:
            call.end("connection_closed")
            call.attach(None)
            await see_through(self._clean_up(call, journal, claim.written, writing))

    async def _clean_up(
        self, call: Call, journal: Journal, written: asyncio.Event, writing: asyncio.Task[None]
    ) -> None:
        """Bounded: the flush by its time, the drain by the deadlines of what is left."""
        flushed = await call.flush()
        written.set()
        await call.until_drained()
        call.leave_stages()
        self._pacer.remove(call)
        if flushed:
            await call.flush()  # more may have become known of what was said
        journal.failed.cancel()
        try:
            await stop_task(writing)
            await self._until_let_go(call.session)
            await journal.release()
        finally:
            self._forget(call)
            for stage in self._stages.values():
                stage.audit_session(call.session)

    def _all_calls(self) -> list[Call]:
        return [*self._calls.values(), *(call for former in self._former.values() for call in former)]

    def _forget(self, call: Call) -> None:
        session = call.session
        call.over.set()
        self._claims.drop(call)
        if self._calls.get(session) is call:
            del self._calls[session]
            return
        self._former[session].remove(call)
        if not self._former[session]:
            del self._former[session]

    async def _until_let_go(self, session: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LET_GO_S_MAX):
                for stage in self._stages.values():
                    await stage.until_left(session)

    # ---- metrics -----------------------------------------------------------------------------------

    async def measure(self) -> None:
        """Have the present of all processes in the next `render_metrics`, of those that answer."""
        up = [(name, replica) for name, stage in self._stages.items() for replica in stage.replicas_up]
        await asyncio.gather(self._inspection.refresh(self._inspect, up), self._count_events())

    async def _count_events(self) -> None:
        for log in await self.event_reader.counts():
            self.metrics.events_recorded.labels(log.process).set(log.recorded)
            self.metrics.events_overwritten.labels(log.process).set(log.overwritten)

    def render_metrics(self) -> bytes:
        """The exposition text, with the gauges that are read when asked."""
        self.metrics.store_ready.set(self.store_watch.trouble is None)
        self.metrics.store_durable.set(self.store_watch.is_durable)
        self.metrics.pacer_lateness_seconds.set(self._pacer.take_lateness_ns_max() / 1e9)
        read_gauges(self.metrics, self._all_calls(), self._stages)
        return self.metrics.render()
