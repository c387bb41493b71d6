"""One stage as the gateway's calls see it: orders and feeds in, frames out, whichever replica does the work.

Theory of operation
    `stages.pool` decides which replica is a session's home and when a stream may be opened there; this keeps the
    streams. Control and media links have no common order, so feeds for a stream wait here until its worker has said
    `Opened`. A stream that is asked for while no replica can take it waits with its feeds, and so does one whose next
    stages are not within reach of its replica; whoever asked has a deadline.

    A worker that is lost before it has answered for a stream, or the stages behind it have, has begun nothing that
    anybody saw: the stream is asked for again, elsewhere or of its successor. A stream that had begun is told to be
    lost at once. What it held is told to be given back, as `Closed`, when its process is dead for certain: when a
    higher incarnation introduces itself; or, where only its links were lost, once it answers that it holds nothing.

Rules
* All streams of a session at this stage run at its home.
* A waiting stream that is cancelled, or refused by the pool, is answered as its worker would have done.
* Its time goes on while it waits: a worker is told what is left of it when it is asked.
* A session that is closed has left its worker, and its place there is free, once all its streams were answered for.
* What waits for `Opened` is bounded by `UNOPENED_FEEDS_MAX` per stream, streams that wait by the pool.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import structlog
from msgspec import structs

from duplex.stage_client import ClientCallbacks, StageClient
from stages import pool as assignment
from stages.contracts import Item, PrefillOptions, Tag
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

UNOPENED_FEEDS_MAX = 256  # the encoder's credit of 2 s in 20 ms pieces, twice over
PROBE_AGAIN_NS = 200_000_000  # a running step comes back within about 150 ms
DOWNSTREAM_LOST = "downstream_lost"
# The loss of a stage is seen by us and by its neighbours: whoever tells first, it is the same fault.
SAME_LOSS = {DOWNSTREAM_LOST: "stage_lost", "upstream_lost": "stage_lost"}

_log = structlog.get_logger("duplex.stage_pool")


class StageUnresponsiveError(RuntimeError):
    """No worker answered `Open` while far more than a moment's input came in for it."""


@dataclass(frozen=True, slots=True)
class PoolCallbacks:
    """Called on the loop. `lost(stage, tag)`: what was being made for `tag` cannot be finished.

    `untouched(tag)`: nothing that was made for `tag`, at any stage, has been seen. `changed`: what waits at any stage
    may be able to go on. `reachable(stage, replica, up)`: for the metrics.
    """

    frame: Callable[[str, Frame], None]
    lost: Callable[[str, Tag], None]
    untouched: Callable[[Tag], bool]
    changed: Callable[[], None]
    reachable: Callable[[str, str, bool], None]


class Replica(Protocol):
    """The links to one replica; `StageClient` but in simulations."""

    @property
    def is_up(self) -> bool: ...
    @property
    def onward(self) -> frozenset[str]: ...
    def order(self, frame: Frame, /) -> None: ...
    def feed(self, feed: Feed, /) -> None: ...


class Surroundings(Protocol):
    """What a pool lives in: time, a loop, and ways to its replicas."""

    def link_to(self, replica: str, address: str, gateway: str, callbacks: ClientCallbacks, /) -> Replica: ...

    def now_ns(self) -> int:
        """Monotonic time."""
        ...

    def later(self, delay_ns: int, call: Callable[[], None], /) -> None:
        """Let `call` happen in `delay_ns`; at 0, once what happens now has happened."""
        ...

    def note(self, what: str, /, **about: str) -> None:
        """For the log."""
        ...


class RunningLoop:
    """The surroundings of a process: its clock, its event loop, its sockets."""

    def link_to(self, replica: str, address: str, gateway: str, callbacks: ClientCallbacks, /) -> Replica:
        return StageClient(replica, address, gateway, callbacks)

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def later(self, delay_ns: int, call: Callable[[], None], /) -> None:
        loop = asyncio.get_running_loop()
        if delay_ns:
            loop.call_later(delay_ns / 1e9, call)
        else:
            loop.call_soon(call)

    def note(self, what: str, /, **about: str) -> None:
        _log.info(what, **about)


@dataclass(slots=True)
class _Stream:
    """`ordered_ns`: when it was asked for, with all the time that `open` says. `client`: where it is to be, once that
    is decided. `begun`: a worker has answered. `unopened`: what is fed to it until then; None once it was cancelled or
    opened."""

    open: Open
    ordered_ns: int
    client: Replica | None = None
    begun: bool = False
    unopened: list[Feed] | None = field(default_factory=list)


@dataclass(slots=True)
class _Leaving:
    """A closed session, the streams that its workers have yet to answer for, and whom it keeps waiting. `audited`: it
    is to be once it has left."""

    streams: dict[Tag, Replica] = field(default_factory=dict)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    audited: bool = False


@dataclass(slots=True, eq=False)
class _Lost:
    """What a worker that is out of reach may hold of `tag`. `had_begun`: its end there is that of the stream, which
    otherwise is asked for again; it may have come there nevertheless, as an order that was on its way. `last`: the last
    word of the stream, which waits for this. `probes`: how often somebody has begun to ask for it, as one does each
    time that the worker is reached again.
    """

    tag: Tag
    incarnation: int
    had_begun: bool
    last: Closed | Refused | None = None
    probes: int = 0


def _is_of(tag: Tag, session: str, stream: str) -> bool:
    return tag.session == session and stream in ("", tag.key)


class StagePool:
    """`addresses`: the replicas with where they listen. `onward`: the stages that streams may hand over to."""

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
    ) -> None:
        self.stage = stage
        self._callbacks = callbacks
        self._surroundings = surroundings or RunningLoop()
        self._onward = dict(onward or {})
        self._core = Pool(addresses, limits)
        to_us = ClientCallbacks(self._frame, self._up, self._down)
        link_to = self._surroundings.link_to
        self._clients = {name: link_to(name, address, gateway, to_us) for name, address in addresses.items()}
        self._epochs: dict[str, int] = {}
        self._streams: dict[str, _Stream] = {}
        self._held: dict[str, _Stream] = {}  # of these, those that no worker was asked for yet
        self._lost: dict[str, list[_Lost]] = {name: [] for name in addresses}
        self._leaving: dict[str, _Leaving] = {}
        self._usable = asyncio.Event()

    # ---- life ------------------------------------------------------------------------------------

    @property
    def clients(self) -> tuple[StageClient, ...]:
        """One for each replica; each is to be run."""
        return tuple(client for client in self._clients.values() if isinstance(client, StageClient))

    @property
    def ready(self) -> bool:
        """Streams can be opened, through to the last stages behind this one."""
        behind = [pool.replicas_up for pool in self._onward.values()]
        return any(client.is_up and all(client.onward & names for names in behind) for client in self._clients.values())

    @property
    def streams(self) -> int:
        """How many were asked for and are not over, those included that a lost process may still hold."""
        return len(self._streams) + sum(map(len, self._lost.values()))

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
                self._end_epoch(session, epoch, frame)
            case Open(tag):
                now_ns = self._surroundings.now_ns()
                self._streams[tag.key] = self._held[tag.key] = _Stream(frame, now_ns)
                self._carry_out(self._core.begin(tag.session, tag.key, now_ns))
            case Cancel(tag):
                self._cancel(tag, frame)
            case Grant(tag) | Cut(tag):
                stream = self._stream(tag)
                if stream is not None and stream.client is not None:
                    stream.client.order(frame)

    def inspect(self) -> None:
        """Ask every replica for a `WorkerSnapshot`."""
        for client in self._clients.values():
            if client.is_up:
                client.order(Inspect())

    def audit(self, tag: Tag) -> None:
        """See what is still held of the stream `tag`, which has drained: at every replica, and here. The answers come
        as `Audited`."""
        self._audit(Audit(tag.session, tag.key))

    def audit_session(self, session: str) -> None:
        """The same of all of a session that was closed, as soon as it has left; unless it was opened again by then."""
        if session in self._leaving:
            self._leaving[session].audited = True
        elif session not in self._epochs:
            self._audit(Audit(session))

    def _audit(self, asked: Audit) -> None:
        for client in self._clients.values():
            if client.is_up:
                client.order(asked)
        self._answer(audited(GATEWAY, asked, self._held_of(asked.session, asked.stream), {}))

    def _held_of(self, session: str, stream: str) -> dict[str, int]:
        """What was lost with a session's worker is accounted for: it ends with that."""
        known = [one.open.tag for one in self._streams.values()]
        lost = [one.tag for lost in self._lost.values() for one in lost] if stream else []
        places = self._core.holds(stream) if stream else self._core.home(session) is not None
        return {
            "streams": sum(_is_of(tag, session, stream) for tag in known),
            "lost": sum(_is_of(tag, session, stream) for tag in lost),
            "places": int(places),
        }

    def _forget(self, key: str) -> _Stream:
        self._held.pop(key, None)
        return self._streams.pop(key)

    def _stream(self, tag: Tag) -> _Stream | None:
        """The stream of `tag`, and not one of the same name that an earlier owner of the session had."""
        stream = self._streams.get(tag.key)
        return stream if stream is not None and stream.open.tag == tag else None

    def _close_session(self, session: str) -> None:
        """What a worker was asked for is known until it has let go, or has died: somebody may still count on that."""
        del self._epochs[session]
        for stream in [stream for stream in self._streams.values() if stream.open.tag.session == session]:
            if stream.open.tag.key in self._held:
                self._give_up(stream)
            else:
                stream.unopened = None
                if stream.client is not None:
                    self._leaving.setdefault(session, _Leaving()).streams[stream.open.tag] = stream.client
        self._carry_out(self._core.leave(session, self._surroundings.now_ns()))

    def _let_go(self, tags: Sequence[Tag]) -> None:
        """A worker holds nothing of these any more."""
        for tag in tags:
            leaving = self._leaving.get(tag.session)
            if leaving is not None and leaving.streams.pop(tag, None) is not None and not leaving.streams:
                del self._leaving[tag.session]
                leaving.left.set()
                if leaving.audited:
                    self._surroundings.later(0, partial(self.audit_session, tag.session))

    async def until_left(self, session: str) -> None:
        """Return once no worker of the stage that is within reach holds anything for `session`, which was closed."""
        leaving = self._leaving.get(session)
        if leaving is not None:
            await leaving.left.wait()

    def _end_epoch(self, session: str, epoch: int, frame: EndEpoch) -> None:
        self._epochs[session] = epoch
        home = self._core.home(session)
        if home is not None:
            self._clients[home].order(frame)

    def _cancel(self, tag: Tag, frame: Cancel) -> None:
        stream = self._stream(tag)
        if stream is None:
            return
        if tag.key not in self._held and stream.client is not None:
            stream.unopened = None
            stream.client.order(frame)
            return
        self._give_up(stream)

    def _give_up(self, stream: _Stream) -> None:
        """No worker was asked for it: nothing is held."""
        tag = stream.open.tag
        self._drop(tag)
        self._end_later(Closed(tag, "cancelled", {}))

    def _answer(self, frame: Frame) -> None:
        """Tell what a worker would have, once the order has returned."""
        self._surroundings.later(0, lambda: self._callbacks.frame(self.stage, frame))

    def feed(self, tag: Tag, item: Item, units: int = 0) -> None:
        """Send on the media link, after the stream was opened. Raises `StageUnresponsiveError`."""
        stream = self._stream(tag)
        if stream is None:
            return
        feed = Feed(tag, item, units)
        if stream.begun and stream.client is not None:
            stream.client.feed(feed)
        elif stream.unopened is not None:
            if len(stream.unopened) >= UNOPENED_FEEDS_MAX:
                raise StageUnresponsiveError(f"the {self.stage} does not answer")
            stream.unopened.append(feed)

    # ---- the pool --------------------------------------------------------------------------------

    def _carry_out(self, effects: list[assignment.Effect]) -> None:
        for effect in effects:
            self._carry_out_one(effect)
        if effects:
            self._callbacks.changed()

    def _carry_out_one(self, effect: assignment.Effect) -> None:
        match effect:
            case assignment.Assign(session, replica):
                self._open_session(session, replica)
            case assignment.Move(session, source, target):
                self._surroundings.note(
                    "session_moved", stage=self.stage, session=session, source=source, target=target
                )
                self._clients[source].order(CloseSession(session))
                self._open_session(session, target)
            case assignment.Release(session, replica):
                self._clients[replica].order(CloseSession(session))
            case assignment.Begin(work, replica):
                self._streams[work].client = self._clients[replica]
            case assignment.Wait(_, until_ns):
                self._surroundings.later(max(0, until_ns - self._surroundings.now_ns()), self._tick)
            case assignment.Refuse(work, reason, retry_after_ns):
                tag = self._forget(work).open.tag
                message = f"no {self.stage} has room; try again in {math.ceil(retry_after_ns / 1e9)} s"
                self._end_later(Refused(tag, reason, message))
            case assignment.Retired(replica):
                self._surroundings.note("stage_retired", stage=replica)

    def _open_session(self, session: str, replica: str) -> None:
        self._clients[replica].order(OpenSession(session, self._epochs[session]))

    def _tick(self) -> None:
        self._carry_out(self._core.tick(self._surroundings.now_ns()))

    def _drop(self, tag: Tag) -> None:
        """The stream is over."""
        if self._stream(tag) is not None:
            self._forget(tag.key)
            self._carry_out(self._core.end(tag.key, self._surroundings.now_ns()))

    def open_waiting(self) -> None:
        """Ask workers for streams that can be opened now."""
        for stream in list(self._held.values()):
            if stream.client is not None:
                self._ask(stream, stream.client)
        if self.ready:
            self._usable.set()
        else:
            self._usable.clear()

    def _ask(self, stream: _Stream, client: Replica) -> None:
        session = stream.open.tag.session
        targets = [self._onward[name].replica_of(session) for name in stream.open.edges]
        replicas = tuple(target for target in targets if target in client.onward)
        if len(replicas) == len(targets):
            del self._held[stream.open.tag.key]
            client.order(structs.replace(stream.open, edges=replicas, lasts_ns_max=self._left_of(stream)))

    def _left_of(self, stream: _Stream) -> int | None:
        """How much longer it will be wanted."""
        lasts_ns_max = stream.open.lasts_ns_max
        if lasts_ns_max is None:
            return None
        return max(0, lasts_ns_max - (self._surroundings.now_ns() - stream.ordered_ns))

    # ---- the workers -----------------------------------------------------------------------------

    def _frame(self, replica: str, frame: Frame) -> None:
        match frame:
            case OnwardChanged():
                self._callbacks.changed()
                return
            case Retiring():
                self._retire(replica)
                return
            case Audited(_, session, key) if lost := self._lost_at(replica, session, key):
                self._probed(replica, lost, frame)
                return
            case Opened(tag) | Published(tag):
                self._begun(tag)
            case Refused(tag, code):
                self._let_go([tag])
                stream = self._stream(tag)
                if code == DOWNSTREAM_LOST and stream is not None and stream.unopened is not None:
                    self._held[tag.key] = stream  # it was asked for before we had heard of the loss
                    self._callbacks.changed()
                    return
                self._drop(tag)
                self._ended(replica, frame)
                return
            case Closed(tag):
                self._let_go([tag])
                self._drop(tag)
                self._ended(replica, frame)
                return
        self._callbacks.frame(self.stage, frame)

    def _retire(self, replica: str) -> None:
        """Take idle sessions elsewhere, and those that read ahead: that may go on for as long as their call."""
        client = self._clients[replica]
        self._carry_out(self._core.retire(replica, self._surroundings.now_ns()))
        for stream in [stream for stream in self._streams.values() if stream.client is client]:
            tag = stream.open.tag
            if isinstance(stream.open.options, PrefillOptions):
                self.order(Cancel(tag))
                self._callbacks.lost(self.stage, tag)

    def _begun(self, tag: Tag) -> None:
        stream = self._stream(tag)
        if stream is None or stream.client is None:
            return
        stream.begun = True
        feeds, stream.unopened = stream.unopened or [], None
        for feed in feeds:
            stream.client.feed(feed)

    def _up(self, replica: str, incarnation: int) -> None:
        self._callbacks.reachable(self.stage, replica, True)
        dead = [one for one in self._lost[replica] if one.incarnation < incarnation]
        self._lost[replica] = [one for one in self._lost[replica] if one.incarnation >= incarnation]
        self._carry_out(self._core.up(replica, incarnation, self._surroundings.now_ns()))
        self._callbacks.changed()
        for one in dead:
            self._given_back(one, "process_exit")
        for one in self._lost[replica]:
            one.probes += 1
            self._probe(replica, one, one.probes)

    # ---- what was lost with a link -----------------------------------------------------------------

    def _lost_at(self, replica: str, session: str, stream: str) -> _Lost | None:
        return next((one for one in self._lost[replica] if stream and _is_of(one.tag, session, stream)), None)

    def _probe(self, replica: str, lost: _Lost, number: int) -> None:
        """Ask whether the worker, which has outlived its links, still holds anything of it. Who has begun to ask later
        goes on with that."""
        if lost.probes == number and lost in self._lost[replica] and self._clients[replica].is_up:
            self._clients[replica].order(Audit(lost.tag.session, lost.tag.key))

    def _probed(self, replica: str, lost: _Lost, answer: Audited) -> None:
        if answer.held:
            self._surroundings.later(PROBE_AGAIN_NS, partial(self._probe, replica, lost, lost.probes))
            return
        self._lost[replica].remove(lost)
        self._given_back(lost, "link_lost")

    def _given_back(self, lost: _Lost, how: str) -> None:
        """A worker that was out of reach holds nothing of it any more."""
        last = Closed(lost.tag, "cancelled", {how: 1}) if lost.had_begun else lost.last
        if last is not None:
            self._end(last)

    def _ended(self, replica: str, last: Closed | Refused) -> None:
        """`replica` has said the last word of a stream, also for its own past."""
        self._lost[replica] = [one for one in self._lost[replica] if one.had_begun or one.tag != last.tag]
        self._end(last)

    def _end(self, last: Closed | Refused) -> None:
        """Tell the end of a stream, once no worker that is out of reach may hold anything of it. Its failure is told at
        once."""
        lost = (one for at_replica in self._lost.values() for one in at_replica)
        elsewhere = next((one for one in lost if one.tag == last.tag and not one.had_begun), None)
        if elsewhere is None:
            self._callbacks.frame(self.stage, last)
        elif isinstance(last, Refused):
            elsewhere.last = Closed(last.tag, "cancelled", {})
            self._callbacks.lost(self.stage, last.tag)
        else:
            elsewhere.last = last
            if last.outcome == "failed":
                self._callbacks.lost(self.stage, last.tag)

    def _end_later(self, last: Closed | Refused) -> None:
        """The same, once the order has returned."""
        self._surroundings.later(0, partial(self._end, last))

    def _has_begun(self, stream: _Stream) -> bool:
        """Its worker has answered, or the stages behind it have for it, or nobody knows that it has not."""
        return stream.begun or stream.unopened is None or not self._callbacks.untouched(stream.open.tag)

    def _down(self, replica: str, incarnation: int) -> None:
        self._callbacks.reachable(self.stage, replica, False)
        client, now_ns = self._clients[replica], self._surroundings.now_ns()
        streams = [stream for stream in self._streams.values() if stream.client is client]
        lost = [stream.open.tag for stream in streams if self._has_begun(stream)]
        for tag in lost:
            self._forget(tag.key)
        self._lost[replica] += [_Lost(tag, incarnation, had_begun=True) for tag in lost]
        of_client = [tag for one in self._leaving.values() for tag, by in one.streams.items() if by is client]
        self._let_go(of_client)
        effects = self._core.down(replica, incarnation, now_ns)
        for stream in streams:
            tag = stream.open.tag
            if tag.key in self._streams:
                if tag.key not in self._held:
                    self._lost[replica].append(_Lost(tag, incarnation, had_begun=False))
                stream.client, self._held[tag.key] = None, stream
                effects += self._core.begin(tag.session, tag.key, now_ns)
        self._carry_out(effects)
        self._callbacks.changed()
        for tag in lost:
            self._callbacks.lost(self.stage, tag)
