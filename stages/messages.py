"""The frames that cross a link between gateway and stage worker, and between two workers.

Theory of operation
    Control is a star: each gateway has one control link and one media link to each worker. Orders and terminals
    travel on the control link, on which no payload ever queues; what the gateway feeds and what a stage publishes
    travels on the media link. Workers hand items to each other over direct data links. All three speak these frames;
    the first one says which link it is.

Rules
* `Hello` first, answered by `Welcome`; another version is refused by closing the link with a log line.
* `Feed.units` have been taken from the producer's credit; `Grant.units` give them back, exactly once.
* `Closed` is the one terminal of a stream at a stage. A stage that refused a stream sends `Refused` and no `Closed`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stages.contracts import (
    AudioIn,
    AudioOut,
    Clause,
    EncoderOptions,
    EndOfTurn,
    Latents,
    ObserverOptions,
    Pause,
    PrefillOptions,
    Prompt,
    SpeechResumed,
    Tag,
    TalkerOptions,
    TextDelta,
    TextDone,
    ThinkerOptions,
    Transcript,
    VocoderOptions,
    Wire,
    WordTimes,
)

LINK_VERSION = 1

LinkRole = Literal["control", "media", "data"]
Outcome = Literal["finished", "cancelled", "failed"]


class Hello(Wire, frozen=True):
    """First frame of the side that connects.

    `name` joins a gateway's control and media links; that of a data link is the worker's `stage/incarnation`.
    """

    version: int
    role: LinkRole
    name: str


class Welcome(Wire, frozen=True):
    """Answer of the worker. A higher `incarnation` means that everything before it is gone."""

    version: int
    stage: str
    incarnation: int
    revision: str
    onward_up: bool


class OnwardChanged(Wire, frozen=True):
    """The worker's link to the next stage came up or went down: streams that need it can or cannot be opened."""

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
    """Open a stream. Idempotent for the same tag. `onward`: emitted items go to the next stage."""

    tag: Tag
    options: EncoderOptions | PrefillOptions | ThinkerOptions | TalkerOptions | VocoderOptions | ObserverOptions
    onward: bool = False


class Opened(Wire, frozen=True):
    tag: Tag


class Refused(Wire, frozen=True):
    """The stream was not opened. `code`: stale_epoch, unknown_session, capacity, downstream_lost, …"""

    tag: Tag
    code: str
    message: str


class Feed(Wire, frozen=True):
    tag: Tag
    item: AudioIn | Pause | SpeechResumed | EndOfTurn | Prompt | Clause | Latents
    units: int = 0


class Grant(Wire, frozen=True):
    """`units` of the stream's credit come back to its producer."""

    tag: Tag
    units: int


class Cancel(Wire, frozen=True):
    """End one stream, whatever its epoch."""

    tag: Tag


class EndEpoch(Wire, frozen=True):
    """End all output of the session that is older than `epoch`. Input work is left alone."""

    session: str
    epoch: int


class Published(Wire, frozen=True):
    tag: Tag
    event: Transcript | TextDelta | TextDone | WordTimes | AudioOut


class Closed(Wire, frozen=True):
    """Nothing of the stream is held at this stage any more. `released`: what it held when it ended, by kind."""

    tag: Tag
    outcome: Outcome
    released: dict[str, int]
    code: str = ""
    message: str = ""


class StepDone(Wire, frozen=True):
    """One step of a stream took `service_ns`, after `queued_ns` in the queue."""

    tag: Tag
    kind: str
    queued_ns: int
    service_ns: int


Frame = (
    Hello
    | Welcome
    | OnwardChanged
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
    | EndEpoch
    | Published
    | Closed
    | StepDone
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


class FrameError(ValueError):
    """The peer sent what is no frame of this version."""


def encode(frame: Frame) -> bytes:
    """The frame as msgpack, without its length."""
    return _encoder.encode(frame)


def decode(payload: bytes | memoryview) -> Frame:
    """The frame in `payload`; raises `FrameError` for an unknown type or field, or a wrong value."""
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise FrameError(str(error)) from error
