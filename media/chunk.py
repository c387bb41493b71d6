"""The chunk contract: every piece of output sound says exactly where it stands on the sample clock.

Rules
* Offsets are integers at `sample_rate`; `start[k + 1] = start[k] + samples[k]`.
* Exactly one chunk of a response is `final`; a final chunk may be empty and must not be dropped.
* PCM is signed 16-bit little-endian mono.
"""

from __future__ import annotations

from dataclasses import dataclass

BYTES_PER_SAMPLE = 2


class ChunkError(ValueError):
    """A chunk broke the contract: a bug of its producer, never of the caller."""


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """`samples` samples of PCM16 mono that start at `start_sample` of their response."""

    seq: int
    sample_rate: int
    start_sample: int
    pcm: bytes
    final: bool

    def __post_init__(self) -> None:
        if len(self.pcm) % BYTES_PER_SAMPLE:
            raise ChunkError(f"chunk {self.seq}: {len(self.pcm)} bytes are not whole 16-bit samples")
        if self.seq < 0 or self.start_sample < 0 or self.sample_rate <= 0:
            raise ChunkError(f"chunk {self.seq}: negative seq or offset, or no sample rate")
        if not self.pcm and not self.final:
            raise ChunkError(f"chunk {self.seq}: only a final chunk may be empty")

    @property
    def samples(self) -> int:
        return len(self.pcm) // BYTES_PER_SAMPLE

    @property
    def end_sample(self) -> int:
        return self.start_sample + self.samples


def samples_to_ms(samples: int, sample_rate: int) -> int:
    """Whole milliseconds in `samples`, rounded down."""
    return samples * 1000 // sample_rate


def samples_to_ms_above(samples: int, sample_rate: int) -> int:
    """Whole milliseconds that hold `samples`, rounded up."""
    return -(-samples * 1000 // sample_rate)


def ms_to_samples(ms: int, sample_rate: int) -> int:
    """Samples in `ms` milliseconds, rounded down."""
    return ms * sample_rate // 1000


def rescale(position: int, from_rate: int, to_rate: int) -> int:
    """An offset at `from_rate` as an offset at `to_rate`, exact and rounded down."""
    return position * to_rate // from_rate
