"""One call of a simulated gateway: the real conversation, log and way to the encoder, and the shell around them.

Theory of operation
    As the real call, it carries effects to stages, log and client at once and in order, and decides nothing. The
    microphone never stops and is silent: that somebody speaks is told to the conversation by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from duplex.checkpoints import Recorder
from duplex.doubts import reason_to_end
from duplex.encoder_feed import EncoderFeed
from duplex.log_queue import LogQueue
from duplex.stage_pool import SAME_LOSS, StagePool
from media.heard_estimate import Path
from media.input_ring import InputRing
from media.rtp_map import Position
from sessions import effects as do
from sessions.conversation import Conversation
from sessions.events import Event
from sessions.records import CallBegun, Compacted, ReplySpeaking, TurnRecord
from sessions.service_calls import Failure, Result
from sessions.settings import INPUT_RATE, SessionSettings
from sessions.store import Ownership, SessionUnknown, Snapshot, StaleOwner, StoredSession, StoreError, StoreWentBack
from stages.contracts import Item, Tag
from stages.messages import (
    Cancel,
    Closed,
    CloseSession,
    Cut,
    EndEpoch,
    Feed,
    Frame,
    Grant,
    Open,
    Opened,
    OpenSession,
    Published,
    Refused,
    SessionRefused,
)
from tests.sim.clock import Clock
from tests.sim.store import StoreLine
from tests.sim.tenants import Tenancy
from tests.sim.tools import Requests
from tests.sim.watch import Watch

RING_SECONDS = 20
SAMPLES_PER_MS = INPUT_RATE // 1000
HEAR_MS = 100
DEADLINE_MS = 100
FLUSH_MS_MAX = 2_000
NOT_OURS = ("session_replaced", "session_deleted")


class Client(Protocol):
    """The caller's connection, as the call sees it."""

    def next_frame_ns(self, now_ns: int, /) -> int | None: ...
    def pad(self) -> bool: ...
    def tell(self, event: Event) -> None: ...
    def drop_audio(self) -> Position | None: ...
    def path(self, now_ns: int, /) -> Path: ...
    @property
    def lies(self) -> bool: ...
    @property
    def is_heard(self) -> bool: ...
    def report(self) -> bool: ...
    def stop_playing(self, item: str, /) -> bool: ...
    def reset_gate(self) -> None: ...
    def ended(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Shell:
    """What surrounds all calls of a gateway. `do` drops what is meant for a dead process."""

    stages: Mapping[str, StagePool]
    clock: Clock
    requests: Requests
    do: Callable[..., None]


class Journal:
    """Writes what waits in the real queue, one entry at a time, and renews the lease between two. `whole`: all that was
    given to `write`."""

    def __init__(self, queue: LogQueue, ownership: Ownership, line: StoreLine, shell: Shell) -> None:
        self.queue = queue
        self.ownership = ownership
        self.failed: Callable[[str], None] = lambda reason: None
        self.stored: Callable[[TurnRecord], None] = lambda entry: None
        self.suspended: Callable[[bool], None] = lambda suspended: None
        self.whole: Callable[[], Compacted] | None = None
        self._is_suspended = False
        self._line = line
        self._shell = shell
        self._is_asking = False
        self._renewal_due = False

    def renew(self) -> None:
        self._renewal_due = True
        self._go_on()

    def ask_whose(self, then: Callable[[tuple[StoredSession, ...] | StoreError], None]) -> None:
        """What the store says of the session."""
        store, session = self._line.store, self.ownership.session
        self._line.ask(lambda: store.describe(session), lambda result: self._shell.do(then, result))

    def release(self) -> None:
        """Give the lease back, once nothing runs here any more."""
        store, released = self._line.store, replace(self.ownership, lease_ttl_ms=0)
        self._line.ask(lambda: store.renew(released), lambda result: None)

    def write(self, entry: TurnRecord) -> None:
        self.queue.write(entry)
        self._go_on()

    def _go_on(self) -> None:
        if self.queue.end_reason is not None:
            self.failed(self.queue.end_reason)
        write = self.queue.next_write()
        if self._is_asking:
            return
        store, ownership = self._line.store, self.ownership
        if self.queue.must_reclaim:
            self._ask(
                lambda: store.acquire(ownership.session, ownership.owner, None, seen_fence=ownership.fence),
                self._reclaimed,
            )
        elif write is not None:
            self._ask(lambda: store.write(ownership, write.seq, write.entry, compacts=write.compacts), self._answered)
        elif self._renewal_due:
            self._renewal_due = False
            self._ask(lambda: store.renew(ownership), self._renewed)

    def _ask(self, operation: Callable[[], object], then: Callable[[Any], None]) -> None:
        self._is_asking = True
        self._line.ask(operation, lambda result: self._shell.do(then, result))

    def _reclaimed(self, result: tuple[Ownership, Snapshot] | StoreError) -> None:
        if isinstance(result, StoreError):
            self._answered(result)
            return
        assert self.whole is not None, "a call that writes has told what it is made of"
        self.ownership, _ = result
        self.queue.reclaimed(self.whole())
        self._again()

    def _renewed(self, result: object) -> None:
        if isinstance(result, SessionUnknown | StaleOwner | StoreWentBack):
            self._answered(result)
        else:
            self._again()

    def _answered(self, result: object) -> None:
        pause_ms = 0
        if isinstance(result, StoreError):
            pause_ms = self.queue.failed(result, self._shell.clock.now_ns)
        else:
            entry = self.queue.written()
            if entry is not None:
                self.stored(entry)
        if self.queue.end_reason is not None:
            self.failed(self.queue.end_reason)
        self.look()
        self._shell.clock.after(pause_ms, self._shell.do, self._again)

    def look(self) -> None:
        """Tell whether the store is failing, where that is new."""
        if self.queue.suspended is not self._is_suspended:
            self._is_suspended = self.queue.suspended
            self.suspended(self._is_suspended)

    def _again(self) -> None:
        self._is_asking = False
        self._go_on()


class Call:
    def __init__(
        self, core: Conversation, journal: Journal, watch: Watch, client: Client, shell: Shell, *, tenancy: Tenancy
    ) -> None:
        self.session = journal.ownership.session
        self.core = core
        self.journal = journal
        self.watch = watch
        self.client = client
        self.end_reason = ""
        self.tenancy = tenancy
        tenancy.call = self
        self._stages = shell.stages
        self._encoder = core.route.encoder
        self._clock = shell.clock
        self._do = shell.do
        self._requests = shell.requests
        self._born_ns = self._clock.now_ns
        self._recorder = Recorder(core.items, core.settings, core.epoch, core.begun_calls)
        self._ring = InputRing(RING_SECONDS * INPUT_RATE)
        self.feed = EncoderFeed(self._ring)
        self._consumed = 0
        self._is_listening = False
        self._looks_ns = 0
        self._is_at_stages = False
        self._is_held = False
        self._path = Path()
        self._written: Position | None = None  # what is left of a reply of which something was taken back
        journal.failed = self.end
        journal.stored, journal.suspended = self._stored, core.speaking.store_is_away
        journal.whole = self._recorder.compacted

    # ---- life --------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._look_along_path(self._clock.now_ns)
        self._is_at_stages = True
        self._order_all(OpenSession(self.session, self.core.epoch))
        self.carry_out(self.core.warm_up())

    def recover(self) -> None:
        """The client is there: go on with what the owner before was carrying out."""
        if not self.end_reason:
            self.carry_out(self.core.recover(self._clock.now_ns))

    def end(self, reason: str) -> None:
        if self.end_reason:
            return
        self.end_reason = reason
        self.carry_out(self.core.close(self._clock.now_ns))
        self.watch.call_ended()
        self.client.ended(reason)

    @property
    def is_drained(self) -> bool:
        """It has ended and holds nothing any more."""
        is_awaited = self._is_at_stages and self.core.hearing.is_awaited
        is_ours = self._is_at_stages and self.end_reason not in NOT_OURS and not self.journal.queue.is_over
        is_served = is_ours and self.core.is_serving
        return bool(self.end_reason) and not (self.core.speaking.undrained or is_awaited or is_served)

    def leave_stages(self) -> None:
        if self._is_at_stages:
            self._is_at_stages = False
            self._order_all(CloseSession(self.session))

    def _order_all(self, frame: Frame) -> None:
        for stage in self._stages.values():
            stage.order(frame)

    # ---- the microphone ----------------------------------------------------------------------------

    @property
    def newest(self) -> int:
        """The end of the input so far, 16 kHz."""
        return (self._clock.now_ns - self._born_ns) * SAMPLES_PER_MS // 1_000_000

    @property
    def uncommitted_from(self) -> int:
        return max(self._consumed, self._ring.oldest)

    def _fill(self) -> None:
        self._ring.append(bytes(2 * (self.newest - self._ring.newest)))

    def hear(self) -> None:
        """Take what the microphone has given since the last time."""
        self._fill()
        self._feed(self.feed.judged(self._ring.newest))

    def consume(self) -> None:
        """What came in so far belongs to no later turn."""
        self._consumed = self.newest

    def _listen(self) -> None:
        """Hear on for as long as a turn is being spoken."""
        self.hear()
        if self.feed.turns and not self.end_reason:
            self._clock.after(HEAR_MS, self._do, self._listen)
        else:
            self._is_listening = False

    def _feed(self, feeds: Sequence[Feed]) -> None:
        for feed in feeds:
            self._stages[self._encoder].feed(feed.tag, feed.item, feed.units)

    # ---- from the stages ---------------------------------------------------------------------------

    def frame(self, stage: str, frame: Frame) -> None:
        core, now_ns = self.core, self._clock.now_ns
        match frame:
            case Published(tag, event):
                self.carry_out(core.published(tag, event, now_ns))
                self.send_due()
            case Grant(tag, units) if stage == self._encoder:
                self._feed(self.feed.credit_returned(tag, units))
            case Opened(tag):
                self.carry_out(core.opened(tag, stage, now_ns))
            case Refused(tag, code, message):
                self._stream_gone(stage, tag)
                self.carry_out(core.refused(tag, stage, code, message, now_ns))
            case Closed(tag, outcome, released, code, message):
                self._stream_gone(stage, tag)
                failure = (SAME_LOSS.get(code, code), message) if outcome == "failed" else None
                self.carry_out(core.closed(tag, stage, released, failure, now_ns))
            case SessionRefused(_, code):
                self.journal.ask_whose(lambda stored: self._refused(f"{stage}_{code}", stored))

    def _refused(self, refusal: str, stored: tuple[StoredSession, ...] | StoreError) -> None:
        """A stage has refused the session, of which the store says this."""
        self.watch.counts["sessions refused by a stage"] += 1
        owner = self.journal.ownership
        gone = None if isinstance(stored, StoreError) else reason_to_end(stored, owner.owner, owner.fence)
        self.end(gone or refusal)

    def _stream_gone(self, stage: str, tag: Tag) -> None:
        self.watch.let_go(stage, tag)
        if stage == self._encoder:
            self.feed.drop(tag)

    def lost(self, stage: str, tag: Tag) -> None:
        """The worker that had `tag` is out of reach."""
        if stage == self._encoder:
            self.feed.drop(tag)
        self.carry_out(self.core.lost(tag, stage, self._clock.now_ns, self._ring.oldest))

    # ---- to the client -----------------------------------------------------------------------------

    def pace(self) -> bool:
        """The pacer's slot; True where another one is wanted soon. Deadlines may wait for one of the next."""
        now_ns = self._clock.now_ns
        if now_ns >= self._looks_ns:
            self._looks_ns = now_ns + DEADLINE_MS * 1_000_000
            due_ns = self.core.next_deadline_ns()
            if due_ns is not None and now_ns >= due_ns:
                self.carry_out(self.core.tick(now_ns, self.newest))
            self.watch.within_limits()
            self.tenancy.meter.heard(self.newest)
        self._look_along_path(now_ns)
        if not self.core.speaking.undrained:
            return False
        self.send_due()
        return True

    def _look_along_path(self, now_ns: int) -> None:
        path = self.client.path(now_ns)
        if path != self._path:
            self._path = path
            self.carry_out(self.core.path_seen(path, now_ns))

    def send_due(self) -> None:
        while (frame_ns := self.client.next_frame_ns(self._clock.now_ns)) is not None:
            effects = self.core.take_due(frame_ns)
            if not effects and not self.client.pad():
                break
            self.carry_out(effects)

    def hold(self, onset: int) -> None:
        """Speech since `onset` may be an interruption."""
        self._is_held = True
        self.carry_out(self.core.held(onset, self._clock.now_ns))

    def resume(self, why: str) -> None:
        if self._is_held:
            self._is_held = False
            self.carry_out(self.core.resumed(why))

    def interrupt(self, onset: int) -> None:
        self._is_held = False
        self.carry_out(self.core.interrupted(onset, "words", self._clock.now_ns))

    def update(self, settings: SessionSettings) -> None:
        self.hear()
        self.carry_out(self.core.update(settings, self.newest, self._clock.now_ns))
        if settings.turn_detection is None:
            self.resume("reset")
            if self.newest > self.uncommitted_from:
                self.carry_out(self.core.buffered(self.uncommitted_from, self.newest))
        self._keep(self._recorder.settings_changed(settings))

    def _stored(self, entry: TurnRecord) -> None:
        if isinstance(entry, ReplySpeaking):
            self.core.speaking.saved(entry.item, entry.part)
            self.send_due()
        elif isinstance(entry, CallBegun):
            self.carry_out(self.core.call_stored(entry.call.id, self._clock.now_ns))
        elif isinstance(entry, Compacted):
            for call in entry.calls:
                self.carry_out(self.core.call_stored(call.id, self._clock.now_ns))

    # ---- effects -----------------------------------------------------------------------------------

    def carry_out(self, effects: Sequence[do.Effect]) -> None:
        if effects:
            self.watch.saw(effects)
            for effect in effects:
                self._carry_out_one(effect)
            written, self._written = self._written, None
            if written is not None:
                self.carry_out(self.core.written(written.response, written.samples, self._clock.now_ns))

    def _carry_out_one(self, effect: do.Effect) -> None:
        match effect:
            case do.Tell(event):
                self.client.tell(event)
            case do.OpenStream() | do.CancelStream() | do.CutStream() | do.GrantCredit():
                self._order(effect)
            case do.AuditStream(stage, tag):
                self._stages[stage].audit(tag)
            case do.FeedStream(stage, tag, item):
                self._feed_stage(stage, tag, item)
            case do.EndEpoch(epoch):
                self._order_all(EndEpoch(self.session, epoch))
                self._written = self.client.drop_audio()
            case do.HearFrom(tag, sample, until):
                self._hear_from(tag, sample, until)
            case do.StopHearing(tag, until):
                self.hear()
                self._feed(self.feed.stop_hearing(tag, self._consumed if until is None else until))
            case do.ResetGate():
                self.consume()
                self.client.reset_gate()
                self.resume("reset")
            case do.RequestTool() | do.FollowTool() | do.CancelTool():
                self._order_tool(effect)
            case do.SaveLate():
                self.journal.queue.late()
                self.journal.look()
            case do.Measured() | do.Overheard() | do.EndCall():  # no policy of its calls ends them
                pass
            case _:
                self._keep(self._recorder.saved(effect))

    def _feed_stage(self, stage: str, tag: Tag, item: Item) -> None:
        if stage == self._encoder:
            self._feed(self.feed.tell(tag, item))
        else:
            self._stages[stage].feed(tag, item)

    def drawn(self, *, lost: bool) -> None:
        """More of the tenant's quotas is at hand, or its place is another's by now."""
        if lost:
            self.end("quota_exceeded")
        else:
            self.carry_out(self.core.allowance_drawn(self._clock.now_ns))

    def _order_tool(self, effect: do.ToolOrder) -> None:
        match effect:
            case do.RequestTool(call_id) if not self.tenancy.meter.may_call_tool():
                self._clock.after(0, self._do, self._tool_answered, call_id, Failure("quota_exceeded"))
            case do.RequestTool(call_id, name, arguments):
                self.watch.tool_called(self.tenancy.tenant)
                self._requests.request(self.session, call_id, name, arguments, self._tool_answered)
            case do.CancelTool(call_id):
                self._requests.cancel(call_id)
            case do.FollowTool(call_id) if not self._requests.follow(call_id, self._tool_answered):
                self._clock.after(0, self._do, self._tool_answered, call_id, Failure("lost"))

    def _tool_answered(self, call_id: str, answer: Result | Failure) -> None:
        if not self.journal.queue.is_over:
            self.carry_out(self.core.call_answered(call_id, answer, self._clock.now_ns))

    def _order(self, effect: do.OpenStream | do.CancelStream | do.CutStream | do.GrantCredit) -> None:
        stage, tag = self._stages[effect.stage], effect.tag
        match effect:
            case do.OpenStream(options=options, edges=edges, lasts_ns_max=lasts_ns_max):
                stage.order(Open(tag, options, edges, lasts_ns_max=lasts_ns_max))
            case do.CancelStream():
                if effect.stage == self._encoder:
                    self.feed.drop(tag)
                stage.order(Cancel(tag))
            case do.CutStream(samples=samples):
                stage.order(Cut(tag, samples))
            case do.GrantCredit(samples=samples):
                stage.order(Grant(tag, samples))

    def _hear_from(self, tag: Tag, sample: int, until: int | None) -> None:
        self._fill()
        self._feed(self.feed.hear_from(tag, sample, until))
        self.hear()
        if not self._is_listening:
            self._is_listening = True
            self._clock.after(HEAR_MS, self._do, self._listen)

    def _keep(self, entry: TurnRecord) -> None:
        self.journal.write(entry)
        if self.journal.queue.compaction_due():
            self.journal.write(self._recorder.compacted())
