"""What the detector of turns refuses to be told."""

from __future__ import annotations

import pytest

from media.end_of_turn import EndOfTurnSettings
from media.speech_gate import GateSettingsError
from media.turn_settings import TurnDetectorSettings, TurnDetectorSettingsError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hold_ms", 31),
        ("hold_ms", 1_025),
        ("burst_end_ms", 31),
        ("join_gap_ms", -1),
        ("confirm_ms_max", 31),
        ("confirm_ms_max", 801),
        ("decide_ms_max", 31),
        ("backchannel_hold_ms_max", 801),
        ("late_ms_max", 127),
        ("guard_ms", -1),
        ("vain_holds_max", 0),
        ("provisional_ms_max", 1_499),
        ("provisional_ms_max", 60_001),
        ("sound_ms", 31),
        ("sound_ms", 60_001),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(TurnDetectorSettingsError, match=name):
        TurnDetectorSettings(**{name: value})  # type: ignore[arg-type]


def test_settings_of_the_gate_are_checked_too() -> None:
    with pytest.raises(GateSettingsError, match="threshold"):
        TurnDetectorSettings(threshold=1.1)
    with pytest.raises(GateSettingsError, match="silence_ms"):
        TurnDetectorSettings(end_of_turn=EndOfTurnSettings(silence_duration_ms=0))


def test_only_a_semantic_detector_with_somebody_to_ask_asks_about_the_sound() -> None:
    semantic = EndOfTurnSettings("semantic_vad")
    assert TurnDetectorSettings(end_of_turn=semantic, sound_ms=200).asks_after_ms == 200
    assert TurnDetectorSettings(end_of_turn=semantic).asks_after_ms is None
    assert TurnDetectorSettings(sound_ms=200).asks_after_ms is None


def test_a_provisional_turn_never_ends_by_the_silence_that_ends_others() -> None:
    settings = TurnDetectorSettings(hold_ms=128, burst_end_ms=160)
    gate = settings.provisional_gate
    assert (gate.start_windows_needed(stricter=True), gate.pause_ms, gate.silence_ms) == (4, 160, 60_000)
    assert settings.gate(700).silence_ms == 700
