"""One stage as the gateway's calls see it: orders and feeds in, frames out, whichever replica does the work.

Theory of operation
    `stages.pool` decides which replica is a session's home and when a stream may be opened there. What streams there
    are is in `duplex.asked_streams`, what lost workers may hold of them in `duplex.lost_streams`, who has yet to leave
    in `duplex.leaving_sessions`. This tells them what happens, and carries out what they say.

    A stream that is asked for while no replica can take it waits with its feeds, and so does one whose next stages are
    not within reach of its replica; whoever asked has a deadline. A worker that is lost before it has answered for a
    stream has begun nothing that anybody may see, unless stages behind it have, or may yet by what it hands on: the
    stream is asked for again, elsewhere or of its successor. Any other is told to be lost at once, and to be closed
    once nothing of it is held.

Rules
* All streams of a session at this stage run at its home.
* A waiting stream that is cancelled, or refused by the pool, is answered as its worker would have done.
* A session that is closed has left its worker, and its place there is free, once all its streams were answered for.
* What waits for `Opened` is bounded for each stream, streams that wait by the pool.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from duplex.asked_streams import AskedStream, AskedStreams
from duplex.leaving_sessions import LeavingSessions, Left
from duplex.lost_streams import PROBE_AGAIN_NS, Ask, AskLater, Ended, Failed, LostStreams
from duplex.lost_streams import Effect as LossEffect
from duplex.stage_client import ClientCallbacks, StageClient
from duplex.surroundings import Replica, RunningLoop, Surroundings
from stages import pool as assignment
from stages.contracts import Item, PrefillOptions, Tag
from stages.dominant_shares import DominantShares
from stages.edges import GATEWAY
from stages.messages import (
    Audit,
    Audited,
    Cancel,
    Closed,
    CloseSession,
    Cut,
    EndEpoch,
    Feed,
    Frame,
    Grant,
    Inspect,
    InwardChanged,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Published,
    Refused,
    Retiring,
    audited,
)
from stages.pool import Pool, PoolLimits

DOWNSTREAM_LOST = "downstream_lost"
# The loss of a stage is seen by us and by its neighbours: whoever tells first, it is the same fault.
SAME_LOSS = dict.fromkeys((DOWNSTREAM_LOST, "upstream_lost", "media_lost"), "stage_lost")


class StageUnresponsiveError(RuntimeError):
    """No worker answered `Open` while far more than a moment's input came in for it."""


@dataclass(frozen=True, slots=True)
class PoolCallbacks:
    """Called on the loop. `lost(stage, tag)`: what was being made for `tag` cannot be finished.

    `untouched(tag)`: nothing that was made for `tag`, at any stage, has been seen or may be on its way. `changed`: what
    waits at any stage may be able to go on. `reachable(stage, replica, up)`: for the metrics.
    """

    frame: Callable[[str, Frame], None]
    lost: Callable[[str, Tag], None]
    untouched: Callable[[Tag], bool]
    changed: Callable[[], None]
    reachable: Callable[[str, str, bool], None]


class StagePool:
    """`addresses`: the replicas with where they listen. `onward`: the stages that streams may hand over to. `shares`:
    of the tenants, here and at other stages."""

    def __init__(
        self,
        stage: str,
        addresses: Mapping[str, str],
        gateway: str,
        callbacks: PoolCallbacks,
        *,
        limits: PoolLimits,
        onward: Mapping[str, StagePool] | None = None,
        surroundings: Surroundings | None = None,
        shares: DominantShares | None = None,
    ) -> None:
        self.stage = stage
        self._callbacks = callbacks
        self._surroundings = surroundings or RunningLoop()
        self._onward = dict(onward or {})
        self._core = Pool(addresses, limits, shares, stage)
        to_us = ClientCallbacks(self._frame, self._up, self._down)
        link_to = self._surroundings.link_to
        self._clients = {name: link_to(name, address, gateway, to_us) for name, address in addresses.items()}
        self._epochs: dict[str, int] = {}
        self._streams = AskedStreams()
        self._lost = LostStreams(addresses)
        self._leaving = LeavingSessions()
        self._left: dict[str, asyncio.Event] = {}  # of those who are waited for
        self._usable = asyncio.Event()

    # ---- life ------------------------------------------------------------------------------------

    @property
    def clients(self) -> tuple[StageClient, ...]:
        """One for each replica; each is to be run."""
        return tuple(client for client in self._clients.values() if isinstance(client, StageClient))

    @property
    def ready(self) -> bool:
        """Streams can be opened, through to the last stages behind this one."""
        return any(
            client.is_up and all(self._reached(name, pool) for pool in self._onward.values())
            for name, client in self._clients.items()
        )

    @property
    def streams(self) -> int:
        """How many were asked for and are not over, those included that a lost process may still hold."""
        return len(self._streams) + sum(len(self._lost[name]) for name in self._clients)

    @property
    def replicas_up(self) -> frozenset[str]:
        return frozenset(name for name, client in self._clients.items() if client.is_up)

    async def until_ready(self) -> None:
        """Return once streams can be opened."""
        await self._usable.wait()

    def replica_of(self, session: str) -> str | None:
        """The home of `session`."""
        return self._core.home(session)

    # ---- orders ----------------------------------------------------------------------------------

    def order(self, frame: Frame) -> None:
        """Open or close a session or a stream, or tell its worker something of it.

        An `Open` names in `edges` the stages that it hands over to; the worker is told their replicas.
        """
        match frame:
            case OpenSession(session, epoch):
                self._epochs[session] = epoch
                self._carry_out(self._core.enter(session))
            case CloseSession(session):
                self._close_session(session)
            case EndEpoch(session, epoch):
                self._epochs[session] = epoch
                home = self._core.home(session)
                if home is not None:
                    self._clients[home].order(frame)
            case Open(tag):
                now_ns = self._surroundings.now_ns()
                self._streams.ask(frame, now_ns)
                self._carry_out(self._core.begin(tag.session, tag.key, now_ns, frame.tenant))
            case Cancel(tag):
                self._cancel(tag, frame)
            case Grant(tag) | Cut(tag):
                stream = self._streams.of(tag)
                if stream is not None and stream.replica is not None:
                    self._clients[stream.replica].order(frame)

    def inspect(self) -> None:
        """Ask every replica for a `WorkerSnapshot`."""
        for client in self._clients.values():
            if client.is_up:
                client.order(Inspect())

    def audit(self, tag: Tag) -> None:
        """See what is still held of the stream `tag`, drained, at every replica and here; told as `Audited`."""
        self._audit(Audit(tag.session, tag.key))

    def audit_session(self, session: str) -> None:
        """The same of all of a session that was closed, as soon as it has left; unless it was opened again by then."""
        if session in self._leaving:
            self._leaving.audit(session)
        elif session not in self._epochs:
            self._audit(Audit(session))

    def _audit(self, asked: Audit) -> None:
        for client in self._clients.values():
            if client.is_up:
                client.order(asked)
        ours = audited(GATEWAY, asked, self._held_of(asked.session, asked.stream), {})
        self._surroundings.later(0, partial(self._callbacks.frame, self.stage, ours))

    def _held_of(self, session: str, stream: str) -> dict[str, int]:
        """What was lost with a session's worker is accounted for: it ends with that."""
        places = self._core.holds(stream) if stream else self._core.home(session) is not None
        streams, lost = self._streams.count(session, stream), self._lost.count(session, stream)
        return {"streams": streams, "lost": lost, "places": int(places)}

    def _close_session(self, session: str) -> None:
        """What a worker was asked for is known until it has let go, or has died: somebody may still count on that."""
        del self._epochs[session]
        for stream in self._streams.of_session(session):
            if self._streams.is_held(stream):
                self._give_up(stream.tag)
            else:
                stream.cancel()
                if stream.replica is not None:
                    self._leaving.leave(stream.tag, stream.replica)
        self._carry_out(self._core.leave(session, self._surroundings.now_ns()))

    def _tell_left(self, sessions: Iterable[Left]) -> None:
        for one in sessions:
            waited_for = self._left.pop(one.session, None)
            if waited_for is not None:
                waited_for.set()
            if one.audited:
                self._surroundings.later(0, partial(self.audit_session, one.session))

    async def until_left(self, session: str) -> None:
        """Return once no worker of the stage that is within reach holds anything for `session`, which was closed."""
        if session in self._leaving:
            await self._left.setdefault(session, asyncio.Event()).wait()

    def _cancel(self, tag: Tag, frame: Cancel) -> None:
        stream = self._streams.of(tag)
        if stream is None:
            return
        if stream.replica is None or self._streams.is_held(stream):
            self._give_up(tag)
        else:
            stream.cancel()
            self._clients[stream.replica].order(frame)

    def _give_up(self, tag: Tag) -> None:
        """No worker was asked for it: nothing is held."""
        self._drop(tag)
        self._end_later(Closed(tag, "cancelled", {}))

    def feed(self, tag: Tag, item: Item, units: int = 0) -> None:
        """Send on the media link, after the stream was opened. Raises `StageUnresponsiveError`."""
        stream = self._streams.of(tag)
        if stream is None:
            return
        feed = Feed(tag, item, units)
        if stream.begun and stream.replica is not None:
            self._clients[stream.replica].feed(feed)
        elif not stream.keep(feed):
            raise StageUnresponsiveError(f"the {self.stage} does not answer")

    # ---- the pool --------------------------------------------------------------------------------

    def _carry_out(self, effects: list[assignment.Effect]) -> None:
        for effect in effects:
            self._carry_out_one(effect)
        if effects:
            self._callbacks.changed()

    def _carry_out_one(self, effect: assignment.Effect) -> None:
        match effect:
            case assignment.Assign(session, replica):
                self._clients[replica].order(OpenSession(session, self._epochs[session]))
            case assignment.Move(session, source, target):
                self._surroundings.note(
                    "session_moved", stage=self.stage, session=session, source=source, target=target
                )
                self._clients[source].order(CloseSession(session))
                self._clients[target].order(OpenSession(session, self._epochs[session]))
            case assignment.Release(session, replica):
                self._clients[replica].order(CloseSession(session))
            case assignment.Begin(work, replica):
                self._streams.named(work).replica = replica
            case assignment.Wait(_, until_ns):
                self._surroundings.later(max(0, until_ns - self._surroundings.now_ns()), self._tick)
            case assignment.Refuse(work, reason, retry_after_ns):
                stream = self._streams.named(work)
                self._streams.forget(stream)
                message = f"no {self.stage} has room; try again in {math.ceil(retry_after_ns / 1e9)} s"
                self._end_later(Refused(stream.tag, reason, message))
            case assignment.Retired(replica):
                self._surroundings.note("stage_retired", stage=replica)

    def _tick(self) -> None:
        self._carry_out(self._core.tick(self._surroundings.now_ns()))

    def _drop(self, tag: Tag) -> None:
        """The stream is over."""
        stream = self._streams.of(tag)
        if stream is not None:
            self._streams.forget(stream)
            self._carry_out(self._core.end(tag.key, self._surroundings.now_ns()))

    def open_waiting(self) -> None:
        """Ask workers for streams that can be opened now."""
        for stream in self._streams.held:
            if stream.replica is not None:
                self._ask(stream, self._clients[stream.replica])
        if self.ready:
            self._usable.set()
        else:
            self._usable.clear()

    def _reached(self, replica: str, pool: StagePool) -> frozenset[str]:
        """The replicas of a next stage to which ours has a link, as both say."""
        return frozenset(name for name in self._clients[replica].onward & pool.replicas_up if pool.hears(name, replica))

    def hears(self, replica: str, source: str) -> bool:
        """Our `replica` has the link of `source`, a replica of a stage before."""
        return source in self._clients[replica].inward

    def _ask(self, stream: AskedStream, client: Replica) -> None:
        assert stream.replica is not None, "a home is where it is asked for"
        pools = [self._onward[name] for name in stream.open.edges]
        reached = [(pool.replica_of(stream.tag.session), self._reached(stream.replica, pool)) for pool in pools]
        replicas = tuple(target for target, names in reached if target in names)
        if len(replicas) == len(pools):
            self._streams.release(stream)
            client.order(stream.asked_at(self._surroundings.now_ns(), replicas))

    # ---- the workers -----------------------------------------------------------------------------

    def _frame(self, replica: str, frame: Frame) -> None:
        match frame:
            case OnwardChanged() | InwardChanged():
                self._callbacks.changed()
            case Retiring():
                self._retire(replica)
            case Closed() | Refused():
                self._last_word(replica, frame)
            case Audited() if (effects := self._lost.answered(replica, frame)) is not None:
                self._account(effects)
            case Opened(tag) | Published(tag):
                self._begun(tag)
                self._callbacks.frame(self.stage, frame)
            case _:
                self._callbacks.frame(self.stage, frame)

    def _last_word(self, replica: str, last: Closed | Refused) -> None:
        """`replica` holds nothing of a stream: it is over, or came too early, and waits."""
        self._tell_left(self._leaving.let_go(last.tag))
        stream = self._streams.of(last.tag)
        if isinstance(last, Refused) and last.code == DOWNSTREAM_LOST and stream is not None and stream.is_pending:
            self._streams.hold(stream)  # it was asked for before we had heard of the loss
            self._callbacks.changed()
            return
        self._drop(last.tag)
        self._account(self._lost.ended(last, by=replica))

    def _retire(self, replica: str) -> None:
        """Take idle sessions elsewhere, and those that read ahead: that may go on for as long as their call."""
        self._carry_out(self._core.retire(replica, self._surroundings.now_ns()))
        for stream in self._streams.at(replica):
            if isinstance(stream.open.options, PrefillOptions):
                self.order(Cancel(stream.tag))
                self._callbacks.lost(self.stage, stream.tag)

    def _begun(self, tag: Tag) -> None:
        stream = self._streams.of(tag)
        if stream is not None and stream.replica is not None:
            for feed in stream.begin():
                self._clients[stream.replica].feed(feed)

    def _up(self, replica: str, incarnation: int) -> None:
        self._callbacks.reachable(self.stage, replica, True)
        self._carry_out(self._core.up(replica, incarnation, self._surroundings.now_ns()))
        self._callbacks.changed()
        self._account(self._lost.reached(replica, incarnation))

    def _down(self, replica: str, incarnation: int) -> None:
        self._callbacks.reachable(self.stage, replica, False)
        now_ns, streams = self._surroundings.now_ns(), self._streams.at(replica)
        lost = [stream for stream in streams if not self._may_ask_again(stream)]
        for stream in lost:
            self._streams.forget(stream)
            self._lost.lose(replica, incarnation, stream.tag, had_begun=True)
        self._tell_left(self._leaving.lost(replica))
        effects = self._core.down(replica, incarnation, now_ns)
        for stream in streams:
            if stream not in lost:
                if not self._streams.is_held(stream):
                    self._lost.lose(replica, incarnation, stream.tag, had_begun=False)
                    self._streams.hold(stream)
                stream.replica = None
                effects += self._core.begin(stream.tag.session, stream.tag.key, now_ns, stream.open.tenant)
        self._carry_out(effects)
        self._callbacks.changed()
        for stream in lost:
            self._callbacks.lost(self.stage, stream.tag)

    def _may_ask_again(self, stream: AskedStream) -> bool:
        """Its worker is lost, and was not asked for it yet, or has begun nothing that anybody may see."""
        return stream.is_pending and (self._streams.is_held(stream) or self._callbacks.untouched(stream.tag))

    def _account(self, effects: Iterable[LossEffect]) -> None:
        for effect in effects:
            match effect:
                case Ask(replica, tag):
                    if self._clients[replica].is_up:
                        self._clients[replica].order(Audit(tag.session, tag.key))
                case AskLater():
                    self._surroundings.later(PROBE_AGAIN_NS, partial(self._ask_again, effect))
                case Ended(last):
                    self._callbacks.frame(self.stage, last)
                case Failed(tag):
                    self._callbacks.lost(self.stage, tag)

    def _ask_again(self, question: AskLater) -> None:
        self._account(self._lost.ask_again(question))

    def _end_later(self, last: Closed | Refused) -> None:
        """A stream is over by our own word, once the order has returned."""
        self._surroundings.later(0, lambda: self._account(self._lost.ended(last)))
