"""The gateway of a simulated world: one call's real conversation core, and the shell around it without sockets.

`Port` keeps the contract of the client of a stage, `Feeder` that of the way in: input goes to the encoder under credit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sessions import effects as do
from sessions.conversation import Conversation
from sessions.events import Event
from stages.contracts import AudioIn, Tag
from stages.contracts import Item as StageItem
from stages.credit import Credit
from stages.messages import (
    Cancel,
    Closed,
    EndEpoch,
    Feed,
    Frame,
    Grant,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Published,
    Refused,
    Welcome,
)
from tests.sim.clock import Clock, Wire

SAMPLES_PER_MS = 16
PIECE_SAMPLES = 1_600
ENCODER_CREDIT_SAMPLES = 32_000
PUMP_MS = 100


class Watcher(Protocol):
    """Sees everything that the conversation does."""

    def saw(self, effects: Sequence[do.Effect]) -> None: ...
    def told(self, event: Event) -> None: ...


@dataclass(slots=True)
class _Stream:
    """`asked`: the worker was told to open it; `begun`: it has answered. Until then feeds wait."""

    open: Open
    asked: bool = False
    begun: bool = False
    feeds: list[Feed] = field(default_factory=list)


class Port:
    """The gateway's end of its links to one stage, which has one replica."""

    def __init__(self, stage: str, clock: Clock, call: Call) -> None:
        self._stage = stage
        self._clock = clock
        self._call = call
        self._control: Wire | None = None
        self._media: Wire | None = None
        self._incarnation = 0
        self._onward: set[str] = set()
        self._streams: dict[str, _Stream] = {}
        self._lost: list[tuple[Tag, int]] = []

    @property
    def is_connected(self) -> bool:
        return self._control is not None

    def reaches(self, *targets: str) -> bool:
        """Streams that hand over to `targets` can be opened."""
        return self._control is not None and self._onward.issuperset(targets)

    def connected(self, control: Wire, media: Wire, welcome: Welcome) -> None:
        self._control, self._media, self._onward = control, media, set(welcome.onward)
        dead = [tag for tag, incarnation in self._lost if incarnation < welcome.incarnation]
        self._lost = [one for one in self._lost if one[0] not in dead]
        self._incarnation = welcome.incarnation
        self._control.send(OpenSession("sess", self._call.core.epoch))
        self._open_waiting()
        for tag in dead:
            self._call.frame(self._stage, Closed(tag, "cancelled", {"process_exit": 1}))

    def lost(self) -> None:
        for wire in (self._control, self._media):
            if wire is not None:
                wire.cut()
        self._control = self._media = None
        lost = [stream.open.tag for stream in self._streams.values() if stream.begun]
        self._streams = {key: stream for key, stream in self._streams.items() if not stream.begun}
        for stream in self._streams.values():
            stream.asked = False
        self._lost += [(tag, self._incarnation) for tag in lost]
        for tag in lost:
            self._call.lost(self._stage, tag)

    def frame(self, frame: Frame) -> None:
        match frame:
            case OnwardChanged(target, up):
                self._onward = self._onward | {target} if up else self._onward - {target}
                self._open_waiting()
                return
            case Opened(tag) | Published(tag) if tag.key in self._streams:
                stream = self._streams[tag.key]
                stream.begun = True
                for feed in stream.feeds:
                    self._send_media(feed)
                stream.feeds.clear()
            case Refused(tag, "downstream_lost") if tag.key in self._streams:
                self._streams[tag.key].asked = False
                self._open_waiting()
                return
            case Refused(tag) | Closed(tag):
                self._streams.pop(tag.key, None)
        self._call.frame(self._stage, frame)

    def _open_waiting(self) -> None:
        for stream in self._streams.values():
            if not stream.asked and self.reaches(*stream.open.edges) and self._control is not None:
                stream.asked = True
                self._control.send(stream.open)

    def order(self, frame: Frame) -> None:
        match frame:
            case Open(tag):
                assert tag.key not in self._streams, "each stream has a name of its own"
                self._streams[tag.key] = _Stream(frame)
                self._open_waiting()
                return
            case Cancel(tag):
                stream = self._streams.get(tag.key)
                if stream is not None and not stream.asked:
                    del self._streams[tag.key]
                    self._clock.after(0, lambda: self._call.frame(self._stage, Closed(tag, "cancelled", {})))
                    return
        if self._control is not None:
            self._control.send(frame)

    def feed(self, feed: Feed) -> None:
        stream = self._streams.get(feed.tag.key)
        if stream is None or stream.begun:
            self._send_media(feed)
        else:
            stream.feeds.append(feed)

    def _send_media(self, feed: Feed) -> None:
        if self._media is not None:
            self._media.send(feed)


@dataclass(slots=True)
class _Feeding:
    tag: Tag
    next_sample: int
    until: int | None
    credit: Credit = field(default_factory=lambda: Credit(ENCODER_CREDIT_SAMPLES))
    after: list[StageItem] = field(default_factory=list)


class Feeder:
    """The way from the microphone, which never stops, to the encoder."""

    def __init__(self, clock: Clock, port: Port) -> None:
        self._clock = clock
        self._port = port
        self._feeding: dict[str, _Feeding] = {}
        self.uncommitted_from = self.newest

    @property
    def newest(self) -> int:
        return self._clock.now_ns * SAMPLES_PER_MS // 1_000_000

    @property
    def waiting(self) -> int:
        return len(self._feeding)

    def hear_from(self, tag: Tag, sample: int, until: int | None) -> None:
        self._feeding[tag.key] = _Feeding(tag, sample, until)
        self._pump_on(tag)

    def _pump_on(self, tag: Tag) -> None:
        self.pump()
        feeding = self._feeding.get(tag.key)
        if feeding is not None and feeding.until is None:
            self._clock.after(PUMP_MS, lambda: self._pump_on(tag))

    def stop_hearing(self, tag: Tag) -> None:
        feeding = self._feeding.get(tag.key)
        if feeding is not None:
            feeding.until = self.newest
            self.pump()

    def tell(self, tag: Tag, item: StageItem) -> None:
        feeding = self._feeding.get(tag.key)
        if feeding is None:
            self._port.feed(Feed(tag, item, 0))
        else:
            feeding.after.append(item)
            self.pump()

    def drop(self, tag: Tag) -> None:
        self._feeding.pop(tag.key, None)

    def credit_returned(self, tag: Tag, samples: int) -> None:
        feeding = self._feeding.get(tag.key)
        if feeding is not None:
            feeding.credit.give_back(samples)
            self.pump()

    def pump(self) -> None:
        for feeding in tuple(self._feeding.values()):
            self._pump_one(feeding)

    def _pump_one(self, feeding: _Feeding) -> None:
        end = self.newest if feeding.until is None else min(feeding.until, self.newest)
        piece_min = PIECE_SAMPLES if feeding.until is None and not feeding.after else 1
        while end - feeding.next_sample >= piece_min:
            count = min(PIECE_SAMPLES, end - feeding.next_sample)
            if not feeding.credit.take(count):
                return
            self._port.feed(Feed(feeding.tag, AudioIn(feeding.next_sample, bytes(2 * count)), count))
            feeding.next_sample += count
        for item in feeding.after:
            self._port.feed(Feed(feeding.tag, item, 0))
        feeding.after.clear()


class Call:
    """Carries out what the conversation decides. `reset_gate` is called where the speech under way is forgotten."""

    def __init__(
        self, core: Conversation, clock: Clock, stages: Sequence[str], watcher: Watcher, reset_gate: Callable[[], None]
    ) -> None:
        self.core = core
        self.ports = {stage: Port(stage, clock, self) for stage in stages}
        self.feeder = Feeder(clock, self.ports["encoder"])
        self.has_room = True
        self._clock = clock
        self._watcher = watcher
        self._reset_gate = reset_gate

    # ---- from the stages ---------------------------------------------------------------------------

    def frame(self, stage: str, frame: Frame) -> None:
        core, now_ns = self.core, self._clock.now_ns
        match frame:
            case Published(tag, event):
                self.carry_out(core.published(tag, event, now_ns))
                self.send_due()
            case Grant(tag, units):
                self.feeder.credit_returned(tag, units)
            case Opened(tag):
                self.carry_out(core.opened(tag, stage, now_ns))
            case Refused(tag, code, message):
                self._stream_gone(stage, tag)
                self.carry_out(core.refused(tag, stage, code, message, now_ns))
            case Closed(tag, outcome, released, code, message):
                self._stream_gone(stage, tag)
                same = {"downstream_lost": "stage_lost"}
                failure = (same.get(code, code), message) if outcome == "failed" else None
                self.carry_out(core.closed(tag, stage, released, failure, now_ns))

    def _stream_gone(self, stage: str, tag: Tag) -> None:
        if stage == "encoder":
            self.feeder.drop(tag)

    def lost(self, stage: str, tag: Tag) -> None:
        self._stream_gone(stage, tag)
        self.carry_out(self.core.lost(tag, stage, self._clock.now_ns))

    # ---- to the client -----------------------------------------------------------------------------

    def pace(self) -> None:
        due_ns = self.core.next_deadline_ns()
        if due_ns is not None and self._clock.now_ns >= due_ns:
            self.carry_out(self.core.tick(self._clock.now_ns))
        self.send_due()

    def send_due(self) -> None:
        while self.has_room:
            effects = self.core.take_due(self._clock.now_ns)
            if not effects:
                break
            self.carry_out(effects)

    # ---- effects -----------------------------------------------------------------------------------

    def carry_out(self, effects: Sequence[do.Effect]) -> None:
        self._watcher.saw(effects)
        for effect in effects:
            self._carry_out_one(effect)

    def _carry_out_one(self, effect: do.Effect) -> None:
        match effect:
            case do.Tell(event):
                self._watcher.told(event)
            case do.OpenStream(stage, tag, options, edges):
                self.ports[stage].order(Open(tag, options, edges))
            case do.FeedStream("encoder", tag, item):
                self.feeder.tell(tag, item)
            case do.FeedStream(stage, tag, item):
                self.ports[stage].feed(Feed(tag, item, 0))
            case do.CancelStream(stage, tag):
                self._stream_gone(stage, tag)
                self.ports[stage].order(Cancel(tag))
            case do.GrantCredit(stage, tag, samples):
                self.ports[stage].order(Grant(tag, samples))
            case do.EndEpoch(epoch):
                for port in self.ports.values():
                    port.order(EndEpoch("sess", epoch))
            case do.HearFrom(tag, sample, until):
                self.feeder.hear_from(tag, sample, until)
            case do.StopHearing(tag):
                self.feeder.stop_hearing(tag)
            case do.ResetGate():
                self.feeder.uncommitted_from = self.feeder.newest
                self._reset_gate()
