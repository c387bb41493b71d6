"""What a call uses, entered in its allowance in whole units."""

from __future__ import annotations

from sessions.quotas import Allowance
from sessions.settings import INPUT_RATE

MS_PER_S = 1_000


class UsageMeter:
    """Of one call."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._heard_ms = 0
        self._said = 0  # of what is no whole ms yet, in ms by samples per second

    def heard(self, samples: int) -> None:
        """So many samples of the caller's sound (16 kHz) have come so far."""
        heard_ms = samples * MS_PER_S // INPUT_RATE
        self._allowance.spend("audio_ms", heard_ms - self._heard_ms)
        self._heard_ms = heard_ms

    def said(self, samples: int, sample_rate: int) -> None:
        """A frame of `samples` has gone to the caller."""
        whole_ms, rest = divmod(self._said + samples * MS_PER_S, sample_rate)
        self._allowance.spend("audio_ms", whole_ms)
        self._said = rest

    def message(self, wire_bytes: int) -> None:
        """A message has come, or was sent."""
        self._allowance.spend("bytes", wire_bytes)

    def may_call_tool(self) -> bool:
        """Enter a call of a tool, where there is room for it."""
        return self._allowance.take("tool_calls")
