"""The caller who examines: makes the service talk, does one thing after another, and writes down what it hears.

Theory of operation
    As with every simulated caller, the shell calls `frame` for each 20 ms of microphone at its absolute deadline and
    sends what it returns, and calls `on_event` for what arrives.

        RESTING -> ASKING -> LEADING -> PLAYING -> WATCHING -> RESTING … -> ENDED
            └─────── an event in silence ──^

    RESTING stops what is still being said, waits for silence, and takes what was said out of the conversation, so that
    each event finds the same history. ASKING types a question that has a long answer; LEADING waits for the event's
    moment in it. WATCHING looks on until the event can be judged.

Rules
* An event that could not happen as planned, such as over a reply that had ended, is repeated once, earlier in the
  reply, after all others. Then it is reported as spoilt.
* Every wait has a limit.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from benchmarks.turn_taking.ear import Ear
from benchmarks.turn_taking.labels import TURNS, Event, Kind, Span
from benchmarks.turn_taking.observation import Observation
from benchmarks.turn_taking.score import ERROR_ANSWER_NS, HOLD_NS_MIN, NS_PER_MS, NS_PER_S, TAKEN_NS_MIN, YIELD_NS_MAX
from loadtest import realtime_wire as wire
from loadtest.line import Line
from loadtest.realtime_wire import SAMPLE_RATE
from loadtest.timeline import ACK_FRAMES, FRAME_BYTES, FRAME_NS

# Longer than the service waits for a turn to go on, so that no event falls into the one before.
REST_NS = 900 * NS_PER_MS
REST_NS_MAX = 15 * NS_PER_S
# The first question of a call comes with its examples, which a small model on a busy core reads for eight seconds.
ASK_NS_MAX = 30 * NS_PER_S
ANSWER_NS_MAX = 6 * NS_PER_S
DECIDE_NS = 1 * NS_PER_S
# A little more than what makes an answer count as one.
ENOUGH_NS = TAKEN_NS_MIN + 100 * NS_PER_MS
ATTEMPTS_MAX = 2

# A small model answers as long as its examples are.
EXAMPLES = (
    ("user", "Tell me about rivers."),
    (
        "assistant",
        "A river begins high in the hills, where rain and melting snow come together in small streams. The streams "
        "run down the slopes and join each other, and the water becomes wider and slower. On the way it carries sand "
        "and small stones, and it cuts a valley into the land. Many plants and animals live along its banks. People "
        "build towns and bridges there, and boats carry goods from one place to the next. At the end, the river "
        "meets the sea, and its water becomes part of the ocean.",
    ),
    ("user", "Tell me about a day in the forest."),
    (
        "assistant",
        "A forest wakes up slowly in the morning, when the first light comes through the branches. The birds begin "
        "to sing, one after the other, and small animals leave their holes to look for food. Later in the day it "
        "grows warm, and insects fly from flower to flower. In the afternoon the wind moves the leaves, and the "
        "shadows become long. In the evening the birds return to their trees. At night the owls and the foxes come "
        "out, and the forest is quiet until the next morning.",
    ),
)
QUESTIONS = (
    "Explain how bread is made.",
    "Tell me about the sea.",
    "Tell me about the history of France.",
    "Tell me about a train journey.",
    "How does a garden grow?",
)
INSTRUCTIONS = "You explain everything at length, in many simple sentences, one after the other."


class Phase(StrEnum):
    """Where the examination stands."""

    RESTING = "resting"
    ASKING = "asking"
    LEADING = "leading"
    PLAYING = "playing"
    WATCHING = "watching"
    ENDED = "ended"


@dataclass(slots=True)
class _Task:
    """An event that is to happen, for the `attempt`th time."""

    event: Event
    attempt: int = 1

    def earlier(self) -> _Task:
        """Once more, sooner."""
        moment_ms = self.event.moment_ms
        sooner = replace(self.event, moment_ms=None if moment_ms is None else moment_ms // 2)
        return _Task(sooner, self.attempt + 1)


class Examiner:
    """One call over `line`, in which `events` happen."""

    def __init__(self, events: Iterable[Event], line: Line | None = None) -> None:
        self._waiting = deque(_Task(event) for event in events)
        self._line = line or Line()
        self._ear = Ear(self._line)
        self._phase = Phase.RESTING
        self._task: _Task | None = None
        self._over = ""
        self._start_ns = 0
        self._since_ns = 0
        self._quiet_ns = 0
        self._clip_ns = 0
        self._played_bytes = 0
        self._asked = 0
        self._cancelled: set[str] = set()
        self._late_ns: array[int] = array("q")
        self.observations: list[Observation] = []

    @property
    def finished(self) -> bool:
        return self._phase is Phase.ENDED

    @property
    def errors(self) -> list[str]:
        """What the service complained about."""
        return list(self._ear.errors)

    @property
    def lateness_p99_ms(self) -> float:
        """How late the microphone's frames were handed over: the quality of the caller itself."""
        ordered = sorted(self._late_ns) or [0]
        return ordered[(len(ordered) - 1) * 99 // 100] / NS_PER_MS

    def begin(self, now_ns: int) -> list[wire.ClientMessage]:
        """The session is open: what is to have been said before."""
        self._start_ns = self._since_ns = self._quiet_ns = now_ns
        return [wire.typed(f"example_{place}", role, text) for place, (role, text) in enumerate(EXAMPLES)]

    def deadline_ns(self, index: int) -> int:
        """When frame `index` is due: its last sample has been taken then."""
        return self._start_ns + (index + 1) * FRAME_NS

    def on_event(self, event: wire.ServerEvent, now_ns: int) -> None:
        """Take in one server event."""
        self._ear.on_event(event, now_ns)

    def frame(self, index: int, now_ns: int) -> list[wire.ClientMessage]:
        """What to send for the frame that is due: its audio, and what else there is to say."""
        due_ns = self.deadline_ns(index)
        self._late_ns.append(max(0, now_ns - due_ns))
        self._ear.advance(now_ns)
        messages = self._move(due_ns - FRAME_NS)
        if index % ACK_FRAMES == 0:
            messages += self._ear.acknowledge(now_ns)
        return [self._line.said(self._next_audio()), *messages]

    # ---- decisions -------------------------------------------------------------------------------

    def _move(self, at_ns: int) -> list[wire.ClientMessage]:
        """Let the examination go on, for a frame whose first sample is taken at `at_ns`."""
        match self._phase:
            case Phase.RESTING:
                return self._rest(at_ns)
            case Phase.ASKING:
                self._wait_for_reply(at_ns)
            case Phase.LEADING:
                self._wait_for_moment(at_ns)
            case Phase.PLAYING if self._played_bytes >= len(self._event.clip.pcm):
                self._go(Phase.WATCHING, at_ns)
            case Phase.WATCHING if self._seen_enough(at_ns):
                self._close(at_ns)
        return []

    def _rest(self, at_ns: int) -> list[wire.ClientMessage]:
        if self._ear.busy(at_ns):
            self._quiet_ns = at_ns
        tired = at_ns - self._since_ns >= REST_NS_MAX
        if at_ns - self._quiet_ns < REST_NS and not tired:
            uncancelled = [response for response in self._ear.open_responses if response not in self._cancelled]
            self._cancelled.update(uncancelled)
            return [wire.CancelResponse(response) for response in uncancelled]
        self._ear.advance(at_ns)
        self._ear.forget()
        messages: list[wire.ClientMessage] = [wire.DeleteItem(item) for item in self._ear.take_items()]
        return messages + self._next_event(at_ns)

    def _next_event(self, at_ns: int) -> list[wire.ClientMessage]:
        if not self._waiting:
            self._go(Phase.ENDED, at_ns)
            return []
        self._task, self._over, self._clip_ns = self._waiting.popleft(), "", at_ns
        if self._event.moment_ms is None:
            self._play(at_ns)
            return []
        self._asked += 1
        question = QUESTIONS[self._event.number % len(QUESTIONS)]
        self._ear.remember_item(f"question_{self._asked}")
        self._go(Phase.ASKING, at_ns)
        return [wire.typed(f"question_{self._asked}", "user", question), wire.CreateResponse()]

    def _wait_for_reply(self, at_ns: int) -> None:
        if self._ear.newest and self._ear.first_heard_ns(self._ear.newest) is not None:
            self._over = self._ear.newest
            self._go(Phase.LEADING, at_ns)
        elif at_ns - self._since_ns >= ASK_NS_MAX:
            self._spoil("the question was not answered", at_ns)

    def _wait_for_moment(self, at_ns: int) -> None:
        first_ns = self._ear.first_heard_ns(self._over)
        assert first_ns is not None
        assert self._event.moment_ms is not None
        if self._ear.is_over(self._over):
            self._spoil("the reply was too short", at_ns)
        elif at_ns >= first_ns + self._event.moment_ms * NS_PER_MS:
            self._play(at_ns)

    def _play(self, at_ns: int) -> None:
        self._clip_ns, self._played_bytes = at_ns, 0
        self._go(Phase.PLAYING, at_ns)

    def _seen_enough(self, at_ns: int) -> bool:
        (start_ns, _), (_, end_ns) = self._voiced[0], self._voiced[-1]
        late = at_ns >= end_ns + ANSWER_NS_MAX
        if self._event.kind in TURNS:
            return late or self._answered(end_ns)
        if not self._over:
            return at_ns >= end_ns + ERROR_ANSWER_NS + DECIDE_NS
        if at_ns < max(end_ns, start_ns + YIELD_NS_MAX) + DECIDE_NS:
            return False
        if self._ear.gave_up(self._over):
            return late or not self._event.wants_answer or self._answered(end_ns)
        return late or self._ear.is_over(self._over) or self._sounding(at_ns)

    def _answered(self, end_ns: int) -> bool:
        """A response that began after the end has been heard for long enough, or to its own end."""
        for response in {sound.response for sound in self._ear.sounds if sound.start_ns >= end_ns} - {self._over}:
            heard_ns = sum(one.end_ns - one.start_ns for one in self._ear.sounds if one.response == response)
            if heard_ns >= ENOUGH_NS or self._ear.is_over(response):
                return True
        return False

    def _sounding(self, at_ns: int) -> bool:
        last_ns = self._ear.last_heard_ns(self._over)
        return last_ns is not None and at_ns - last_ns < HOLD_NS_MIN

    # ---- the record ------------------------------------------------------------------------------

    @property
    def _event(self) -> Event:
        assert self._task is not None
        return self._task.event

    @property
    def _voiced(self) -> tuple[Span, ...]:
        """The labels, on the clock."""
        spans = self._event.clip.voiced
        return tuple((self._sample_ns(start), self._sample_ns(end)) for start, end in spans)

    def _sample_ns(self, sample: int) -> int:
        return self._clip_ns + sample * NS_PER_S // SAMPLE_RATE

    def _close(self, at_ns: int) -> None:
        """Done with the event, if the reply lasted as long as it had to."""
        ended_ns = self._ear.last_heard_ns(self._over) if self._over else None
        needed_ns = self._voiced[-1][1] if self._event.kind is Kind.NOISE else self._voiced[0][0] + YIELD_NS_MAX
        by_itself = self._ear.is_over(self._over) and not self._ear.gave_up(self._over)
        if by_itself and ended_ns is not None and ended_ns < needed_ns:
            self._spoil("the reply ended meanwhile", at_ns)
        else:
            self._record("", at_ns)

    def _spoil(self, why: str, at_ns: int) -> None:
        """Once more, or never."""
        assert self._task is not None
        if self._task.attempt < ATTEMPTS_MAX:
            self._waiting.append(self._task.earlier())
            self._go(Phase.RESTING, at_ns)
        else:
            self._record(why, at_ns)

    def _record(self, spoilt: str, at_ns: int) -> None:
        event = self._event
        seen = Observation(
            *(event.number, event.kind, event.clip.label, event.wants_answer, self._over or None, self._voiced),
            *(self._ear.sounds, self._ear.notes, self._ear.words, at_ns, spoilt, self._ear.heard_as),
        )
        self.observations.append(seen)
        self._go(Phase.RESTING, at_ns)

    def _go(self, phase: Phase, at_ns: int) -> None:
        self._phase, self._since_ns = phase, at_ns
        self._quiet_ns = at_ns

    # ---- the microphone --------------------------------------------------------------------------

    def _next_audio(self) -> bytes:
        if self._phase is not Phase.PLAYING:
            return bytes(FRAME_BYTES)
        pcm = self._event.clip.pcm[self._played_bytes : self._played_bytes + FRAME_BYTES]
        self._played_bytes += FRAME_BYTES
        return pcm.ljust(FRAME_BYTES, b"\0")
