"""A stage, without its sockets and threads: frames in, frames out, steps to run.

Theory of operation
    Gateways open sessions and streams over control links; input comes from a gateway's media link or from the
    previous stage's data link; what streams produce waits in a small outbox until credit lets it go, and a stream
    whose outbox waits is given no further step. So a slow listener stops the vocoder, then the Talker, then the
    Thinker, and an end of the epoch finds little to throw away.

    The worker calls `handle` for each frame, and `progress` and `step_done` for each step it runs; every call returns
    what to send and which steps to start, in order.

Rules
* A stream is entered here before its model is asked for anything, and leaves with exactly one `Closed`.
* A stream that is cancelled while its step runs is *leaving*: its results are dropped, and `Closed` is sent when the
  step has come back. Only then does the stage hold nothing of it.
* An unknown or ended stream is never created by input; what comes for it is counted as stale.
* What the stage before had handed over may be lost with its link: streams whose input had not ended by then fail.
* The loss of a gateway's control link ends everything that gateway opened. A peer that introduces itself anew has lost
  the link before, though that is not known here yet; what a stage's earlier process still sends is stale.
* A session belongs to the gateway that opened it last. Who opens it ends all that others had opened for it, and all
  output of older epochs. Nobody but its owner can open or end anything of it.
* What a stream does wrong ends that stream alone: an engine's `StageFailure`, an output that no window can hold, credit
  that was given back twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stages.contracts import OUT_OF_BAND, Clause, Event, Latents, Tag
from stages.credit import Credit, CreditError
from stages.messages import (
    Cancel,
    Closed,
    CloseSession,
    EndEpoch,
    Feed,
    Frame,
    Grant,
    Hello,
    LinkRole,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Outcome,
    Published,
    Refused,
    SessionOpened,
    SessionRefused,
    StepDone,
    Welcome,
)
from stages.scheduler import SchedulerStatistics, StageScheduler
from stages.stream import Consumed, Emit, Output, Publish, StageFailure, StageModel, StageStream, Step

STREAMS_MAX = 256  # a response and a turn for each of far more calls than a worker can serve


@dataclass(frozen=True, slots=True)
class Send:
    """Send `frame` on the link numbered `link`."""

    link: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class StartStep:
    """Run `step` of stream `key` on an engine thread, with `flags` as its context's flags."""

    key: str
    step: Step
    flags: StepFlags


Effect = Send | StartStep


@dataclass(slots=True)
class StepFlags:
    """Written on the loop thread, read on the engine thread; plain attributes, so no lock is needed."""

    cancelled: bool = False
    stalled: bool = False


@dataclass(slots=True)
class _Peer:
    role: LinkRole
    name: str
    incarnation: int


@dataclass(slots=True)
class _Session:
    epoch: int
    control: int


@dataclass(slots=True)
class _Entry:
    """One stream at this stage."""

    tag: Tag
    model: StageStream
    control: int
    onward: bool
    onward_credit: Credit | None
    publish_credit: Credit | None
    outbox: deque[Emit | Publish] = field(default_factory=deque)
    source: int | None = None
    input_ended: bool = False
    flags: StepFlags = field(default_factory=StepFlags)
    step: Step | None = None
    queued_ns: int = 0
    started_ns: int = 0
    leaving: tuple[Outcome, str, str] | None = None


_Wanted = Callable[[_Entry], bool]


@dataclass(frozen=True, slots=True)
class StageStatistics:
    streams: int
    sessions: int
    stale_dropped: int
    scheduler: SchedulerStatistics


class Stage:
    """`onward_window` and `publish_window`: the windows of the outgoing edges, in their units (0: no such edge)."""

    def __init__(self, model: StageModel, *, onward_window: int = 0, publish_window: int = 0) -> None:
        self._model = model
        self._onward_window = onward_window
        self._publish_window = publish_window
        self._peers: dict[int, _Peer] = {}
        self._onward_link: int | None = None
        self._sessions: dict[str, _Session] = {}
        # Closed by their gateway; what the model keeps for them is given back when their last stream has left.
        self._closing: set[str] = set()
        self._entries: dict[str, _Entry] = {}
        self._scheduler = StageScheduler(model.concurrency)
        self._stale = 0

    # ---- links ----------------------------------------------------------------------------------

    def link_up(self, link: int, hello: Hello) -> list[Effect]:
        """A peer has introduced itself on `link`; the one by which it was known before is gone."""
        effects: list[Effect] = []
        name, incarnation = _identity(hello)
        for other, peer in list(self._peers.items()):
            if (peer.role, peer.name) == (hello.role, name):
                if incarnation < peer.incarnation:
                    return effects  # a process of the past: what comes from it is stale
                effects += self._forget_peer(other)
        self._peers[link] = _Peer(hello.role, name, incarnation)
        return effects

    def onward_up(self, link: int) -> list[Effect]:
        """`link` leads to the next stage."""
        self._onward_link = link
        return self._tell_onward(up=True)

    @property
    def is_onward_up(self) -> bool:
        """True where streams with `onward` can be opened, or are never asked for."""
        return self._onward_link is not None or not self._onward_window

    def _tell_onward(self, *, up: bool) -> list[Effect]:
        return [Send(link, OnwardChanged(up)) for link, peer in self._peers.items() if peer.role == "control"]

    def link_lost(self, link: int, now_ns: int) -> list[Effect]:
        """`link` is gone; what depended on it ends."""
        effects: list[Effect] = []
        if link == self._onward_link:
            self._onward_link = None
            effects += self._tell_onward(up=False)
            for entry in self._entries_where(lambda entry: entry.onward):
                effects += self._leave(entry, "failed", "downstream_lost", "the next stage is gone")
        return effects + self._forget_peer(link) + self.run_steps(now_ns)

    def _forget_peer(self, link: int) -> list[Effect]:
        peer = self._peers.pop(link, None)
        effects: list[Effect] = []
        if peer is not None and peer.role == "data":
            for entry in self._entries_where(lambda entry: _may_lack_input(entry, link)):
                effects += self._leave(entry, "failed", "upstream_lost", "the stage before is gone")
        if peer is None or peer.role != "control":
            return effects
        for session in [name for name, held in self._sessions.items() if held.control == link]:
            effects += self._close_session(link, session)
        for entry in self._entries_where(lambda entry: entry.control == link):
            effects += self._leave(entry, "cancelled")
        return effects

    # ---- frames ----------------------------------------------------------------------------------

    def handle(self, link: int, frame: Frame, now_ns: int) -> list[Effect]:
        """Take one frame from `link`."""
        effects: list[Effect]
        match frame:
            case OpenSession():
                effects = self._open_session(link, frame)
            case CloseSession(session):
                effects = self._close_session(link, session)
            case Open():
                effects = [self._open(link, frame)]
            case Feed():
                effects = self._feed(link, frame)
            case Grant():
                effects = self._grant(link, frame)
            case Cancel():
                effects = self._cancel(link, frame)
            case EndEpoch(session):
                effects = self._end_epoch(frame) if self._owns(link, session) else self._drop_stale()
            case Welcome():
                effects = []  # the next stage greets back; its incarnation is the supervisor's business
            case _:
                effects = self._drop_stale()
        return effects + self.run_steps(now_ns)

    def _open_session(self, link: int, frame: OpenSession) -> list[Effect]:
        held = self._sessions.get(frame.session)
        if held is not None and frame.epoch < held.epoch:
            message = f"epoch {frame.epoch} ended, the session is at {held.epoch}"
            return [Send(link, SessionRefused(frame.session, "stale_epoch", message))]
        if held is None:
            try:
                self._model.open_session(frame.session)
            except StageFailure as failure:
                return [Send(link, SessionRefused(frame.session, failure.code, str(failure)))]
            self._closing.discard(frame.session)
        self._sessions[frame.session] = _Session(frame.epoch, link)
        ended = self._end_epoch(EndEpoch(frame.session, frame.epoch))
        for entry in self._entries_where(lambda entry: entry.tag.session == frame.session and entry.control != link):
            ended += self._leave(entry, "cancelled")
        return [*ended, Send(link, SessionOpened(frame.session))]

    def _owns(self, link: int, session: str) -> bool:
        held = self._sessions.get(session)
        return held is not None and held.control == link

    def _close_session(self, link: int, session: str) -> list[Effect]:
        effects: list[Effect] = []
        if not self._owns(link, session):
            return self._drop_stale()
        del self._sessions[session]
        self._closing.add(session)
        for entry in self._entries_where(lambda entry: entry.tag.session == session):
            effects += self._leave(entry, "cancelled")
        self._release_session(session)
        return effects

    def _release_session(self, session: str) -> None:
        """Let the model forget a closed session, unless a step still runs for it."""
        if session in self._closing and not self._entries_where(lambda entry: entry.tag.session == session):
            self._closing.remove(session)
            self._model.close_session(session)

    def _open(self, link: int, frame: Open) -> Send:
        tag = frame.tag
        known = self._entries.get(tag.key)
        if known is not None and known.tag == tag and known.leaving is None and known.control == link:
            return Send(link, Opened(tag))
        refusal = self._not_owned(link, tag.session) or self._refusal(frame, known)
        if refusal is not None:
            return Send(link, Refused(tag, *refusal))
        try:
            stream = self._model.open(tag, frame.options)
        except StageFailure as failure:
            return Send(link, Refused(tag, failure.code, str(failure)))
        self._entries[tag.key] = _Entry(
            tag,
            stream,
            link,
            frame.onward,
            Credit(self._onward_window) if frame.onward else None,
            Credit(self._publish_window) if self._publish_window else None,
        )
        return Send(link, Opened(tag))

    def _not_owned(self, link: int, session: str) -> tuple[str, str] | None:
        if session not in self._sessions:
            return "unknown_session", "the session is not open at this stage"
        if not self._owns(link, session):
            return "not_owner", "another gateway has opened the session"
        return None

    def _refusal(self, frame: Open, known: _Entry | None) -> tuple[str, str] | None:
        session = self._sessions[frame.tag.session]
        if frame.tag.response and OUT_OF_BAND < frame.tag.epoch < session.epoch:
            return "stale_epoch", f"epoch {frame.tag.epoch} ended, the session is at {session.epoch}"
        if known is not None:
            return "busy", "a stream of that name is still leaving"
        if len(self._entries) >= STREAMS_MAX:
            return "capacity", f"{STREAMS_MAX} streams are open"
        if frame.onward and self._onward_link is None:
            return "downstream_lost", "the next stage is not connected"
        return None

    def _cancel(self, link: int, frame: Cancel) -> list[Effect]:
        entry = self._present(frame.tag)
        return self._leave(entry, "cancelled") if entry and entry.control == link else []

    def _present(self, tag: Tag) -> _Entry | None:
        """The open stream of `tag`."""
        entry = self._entries.get(tag.key)
        return entry if entry is not None and entry.tag == tag and entry.leaving is None else None

    def _is_from_owner(self, link: int, entry: _Entry) -> bool:
        """`link` is one of those of the gateway that opened `entry`."""
        peer, owner = self._peers.get(link), self._peers.get(entry.control)
        return peer is not None and owner is not None and peer.name == owner.name

    def _feed(self, link: int, frame: Feed) -> list[Effect]:
        entry, peer = self._present(frame.tag), self._peers.get(link)
        if entry is None or peer is None or not (peer.role == "data" or self._is_from_owner(link, entry)):
            return self._drop_stale()
        entry.source = link
        entry.input_ended = entry.input_ended or (isinstance(frame.item, Clause | Latents) and frame.item.final)
        try:
            outputs = entry.model.feed(frame.item)
        except StageFailure as failure:
            return self._leave(entry, "failed", failure.code, str(failure))
        return self._deliver(entry, outputs) + self._replan(entry)

    def _replan(self, entry: _Entry) -> list[Effect]:
        """Input may have made a waiting step pointless or urgent: plan it anew, in its old place of the queue."""
        ready_ns = self._scheduler.withdraw(entry.tag.key)
        return [] if ready_ns is None else self._offer(entry, ready_ns)

    def _grant(self, link: int, frame: Grant) -> list[Effect]:
        entry = self._present(frame.tag)
        if entry is None or not (link == self._onward_link or self._is_from_owner(link, entry)):
            return self._drop_stale()
        credit = entry.onward_credit if link == self._onward_link else entry.publish_credit
        if credit is None:
            return self._drop_stale()
        try:
            credit.give_back(frame.units)
        except CreditError as error:
            return self._leave(entry, "failed", "credit_violated", str(error))
        return self._flush(entry)

    def _end_epoch(self, frame: EndEpoch) -> list[Effect]:
        session = self._sessions[frame.session]
        session.epoch = max(session.epoch, frame.epoch)
        effects: list[Effect] = []
        for entry in self._entries_where(lambda entry: _is_output(entry.tag, frame)):
            effects += self._leave(entry, "cancelled")
        return effects

    # ---- steps -----------------------------------------------------------------------------------

    def run_steps(self, now_ns: int) -> list[Effect]:
        """Offer what has become ready, and start as much as the engine threads allow."""
        effects: list[Effect] = []
        for entry in list(self._entries.values()):
            effects += self._offer(entry, now_ns)
        while started := self._scheduler.start(now_ns):
            key, queued_ns = started
            entry = self._entries[key]
            assert entry.step is not None, "a scheduled stream has a step"
            entry.queued_ns, entry.started_ns = queued_ns, now_ns
            effects.append(StartStep(key, entry.step, entry.flags))
        return effects

    def _offer(self, entry: _Entry, ready_ns: int) -> list[Effect]:
        key = entry.tag.key
        if entry.leaving or entry.outbox or self._scheduler.waits(key) or self._scheduler.runs(key):
            return []
        try:
            step = entry.model.next_step()
        except StageFailure as failure:
            return self._leave(entry, "failed", failure.code, str(failure))
        if step is None:
            return self._leave(entry, "finished") if entry.model.finished else []
        credit = entry.publish_credit or entry.onward_credit
        if credit is not None and step.units > credit.available:
            return [] if step.units <= credit.window else self._leave_too_large(entry, step.units, credit)
        entry.step = step
        self._scheduler.offer(key, step.urgency, ready_ns)
        return []

    def progress(self, key: str, outputs: Sequence[Output]) -> list[Effect]:
        """A running step hands outputs over early."""
        entry = self._entries.get(key)
        if entry is None or entry.leaving:
            return self._drop_stale()
        return self._deliver(entry, outputs)

    def step_done(self, key: str, result: object, failure: StageFailure | None, now_ns: int) -> list[Effect]:
        """The running step of `key` has come back with `result`, or failed."""
        self._scheduler.done(key)
        entry = self._entries[key]
        step, entry.step = entry.step, None
        assert step is not None, "only a running step comes back"
        if entry.leaving:
            effects = self._depart(entry)
        elif failure is not None:
            effects = self._leave(entry, "failed", failure.code, str(failure))
        else:
            timing = StepDone(entry.tag, step.kind, entry.queued_ns, now_ns - entry.started_ns)
            effects = [Send(entry.control, timing), *self._finish(entry, result)]
        return effects + self.run_steps(now_ns)

    def _finish(self, entry: _Entry, result: object) -> list[Effect]:
        try:
            outputs = entry.model.finish_step(result)
        except StageFailure as failure:
            return self._leave(entry, "failed", failure.code, str(failure))
        return self._deliver(entry, outputs)

    # ---- outputs ---------------------------------------------------------------------------------

    def _deliver(self, entry: _Entry, outputs: Sequence[Output]) -> list[Effect]:
        effects: list[Effect] = []
        for output in outputs:
            match output:
                case Consumed(units):
                    if entry.source is not None and units:
                        effects.append(Send(entry.source, Grant(entry.tag, units)))
                case Emit() if not entry.onward:
                    pass
                case _:
                    entry.outbox.append(output)
        return effects + self._flush(entry)

    def _flush(self, entry: _Entry) -> list[Effect]:
        effects: list[Effect] = []
        while entry.outbox:
            output = entry.outbox[0]
            credit = entry.publish_credit if isinstance(output, Publish) else entry.onward_credit
            assert credit is not None or not output.units, "an output that costs units goes over an edge with credit"
            if credit is not None and output.units > credit.window:
                return effects + self._leave_too_large(entry, output.units, credit)
            if credit is not None and not credit.take(output.units):
                break
            effects.append(self._hand_over(entry, output))
            entry.outbox.popleft()
        entry.flags.stalled = bool(entry.outbox)
        return effects

    def _hand_over(self, entry: _Entry, output: Emit | Publish) -> Send:
        if isinstance(output, Publish):
            return self._published(entry, output.event)
        assert self._onward_link is not None, "a stream without its next stage has left"
        return Send(self._onward_link, Feed(entry.tag, output.item, output.units))

    def _leave_too_large(self, entry: _Entry, units: int, credit: Credit) -> list[Effect]:
        message = f"{units} units never fit the window of {credit.window}"
        return self._leave(entry, "failed", "hand_over_too_large", message)

    def _published(self, entry: _Entry, event: Event) -> Send:
        return Send(self._media_link(entry.control), Published(entry.tag, event))

    def _media_link(self, control: int) -> int:
        """The media link of the gateway behind `control`; its control link until that one is there."""
        peer = self._peers.get(control)
        name = peer.name if peer else ""
        return next((k for k, other in self._peers.items() if other.name == name and other.role == "media"), control)

    # ---- endings ---------------------------------------------------------------------------------

    def _leave(self, entry: _Entry, outcome: Outcome, code: str = "", message: str = "") -> list[Effect]:
        """End `entry` now, or as soon as its running step has come back."""
        if entry.leaving:
            return []
        entry.leaving = (outcome, code, message)
        entry.flags.cancelled = True
        if self._scheduler.runs(entry.tag.key):
            return []
        self._scheduler.withdraw(entry.tag.key)
        return self._depart(entry)

    def _depart(self, entry: _Entry) -> list[Effect]:
        assert entry.leaving is not None, "only a leaving stream departs"
        outcome, code, message = entry.leaving
        released = {kind: count for kind, count in entry.model.held().items() if count}
        entry.model.close()
        del self._entries[entry.tag.key]
        self._release_session(entry.tag.session)
        return [Send(entry.control, Closed(entry.tag, outcome, released, code, message))]

    def _drop_stale(self) -> list[Effect]:
        self._stale += 1
        return []

    def _entries_where(self, wanted: _Wanted) -> list[_Entry]:
        return [entry for entry in self._entries.values() if wanted(entry)]

    def statistics(self) -> StageStatistics:
        return StageStatistics(len(self._entries), len(self._sessions), self._stale, self._scheduler.statistics())


def _identity(hello: Hello) -> tuple[str, int]:
    """Name and incarnation of a peer. A gateway has a name of its own in each of its lives."""
    if hello.role != "data":
        return hello.name, 0
    stage, _, incarnation = hello.name.partition("/")
    return stage, int(incarnation) if incarnation.isdecimal() else 0


def _may_lack_input(entry: _Entry, link: int) -> bool:
    """Something handed over to `entry` may have been lost with `link`, which nobody would hand over again."""
    return bool(entry.tag.response) and not entry.input_ended and entry.source in (None, link)


def _is_output(tag: Tag, ended: EndEpoch) -> bool:
    return tag.session == ended.session and bool(tag.response) and OUT_OF_BAND < tag.epoch < ended.epoch
