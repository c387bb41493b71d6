"""The sound of a call on the call's own timeline, kept in memory up to a limit.

Rules
* Sample 0 is the start of the call; where nothing was heard there is silence.
* Pieces come in order of time and do not overlap. What lies past the limit is left out, and `truncated` says so.
"""

from __future__ import annotations

from loadtest.playout_model import NS_PER_S, Heard
from media.chunk import BYTES_PER_SAMPLE


class Recording:
    """At most `seconds_max` of PCM16 mono at `sample_rate`."""

    def __init__(self, sample_rate: int, seconds_max: int, start_ns: int = 0) -> None:
        self._rate = sample_rate
        self._bytes_max = seconds_max * sample_rate * BYTES_PER_SAMPLE
        self._start_ns = start_ns
        self._pcm = bytearray()
        self.truncated = False

    @property
    def sample_rate(self) -> int:
        return self._rate

    @property
    def pcm(self) -> bytes:
        return bytes(self._pcm)

    def start(self, now_ns: int) -> None:
        """The call begins."""
        self._start_ns = now_ns

    def add(self, heard: Heard) -> None:
        """Place a piece; neighbours that differ from touching by one sample of rounding are joined."""
        end = len(self._pcm) // BYTES_PER_SAMPLE
        place = ((heard.start_ns - self._start_ns) * self._rate + NS_PER_S // 2) // NS_PER_S
        silence = place - end if place - end > 1 else 0
        room = self._bytes_max - len(self._pcm)
        piece = (bytes(min(silence * BYTES_PER_SAMPLE, room)) + heard.pcm)[:room]
        self.truncated |= len(piece) < silence * BYTES_PER_SAMPLE + len(heard.pcm)
        self._pcm += piece
