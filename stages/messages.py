"""The frames that cross a link between gateway and stage worker, and between two workers.

Theory of operation
    Control is a star: each gateway has one control link and one media link to each worker. Orders and terminals
    travel on the control link, on which no payload ever queues; what the gateway feeds and what a stage publishes
    travels on the media link. Workers hand items to each other over direct data links, from each replica of a stage to
    each replica of the next. The supervisor keeps a probe link to each process. All speak these frames; the first one
    says which link it is.

Rules
* `Hello` first, answered by `Welcome`. Who does not understand the peer says so in `LinkRefused` and closes the link.
* `Feed` and `Published` are *payload frames*: they go on media and data links only, and their bytes are taken from the
  link's window, which `Taken` gives back. All others may always go, so a full link still carries every terminal.
* `body` says where the payload of the frame's item lies, which then comes empty. The reader copies it and sends
  `Release`, once; then the block is free.
* `Feed.units` have been taken from the producer's credit; `Grant.units` give them back, exactly once.
* `Closed` is the one terminal of a stream at a stage, on the control link; an observer's follows its words, on the
  media link. A stage that refused a stream sends `Refused` and no `Closed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

import msgspec

from stages.contracts import (
    PAYLOAD_FIELDS,
    DataRef,
    EncoderOptions,
    Event,
    Item,
    ObserverOptions,
    PrefillOptions,
    Tag,
    TalkerOptions,
    ThinkerOptions,
    VocoderOptions,
    Wire,
)
from stages.event_log import EventLogStatistics, Excerpt

LINK_VERSION = 9
PEER_NAME_CHARACTERS_MAX = 256
FAULT_CHARACTERS_MAX = 500  # of what is said of a frame: it may quote the frame
TYPE_CHARACTERS_MAX = 32  # more than any frame's name has
# What a peer may offer to be mapped: far more than any configuration has, and no more than there are addresses for.
ARENA_BLOCKS_MAX = 1 << 16
ARENA_BLOCK_BYTES_MAX = 1 << 30

LinkRole = Literal["control", "media", "data", "probe"]
Outcome = Literal["finished", "cancelled", "failed"]


class ArenaOffer(Wire, frozen=True):
    """The producer's arena: `blocks` blocks of `block_bytes` each, behind descriptor `fd` of the sending process.

    `nonce` stands at the arena's start, so that nothing else is taken for it.
    """

    worker: str
    incarnation: int
    fd: Annotated[int, msgspec.Meta(ge=0)]
    nonce: bytes
    blocks: Annotated[int, msgspec.Meta(ge=1, le=ARENA_BLOCKS_MAX)]
    block_bytes: Annotated[int, msgspec.Meta(ge=1, le=ARENA_BLOCK_BYTES_MAX)]


class Hello(Wire, frozen=True):
    """First frame of the side that connects.

    `name` joins a gateway's control and media links; that of a data link is the worker's `stage/incarnation`.
    """

    version: int
    role: LinkRole
    name: Annotated[str, msgspec.Meta(max_length=PEER_NAME_CHARACTERS_MAX)]
    arena: ArenaOffer | None = None


class Welcome(Wire, frozen=True):
    """Answer of the worker. A higher `incarnation` means that everything before it is gone.

    `onward`: the replicas of next stages that it can hand over to; `inward`: those of stages before it whose links it
    has.
    """

    version: int
    replica: str
    incarnation: int
    revision: str
    onward: tuple[str, ...]
    inward: tuple[str, ...] = ()
    arena: ArenaOffer | None = None


class LinkRefused(Wire, frozen=True):
    """Last frame of a side that closes the link, for what the peer sent; `version` is the one that it speaks."""

    version: int
    reason: str


class Taken(Wire, frozen=True):
    """`frame_bytes` of payload frames, lengths included, have been dealt with: the link's window has them back."""

    frame_bytes: int


class Release(Wire, frozen=True):
    """The reader has copied what lay there, or will never read it."""

    ref: DataRef


class OnwardChanged(Wire, frozen=True):
    """The worker's link to `target`, a replica of a next stage, came up or went down: streams that hand over to it can
    or cannot be opened."""

    target: str
    up: bool


class InwardChanged(Wire, frozen=True):
    """The same of the link by which `source`, a replica of a stage before, reaches the worker.

    Both ends tell of a link, since each notices its loss in its own time, and what one sends when the other has lost it
    is read by nobody.
    """

    source: str
    up: bool


class OpenSession(Wire, frozen=True):
    """Reserve what a session keeps at this stage; output older than `epoch` is stale from now on."""

    session: str
    epoch: int


class SessionOpened(Wire, frozen=True):
    session: str


class SessionRefused(Wire, frozen=True):
    session: str
    code: str
    message: str


class CloseSession(Wire, frozen=True):
    """End all streams of the session and give back what it kept."""

    session: str


class Open(Wire, frozen=True):
    """Open a stream. Idempotent for the same tag. `edges`: the replicas of next stages that this stream hands to.
    `tenant`: on whose share of the stage's time its steps run.

    `lasts_ns_max`: how much longer the response will be wanted, counted from here on, since hosts have clocks of their
    own. None for input work: a turn may be spoken for as long as it likes, and its transcript has a timeout.
    """

    tag: Tag
    options: EncoderOptions | PrefillOptions | ThinkerOptions | TalkerOptions | VocoderOptions | ObserverOptions
    edges: tuple[str, ...] = ()
    tenant: str = ""
    lasts_ns_max: int | None = None


class Opened(Wire, frozen=True):
    tag: Tag


class Refused(Wire, frozen=True):
    """The stream was not opened. `code`: stale_epoch, unknown_session, unknown_edge, capacity, downstream_lost, …"""

    tag: Tag
    code: str
    message: str


class Feed(Wire, frozen=True):
    tag: Tag
    item: Item
    units: int = 0
    body: DataRef | None = None


class Grant(Wire, frozen=True):
    """`units` of the stream's credit come back to its producer."""

    tag: Tag
    units: int


class Cancel(Wire, frozen=True):
    """End one stream, whatever its epoch."""

    tag: Tag


class Cut(Wire, frozen=True):
    """The response has ended early, and `samples` of its audio were sent: let the stream finish with these.

    For streams that look back on what was said; any other is cancelled by it.
    """

    tag: Tag
    samples: int


class EndEpoch(Wire, frozen=True):
    """End all output of the session that is older than `epoch`. Input work is left alone, and so are observers:
    the `Cut` of each response comes after it."""

    session: str
    epoch: int


class Published(Wire, frozen=True):
    tag: Tag
    event: Event
    body: DataRef | None = None


class Closed(Wire, frozen=True):
    """Nothing of the stream is held at this stage any more. `released`: what it held when it ended, by kind."""

    tag: Tag
    outcome: Outcome
    released: dict[str, int]
    code: str = ""
    message: str = ""


class StepDone(Wire, frozen=True):
    """One step of a stream took `service_ns`, after `queued_ns` in the queue, in a batch of `batch` steps that took as
    long together."""

    tag: Tag
    kind: str
    queued_ns: int
    service_ns: int
    batch: int = 1


class Ping(Wire, frozen=True):
    """From whoever keeps the process. Answered at once by its event loop, whatever it is doing."""

    sequence: int


class Pong(Wire, frozen=True):
    """The answer to `Ping`. `step_age_ns`: how long the oldest running step has been running; 0 where none runs."""

    sequence: int
    step_age_ns: int


class Retire(Wire, frozen=True):
    """From whoever keeps the process: finish what runs, take nothing new, and end."""


class Retiring(Wire, frozen=True):
    """A worker will end once nothing is left in it: gateways take their sessions elsewhere."""


class ReadEvents(Wire, frozen=True):
    """The newest events of the worker's log, at most `events_max` of them; the rest as in `EventLog.read`. Answered at
    once. `number` comes back with the answer."""

    number: int
    before: int | None
    session: str
    response: str
    events_max: int


class EventPage(Wire, frozen=True):
    """The answer to `ReadEvents`."""

    number: int
    excerpt: Excerpt
    statistics: EventLogStatistics


class Audit(Wire, frozen=True):
    """From a gateway, on its control link: what is still held of `stream`, which has drained or was lost? `stream` is
    the key of its tag; empty for all of a session that was closed. Answered at once by `Audited`."""

    session: str
    stream: str = ""


class Audited(Wire, frozen=True):
    """The answer to `Audit`. `held`: what there is of it, by kind as in `stages.audits`; `strays`: what belongs to
    nothing that the worker knows. Both are empty where all was given back."""

    replica: str
    session: str
    stream: str
    held: dict[str, int]
    strays: dict[str, int]

    @property
    def found(self) -> dict[str, int]:
        """All of it, by kind."""
        return self.held | {f"stray_{kind}": count for kind, count in self.strays.items()}


class Inspect(Wire, frozen=True):
    """From a gateway, on its control link: say how full and how late things are. Answered by `WorkerSnapshot`."""


class EdgeSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way out of a stage, to `target`. Credit is that of all its streams, in the edge's unit; 0 where it has none.

    `wait_ns_max`: how long a stream has been held up by credit that does not move. `link_bytes`: in flight on the
    fullest of the edge's links. Peaks are since the process, or its link, began.
    """

    target: str
    streams: int
    credit_out: int
    credit_out_peak: int
    wait_ns_max: int
    link_bytes: int
    link_bytes_peak: int


class ArenaSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Blocks; `lease_ns_max` is the age of the oldest lease."""

    blocks: int
    used: int
    used_peak: int
    orphaned: int
    lease_ns_max: int


class KindSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps of one kind: what a batch is expected to take, what batches took, and how far off that was, either way."""

    kind: str
    batches: int
    predicted_ns: int
    service_ns_mean: int
    error_ns_mean: int


class SchedulerSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps that wait, and batches that run. `wait_ns_max`: of the step that has been ready for longest. `expired`:
    steps that were not computed because their response's time was over."""

    waiting: int
    waiting_peak: int
    wait_ns_max: int
    running: int
    expired: int
    kinds: tuple[KindSnapshot, ...]


class KvSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The places of a Thinker's KV, as in `stages.kv_cache.KvStatistics`."""

    places: int = 0
    used: int = 0
    pinned: int = 0
    waiting: int = 0
    tokens: int = 0
    token_bytes: int = 0
    hits: int = 0
    misses: dict[str, int] = {}
    evictions: dict[str, int] = {}
    mismatches: int = 0
    rebuilt_tokens: int = 0
    wait_ns_max: int = 0


class WorkerSnapshot(Wire, frozen=True):
    """How a worker stands. `room_waiting`: streams that wait for room on a link or in the arena, the first of them for
    `room_wait_ns_max`. `kv`: of a Thinker that keeps any."""

    replica: str
    streams: int
    sessions: int
    room_waiting: int
    room_wait_ns_max: int
    scheduler: SchedulerSnapshot
    arena: ArenaSnapshot
    edges: tuple[EdgeSnapshot, ...]
    kv: KvSnapshot | None = None


class ReplicaReport(Wire, frozen=True):
    """What the supervisor tells the gateway of one process that it keeps. `state` as in `stages.replica`."""

    stage: str
    replica: str
    state: str
    incarnation: int
    deaths: int
    hangs: int


Frame = (
    Hello
    | Welcome
    | LinkRefused
    | Taken
    | Release
    | OnwardChanged
    | InwardChanged
    | OpenSession
    | SessionOpened
    | SessionRefused
    | CloseSession
    | Open
    | Opened
    | Refused
    | Feed
    | Grant
    | Cancel
    | Cut
    | EndEpoch
    | Published
    | Closed
    | StepDone
    | Ping
    | Pong
    | Retire
    | Retiring
    | ReadEvents
    | EventPage
    | Audit
    | Audited
    | Inspect
    | WorkerSnapshot
    | ReplicaReport
)

PayloadFrame = Feed | Published


class Greeting(msgspec.Struct, frozen=True):
    """What is understood of the first frame of any version."""

    type: str
    version: int


class _Typed(msgspec.Struct, frozen=True):
    """What is understood of any frame, whatever else is wrong with it."""

    type: str


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)
_greeting_decoder = msgspec.msgpack.Decoder(Greeting)
_typed_decoder = msgspec.msgpack.Decoder(_Typed)


_NAMES = frozenset(kind.__name__ for kind in get_args(Frame))


class FrameError(ValueError):
    """The peer sent what is no frame of this version, or none that may come here."""


def encode(frame: Frame) -> bytes:
    """The frame as msgpack, without its length."""
    return _encoder.encode(frame)


def decode(payload: bytes | memoryview) -> Frame:
    """The frame in `payload`; raises `FrameError` for an unknown type or field, or a wrong value, and names it and the
    frame."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FrameError(f"{_kind_of(payload)}: {error}"[:FAULT_CHARACTERS_MAX]) from error


def _kind_of(payload: bytes | memoryview) -> str:
    """What the frame calls itself, where that can be read."""
    try:
        said = _typed_decoder.decode(payload).type
    except (msgspec.DecodeError, RecursionError):
        return "a frame that cannot be read"
    return said if said in _NAMES else f"a frame of the unknown type {said[:TYPE_CHARACTERS_MAX]!r}"


def greeting_of(payload: bytes | memoryview) -> Greeting | None:
    """The version that a first frame names, whatever else a later version may have put into it."""
    try:
        return _greeting_decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError):  # what is passed over may be nested without end
        return None


def audited(replica: str, asked: Audit, held: Mapping[str, int], strays: Mapping[str, int]) -> Audited:
    """The answer to `asked`, without the kinds that count 0."""
    there, astray = ({kind: count for kind, count in one.items() if count} for one in (held, strays))
    return Audited(replica, asked.session, asked.stream, there, astray)


def payload_of(frame: PayloadFrame) -> bytes:
    """The bytes of the frame's item or event; empty for one that carries none."""
    carrier = frame.item if isinstance(frame, Feed) else frame.event
    field = PAYLOAD_FIELDS.get(type(carrier))
    payload: bytes = getattr(carrier, field) if field else b""
    return payload


def with_payload(frame: PayloadFrame, payload: bytes, body: DataRef | None) -> PayloadFrame:
    """`frame` with other bytes. Raises `FrameError` where its item or event carries none."""
    carrier = frame.item if isinstance(frame, Feed) else frame.event
    field = PAYLOAD_FIELDS.get(type(carrier))
    if field is None:
        raise FrameError(f"a {type(carrier).__name__} has no payload that could lie elsewhere")
    changed = msgspec.structs.replace(carrier, **{field: payload})
    which = "item" if isinstance(frame, Feed) else "event"
    return msgspec.structs.replace(frame, body=body, **{which: changed})
