"""What the conversation's cores ask of their shell. Carried out in order: what stops comes before what tells.

Rules
* Frozen and closed. A shell adds nothing and leaves nothing out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from media.playout import Basis
from sessions.events import Event
from sessions.items import Item
from sessions.records import Outcome
from sessions.saving import Part
from sessions.tool_calls import BegunCall
from stages.contracts import Item as StageItem
from stages.contracts import Options, Tag


@dataclass(frozen=True, slots=True)
class Tell:
    """Send `event` to the client."""

    event: Event


@dataclass(frozen=True, slots=True)
class OpenStream:
    """`lasts_ns_max`: how much longer it will be wanted, from now on; None for input work, which has other limits."""

    stage: str
    tag: Tag
    options: Options
    edges: tuple[str, ...] = ()
    lasts_ns_max: int | None = None


@dataclass(frozen=True, slots=True)
class FeedStream:
    stage: str
    tag: Tag
    item: StageItem


@dataclass(frozen=True, slots=True)
class CancelStream:
    stage: str
    tag: Tag


@dataclass(frozen=True, slots=True)
class CutStream:
    """The response has ended early: `stage` is to look at the `samples` of it that were sent, and to finish."""

    stage: str
    tag: Tag
    samples: int


@dataclass(frozen=True, slots=True)
class GrantCredit:
    """`samples` of the stream's audio have been sent: their credit returns to its stage."""

    stage: str
    tag: Tag
    samples: int


@dataclass(frozen=True, slots=True)
class AuditStream:
    """Everything of the stream is to have been given back: see at its stage whether it was."""

    stage: str
    tag: Tag


@dataclass(frozen=True, slots=True)
class EndEpoch:
    """All output of the session older than `epoch` ends, at all stages."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HearFrom:
    """Feed the encoder's stream `tag` with input audio from `sample` (16 kHz) on, up to `until` or as it comes in."""

    tag: Tag
    sample: int
    until: int | None = None


@dataclass(frozen=True, slots=True)
class StopHearing:
    """Feed no more audio to `tag` than what lies before `until` (16 kHz), or what the turn has taken (None)."""

    tag: Tag
    until: int | None = None


@dataclass(frozen=True, slots=True)
class ResetGate:
    """Forget the speech that is being detected: its turn was ended or thrown away by the client."""


@dataclass(frozen=True, slots=True)
class Overheard:
    """All that the turn which is being spoken has said so far, for whoever detects its end, or an interruption.

    `settled`: it covers the turn's sound up to the present pause.
    """

    text: str
    settled: bool


@dataclass(frozen=True, slots=True)
class SaveItem:
    """The item was added, or has changed."""

    item: Item
    previous: str | None


@dataclass(frozen=True, slots=True)
class SaveDeletion:
    item: str


@dataclass(frozen=True, slots=True)
class SaveEpoch:
    epoch: int


@dataclass(frozen=True, slots=True)
class SaveSpeaking:
    """`part` is about to be said in a reply that is not over; `saved` is to be told once it is stored. `previous`: what
    its item will stand behind."""

    item: str
    response: str
    epoch: int
    previous: str | None
    sample_rate: int
    part: Part


@dataclass(frozen=True, slots=True)
class SaveHeard:
    """So much was heard of a reply that is not over; up to `error_samples` more may have been."""

    item: str
    samples: int
    basis: Basis
    error_samples: int


@dataclass(frozen=True, slots=True)
class SaveLate:
    """What was asked to be stored has been waited for long enough: sound goes on, and were this process to die, some of
    it would be lost."""


@dataclass(frozen=True, slots=True)
class SaveCallBegun:
    """`call` is about to be carried out by the service; `stored` is to be told once that is stored."""

    call: BegunCall


@dataclass(frozen=True, slots=True)
class SaveCallSettled:
    """What came of the call `call_id`, and the item that says so, behind `previous`; None: nobody asks any more."""

    call_id: str
    outcome: Outcome
    output: Item | None
    previous: str | None


@dataclass(frozen=True, slots=True)
class RequestTool:
    """Carry out call `call_id` of the tool `name`. Where this process does already, its answer is that of this one."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class FollowTool:
    """Have the answer to call `call_id`, where this process carries it out; else say that it is lost."""

    call_id: str


@dataclass(frozen=True, slots=True)
class CancelTool:
    """Nobody wants the answer to call `call_id`."""

    call_id: str


@dataclass(frozen=True, slots=True)
class EndCall:
    """End the call, for `reason`, once nothing is being said or heard; at `by_ns` whatever is."""

    reason: str
    by_ns: int


Figure = Literal[
    "answers_dropped",
    "drain_lag_seconds",
    "encoder_wait_seconds",
    "epochs_ended",
    "fillers",
    "first_audio_seconds",
    "holds",
    "items_trimmed",
    "prepared_replies",
    "responses_retried",
    "service_calls",
    "wasted_audio_seconds",
]


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure for the metrics: `name` as in `duplex.metrics`, `labels` closed sets only."""

    name: Figure
    value: float
    label: str = ""


Save = SaveItem | SaveDeletion | SaveEpoch | SaveSpeaking | SaveHeard | SaveCallBegun | SaveCallSettled
ToolOrder = RequestTool | FollowTool | CancelTool

Effect = (
    Tell
    | OpenStream
    | FeedStream
    | CancelStream
    | CutStream
    | GrantCredit
    | AuditStream
    | EndEpoch
    | HearFrom
    | StopHearing
    | ResetGate
    | Overheard
    | Save
    | SaveLate
    | ToolOrder
    | EndCall
    | Measured
)
