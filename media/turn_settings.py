"""How turns are detected: what is told to a `TurnDetector`, with the reason for each value.

Rules
* All but the published values await measurement; those of the voice itself are in `media.interruption`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from media.end_of_turn import EndOfTurnSettings, usual_silence_ms
from media.interruption import InterruptionSettings
from media.speech_gate import SILENCE_MS_MAX, START_MS_MAX, WINDOW_MS, GateSettings

WAIT_MS_MAX = 60_000  # a longer wait in the settings is a mistake


class TurnDetectorSettingsError(ValueError):
    """A setting out of its range: who configured it must act."""


@dataclass(frozen=True, slots=True)
class TurnDetectorSettings:
    """Validated when built; raises `TurnDetectorSettingsError` or, for what is the gate's, `GateSettingsError`.

    `threshold`, `start_windows`, `pause_ms`: as in `GateSettings`, for turns while we are silent.
    `hold_clear`: the probability by which a single window holds our reply: voice has it soon, clicks seldom.
    `hold_ms`: loud windows in a row that do so too, for a voice that is never so clear (docs/turn-taking.md).
    `burst_end_ms`: quiet that ends a burst over our own speech. The closure of a stop consonant is shorter.
    `join_gap_ms`: a burst that begins so soon after another goes on with its evidence ("No, … that is not it").
    `confirm_ms_max`: how long we hold on the client's word alone: two windows, and what is still on its way.
    `decide_ms_max`: the longest hold. `backchannel_hold_ms_max`: the longest while only a listener's words are known:
    a reply that is held longer than 0.6 s for an "mm-hm" sounds broken.
    `late_ms_max`: how long after its sound the words of a burst still count; a final takes about 0.2 s.
    `guard_ms`: how long holding is suspended after an echo that only its words have told, or after `vain_holds_max`
    holds in vain of which each came within that time after the one before.
    `provisional_ms_max`: how long a turn may stay provisional, since its sound is being kept and encoded.
    `sound_ms`: silence after which the sound of a turn is asked about, where `semantic_vad` is to end it; None: nobody
    can tell.
    """

    threshold: float = 0.5
    start_windows: int = 2
    pause_ms: int = 96
    end_of_turn: EndOfTurnSettings = field(default_factory=EndOfTurnSettings)
    interruption: InterruptionSettings = field(default_factory=InterruptionSettings)
    hold_clear: float = 0.8
    hold_ms: int = 160
    burst_end_ms: int = 128
    join_gap_ms: int = 192
    confirm_ms_max: int = 250
    decide_ms_max: int = 800
    backchannel_hold_ms_max: int = 560
    late_ms_max: int = 1_500
    guard_ms: int = 4_000
    vain_holds_max: int = 3
    provisional_ms_max: int = 10_000
    sound_ms: int | None = None

    def __post_init__(self) -> None:
        _check_range("hold_ms", self.hold_ms, WINDOW_MS, START_MS_MAX)
        _check_range("burst_end_ms", self.burst_end_ms, WINDOW_MS, WAIT_MS_MAX)
        _check_range("join_gap_ms", self.join_gap_ms, 0, WAIT_MS_MAX)
        _check_range("decide_ms_max", self.decide_ms_max, WINDOW_MS, WAIT_MS_MAX)
        _check_range("confirm_ms_max", self.confirm_ms_max, WINDOW_MS, self.decide_ms_max)
        _check_range("backchannel_hold_ms_max", self.backchannel_hold_ms_max, WINDOW_MS, self.decide_ms_max)
        _check_range("late_ms_max", self.late_ms_max, self.burst_end_ms, WAIT_MS_MAX)
        _check_range("guard_ms", self.guard_ms, 0, WAIT_MS_MAX)
        _check_range("vain_holds_max", self.vain_holds_max, 1, 1_000)
        _check_range("provisional_ms_max", self.provisional_ms_max, self.late_ms_max, WAIT_MS_MAX)
        if self.sound_ms is not None:
            _check_range("sound_ms", self.sound_ms, WINDOW_MS, WAIT_MS_MAX)
        self.gate(usual_silence_ms(self.end_of_turn))  # raises where the gate would

    def gate(self, silence_ms: int) -> GateSettings:
        """The gate's settings within a turn that ends after `silence_ms`, and before one."""
        return self._gate(self.pause_ms, silence_ms)

    @property
    def asks_after_ms(self) -> int | None:
        """Silence after which the sound is asked about; None where it does not count."""
        return self.sound_ms if self.end_of_turn.kind == "semantic_vad" else None

    @property
    def provisional_gate(self) -> GateSettings:
        """The gate's settings within a provisional turn: its end is decided by other means."""
        return self._gate(self.burst_end_ms, SILENCE_MS_MAX)

    def _gate(self, pause_ms: int, silence_ms: int) -> GateSettings:
        return GateSettings(
            self.threshold, self.start_windows, self.hold_ms, pause_ms, silence_ms, start_clear_strict=self.hold_clear
        )


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise TurnDetectorSettingsError(f"{name} is {value}, but must be from {low} to {high}")
