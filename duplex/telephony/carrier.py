"""The contract of all carriers: what a telephone company's WebSocket says, and what is said to it, in one set of words.

Theory of operation
    A carrier plays what it is sent from a queue of its own. Where a sample stands is its *offset*: samples of the line
    from the beginning of the call on, which never go back, whatever is thrown away. A *mark* behind an offset comes
    back when all before it has been played (`Played`); a *flush* empties the queue. How much of the queue that was is
    told exactly by some (`Flushed`), and guessed from the last mark with others.

    A codec is such a carrier's protocol and nothing else: messages in, events out, and the other way round. It opens no
    socket, reads no clock, and decides nothing about the conversation, which does not know which one it has.

Rules
* What cannot be understood raises `CarrierError` and leaves the codec as it was. Where that is `fatal`, no call can
  come of it.
* A mark that comes back behind a flush of what was before it is `Returned`, never `Played`.
* Nothing may be sent before `Started`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from media.audio_format import AudioFormat
from media.g711 import A_LAW, MU_LAW

Message = str | bytes

MU_LAW_LINE = AudioFormat("audio/pcmu", 8_000, MU_LAW)
A_LAW_LINE = AudioFormat("audio/pcma", 8_000, A_LAW)
DTMF_DIGITS = frozenset("0123456789*#ABCD")
FRAME_MS = 20


def linear_line(sample_rate: int) -> AudioFormat:
    """PCM16, little-endian, of this rate."""
    return AudioFormat("audio/pcm", sample_rate)


class CarrierError(ValueError):
    """A carrier's message that means nothing here. `code` says what is wrong with it; `fatal`: no call can follow."""

    def __init__(self, code: str, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.fatal = fatal


@contextmanager
def beginning() -> Iterator[None]:
    """A start is read: of whatever is wrong with it, no call can come."""
    try:
        yield
    except CarrierError as error:
        error.fatal = True
        raise


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a carrier can do.

    `marks_on_clear`: marks of what is flushed come back, or never do. `exact_queue`: it tells how much it has not
    played. `can_pause`: it stops and goes on without losing anything. `frame_bytes`: it is sent whole ones of these.
    `lead_ms`: how far ahead of the ear it is sent. `hangup_on_close`: closing the socket ends the telephone call.
    `is_ordered`: sound comes in order.
    """

    marks_on_clear: Literal["returned", "dropped"]
    exact_queue: bool
    can_pause: bool
    frame_bytes: int
    lead_ms: int
    hangup_on_close: bool
    is_ordered: bool = True


# ---- events -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The carrier is there. `stream`, `call`, `account`: its ids of them; `caller`, `called`: numbers. What it does not
    say is empty. `format`: of sound, both ways. `parameters`: what whoever set the call up has added."""

    stream: str
    call: str
    format: AudioFormat
    account: str = ""
    caller: str = ""
    called: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SoundIn:
    """The caller's sound, as it travels. `at_ms`: where its first sample lies on the caller's clock; `chunk`: its
    number. None: the carrier does not say, and sends all of it in order."""

    coded: bytes
    at_ms: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """All before `offset` has been played."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Returned:
    """The mark of what was flushed: it says nothing of what was heard."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """Of what had been sent up to `offset`, the last `unplayed` samples were thrown away; None: not known."""

    epoch: int
    offset: int
    unplayed: int | None


@dataclass(frozen=True, slots=True)
class Dtmf:
    """A key was pressed: one of `DTMF_DIGITS`."""

    digit: str


@dataclass(frozen=True, slots=True)
class Xoff:
    """The carrier's queue is full: what is sent now is thrown away."""


@dataclass(frozen=True, slots=True)
class Xon:
    """It takes sound again."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The telephone call is over."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fault:
    """The carrier says that something which it was sent is wrong, in its own words."""

    code: str
    message: str


Event = Started | SoundIn | Played | Returned | Flushed | Dtmf | Xoff | Xon | Closed | Fault


class Carrier(Protocol):
    """One carrier's protocol, for one call."""

    name: str

    @property
    def capabilities(self) -> Capabilities:
        """Known once it has started."""
        ...

    def receive(self, message: Message, /) -> list[Event]:
        """What a message of the carrier says. Raises `CarrierError`."""
        ...

    def answer(self) -> list[Message]:
        """Have the telephone call answered, where a message does that and nobody has."""
        ...

    def audio(self, epoch: int, offset: int, coded: bytes, /) -> Message:
        """Sound whose first sample stands at `offset`: whole frames."""
        ...

    def mark(self, epoch: int, offset: int, /) -> list[Message]:
        """Have told when all before `offset` has been played."""
        ...

    def flush(self, epoch: int, offset: int, /) -> list[Message]:
        """Have thrown away what was sent up to `offset` and not played."""
        ...

    def pause(self, epoch: int, offset: int, /) -> list[Message]:
        """Have the playing stopped, where that is possible; what was sent ends at `offset`. Idempotent."""
        ...

    def resume(self) -> list[Message]:
        """Have it go on. Idempotent."""
        ...

    def hang_up(self) -> list[Message]:
        """Have the telephone call ended, where a message can do that."""
        ...


def mark_name(epoch: int, offset: int) -> str:
    """What a mark is called on the wire."""
    return f"{epoch}:{offset}"


def parse_mark(name: str) -> tuple[int, int]:
    """(epoch, offset) of a mark of ours. Raises `CarrierError`."""
    epoch, _, offset = name.partition(":")
    if not (_is_number(epoch) and _is_number(offset)):
        raise CarrierError("unknown_mark", "a mark came back that nobody has sent")
    return int(epoch), int(offset)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


def digit_of(text: str) -> Dtmf:
    """A key. Raises `CarrierError`."""
    if len(text) != 1 or text.upper() not in DTMF_DIGITS:
        raise CarrierError("invalid_digit", "a pressed key is none that a telephone has")
    return Dtmf(text.upper())
