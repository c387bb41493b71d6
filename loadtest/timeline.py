"""The caller's mouth and mind: what each microphone frame holds, when the next utterance begins, when the call ends.

Theory of operation
    `begin` opens the microphone. The shell then calls `frame` once for each 20 ms frame, at its absolute deadline,
    and sends what it returns; it calls `on_event` for each server event as it arrives. When `finished` is true,
    `result` is the record of the call. The microphone never stops: between utterances it sends silence.

        LEADING -> SPEAKING <-> LISTENING -> CLOSING -> ENDED

    An utterance begins `lead_ms` after the call's start, `think_ms` after the last reply was heard to its end,
    `barge_in_after_ms` after the first sample of the current reply was heard, or when the turn has timed out.

Rules
* The caller flushes its loudspeaker on the server's word (see `hearing`), so stop times show server and network.
  Only a reply that is wholly made when it is to be cancelled is flushed at once: nothing is left to ask for.
* Decisions follow the deadlines of the frames, so a late shell changes no schedule; its lateness is in the result.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from loadtest import realtime_wire as wire
from loadtest.ear import Ear
from loadtest.errors import CallError, ConnectionLost
from loadtest.hearing import Hearing
from loadtest.line import Line
from loadtest.realtime_client import ResumeTicket
from loadtest.realtime_wire import SAMPLE_RATE
from loadtest.recording import Recording
from loadtest.sent_sound import Piece
from loadtest.turns import (
    NS_PER_MS,
    CallOutcome,
    CallResult,
    Lateness,
    Turn,
    Utterance,
    add_faults,
    elapsed_ms,
    turn_result,
)
from media.audio_format import FormatName
from media.chunk import BYTES_PER_SAMPLE, ms_to_samples

FRAME_MS = 20
FRAME_NS = FRAME_MS * NS_PER_MS
FRAME_BYTES = ms_to_samples(FRAME_MS, SAMPLE_RATE) * BYTES_PER_SAMPLE

# A call that goes on for longer has a server that never stops talking; 90,000 frames.
CALL_MS_MAX = 30 * 60_000
# After the last reply, how long `response.drained` is waited for.
DRAIN_WAIT_MS = 5_000
# How this service closes a connection whose session another one has taken up (4000 to 4999 are private use).
CLOSE_REPLACED = 4001
# The position heard is reported every five frames; browsers do so each 50 to 200 ms.
ACK_FRAMES = 5


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What the caller is going to do. At most one of `barge_in_after_ms` and `cancel_after_ms` is set.

    `turn_timeout_ms` runs from the end of speech to the first sample, and again from each sample to the next.
    A connection that breaks is tried again for `return_ms_max`, and what was not understood is said again.
    `instructions` and `silence_ms` (of the server's turn detection) go into the session; None leaves them alone.
    Several values of one setting take turns: the first for the first turn, and round again. `format_name`: of the
    sound in messages, both ways.
    """

    utterances: tuple[Utterance, ...]
    lead_ms: int = 500
    think_ms: int = 500
    barge_in_after_ms: int | tuple[int, ...] | None = None
    cancel_after_ms: int | tuple[int, ...] | None = None
    turn_timeout_ms: int = 30_000
    instructions: str | None = None
    silence_ms: int | None = None
    format_name: FormatName = "audio/pcm"
    return_ms_max: int = 0

    def __post_init__(self) -> None:
        assert self.utterances
        assert self.turn_timeout_ms > 0
        assert self.barge_in_after_ms is None or self.cancel_after_ms is None


# Makes the ear of the call's protocol, which shares the turns with the timeline.
EarMaker = Callable[[list[Turn], Line], Ear]


class Phase(StrEnum):
    """Where the call stands."""

    LEADING = "leading"
    SPEAKING = "speaking"
    LISTENING = "listening"
    CLOSING = "closing"
    ENDED = "ended"


class CallTimeline:
    """One call, from the opening of the microphone to the record. `line`: None for that of the plan's format."""

    def __init__(self, plan: CallPlan, line: Line | None = None, ear: EarMaker = Hearing) -> None:
        self._plan = plan
        self._phase = Phase.LEADING
        self._turns = [Turn(index, utterance) for index, utterance in enumerate(plan.utterances)]
        self._current = -1
        self._spoken_bytes = 0
        self._line = line or Line(plan.format_name)
        self._hearing: Ear = ear(self._turns, self._line)
        self._start_ns = 0
        self._end_ns = 0
        self._closing_until_ns = 0
        self._late_ns: array[int] = array("q")
        self._session_id = ""
        self._resume_token: str | None = None
        self._outcome = CallOutcome.COMPLETED
        self._detail = ""

    @property
    def finished(self) -> bool:
        return self._phase is Phase.ENDED

    @property
    def recording(self) -> Recording:
        """What the caller has heard so far."""
        return self._hearing.recording

    def begin(self, now_ns: int, session_id: str, resume_token: str | None) -> None:
        """The session is open. A `resume_token` tells that the server speaks our extensions."""
        self._start_ns = self._end_ns = now_ns
        self._session_id, self._resume_token = session_id, resume_token
        self._hearing.begin_call(now_ns, resume_token is not None)

    def ticket(self) -> ResumeTicket | None:
        """With what the session is taken up again after its connection; None where that cannot be."""
        if self.finished or self._resume_token is None:
            return None
        return ResumeTicket(self._session_id, self._resume_token, self._hearing.open_responses(), self._hearing.epoch)

    def said_since(self, sample: int) -> Piece | None:
        """The first of what was said from `sample` of the input on; None where nothing was."""
        return self._line.sent.since(sample)

    def input_goes_on(self, sample: int) -> None:
        """The input of this session has come up to `sample` before the call."""
        self._line.sent.begin_at(sample)

    def deadline_ns(self, index: int) -> int:
        """When frame `index` is due: its last sample has been taken then."""
        return self._start_ns + (index + 1) * FRAME_NS

    def take_notes(self) -> list[str]:
        """Lines for a person who follows the call, each once."""
        return self._hearing.take_notes()

    def frame(self, index: int, now_ns: int) -> list[wire.ClientMessage]:
        """What to send for the frame that is due: its audio, and what else the caller has to say."""
        due_ns = self.deadline_ns(index)
        self._late_ns.append(max(0, now_ns - due_ns))
        self._hearing.advance(now_ns)
        messages = self._decide(due_ns - FRAME_NS, now_ns)
        if self.finished:
            return []
        if index % ACK_FRAMES == 0:
            messages += self._hearing.acknowledge(now_ns)
        return [self._line.said(self._next_audio()), *messages]

    def on_event(self, event: wire.ServerEvent, now_ns: int) -> list[wire.ClientMessage]:
        """Take in one server event; the messages to send at once. Raises `ServerViolation`."""
        if isinstance(event, wire.SessionReplaced):
            self.stop(CallOutcome.SESSION_REPLACED, "another connection has taken the session over", now_ns)
            return []
        return self._hearing.on_event(event, now_ns)

    def fail(self, fault: CallError, now_ns: int) -> None:
        """The connection or the server gave out."""
        outcome = CallOutcome.PROTOCOL_VIOLATION
        if isinstance(fault, ConnectionLost):
            replaced = fault.close_code == CLOSE_REPLACED
            outcome = CallOutcome.SESSION_REPLACED if replaced else CallOutcome.CONNECTION_LOST
        self.stop(outcome, str(fault), now_ns)

    def stop(self, outcome: CallOutcome, detail: str, now_ns: int) -> None:
        """The call ends here, whatever it was doing."""
        if self.finished:
            return
        self._hearing.hang_up(now_ns)
        if self._phase in (Phase.SPEAKING, Phase.LISTENING):
            self._turns[self._current].waited_to_ns = now_ns
        self._phase, self._outcome, self._detail, self._end_ns = Phase.ENDED, outcome, detail, now_ns
        self._hearing.note(f"call {outcome}{f': {detail}' if detail else ''}")

    # ---- decisions -------------------------------------------------------------------------------

    def _decide(self, start_ns: int, now_ns: int) -> list[wire.ClientMessage]:
        """Let the call move on, for a frame whose first sample is taken at `start_ns`."""
        if start_ns - self._start_ns >= CALL_MS_MAX * NS_PER_MS:
            self.stop(CallOutcome.TOO_LONG, f"{CALL_MS_MAX // 60_000} minutes", now_ns)
        if self._phase is Phase.SPEAKING and self._spoken_bytes >= len(self._turns[self._current].utterance.pcm):
            self._phase = Phase.LISTENING
        messages: list[wire.ClientMessage] = []
        if self._phase is Phase.LISTENING:
            messages = self._cancel(self._turns[self._current], start_ns, now_ns)
            self._go_on_after(self._turns[self._current], start_ns, now_ns)
        elif self._phase is Phase.LEADING and start_ns >= self._first_due_ns():
            self._say_next(start_ns)
        if self._phase is Phase.CLOSING and (not self._hearing.undrained() or now_ns >= self._closing_until_ns):
            self.stop(CallOutcome.COMPLETED, "", now_ns)
        return messages

    def _first_due_ns(self) -> int:
        """The caller lets a greeting end, but not for ever."""
        due_ns = self._start_ns + self._plan.lead_ms * NS_PER_MS
        if not self._hearing.replies:
            return due_ns
        over_ns = self._hearing.greeting_over_ns()
        limit_ns = due_ns + self._plan.turn_timeout_ms * NS_PER_MS
        return limit_ns if over_ns is None else min(limit_ns, max(due_ns, over_ns + self._plan.think_ms * NS_PER_MS))

    def _go_on_after(self, turn: Turn, start_ns: int, now_ns: int) -> None:
        """Leave the turn when its reply has been heard, is to be interrupted, or does not come."""
        over_ns = self._hearing.over_ns(turn)
        answered = over_ns is not None and start_ns >= over_ns + self._plan.think_ms * NS_PER_MS
        timed_out = start_ns >= self._hearing.progress_ns(turn) + self._plan.turn_timeout_ms * NS_PER_MS
        last = self._current == len(self._turns) - 1
        interrupting = not last and self._has_heard_for(turn, self._plan.barge_in_after_ms, start_ns)
        if not (answered or timed_out or interrupting):
            return
        turn.waited_to_ns = now_ns
        turn.interrupted = interrupting
        if last:
            self._phase = Phase.CLOSING
            self._closing_until_ns = now_ns + DRAIN_WAIT_MS * NS_PER_MS
        else:
            self._say_next(start_ns)

    def _has_heard_for(self, turn: Turn, setting: int | tuple[int, ...] | None, start_ns: int) -> bool:
        """Whether the turn's reply has been heard for that long at `start_ns`, and is not over."""
        after_ms = setting[turn.index % len(setting)] if isinstance(setting, tuple) else setting
        first_ns, over_ns = self._hearing.first_heard_ns(turn), self._hearing.over_ns(turn)
        if after_ms is None or first_ns is None or (over_ns is not None and start_ns >= over_ns):
            return False
        return start_ns >= first_ns + after_ms * NS_PER_MS

    def _cancel(self, turn: Turn, start_ns: int, now_ns: int) -> list[wire.ClientMessage]:
        if turn.cancel_ns is not None or not self._has_heard_for(turn, self._plan.cancel_after_ms, start_ns):
            return []
        turn.cancel_ns = now_ns
        self._hearing.note(f"turn {turn.index + 1}: cancelling the reply")
        response_id = self._hearing.open_response(turn)
        return self._hearing.flush(now_ns) if response_id is None else [wire.CancelResponse(response_id)]

    # ---- the microphone --------------------------------------------------------------------------

    def _say_next(self, start_ns: int) -> None:
        interrupting = self._current >= 0 and self._turns[self._current].interrupted
        self._current += 1
        self._phase, self._spoken_bytes = Phase.SPEAKING, 0
        turn = self._turns[self._current]
        turn.say(start_ns)
        self._hearing.begin_turn(turn.index)
        self._hearing.note(
            f"turn {turn.index + 1}: {'interrupting' if interrupting else 'saying'} {turn.utterance.label}"
        )

    def _next_audio(self) -> bytes:
        if self._phase is not Phase.SPEAKING:
            return bytes(FRAME_BYTES)
        pcm = self._turns[self._current].utterance.pcm[self._spoken_bytes : self._spoken_bytes + FRAME_BYTES]
        self._spoken_bytes += FRAME_BYTES
        return pcm.ljust(FRAME_BYTES, b"\0")

    # ---- the record ------------------------------------------------------------------------------

    def result(self) -> CallResult:
        """The call as measured up to now."""
        replies = self._hearing.replies
        said = [turn.said_start_ns for turn in self._turns]
        unprompted = [reply for reply in replies if reply.turn is None]
        return CallResult(
            session_id=self._session_id,
            resume_token=self._resume_token,
            outcome=self._outcome,
            detail=self._detail,
            duration_ms=elapsed_ms(self._start_ns, self._end_ns) or 0.0,
            turns=tuple(
                turn_result(turn, replies, following, self._line.sample_rate)
                for turn, following in zip(self._turns, [*said[1:], None], strict=True)
            ),
            unprompted_replies=len(unprompted),
            other_faults=add_faults([reply.audio.faults for reply in unprompted]),
            event_seq_faults=self._hearing.event_seq_faults,
            complaints=tuple(self._hearing.complaints),
            lateness=_lateness(self._late_ns),
            recording_truncated=self.recording.truncated,
        )


def _lateness(late_ns: array[int]) -> Lateness:
    ordered = sorted(late_ns) or [0]
    rank = len(ordered) - 1
    return Lateness(
        len(late_ns),
        p50_ms=round(ordered[rank // 2] / NS_PER_MS, 2),
        p99_ms=round(ordered[rank * 99 // 100] / NS_PER_MS, 2),
        max_ms=round(ordered[-1] / NS_PER_MS, 2),
    )
