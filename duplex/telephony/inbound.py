"""The caller's sound in one piece: put in order, and with silence where the carrier has thrown some away.

Theory of operation
    A carrier that numbers its chunks may send them out of order: one that is up to `REORDER_CHUNKS` ahead waits for
    those before it. What is missing when one comes that is further ahead is lost; of a carrier that sends them in
    order, at once. One that tells where each begins on the caller's clock shows what is missing: where that is more
    than a piece can be late by, silence takes its place, so that the clock of the input stays true.

Rules
* A chunk is heard once: the same number with the same sound is a double, and left out.
* One that comes behind those that follow it is late. It is left out, but no more than `LATE_MS_MAX` of a call are:
  numbers that are wrong shall make no caller deaf. Late sound beyond that is heard where it comes.
* A number that is more than `JUMP_CHUNKS_MAX` off is no place in what came so far: numbers begin anew with it.
* No more than `GAP_MS_MAX` of silence is put in at once: a clock that jumps further is followed.
* A clock that falls back by more than that begins anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from zlib import crc32

from duplex.telephony.carrier import SoundIn
from media.audio_format import AudioFormat

REORDER_CHUNKS = 5  # 100 ms, with the usual chunks of 20
JUMP_CHUNKS_MAX = 50  # a second
LATE_MS_MAX = 200  # a syllable: more would be missed
GAP_MS_MIN = 60  # carriers' clocks are of whole frames, and were seen to be late by one or two
GAP_MS_MAX = 5_000


@dataclass(frozen=True, slots=True)
class InboundCounts:
    """Chunks that were `lost`; that came too `late` to be heard, or a second time (`doubled`); that came elsewhere than
    their number says and are heard (`reordered`). `filled_ms` of silence were put in."""

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
        self._ahead_max = 0 if is_ordered else REORDER_CHUNKS
        self._sample_bytes = len(line.encode(bytes(2)))
        self._waiting: dict[int, SoundIn] = {}
        self._recent: deque[tuple[int, int]] = deque(maxlen=JUMP_CHUNKS_MAX)  # numbers, and sums of their sound
        self._next_chunk: int | None = None
        self._late_ms_left = LATE_MS_MAX
        self._began_ms: int | None = None
        self._samples = 0  # since then
        self.counts = InboundCounts()

    def take(self, sound: SoundIn) -> list[bytes]:
        """What can be heard by now, in order, as it travels."""
        chunk = sound.chunk
        if chunk is None:
            return self._place(sound)
        if self._next_chunk is None:
            self._next_chunk = chunk
        if abs(chunk - self._next_chunk) > JUMP_CHUNKS_MAX:
            return self._begin_anew(chunk, sound)
        is_behind, numbered = chunk < self._next_chunk or chunk in self._waiting, (chunk, crc32(sound.coded))
        if is_behind and numbered in self._recent:
            self.counts = replace(self.counts, doubled=self.counts.doubled + 1)
            return []
        self._recent.append(numbered)
        return self._take_late(sound) if is_behind else self._take_next(chunk, sound)

    def _begin_anew(self, chunk: int, sound: SoundIn) -> list[bytes]:
        heard = self._hear_here(sound)
        self._next_chunk = chunk + 1
        return heard

    def _hear_here(self, sound: SoundIn) -> list[bytes]:
        """Whatever its number is."""
        self.counts = replace(self.counts, reordered=self.counts.reordered + 1)
        return [*self._release(), *self._place(sound)]

    def _take_late(self, sound: SoundIn) -> list[bytes]:
        late_ms = self._ms(len(sound.coded) // self._sample_bytes)
        if late_ms > self._late_ms_left:
            return self._hear_here(sound)
        self._late_ms_left -= late_ms
        self.counts = replace(self.counts, late=self.counts.late + 1)
        return []

    def _take_next(self, chunk: int, sound: SoundIn) -> list[bytes]:
        assert self._next_chunk is not None, "one has come"
        if self._waiting and chunk == self._next_chunk:
            self.counts = replace(self.counts, reordered=self.counts.reordered + 1)
        self._waiting[chunk] = sound
        heard = self._follow()
        while chunk - self._next_chunk > self._ahead_max:
            heard += self._go_on()
        return heard

    def _release(self) -> list[bytes]:
        """All that waits, whatever is missing before it."""
        heard: list[bytes] = []
        while self._waiting:
            heard += self._go_on()
        return heard

    def _go_on(self) -> list[bytes]:
        """With the first that waits: what comes before it is lost."""
        assert self._next_chunk is not None, "one has come"
        chunk = min(self._waiting)
        self.counts = replace(self.counts, lost=self.counts.lost + chunk - self._next_chunk)
        self._next_chunk = chunk
        return self._follow()

    def _follow(self) -> list[bytes]:
        """What follows what was heard, as far as it has come."""
        assert self._next_chunk is not None, "one has come"
        heard = []
        while (following := self._waiting.pop(self._next_chunk, None)) is not None:
            self._next_chunk += 1
            heard += self._place(following)
        return heard

    def _ms(self, samples: int) -> int:
        return samples * 1_000 // self._line.sample_rate

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
        expected_ms = self._began_ms + self._ms(self._samples)
        if at_ms - expected_ms < GAP_MS_MIN:
            if expected_ms - at_ms > GAP_MS_MAX:
                self._began_ms, self._samples = at_ms, 0
            return 0
        self._began_ms, self._samples = at_ms, 0
        return min(at_ms - expected_ms, GAP_MS_MAX)
