"""When the caller's turn begins and ends, and whether speech over our own is an interruption; one detector per call.

Theory of operation
    While we are silent, a `SpeechGate` makes turns of the caller's speech, and `media.end_of_turn` says how long a
    silence ends one. While we speak, the first confident speech only holds our reply: it opens a provisional turn, and
    `media.interruption` weighs what comes. An interruption makes the turn real and ends our reply; anything else lets
    the reply go on, but the turn stays under watch, since its words may come after its sound, or more of it.

        FREE ──start──► TURN ──end──► FREE              a turn while we are silent, or may not be interrupted
        FREE ──hold──► HELD ──resume──► DOUBTED         speech over our own; our reply is held, then goes on
        FREE ──alert──► ALERTED ──confirm──► HELD       the client has noticed speech before we hear it too
        ALERTED ──dismiss──► FREE                       we never heard it
        HELD, DOUBTED ──yield──► TURN                   it was an interruption
        DOUBTED ──hold──► HELD                          another burst of it
        DOUBTED ──start──► TURN                         it outlasted our reply, or answers it
        DOUBTED ──drop──► FREE                          it was none

    What is our own echo by its sound (`media.echo`) holds nothing, interrupts nothing by lasting and opens no turn when
    we are silent: over our speech it opens a provisional turn (`Held` and `Resumed` at once), since a caller may speak
    under it, whose words count. A voice that is heard over it is a turn of its own. In silence it is no sound at all.

    Where noise, or an echo that only its words have told, has fooled us, holding by sound alone is suspended for a
    while: a provisional turn is still opened (`Held` and `Resumed` at once), so that words or long speech still
    interrupt. Then the client is not believed either.

Rules
* The moves stand in `_TRANSITIONS`; what is not there is a bug.
* A hold ends by exactly one of `Yielded` and `Resumed`, at most `decide_ms_max` after it began, whether sound comes or
  not.
* A provisional turn (from its first `Held`) leaves by exactly one of `Yielded`, `TurnStarted` (it is real, but cuts
  nothing) and `TurnDropped`. A real one ends by `TurnEnded`. `reset` forgets either without a word.
* Within a turn of either kind `TurnPaused` and `TurnResumed` alternate, as the gate hears it.
* In each pause of a real turn that lasts, `SoundWanted` is said at most once. Nothing waits for the answer, `sounded`:
  where none comes, or it comes late, the words decide alone.
* Positions are samples of the input at 16 kHz; `now_ns` is monotonic. The driver calls `tick` when `next_deadline_ns`
  is reached, and passes transcripts of the present turn only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from media.backchannels import Meaning
from media.echo import Kinship
from media.end_of_turn import silence_ms, usual_silence_ms
from media.interruption import NOTHING_HEARD, Burst, Evidence, hear
from media.speech_gate import (
    VAD_SAMPLE_RATE,
    WINDOW_MS,
    WINDOW_SAMPLES,
    GateEvent,
    GateState,
    SpeechEnded,
    SpeechGate,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
)
from media.turn_events import (
    SILENT,
    HeardWindow,
    Held,
    Resumed,
    ResumeWhy,
    Saying,
    SoundWanted,
    TurnDropped,
    TurnEnded,
    TurnEvent,
    TurnPaused,
    TurnResumed,
    TurnStarted,
    Yielded,
    YieldWhy,
)
from media.turn_settings import TurnDetectorSettings
from media.voice_level import VoiceLevel

NS_PER_MS = 1_000_000


class DetectorState(Enum):
    """`FREE`: no turn. `ALERTED`: a provisional one by the client's word, our reply held. `HELD`, `DOUBTED`: one that
    we have heard, our reply held or going on. `TURN`: a real one."""

    FREE = auto()
    ALERTED = auto()
    HELD = auto()
    DOUBTED = auto()
    TURN = auto()


class DetectorStep(Enum):
    START = auto()
    ALERT = auto()
    CONFIRM = auto()
    DISMISS = auto()
    HOLD = auto()
    RESUME = auto()
    YIELD = auto()
    DROP = auto()
    END = auto()


_TRANSITIONS: dict[tuple[DetectorState, DetectorStep], DetectorState] = {
    (DetectorState.FREE, DetectorStep.START): DetectorState.TURN,
    (DetectorState.FREE, DetectorStep.ALERT): DetectorState.ALERTED,
    (DetectorState.ALERTED, DetectorStep.CONFIRM): DetectorState.HELD,
    (DetectorState.ALERTED, DetectorStep.DISMISS): DetectorState.FREE,
    (DetectorState.FREE, DetectorStep.HOLD): DetectorState.HELD,
    (DetectorState.HELD, DetectorStep.RESUME): DetectorState.DOUBTED,
    (DetectorState.HELD, DetectorStep.YIELD): DetectorState.TURN,
    (DetectorState.DOUBTED, DetectorStep.HOLD): DetectorState.HELD,
    (DetectorState.DOUBTED, DetectorStep.START): DetectorState.TURN,
    (DetectorState.DOUBTED, DetectorStep.YIELD): DetectorState.TURN,
    (DetectorState.DOUBTED, DetectorStep.DROP): DetectorState.FREE,
    (DetectorState.TURN, DetectorStep.END): DetectorState.FREE,
}


@dataclass(slots=True)
class _Pause:
    """The present silence within a turn, since `sample`. `sound`: how finished the turn sounds, where that is known."""

    sample: int
    is_asked: bool = False
    sound: float | None = None


class TurnDetector:
    """The detector of one call. Assign `settings` to change them, at any time."""

    def __init__(self, settings: TurnDetectorSettings) -> None:
        self._settings = settings
        self._gate = SpeechGate(settings.gate(usual_silence_ms(settings.end_of_turn)))
        self._saying = SILENT
        self._state = DetectorState.FREE
        self._window_end = 0
        self._voice = VoiceLevel()
        self._rising = Burst()  # the loud windows in a row up to now
        # Of the present turn:
        self._onset = 0
        self._text = ""
        self._is_settled = False
        self._pause: _Pause | None = None
        # Of the present provisional turn:
        self._our_words = ""
        self._heard = NOTHING_HEARD
        self._is_far = False
        self._burst = Burst()
        self._burst_onset = 0
        self._burst_end: int | None = None  # where the last burst ended; None while it lasts
        self._opened_ns = self._held_ns = self._resumed_ns = self._voiced_ns = 0
        # Beyond one turn:
        self._vain_holds = 0
        self._guarded_until_ns = 0

    @property
    def settings(self) -> TurnDetectorSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: TurnDetectorSettings) -> None:
        self._settings = settings
        self._tune()

    @property
    def state(self) -> DetectorState:
        return self._state

    @property
    def pause(self) -> int | None:
        """Where the present pause of the turn began; None while the caller speaks, and between turns."""
        return None if self._pause is None else self._pause.sample

    def next_deadline_ns(self) -> int | None:
        """When `tick` is due next; None where only sound matters."""
        settings = self._settings
        if self._state is DetectorState.ALERTED:
            return self._held_ns + settings.confirm_ms_max * NS_PER_MS
        if self._state is DetectorState.HELD:
            listens = self._heard.meaning is Meaning.BACKCHANNEL
            hold_ms_max = settings.backchannel_hold_ms_max if listens else settings.decide_ms_max
            return self._held_ns + hold_ms_max * NS_PER_MS
        if self._state is DetectorState.DOUBTED:
            late_ns = self._voiced_ns + settings.late_ms_max * NS_PER_MS
            return min(late_ns, self._resumed_ns + settings.provisional_ms_max * NS_PER_MS)
        return None

    # ---- in ----------------------------------------------------------------------------------------

    def window(self, heard: HeardWindow, saying: Saying, now_ns: int) -> tuple[TurnEvent, ...]:
        """Take what was heard while we were `saying` something."""
        events = self._act_on_deadlines(now_ns)
        self._saying = saying
        if saying.is_audible:
            self._our_words = saying.words  # their echo may be heard, and understood, when we are silent again
        self._window_end = heard.end
        self._listen(heard, now_ns)
        for event in self._gate.window(self._speech_of(heard), heard.end, stricter=saying.may_be_held):
            events += self._gate_event(event, now_ns)
        events += self._decide(now_ns)
        return (*events, *self._ask())

    def alert(self, saying: Saying, now_ns: int) -> tuple[TurnEvent, ...]:
        """The client has noticed speech while we are `saying` something: hold it until we hear that speech too."""
        events = self._act_on_deadlines(now_ns)
        self._saying = saying
        if self._state is DetectorState.FREE and saying.may_be_held and not self._is_guarded(now_ns):
            self._begin(self._window_end, now_ns)
            self._begin_hold(now_ns)
            self._move(DetectorStep.ALERT)
            events.append(Held(self._onset))
        return tuple(events)

    def transcript(self, text: str, settled: bool, now_ns: int) -> tuple[TurnEvent, ...]:
        """All that the present turn has said so far; `settled` where that covers its sound up to the present pause."""
        events = self._act_on_deadlines(now_ns)
        if self._state is DetectorState.FREE:
            return tuple(events)  # its turn is gone
        self._text = text
        # Speech may have gone on while the recogniser was settling.
        self._is_settled = settled and self._gate.state is GateState.PAUSING
        self._tune()
        if self._state is not DetectorState.TURN:
            self._heard = hear(text, self._our_words, self._settings.interruption.echo_share)
            if self._heard.is_echo and not self._burst.is_ours:
                self._guard(now_ns)
            events += self._decide(now_ns)
        return tuple(events + self._act_on_deadlines(now_ns) + self._end_if_silent(now_ns))

    def sounded(self, pause: int, probability: float, now_ns: int) -> tuple[TurnEvent, ...]:
        """The turn sounds finished, so probably, up to its pause since `pause`, which may be over."""
        events = self._act_on_deadlines(now_ns)
        if self._pause is not None and self._pause.sample == pause:
            self._pause.sound = probability
            self._tune()
            events += self._end_if_silent(now_ns)
        return tuple(events)

    def _end_if_silent(self, now_ns: int) -> list[TurnEvent]:
        """A turn that has just become real, or whose words have just become known, may have ended already."""
        if self._state is not DetectorState.TURN:
            return []
        return [turn_event for event in self._gate.overdue() for turn_event in self._gate_event(event, now_ns)]

    def tick(self, now_ns: int) -> tuple[TurnEvent, ...]:
        """Decide what must be decided by now."""
        return tuple(self._act_on_deadlines(now_ns))

    def missing(self, samples: int, now_ns: int) -> tuple[TurnEvent, ...]:
        """So many `samples` are missing by now behind the last window, as sound has stopped coming. A real turn ends by
        that as by silence, a provisional one by its deadlines."""
        events = self._act_on_deadlines(now_ns)
        if self._state is DetectorState.TURN:
            for event in self._gate.missing(samples):
                events += self._gate_event(event, now_ns)
        return tuple(events)

    def force_end(self) -> tuple[TurnEvent, ...]:
        """End the turn now (a manual commit). What was provisional becomes real, but cuts nothing."""
        events: list[TurnEvent] = []
        if self._state is DetectorState.ALERTED:
            events += self._dismiss("committed")
        if self._state is DetectorState.HELD:
            events.append(self._resume("committed"))
        if self._state is DetectorState.DOUBTED:
            events.append(self._start())
        for event in self._gate.force_end():
            assert isinstance(event, SpeechEnded), "speech that is forced to end does nothing else"
            events.append(self._end(event))
        self._forget_sound()
        return tuple(events)

    def reset(self) -> tuple[TurnEvent, ...]:
        """Forget the turn, provisional or real, whose end the caller of this sees to; only a hold is ended here."""
        events: list[TurnEvent] = [self._resume("reset")] if self._state is DetectorState.HELD else []
        if self._state is DetectorState.ALERTED:
            events.append(self._dismiss("reset")[0])
        if self._state is DetectorState.DOUBTED:
            self._drop()
        elif self._state is DetectorState.TURN:
            self._move(DetectorStep.END)
        self._forget_sound()
        return tuple(events)

    # ---- sound -------------------------------------------------------------------------------------

    def _listen(self, heard: HeardWindow, now_ns: int) -> None:
        """Let the window count as evidence."""
        is_loud = heard.probability >= self._settings.threshold and heard.echo.kinship is not Kinship.SUSPECT
        if not is_loud:
            self._rising = Burst()
        else:
            self._add(self._rising, heard, self._rising_onset)
        if is_loud and self._state is DetectorState.TURN and not heard.echo.is_ours:
            self._voice.learn(heard.level_db)
        if self._is_provisional and self._burst_end is None:
            self._add(self._burst, heard, self._burst_onset)
            self._is_far = self._voice.is_far(self._burst.level_db, self._burst.voiced_ms, so_far=self._is_far)
            self._voiced_ns = now_ns if is_loud else self._voiced_ns

    def _add(self, burst: Burst, heard: HeardWindow, onset: int) -> None:
        """`heard` belongs to `burst`, which began at `onset`."""
        match heard.echo.kinship:
            case Kinship.OURS:
                burst.add_ours(all_of_it=heard.echo.since <= onset)
            case Kinship.OTHER | Kinship.MIXED:
                burst.add(heard.probability, self._settings.threshold, heard.level_db)

    @property
    def _rising_onset(self) -> int:
        """Where the loud windows in a row up to now began."""
        return self._window_end - self._rising.sounded_ms // WINDOW_MS * WINDOW_SAMPLES

    def _speech_of(self, heard: HeardWindow) -> float:
        """The probability of speech by which the gate goes."""
        unsure = min(heard.probability, self._gate.settings.faint)
        match heard.echo.kinship:
            case Kinship.SUSPECT:
                return unsure
            case Kinship.MIXED if not self._saying.may_be_held:
                return unsure  # the reverberation of our last words sounds like it
            case Kinship.OURS if not self._saying.may_be_held:
                return 0.0
        return heard.probability

    def _forget_sound(self) -> None:
        """What comes next begins anew."""
        self._gate.reset()
        self._rising = Burst()
        self._pause = None

    def _gate_event(self, event: GateEvent, now_ns: int) -> list[TurnEvent]:
        if isinstance(event, SpeechStarted):
            return self._open(event.onset_sample, now_ns)
        if isinstance(event, SpeechPaused):
            self._pause = _Pause(event.sample)
            return [TurnPaused(event.sample), *self._paused(event.sample, now_ns)]
        self._pause = None
        if isinstance(event, SpeechResumed):
            self._is_settled = False
            self._tune()
            return [TurnResumed(event.sample)]
        return [self._end(event) if self._state is DetectorState.TURN else self._drop()]

    def _ask(self) -> list[TurnEvent]:
        """Whether the turn sounds finished, once its pause has lasted."""
        pause, after_ms = self._pause, self._settings.asks_after_ms
        if pause is None or pause.is_asked or after_ms is None or self._state is not DetectorState.TURN:
            return []
        if (self._window_end - pause.sample) * 1_000 < after_ms * VAD_SAMPLE_RATE:
            return []
        pause.is_asked = True
        return [SoundWanted(self._onset, pause.sample, self._window_end)]

    def _open(self, onset: int, now_ns: int) -> list[TurnEvent]:
        """Speech began: a turn, provisional if it is over our own."""
        if self._state is DetectorState.ALERTED:
            if self._saying.may_be_held:
                return self._confirm(now_ns)
            return [*self._dismiss(self._why_not_held), *self._open(onset, now_ns)]
        self._begin(onset, now_ns)
        if not self._saying.may_be_held:
            return [self._start()]
        return self._hold(onset, self._rising, now_ns)

    def _begin(self, onset: int, now_ns: int) -> None:
        """Know nothing yet of a turn since `onset`."""
        self._onset, self._opened_ns = onset, now_ns
        self._text, self._is_settled = "", False
        self._heard, self._is_far = NOTHING_HEARD, False

    def _paused(self, sample: int, now_ns: int) -> list[TurnEvent]:
        """The gate has announced a silence since `sample`; in a provisional turn the burst is over."""
        if not self._is_provisional or self._burst_end is not None:
            return []
        self._burst_end = sample
        return [self._resume_by_evidence("short", now_ns)] if self._state is DetectorState.HELD else []

    # ---- decisions ---------------------------------------------------------------------------------

    @property
    def _is_provisional(self) -> bool:
        return self._state in (DetectorState.HELD, DetectorState.DOUBTED)

    def _is_guarded(self, now_ns: int) -> bool:
        return now_ns < self._guarded_until_ns

    @property
    def _why_not_held(self) -> ResumeWhy:
        return "not_interruptible" if self._saying.is_audible else "floor_free"

    def _evidence(self, now_ns: int) -> Evidence:
        return Evidence(self._burst, self._heard, self._is_guarded(now_ns), self._is_far, self._settings.interruption)

    def _decide(self, now_ns: int) -> list[TurnEvent]:
        """Draw the conclusions of what has just been heard."""
        if self._state is DetectorState.ALERTED and not self._saying.may_be_held:
            return self._dismiss(self._why_not_held)
        if self._state is DetectorState.HELD:
            return self._decide_held(now_ns)
        return self._decide_doubted(now_ns) if self._state is DetectorState.DOUBTED else []

    def _decide_held(self, now_ns: int) -> list[TurnEvent]:
        if not self._saying.may_be_held:
            return [self._resume(self._why_not_held), self._start()]
        evidence = self._evidence(now_ns)
        if evidence.reason_to_yield is not None:
            return [self._yield(evidence.reason_to_yield)]
        is_none = evidence.is_echo or evidence.is_far
        return [self._resume_by_evidence("short", now_ns)] if is_none else []

    def _decide_doubted(self, now_ns: int) -> list[TurnEvent]:
        if self._burst_end is None and self._burst.is_over_echo:
            return self._speak_over_echo(now_ns)
        evidence = self._evidence(now_ns)
        reason = evidence.reason_to_yield
        # A burst that is over interrupts by its words alone: its length has been judged.
        if reason == "words" or (reason == "duration" and self._burst_end is None):
            if not self._saying.may_be_held:
                return [self._start()]
            return [self._yield("late_words" if reason == "words" else reason)]
        if self._is_new_burst:
            return self._speak_again(now_ns)
        if not self._saying.may_be_held and self._is_addressed(now_ns):
            return [self._start()]
        return []

    def _is_addressed(self, now_ns: int) -> bool:
        """Now that the floor is free: is the caller speaking on, or have they answered us over our last words?"""
        speaks_on = self._burst_end is None and not self._is_guarded(now_ns)
        evidence = self._evidence(now_ns)
        return not (evidence.is_echo or evidence.is_far) and (speaks_on or evidence.says_something)

    @property
    def _is_new_burst(self) -> bool:
        """Speech begins again after the last burst, as confidently as the first did."""
        return self._burst_end is not None and self._gate.is_onset(stricter=self._saying.may_be_held)

    def _speak_over_echo(self, now_ns: int) -> list[TurnEvent]:
        """What began as our echo is a voice: a turn of its own, which has none of our words."""
        self._burst.forget_echo()
        self._rising = self._burst
        return [self._drop(), *self._open(self._rising_onset, now_ns)]

    def _speak_again(self, now_ns: int) -> list[TurnEvent]:
        """The provisional turn goes on with another burst, unless it was an echo or has lasted for too long."""
        onset = self._rising_onset
        is_too_long = now_ns >= self._opened_ns + self._settings.provisional_ms_max * NS_PER_MS
        if self._heard.is_echo or self._burst.is_ours or is_too_long:
            return [self._drop(), *self._open(onset, now_ns)]
        if not self._saying.may_be_held:
            return [self._start()]
        assert self._burst_end is not None, "another burst begins where one has ended"
        burst = self._rising
        if (onset - self._burst_end) * 1_000 <= self._settings.join_gap_ms * VAD_SAMPLE_RATE:
            burst = self._burst
            burst.join(self._rising)
        return self._hold(onset, burst, now_ns)

    def _act_on_deadlines(self, now_ns: int) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        while (deadline_ns := self.next_deadline_ns()) is not None and now_ns >= deadline_ns:
            if self._state is DetectorState.ALERTED:
                events += self._dismiss("unconfirmed")
                self._note_vain_hold(now_ns)
            elif self._state is DetectorState.HELD:
                events.append(self._decide_at_last(now_ns))
            else:
                events.append(self._drop())
                self._forget_sound()
        return events

    def _decide_at_last(self, now_ns: int) -> TurnEvent:
        """The hold has lasted for as long as it may."""
        if self._evidence(now_ns).leans_to_yield((now_ns - self._held_ns) // NS_PER_MS):
            return self._yield("duration")
        return self._resume_by_evidence("undecided", now_ns)

    def _guard(self, now_ns: int) -> None:
        self._guarded_until_ns = now_ns + self._settings.guard_ms * NS_PER_MS
        self._vain_holds = 0

    # ---- moves -------------------------------------------------------------------------------------

    def _move(self, step: DetectorStep) -> None:
        self._state = _TRANSITIONS[self._state, step]
        self._tune()

    def _tune(self) -> None:
        """Let the gate end turns as the state, the words and the settings ask for."""
        settings = self._settings
        if self._is_provisional:
            self._gate.settings = settings.provisional_gate
            return
        silence = usual_silence_ms(settings.end_of_turn)
        if self._state is DetectorState.TURN:
            sound = None if self._pause is None else self._pause.sound
            silence = silence_ms(self._text, settings.end_of_turn, settled=self._is_settled, sound=sound)
        self._gate.settings = settings.gate(silence)

    def _start(self) -> TurnEvent:
        self._move(DetectorStep.START)
        return TurnStarted(self._onset, self._window_end)

    def _begin_hold(self, now_ns: int) -> None:
        if now_ns - self._resumed_ns > self._settings.guard_ms * NS_PER_MS:
            self._vain_holds = 0
        self._held_ns = now_ns

    def _confirm(self, now_ns: int) -> list[TurnEvent]:
        """What the client has noticed is heard. It stays held since it was noticed."""
        self._hear_burst(self._rising_onset, self._rising, now_ns)
        self._move(DetectorStep.CONFIRM)
        return []

    def _dismiss(self, why: ResumeWhy) -> list[TurnEvent]:
        self._move(DetectorStep.DISMISS)
        return [Resumed(why), TurnDropped(self._onset)]

    def _hear_burst(self, onset: int, burst: Burst, now_ns: int) -> None:
        """It grows by itself from here on."""
        self._burst_onset = onset
        self._burst, self._burst_end, self._rising = burst, None, Burst()
        self._voiced_ns = now_ns

    def _hold(self, onset: int, burst: Burst, now_ns: int) -> list[TurnEvent]:
        self._begin_hold(now_ns)
        self._hear_burst(onset, burst, now_ns)
        self._move(DetectorStep.HOLD)
        held: list[TurnEvent] = [Held(onset)]
        if burst.is_ours or self._is_far or self._is_guarded(now_ns):
            self._resumed_ns = now_ns
            held.append(self._resume("echo" if burst.is_ours else "far" if self._is_far else "guarded"))
        return held

    def _resume(self, why: ResumeWhy) -> TurnEvent:
        self._move(DetectorStep.RESUME)
        return Resumed(why)

    def _resume_by_evidence(self, otherwise: ResumeWhy, now_ns: int) -> TurnEvent:
        """It was no interruption, as far as is known: say why, and learn from it."""
        evidence = self._evidence(now_ns)
        if self._burst.is_ours:  # the next one will be known at once
            self._resumed_ns = now_ns
        else:
            self._note_vain_hold(now_ns)
        if evidence.is_echo:
            return self._resume("echo")
        if evidence.is_far:
            return self._resume("far")
        if evidence.heard.meaning is Meaning.BACKCHANNEL:
            return self._resume("backchannel")
        return self._resume("noise" if evidence.is_uneven else otherwise)

    def _note_vain_hold(self, now_ns: int) -> None:
        self._resumed_ns = now_ns
        self._vain_holds += 1
        if self._vain_holds >= self._settings.vain_holds_max:
            self._guard(now_ns)

    def _yield(self, why: YieldWhy) -> TurnEvent:
        self._vain_holds = 0
        self._move(DetectorStep.YIELD)
        return Yielded(self._onset, why)

    def _drop(self) -> TurnEvent:
        self._move(DetectorStep.DROP)
        return TurnDropped(self._onset)

    def _end(self, ended: SpeechEnded) -> TurnEvent:
        self._move(DetectorStep.END)
        return TurnEnded(ended.sample, ended.at)
