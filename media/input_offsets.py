"""Where what a client sends stands in its session's input.

Theory of operation
    A client may say at which offset a piece of its sound begins. What is there already is left out; what is missing
    before it is a gap. A client that says nothing goes on where the input ends. So one that comes back sends again what
    it had kept, from wherever it likes, and nothing is heard twice.

Rules
* Offsets count samples of the session's whole input, through all its connections, at the rate of the present format.
* Before any sound has come, the input may begin up to `START_S_MAX` seconds behind; amid it, a gap has at most
  `GAP_S_MAX`.
"""

from __future__ import annotations

from dataclasses import dataclass

# What a session can have had of input that the store does not know of; what is further behind is no place in it, and
# would make of all that follows something that has come before.
START_S_MAX = 24 * 3_600
GAP_S_MAX = 20  # as long as a call's ring: what is further apart has nothing to do with each other


class InputGapError(ValueError):
    """The client has left out more than can be filled; what it sent is not taken."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Of a piece, `skip` samples have come before; `gap` samples are missing before the rest, which is at `start`."""

    skip: int
    gap: int
    start: int


class InputOffsets:
    """`start`: where the input begins, at `sample_rate`."""

    def __init__(self, start: int, sample_rate: int) -> None:
        self._next = start
        self._rate = sample_rate
        self._has_begun = False

    @property
    def next_sample(self) -> int:
        """Where the next one stands."""
        return self._next

    @property
    def has_begun(self) -> bool:
        """Whether any sound has come."""
        return self._has_begun

    def place(self, start: int | None, samples: int) -> Placed:
        """Take a piece that begins at `start`; None: where the input ends. Raises `InputGapError`."""
        begins = self._next if start is None else start
        gap = max(0, begins - self._next)
        gap_s_max = GAP_S_MAX if self._has_begun else START_S_MAX
        if gap > gap_s_max * self._rate:
            raise InputGapError(f"{gap} samples are missing before that; at most {gap_s_max} s can be")
        skip = min(samples, max(0, self._next - begins))
        placed = Placed(skip, gap, self._next + gap)
        self._next += gap + samples - skip
        self._has_begun = self._has_begun or samples > skip
        return placed

    def go_on(self, at: int, sample_rate: int) -> None:
        """The sound that comes next is of another rate, and stands `at`."""
        self._next, self._rate = at, sample_rate
