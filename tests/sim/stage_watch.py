"""What must hold after every step of one worker, told from the frames that come and go.

Rules that are checked
* A stream that was opened sends exactly one `Closed`; nothing is sent or computed for it outside its life, nor
  computed once it was cancelled or its epoch has ended.
* No step starts once its stream's time is over, and only then does one leave for want of time. Output has an end, and
  input work none.
* Whoever does not own a session, or speaks for an earlier fence, epoch, stream or process, changes nothing.
* What is in flight never exceeds the window of its edge. Input credit goes back at most once, and wholly where the
  stream finished. Published sound is gapless, each piece once.
* Streams and sessions stay within their limits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stages.contracts import OUT_OF_BAND, AudioOut, Clause, Tag
from stages.edges import GATEWAY, OutEdge
from stages.effects import Effect, Send, StartBatch
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
    LinkRole,
    Open,
    Opened,
    OpenSession,
    Published,
    Refused,
    SessionOpened,
    SessionRefused,
    StepDone,
)
from stages.stage import STREAMS_MAX


@dataclass(slots=True)
class _Stream:
    """A stream in its life. `ends_ns`: when its time is over. `ended`: only its `Closed` is still to come. `in_flight`
    by target stage."""

    tag: Tag
    control: int
    edges: tuple[str, ...]
    ends_ns: float
    ended: bool = False
    fed: int = 0
    granted: int = 0
    in_flight: Counter[str] = field(default_factory=Counter)
    seq: int = 0
    samples: int = 0
    sample_rate: int = 0  # of its sound


@dataclass(slots=True)
class _Session:
    owner: int
    epoch: int


class StageWatch:
    """Raises `AssertionError` at the step that breaks a promise.

    `edges` as the stage's. `observes`: it looks on, so that its streams outlive their epochs.
    """

    def __init__(self, stage: str, edges: Sequence[OutEdge], counts: Counter[str], *, observes: bool) -> None:
        self._stage = stage
        self._edges = {edge.target: edge for edge in edges}
        self._targets = {name: edge.target for edge in edges if edge.target != GATEWAY for name in edge.replica_names}
        self._observed = {edge.target for edge in edges if edge.observed}
        self._observes = observes
        self._counts = counts
        self._peers: dict[int, tuple[LinkRole, str]] = {}
        self._newest: dict[str, int] = {}
        self._onward: dict[int, str] = {}
        self._sessions: dict[str, _Session] = {}
        self._streams: dict[str, _Stream] = {}
        self._now_ns = 0
        self._taken: tuple[int, Frame] | None = None
        self._is_stale = False

    def holds(self, response: str) -> bool:
        return any(stream.tag.response == response for stream in self._streams.values())

    @property
    def streams(self) -> tuple[Tag, ...]:
        """What is open, or has not been let go."""
        return tuple(stream.tag for stream in self._streams.values())

    # ---- links -------------------------------------------------------------------------------------

    def link_up(self, link: int, hello: Hello) -> None:
        """Whoever introduces themselves anew has left the link before."""
        for other, (role, name) in list(self._peers.items()):
            if (role, name) == (hello.role, hello.name):
                self.link_lost(other)
        self._peers[link] = (hello.role, hello.name)
        if hello.role == "data":
            stage, incarnation = _process(hello.name)
            self._newest[stage] = max(incarnation, self._newest.get(stage, 0))

    def onward_up(self, link: int, replica: str) -> None:
        self._onward[link] = replica

    def link_lost(self, link: int) -> None:
        replica = self._onward.pop(link, None)
        if replica is not None and self._targets[replica] not in self._observed:
            self._end(lambda stream: replica in stream.edges)
        role, _ = self._peers.pop(link, ("media", ""))
        if role != "control":
            return  # a stage whose input may be lost fails by itself: its streams end here with their `Closed`
        lost = [name for name, held in self._sessions.items() if held.owner == link]
        for session in lost:
            del self._sessions[session]
        self._end(lambda stream: stream.control == link or stream.tag.session in lost)

    def _end(self, wanted: Callable[[_Stream], bool]) -> None:
        for stream in self._streams.values():
            stream.ended = stream.ended or wanted(stream)

    # ---- what comes --------------------------------------------------------------------------------

    def takes(self, link: int, frame: Frame, now_ns: int) -> None:
        """`frame` comes over `link`; what the stage does next follows from it."""
        self._now_ns = now_ns
        self._taken = link, frame
        self._is_stale = self._changes_nothing(link, frame)
        if self._is_stale:
            self._counts[f"stale {type(frame).__name__}"] += 1
        else:
            self._note(link, frame)

    def _changes_nothing(self, link: int, frame: Frame) -> bool:
        match frame:
            case OpenSession(session, epoch):
                held = self._sessions.get(session)
                return held is not None and epoch < held.epoch
            case CloseSession(session) | EndEpoch(session):
                return not self._owns(link, session)
            case Open(tag):
                return not self._owns(link, tag.session) or _is_over(tag, self._sessions[tag.session].epoch)
        return not self._is_of_its_stream(link, frame)

    def _is_of_its_stream(self, link: int, frame: Frame) -> bool:
        match frame:
            case Cancel(tag):
                return self._controls(link, tag) or self._feeds(link, tag)
            case Cut(tag):
                return self._controls(link, tag)
            case Grant(tag):
                return link in self._onward or self._controls(link, tag)
            case Feed(tag):
                return self._feeds(link, tag)
        return True

    def _owns(self, link: int, session: str) -> bool:
        held = self._sessions.get(session)
        return held is not None and held.owner == link

    def _controls(self, link: int, tag: Tag) -> bool:
        stream = self._streams.get(tag.key)
        return stream is not None and stream.tag == tag and stream.control == link

    def _feeds(self, link: int, tag: Tag) -> bool:
        """Input comes from the gateway that opened the stream, or from the newest process of the stage before."""
        stream = self._streams.get(tag.key)
        if stream is None or stream.tag != tag or link not in self._peers:
            return False
        role, name = self._peers[link]
        if role == "data":
            stage, incarnation = _process(name)
            return incarnation == self._newest[stage]
        return role == "media" and self._peers.get(stream.control) == ("control", name)

    def _note(self, link: int, frame: Frame) -> None:
        match frame:
            case EndEpoch(session, epoch):
                held = self._sessions[session]
                held.epoch = max(held.epoch, epoch)
                self._end(lambda stream: stream.tag.session == session and self._is_ended_by(stream, epoch))
            case CloseSession(session):
                del self._sessions[session]
                self._end(lambda stream: stream.tag.session == session)
            case Cancel(tag):
                self._streams[tag.key].ended = True
            case Feed(tag, Clause(text=text), 0):  # word for word of its gateway, which has no window to keep to
                self._streams[tag.key].fed += max(1, len(text))
            case Feed(tag, _, units):
                self._streams[tag.key].fed += units
            case Grant(tag, units):
                self._granted(link, tag, units)

    def _granted(self, link: int, tag: Tag, units: int) -> None:
        stream = self._streams.get(tag.key)
        if stream is None or stream.tag != tag or stream.ended:
            return
        target = self._targets[self._onward[link]] if link in self._onward else GATEWAY
        stream.in_flight[target] -= units
        assert stream.in_flight[target] >= 0, f"credit came back twice: {tag}"

    def _is_ended_by(self, stream: _Stream, epoch: int) -> bool:
        return not self._observes and _is_over(stream.tag, epoch)

    # ---- what the stage does -----------------------------------------------------------------------

    def does(self, effects: Sequence[Effect], now_ns: int) -> None:
        """These are the effects of what has come, or of a step that came back."""
        self._now_ns = now_ns
        taken, self._taken = self._taken, None
        if taken is not None and self._is_stale:
            self._is_answered_at_most(taken, effects)
        elif taken is not None and isinstance(taken[1], OpenSession):
            self._takes_session(taken[0], taken[1], effects)
        for effect in effects:
            if isinstance(effect, StartBatch):
                self._computes(effect)
            elif isinstance(effect, Send):
                self._sends(effect.link, effect.frame, taken)
        assert len(self._streams) <= STREAMS_MAX, "streams are bounded"

    @staticmethod
    def _is_answered_at_most(taken: tuple[int, Frame], effects: Sequence[Effect]) -> None:
        link, frame = taken
        for effect in effects:
            match effect:
                case Send(to, Refused() | SessionRefused()) if to == link:
                    pass
                case Send(_, Closed(code="plan_failed" | "deadline_exceeded")):
                    pass  # streams are looked at at every frame, and chance or time may end any of them then
                case _:
                    raise AssertionError(f"the stale {frame} led to {effect}")

    def _computes(self, batch: StartBatch) -> None:
        self._counts["steps"] += len(batch.steps)
        self._counts["batches"] += len(batch.steps) > 1
        for start in batch.steps:
            stream = self._streams.get(start.key)
            assert stream is not None, f"{self._stage} computes {start.key}, which is closed"
            assert not stream.ended, f"{self._stage} computes {start.key}, which has ended"
            assert self._now_ns < stream.ends_ns, f"{self._stage} computes {start.key}, whose time is over"

    def _sends(self, link: int, frame: Frame, taken: tuple[int, Frame] | None) -> None:
        match frame:
            case SessionOpened(session):
                assert self._owns(link, session), "who owns a session is told that it is open"
                others = [each for each in self._streams.values() if each.tag.session == session]
                assert all(each.control == link for each in others), "nothing is left of who had it before"
            case Opened(tag):
                self._opened(tag, taken)
            case Closed(tag):
                self._closed(link, tag, frame)
            case Feed(tag, _, units):
                stream, replica = self._alive(tag), self._onward.get(link, "")
                assert replica in stream.edges, f"{tag} hands over to {replica or 'nobody'}"
                self._takes_credit(stream, self._targets[replica], units)
            case Grant(tag, units):
                stream = self._alive(tag)
                stream.granted += units
                assert stream.granted <= stream.fed, f"{self._stage} gives credit back twice: {tag}"
            case Published(tag, event):
                stream = self._alive(tag)
                if isinstance(event, AudioOut):
                    self._publishes(stream, event)
            case StepDone(tag):
                self._alive(tag)

    def _alive(self, tag: Tag) -> _Stream:
        stream = self._streams.get(tag.key)
        assert stream is not None and stream.tag == tag, f"{self._stage} works for {tag}, which is not open"  # noqa: PT018
        assert not stream.ended, f"{self._stage} works for {tag}, which has ended"
        return stream

    def _takes_credit(self, stream: _Stream, target: str, units: int) -> None:
        window = self._edges[target].at(stream.sample_rate).window
        stream.in_flight[target] += units
        self._counts["credit used up"] += stream.in_flight[target] == window
        assert stream.in_flight[target] <= window, f"more in flight than the window: {stream.tag}"

    def _takes_session(self, link: int, frame: OpenSession, effects: Sequence[Effect]) -> None:
        refusals = (each.frame for each in effects if isinstance(each, Send) and each.link == link)
        if any(isinstance(refusal, SessionRefused) for refusal in refusals):
            return
        session, epoch = frame.session, frame.epoch
        self._sessions[session] = _Session(link, epoch)
        # Its owners before have no say any more, in whatever they had under way.
        mine = [each for each in self._streams.values() if each.tag.session == session]
        for stream in mine:
            stream.ended = stream.ended or stream.control != link or _is_over(stream.tag, epoch)

    def _opened(self, tag: Tag, taken: tuple[int, Frame] | None) -> None:
        assert taken is not None, "a stream is opened by somebody"
        link, frame = taken
        assert isinstance(frame, Open)
        known = self._streams.get(tag.key)
        if known is None:
            assert (frame.lasts_ns_max is not None) == bool(tag.response), "output has an end, input work has none"
            ends_ns = math.inf if frame.lasts_ns_max is None else self._now_ns + frame.lasts_ns_max
            self._streams[tag.key] = _Stream(tag, link, frame.edges, ends_ns)
            return
        assert known.tag == tag, "a name is one stream's"
        assert not known.ended, "what has ended is not opened again"
        known.control = link

    def _closed(self, link: int, tag: Tag, closed: Closed) -> None:
        stream = self._streams.pop(tag.key, None)
        assert stream is not None and stream.tag == tag, f"{self._stage} closes {tag}, which is not open"  # noqa: PT018
        self._check_terminal_link(link, stream.control, closed)
        self._counts[f"closed {closed.outcome} {closed.code}".strip()] += 1
        assert closed.code != "deadline_exceeded" or self._now_ns >= stream.ends_ns, f"{tag} had time left"
        if closed.outcome == "finished":
            assert not stream.ended, f"{tag} was ended and does not finish"
            is_whole = self._observes or stream.granted == stream.fed
            assert is_whole, f"{tag} finished and keeps {stream.fed - stream.granted} of its input"

    def _check_terminal_link(self, link: int, control: int, closed: Closed) -> None:
        """It goes to who opened the stream: a success the way of what was published."""
        if closed.outcome == "finished":
            role, name = self._peers[link]
            assert (role, name) == ("media", self._peers[control][1]), "nobody is told of a success before they have it"
        else:
            assert link == control or self._observes, "the terminal goes to who opened the stream"

    def _publishes(self, stream: _Stream, audio: AudioOut) -> None:
        wanted = stream.seq, stream.samples
        assert (audio.seq, audio.start_sample) == wanted, f"{stream.tag}: sound is gapless, each piece once"
        samples = len(audio.pcm) // 2
        stream.seq += 1
        stream.samples += samples
        stream.sample_rate = audio.sample_rate
        self._takes_credit(stream, GATEWAY, samples)


def _is_over(tag: Tag, epoch: int) -> bool:
    """True where output of `tag` is older than `epoch`."""
    return bool(tag.response) and OUT_OF_BAND < tag.epoch < epoch


def _process(name: str) -> tuple[str, int]:
    """Worker and incarnation in the name of a data link."""
    stage, _, incarnation = name.partition("/")
    return stage, int(incarnation)
