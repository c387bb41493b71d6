"""What a conversation tells its client, in the product's own words. A dialect turns these into wire messages.

Rules
* Frozen and closed. Times are ms of the input or output sample clock, never of a wall clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from media.audio_format import FormatName
from media.playout import Frame
from sessions.far_side import What
from sessions.heard import Cut
from sessions.items import Item
from sessions.reply import SpokenWord
from sessions.settings import OUTPUT_RATE, Modality, SessionSettings
from stages.contracts import Tool


@dataclass(frozen=True, slots=True)
class DurabilitySuspended:
    """The store is failing: were the service to die now, the last of the conversation would be lost."""


@dataclass(frozen=True, slots=True)
class DurabilityRestored:
    """All of the conversation is stored again."""


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    item: str
    audio_start_ms: int


@dataclass(frozen=True, slots=True)
class TurnHeld:
    """Speech over our own since then: our sound stops, and it is not known yet whether it is an interruption."""

    audio_start_ms: int


@dataclass(frozen=True, slots=True)
class TurnResumed:
    """It was none, for this reason: our sound goes on where it stopped."""

    reason: str


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    item: str
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class InputCommitted:
    item: str
    previous: str | None


@dataclass(frozen=True, slots=True)
class CallerIdle:
    """The caller has said nothing for too long, between these ms of the input: `item` is their silence."""

    item: str
    audio_start_ms: int
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class LineRecognised:
    """`what` is at the other end of the line, or comes from there: a machine, a beep, a loop. `item`: the turn that
    told it, and whether that is `answered` as any other."""

    what: What
    item: str | None = None
    answered: bool = False


@dataclass(frozen=True, slots=True)
class InputCleared:
    pass


@dataclass(frozen=True, slots=True)
class ItemAdded:
    item: Item
    previous: str | None


@dataclass(frozen=True, slots=True)
class ItemDeleted:
    item: str


@dataclass(frozen=True, slots=True)
class HistoryTrimmed:
    """The conversation was longer than it may be: these `items`, the oldest, have left it."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ItemRetrieved:
    item: Item


@dataclass(frozen=True, slots=True)
class ItemTruncated:
    """`cut`: what history has of the item now; None where that is all of it, or known only at its end."""

    item: str
    audio_end_ms: int
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class ItemRefined:
    """Nobody asked: it is known better now what was heard of a reply that was cut."""

    item: str
    cut: Cut


@dataclass(frozen=True, slots=True)
class CallerText:
    """More of what the caller said. `final` carries the whole transcript in `text`."""

    item: str
    text: str
    final: bool


@dataclass(frozen=True, slots=True)
class CallerTextFailed:
    item: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ResponseView:
    """A response as its client sees it. `status` as on the wire; `reason` completes it. `cut`: where history ends in
    its sound, unless that was said to its end. `may_call`: it may make calls of tools, and then have no words; `calls`:
    those of its client. `leaves_nothing`: it is over, and `item` is not history."""

    id: str
    item: str
    epoch: int
    modalities: tuple[Modality, ...]
    in_conversation: bool
    metadata: tuple[tuple[str, str], ...]
    text: str = ""
    status: str = "in_progress"
    reason: str = ""
    code: str = ""
    message: str = ""
    usage: Usage = Usage()
    turn: int = 0
    cut: Cut | None = None
    may_call: bool = False
    calls: tuple[Item, ...] = ()
    leaves_nothing: bool = False


@dataclass(frozen=True, slots=True)
class ResponseStarted:
    response: ResponseView


@dataclass(frozen=True, slots=True)
class MessageStarted:
    """The message of a response begins: `item`, which has no words yet, and stands behind `previous`."""

    response: str
    item: str
    previous: str | None


@dataclass(frozen=True, slots=True)
class ReplyText:
    """More of a reply's text; `spoken`: as the transcript of its audio."""

    response: str
    item: str
    delta: str
    spoken: bool


@dataclass(frozen=True, slots=True)
class ReplyWords:
    """Where the next `words` of a reply stand in its sound, of `sample_rate`."""

    response: str
    item: str
    words: tuple[SpokenWord, ...]
    sample_rate: int = OUTPUT_RATE


@dataclass(frozen=True, slots=True)
class ReplyAudio:
    """A frame handed to the client now. `watermark`: samples of its response that can no longer be recalled. `format`:
    what it travels in, where it does so in messages."""

    item: str
    epoch: int
    frame: Frame
    watermark: int
    format: FormatName = "audio/pcm"


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A reply begins to call a tool; `item` has no arguments yet, and stands behind `previous`."""

    response: str
    item: Item
    previous: str | None


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments."""

    response: str
    item: str
    call_id: str
    delta: str


@dataclass(frozen=True, slots=True)
class CallFinished:
    """The call is whole, and the client may carry it out; or it is incomplete, and was never made."""

    response: str
    item: Item
    previous: str | None = None


@dataclass(frozen=True, slots=True)
class CallUnknown:
    """Nobody knows what came of a call that the service carried out, and that is not repeated."""

    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ResponseFinished:
    """The terminal, once. `timings`: parts of the way from the caller's last sound to the first reply frame, ms.
    `previous`: what its message stands behind, where that was told."""

    response: ResponseView
    timings: tuple[tuple[str, float], ...] = ()
    previous: str | None = None


@dataclass(frozen=True, slots=True)
class ResponseLost:
    """The terminal of a response that an earlier connection had, and that its client still holds open."""

    response: str


@dataclass(frozen=True, slots=True)
class ResponseDrained:
    """Every resource of the response is back. `status`: complete or orphaned."""

    response: str
    status: str
    lag_ms: float
    released: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """The settings of the session are these now; `service_tools`: what the service has of its own."""

    session: str
    settings: SessionSettings
    service_tools: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class CommandRefused:
    """A client command that could not be followed, and why; the call goes on."""

    code: str
    message: str
    param: str | None = None


Event = (
    DurabilitySuspended
    | DurabilityRestored
    | SpeechStarted
    | TurnHeld
    | TurnResumed
    | SpeechStopped
    | InputCommitted
    | CallerIdle
    | LineRecognised
    | InputCleared
    | ItemAdded
    | ItemDeleted
    | HistoryTrimmed
    | ItemRetrieved
    | ItemTruncated
    | ItemRefined
    | CallerText
    | CallerTextFailed
    | ResponseStarted
    | MessageStarted
    | ReplyText
    | ReplyWords
    | ReplyAudio
    | CallStarted
    | CallArguments
    | CallFinished
    | CallUnknown
    | ResponseFinished
    | ResponseLost
    | ResponseDrained
    | SettingsChanged
    | CommandRefused
)
