"""The record of one call: what was said, what was answered, and the figures that follow from it.

Definitions
    A sample of the caller has the time at which a microphone would have taken it: the frame that is due at T holds
    the 20 ms before T. Latencies therefore include packetisation and count from the deadlines of the microphone,
    never from the return of a `send`.

    ttfa                last audible sample of the caller -> first sample of the reply received
    ttfa_audible        the same -> first audible sample of the reply played
    barge_in_stop       first audible sample of the interruption -> last sample of the old reply played
    barge_in_received   the same -> last sample of the old reply received
    cancel_stop         `response.cancel` handed over -> last sample of the old reply played
    cancel_received     the same -> last sample of the old reply received
    drain_lag           `response.done` -> `response.drained`: as the server tells, and by the caller's clock

    Received samples include those that were already stale: they too are what the server sent.

Rules
* A turn is never dropped. Where no reply came, `ttfa_ms` is the time waited, and `ttfa_censored` says that the true
  value is larger. A reply that begins after the caller went on counts as none.
* A reply that was cut before the caller had finished (an end of turn assumed too early) answers nothing; it is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from loadtest.loudness import audible_span
from loadtest.playout_model import NS_PER_S, Faults, ReplyAudio
from loadtest.realtime_wire import SAMPLE_RATE
from media.chunk import samples_to_ms

NS_PER_MS = 1_000_000


class SilentUtteranceError(ValueError):
    """An utterance in which nothing is audible cannot be answered: whoever supplied it must act."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """What the caller says in one turn: PCM16 mono at 24 kHz, audible from `first` up to `end` (samples)."""

    label: str
    pcm: bytes = field(repr=False)
    first: int
    end: int

    @classmethod
    def from_pcm(cls, label: str, pcm: bytes) -> Utterance:
        """Raises `SilentUtteranceError`."""
        span = audible_span(pcm, SAMPLE_RATE)
        if span is None:
            raise SilentUtteranceError(f"{label}: nothing in it is audible")
        return cls(label, pcm, *span)


class TurnOutcome(StrEnum):
    """How a turn ended. The first three are as they should be."""

    ANSWERED = "answered"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    FAILED = "failed"
    CUT_OFF = "cut_off"
    NO_REPLY = "no_reply"
    UNFINISHED = "unfinished"
    NOT_SAID = "not_said"


GOOD_OUTCOMES = frozenset({TurnOutcome.ANSWERED, TurnOutcome.INTERRUPTED, TurnOutcome.CANCELLED})


class CallOutcome(StrEnum):
    """How the call ended."""

    COMPLETED = "completed"
    INTERRUPTED_BY_USER = "interrupted_by_user"
    CONNECTION_LOST = "connection_lost"
    SESSION_REPLACED = "session_replaced"
    PROTOCOL_VIOLATION = "protocol_violation"
    TOO_LONG = "too_long"


@dataclass(frozen=True, slots=True)
class Drain:
    """The server's account of what a response gave back, and how long that took by either clock."""

    status: str
    lag_ms: float
    lag_client_ms: float | None
    released: object


@dataclass(slots=True)
class Reply:
    """One response of the server while the call runs. `turn` is None for one that no turn had asked for."""

    response_id: str
    turn: int | None
    audio: ReplyAudio
    item_id: str = ""
    text: str = ""
    done_ns: int | None = None
    status: str = ""
    reason: str | None = None
    cut_ns: int | None = None
    timings: dict[str, float | None] = field(default_factory=dict)
    drain: Drain | None = None


@dataclass(slots=True)
class Turn:
    """One turn while the call runs. Times are None until they are known; `waited_to_ns` is when the caller went on."""

    index: int
    utterance: Utterance
    said_start_ns: int | None = None
    said_end_ns: int | None = None
    caller_text: str = ""
    interrupted: bool = False
    cancel_ns: int | None = None
    waited_to_ns: int = 0
    errors: list[str] = field(default_factory=list)

    def say(self, start_ns: int) -> None:
        """The utterance begins at `start_ns`; its audible part is known from here on."""
        self.said_start_ns = start_ns + self.utterance.first * NS_PER_S // SAMPLE_RATE
        self.said_end_ns = start_ns + self.utterance.end * NS_PER_S // SAMPLE_RATE

    def is_answer(self, reply: Reply) -> bool:
        """Whether `reply` counts as this turn's answer, as far as is known."""
        if reply.turn != self.index or self.said_end_ns is None:
            return False
        premature = reply.cut_ns is not None and reply.cut_ns < self.said_end_ns
        stopped_by_us = self.interrupted or self.cancel_ns is not None
        withdrawn = reply.status == "cancelled" and not reply.audio.received_samples and not stopped_by_us
        return not (premature or withdrawn)

    def in_time(self, reply: Reply) -> bool:
        """Whether the sound of `reply` began before the caller went on; later it is no answer any more."""
        first_ns = reply.audio.first_received_ns
        return first_ns is not None and first_ns <= self.waited_to_ns


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The figures of one turn, in milliseconds; None where there is nothing to measure.

    `yielded` says whether the server gave up its reply for the interruption; None where there was none. One that
    began when the reply had already been heard to its end has nothing to stop, and no stop time.
    """

    turn: int
    utterance: str
    outcome: TurnOutcome
    caller_text: str
    reply_text: str
    status: str
    status_reason: str | None
    ttfa_ms: float | None
    ttfa_censored: bool
    ttfa_audible_ms: float | None
    reply_ms: int
    heard_ms: int
    discarded_ms: int
    gap_ms_max: float
    dry_ms: float
    yielded: bool | None
    barge_in_stop_ms: float | None
    barge_in_received_ms: float | None
    cancel_stop_ms: float | None
    cancel_received_ms: float | None
    drain_status: str | None
    drain_lag_ms: float | None
    drain_lag_client_ms: float | None
    released: object
    timings: dict[str, float | None]
    premature_replies: int
    faults: Faults
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late the microphone's frames were handed over, in milliseconds: the quality of the caller itself."""

    frames: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class CallResult:
    """A call as measured. `unprompted_replies` belong to no turn (a greeting); their faults are `other_faults`.
    `complaints`: what a telephone carrier found wrong with the service."""

    session_id: str
    resume_token: str | None = field(repr=False)
    outcome: CallOutcome
    detail: str
    duration_ms: float
    turns: tuple[TurnResult, ...]
    unprompted_replies: int
    other_faults: Faults
    event_seq_faults: int
    lateness: Lateness
    recording_truncated: bool
    complaints: tuple[str, ...] = ()

    @property
    def went_well(self) -> bool:
        """Every turn answered, no sample wrong, the call ended by the caller."""
        faults = self.other_faults.total + self.event_seq_faults + sum(turn.faults.total for turn in self.turns)
        answered = all(turn.outcome in GOOD_OUTCOMES for turn in self.turns)
        return answered and not faults and not self.complaints and self.outcome is CallOutcome.COMPLETED


def elapsed_ms(start_ns: int | None, end_ns: int | None) -> float | None:
    """From one to the other in milliseconds, to a tenth; None where either is unknown."""
    if start_ns is None or end_ns is None:
        return None
    return _ms(end_ns - start_ns)


def add_faults(records: list[Faults]) -> Faults:
    """The sum, kind by kind."""
    columns = [record.counts() for record in records]
    return Faults(**{name: sum(column[name] for column in columns) for name in Faults().counts()})


def turn_result(
    turn: Turn, replies: list[Reply], next_said_ns: int | None, heard_rate: int = SAMPLE_RATE
) -> TurnResult:
    """The figures of `turn`, from all `replies` of the call. `next_said_ns`: first audible sample of the next turn.
    `heard_rate`: samples per second of the replies."""
    own = [reply for reply in replies if reply.turn == turn.index]
    answers = [reply for reply in own if turn.is_answer(reply)]
    sounding = [reply for reply in answers if turn.in_time(reply)]
    last = answers[-1] if answers else None
    first_received = sounding[0].audio.first_received_ns if sounding else None
    censored = turn.said_end_ns is not None and first_received is None
    waited_to = max(turn.waited_to_ns, turn.said_end_ns or 0)
    heard_end = _latest([reply.audio.last_heard_ns for reply in sounding])
    received_end = _latest([reply.audio.last_received_ns for reply in sounding])
    drain = last.drain if last else None
    barge_in_stop_ms = _stop_ms(next_said_ns if turn.interrupted else None, heard_end)
    return TurnResult(
        turn=turn.index,
        utterance=turn.utterance.label,
        outcome=_outcome(turn, answers, bool(sounding), barge_in_stop_ms is not None),
        caller_text=turn.caller_text,
        reply_text=" ".join(reply.text for reply in answers if reply.text),
        status=last.status if last else "",
        status_reason=last.reason if last else None,
        ttfa_ms=elapsed_ms(turn.said_end_ns, waited_to if censored else first_received),
        ttfa_censored=censored,
        ttfa_audible_ms=elapsed_ms(turn.said_end_ns, _earliest([reply.audio.first_audible_ns for reply in sounding])),
        reply_ms=samples_to_ms(sum(reply.audio.received_samples for reply in own), heard_rate),
        heard_ms=samples_to_ms(sum(reply.audio.heard_samples for reply in own), heard_rate),
        discarded_ms=samples_to_ms(sum(reply.audio.discarded_samples for reply in own), heard_rate),
        gap_ms_max=_ms(max((reply.audio.gap_ns_max for reply in own), default=0)),
        dry_ms=_ms(sum(reply.audio.dry_ns for reply in own)),
        yielded=None if barge_in_stop_ms is None else any(reply.cut_ns is not None for reply in sounding),
        barge_in_stop_ms=barge_in_stop_ms,
        barge_in_received_ms=_stop_ms(next_said_ns if turn.interrupted else None, received_end),
        cancel_stop_ms=_stop_ms(turn.cancel_ns, heard_end),
        cancel_received_ms=_stop_ms(turn.cancel_ns, received_end),
        drain_status=drain.status if drain else None,
        drain_lag_ms=drain.lag_ms if drain else None,
        drain_lag_client_ms=drain.lag_client_ms if drain else None,
        released=drain.released if drain else None,
        timings=last.timings if last else {},
        premature_replies=len(own) - len(answers),
        faults=add_faults([reply.audio.faults for reply in own]),
        errors=tuple(turn.errors),
    )


def _outcome(turn: Turn, answers: list[Reply], heard: bool, interrupted: bool) -> TurnOutcome:
    statuses = {reply.status for reply in answers}
    rules = (
        (TurnOutcome.NOT_SAID, turn.said_end_ns is None),
        (TurnOutcome.FAILED, "failed" in statuses),
        (TurnOutcome.NO_REPLY, not heard),
        (TurnOutcome.INTERRUPTED, interrupted),
        (TurnOutcome.CANCELLED, turn.cancel_ns is not None),
        (TurnOutcome.UNFINISHED, any(reply.done_ns is None for reply in answers)),
        (TurnOutcome.CUT_OFF, "cancelled" in statuses),
    )
    return next((outcome for outcome, applies in rules if applies), TurnOutcome.ANSWERED)


def _stop_ms(start_ns: int | None, end_ns: int | None) -> float | None:
    """How long something went on past `start_ns`; None where it had ended before."""
    elapsed = elapsed_ms(start_ns, end_ns)
    return elapsed if elapsed is not None and elapsed >= 0 else None


def _ms(duration_ns: int) -> float:
    return round(duration_ns / NS_PER_MS, 1)


def _latest(times: list[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def _earliest(times: list[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)
