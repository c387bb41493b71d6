"""The caller's sound in one piece: put in order, and with silence where the carrier has thrown some away.

Theory of operation
    A carrier that numbers its chunks may send them out of order: up to `REORDER_CHUNKS` are kept until the missing one
    has come, and then it counts as lost. Of one that sends them in order, it is lost at once. One that tells where each
    begins on the caller's clock shows what is missing: where that is more than a piece can be late by, silence takes
    its place, so that the clock of the input stays true.

Rules
* A chunk is heard once. One that comes behind those that follow it is late, and left out.
* No more than `GAP_MS_MAX` of silence is put in at once: a clock that jumps further is followed.
* A clock that falls back by more than that begins anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from duplex.telephony.carrier import SoundIn
from media.audio_format import AudioFormat

REORDER_CHUNKS = 5  # 100 ms, with the usual chunks of 20
GAP_MS_MIN = 60  # carriers' clocks are of whole frames, and were seen to be late by one or two
GAP_MS_MAX = 5_000
LOSSES_KEPT = 16  # runs of lost chunks: one that is later than that counts as doubled


@dataclass(frozen=True, slots=True)
class InboundCounts:
    """Chunks that were `lost`, or came too `late`, a second time (`doubled`), or behind some that follow them, and in
    time (`reordered`); `filled_ms` of silence were put in."""

    lost: int = 0
    late: int = 0
    doubled: int = 0
    reordered: int = 0
    filled_ms: int = 0

    def since(self, before: InboundCounts) -> InboundCounts:
        """What has come since then."""
        return InboundCounts(
            self.lost - before.lost,
            self.late - before.late,
            self.doubled - before.doubled,
            self.reordered - before.reordered,
            self.filled_ms - before.filled_ms,
        )


class Inbound:
    """`line`: how the sound travels. `is_ordered`: no chunk comes behind those that follow it."""

    def __init__(self, line: AudioFormat, *, is_ordered: bool) -> None:
        self._line = line
        self._waiting_max = 0 if is_ordered else REORDER_CHUNKS
        self._sample_bytes = len(line.encode(bytes(2)))
        self._waiting: dict[int, SoundIn] = {}
        self._lost: deque[range] = deque(maxlen=LOSSES_KEPT)
        self._next_chunk: int | None = None
        self._began_ms: int | None = None
        self._samples = 0  # since then
        self.counts = InboundCounts()

    def take(self, sound: SoundIn) -> list[bytes]:
        """What can be heard by now, in order, as it travels."""
        if sound.chunk is None:
            return self._place(sound)
        if self._next_chunk is None:
            self._next_chunk = sound.chunk
        if sound.chunk < self._next_chunk or sound.chunk in self._waiting:
            self._leave_out(sound.chunk)
            return []
        if self._waiting and sound.chunk == self._next_chunk:
            self.counts = replace(self.counts, reordered=self.counts.reordered + 1)
        self._waiting[sound.chunk] = sound
        if sound.chunk != self._next_chunk and len(self._waiting) > self._waiting_max:
            self._go_on_at(min(self._waiting))
        heard = []
        while (following := self._waiting.pop(self._next_chunk, None)) is not None:
            self._next_chunk += 1
            heard += self._place(following)
        return heard

    def _leave_out(self, chunk: int) -> None:
        if any(chunk in lost for lost in self._lost):
            self.counts = replace(self.counts, late=self.counts.late + 1)
        else:
            self.counts = replace(self.counts, doubled=self.counts.doubled + 1)

    def _go_on_at(self, chunk: int) -> None:
        """What comes before it is lost."""
        assert self._next_chunk is not None, "one has come"
        self._lost.append(range(self._next_chunk, chunk))
        self.counts = replace(self.counts, lost=self.counts.lost + chunk - self._next_chunk)
        self._next_chunk = chunk

    def _place(self, sound: SoundIn) -> list[bytes]:
        samples = len(sound.coded) // self._sample_bytes
        missing_ms = 0 if sound.at_ms is None else self._missing_ms(sound.at_ms)
        self._samples += samples
        if not missing_ms:
            return [sound.coded]
        self.counts = replace(self.counts, filled_ms=self.counts.filled_ms + missing_ms)
        return [self._line.encode(bytes(2 * (missing_ms * self._line.sample_rate // 1_000))), sound.coded]

    def _missing_ms(self, at_ms: int) -> int:
        """Between what came last and what begins at `at_ms`."""
        if self._began_ms is None:
            self._began_ms = at_ms
        expected_ms = self._began_ms + self._samples * 1_000 // self._line.sample_rate
        if at_ms - expected_ms < GAP_MS_MIN:
            if expected_ms - at_ms > GAP_MS_MAX:
                self._began_ms, self._samples = at_ms, 0
            return 0
        self._began_ms, self._samples = at_ms, 0
        return min(at_ms - expected_ms, GAP_MS_MAX)
