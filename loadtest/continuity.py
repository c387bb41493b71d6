"""Whether the samples of a response arrive whole, once and in order, judged by their offsets.

Rules
* `start[k + 1] = start[k] + samples[k]`. Samples that were jumped over are missing until they come; then their
  frame counts as reordered instead. Samples that come again are doubled.
* Without loss of generality a response starts at the offset of its first frame: one taken up after a reconnect
  starts in the middle.
* At any time: offsets passed = accepted + missing, and samples added = accepted + doubled.
"""

from __future__ import annotations

# Holes remembered for frames that come late. TCP keeps order, so even one hole is a fault of the server; samples of
# a hole forgotten stay counted as missing.
HOLES_MAX = 256


class Continuity:
    """Offsets of one response, in samples."""

    __slots__ = ("_holes", "doubled_samples", "missing_samples", "next_sample", "reordered_frames")

    def __init__(self) -> None:
        self.next_sample: int | None = None
        self.missing_samples = 0
        self.doubled_samples = 0
        self.reordered_frames = 0
        self._holes: list[tuple[int, int]] = []

    def add(self, start: int, samples: int) -> None:
        """A frame of `samples` (> 0) at offset `start` has arrived."""
        assert start >= 0
        assert samples > 0
        expected = start if self.next_sample is None else self.next_sample
        end = start + samples
        if start > expected:
            self._open_hole(expected, start)
        if start < expected:
            late_end = min(end, expected)
            filled = self._fill(start, late_end)
            self.doubled_samples += late_end - start - filled
            self.reordered_frames += filled > 0
        self.next_sample = max(expected, end)

    def _open_hole(self, start: int, end: int) -> None:
        self.missing_samples += end - start
        self._holes.append((start, end))
        if len(self._holes) > HOLES_MAX:
            del self._holes[0]

    def _fill(self, start: int, end: int) -> int:
        """Close holes within [start, end); the number of samples that were missing there."""
        kept: list[tuple[int, int]] = []
        filled = 0
        for hole_start, hole_end in self._holes:
            inner_start, inner_end = max(hole_start, start), min(hole_end, end)
            if inner_start >= inner_end:
                kept.append((hole_start, hole_end))
                continue
            filled += inner_end - inner_start
            rests = ((hole_start, inner_start), (inner_end, hole_end))
            kept += [rest for rest in rests if rest[0] < rest[1]]
        self._holes = kept
        self.missing_samples -= filled
        return filled
