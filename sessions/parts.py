"""What the policies of a conversation are made of: each sees all of these, and owns none."""

from __future__ import annotations

from dataclasses import dataclass

from sessions.hearing import Hearing
from sessions.making import Making
from sessions.remembered import Remembered
from sessions.speaking import Speaking


@dataclass(frozen=True, slots=True)
class Parts:
    """Of one conversation."""

    hearing: Hearing
    speaking: Speaking
    remembered: Remembered
    making: Making
