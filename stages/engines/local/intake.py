"""The audio of one utterance that has not become text yet: trimmed, gapless, bounded.

Theory of operation
    Audio comes as PCM16 at 16 kHz with the offset of its first sample in the session's input. What overlaps
    with audio that is here already is trimmed; a gap becomes silence. Everything here and in the utterance is
    counted in *positions*: samples of the gapless signal. They equal the session's offsets, less the part of
    long gaps that was left out.

Rules
* A gap becomes at most `GAP_SAMPLES_MAX` of silence, and none above `high_samples`: above it stands only audio
  that the producer paid for, so `high_samples` and the producer's credit together bound the memory.
* Offsets inside or before the latest gap map to it exactly; what lies before an older gap is long committed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stages.stream import StageFailure

SAMPLE_RATE = 16_000
BYTES_PER_SAMPLE = 2

# Longer than any word gap, so that text on both sides of a gap is told apart; short enough to cost no window.
GAP_SAMPLES_MAX = 1 * SAMPLE_RATE

# Cuts are looked for in frames of 20 ms, judged by the energy of the 100 ms around them: shorter than most
# pauses between phrases, longer than the closure of a plosive.
_FRAME_SAMPLES = SAMPLE_RATE // 50
_FRAMES_JUDGED = 5


class Intake:
    """Positions `start … end` are here; `start` moves up with `drop`, `end` with `add`."""

    def __init__(self, high_samples: int, capacity_samples: int) -> None:
        self._high_samples = high_samples
        self._capacity_samples = capacity_samples
        self._pcm = bytearray()
        self._begun = False
        self._start = 0
        self._resumed_sample = 0
        self._skipped = 0
        self._skipped_before = 0

    @property
    def start(self) -> int:
        return self._start

    @property
    def end(self) -> int:
        return self._start + self.stored

    @property
    def stored(self) -> int:
        """Samples held."""
        return len(self._pcm) // BYTES_PER_SAMPLE

    def add(self, start_sample: int, pcm: bytes) -> None:
        """Take PCM16 that starts at `start_sample` of the session's input.

        Raises `StageFailure`: `bad_audio` for half a sample or a negative offset, `input_overrun` when the
        producer sent more than its credit.
        """
        if start_sample < 0 or len(pcm) % BYTES_PER_SAMPLE:
            raise StageFailure("bad_audio", f"{len(pcm)} bytes of PCM16 at offset {start_sample}")
        if not self._begun:
            self._begun = True
            self._start = self._resumed_sample = start_sample
        known = self.sample(self.end) - start_sample
        fresh = pcm[max(0, known) * BYTES_PER_SAMPLE :]
        if not fresh:
            return
        if known < 0:
            self._bridge(-known)
        if self.stored + len(fresh) // BYTES_PER_SAMPLE > self._capacity_samples:
            raise StageFailure("input_overrun", f"{self.stored} samples are held and more came without credit")
        self._pcm += fresh

    def _bridge(self, gap: int) -> None:
        """Put silence in place of `gap` missing samples; what does not fit is left out of the positions."""
        filled = min(gap, GAP_SAMPLES_MAX, max(0, self._high_samples - self.stored))
        resumed_sample = self.sample(self.end) + gap
        self._pcm += bytes(filled * BYTES_PER_SAMPLE)
        if filled < gap:
            self._skipped_before = self._skipped
            self._skipped += gap - filled
            self._resumed_sample = resumed_sample

    def position(self, sample: int) -> int:
        """Where offset `sample` of the session's input stands, within what is here."""
        if sample >= self._resumed_sample:
            position = sample - self._skipped
        else:
            position = min(sample - self._skipped_before, self._resumed_sample - self._skipped)
        return min(max(position, self.start), self.end)

    def sample(self, position: int) -> int:
        """The offset in the session's input of `position`."""
        after_gap = position >= self._resumed_sample - self._skipped
        return position + (self._skipped if after_gap else self._skipped_before)

    def take(self, end: int) -> bytes:
        """A copy of the PCM16 from `start` to `end`."""
        return bytes(self._pcm[: (end - self._start) * BYTES_PER_SAMPLE])

    def drop(self, until: int) -> None:
        """Forget what lies before `until`, a position from `start` to `end`."""
        del self._pcm[: (until - self._start) * BYTES_PER_SAMPLE]
        self._start = until

    def quietest(self, first: int, last: int) -> int:
        """The position between `first` and `last` around which it is quietest; the later of equals.

        Both lie within what is here, at least 100 ms apart.
        """
        begin = (first - self._start) * BYTES_PER_SAMPLE
        signal = samples_of(bytes(self._pcm[begin : begin + (last - first) * BYTES_PER_SAMPLE]))
        frames = signal[: len(signal) // _FRAME_SAMPLES * _FRAME_SAMPLES].reshape(-1, _FRAME_SAMPLES)
        energy = np.convolve(np.square(frames).sum(axis=1), np.ones(_FRAMES_JUDGED), mode="valid")
        judged = len(energy) - 1 - int(np.argmin(energy[::-1]))
        return first + judged * _FRAME_SAMPLES + _FRAMES_JUDGED * _FRAME_SAMPLES // 2


def samples_of(pcm: bytes) -> NDArray[np.float32]:
    """PCM16 as float32 within ±1, shape `(samples,)`."""
    return np.frombuffer(pcm, dtype="<i2").astype(np.float32) / np.float32(32768.0)
