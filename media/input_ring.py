"""The last samples of a call's input, found by their absolute offset.

Speech is noticed after it has begun; what was said before that is read back from here, so that the caller's first
phoneme is never lost.

Rules
* Offsets are absolute: they count all samples ever appended, plus the offset at which the ring began.
* What is older than `capacity_samples` is overwritten; a reader is told when it did not get all that it asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from media.chunk import BYTES_PER_SAMPLE
from media.pcm import PcmError


@dataclass(frozen=True, slots=True)
class RingRead:
    """PCM16 from `start_sample` on. `clamped`: part of what was asked for is not, or not yet, in the ring."""

    start_sample: int
    pcm: bytes
    clamped: bool


class InputRing:
    """Keeps the last `capacity_samples` of a stream of PCM16 mono that begins at offset `start_sample`."""

    __slots__ = ("_first", "_newest", "_samples")

    def __init__(self, capacity_samples: int, start_sample: int = 0) -> None:
        assert capacity_samples > 0
        assert start_sample >= 0
        self._samples = np.empty(capacity_samples, dtype="<i2")  # takes no memory until something is written to it
        self._first = start_sample
        self._newest = start_sample

    @property
    def capacity(self) -> int:
        """How many samples are kept."""
        return len(self._samples)

    @property
    def newest(self) -> int:
        """Offset after the last sample: where the next one will stand."""
        return self._newest

    @property
    def oldest(self) -> int:
        """Offset of the first sample still kept; equals `newest` while the ring is empty."""
        return max(self._first, self._newest - len(self._samples))

    def begin_at(self, sample: int) -> None:
        """The first sample that is appended stands there, as none has come yet."""
        assert self._newest == self._first <= sample, "the ring is empty, and time does not go back"
        self._first = self._newest = sample

    def append(self, pcm: bytes) -> None:
        """Add whole samples of PCM16; raises `PcmError` at an odd length."""
        if len(pcm) % BYTES_PER_SAMPLE:
            raise PcmError(f"{len(pcm)} bytes are not whole 16-bit samples")
        samples = np.frombuffer(pcm, dtype="<i2")
        self._newest += len(samples)
        kept = samples[-len(self._samples) :]
        place = (self._newest - len(kept)) % len(self._samples)
        straight = min(len(kept), len(self._samples) - place)
        self._samples[place : place + straight] = kept[:straight]
        self._samples[: len(kept) - straight] = kept[straight:]

    def read(self, start: int, end: int) -> RingRead:
        """Samples `start` to before `end`, as far as the ring has them; nothing is consumed."""
        assert start <= end
        first = min(max(start, self.oldest), self._newest)
        count = max(0, min(end, self._newest) - first)
        place = first % len(self._samples)
        straight = self._samples[place : place + count].tobytes()
        wrapped = self._samples[: max(0, place + count - len(self._samples))].tobytes()
        return RingRead(first, straight + wrapped, clamped=count < end - start)
