"""From probabilities of speech to where speech starts, pauses, resumes and ends; one gate per call.

Theory of operation
    Each window is loud (at or over the threshold), quiet (under it by more than `HYSTERESIS`) or faint (between).
    `LEVELS` moves the state by the loudness of the window, `DUE` moves it on when its time has come, and `_event`
    says which edges can be heard outside. Faint windows keep things as they are.

        idle ─loud─► rising ─confirmed─► speaking ─quiet─► fading ─pause_ms─► pausing ─silence_ms─► idle
                       │                     ▲               │ loud             │ loud
                       └─► idle (not loud)   └───────────────┴──────────────────┘

Rules
* The clock is the sample position of the input at 16 kHz; windows come in order and never overlap.
* Events read: started (paused resumed)* paused ended. Only `force_end` may leave out the last pause.
* The onset is back-dated to the start of the first loud window; a pause to the start of the first quiet one.
* Loud windows that are not confirmed have no effect.
* Sound that is missing behind the last window lengthens the silence until the next one comes, and takes no place in the
  input.
* Settings may change between any two windows; what already lasts long enough by the new ones is due at the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from media.chunk import ms_to_samples

# What one probability stands for; fixed by the network of `media.vad`.
VAD_SAMPLE_RATE = 16_000
WINDOW_SAMPLES = 512
WINDOW_MS = WINDOW_SAMPLES * 1_000 // VAD_SAMPLE_RATE

# Distance between the thresholds of start and end, and the floor that keeps an end reachable at low thresholds:
# the values of Silero's own iterator (github.com/snakers4/silero-vad, VADIterator).
HYSTERESIS = 0.15
END_THRESHOLD_MIN = 0.01

# A caller who must speak for longer than a second before being heard, or be silent for longer than a minute,
# is a mistake in a configuration.
START_MS_MAX = 1_024
START_WINDOWS_MAX = START_MS_MAX // WINDOW_MS
SILENCE_MS_MAX = 60_000


class GateSettingsError(ValueError):
    """A setting out of its range: who configured it, or the client that asked for it, must act."""


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Validated when built; raises `GateSettingsError`.

    `threshold`: probability from which a window is loud, 0 to 1. `start_windows`: loud windows in a row that confirm
    an onset. `start_ms_strict`: the same in milliseconds, rounded up to windows, while the gate is asked to be
    stricter; `start_clear_strict`: the probability by which a single window confirms it then (None: not by any).
    `pause_ms` and `silence_ms`: silence that makes a pause, and the end; a pause never waits longer than the end.
    """

    threshold: float = 0.5
    start_windows: int = 2
    start_ms_strict: int = 160
    pause_ms: int = 96
    silence_ms: int = 500
    start_clear_strict: float | None = None

    def __post_init__(self) -> None:
        _check_range("threshold", self.threshold, 0.0, 1.0)
        _check_range("start_windows", self.start_windows, 1, START_WINDOWS_MAX)
        _check_range("start_ms_strict", self.start_ms_strict, WINDOW_MS, START_MS_MAX)
        _check_range("pause_ms", self.pause_ms, WINDOW_MS, SILENCE_MS_MAX)
        _check_range("silence_ms", self.silence_ms, WINDOW_MS, SILENCE_MS_MAX)
        if self.start_clear_strict is not None:
            _check_range("start_clear_strict", self.start_clear_strict, 0.0, 1.0)

    @property
    def end_threshold(self) -> float:
        """Probability under which a window is quiet."""
        return max(self.threshold - HYSTERESIS, END_THRESHOLD_MIN)

    @property
    def faint(self) -> float:
        """A probability that keeps things as they are: amid the thresholds, or where they leave no room, under both. At
        a threshold of 0 there is none, as every window is loud."""
        return (self.threshold + (self.end_threshold if self.end_threshold < self.threshold else 0.0)) / 2

    def start_windows_needed(self, stricter: bool) -> int:
        """Loud windows in a row that confirm an onset."""
        return -(-self.start_ms_strict // WINDOW_MS) if stricter else self.start_windows


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise GateSettingsError(f"{name} is {value}, but must be from {low} to {high}")


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Speech since `onset_sample`, certain since `confirmed_at`."""

    onset_sample: int
    confirmed_at: int


@dataclass(frozen=True, slots=True)
class SpeechPaused:
    """Silence since `sample`, for at least `pause_ms`."""

    sample: int


@dataclass(frozen=True, slots=True)
class SpeechResumed:
    """Speech goes on at `sample`, before the silence was long enough for an end."""

    sample: int


@dataclass(frozen=True, slots=True)
class SpeechEnded:
    """Speech ended at `sample`; known at `at`, when silence had lasted `silence_ms` or the end was forced."""

    sample: int
    at: int


GateEvent = SpeechStarted | SpeechPaused | SpeechResumed | SpeechEnded


class GateState(Enum):
    """`FADING` is silence too short to speak of, `PAUSING` silence that has been announced."""

    IDLE = "idle"
    RISING = "rising"
    SPEAKING = "speaking"
    FADING = "fading"
    PAUSING = "pausing"


class Level(Enum):
    """How loud one window is."""

    LOUD = "loud"
    FAINT = "faint"
    QUIET = "quiet"


LEVELS: dict[GateState, dict[Level, GateState]] = {
    GateState.IDLE: {Level.LOUD: GateState.RISING, Level.FAINT: GateState.IDLE, Level.QUIET: GateState.IDLE},
    GateState.RISING: {Level.LOUD: GateState.RISING, Level.FAINT: GateState.IDLE, Level.QUIET: GateState.IDLE},
    GateState.SPEAKING: {
        Level.LOUD: GateState.SPEAKING,
        Level.FAINT: GateState.SPEAKING,
        Level.QUIET: GateState.FADING,
    },
    GateState.FADING: {Level.LOUD: GateState.SPEAKING, Level.FAINT: GateState.FADING, Level.QUIET: GateState.FADING},
    GateState.PAUSING: {
        Level.LOUD: GateState.SPEAKING,
        Level.FAINT: GateState.PAUSING,
        Level.QUIET: GateState.PAUSING,
    },
}
DUE: dict[GateState, GateState] = {
    GateState.RISING: GateState.SPEAKING,
    GateState.FADING: GateState.PAUSING,
    GateState.PAUSING: GateState.IDLE,
}


class SpeechGate:
    """The gate of one call. Assign `settings` to change them."""

    __slots__ = (
        "_loud_windows",
        "_missing",
        "_onset",
        "_probability",
        "_silence_start",
        "_state",
        "_window_end",
        "settings",
    )

    def __init__(self, settings: GateSettings) -> None:
        self.settings = settings
        self._window_end = 0
        self.reset()

    @property
    def state(self) -> GateState:
        """Where the gate stands after the last window."""
        return self._state

    @property
    def in_speech(self) -> bool:
        """An onset is confirmed and its end not yet reached: between `SpeechStarted` and `SpeechEnded`."""
        return self._state not in (GateState.IDLE, GateState.RISING)

    def reset(self) -> None:
        """Idle, without an event; the position stays."""
        self._state = GateState.IDLE
        self._loud_windows = 0  # in a row, up to now
        self._probability = 0.0
        self._onset = self._silence_start = self._window_end
        self._missing = 0

    def window(self, probability: float, window_end: int, *, stricter: bool = False) -> tuple[GateEvent, ...]:
        """Take the `WINDOW_SAMPLES` samples before `window_end`; `stricter` while the service itself speaks."""
        assert 0.0 <= probability <= 1.0
        assert window_end >= self._window_end + WINDOW_SAMPLES, "windows overlap or run backwards"
        self._window_end = window_end
        self._missing = 0
        self._probability = probability
        level = self._level(probability)
        self._loud_windows = self._loud_windows + 1 if level is Level.LOUD else 0
        events = [self._move(LEVELS[self._state][level])]
        while self._is_due(stricter):
            events.append(self._move(DUE[self._state]))
        return tuple(event for event in events if event is not None)

    def is_onset(self, stricter: bool) -> bool:
        """The last windows would confirm an onset, whether or not speech has started already."""
        if self._loud_windows >= self.settings.start_windows_needed(stricter):
            return True
        clear = self.settings.start_clear_strict if stricter else None
        return clear is not None and self._loud_windows > 0 and self._probability >= clear

    def overdue(self) -> tuple[GateEvent, ...]:
        """What the silence so far amounts to by the present settings, without another window."""
        events: list[GateEvent | None] = []
        while self._state in (GateState.FADING, GateState.PAUSING) and self._is_due(stricter=False):
            events.append(self._move(DUE[self._state]))
        return tuple(event for event in events if event is not None)

    def missing(self, samples: int) -> tuple[GateEvent, ...]:
        """So many `samples` are missing by now behind the last window: within speech they count as silence."""
        self._missing = samples
        if self._state is GateState.SPEAKING:
            self._move(GateState.FADING)
            self._silence_start = self._window_end
        return self.overdue()

    def force_end(self) -> tuple[GateEvent, ...]:
        """End speech now (a manual commit): `SpeechEnded` if it had started, otherwise nothing."""
        events: tuple[GateEvent, ...] = ()
        if self.in_speech:
            sample = self._window_end if self._state is GateState.SPEAKING else self._silence_start
            events = (SpeechEnded(sample, self._window_end),)
        self.reset()
        return events

    def _level(self, probability: float) -> Level:
        if probability >= self.settings.threshold:
            return Level.LOUD
        return Level.QUIET if probability < self.settings.end_threshold else Level.FAINT

    def _is_due(self, stricter: bool) -> bool:
        """The state has lasted long enough for its next one in `DUE`."""
        silence = self._window_end + self._missing - self._silence_start
        silence_due = ms_to_samples(self.settings.silence_ms, VAD_SAMPLE_RATE)
        if self._state is GateState.RISING:
            return self.is_onset(stricter)
        if self._state is GateState.FADING:
            return silence >= min(ms_to_samples(self.settings.pause_ms, VAD_SAMPLE_RATE), silence_due)
        return self._state is GateState.PAUSING and silence >= silence_due

    def _move(self, state: GateState) -> GateEvent | None:
        """Go to `state`, note where what begins there began, and say what that means outside."""
        before, self._state = self._state, state
        window_start = self._window_end - WINDOW_SAMPLES
        match before, state:
            case GateState.IDLE, GateState.RISING:
                self._onset = window_start
            case GateState.SPEAKING, GateState.FADING:
                self._silence_start = window_start
            case GateState.RISING, GateState.SPEAKING:
                return SpeechStarted(self._onset, self._window_end)
            case GateState.FADING, GateState.PAUSING:
                return SpeechPaused(self._silence_start)
            case GateState.PAUSING, GateState.SPEAKING:
                return SpeechResumed(window_start)
            case GateState.PAUSING, GateState.IDLE:
                return SpeechEnded(self._silence_start, self._window_end)
        return None
