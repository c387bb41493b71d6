"""The gate's events for given windows, its settings, and its promises for any windows."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.speech_gate import (
    DUE,
    LEVELS,
    WINDOW_SAMPLES,
    GateEvent,
    GateSettings,
    GateSettingsError,
    GateState,
    Level,
    SpeechEnded,
    SpeechGate,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
)

LOUD, FAINT, QUIET = 0.9, 0.4, 0.1
SHORT = GateSettings(start_windows=2, start_ms_strict=128, pause_ms=96, silence_ms=192)


def at(windows: int) -> int:
    return windows * WINDOW_SAMPLES


def play(gate: SpeechGate, probabilities: list[float], *, first: int = 0, stricter: bool = False) -> list[GateEvent]:
    """Windows number `first` and following."""
    events: list[GateEvent] = []
    for number, probability in enumerate(probabilities, start=first + 1):
        events += gate.window(probability, at(number), stricter=stricter)
    return events


def test_speech_starts_pauses_and_ends() -> None:
    gate = SpeechGate(SHORT)
    events = play(gate, [QUIET, LOUD, LOUD, LOUD] + [QUIET] * 6)
    assert events == [SpeechStarted(at(1), at(3)), SpeechPaused(at(4)), SpeechEnded(at(4), at(10))]
    assert gate.state is GateState.IDLE


def test_each_event_comes_with_the_window_that_decides_it() -> None:
    gate = SpeechGate(SHORT)
    states = []
    for number, probability in enumerate([LOUD, LOUD, QUIET, QUIET, QUIET, LOUD], start=1):
        gate.window(probability, at(number))
        states.append(gate.state)
    fading = GateState.FADING
    assert states == [GateState.RISING, GateState.SPEAKING, fading, fading, GateState.PAUSING, GateState.SPEAKING]


def test_a_pause_that_was_announced_is_resumed() -> None:
    events = play(SpeechGate(SHORT), [LOUD, LOUD, QUIET, QUIET, QUIET, FAINT, LOUD] + [QUIET] * 6)
    assert events == [
        SpeechStarted(at(0), at(2)),
        SpeechPaused(at(2)),
        SpeechResumed(at(6)),
        SpeechPaused(at(7)),
        SpeechEnded(at(7), at(13)),
    ]


def test_a_gap_shorter_than_a_pause_says_nothing() -> None:
    assert play(SpeechGate(SHORT), [LOUD, LOUD, QUIET, QUIET, LOUD]) == [SpeechStarted(at(0), at(2))]


@pytest.mark.parametrize("blip", [[LOUD], [LOUD, FAINT, LOUD], [LOUD, QUIET, LOUD, QUIET]])
def test_a_blip_has_no_effect(blip: list[float]) -> None:
    gate = SpeechGate(SHORT)
    assert play(gate, [*blip, QUIET]) == []
    assert gate.state is GateState.IDLE
    assert play(gate, [LOUD, LOUD], first=9) == [SpeechStarted(at(9), at(11))]


def test_faint_windows_neither_start_nor_end_speech_nor_break_a_silence() -> None:
    gate = SpeechGate(SHORT)
    assert play(gate, [FAINT] * 5) == []
    assert play(gate, [LOUD, LOUD], first=5) == [SpeechStarted(at(5), at(7))]
    assert play(gate, [FAINT] * 20, first=7) == []
    assert play(gate, [QUIET, FAINT, FAINT], first=27) == [SpeechPaused(at(27))]
    assert play(gate, [FAINT, FAINT, FAINT], first=30) == [SpeechEnded(at(27), at(33))]


@pytest.mark.parametrize(
    ("probability", "state"),
    [(SHORT.end_threshold, GateState.SPEAKING), (SHORT.end_threshold - 1e-6, GateState.FADING)],
)
def test_the_threshold_itself_is_loud_and_the_end_threshold_itself_not_quiet(
    probability: float, state: GateState
) -> None:
    gate = SpeechGate(SHORT)
    assert play(gate, [0.5, 0.5]) == [SpeechStarted(at(0), at(2))]
    play(gate, [probability], first=2)
    assert gate.state is state


def test_one_window_can_confirm_an_onset() -> None:
    assert play(SpeechGate(GateSettings(start_windows=1)), [LOUD]) == [SpeechStarted(at(0), at(1))]


def test_stricter_asks_for_more_windows_and_may_be_switched_amid_an_onset() -> None:
    assert play(SpeechGate(SHORT), [LOUD] * 4, stricter=True) == [SpeechStarted(at(0), at(4))]
    gate = SpeechGate(SHORT)
    assert play(gate, [LOUD] * 3, stricter=True) == []
    assert play(gate, [LOUD], first=3, stricter=False) == [SpeechStarted(at(0), at(4))]


def test_a_strict_start_is_rounded_up_to_windows() -> None:
    assert GateSettings(start_ms_strict=129).start_windows_needed(stricter=True) == 5
    assert GateSettings(start_ms_strict=128).start_windows_needed(stricter=True) == 4


def test_one_clear_window_confirms_a_strict_start() -> None:
    clear = GateSettings(start_ms_strict=128, start_clear_strict=0.8)
    assert play(SpeechGate(clear), [0.8], stricter=True) == [SpeechStarted(at(0), at(1))]
    assert play(SpeechGate(clear), [0.6, 0.79, 0.8], stricter=True) == [SpeechStarted(at(0), at(3))]
    assert play(SpeechGate(clear), [0.79] * 4, stricter=True) == [SpeechStarted(at(0), at(4))]
    assert play(SpeechGate(clear), [0.79, 0.79, 0.79, QUIET] * 50, stricter=True) == []
    assert play(SpeechGate(clear), [1.0]) == []


def test_a_clear_window_that_is_not_loud_confirms_nothing() -> None:
    deaf = GateSettings(threshold=0.9, start_clear_strict=0.8)
    assert play(SpeechGate(deaf), [0.85] * 50, stricter=True) == []
    gate = SpeechGate(deaf)
    play(gate, [0.9, 0.85])
    assert not gate.is_onset(stricter=True)


def test_the_last_windows_confirm_an_onset_whatever_the_state() -> None:
    gate = SpeechGate(SHORT)
    play(gate, [LOUD] * 3)
    assert (gate.is_onset(stricter=False), gate.is_onset(stricter=True)) == (True, False)
    play(gate, [LOUD] * 40, first=3)
    assert gate.is_onset(stricter=True)
    play(gate, [FAINT], first=43)
    assert not gate.is_onset(stricter=False)


def test_changed_settings_count_from_the_next_window() -> None:
    gate = SpeechGate(SHORT)
    assert play(gate, [LOUD, LOUD] + [QUIET] * 4) == [SpeechStarted(at(0), at(2)), SpeechPaused(at(2))]
    gate.settings = GateSettings(silence_ms=64)
    assert play(gate, [QUIET], first=6) == [SpeechEnded(at(2), at(7))]


def test_what_is_due_by_changed_settings_need_not_wait_for_a_window() -> None:
    gate = SpeechGate(SHORT)
    assert gate.overdue() == ()
    assert play(gate, [LOUD, LOUD] + [QUIET] * 4) == [SpeechStarted(at(0), at(2)), SpeechPaused(at(2))]
    assert gate.overdue() == ()
    gate.settings = GateSettings(silence_ms=64)
    assert gate.overdue() == (SpeechEnded(at(2), at(6)),)
    assert not gate.in_speech
    assert gate.overdue() == ()


def test_an_end_that_comes_before_the_pause_brings_the_pause_with_it() -> None:
    gate = SpeechGate(GateSettings(pause_ms=320, silence_ms=64))
    assert play(gate, [LOUD, LOUD, QUIET]) == [SpeechStarted(at(0), at(2))]
    assert play(gate, [QUIET], first=3) == [SpeechPaused(at(2)), SpeechEnded(at(2), at(4))]


def test_time_missing_between_windows_counts_as_silence_within_a_silence() -> None:
    gate = SpeechGate(SHORT)
    play(gate, [LOUD, LOUD, QUIET])
    assert gate.window(QUIET, at(20)) == (SpeechPaused(at(2)), SpeechEnded(at(2), at(20)))


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([], []),
        ([LOUD], []),
        ([LOUD, LOUD], [SpeechEnded(at(2), at(2))]),
        ([LOUD, LOUD, QUIET], [SpeechEnded(at(2), at(3))]),
        ([LOUD, LOUD, QUIET, QUIET, QUIET, QUIET], [SpeechEnded(at(2), at(6))]),
    ],
)
def test_force_end_ends_what_had_started(windows: list[float], expected: list[GateEvent]) -> None:
    gate = SpeechGate(SHORT)
    play(gate, windows)
    assert list(gate.force_end()) == expected
    assert gate.state is GateState.IDLE
    assert play(gate, [LOUD, LOUD], first=len(windows)) == [SpeechStarted(at(len(windows)), at(len(windows) + 2))]


def test_reset_is_silent() -> None:
    gate = SpeechGate(SHORT)
    assert play(gate, [LOUD, LOUD]) == [SpeechStarted(at(0), at(2))]
    gate.reset()
    assert not gate.in_speech
    assert play(gate, [QUIET] * 10, first=2) == []


def test_windows_that_overlap_are_a_bug_of_the_caller() -> None:
    gate = SpeechGate(SHORT)
    gate.window(QUIET, at(2))
    with pytest.raises(AssertionError):
        gate.window(QUIET, at(2))
    with pytest.raises(AssertionError):
        gate.window(float("nan"), at(3))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threshold", -0.01),
        ("threshold", 1.01),
        ("threshold", float("nan")),
        ("start_windows", 0),
        ("start_windows", 33),
        ("start_ms_strict", 31),
        ("start_ms_strict", 1_025),
        ("start_clear_strict", -0.1),
        ("start_clear_strict", 1.1),
        ("pause_ms", 31),
        ("pause_ms", 60_001),
        ("silence_ms", 31),
        ("silence_ms", 60_001),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(GateSettingsError, match=name):
        GateSettings(**{name: value})  # type: ignore[arg-type]


def test_settings_are_frozen_and_low_thresholds_keep_an_end() -> None:
    with pytest.raises(FrozenInstanceError):
        SHORT.threshold = 0.1  # type: ignore[misc]
    assert GateSettings(threshold=0.7).end_threshold == pytest.approx(0.55)
    assert GateSettings(threshold=0.1).end_threshold == 0.01


@pytest.mark.parametrize("threshold", [0.005, 0.01, 0.02, 0.074, 0.1, 0.3, 0.5, 1.0])
def test_a_faint_probability_starts_nothing_and_ends_nothing_where_the_thresholds_leave_room(threshold: float) -> None:
    gate = SpeechGate(GateSettings(threshold=threshold))
    assert 0 < gate.settings.faint < threshold
    assert play(gate, [gate.settings.faint] * 40) == []
    play(gate, [threshold] * 2, first=40)
    play(gate, [gate.settings.faint] * 40, first=42)
    assert gate.state is (GateState.SPEAKING if threshold > 0.01 else GateState.IDLE)


def test_every_window_is_loud_at_a_threshold_of_nothing() -> None:
    assert GateSettings(threshold=0.0).faint == 0.0
    assert GateSettings(threshold=0.5).faint == pytest.approx(0.425)


def test_the_table_is_complete_and_due_states_never_loop() -> None:
    assert set(LEVELS) == set(GateState)
    assert all(set(row) == set(Level) for row in LEVELS.values())
    for state in DUE:
        reached, steps = state, 0
        while reached in DUE:
            reached, steps = DUE[reached], steps + 1
        assert steps <= 2


SETTINGS = st.builds(
    GateSettings,
    threshold=st.sampled_from([0.0, 0.1, 0.5, 0.7, 1.0]),
    start_windows=st.integers(1, 4),
    start_ms_strict=st.integers(32, 200),
    start_clear_strict=st.sampled_from([None, 0.8, 1.0]),
    pause_ms=st.integers(32, 200),
    silence_ms=st.integers(32, 400),
)
# Runs rather than single windows, so that long silences and long speech come up often.
RUNS = st.lists(
    st.tuples(st.sampled_from([LOUD, FAINT, QUIET, 0.0, 1.0]), st.integers(1, 14), st.booleans()), max_size=12
)
FOLLOWERS: dict[type[GateEvent] | None, set[type[GateEvent]]] = {
    None: {SpeechStarted},
    SpeechStarted: {SpeechPaused},
    SpeechPaused: {SpeechResumed, SpeechEnded},
    SpeechResumed: {SpeechPaused},
    SpeechEnded: {SpeechStarted},
}


def samples_of(event: GateEvent) -> int:
    return event.onset_sample if isinstance(event, SpeechStarted) else event.sample


@given(SETTINGS, RUNS)
def test_events_alternate_and_their_samples_never_run_backwards(
    settings: GateSettings, runs: list[tuple[float, int, bool]]
) -> None:
    gate = SpeechGate(settings)
    events: list[GateEvent] = []
    count = 0
    for probability, length, stricter in runs:
        events += play(gate, [probability] * length, first=count, stricter=stricter)
        count += length
    kinds = [None, *map(type, events)]
    assert all(after in FOLLOWERS[before] for before, after in pairwise(kinds) if after is not None)
    samples = [samples_of(event) for event in events]
    assert samples == sorted(samples)
    assert all(0 <= sample <= at(count) for sample in samples)
    assert gate.in_speech == (bool(events) and not isinstance(events[-1], SpeechEnded))


@given(SETTINGS, RUNS)
def test_started_means_speech_and_ended_means_silence(
    settings: GateSettings, runs: list[tuple[float, int, bool]]
) -> None:
    gate = SpeechGate(settings)
    windows = [(probability, stricter) for probability, length, stricter in runs for _ in range(length)]
    for number, (probability, stricter) in enumerate(windows):
        for event in gate.window(probability, at(number + 1), stricter=stricter):
            heard = [loudness for loudness, _ in windows[samples_of(event) // WINDOW_SAMPLES : number + 1]]
            match event:
                case SpeechStarted():
                    assert min(heard) >= settings.threshold
                    clear = settings.start_clear_strict if stricter else None
                    is_clear = clear is not None and probability >= clear
                    assert is_clear or len(heard) >= settings.start_windows_needed(stricter)
                case SpeechPaused():
                    assert len(heard) * 32 >= min(settings.pause_ms, settings.silence_ms)
                    assert max(heard) < settings.threshold
                case SpeechResumed():
                    assert heard == [probability]
                    assert probability >= settings.threshold
                case SpeechEnded():
                    assert event.at == at(number + 1)
                    assert len(heard) * 32 >= settings.silence_ms
                    assert max(heard) < settings.threshold


# ---- sound that stops coming -----------------------------------------------------------------------


def test_what_is_missing_behind_speech_is_silence_from_there_on() -> None:
    gate = SpeechGate(SHORT)
    play(gate, [LOUD] * 4)
    assert gate.missing(at(3) - 1) == ()
    assert gate.missing(at(3)) == (SpeechPaused(at(4)),)
    assert gate.missing(at(6)) == (SpeechEnded(at(4), at(4)),)
    assert gate.missing(at(60)) == ()


def test_what_was_missing_is_forgotten_when_sound_comes() -> None:
    gate = SpeechGate(SHORT)
    play(gate, [LOUD] * 4)
    gate.missing(at(5))
    assert play(gate, [QUIET] * 5, first=4) == []
    assert play(gate, [QUIET], first=9) == [SpeechEnded(at(4), at(10))]


@pytest.mark.parametrize("before", [[], [LOUD], [QUIET]])
def test_where_no_speech_was_confirmed_nothing_is_missing(before: list[float]) -> None:
    gate = SpeechGate(SHORT)
    play(gate, before)
    state = gate.state
    assert gate.missing(at(100)) == ()
    assert gate.state is state
