"""Since when things wait, told by looking at them from time to time.

Theory of operation
    What waits is named, with a number that changes whenever it gets on. It has been waiting since the first look that
    found it with this number. So nothing is noted, and no clock read, where things begin and cease to wait, which is at
    every chunk; and a wait is told too short by at most the time between two looks.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Wait:
    progress: int
    since_ns: int


class Waits(Generic[K]):
    """One kind of waiting. What does not wait any more is forgotten at the next look."""

    def __init__(self) -> None:
        self._waits: dict[K, _Wait] = {}

    def look(self, waiting: Mapping[K, int], now_ns: int) -> dict[K, int]:
        """How long each of those that wait now has been doing so, in ns. `waiting`: the number of each."""
        self._waits = {name: self._wait(name, progress, now_ns) for name, progress in waiting.items()}
        return {name: now_ns - wait.since_ns for name, wait in self._waits.items()}

    def _wait(self, name: K, progress: int, now_ns: int) -> _Wait:
        before = self._waits.get(name)
        return before if before is not None and before.progress == progress else _Wait(progress, now_ns)
