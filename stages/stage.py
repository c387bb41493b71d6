"""A stage, without its sockets and threads: frames in, frames out, steps to run.

Theory of operation
    Gateways open sessions and streams over control links; input comes from a gateway's media link or from the
    previous stages' data links; what streams produce waits in a small outbox until the credit of each edge lets it go,
    and a stream whose outbox waits is given no further step. So a slow listener stops the vocoder, then the Talker,
    then the Thinker, and an end of the epoch finds little to throw away.

    The worker calls `handle` for each frame, `progress` for what a running step hands over, and `batch_done` for each
    batch of steps that it ran; every call returns what to send and which batches to start, in order. What happens is
    written into the process's event log, which the worker has told the moment.

Rules
* A stream is entered here before its model is asked for anything, and leaves with exactly one `Closed`.
* A stream whose time is over fails when a step of it would be computed, and that step never is. It is looked for
  whenever something happens here, and by no timer: its orchestrator has the same deadline, and ends the response.
* A stream that is cancelled while its step runs is *leaving*: its results are dropped, and `Closed` is sent when the
  step has come back. Only then does the stage hold nothing of it.
* An unknown or ended stream is never created by input; what comes for it is counted as stale.
* A stage that retires goes on with what it has and refuses nothing: gateways take their sessions elsewhere.
* What a stage before had handed over may be lost with its link: streams whose input had not ended by then fail.
* The loss of a gateway's control link ends everything that gateway opened. A peer that introduces itself anew has lost
  the link before, though that is not known here yet; what a stage's earlier process still sends is stale.
* The streams of an observer look back on what was said: they outlive the epoch, until their `Cut` or `Cancel`. The loss
  of an observer, or of room for it, ends its edge and holds up nobody.
* A session belongs to the gateway that opened it last, over its present control link. Who opens it ends all that others
  had opened for it, and all output of older epochs, and is told so when that has left. Nobody else ends any of it.
* Credit stirs its stream, input and the end of a step those of the session, which share what it keeps; whatever else
  happens stirs all, and so do streams that leave, steps of out-of-band responses, which share a model's spare, and all
  steps while a stream waits for a place for its KV.
* What a stream does wrong ends that stream alone: whatever its engine throws, an output that nobody takes or no window
  can hold, credit given back twice. A stream that leaves a running batch leaves its neighbours there as they are.
* What an engine throws as it lets go is reported, and the stream is gone all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from stages.accounts import EdgeAccounts, StageStatistics
from stages.audits import Audits
from stages.contracts import DEADLINE_EXCEEDED, OUT_OF_BAND, AudioOut, Item, Tag, VocoderOptions, label_of
from stages.credit import CreditError
from stages.edges import GATEWAY, InEdge, OutEdge
from stages.effects import Effect, Send, StartBatch, StartStep, reports_of
from stages.engine_boundary import asked, plan_of
from stages.entries import Entry
from stages.event_log import EventKind, EventLog
from stages.gathering import Gathering
from stages.kv_cache import kv_of
from stages.messages import (
    Cancel,
    Closed,
    CloseSession,
    Cut,
    EndEpoch,
    Feed,
    Frame,
    Grant,
    Hello,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Outcome,
    Ping,
    Pong,
    Published,
    Refused,
    Retire,
    Retiring,
    SessionOpened,
    SessionRefused,
    StepDone,
    Welcome,
)
from stages.outbox import GivenUp, Overrun, Taken
from stages.owners import Owners
from stages.peers import MEDIA_LOST, Onward, Peers
from stages.scheduler import Ready, StageScheduler
from stages.stream import BatchingModel, Consumed, Emit, Output, Publish, StageFailure, StageModel

STREAMS_MAX = 256  # a response and a turn for each of far more calls than a worker can serve


class Stage:
    """`edges` lead to other stages and to the gateway, `inputs` come in. Each of at most `streams_max` streams reserves
    what it may gather. `observes`: the stage looks on from a side branch. `tenant_weights`: shares of the stage's time,
    by tenant; others weigh 1. `events`: the log of the process; without one, nothing is recorded."""

    def __init__(
        self,
        model: StageModel,
        edges: Sequence[OutEdge] = (),
        inputs: Sequence[InEdge] = (),
        *,
        streams_max: int = STREAMS_MAX,
        observes: bool = False,
        tenant_weights: Mapping[str, int] | None = None,
        events: EventLog | None = None,
    ) -> None:
        self._model = model
        self._events = events or EventLog(0)
        self._batching = model if isinstance(model, BatchingModel) else None
        self._kv = kv_of(model)
        self._edges = {edge.target: edge for edge in edges}
        self._accounts = EdgeAccounts(edges)
        self._inputs = frozenset(edge.payload for edge in inputs)
        self._gathered = tuple(edge for edge in inputs if edge.need != "chunks")
        self._streams_max = streams_max
        self._observes = observes
        self._peers = Peers()
        self._onward = Onward(edges)
        self.target_at = self._onward.target_at
        self._owners = Owners(model)
        self._entries: dict[str, Entry] = {}
        batch_max = self._batching.batch_max if self._batching else 1
        self._scheduler = StageScheduler(model.concurrency, batch_max, tenant_weights)
        self.audits = Audits(self._entries, self._owners, self._scheduler, self._accounts, model)
        self._stale = 0
        self._is_retiring = False

    # ---- links ----------------------------------------------------------------------------------

    def link_up(self, link: int, hello: Hello) -> list[Effect]:
        """A peer has introduced itself on `link`; the one by which it was known before is gone."""
        sources = self._peers.sources
        effects: list[Effect] = []
        for before in self._peers.greet(link, hello):
            effects += self._forget_peer(before)
        if self._is_retiring and hello.role == "control":
            effects.append(Send(link, Retiring()))
        return effects + self._peers.tell_of_sources(sources)

    def onward_up(self, replica: str, link: int) -> list[Effect]:
        """`link` leads to `replica` of a next stage."""
        self._onward.up(replica, link)
        return self._peers.tell_gateways(OnwardChanged(replica, up=True))

    @property
    def onward(self) -> tuple[str, ...]:
        """The replicas of next stages that streams can be opened for."""
        return self._onward.names

    @property
    def inward(self) -> tuple[str, ...]:
        """The replicas of stages before this one that have a link to it."""
        return tuple(sorted(self._peers.sources))

    @property
    def is_onward_up(self) -> bool:
        """True where streams can be opened that use every edge."""
        return self._onward.is_complete

    @property
    def has_retired(self) -> bool:
        """True once it was asked to retire and holds nothing for anybody."""
        return self._is_retiring and not self._owners and not self._entries

    def link_lost(self, link: int, now_ns: int) -> list[Effect]:
        """`link` is gone; what depended on it ends."""
        sources = self._peers.sources
        effects = self._onward_lost(link) + self._forget_peer(link)
        return effects + self._peers.tell_of_sources(sources) + self.run_steps(now_ns)

    def _forget_peer(self, link: int) -> list[Effect]:
        unheard = self._entries_where(lambda entry: self._peers.media_of(entry.control) == link)
        role = self._peers.forget(link)
        effects = self._leave_all(unheard, "failed", *MEDIA_LOST)
        if role == "data":
            lacking = self._entries_where(lambda entry: entry.may_lack_input(link, self._inputs))
            effects += self._leave_all(lacking, "failed", "upstream_lost", "the stage before is gone")
        if role != "control":
            return effects
        # What a gateway has open is of sessions that it owns: whoever takes one over ends what others had opened there.
        for session in self._owners.sessions_of(link):
            effects += self._close_session(link, session)
        return effects

    def _onward_lost(self, link: int) -> list[Effect]:
        replica = self._onward.lost(link)
        if replica is None:
            return []
        effects = self._peers.tell_gateways(OnwardChanged(replica, up=False))
        target = self._onward.target_of(replica)
        for entry in self._entries_where(lambda entry: entry.replicas.get(target) == replica):
            if self._edges[target].observed:
                entry.outbox.lose(target)
            else:
                effects += self._leave(entry, "failed", "downstream_lost", f"{replica} is gone")
        return effects

    # ---- frames ----------------------------------------------------------------------------------

    def handle(self, link: int, frame: Frame, now_ns: int) -> list[Effect]:
        """Take one frame from `link`."""
        effects: list[Effect]
        held = len(self._entries)
        match frame:
            case OpenSession() if self._peers.is_gateway(link):
                effects = self._open_session(link, frame)
            case CloseSession(session):
                effects = self._close_session(link, session)
            case Open():
                effects = self._open(link, frame, now_ns)
            case Feed():
                effects = self._feed(link, frame)
            case Grant():
                effects = self._grant(link, frame)
            case Cancel():
                effects = self._cancel(link, frame)
            case Cut():
                effects = self._cut(link, frame)
            case EndEpoch():
                effects = self._end_epoch(link, frame)
            case Ping(sequence):
                effects = [Send(link, Pong(sequence, self._scheduler.step_age_ns(now_ns)))]
            case Retire():
                self._is_retiring = True
                effects = self._peers.tell_gateways(Retiring())
            case Welcome():
                effects = []  # a next stage greets back; its incarnation is the supervisor's business
            case _:
                effects = self._drop_stale(type(frame).__name__.lower())
        return effects + self.run_steps(now_ns, self._stirred_by(frame) if len(self._entries) == held else None)

    def _stirred_by(self, frame: Frame) -> list[str] | None:
        """The streams that `frame` may have made ready; None for all."""
        match frame:
            case Grant(tag):
                return [tag.key]
            case Feed(tag):
                return self._streams_of({tag.session})
        return None

    def _streams_of(self, sessions: Collection[str]) -> list[str]:
        return [key for key, entry in self._entries.items() if entry.tag.session in sessions]

    def _open_session(self, link: int, frame: OpenSession) -> list[Effect]:
        failure = self._owners.open(link, frame.session, frame.epoch)
        if failure is not None:
            refused = SessionRefused(frame.session, failure.code, str(failure))
            return [*reports_of(frame.session, failure), Send(link, refused)]
        ended = self._end_output(frame.session, frame.epoch)
        others = self._entries_where(lambda entry: entry.tag.session == frame.session and entry.control != link)
        return ended + self._leave_all(others, "cancelled") + self._tell_owner(frame.session)

    def _tell_owner(self, session: str) -> list[Effect]:
        """The session is open for its owner once nothing is left here of who had it before."""
        owner = self._owners.to_tell(session)
        if owner is None or self._entries_where(lambda one: one.tag.session == session and one.control != owner):
            return []
        self._owners.told(session)
        return [Send(owner, SessionOpened(session))]

    def _close_session(self, link: int, session: str) -> list[Effect]:
        if not self._owners.owns(link, session):
            return self._drop_stale("close_session", session=session)
        self._owners.close(session)
        its = self._entries_where(lambda entry: entry.tag.session == session)
        return self._leave_all(its, "cancelled") + self._release_session(session)

    def _release_session(self, session: str) -> list[Effect]:
        """Let the model forget a closed session, unless a step still runs for it."""
        if not self._owners.is_closing(session) or self._entries_where(lambda entry: entry.tag.session == session):
            return []
        failure = self._owners.release(session)
        return [*reports_of(session, failure)] if failure else []

    def _open(self, link: int, frame: Open, now_ns: int) -> list[Effect]:
        tag = frame.tag
        known = self._entries.get(tag.key)
        if known is not None and known.tag == tag and known.leaving is None and known.control == link:
            return [Send(link, Opened(tag))]
        refusal = self._owners.refusal(link, tag.session) or self._peers.refusal(link) or self._refusal(frame, known)
        if refusal is not None:
            return self._refuse(link, frame, *refusal)
        self._kv.serve(tag.session, frame.tenant)
        stream = asked(lambda: self._model.open(tag, frame.options))
        if isinstance(stream, StageFailure):
            return [*reports_of(tag.key, stream), *self._refuse(link, frame, stream.code, str(stream))]
        replicas = {self._onward.target_of(replica): replica for replica in frame.edges}
        gatherings = {edge.payload: Gathering(edge) for edge in self._gathered}
        trail = self._events.of(tag.session, tag.key, frame.tenant)
        rate = frame.options.sample_rate if isinstance(frame.options, VocoderOptions) else 0
        outbox = self._accounts.outbox(replicas, trail, rate)
        entry = Entry(tag, trail, stream, link, frame.tenant, outbox, replicas, gatherings)
        if frame.lasts_ns_max is not None:
            entry.deadline_ns = now_ns + frame.lasts_ns_max
        self._entries[tag.key] = entry
        trail.add(EventKind.OPENED, len(self._entries))
        return [Send(link, Opened(tag))]

    def _refuse(self, link: int, frame: Open, code: str, message: str) -> list[Effect]:
        trail = self._events.of(frame.tag.session, frame.tag.key, frame.tenant)
        trail.add(EventKind.REFUSED, len(self._entries), cause=code)
        return [Send(link, Refused(frame.tag, code, message))]

    def _refusal(self, frame: Open, known: Entry | None) -> tuple[str, str] | None:
        epoch = self._owners.epoch_of(frame.tag.session)
        if frame.tag.is_output_before(epoch):
            return "stale_epoch", f"epoch {frame.tag.epoch} ended, the session is at {epoch}"
        if known is not None:
            return "busy", "a stream of that name is still leaving"
        if len(self._entries) >= self._streams_max:
            return "capacity", f"{self._streams_max} streams are open"
        return self._onward.refusal(frame.edges)

    def _present(self, tag: Tag) -> Entry | None:
        """The open stream of `tag`."""
        entry = self._entries.get(tag.key)
        return entry if entry is not None and entry.tag == tag and entry.leaving is None else None

    def _cancel(self, link: int, frame: Cancel) -> list[Effect]:
        entry = self._present(frame.tag)
        followed = entry is not None and (entry.control == link or self._peers.is_stage(link))
        return self._leave(entry, "cancelled") if entry is not None and followed else []

    def _feed(self, link: int, frame: Feed) -> list[Effect]:
        entry = self._present(frame.tag)
        if entry is None or not (self._peers.is_stage(link) or self._peers.are_one(link, entry.control)):
            return self._drop_stale("feed", frame.tag)
        gathering = entry.fed_by(link, frame.item)
        try:
            item = gathering.add(frame.item, frame.units) if gathering else frame.item
        except StageFailure as failure:
            return self._leave(entry, "failed", failure.code, str(failure))
        return self._give(entry, item) if item else []

    def _give(self, entry: Entry, item: Item) -> list[Effect]:
        outputs = asked(lambda: entry.model.feed(item))
        if isinstance(outputs, StageFailure):
            return self._fail(entry, outputs)
        return self._deliver(entry, outputs) + self._replan(entry)

    def _cut(self, link: int, frame: Cut) -> list[Effect]:
        entry = self._present(frame.tag)
        if entry is None or entry.control != link:
            return []
        if not entry.gatherings:
            return self._leave(entry, "cancelled")
        effects: list[Effect] = []
        for gathering in entry.gatherings.values():
            item = gathering.cut(frame.samples)
            if item is not None and not entry.leaving:
                effects += self._give(entry, item)
        return effects

    def _replan(self, entry: Entry) -> list[Effect]:
        """Input may have made a waiting step pointless or urgent: plan it anew, in its old place of the queue."""
        ready_ns = self._withdraw(entry, "input")
        return [] if ready_ns is None else self._offer(entry, ready_ns)

    def _withdraw(self, entry: Entry, cause: str) -> int | None:
        """Take a waiting step back. Gives since when it was ready, or None where none waits."""
        ready_ns = self._scheduler.withdraw(entry.tag.key)
        if ready_ns is not None:
            entry.trail.add(EventKind.UNQUEUED, cause=cause)
        return ready_ns

    def _grant(self, link: int, frame: Grant) -> list[Effect]:
        entry, replica = self._present(frame.tag), self._onward.at(link)
        target = self._onward.target_of(replica)
        if entry is None or entry.replicas.get(target) != replica:
            return self._drop_stale("grant", frame.tag)
        if replica is None and not self._peers.are_one(link, entry.control):
            return self._drop_stale("grant", frame.tag)
        try:
            known = entry.outbox.give_back(target, frame.units)
        except CreditError as error:
            return self._leave(entry, "failed", "credit_violated", str(error))
        return self._flush(entry) if known else self._drop_stale("grant", frame.tag)

    def _end_epoch(self, link: int, frame: EndEpoch) -> list[Effect]:
        if not self._owners.owns(link, frame.session):
            return self._drop_stale("end_epoch", session=frame.session)
        self._owners.raise_epoch(frame.session, frame.epoch)
        return [] if self._observes else self._end_output(frame.session, frame.epoch)

    def _end_output(self, session: str, epoch: int) -> list[Effect]:
        """End what `session` was given out before `epoch`."""
        stale = self._entries_where(lambda entry: entry.tag.session == session and entry.tag.is_output_before(epoch))
        return self._leave_all(stale, "cancelled")

    # ---- steps -----------------------------------------------------------------------------------

    def run_steps(self, now_ns: int, stirred: Sequence[str] | None = None) -> list[Effect]:
        """Offer what has become ready, and start as much as the engine threads allow. `stirred`: the only streams that
        may have become ready, where that is known."""
        held = len(self._entries)
        effects = self._look_at(list(self._entries) if stirred is None else stirred, now_ns)
        while len(self._entries) < held:
            held = len(self._entries)
            effects += self._look_at(list(self._entries), now_ns)
        while batch := self._scheduler.start(now_ns):
            steps = tuple(map(self._start_step, batch.keys, batch.queued_ns))
            effects.append(StartBatch(batch.number, steps, self._batching))
        return effects

    def _look_at(self, keys: Sequence[str], now_ns: int) -> list[Effect]:
        """Offer the steps that these streams are ready for, and end all whose waiting step comes too late."""
        effects: list[Effect] = []
        for key in keys:
            effects += self._offer(self._entries[key], now_ns) if key in self._entries else []
        for key in self._scheduler.expire(now_ns):
            entry = self._entries[key]
            entry.trail.add(EventKind.UNQUEUED, cause=DEADLINE_EXCEEDED)
            effects += self._leave(entry, "failed", DEADLINE_EXCEEDED, "its time was over before its next step began")
        return effects

    def _start_step(self, key: str, queued_ns: int) -> StartStep:
        entry = self._entries[key]
        assert entry.step is not None, "a scheduled stream has a step"
        entry.trail.add(EventKind.STARTED, queued_ns, state=entry.step.kind)
        return StartStep(key, entry.step, entry.flags)

    def _offer(self, entry: Entry, ready_ns: int) -> list[Effect]:
        if not self._may_step(entry):
            return []
        planned = asked(lambda: plan_of(entry.model, self._batching))
        if isinstance(planned, StageFailure):
            return self._fail(entry, planned)
        step, batch_key, finished = planned
        if step is None:
            return self._leave(entry, "finished") if finished else []
        overrun = entry.outbox.overrun_by(step.units)
        if overrun is not None:
            return self._leave_too_large(entry, overrun)
        if not entry.outbox.has_room(step.units):
            return []
        entry.step = step
        entry.trail.add(EventKind.QUEUED, len(self._entries), state=step.kind)
        about = (entry.outbox.lead_ns, entry.tenant, batch_key, entry.deadline_ns)
        self._scheduler.offer(Ready(entry.tag.key, step.kind, step.urgency, ready_ns, *about))
        return []

    def _may_step(self, entry: Entry) -> bool:
        """Nothing holds the stream up, and none of its steps is on its way."""
        key = entry.tag.key
        if entry.leaving or entry.paused or entry.outbox.waits:
            return False
        return not (self._scheduler.waits(key) or self._scheduler.runs(key))

    def progress(self, key: str, outputs: Sequence[Output]) -> list[Effect]:
        """A running step hands outputs over early."""
        entry = self._entries.get(key)
        if entry is None:
            self.audits.late(key, len(outputs))
        if entry is None or entry.leaving:
            return self._drop_stale("progress", entry.tag if entry else None)
        return self._deliver(entry, outputs)

    def batch_done(self, number: int, results: Sequence[object], now_ns: int) -> list[Effect]:
        """The running batch of that number has come back. `results` are in the order of its steps; a `StageFailure`
        among them fails that stream."""
        batch = self._scheduler.done(number, now_ns)
        effects: list[Effect] = []
        tags, held = [self._entries[key].tag for key in batch.keys], len(self._entries)
        for key, queued_ns, result in zip(batch.keys, batch.queued_ns, results, strict=True):
            entry = self._entries[key]
            timing = StepDone(entry.tag, batch.kind, queued_ns, now_ns - batch.started_ns, len(batch.keys))
            effects += self._step_done(entry, result, timing)
        shares = len(self._entries) < held or self._kv.waits or any(tag.epoch == OUT_OF_BAND for tag in tags)
        return effects + self.run_steps(now_ns, None if shares else self._streams_of({tag.session for tag in tags}))

    def _step_done(self, entry: Entry, result: object, timing: StepDone) -> list[Effect]:
        entry.step = None
        entry.trail.add(EventKind.COMPUTED, timing.service_ns, state=timing.kind)
        if entry.leaving:
            return self._depart(entry)
        if isinstance(result, StageFailure):
            return self._fail(entry, result)
        return [Send(entry.control, timing), *self._finish(entry, result)]

    def _finish(self, entry: Entry, result: object) -> list[Effect]:
        outputs = asked(lambda: entry.model.finish_step(result))
        return self._fail(entry, outputs) if isinstance(outputs, StageFailure) else self._deliver(entry, outputs)

    # ---- outputs ---------------------------------------------------------------------------------

    def _deliver(self, entry: Entry, outputs: Sequence[Output]) -> list[Effect]:
        effects: list[Effect] = []
        for output in outputs:
            if not isinstance(output, Consumed):
                made = output.item if isinstance(output, Emit) else output.event
                entry.trail.add(EventKind.PRODUCED, output.units, state=label_of(made))
                if (wrong := entry.outbox.add(output)) is not None:
                    return effects + self._fail(entry, wrong)
            elif output.units and output.payload in entry.sources:
                entry.trail.add(EventKind.CONSUMED, output.units, state=output.payload or "")
                effects.append(Send(entry.sources[output.payload], Grant(entry.tag, output.units)))
        return effects + self._flush(entry)

    def _flush(self, entry: Entry) -> list[Effect]:
        effects: list[Effect] = []
        if not entry.paused:
            for move in entry.outbox.take():
                match move:
                    case Taken(target, output):
                        effects += self._hand_over(entry, target, output)
                    case GivenUp(target):
                        effects.append(Send(self._link_to(entry, target), Cancel(entry.tag)))
                    case _:
                        return effects + self._leave_too_large(entry, move)
        entry.flags.stalled = entry.outbox.waits or entry.paused
        return effects

    def _hand_over(self, entry: Entry, target: str, output: Emit | Publish) -> list[Effect]:
        if isinstance(output, Emit):
            return [Send(self._link_to(entry, target), Feed(entry.tag, output.item, output.units))]
        if target == GATEWAY:
            return self._published(entry, output)
        assert isinstance(output.event, AudioOut), "of what is published, stages are handed audio alone"
        return [Send(self._link_to(entry, target), Feed(entry.tag, output.event, output.units))]

    def _link_to(self, entry: Entry, target: str) -> int:
        return self._onward.link_to(entry.replicas[target])

    def _leave_too_large(self, entry: Entry, overrun: Overrun) -> list[Effect]:
        return self._leave(entry, "failed", "hand_over_too_large", overrun.message)

    def _published(self, entry: Entry, output: Publish) -> list[Effect]:
        media = self._peers.media_of(entry.control)
        if media is None:
            return self._drop_stale("published", entry.tag)
        entry.trail.add(EventKind.PUBLISHED, output.units, state=label_of(output.event))
        return [Send(media, Published(entry.tag, output.event))]

    # ---- what becomes of what was sent -----------------------------------------------------------

    def pause(self, key: str) -> None:
        """What stream `key` sent last waits for room: it sends nothing more, and starts no further step."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.paused = entry.flags.stalled = True
            self._withdraw(entry, "no_room")

    def go_on(self, key: str, now_ns: int) -> list[Effect]:
        """All that stream `key` has sent is on its way."""
        entry = self._entries.get(key)
        if entry is None or entry.leaving:
            return []
        entry.paused = False
        return self._flush(entry) + self.run_steps(now_ns)

    def send_failed(self, key: str, code: str, message: str, now_ns: int) -> list[Effect]:
        """What stream `key` sent last can never be sent."""
        entry = self._entries.get(key)
        return (self._leave(entry, "failed", code, message) if entry else []) + self.run_steps(now_ns)

    # ---- endings ---------------------------------------------------------------------------------

    def _fail(self, entry: Entry, failure: StageFailure) -> list[Effect]:
        return [*reports_of(entry.tag.key, failure), *self._leave(entry, "failed", failure.code, str(failure))]

    def _leave_all(self, entries: Iterable[Entry], outcome: Outcome, code: str = "", message: str = "") -> list[Effect]:
        return [effect for entry in entries for effect in self._leave(entry, outcome, code, message)]

    def _leave(self, entry: Entry, outcome: Outcome, code: str = "", message: str = "") -> list[Effect]:
        """End `entry` now, or as soon as its running step has come back."""
        if entry.leaving:
            return []
        entry.leaving = (outcome, code, message)
        entry.flags.cancel()
        if outcome != "finished":
            entry.trail.add(EventKind.CANCELLED, entry.outbox.untaken, cause=code or outcome)
        if self._scheduler.runs(entry.tag.key):
            return []
        if self._scheduler.waits(entry.tag.key):
            entry.trail.add(EventKind.UNQUEUED, cause="ended")
            self._scheduler.drop(entry.tag.key)
        return self._depart(entry)

    def _depart(self, entry: Entry) -> list[Effect]:
        assert entry.leaving is not None, "only a leaving stream departs"
        outcome, code, message = entry.leaving
        released, effects = entry.close()
        del self._entries[entry.tag.key]
        entry.trail.add(EventKind.CLOSED, len(self._entries), cause=code or outcome)
        effects += self._release_session(entry.tag.session)
        # After a success, or an observer's end, nobody waits for what was published: it goes the same way, and last.
        media = self._peers.media_of(entry.control) if outcome == "finished" or self._observes else None
        link = entry.control if media is None else media
        effects.append(Send(link, Closed(entry.tag, outcome, released, code, message)))
        return effects + self._tell_owner(entry.tag.session)

    def _drop_stale(self, what: str, tag: Tag | None = None, session: str = "") -> list[Effect]:
        self._stale += 1
        whose = self._events.of(tag.session, tag.key) if tag else self._events.of(session)
        whose.add(EventKind.STALE, state=what)
        return []

    def _entries_where(self, wanted: Callable[[Entry], bool]) -> list[Entry]:
        return [entry for entry in self._entries.values() if wanted(entry)]

    def statistics(self) -> StageStatistics:
        edges = self._accounts.statistics({key: entry.outbox for key, entry in self._entries.items()})
        counts = len(self._entries), len(self._owners), self._stale
        return StageStatistics(*counts, self._scheduler.statistics(), edges)
