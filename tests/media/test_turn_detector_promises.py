"""What a turn detector promises, whatever happens in a call."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from media.echo import Kinship, Likeness
from media.end_of_turn import EndOfTurnSettings
from media.speech_gate import WINDOW_MS
from media.turn_detector import NS_PER_MS, DetectorState
from media.turn_events import (
    SILENT,
    Held,
    Resumed,
    Saying,
    SoundWanted,
    TurnDropped,
    TurnEnded,
    TurnEvent,
    TurnPaused,
    TurnResumed,
    TurnStarted,
    Yielded,
)
from media.turn_settings import TurnDetectorSettings
from tests.media.detected_call import (
    FAINT,
    FAR_AWAY_DB,
    LOUD,
    NEAR_DB,
    QUIET,
    SETTINGS,
    SPEAKING,
    UNEVEN,
    UNINTERRUPTIBLE,
    Call,
    at,
)

TEXTS = st.sampled_from(
    ["", "mm-hmm", "stop", "Wednesday", "I want to", "the weather in Paris", "the weather in Paris stop", "and", "Yes."]
)
SAYINGS = st.sampled_from([SILENT, SPEAKING, SPEAKING, SPEAKING, UNINTERRUPTIBLE])
DETECTORS = st.sampled_from(
    [
        SETTINGS,
        TurnDetectorSettings(hold_ms=128, vain_holds_max=1, guard_ms=500),
        TurnDetectorSettings(
            confirm_ms_max=64, decide_ms_max=64, backchannel_hold_ms_max=32, late_ms_max=128, provisional_ms_max=256
        ),
        TurnDetectorSettings(threshold=0.0, end_of_turn=EndOfTurnSettings("semantic_vad", eagerness="low")),
        TurnDetectorSettings(threshold=0.05),
        TurnDetectorSettings(end_of_turn=EndOfTurnSettings("semantic_vad", eagerness="high"), sound_ms=200),
    ]
)


class Detecting(RuleBasedStateMachine):
    """Whatever happens, events read as promised, no hold outlasts its time, and silence leads to rest."""

    def __init__(self) -> None:
        super().__init__()
        self.call = Call()
        self.is_held = False
        self.held_ns = 0
        self.turn: DetectorState = DetectorState.FREE  # as the events tell it; HELD stands for any provisional turn
        self.is_paused = False
        self.onset = 0
        self.asked: int | None = None  # the pause whose sound was asked about last

    def check(self, events: list[TurnEvent]) -> None:
        for event in events:
            self.check_hold(event)
            self.check_turn(event)

    def check_hold(self, event: TurnEvent) -> None:
        match event:
            case Held():
                assert not self.is_held
                self.is_held, self.held_ns = True, self.call.now_ns
            case Yielded() | Resumed():
                assert self.is_held or isinstance(event, Yielded)
                self.is_held = False
            case TurnDropped() | TurnStarted() | TurnEnded():
                assert not self.is_held

    def check_turn(self, event: TurnEvent) -> None:
        match event:
            case Held(onset):
                assert self.turn in (DetectorState.FREE, DetectorState.HELD)
                self.onset = onset if self.turn is DetectorState.FREE else self.onset
                self.turn, self.is_paused = DetectorState.HELD, False
            case Yielded(onset, _) | TurnStarted(onset, _):
                assert self.turn is DetectorState.HELD or (
                    self.turn is DetectorState.FREE and isinstance(event, TurnStarted)
                )
                assert onset == self.onset or self.turn is DetectorState.FREE
                self.is_paused = self.is_paused and self.turn is DetectorState.HELD
                self.turn = DetectorState.TURN
            case TurnDropped(onset):
                assert (self.turn, onset) == (DetectorState.HELD, self.onset)
                self.turn = DetectorState.FREE
            case TurnEnded():
                assert self.turn is DetectorState.TURN
                self.turn = DetectorState.FREE
            case TurnPaused() | TurnResumed():
                assert self.turn is not DetectorState.FREE
                assert self.is_paused is isinstance(event, TurnResumed)
                self.is_paused = not self.is_paused
            case SoundWanted(onset, pause, at):
                assert (self.turn, self.is_paused) == (DetectorState.TURN, True)
                assert pause != self.asked, "asked once"
                assert onset <= pause == self.call.detector.pause
                assert pause < at
                self.asked = pause

    @rule(
        ms=st.integers(1, 12).map(lambda n: n * WINDOW_MS),
        loudness=st.sampled_from([LOUD, LOUD, UNEVEN, FAINT, QUIET, QUIET]),
        saying=SAYINGS,
        db=st.sampled_from([NEAR_DB, FAR_AWAY_DB]),
    )
    def hear(self, ms: int, loudness: float, saying: Saying, db: float) -> None:
        for _ in range(ms // WINDOW_MS):
            self.check(self.call.hear(WINDOW_MS, loudness, saying, db))

    @rule(
        windows=st.integers(1, 12),
        kinship=st.sampled_from(Kinship),
        loudness=st.sampled_from([LOUD, LOUD, UNEVEN, QUIET]),
        saying=SAYINGS,
        since_windows=st.integers(0, 40),
    )
    def hear_an_echo(self, windows: int, kinship: Kinship, loudness: float, saying: Saying, since_windows: int) -> None:
        """Each window has been like what we said for so long, or is not like it."""
        for _ in range(windows):
            since = at(max(0, self.call.windows - since_windows))
            self.check(self.call.hear(WINDOW_MS, loudness, saying, echo=Likeness(kinship, since)))

    @rule(ms=st.integers(1, 4_000))
    def miss(self, ms: int) -> None:
        """Sound has stopped coming."""
        self.check(list(self.call.detector.missing(ms * 16, self.call.now_ns)))

    @rule(text=TEXTS, settled=st.booleans())
    def transcript(self, text: str, settled: bool) -> None:
        self.check(self.call.say(text, settled=settled))

    @rule(saying=SAYINGS)
    def alert(self, saying: Saying) -> None:
        self.check(self.call.alert(saying))

    @rule(probability=st.sampled_from([0.0, 0.5, 1.0]))
    def sounded(self, probability: float) -> None:
        self.check(self.call.sound(self.asked or 0, probability))

    @rule(ms=st.integers(1, 2_000))
    def wait(self, ms: int) -> None:
        self.check(self.call.wait(ms))

    @rule(ms=st.integers(1, 2_000))
    def be_late(self, ms: int) -> None:
        """The driver was busy: what is due is done only now."""
        self.call.now_ns += ms * NS_PER_MS
        self.check(list(self.call.detector.tick(self.call.now_ns)))

    @rule()
    def commit(self) -> None:
        self.check(list(self.call.detector.force_end()))
        assert self.call.detector.state is DetectorState.FREE

    @rule()
    def reset(self) -> None:
        self.check(list(self.call.detector.reset()))
        self.turn = DetectorState.FREE
        assert self.call.detector.state is DetectorState.FREE

    @rule(asked=DETECTORS)
    def configure(self, asked: TurnDetectorSettings) -> None:
        self.call.detector.settings = asked

    @rule(saying=SAYINGS)
    def silence_leads_to_rest(self, saying: Saying) -> None:
        """No state is left in which a call could stay: silence ends every turn, and time every hold."""
        self.call.detector.settings = SETTINGS
        self.check(self.call.quiet(2_560, saying))
        assert self.call.detector.state is DetectorState.FREE
        assert self.turn is DetectorState.FREE

    @invariant()
    def what_is_held_is_known(self) -> None:
        state = self.call.detector.state
        provisional = (DetectorState.ALERTED, DetectorState.HELD, DetectorState.DOUBTED)
        assert self.is_held is (state in provisional[:2])
        assert self.turn is (DetectorState.HELD if state in provisional else state)

    @invariant()
    def no_hold_outlasts_its_time(self) -> None:
        deadline_ns = self.call.detector.next_deadline_ns()
        if self.is_held:
            assert deadline_ns is not None
            assert deadline_ns <= self.held_ns + self.call.detector.settings.decide_ms_max * NS_PER_MS


Detecting.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDetecting = pytest.mark.slow(Detecting.TestCase)
