"""What a process sends over its links: what may go now, what waits for room, and when a stream is rid of everything.

Theory of operation
    A payload frame takes its bytes from the window of its link; the peer gives them back once it has dealt with the
    frame. A payload over `INLINE_BYTES_MAX` needs a block of the arena as well, on links whose peer can read that. What
    finds no room waits here, in order, with all that its stream sends after it; the stream is told to pause, and told
    when it may go on. Nothing is tried again but on news of room: bytes or a block given back, a link lost.

Rules
* Frames without payload always go, whatever waits. A control link carries no payload.
* Streams that wait get room in the order in which they began to wait; one that may have none holds up nobody else.
* `Closed` says that nothing of the stream is held here. It therefore leaves last: after a success once all that waited
  was sent, and read where it lies in blocks; after a failure or a cancel, what was not sent is withdrawn at once.
* A stream that could not send a frame closes as failed, whatever it says itself: what follows would leave a gap.
* Effects are carried out in order. A `Place` is answered by `placed`, at once or later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from stages.block_table import BlockTable, Owner
from stages.contracts import DataRef, Tag
from stages.credit import Credit, CreditStatistics
from stages.link_window import FRAME_BYTES_MAX, HEADER_BYTES, LINK_WINDOW_BYTES
from stages.messages import (
    Closed,
    Feed,
    Frame,
    Grant,
    LinkRole,
    PayloadFrame,
    Published,
    encode,
    payload_of,
    with_payload,
)

INLINE_BYTES_MAX = 1 << 14  # below that, copying into a frame costs less than a block and its release


class SendError(RuntimeError):
    """A frame that its link can never carry: who made it must act."""


class FrameTooLargeError(SendError):
    """It, or its payload, is larger than any that goes over this link: it must be sent in pieces."""


class ControlPayloadError(SendError):
    """A payload was to be sent on a control link: a bug of the sender."""


class Write(msgspec.Struct, frozen=True):
    """Write the encoded frame on `link`. `may_wait`: together with what else is sent there in this moment."""

    link: int
    encoded: bytes
    may_wait: bool = False


class Place(msgspec.Struct, frozen=True):
    """Copy `payload` to the block `ref`, then say `placed`. The frame that names it is `encoded`."""

    link: int
    tag: Tag
    ref: DataRef
    payload: bytes
    encoded: bytes


class Pause(msgspec.Struct, frozen=True):
    """Stream `key` should send nothing more for now."""

    key: str


class GoOn(msgspec.Struct, frozen=True):
    """All that stream `key` has sent is on its way."""

    key: str


SendEffect = Write | Place | Pause | GoOn


@dataclass(frozen=True, slots=True)
class OutgoingStatistics:
    """`windows`: bytes by link. `waiting`: the streams that wait for room, each with how many frames do."""

    windows: dict[int, CreditStatistics]
    waiting: dict[str, int]


@dataclass(slots=True)
class _Lane:
    """A link. `lends`: its peer can read our arena."""

    role: LinkRole
    lends: bool
    window: Credit = field(default_factory=lambda: Credit(LINK_WINDOW_BYTES))


class _Parcel(msgspec.Struct, frozen=True):
    """A payload frame on its way out; `encoded` is empty where its payload needs a block."""

    link: int
    frame: PayloadFrame
    payload: bytes
    encoded: bytes


@dataclass(slots=True)
class _Stream:
    """Only while something of the stream waits, is being placed, or keeps its terminal here."""

    owner: Owner
    waiting: deque[_Parcel] = field(default_factory=deque)
    placing: Place | None = None
    paused: bool = False
    failure: tuple[str, str] | None = None
    terminal: tuple[int, Closed] | None = None

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.placing or self.failure or self.terminal)


class Outgoing:
    """`table`: the blocks of this process's arena, where it has one."""

    def __init__(self, table: BlockTable | None = None) -> None:
        self._table = table
        self._lanes: dict[int, _Lane] = {}
        self._streams: dict[str, _Stream] = {}

    # ---- links -----------------------------------------------------------------------------------

    def link_up(self, link: int, role: LinkRole, *, lends: bool) -> None:
        """The link has a role from now on."""
        self._lanes[link] = _Lane(role, lends and self._table is not None)

    def link_lost(self, link: int) -> list[SendEffect]:
        """What was to go there is void, and what lay there with its reader is free."""
        self._lanes.pop(link, None)
        unread = self._table.reader_lost(link) if self._table is not None else set()
        for stream in self._streams.values():
            self._part(stream, link, was_read=stream.owner not in unread)
        return self._pump()

    def _part(self, stream: _Stream, link: int, *, was_read: bool) -> None:
        """Take `link` away from a stream; a success of which something was on its way there is none any more."""
        kept = deque(parcel for parcel in stream.waiting if parcel.link != link)
        lost = not was_read or len(kept) < len(stream.waiting)
        stream.waiting = kept
        if stream.placing is not None and stream.placing.link == link:
            self._withdraw_placing(stream)
            lost = True
        if stream.terminal is None:
            return
        to, closed = stream.terminal
        if to == link:
            stream.terminal = None
        elif lost and closed.outcome == "finished":
            message = "who was to read the end of it is gone"
            failed = msgspec.structs.replace(closed, outcome="failed", code="link_lost", message=message)
            stream.terminal = (to, failed)

    def taken(self, link: int, frame_bytes: int) -> list[SendEffect]:
        """The peer has dealt with `frame_bytes`. Raises `CreditError` where fewer were in flight."""
        lane = self._lanes.get(link)
        if lane is None:
            return []
        lane.window.give_back(frame_bytes)
        return self._pump()

    def released(self, link: int, ref: DataRef) -> list[SendEffect]:
        """The peer has no more use for a block."""
        if self._table is None or not self._table.release(ref, link):
            return []
        return self._pump()

    # ---- sending ---------------------------------------------------------------------------------

    def send(self, link: int, frame: Frame) -> list[SendEffect]:
        """Send `frame`. For a link that is gone, only `Closed` has an effect: it ends the stream here.

        Raises `FrameTooLargeError` and `ControlPayloadError`; nothing was sent then.
        """
        match frame:
            case Closed():
                return self._close(link, frame)
            case Feed() | Published():
                return self._send_payload(link, frame)
        return [Write(link, _encoded(frame), may_wait=isinstance(frame, Grant))]

    def _send_payload(self, link: int, frame: PayloadFrame) -> list[SendEffect]:
        lane = self._lanes.get(link)
        if lane is None:
            return []
        parcel = self._parcel(link, lane, frame)
        key = frame.tag.key
        stream = self._streams.get(key)
        if stream is None:
            went = self._try(parcel)
            if isinstance(went, Write):
                return [went]
            stream = self._streams[key] = _Stream(Owner(frame.tag.session, key))
            if went is not None:
                stream.placing = went
                return [went]
        if stream.failure is not None:
            return []
        stream.waiting.append(parcel)
        return self._advance(key, stream)

    def _parcel(self, link: int, lane: _Lane, frame: PayloadFrame) -> _Parcel:
        if lane.role == "control":
            raise ControlPayloadError(f"a {type(frame).__name__} was to go over a control link")
        payload = payload_of(frame)
        if len(payload) <= INLINE_BYTES_MAX or not lane.lends or self._table is None:
            return _Parcel(link, frame, payload, _encoded(frame))
        if len(payload) > self._table.size.block_bytes:
            raise FrameTooLargeError(
                f"a payload of {len(payload)} bytes fits no block of {self._table.size.block_bytes}"
            )
        return _Parcel(link, frame, payload, b"")

    def _try(self, parcel: _Parcel) -> Write | Place | None:
        """Take what the parcel needs, all or nothing."""
        window = self._lanes[parcel.link].window
        if window.available < FRAME_BYTES_MAX + HEADER_BYTES:
            return None
        if parcel.encoded:
            window.take(HEADER_BYTES + len(parcel.encoded))
            return Write(parcel.link, parcel.encoded)
        assert self._table is not None, "only a payload for the arena is not encoded yet"
        tag = parcel.frame.tag
        ref = self._table.acquire(Owner(tag.session, tag.key), len(parcel.payload))
        if ref is None:
            return None
        encoded = _encoded(with_payload(parcel.frame, b"", ref))
        window.take(HEADER_BYTES + len(encoded))
        return Place(parcel.link, tag, ref, parcel.payload, encoded)

    def placed(self, place: Place, now_ns: int) -> list[SendEffect]:
        """The payload has been copied to its block."""
        assert self._table is not None, "only what has a block is placed"
        if not self._table.written(place.ref):
            return self._pump()
        self._table.lease(place.ref, place.link, now_ns)
        key = place.tag.key
        stream = self._streams[key]
        stream.placing = None
        return [Write(place.link, place.encoded), *self._advance(key, stream)]

    # ---- endings ---------------------------------------------------------------------------------

    def fail(self, tag: Tag, code: str, message: str) -> None:
        """The stream could not send a frame: it sends nothing more, and will close as failed."""
        stream = self._streams.setdefault(tag.key, _Stream(Owner(tag.session, tag.key)))
        stream.failure = (code, message)
        self._withdraw(stream)

    def _close(self, link: int, closed: Closed) -> list[SendEffect]:
        key = closed.tag.key
        owner = Owner(closed.tag.session, key)
        stream = self._streams.get(key)
        if stream is None and not self._holds(owner):
            return [Write(link, _encoded(closed))] if link in self._lanes else []
        if stream is None:
            stream = self._streams[key] = _Stream(owner)
        if stream.failure is not None:
            code, message = stream.failure
            stream.failure = None
            closed = msgspec.structs.replace(closed, outcome="failed", code=code, message=message)
        elif closed.outcome != "finished":
            self._withdraw(stream)
        stream.terminal = (link, closed) if link in self._lanes else None
        return self._advance(key, stream)

    def _withdraw(self, stream: _Stream) -> None:
        stream.waiting.clear()
        if stream.placing is not None:
            self._withdraw_placing(stream)

    def _withdraw_placing(self, stream: _Stream) -> None:
        place, stream.placing = stream.placing, None
        assert place is not None, "something is being placed"
        assert self._table is not None, "only what has a block is placed"
        self._table.withdraw(place.ref)
        lane = self._lanes.get(place.link)
        if lane is not None:
            lane.window.give_back(HEADER_BYTES + len(place.encoded))

    def is_closing(self, key: str) -> bool:
        """The stream's terminal is still here: its name is not free."""
        stream = self._streams.get(key)
        return stream is not None and stream.terminal is not None

    # ---- room ------------------------------------------------------------------------------------

    def _pump(self) -> list[SendEffect]:
        effects: list[SendEffect] = []
        for key, stream in list(self._streams.items()):
            effects += self._advance(key, stream)
        return effects

    def _advance(self, key: str, stream: _Stream) -> list[SendEffect]:
        """Send what may go of a stream, and let go of it once nothing is left."""
        effects: list[SendEffect] = []
        while stream.waiting and stream.placing is None:
            went = self._try(stream.waiting[0])
            if went is None:
                break
            stream.waiting.popleft()
            stream.placing = went if isinstance(went, Place) else None
            effects.append(went)
        # Amid a copy, what waits behind it may yet go.
        waits = bool(stream.waiting) and stream.placing is None
        if waits != stream.paused:
            stream.paused = waits
            effects.append(Pause(key) if stream.paused else GoOn(key))
        if stream.terminal is not None and not (stream.waiting or stream.placing or self._holds(stream.owner)):
            link, closed = stream.terminal
            stream.terminal = None
            effects.append(Write(link, _encoded(closed)))
        if stream.idle:
            self._streams.pop(key, None)
        return effects

    def _holds(self, owner: Owner) -> bool:
        return self._table is not None and self._table.holds(owner)

    # ---- what is where ---------------------------------------------------------------------------

    def held_of(self, session: str, key: str = "") -> dict[str, int]:
        """What is here of stream `key` of `session`, or of all its streams: `frames` that wait, with terminals that
        wait for them, and `blocks` of the arena."""
        streams = [one for one in self._streams.values() if one.owner.session == session and key in ("", one.owner.key)]
        frames = sum(len(one.waiting) + (one.placing is not None) + (one.terminal is not None) for one in streams)
        blocks = self._table.used_by(session, key) if self._table is not None else 0
        return {"frames": frames, "blocks": blocks}

    def statistics(self) -> OutgoingStatistics:
        windows = {link: lane.window.statistics() for link, lane in self._lanes.items()}
        return OutgoingStatistics(windows, {key: len(one.waiting) for key, one in self._streams.items() if one.paused})


def _encoded(frame: Frame) -> bytes:
    encoded = encode(frame)
    if len(encoded) > FRAME_BYTES_MAX:
        raise FrameTooLargeError(f"a {type(frame).__name__} of {len(encoded)} bytes exceeds {FRAME_BYTES_MAX}")
    return encoded
