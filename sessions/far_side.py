"""Whether what was said at the far end of the line is to be answered: machines, loops, and what nobody understands.

Theory of operation
    A turn's words tell a mailbox, a queue and a menu (`media.announcements`), and a beep tells the end of a mailbox's
    greeting (`media.beep`). Whatever is at the other end, what comes again and again, and sound of which no words are
    ever made, must not be answered for ever: so bounds hold that know nothing of machines.

        PERSON ──greeting──► GREETING ──beep, or none for long──► RECORDING, and our message
          │ beep              ▲
          ▼                   │ greeting: its words were known after its beep
            BEEPED ───────────────┴──► RECORDING;  ──none for long──► PERSON

Rules
* A queue's words are answered by nobody. Those of a mailbox and a menu are answered where the policy says `go_on`.
* Who says nothing new is in a loop: what repeats one of the last `RECENT_MAX` turns of `REPEATED_WORDS_MIN` words or
  more, within `REPEATS_WITHIN_NS`, is answered so often in a row as the policy says. Shorter turns count neither way.
* After `WORDLESS_MAX` turns in a row of which no words were made that anybody said, such turns are answered no more
  until words come.
* A beep counts within the first `GREETING_SAMPLES_MAX` of the input: a person's line may beep later. Behind so much
  voice as a greeting has, it tells a machine by itself.
* What the policy asks for is done once.
* Nothing here concerns what a client asks for.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum, auto
from typing import Literal

from media.announcements import Announcement, announcement
from media.backchannels import Meaning, meaning, words
from media.beep import Beep
from sessions.settings import INPUT_RATE

OnMachine = Literal["go_on", "hang_up", "leave_message"]
Act = Literal["hang_up", "leave_message"]
What = Literal["answering_machine", "beep", "queue", "menu", "repetition", "no_words"]

REPEATS_MAX = 3
REPEATS_WITHIN_NS = 300_000_000_000
REPEATED_WORDS_MIN = 5  # people say "yes" and "the next one, please" again and again
RECENT_MAX = 6  # loops of two machines have few steps
SAME_SHARE = 0.9  # of the words: a recogniser hears some of a long text in two ways; of a short one none may differ
COMPARED_WORDS_MAX = 64
WORDLESS_MAX = 3
GREETING_SAMPLES_MAX = 60 * INPUT_RATE
GREETING_MS_MIN = 2_500  # of voice: a person who answers says less at first
BEEP_NS_MAX = 6_000_000_000  # from a greeting's end to its beep, and from a beep to the words before it


@dataclass(frozen=True, slots=True)
class MachinePolicy:
    """What is done where a machine answers. `message`: what is said to it, where `on_machine` is `leave_message`.
    `repeats_max`: repetitions in a row that are answered; None: all, as where what is heard is made up."""

    on_machine: OnMachine = "go_on"
    message: str = ""
    repeats_max: int | None = REPEATS_MAX


@dataclass(frozen=True, slots=True)
class Judgement:
    """`what` was recognised, if anything; `answers`: a turn is to be answered as any other; `act`: what is to be done
    now."""

    what: What | None = None
    answers: bool = True
    act: Act | None = None


class FarState(Enum):
    PERSON = auto()
    GREETING = auto()
    BEEPED = auto()
    RECORDING = auto()


class FarStep(Enum):
    GREET = auto()
    BEEP = auto()
    LAPSE = auto()


_TRANSITIONS: dict[tuple[FarState, FarStep], FarState] = {
    (FarState.PERSON, FarStep.GREET): FarState.GREETING,
    (FarState.PERSON, FarStep.BEEP): FarState.BEEPED,
    (FarState.GREETING, FarStep.GREET): FarState.GREETING,
    (FarState.GREETING, FarStep.BEEP): FarState.RECORDING,
    (FarState.GREETING, FarStep.LAPSE): FarState.RECORDING,
    (FarState.BEEPED, FarStep.GREET): FarState.RECORDING,
    (FarState.BEEPED, FarStep.BEEP): FarState.BEEPED,
    (FarState.BEEPED, FarStep.LAPSE): FarState.PERSON,
    (FarState.RECORDING, FarStep.GREET): FarState.RECORDING,
    (FarState.RECORDING, FarStep.BEEP): FarState.RECORDING,
}


class FarSide:
    """Of one call."""

    def __init__(self, policy: MachinePolicy) -> None:
        self._policy = policy
        self._state = FarState.PERSON
        self._moved_ns = 0
        self._has_acted = False
        self._wordless = 0
        self._repeats = 0
        self._recent: deque[tuple[int, tuple[str, ...]]] = deque(maxlen=RECENT_MAX)

    @property
    def state(self) -> FarState:
        return self._state

    @property
    def due_ns(self) -> int | None:
        """When to call `tick`, where nobody speaks; None: nothing is waited for."""
        return self._moved_ns + BEEP_NS_MAX if self._state in (FarState.GREETING, FarState.BEEPED) else None

    def tick(self, now_ns: int) -> Judgement:
        """What is waited for does not come."""
        if self.due_ns is None or now_ns < self.due_ns:
            return Judgement()
        self._move(FarStep.LAPSE, now_ns)
        return Judgement(act=self._act())

    def beeped(self, beep: Beep, now_ns: int) -> Judgement:
        """A beep has sounded behind a voice, and then nothing."""
        if beep.end > GREETING_SAMPLES_MAX:
            return Judgement()
        self._move(FarStep.BEEP, now_ns)
        if beep.voice_ms >= GREETING_MS_MIN:
            self._move(FarStep.GREET, now_ns)
        return Judgement("beep", act=self._act())

    def understood(self, text: str, now_ns: int) -> Judgement:
        """A turn has said `text`; empty where that was nothing."""
        said = words(text)[-COMPARED_WORDS_MAX:]
        if meaning(said) is Meaning.NOTHING:
            self._wordless += 1
            return Judgement() if self._wordless <= WORDLESS_MAX else Judgement("no_words", answers=False)
        self._wordless = 0
        kind = announcement(text)
        if kind is Announcement.MAILBOX or self._state is FarState.GREETING:
            self._move(FarStep.GREET, now_ns)
        if self._is_in_loop(said, now_ns):
            return Judgement("repetition", answers=False, act=self._act())
        goes_on = self._policy.on_machine == "go_on"
        answers = kind is not Announcement.QUEUE and (goes_on or (kind is None and self._state is FarState.PERSON))
        return Judgement(kind.value if kind else None, answers, self._act())

    def _act(self) -> Act | None:
        """What is to be done of what has become known."""
        policy = self._policy.on_machine
        is_time = self._state is FarState.RECORDING or (policy == "hang_up" and self._state is FarState.GREETING)
        if policy == "go_on" or self._has_acted or not is_time:
            return None
        self._has_acted = True
        return policy

    def _is_in_loop(self, said: tuple[str, ...], now_ns: int) -> bool:
        if len(said) < REPEATED_WORDS_MIN:
            return False
        is_new = not any(now_ns - at_ns <= REPEATS_WITHIN_NS and _is_same(said, other) for at_ns, other in self._recent)
        self._repeats = 0 if is_new else self._repeats + 1
        self._recent.append((now_ns, said))
        repeats_max = self._policy.repeats_max
        return repeats_max is not None and self._repeats > repeats_max

    def _move(self, step: FarStep, now_ns: int) -> None:
        self._state, self._moved_ns = _TRANSITIONS[self._state, step], now_ns


def _is_same(said: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return SequenceMatcher(None, said, other, autojunk=False).ratio() >= SAME_SHARE
