"""Hearing: the caller's turns, from the first confident speech to the transcript.

Theory of operation
    A turn is opened by speech (or by a manual commit), gets an encoder stream fed from before its onset, and ends by
    silence or by command. Its transcript may still be on its way when the next turn begins, so ended turns wait in
    `_awaiting`, each by its own number. The pause that may become the end of the turn is told to the encoder at once:
    the final transcript is then mostly there before the silence has lasted long enough.

    Without turn detection the caller's sound is *buffered* until its client commits it: a turn of which nobody waits
    for the end, heard by the encoder as it comes. What was being said when detection is switched off becomes one.

Rules
* A *provisional* turn is speech over our own, of which it is not known yet whether it interrupts. Nobody is told of it:
  it is promoted to a turn like any other, or discarded without a trace.
* The moves of a turn stand in `_TRANSITIONS`; an illegal one raises and changes nothing.
* Input work is never ended by an epoch. A turn leaves with exactly one of: transcript, failure, discard.
* A turn whose encoder is lost is heard again, once: what it may be that the next one would die of too is given up. So
  is one whose beginning is not kept any more: no words are better than a part of them that seems to be all.
* At most one turn is being spoken or buffered. A buffered one has at most `BUFFER_SAMPLES_MAX`.
* A stream that has let go of its turn without a transcript is waited for `LATE_NS_MAX` longer; then it is lost.
* At most `AWAITING_MAX` turns wait for their transcript; one more, and the oldest is given up.
* The spans of turns do not overlap: what a turn hears of the one before is none of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from msgspec import structs

from media.chunk import samples_to_ms
from sessions.effects import (
    CancelStream,
    Effect,
    FeedStream,
    HearFrom,
    Measured,
    OpenStream,
    StopHearing,
    Tell,
)
from sessions.events import (
    CallerText,
    CallerTextFailed,
    CommandRefused,
    InputCommitted,
    SpeechStarted,
    SpeechStopped,
)
from sessions.items import InputSpan
from sessions.settings import INPUT_RATE
from stages.contracts import EncoderOptions, EndOfTurn, Pause, SpeechResumed, Tag, Transcript

TRANSCRIPT_NS_MAX = 8_000_000_000  # a final takes about 0.2 s; far beyond that the encoder is lost
LATE_NS_MAX = 2_000_000_000  # a transcript may be overtaken, on another link, by the end of its stream
ATTEMPTS_MAX = 2
BUFFER_FULL = "input_audio_buffer_full"
# A longer transcript than that of ten minutes would not fit one frame of a link (`stages.engines.local.utterance`).
BUFFER_SAMPLES_MAX = 600 * INPUT_RATE
AWAITING_MAX = 8  # turns whose transcript is on its way; more means the encoder has stopped


class TurnPhase(Enum):
    SPEAKING = auto()
    PAUSED = auto()
    ENDED = auto()
    GONE = auto()


class TurnStep(Enum):
    PAUSE = auto()
    RESUME = auto()
    END = auto()
    SETTLE = auto()
    DISCARD = auto()


_TRANSITIONS: dict[tuple[TurnPhase, TurnStep], TurnPhase] = {
    (TurnPhase.SPEAKING, TurnStep.PAUSE): TurnPhase.PAUSED,
    (TurnPhase.SPEAKING, TurnStep.END): TurnPhase.ENDED,
    (TurnPhase.SPEAKING, TurnStep.DISCARD): TurnPhase.GONE,
    (TurnPhase.PAUSED, TurnStep.RESUME): TurnPhase.SPEAKING,
    (TurnPhase.PAUSED, TurnStep.END): TurnPhase.ENDED,
    (TurnPhase.PAUSED, TurnStep.DISCARD): TurnPhase.GONE,
    (TurnPhase.ENDED, TurnStep.SETTLE): TurnPhase.GONE,
    (TurnPhase.ENDED, TurnStep.DISCARD): TurnPhase.GONE,
}


class TurnError(RuntimeError):
    """A turn was told something that cannot happen to it now: a bug in its driver."""


@dataclass(slots=True)
class Turn:
    """One turn of the caller. `answer`: a response is wanted once it is understood. `told`: the client knows of it.

    `lost`: (code, message) where the encoder has failed and the words will not be known. `partials`: somebody reads
    along. `is_full`: nothing more is taken of what is buffered. `own_from`: what is heard before that was of the turn
    before.
    """

    tag: Tag
    item: str
    started_sample: int
    feed_from: int
    answer: bool
    provisional: bool = False
    phase: TurnPhase = TurnPhase.SPEAKING
    ended_sample: int = 0
    speech_end_ns: int = 0
    ended_ns: int = 0
    told: bool = False
    let_go_ns: int | None = None
    lost: tuple[str, str] | None = None
    partials: bool = True
    is_full: bool = False
    own_from: int = 0

    @property
    def span(self) -> InputSpan:
        """All of it, once it has ended."""
        return InputSpan(self.own_from, self.ended_sample)

    @property
    def due_ns(self) -> int:
        """When an ended turn's transcript counts as lost."""
        timeout_ns = self.ended_ns + TRANSCRIPT_NS_MAX
        return timeout_ns if self.let_go_ns is None else min(timeout_ns, self.let_go_ns + LATE_NS_MAX)

    @property
    def is_paused(self) -> bool:
        return self.phase is TurnPhase.PAUSED

    def move(self, step: TurnStep) -> None:
        """Raises `TurnError` where the table has no such move."""
        target = _TRANSITIONS.get((self.phase, step))
        if target is None:
            raise TurnError(f"{step.name} in {self.phase.name}")
        self.phase = target


@dataclass(frozen=True, slots=True)
class Understood:
    """A turn's final transcript has come; `text` is empty where nothing was said."""

    turn: Turn
    text: str


class Hearing:
    """`new_item` gives ids; `stage` is the encoder's name in the graph. `input_from`: where the input begins here, as
    what came before is known."""

    def __init__(self, session: str, stage: str, new_item: Callable[[], str], input_from: int = 0) -> None:
        self.input_from = input_from
        self._ended = input_from
        self._session = session
        self._stage = stage
        self._new_item = new_item
        self._turns = 0
        self._current: Turn | None = None
        self._buffered: Turn | None = None
        self._awaiting: dict[int, Turn] = {}
        self._failed: list[Turn] = []

    @property
    def current(self) -> Turn | None:
        """The turn that is being spoken."""
        return self._current

    @property
    def buffered(self) -> Turn | None:
        """The turn that waits for its client's commit."""
        return self._buffered

    @property
    def is_awaited(self) -> bool:
        """True while an ended turn has no transcript yet."""
        return bool(self._awaiting)

    def has_item(self, item: str) -> bool:
        """`item` is that of a turn whose words are not known yet."""
        unended = self._current or self._buffered
        turns = (*self._awaiting.values(), *([unended] if unended else []))
        return any(turn.item == item for turn in turns)

    @property
    def amid_speech(self) -> Turn | None:
        """The turn that is being spoken, in no pause, where it is not over our own and may yet prove to be nothing."""
        turn = self._current
        return None if turn is None or turn.provisional or turn.is_paused else turn

    def settled_until(self, sample: int) -> int:
        """Up to where the caller's words are known, where no speech that is not a turn yet began before `sample`."""
        unended = self._current or self._buffered
        turns = (*self._awaiting.values(), *([unended] if unended else []))
        return min((turn.own_from for turn in turns), default=max(sample, self._ended))

    def next_turn(self) -> int:
        """A new turn's number; turns without speech (typed text) take one too."""
        self._turns += 1
        return self._turns

    def take_failed(self) -> list[Turn]:
        """Turns whose words were lost since the last call."""
        failed, self._failed = self._failed, []
        return failed

    def next_deadline_ns(self) -> int | None:
        return min((turn.due_ns for turn in self._awaiting.values()), default=None)

    # ---- speech ------------------------------------------------------------------------------------

    def start(self, onset: int, feed_from: int, epoch: int, *, answer: bool, provisional: bool = False) -> list[Effect]:
        """Speech began at `onset`; the encoder hears from `feed_from` on (16 kHz samples)."""
        assert self._current is None, "one turn is spoken at a time"
        assert self._buffered is None, "what is buffered ends before speech is detected"
        tag = Tag(self._session, epoch, self.next_turn())
        turn = Turn(tag, self._new_item(), onset, feed_from, answer, provisional, own_from=self._own_from(feed_from))
        self._current = turn
        return [self._opened(turn), HearFrom(tag, feed_from)]

    def _own_from(self, feed_from: int) -> int:
        return max(feed_from, self._ended)

    def _opened(self, turn: Turn) -> Effect:
        return OpenStream(self._stage, turn.tag, EncoderOptions(turn.partials))

    def tell_started(self) -> Effect:
        """The client's event for the current turn; over our own speech it waits until the epoch has ended."""
        assert self._current is not None, "no turn is being spoken"
        turn = self._current
        turn.told, turn.provisional = True, False
        return Tell(SpeechStarted(turn.item, samples_to_ms(turn.started_sample, INPUT_RATE)))

    def pause(self, sample: int) -> list[Effect]:
        turn = self._speaking()
        turn.move(TurnStep.PAUSE)
        return [FeedStream(self._stage, turn.tag, Pause(sample))]

    def resume(self) -> list[Effect]:
        turn = self._speaking()
        turn.move(TurnStep.RESUME)
        return [FeedStream(self._stage, turn.tag, SpeechResumed())]

    def end(self, sample: int, speech_end_ns: int, now_ns: int, previous: str | None) -> list[Effect]:
        """The turn ends at `sample`; `speech_end_ns` is when its last sound came in."""
        turn = self._speaking()
        turn.move(TurnStep.END)
        sample = turn.ended_sample if turn.is_full else sample
        turn.ended_sample, turn.speech_end_ns, turn.ended_ns = sample, speech_end_ns, now_ns
        self._current, self._ended = None, max(self._ended, sample)
        effects = self._make_room()
        self._awaiting[turn.tag.turn] = turn
        effects += [StopHearing(turn.tag), FeedStream(self._stage, turn.tag, EndOfTurn(sample))]
        if turn.told:
            effects.append(Tell(SpeechStopped(turn.item, samples_to_ms(sample, INPUT_RATE))))
        return [*effects, Tell(InputCommitted(turn.item, previous))]

    def buffer(self, start: int, end: int, epoch: int) -> list[Effect]:
        """More sound to be committed has come, up to `end`; what no turn has had begins at `start` (16 kHz samples)."""
        assert start < end, "sound has come"
        turn, effects = self._buffered, list[Effect]()
        if turn is None:
            tag = Tag(self._session, epoch, self.next_turn())
            own_from = self._own_from(start)
            turn = Turn(tag, self._new_item(), start, start, answer=False, partials=False, own_from=own_from)
            self._buffered = turn
            effects = [self._opened(turn), HearFrom(tag, start)]
        if turn.is_full or end - turn.feed_from <= BUFFER_SAMPLES_MAX:
            return effects
        turn.is_full, turn.ended_sample = True, end
        minutes = BUFFER_SAMPLES_MAX // INPUT_RATE // 60
        message = f"the buffer holds {minutes} minutes of sound; nothing more is taken until it is committed or cleared"
        return [*effects, StopHearing(turn.tag, end), Tell(CommandRefused(BUFFER_FULL, message, "audio"))]

    def set_aside(self) -> list[Effect]:
        """Speech is detected no more: what was being said waits for its commit."""
        turn, self._current = self._current, None
        if turn is None:
            return []
        self._buffered, turn.provisional = turn, False
        if not turn.is_paused:
            return []
        turn.move(TurnStep.RESUME)
        return [FeedStream(self._stage, turn.tag, SpeechResumed())]

    def take_up(self) -> Turn | None:
        """The turn that is to end now, spoken or buffered."""
        self._current, self._buffered = self._current or self._buffered, None
        return self._current

    def _make_room(self) -> list[Effect]:
        if len(self._awaiting) < AWAITING_MAX:
            return []
        oldest = next(iter(self._awaiting.values()))
        return self._give_up(oldest, "transcript_overload", "more turns came than could be heard")

    def _give_up(self, turn: Turn, code: str, message: str) -> list[Effect]:
        return [*self.failed(turn.tag, code, message), CancelStream(self._stage, turn.tag)]

    def discard(self) -> list[Effect]:
        """Throw the turn away that is being spoken or buffered: the client cleared its input."""
        turn = self.take_up()
        if turn is None:
            return []
        self._current = None
        turn.move(TurnStep.DISCARD)
        return [StopHearing(turn.tag), CancelStream(self._stage, turn.tag)]

    def _speaking(self) -> Turn:
        assert self._current is not None, "no turn is being spoken"
        return self._current

    # ---- transcripts -------------------------------------------------------------------------------

    def transcript(self, tag: Tag, heard: Transcript, now_ns: int) -> tuple[list[Effect], Understood | None]:
        """A transcript has come from the encoder; `Understood` where it is a turn's final one."""
        turn = self._awaiting.get(tag.turn)
        if turn is None or turn.tag != tag or not heard.final:
            return [], None
        del self._awaiting[tag.turn]
        turn.move(TurnStep.SETTLE)
        effects: list[Effect] = [
            Tell(CallerText(turn.item, heard.text, final=True)),
            Measured("encoder_wait_seconds", (now_ns - turn.ended_ns) / 1e9),
        ]
        return effects, Understood(turn, heard.text)

    def failed(self, tag: Tag, code: str, message: str) -> list[Effect]:
        """The encoder has lost the turn `tag`. One that is still being spoken is only told of when it ends."""
        unended = self._current or self._buffered
        if unended is not None and unended.tag == tag:
            unended.lost = (code, message)
            return [StopHearing(tag)]
        turn = self._awaiting.get(tag.turn)
        if turn is None or turn.tag != tag:
            return []
        del self._awaiting[tag.turn]
        turn.move(TurnStep.DISCARD)
        self._failed.append(turn)
        return [StopHearing(tag), Tell(CallerTextFailed(turn.item, code, message))]

    def let_go(self, tag: Tag, now_ns: int) -> None:
        """The encoder's stream `tag` has ended, and its transcript may be on its way."""
        turn = self._awaiting.get(tag.turn)
        if turn is not None and turn.tag == tag:
            turn.let_go_ns = now_ns

    def lost(self, tag: Tag, kept_from: int) -> list[Effect]:
        """The encoder's stream `tag` went with its process: let another hear the turn. The input is kept from sample
        `kept_from` on."""
        turns = (*self._awaiting.values(), self._current, self._buffered)
        turn = next((turn for turn in turns if turn is not None and turn.tag == tag), None)
        if turn is None:
            return []
        if turn.feed_from < kept_from:
            return self.failed(tag, "input_lost", f"the {self._stage} was lost, and the beginning is not kept any more")
        if tag.attempt + 1 >= ATTEMPTS_MAX:
            return self.failed(tag, "stage_lost", f"the {self._stage} was lost, and again")
        turn.tag = tag = structs.replace(tag, attempt=tag.attempt + 1)
        opened = self._opened(turn)
        if turn.phase is not TurnPhase.ENDED:
            return [opened, HearFrom(tag, turn.feed_from)]
        end = FeedStream(self._stage, tag, EndOfTurn(turn.ended_sample))
        return [opened, HearFrom(tag, turn.feed_from, turn.ended_sample), end]

    def tick(self, now_ns: int) -> list[Effect]:
        """Give up on transcripts that are overdue."""
        effects: list[Effect] = []
        for turn in [late for late in self._awaiting.values() if now_ns >= late.due_ns]:
            effects += self._give_up(turn, "transcript_timeout", "no transcript came in time")
        return effects
